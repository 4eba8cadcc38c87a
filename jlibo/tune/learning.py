"""From records to knowledge: what a tuner, or another host with trials of its own, learns from past tasks.

| here            | what it is                                                                          |
|-----------------|-------------------------------------------------------------------------------------|
| `learn_records` | `engine.learn` on the records of tasks and trials, padded                           |
| `without_names` | the dictionary with nothing in it that the numbers do not need                      |
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from jlibo.meta import Setting
from jlibo.policies import AbstractPolicy
from jlibo.standardise import Standardise
from jlibo.tune import arrays, engine
from jlibo.tune.dictionary import SpaceFeatures
from jlibo.tune.engine import Knowledge, Learner
from jlibo.tune.memory_records import TaskRecord, TrialRecord
from jlibo.tune.parameters import Categorical, Float
from jlibo.tune.space import SearchSpace


def learn_records(
    space: SearchSpace,
    features: SpaceFeatures,
    learner: Learner,
    policy: AbstractPolicy,
    scaling: Standardise,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    *,
    maximise: bool,
) -> tuple[Knowledge, int]:
    """What the tasks teach, and how many of them teach anything."""
    dtype = jnp.result_type(float)
    groups, free = features.groups, features.free_groups
    past = arrays.past_trials(space, features, tasks, trials, maximise=maximise)
    if past is None:
        setting = Setting(groups, 1, arrays.LEAST_TRIALS, arrays.LEAST_TRIALS, dtype, free)
        return engine.nothing_known(learner, scaling, setting), 0
    rows, num_tasks = past
    num_padded, num_trials = rows.scores.shape
    setting = Setting(groups, num_padded, num_trials, num_trials, dtype, free)
    count = jnp.asarray(num_tasks, jnp.int32)
    return engine.learn(learner, scaling, policy.noise_std, rows, count, setting), num_tasks


def without_names(features: SpaceFeatures) -> SpaceFeatures:
    """The same features, of a space without its names and ranges: the unit box is all that they look at.

    So all spaces of one shape share a compiled program.
    """
    kinds = [
        Categorical(range(one.num_values)) if isinstance(one, Categorical) else Float(0, 1)
        for one in features.space.values()
    ]
    nameless = SearchSpace({f"{place:06}": kind for place, kind in enumerate(kinds)})
    names = tuple(f"{group}" for group in range(features.num_groups))
    return dataclasses.replace(features, space=nameless, names=names)
