"""What an experiment tracker is told about a finished trial; shared by the callbacks of each. Internal."""

import dataclasses
import importlib
from typing import Any, final

from jlibo.tune.task import TunerTask
from jlibo.tune.trial import Trial


@final
@dataclasses.dataclass(frozen=True)
class TrackedTrial:
    """A finished trial in the terms of an experiment tracker: one run.

    - `name`: the name of the run, such as "credit-g/7".
    - `group`: the name of the task.
    - `tags`: the task, the number, the state, and the error if there is one.
    - `params`: the parameters.
    - `curve`: the reported scores by step; those that are not finite are left out.
    - `score`: the score of a complete trial.
    """

    name: str
    group: str
    tags: dict[str, str]
    params: dict[str, Any]
    curve: dict[int, float]
    score: float | None
    state: str

    @classmethod
    def of(cls, task: TunerTask, trial: Trial) -> "TrackedTrial":
        """Return what is known of a finished trial."""
        tags = {"jlibo.task": task.name, "jlibo.trial": str(trial.number), "jlibo.state": trial.state}
        if trial.error is not None:
            tags["jlibo.error"] = trial.error
        curve = {step: score for step, score in task.curve(trial).items() if score is not None}
        name = f"{task.name}/{trial.number}"
        return cls(name, task.name, tags, dict(trial.params), curve, trial.score, trial.state)


def imported(module: str, needed: str) -> Any:
    """Return a module; if it is not installed, raise an `ImportError` that says what is `needed`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(needed) from None


def reported_name(metric: str) -> str:
    """Return the name of the metric of the scores that a trial reported while it ran."""
    return f"{metric}_reported"
