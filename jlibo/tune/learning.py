"""Learning from the records of past tasks, for the tuner and the integrations. Internal.

| here            | what it is                                                                          |
|-----------------|-------------------------------------------------------------------------------------|
| `learn_records` | `engine.learn` on the records of tasks and trials, padded                           |
| `has_changed`   | whether the learned result is out of date                                           |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

import equinox as eqx
import jax.numpy as jnp

from jlibo.belief.prior import Prior
from jlibo.tune import arrays, engine
from jlibo.tune.engine import Knowledge
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.model import Model

NEW_SHARE = 0.02
"""Share of new scores, relative to those learned from, up to which nothing is recomputed."""

_nothing_known = eqx.filter_jit(engine.nothing_known)  # one program; otherwise one for each operation


@final
class Learned(NamedTuple):
    """What was learned from past tasks, and the number of tasks with at least two scores."""

    knowledge: Knowledge
    num_tasks: int


def learn_records(
    model: Model, tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord], *, maximise: bool
) -> Learned:
    """Return what is learned from the tasks."""
    past = arrays.past_trials(model.space, model.features, tasks, trials, maximise=maximise)
    if past is None:
        sizes = model.sizes(1, arrays.LEAST_TRIALS)
        return Learned(_nothing_known(model.learner, model.scaling, sizes), 0)
    rows, num_tasks = past
    sizes = model.sizes(*rows.scores.shape)
    count = jnp.asarray(min(num_tasks, arrays.MOST_TASKS), jnp.int32)
    knowledge = engine.learn(model.learner, model.scaling, model.policy.noise_std, rows, count, sizes)
    return Learned(knowledge, num_tasks)


def summarise_records(
    model: Model,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    knowledge: Knowledge,
    *,
    maximise: bool,
) -> Prior | None:
    """Return mean and covariance of the weights over the tasks, on the learned support.

    None if no task has two scores.
    """
    past = arrays.past_trials(model.space, model.features, tasks, trials, maximise=maximise)
    if past is None:
        return None
    rows, _ = past
    sizes = model.sizes(*rows.scores.shape)
    return engine.summarise(
        model.learner, model.scaling, model.policy.noise_std, rows, knowledge.support, sizes
    )


def has_changed(learned: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Return whether to learn again, given the number of scores by task id `learned` from and `now`.

    True if the set of tasks with at least two scores changed, or if the share of new scores exceeds
    `NEW_SHARE`. Learning costs the same for one new score as for many, and one among thousands hardly changes
    the result.
    """
    teaching, still = ({task for task, count in counts.items() if count >= 2} for counts in (learned, now))
    num_new = sum(now[task] for task in still) - sum(learned[task] for task in teaching)
    return teaching != still or abs(num_new) > NEW_SHARE * sum(learned.values())


def score_counts(trials: Iterable[TrialRecord]) -> dict[int, int]:
    """Return the number of scores by task id."""
    return dict(Counter(trial.task_id for trial in trials if trial.state == "complete"))
