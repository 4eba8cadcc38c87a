"""The choice of the next configuration, shared by `TunerTask.ask` and `LiBOSampler`. Internal.

| here           | in the simulator                                                                     |
|----------------|--------------------------------------------------------------------------------------|
| `next_config`  | one step of `run_task`                                                               |
| `num_forced`   | `num_explore`, the forced exploration steps of a task                                |
| `Candidates`   | the candidates of the environment, and the draws of exploration                      |

Forced exploration continues until the scheduled number of explored trials is reached. Pending trials count;
failed trials do not, because nothing is learned from them. Afterwards the policy chooses.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.policies.base import AbstractPolicy
from jlibo.tune import arrays, engine, keys
from jlibo.tune.history import AbstractHistory
from jlibo.tune.learning import Learned
from jlibo.tune.model import Model
from jlibo.tune.space import candidates as unit_points
from jlibo.tune.space.parameters import Value


@final
@dataclasses.dataclass(frozen=True, eq=False)
class NextConfig:
    """The configuration to try next."""

    params: dict[str, Value]
    others: Iterable[dict[str, Value]]
    """The next best configurations, best first, for when another process has taken `params`. Lazy."""
    is_forced: bool
    """Whether it is a step of forced exploration and not a choice of the policy."""
    is_repeat: bool
    """Whether it was tried before, because no untried configuration is left."""


@final
class Candidates:
    """The configurations that a task chooses from.

    These are a list, or points spread over the box that are drawn once. In a box, every call of `next_config`
    adds points near the best trials. Expensive results are cached.

    **Arguments:**

    - `model`: the model of the search space.
    - `seed`: the seed of the points and of exploration; a sequence of whole numbers.
    - `least`: features are padded to this many points, so that lists of any length share a compiled program.
    """

    def __init__(self, model: Model, *, seed: Sequence[int], least: int = 0):
        self._model = model
        self._seed = tuple(seed)
        self._least = least
        self.is_listed = model.points is not None
        self.points = (
            unit_points.pool(model.space, seed=seed, allowed=model.allowed)
            if model.points is None
            else model.points
        )

    @cached_property
    def key(self) -> PRNGKeyArray:
        """The key of the seed. Created on first use, because a forked process must not compute."""
        return keys.folded(self._seed)

    @cached_property
    def features(self) -> Float[Array, "padded features"]:
        """Features of the points, followed by `num_padding` rows of padding."""
        points = np.pad(self.points, ((0, self.num_padding), (0, 0)), mode="edge")
        model = self._model
        return model.programs.run(_features_at, model.features, points.astype(jnp.result_type(float)))

    @property
    def num_padding(self) -> int:
        """The number of rows that `features` is padded by; zero for a box."""
        return max(self._least - len(self.points), 0) if self.is_listed else 0

    @cached_property
    def exploration(self) -> Int[np.ndarray, " points"]:
        """Indices of all points in the order of exploration, drawn once for the whole task."""
        num = len(self.points)
        return np.asarray(self._model.programs.run(engine.exploration_order, num, num, key=self.key))

    def nearby(self, trials: arrays.TrialArrays, *, maximise: bool) -> np.ndarray:
        """Return points near the best trials."""
        best = trials.best_first(unit_points.NUM_CENTRES, maximise=maximise)
        seed = (*self._seed, len(trials))
        model = self._model
        return unit_points.nearby(model.space, trials.points[best], seed=seed, allowed=model.allowed)

    def untried(self, trials: arrays.TrialArrays) -> np.ndarray | None:
        """Return points of the space that were not tried; None if there are none."""
        seed = (*self._seed, len(trials))
        model = self._model
        return unit_points.untried(model.space, trials.points, seed=seed, allowed=model.allowed)

    def config(self, place: int, point: np.ndarray) -> dict[str, Value]:
        """Return the configuration at a point, with the values as given if the candidates are a list."""
        if self._model.configs is not None:
            return dict(self._model.configs[place])
        return self._model.space.from_unit(point)


def num_forced(model: Model, learned: Learned, budget: int) -> int:
    """Return the number of forced exploration steps of the task that follows those learned from."""
    counts = model.learner.exploration.counts(learned.num_tasks + 1, budget)
    return int(counts[learned.num_tasks])


def prepare_next(model: Model, *, budget: int, num_trials: int = 0, least: int = 0) -> None:
    """Start to compile the programs of `next_config`, or to load them, beside the learning from past tasks.

    **Arguments:**

    - `model`: the model of the search space.
    - `budget`: the expected number of trials of the task.
    - `num_trials`: the number of trials that the task has. Nothing is prepared for a compressed task.
    - `least`: that of the task's `Candidates`.
    """
    dim, num_features = model.space.num_parameters, model.features.num_features
    if not model.programs.keep or num_trials > arrays.most_rows(num_features):
        return
    num_near = 0 if model.points is not None else unit_points.NEARBY
    num_fixed = unit_points.POOL if model.points is None else max(len(model.points), least)
    room = arrays.padded(max(num_trials, min(budget, arrays.most_rows(num_features))), arrays.LEAST_OWN)
    numbers = partial(jax.ShapeDtypeStruct, dtype=jnp.result_type(float))
    flags = partial(jax.ShapeDtypeStruct, dtype=bool)
    near = None if num_near == 0 else numbers((num_near, dim))
    model.programs.prepare(
        _best_candidates,
        model.policy,
        model.scaling,
        eqx.filter_eval_shape(engine.nothing_known, model.learner, model.scaling, model.sizes(1, 1)),
        model.features,
        arrays.OwnRows(numbers((room, dim)), numbers((room,)), flags((room,)), flags((room,))),
        Choices(numbers((num_fixed, num_features)), near, flags((num_fixed + num_near,))),
        numbers(()),
        key=keys.folded((0,)),
    )
    model.programs.prepare(_features_at, model.features, numbers((num_fixed, dim)))


def next_config(
    model: Model,
    learned: Learned,
    history: AbstractHistory,
    *,
    candidates: Candidates,
    budget: int,
    key: PRNGKeyArray,
) -> NextConfig:
    """Return the configuration to try next in a task.

    **Arguments:**

    - `model`: the model of the search space.
    - `learned`: what was learned from past tasks.
    - `history`: the trials of the task so far. A configuration that was tried or is pending is repeated only
      if no other is left.
    - `candidates`: the configurations to choose from.
    - `budget`: the expected number of trials of the task; forced exploration is a share of it.
    - `key`: the key of a randomised policy.
    """
    trials = history.trials
    tried = trials.points
    num_explored = int((trials.explored & (trials.is_told | trials.is_pending)).sum())
    if num_explored < min(num_forced(model, learned, budget), len(candidates.points)):
        left = _left_of(candidates.points, trials)
        order = candidates.exploration[left[candidates.exploration]]
        if candidates.is_listed or not unit_points.was_tried(candidates.points[order[0]], tried):
            return _ranked(candidates, candidates.points, order[: engine.NUM_RANKED], tried, is_forced=True)
    points, choices = choices_of(candidates, trials, maximise=history.maximise)
    rows, log_unit = history.rows(room=budget)
    ranking = model.programs.run(
        _best_candidates,
        model.policy,
        model.scaling,
        learned.knowledge,
        model.features,
        rows,
        choices,
        np.asarray(log_unit, candidates.features.dtype),
        key=key,
    )
    ranking = np.asarray(ranking)
    return _ranked(candidates, points, ranking[choices.available[ranking]], tried, is_forced=False)


def choices_of(
    candidates: Candidates, trials: arrays.TrialArrays, *, maximise: bool
) -> tuple[Float[np.ndarray, "points dim"], "Choices"]:
    """Return the points to choose from after these trials, and the same as input of compiled functions."""
    near, points = None, candidates.points
    if not candidates.is_listed:
        near = candidates.nearby(trials, maximise=maximise)
        points = np.concatenate([candidates.points, near])
    left = _left_of(points, trials)
    if near is not None and unit_points.was_tried(points[np.argmax(left)], trials.points):
        # All of these were tried, but the space may have further configurations.
        new = candidates.untried(trials)
        if new is not None:
            near, points = new, np.concatenate([candidates.points, new])
            left = _left_of(points, trials)
    features = candidates.features
    near = None if near is None else near.astype(features.dtype)
    return points, Choices(features, near, np.pad(left, (0, candidates.num_padding)))


def _left_of(points: np.ndarray, trials: arrays.TrialArrays) -> np.ndarray:
    tried = trials.points
    failed, scored, stopped = (
        tried[which] for which in (trials.is_failed, trials.is_told, trials.is_stopped)
    )
    return unit_points.left_to_try(points, tried, failed, scored, stopped)


def _ranked(
    choices: Candidates, points: np.ndarray, order: np.ndarray, tried: np.ndarray, *, is_forced: bool
) -> NextConfig:
    first, *others = (int(place) for place in order)
    return NextConfig(
        choices.config(first, points[first]),
        (choices.config(place, points[place]) for place in others),
        is_forced,
        unit_points.was_tried(points[first], tried),
    )


@final
class Choices(NamedTuple):
    """The candidates of one call: the fixed ones by their features, then new unit points, if any."""

    fixed_features: Float[Any, "fixed features"]
    near: Float[Any, "near dim"] | None
    available: Bool[Any, " candidates"]

    def values(self, features: AbstractFeatures) -> Float[Array, "candidates features"]:
        """Return the features of all candidates. Call it in a compiled function."""
        if self.near is None:
            return self.fixed_features
        return jnp.concatenate([self.fixed_features, features(self.near)])


@eqx.filter_jit
def _features_at(
    features: AbstractFeatures, points: Float[Any, "points dim"]
) -> Float[Array, "points features"]:
    return features(points)


@eqx.filter_jit
def _best_candidates(
    policy: AbstractPolicy,
    scaling: Standardise,
    knowledge: engine.Knowledge,
    features: AbstractFeatures,
    rows: arrays.OwnRows | engine.OwnTrials,
    choices: Choices,
    log_units: Float[Any, ""],
    *,
    key: PRNGKeyArray,
) -> Int[Array, " ranked"]:
    """Return the ranking of `engine.suggest`; the features of new points are evaluated in the same call."""
    values = choices.values(features)
    own = rows.with_features(features) if isinstance(rows, arrays.OwnRows) else rows
    return engine.suggest(
        policy, scaling, knowledge, own, values, choices.available, log_units, key=key
    ).ranking
