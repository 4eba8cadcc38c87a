"""A trial of a task as the user sees it."""

import dataclasses
from typing import Any, final

from jlibo.tune.memory.records import TrialRecord


@final
@dataclasses.dataclass(frozen=True)
class Trial:
    """A configuration to evaluate; returned by `TunerTask.ask`.

    ```python
    import jlibo

    task = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1))).task("first", budget=5)
    trial = task.ask()
    assert trial.number == 0 and 0 <= trial.params["x"] <= 1
    ```
    """

    id: int
    """Id of the trial in the memory."""
    number: int
    """Position in the task, from 0."""
    params: dict[str, Any]
    """Value of each parameter, by name."""
    score: float | None = None
    """Score of a finished trial; None while the trial is pending, or if it failed."""
    explored: bool = False
    """Whether the trial is a step of forced exploration and not a choice of the policy."""


def as_trial(record: TrialRecord) -> Trial:
    """Return a record of the memory as a trial."""
    return Trial(record.id, record.number, record.params, record.score, record.explored)
