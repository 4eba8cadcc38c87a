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
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jlibo.belief.scaling import Standardise
from jlibo.checks import check_count, fail
from jlibo.features import AbstractFeatures
from jlibo.policies.base import AbstractPolicy
from jlibo.tune import arrays, engine
from jlibo.tune.history import TaskHistory
from jlibo.tune.memory.memory import new_owner
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.process import check_process
from jlibo.tune.space import candidates

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
        self._history = TaskHistory(tuner.memory, record.id, tuner.space, tuner.plain_features)
        self._policy_keys: np.ndarray | None = None
        listed = tuner.candidate_points()
        self._is_listed = listed is not None
        # What there is to choose from: all of it, or points all over the space that stay for the whole task.
        seed = (tuner.seed, self._number)
        self._spread = candidates.pool(tuner.space, seed=seed) if listed is None else listed

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
        space = self._tuner.space
        with self._lock:
            for race in itertools.count():
                history = self._trials()
                if most is not None and len(history) >= most:
                    return None
                points, is_forced = self._next_point(history)
                # Where all there is was tried, another process may try the same again.
                is_repeat = candidates.was_tried(points[0], history.trials.points)
                record = self._tuner.memory.add_trial(
                    self._record.id,
                    space.from_unit(points[0]),
                    explored=is_forced,
                    owner=self._owner,
                    expected_count=len(history) if race < MAX_RACES else None,
                    most=most,
                    after=None if is_repeat else history.last_id,
                    others=map(space.from_unit, points[1:]),
                )
                if record is not None:
                    return self._own(record)
        raise AssertionError("the numbers do not end")

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

    def _next_point(self, history: TaskHistory) -> tuple[np.ndarray, bool]:
        """The unit points to try next, the best first, and whether they are forced exploration."""
        tuner, trials = self._tuner, history.trials
        knowledge, num_past = tuner.knowledge(excluding=self._record.id)
        tried = trials.points

        def left_of(points: np.ndarray) -> np.ndarray:
            return candidates.left_to_try(points, tried, tried[trials.is_failed], tried[trials.is_told])

        num_explored = int((trials.explored & ~trials.is_failed).sum())
        if num_explored < min(self._num_forced(num_past), len(self._spread)):
            left = left_of(self._spread)
            # As drawn for the whole task beforehand, without what is out of the question by now.
            order = self._exploration[left[self._exploration]]
            if self._is_listed or not candidates.was_tried(self._spread[order[0]], tried):
                return self._spread[order[: engine.NUM_RANKED]], True
        near = None
        points = self._spread
        if not self._is_listed:
            seed = (tuner.seed, self._number, len(trials))
            best = trials.best_first(candidates.NUM_CENTRES, maximise=tuner.maximise)
            near = candidates.nearby(tuner.space, tried[best], seed=seed)
            points = np.concatenate([self._spread, near])
        left = left_of(points)
        if near is not None and candidates.was_tried(points[np.argmax(left)], tried):
            # All of these were tried, but the space may have more.
            new = candidates.untried(tuner.space, tried, seed=seed)
            if new is not None:
                near, points = new, np.concatenate([self._spread, new])
                left = left_of(points)
        rows, log_unit = self._own_rows(history)
        ranking = _best_candidates(
            tuner.policy,
            tuner.scaling,
            knowledge,
            tuner.plain_features,
            rows,
            self._spread_features,
            None if near is None else near.astype(self._spread_features.dtype),
            left,
            np.asarray(log_unit, self._spread_features.dtype),
            self._policy_key(len(trials)),
        )
        ranking = np.asarray(ranking)
        return points[ranking[left[ranking]]], False

    def _own_rows(self, history: TaskHistory) -> tuple[arrays.OwnRows | engine.OwnTrials, float]:
        """The task's own trials, a row each, or compressed if they are many."""
        maximise, most = self._tuner.maximise, arrays.most_rows(self._tuner.plain_features.num_features)
        if len(history) > most:
            return history.compressed(maximise=maximise)
        return arrays.own_rows(history.trials, maximise=maximise, room=min(self.budget, most))

    def _num_forced(self, num_past: int) -> int:
        """The forced exploration of this task, which is number `num_past` of those that teach anything."""
        counts = self._tuner.learner.exploration.counts(num_past + 1, self.budget)
        return int(counts[num_past])

    @cached_property
    def _key(self) -> jax.Array:
        # Not made with the task, which has uses in a forked process that must not compute.
        return self._tuner.task_key(self._number)

    @cached_property
    def _spread_features(self) -> jax.Array:
        return self._tuner.plain_features(jnp.asarray(self._spread, jnp.result_type(float)))

    @cached_property
    def _exploration(self) -> np.ndarray:
        """All candidates in the order in which exploration takes them."""
        num = len(self._spread)
        return np.asarray(engine.exploration_order(num, num, key=self._key))

    def _policy_key(self, number: int) -> np.ndarray:
        """The data of the policy's key for trial `number`; drawn for the whole task at once."""
        if self._policy_keys is None or number >= len(self._policy_keys):
            keys = jax.random.split(jax.random.split(self._key, 4)[3], max(self.budget, 2 * number))
            self._policy_keys = np.asarray(jax.random.key_data(keys))
        return self._policy_keys[number]

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


@eqx.filter_jit
def _best_candidates(
    policy: AbstractPolicy,
    scaling: Standardise,
    knowledge: engine.Knowledge,
    features: AbstractFeatures,
    rows: arrays.OwnRows | engine.OwnTrials,
    spread_features: Float[Array, "spread features"],
    near: Float[Any, "near dim"] | None,
    available: Bool[Any, " candidates"],
    log_units: Float[Any, ""],
    key_data: UInt32[Any, " words"],
) -> Int[Array, " ranked"]:
    """`engine.suggest` with the features of what is new in it: one call from the trials to the answer."""
    if near is not None:
        spread_features = jnp.concatenate([spread_features, features(near)])
    own = rows.with_features(features) if isinstance(rows, arrays.OwnRows) else rows
    key = jax.random.wrap_key_data(key_data)
    return engine.suggest(
        policy, scaling, knowledge, own, spread_features, available, log_units, key=key
    ).ranking


def _as_trial(record: TrialRecord) -> Trial:
    return Trial(record.id, record.number, record.params, record.score, record.explored)
