"""What the integrations ask of the tuner's engine: learn from past tasks, and choose the next configuration.

The numbers are those of `jlibo.tune`: the same dictionary, learner, policy and candidates. Here is only what
a host with trials of its own needs. The number of candidates is always the same, those of a small space
padded, so that spaces with as many features share one compiled program.

| here     | in the tuner                                                                            |
|----------|-----------------------------------------------------------------------------------------|
| `Model`  | what `Tuner` holds for its space                                                        |
| `learn`  | `Tuner.knowledge`                                                                       |
| `choose` | one `TunerTask.ask`; a pool of its own for every trial, so that workers that ask at the |
|          | same moment are not offered the same                                                    |
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.belief.scaling import Standardise
from jlibo.policies import AbstractPolicy
from jlibo.tune import arrays, engine, modes
from jlibo.tune.engine import Knowledge, Learner
from jlibo.tune.learning import learn_records, without_names
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.process import check_process
from jlibo.tune.space import candidates
from jlibo.tune.space.dictionary import MANY_FEATURES, LargeDictionaryWarning, SpaceFeatures
from jlibo.tune.space.space import SearchSpace

NUM_CANDIDATES = candidates.POOL + candidates.NEARBY
SMALLER = (
    {},
    {"num_pair_basis": 2},
    {"num_pair_basis": 1},
    {"interactions": False},
    {"interactions": False, "num_basis": 3},
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """All that a space and a mode decide. `whole` are all its unit points, if they are few."""

    space: SearchSpace
    features: SpaceFeatures
    whole: np.ndarray | None
    learner: Learner
    policy: AbstractPolicy
    scaling: Standardise


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """What `num_tasks` past tasks taught."""

    knowledge: Knowledge
    num_tasks: int


def make_model(space: SearchSpace, *, mode: str, sizes: Mapping[str, Any] | None) -> Model:
    """The model on `space`. Without `sizes`, the largest dictionary of those that are not slow."""
    check_process("LiBOSampler")
    features = _small_features(space) if sizes is None else space.features(**sizes)
    return Model(
        space,
        without_names(features),
        candidates.whole_space(space),
        modes.make_learner(mode),
        modes.make_policy(mode),
        modes.make_scaling(),
    )


def learn(model: Model, tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord]) -> Learned:
    """What the tasks teach. Their scores are better when higher."""
    parts = model.space, model.features, model.learner, model.policy, model.scaling
    return Learned(*learn_records(*parts, tasks, trials, maximise=True))


def choose(
    model: Model,
    learned: Learned,
    trials: Sequence[TrialRecord],
    *,
    budget: int,
    number: int,
    seed: int,
) -> tuple[dict[str, Any], bool]:
    """The configuration to try in trial `number`, and whether it is a step of forced exploration.

    `trials` are the task's own, their scores better when higher; pending ones are not offered again.
    """
    check_process("LiBOSampler")
    tried = arrays.unit_points(model.space, trials)
    own = arrays.trial_arrays(tried, trials)

    def left_of(points: np.ndarray) -> np.ndarray:
        return candidates.left_to_try(points, tried, tried[own.is_failed], tried[own.is_told])

    points, is_real = _points(model, own, seed=(seed, learned.num_tasks, number))
    available = np.zeros(len(points), bool)
    available[is_real] = left_of(points[is_real])
    if model.whole is None and candidates.was_tried(points[np.argmax(available)], tried):
        # All of these were tried, but the space may have more.
        new = candidates.untried(model.space, tried, seed=(seed, learned.num_tasks, number, 3))
        if new is not None:
            points[-len(new) :] = new
            available = left_of(points)

    counts = model.learner.exploration.counts(learned.num_tasks + 1, budget)
    if len(trials) < int(counts[learned.num_tasks]):
        rng = np.random.default_rng([seed, learned.num_tasks, number, 1])
        return model.space.from_unit(points[rng.choice(np.flatnonzero(available))]), True
    rows, log_unit = arrays.own_trials(model.features, own, maximise=True, room=budget)
    dtype = jnp.result_type(float)
    answer = engine.suggest(
        model.policy,
        model.scaling,
        learned.knowledge,
        rows,
        model.features(jnp.asarray(points, dtype)),
        jnp.asarray(available),
        jnp.asarray(log_unit, dtype),
        key=jax.random.fold_in(jax.random.key(seed), number),
    )
    return model.space.from_unit(points[int(answer.index)]), False


def _points(
    model: Model, trials: arrays.TrialArrays, *, seed: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The unit points to choose from, always equally many, and which of them are no padding."""
    is_real = np.ones(NUM_CANDIDATES, bool)
    if model.whole is not None:
        is_real[len(model.whole) :] = False
        padding = np.repeat(model.whole[:1], NUM_CANDIDATES - len(model.whole), axis=0)
        return np.concatenate([model.whole, padding]), is_real
    best = trials.best_first(candidates.NUM_CENTRES, maximise=True)
    near = candidates.nearby(model.space, trials.points[best], seed=(*seed, 2))
    return np.concatenate([candidates.pool(model.space, seed=seed), near]), is_real


def _small_features(space: SearchSpace) -> SpaceFeatures:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDictionaryWarning)
        made = [space.features(**SMALLER[0])]
        for sizes in SMALLER[1:]:
            if made[-1].num_features <= MANY_FEATURES:
                break
            made.append(space.features(**sizes))
    return made[-1]
