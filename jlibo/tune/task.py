"""One task of a tuner: ask for a trial, tell its score, until the budget is spent.

A trial is in the memory as pending before `ask` returns it, and its score before `tell` returns. If the
process ends in between, whoever takes up the task next is offered the pending trials again first.
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jlibo.checks import check_count, fail
from jlibo.features import AbstractFeatures
from jlibo.policies.base import AbstractPolicy
from jlibo.standardise import Standardise
from jlibo.tune import arrays, candidates, engine
from jlibo.tune.memory import new_owner
from jlibo.tune.memory_records import TaskRecord, TrialRecord

if TYPE_CHECKING:
    from jlibo.tune.tuner import Tuner

MAX_RACES = 20
"""How often a suggestion is made anew because another process was faster, before it is taken as it is."""


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
    """Made by `Tuner.task`; iterate over it, or `ask` and `tell`. Used in `with`, it lets go of its pending
    trials at the end, so that they are offered to whoever takes up the task next."""

    def __init__(self, tuner: "Tuner", record: TaskRecord, budget: int):
        self._tuner = tuner
        self._record = record
        self.name = record.name
        self.budget = budget
        self._owner = new_owner()
        self._own_ids: set[int] = set()
        self._number = [task.id for task in tuner.memory.tasks()].index(record.id)
        self._key = tuner.task_key(self._number)
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
        trials = self._trials()
        done = sum(trial.state != "pending" for trial in trials)
        best = self.best
        words = "no score yet" if best is None else f"best {best.score:.6g}"
        return f"TunerTask({self.name!r}, {done} of {self.budget} trials done, {words})"

    def __iter__(self) -> Iterator[Trial]:
        """Trials one by one, those left over first, until the budget is spent."""
        while (trial := self._claim() or self._suggest(self.budget)) is not None:
            yield trial

    def ask(self, n: int | None = None) -> Any:
        """The next trial; with `n`, a list of `n` that differ, to be evaluated side by side.

        Trials left pending by a process that is gone come first. The budget does not limit who asks. Where
        all that there is has been tried, what did not fail is offered again.
        """
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
        return [_as_trial(record) for record in self._trials() if record.state != "pending"]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; None before the first score."""
        scored = [trial for trial in self.trials if trial.score is not None]
        sign = 1 if self._tuner.maximise else -1
        return max(scored, key=lambda trial: sign * (trial.score or 0.0), default=None)

    # --- how a trial comes about ----------------------------------------------------------------------------

    def _suggest(self, most: int | None = None) -> Trial | None:
        """A new trial, in the memory when this returns; None if there are `most` already."""
        memory = self._tuner.memory
        for race in range(MAX_RACES):
            trials = self._trials()
            if most is not None and len(trials) >= most:
                return None
            point, is_forced = self._next_point(trials)
            record = memory.add_trial(
                self._record.id,
                self._tuner.space.from_unit(point),
                explored=is_forced,
                owner=self._owner,
                expected_count=len(trials) if race < MAX_RACES - 1 else None,
            )
            if record is not None:
                return self._own(record)
        raise AssertionError("the last race is always won")

    def _claim(self) -> Trial | None:
        record = self._tuner.memory.claim_pending(self._record.id, owner=self._owner)
        return None if record is None else self._own(record)

    def _own(self, record: TrialRecord) -> Trial:
        """The trial, which `tell` will know as one of this task without asking the file."""
        self._own_ids.add(record.id)
        return _as_trial(record)

    def _next_point(self, trials: list[TrialRecord]) -> tuple[np.ndarray, bool]:
        """The unit point to try next, and whether it is forced exploration."""
        tuner = self._tuner
        knowledge, num_past = tuner.knowledge(excluding=self._record.id)
        tried = arrays.unit_points(tuner.space, trials)
        is_failed = np.asarray([trial.state == "failed" for trial in trials], bool)
        is_scored = np.asarray([trial.state == "complete" for trial in trials], bool)

        def left_of(points: np.ndarray) -> np.ndarray:
            return candidates.left_to_try(points, tried, tried[is_failed], tried[is_scored])

        num_explored = sum(trial.explored and trial.state != "failed" for trial in trials)
        if num_explored < min(self._num_forced(num_past), len(self._spread)):
            left = left_of(self._spread)
            # As drawn for the whole task beforehand, without what is out of the question by now.
            order = self._exploration[left[self._exploration]]
            return self._spread[order[0]], True
        near = None if self._is_listed else self._near_the_best(trials, tried)
        points = self._spread if near is None else np.concatenate([self._spread, near])
        rows, log_unit = arrays.own_rows(tried, trials, maximise=tuner.maximise, room=self.budget)
        index = _best_candidate(
            tuner.policy,
            tuner.scaling,
            eqx.tree_at(lambda known: known.summary, knowledge, None),  # of no use here, and not of one shape
            tuner.plain_features,
            rows,
            self._spread_features,
            None if near is None else near.astype(rows.points.dtype),
            left_of(points),
            np.asarray(log_unit, rows.points.dtype),
            self._policy_key(len(trials)),
        )
        return points[int(index)], False

    def _num_forced(self, num_past: int) -> int:
        """The forced exploration of this task, which is number `num_past` of those that teach anything."""
        counts = self._tuner.learner.exploration.counts(num_past + 1, self.budget)
        return int(counts[num_past])

    def _near_the_best(self, trials: list[TrialRecord], tried: np.ndarray) -> np.ndarray:
        tuner = self._tuner
        sign = -1 if tuner.maximise else 1
        order = sorted(
            (place for place, trial in enumerate(trials) if trial.score is not None),
            key=lambda place: sign * (trials[place].score or 0.0),
        )
        return candidates.nearby(tuner.space, tried[order], seed=(tuner.seed, self._number, len(trials)))

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

    def _trials(self) -> list[TrialRecord]:
        trials = self._tuner.memory.trials(self._record.id)
        self._own_ids.update(trial.id for trial in trials)
        return trials

    def _check(self, trial: Trial) -> None:
        if not isinstance(trial, Trial):
            fail("trial", "a Trial that `ask` returned", f"{trial!r} ({type(trial).__name__})")
        if trial.id not in self._own_ids:
            self._trials()  # it may have come from another object of this task
        if trial.id not in self._own_ids:
            fail("trial", f"a trial of the task {self.name!r}", f"trial {trial.number} of another one")


@eqx.filter_jit
def _best_candidate(
    policy: AbstractPolicy,
    scaling: Standardise,
    knowledge: engine.Knowledge,
    features: AbstractFeatures,
    rows: arrays.OwnRows,
    spread_features: Float[Array, "spread features"],
    near: Float[Any, "near dim"] | None,
    available: Bool[Any, " candidates"],
    log_units: Float[Any, ""],
    key_data: UInt32[Any, " words"],
) -> Int[Array, ""]:
    """`engine.suggest` with the features of what is new in it: one call from the trials to the answer."""
    if near is not None:
        spread_features = jnp.concatenate([spread_features, features(near)])
    own, key = rows.with_features(features), jax.random.wrap_key_data(key_data)
    return engine.suggest(
        policy, scaling, knowledge, own, spread_features, available, log_units, key=key
    ).index


def _as_trial(record: TrialRecord) -> Trial:
    return Trial(record.id, record.number, record.params, record.score, record.explored)
