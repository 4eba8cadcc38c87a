"""A trial of a task as the user sees it."""

import dataclasses
from typing import Any, Protocol, final

from jlibo.tune.memory.records import State, TrialRecord, TrialStateError


class TrialStopped(Exception):
    """Raise it in an evaluation to end the trial as stopped; see `Trial.should_stop`."""


class TrialReporter(Protocol):
    """What a trial needs for `report` and `should_stop`."""

    def report(self, trial: "Trial", step: int, score: float) -> None:
        """Store a report of a trial."""
        ...

    def should_stop(self, trial: "Trial") -> bool:
        """Return whether a trial should stop."""
        ...


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
    """Score of a complete trial; None if it is pending, failed or was stopped."""
    explored: bool = False
    """Whether the trial is a step of forced exploration and not a choice of the policy."""
    state: State = "pending"
    """"pending", "complete", "failed" or "stopped"."""
    error: str | None = None
    """Why the trial failed, if that is known."""
    _reporter: TrialReporter | None = dataclasses.field(default=None, repr=False, compare=False)
    """Where `report` writes to; None for a finished trial, and in another process."""

    def report(self, step: int, score: float) -> None:
        """Store a score of the running trial at a step. It is on the disk when this returns.

        A second report at the same step replaces the first.

        **Arguments:**

        - `step`: the step, such as the number of an epoch or a fold; a whole number from 0.
        - `score`: the score at this step, in the units of the final score. NaN or infinite counts as worst.

        **Raises:**

        - `TrialStateError`: the trial is finished, or is not an object that `ask` returned in this process.
        - `ValueError`: `step` is not a whole number from 0, or `score` is not a number.
        """
        self._running("report").report(self, step, score)

    @property
    def should_stop(self) -> bool:
        """Whether the trial should stop, given its last report; see `jlibo.tune.MedianRule`.

        An evaluation that stops ends with `task.stop(trial)` in place of `task.tell(trial, score)`. Within
        `Tuner.optimise` it returns anything, or raises `jlibo.tune.TrialStopped`.
        """
        return self._running("should_stop").should_stop(self)

    def _running(self, what: str) -> TrialReporter:
        if self._reporter is None:
            raise TrialStateError(
                f"`{what}` of trial {self.number} needs the object that `ask` returned in this process, "
                "while the trial is running."
            )
        return self._reporter

    def __getstate__(self) -> dict[str, Any]:
        # The reporter has an open file, which another process cannot use.
        return self.__dict__ | {"_reporter": None}


def with_reporter(trial: Trial, reporter: TrialReporter) -> Trial:
    """Return a trial that reports elsewhere."""
    return dataclasses.replace(trial, _reporter=reporter)


def as_trial(record: TrialRecord, reporter: TrialReporter | None = None) -> Trial:
    """Return a record of the memory as a trial."""
    return Trial(
        id=record.id,
        number=record.number,
        params=record.params,
        score=record.score,
        explored=record.explored,
        state=record.state,
        error=record.error,
        _reporter=reporter,
    )
