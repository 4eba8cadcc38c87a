"""The methods of `Memory` that add and finish trials. Internal."""

import abc
import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from jlibo.tune.memory import changes as changes
from jlibo.tune.memory import finished as finished_trials
from jlibo.tune.memory import reports as reports
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.owner import owner_is_dead
from jlibo.tune.memory.reader import AbstractMemoryReader
from jlibo.tune.memory.records import (
    TrialRecord,
    TrialStateError,
    error_text,
    finite_score,
    pending_trial,
    seconds_since,
    utc_now,
    whole,
)
from jlibo.tune.space.space import SearchSpace

logger = logging.getLogger(__name__)

MAX_CLAIMS = 3
"""A pending trial is marked as failed once this many owners ended without finishing or releasing it."""


class TrialGivenUpWarning(UserWarning):
    """A pending trial was marked as failed because 3 processes ended while they worked on it."""


class AbstractMemoryWriter(AbstractMemoryReader):
    """Write access to trials, by transactions that a subclass opens. `space` validates configurations."""

    space: SearchSpace

    @abc.abstractmethod
    def writing(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a write transaction: it is on the disk at the end, or undone if an error is raised."""

    def add_trial(
        self,
        task_id: int,
        params: Mapping[str, Any],
        *,
        explored: bool,
        owner: str | None,
        expected_count: int | None = None,
        most: int | None = None,
        after: int | None = None,
        others: Iterable[Mapping[str, Any]] = (),
    ) -> TrialRecord | None:
        """Add a pending trial, unless one of the given conditions does not hold.

        The conditions are checked in the transaction that adds the trial.

        **Arguments:**

        - `task_id`: the id of the task.
        - `params`: the configuration.
        - `explored`: whether this is a step of forced exploration.
        - `owner`: the owner token of the process that runs the trial; None if any process may claim it.
        - `expected_count`: condition: the task has exactly this many trials. A caller that chose `params`
          from the trials it read chooses again if other processes added trials meanwhile.
        - `most`: condition: the task has fewer trials than this.
        - `after`: condition: no trial of the task with a larger id has the same parameters.
        - `others`: alternatives to `params`; the first one that meets the condition `after` is used if
          `params` does not.

        **Returns:**

        The new trial; None if a condition does not hold, in which case nothing is added.

        **Raises:**

        - `ValueError`: `params` or one of `others` is not a configuration of the space.
        - `TrialStateError`: there is no such task.
        """
        first = self.space.validate(params)
        with self.writing() as database:
            count, number = rows.count_trials(database, task_id)
            if expected_count not in (None, count) or (most is not None and count >= most):
                return None
            taken = set() if after is None else changes.params_after(database, task_id, after)
            choices = itertools.chain([first], map(self.space.validate, others))
            checked = next((one for one in choices if rows.params_text(one) not in taken), None)
            if checked is None:
                return None
            trial = pending_trial(task_id, number, checked, explored=bool(explored), owner=owner)
            return replace(trial, id=rows.insert_trial(database, trial), claims=int(owner is not None))

    def add_finished(
        self,
        task_id: int,
        finished: Iterable[tuple[Mapping[str, Any], float | None]],
        *,
        explored: bool = False,
    ) -> list[TrialRecord]:
        """Add finished trials: all of them, or none if there is an error.

        **Arguments:**

        - `task_id`: the id of the task.
        - `finished`: pairs of a configuration and its score, with scores as in `tell`.
        - `explored`: whether these are steps of forced exploration.

        **Returns:**

        The list of new trials.

        **Raises:**

        - `ValueError`: a configuration is not in the space, or a score is not a number.
        - `TrialStateError`: there is no such task.
        """
        pairs = [(self.space.validate(params), finite_score(score)) for params, score in finished]
        with self.writing() as database:
            return finished_trials.insert(database, task_id, pairs, explored=explored)

    def claim_pending(
        self,
        task_id: int,
        *,
        owner: str,
        is_dead_fn: Callable[[str, float], bool] = owner_is_dead,
        among: Sequence[int] | None = None,
    ) -> TrialRecord | None:
        """Claim the first pending trial that has no owner or whose owner is dead.

        A trial that is not a configuration of the search space of this memory is left to others.

        A trial that `MAX_CLAIMS` (3) dead owners have held is not claimed again. It is marked as failed, with
        a `TrialGivenUpWarning`.

        **Arguments:**

        - `task_id`: the id of the task.
        - `owner`: the owner token of the process that claims the trial.
        - `is_dead_fn`: `is_dead_fn(owner, seconds)` returns whether an owner that has held the trial for this
          many seconds is dead.
        - `among`: the ids of the pending trials, if known, which saves a search over the task.

        **Returns:**

        The claimed trial; None if there is none.
        """
        with self.reading() as database:
            candidates = rows.claimable(database, task_id, owner, among)
        for trial_id, holder, since in candidates:
            if holder is not None and not is_dead_fn(holder, seconds_since(since)):
                continue
            with self.writing() as database:
                if not rows.change_owner(database, trial_id, old=holder, new=owner, since=utc_now()):
                    continue
                trial = rows.read_trial(database, trial_id)
                if trial.claims <= MAX_CLAIMS:
                    if holder is not None:
                        logger.info("trial %d of task %d: its owner has ended", trial.number, task_id)
                    return trial
                reason = f"{MAX_CLAIMS} processes ended while they worked on it"
                rows.finish_trial(database, rows.ended(trial, None, error=reason), utc_now())
                (task,) = (task for task in rows.read_tasks(database) if task.id == task_id)
            warnings.warn(
                f"trial {trial.number} of task {task.name!r} is given up and marked as failed: "
                f"{reason}. Its parameters: {trial.params}.",
                TrialGivenUpWarning,
                stacklevel=2,
            )
        return None

    def release(self, owner: str, among: Sequence[int] | None = None, *, counts: bool = False) -> int:
        """Release pending trials of `owner`, so that others can claim them.

        **Arguments:**

        - `owner`: the owner token.
        - `among`: the ids of the trials to release; None for all of the owner.
        - `counts`: whether this is one of the `MAX_CLAIMS` claims that ended without a result, as if the
          owner had ended.

        **Returns:**

        The number of released trials.
        """
        with self.writing() as database:
            return rows.release(database, owner, among, counts=counts)

    def tell(self, trial_id: int, score: float | None, *, error: str | None = None) -> TrialRecord:
        """Finish a trial: as complete with a finite score, as failed with None, NaN or an infinite score.

        Telling a finished trial the same score again has no effect.

        **Arguments:**

        - `trial_id`: the id of the trial.
        - `score`: the score; None, NaN or infinite if the trial failed.
        - `error`: why it failed. Ignored if it did not.

        **Returns:**

        The finished trial.

        **Raises:**

        - `TrialStateError`: there is no such trial, or it has finished with another result.
        - `ValueError`: `score` is not a number.
        """
        score, error = finite_score(score), error_text(error)
        trial = self._finish(trial_id, lambda trial: rows.ended(trial, score, error=error))
        if trial.state == "stopped" or trial.score != score:
            told = "that it failed" if score is None else f"the score {score!r}"
            raise _finished_already(trial, f"be told {told}")
        return trial

    def fail(self, trial_id: int, error: str | None = None) -> TrialRecord:
        """Finish a trial as failed; the same as `tell(trial_id, None, error=error)`."""
        return self.tell(trial_id, None, error=error)

    def stop(self, trial_id: int, estimate: float | None) -> TrialRecord:
        """Finish a trial as stopped: its reports say that it is not worth going on.

        Stopping a stopped trial has no effect.

        **Arguments:**

        - `trial_id`: the id of the trial.
        - `estimate`: the score that it would probably have had, for the model; None if that is not known.

        **Raises:**

        - `TrialStateError`: there is no such trial, or it has finished otherwise.
        """
        estimate = finite_score(estimate)
        trial = self._finish(trial_id, lambda trial: replace(trial, state="stopped", estimate=estimate))
        if trial.state != "stopped":
            raise _finished_already(trial, "be stopped")
        return trial

    def _finish(self, trial_id: int, end_fn: Callable[[TrialRecord], TrialRecord]) -> TrialRecord:
        """Write `end_fn` of a pending trial; return the trial, which had perhaps been finished before."""
        with self.writing() as database:
            trial = rows.read_trial(database, trial_id)
            if trial.state != "pending":
                return trial
            rows.finish_trial(database, end_fn(trial), utc_now())
            return rows.read_trial(database, trial_id)

    def report(self, trial_id: int, step: int, score: float | None) -> None:
        """Store a score of a pending trial at a step. It replaces an earlier report at this step.

        **Arguments:**

        - `trial_id`: the id of the trial.
        - `step`: the step, from 0.
        - `score`: the score at this step; NaN or infinite if the evaluation diverged.

        **Raises:**

        - `TrialStateError`: there is no such trial, or it is finished.
        - `ValueError`: `step` is not a whole number from 0, or `score` is not a number.
        """
        curve = {whole("step", step, at_least=0): finite_score(score)}
        with self.writing() as database:
            trial = rows.read_trial(database, trial_id)
            if trial.state != "pending":
                raise _finished_already(trial, "get a report")
            reports.write_curve(database, trial_id, curve)


def _finished_already(trial: TrialRecord, what: str) -> TrialStateError:
    had = "has failed" if trial.score is None else f"has the score {trial.score!r}"
    had = "was stopped" if trial.state == "stopped" else had
    return TrialStateError(f"trial {trial.number} (id {trial.id}) {had} already, so it cannot {what}.")
