"""One task of a tuner: ask for a trial, tell its score, until the budget is spent.

A trial is in the memory as pending before `ask` returns it, and its score before `tell` returns. If the
process ends in between, the next process that asks is offered the pending trials again first.

A configuration is chosen from the trials seen, and reserved in the transaction that adds its trial. If
another process has taken it in the meantime, the next best one that is free is reserved. So threads and
processes that share a task never try a configuration twice as long as there are others.
"""

import dataclasses
import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from jlibo.checks import check_count, fail
from jlibo.lifelong.one_task import split_task_key
from jlibo.tune.ask import Candidates, NextConfig, next_config
from jlibo.tune.history import TaskHistory
from jlibo.tune.memory.memory import new_owner
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.process import check_process

if TYPE_CHECKING:
    from jlibo.tune.tuner import Tuner

MAX_RACES = 20
"""How often a suggestion is made anew because another process added a trial in the meantime. Then the best of
its ranking that is still free is taken, without a look at the new trials."""


class UntoldTrialsWarning(UserWarning):
    """A loop over a task ended, but some of its trials were never told a score."""


@final
@dataclasses.dataclass(frozen=True)
class Trial:
    """A configuration to evaluate."""

    id: int
    number: int
    params: dict[str, Any]
    score: float | None = None
    explored: bool = False
    """Whether it is a step of forced exploration, not the policy's choice."""


@final
class TunerTask:
    """Made by `Tuner.task`; iterate over it, or `ask` and `tell`. Threads may share it.

    Used in `with`, it releases its pending trials at the end, so that they are offered again.
    """

    def __init__(self, tuner: "Tuner", record: TaskRecord, budget: int):
        self._tuner = tuner
        self._record = record
        self.name = record.name
        self.budget = budget
        self._owner = new_owner()
        self._own_ids: set[int] = set()
        self._number = [task.id for task in tuner.memory.tasks()].index(record.id)
        self._lock = threading.Lock()
        self._model = tuner.model
        self._history = TaskHistory(tuner.memory, record.id, tuner.space, self._model.features)
        self._candidates = Candidates(self._model, seed=(tuner.seed, self._number))
        self._policy_keys: np.ndarray | None = None

    def __enter__(self) -> "TunerTask":
        return self

    def __exit__(self, *_: object) -> None:
        self._tuner.memory.release(self._owner)

    def __repr__(self) -> str:
        done, best = len(self.trials), self.best
        words = "no score yet" if best is None else f"best {best.score:.6g}"
        return f"TunerTask({self.name!r}, {done} of {self.budget} trials done, {words})"

    def __iter__(self) -> Iterator[Trial]:
        """Trials one by one, those left over first, until the budget is spent.

        Pending trials count. If any trial of this loop has no score at its end, an `UntoldTrialsWarning` says
        so.
        """
        check_process("iterating over a task")
        given = set()
        while (trial := self._claim() or self._suggest(self.budget)) is not None:
            given.add(trial.id)
            yield trial
        untold = given & self._history.pending_ids
        if untold:
            warnings.warn(
                f"the loop over task {self.name!r} ends because its budget of {self.budget} trials is spent, "
                f"but {len(untold)} of its {len(given)} trials were never told a score: call "
                "task.tell(trial, score), or task.fail(trial), for every trial.",
                UntoldTrialsWarning,
                stacklevel=2,
            )

    def ask(self, n: int | None = None) -> Any:
        """The next trial; with `n`, a list of `n` that differ, to be evaluated side by side.

        Trials left pending by a process that is gone come first. The budget does not limit who asks. Where
        all that there is has been tried, what did not fail is offered again.
        """
        check_process("ask")
        if n is None:
            return self._claim() or self._suggest()
        check_count("n", n)
        return [self._claim() or self._suggest() for _ in range(n)]

    def tell(self, trial: Trial, score: float) -> None:
        """The score of a trial, on disk when this returns. NaN, infinite or None: the trial failed.

        Telling the same again is fine; telling anything else of a finished trial is a `TrialStateError`.
        """
        self._check(trial)
        self._tuner.memory.tell(trial.id, score)

    def fail(self, trial: Trial) -> None:
        """The trial gave no score. It is remembered and avoided; the model never sees it."""
        self._check(trial)
        self._tuner.memory.fail(trial.id)

    @property
    def trials(self) -> list[Trial]:
        """All finished trials, in order; a failed one has no score."""
        records = self._tuner.memory.trials(self._record.id)
        return [_as_trial(record) for record in records if record.state != "pending"]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; None before the first score."""
        scored = [trial for trial in self.trials if trial.score is not None]
        sign = 1 if self._tuner.maximise else -1
        return max(scored, key=lambda trial: sign * (trial.score or 0.0), default=None)

    # --- how a trial comes about ----------------------------------------------------------------------------

    def _suggest(self, most: int | None = None) -> Trial | None:
        """A new trial, in the memory when this returns; None if there are `most` already."""
        with self._lock:
            for race in itertools.count():
                history = self._trials()
                if most is not None and len(history) >= most:
                    return None
                chosen = self._next_config(history)
                record = self._tuner.memory.add_trial(
                    self._record.id,
                    chosen.params,
                    explored=chosen.is_forced,
                    owner=self._owner,
                    expected_count=len(history) if race < MAX_RACES else None,
                    most=most,
                    # Where all there is was tried, another process may try the same again.
                    after=None if chosen.is_repeat else history.last_id,
                    others=chosen.others,
                )
                if record is not None:
                    return self._own(record)
        raise AssertionError("the numbers do not end")

    def _next_config(self, history: TaskHistory) -> NextConfig:
        return next_config(
            self._model,
            self._tuner.knowledge(excluding=self._record.id),
            history,
            candidates=self._candidates,
            budget=self.budget,
            key=self._policy_key(len(history)),
        )

    def _claim(self) -> Trial | None:
        """A pending trial that nobody works on, if there is one."""
        with self._lock:
            pending = sorted(self._trials().pending_ids)
        if not pending:
            return None
        memory = self._tuner.memory
        record = memory.claim_pending(self._record.id, owner=self._owner, among=pending)
        return None if record is None else self._own(record)

    def _own(self, record: TrialRecord) -> Trial:
        """The trial, which `tell` will know as one of this task without asking the file."""
        self._own_ids.add(record.id)
        return _as_trial(record)

    def _policy_key(self, number: int) -> jax.Array:
        """The policy's key for trial `number`; drawn for the whole task at once."""
        if self._policy_keys is None or number >= len(self._policy_keys):
            key = self._candidates.key
            keys = jax.random.split(split_task_key(key).policy, max(self.budget, 2 * number))
            self._policy_keys = np.asarray(jax.random.key_data(keys))
        return jax.random.wrap_key_data(self._policy_keys[number])

    def _trials(self) -> TaskHistory:
        self._history.refresh()
        return self._history

    def _check(self, trial: Trial) -> None:
        if not isinstance(trial, Trial):
            fail("trial", "a Trial that `ask` returned", f"{trial!r} ({type(trial).__name__})")
        if trial.id in self._own_ids:
            return
        # It may have come from another object of this task.
        if self._tuner.memory.trial(trial.id).task_id != self._record.id:
            fail("trial", f"a trial of the task {self.name!r}", f"trial {trial.number} of another one")


def _as_trial(record: TrialRecord) -> Trial:
    return Trial(record.id, record.number, record.params, record.score, record.explored)
