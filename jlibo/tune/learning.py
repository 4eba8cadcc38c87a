"""From records to knowledge: what a tuner, or another host with trials of its own, learns from past tasks.

| here            | what it is                                                                          |
|-----------------|-------------------------------------------------------------------------------------|
| `learn_records` | `engine.learn` on the records of tasks and trials, padded                           |
| `has_changed`   | whether what was learned is out of date                                             |
| `without_names` | the dictionary with nothing in it that the numbers do not need                      |
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp

from jlibo.belief.prior import Prior
from jlibo.belief.scaling import Standardise
from jlibo.meta import Setting
from jlibo.policies import AbstractPolicy
from jlibo.tune import arrays, engine
from jlibo.tune.engine import Knowledge, Learner
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.space.dictionary import SpaceFeatures
from jlibo.tune.space.parameters import Categorical, Float
from jlibo.tune.space.space import SearchSpace

NEW_SHARE = 0.02
"""New scores of past tasks, as a share of those learned from, that are not worth learning anew."""


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
    past = arrays.past_trials(space, features, tasks, trials, maximise=maximise)
    if past is None:
        return engine.nothing_known(learner, scaling, _setting(features, 1, arrays.LEAST_TRIALS)), 0
    rows, num_tasks = past
    setting = _setting(features, *rows.scores.shape)
    count = jnp.asarray(min(num_tasks, arrays.MOST_TASKS), jnp.int32)
    return engine.learn(learner, scaling, policy.noise_std, rows, count, setting), num_tasks


def summarise_records(
    space: SearchSpace,
    features: SpaceFeatures,
    learner: Learner,
    policy: AbstractPolicy,
    scaling: Standardise,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    knowledge: Knowledge,
    *,
    maximise: bool,
) -> Prior | None:
    """Mean and covariance of the weights over the tasks, with the support learned; None if none teaches."""
    past = arrays.past_trials(space, features, tasks, trials, maximise=maximise)
    if past is None:
        return None
    rows, _ = past
    setting = _setting(features, *rows.scores.shape)
    return engine.summarise(learner, scaling, policy.noise_std, rows, knowledge.support, setting)


def has_changed(learned: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Whether tasks with so many scores, by id, should be learned from anew.

    They should if another set of tasks teaches, or if there are more than `NEW_SHARE` new scores. Learning
    costs the same for one new score as for many, and one among thousands changes next to nothing.
    """
    teaching, still = ({task for task, count in counts.items() if count >= 2} for counts in (learned, now))
    num_new = sum(now[task] for task in still) - sum(learned[task] for task in teaching)
    return teaching != still or abs(num_new) > NEW_SHARE * sum(learned.values())


def score_counts(trials: Iterable[TrialRecord]) -> dict[int, int]:
    """How many scores each task has, by id."""
    return dict(Counter(trial.task_id for trial in trials if trial.state == "complete"))


def _setting(features: SpaceFeatures, num_tasks: int, num_trials: int) -> Setting:
    dtype = jnp.result_type(float)
    return Setting(features.groups, num_tasks, num_trials, num_trials, dtype, features.free_groups)


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
