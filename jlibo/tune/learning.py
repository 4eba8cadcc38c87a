"""Learning from the records of past tasks, for the tuner and the integrations. Internal.

| here            | what it is                                                                          |
|-----------------|-------------------------------------------------------------------------------------|
| `learn_records` | `engine.learn` on the records of tasks and trials, padded                           |
| `has_changed`   | whether the learned result is out of date                                           |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import Prior
from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.meta import AbstractMetaLearner, RunSizes
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
    past = arrays.past_rows(model.space, tasks, trials, maximise=maximise)
    if past is None:
        sizes = model.sizes(1, arrays.LEAST_TRIALS)
        return Learned(model.programs.run(_nothing_known, model.learner, model.scaling, sizes), 0)
    rows, num_tasks = past
    sizes = model.sizes(*rows.scores.shape)
    count = np.asarray(min(num_tasks, arrays.MOST_TASKS), np.int32)
    return Learned(_learn(model, rows, count, sizes), num_tasks)


def prepare_learning(model: Model, counts: Mapping[int, int]) -> None:
    """Start to compile the programs of `learn_records`, or to load them, beside the reading of the past.

    **Arguments:**

    - `model`: the model of the search space.
    - `counts`: the number of scores by task id. Stopped trials with an estimate count too, but are not known
      here: then another program may be needed, which is compiled when the past has been read.
    """
    teaching = [count for count in counts.values() if count >= 2]
    if model.programs.keep and teaching:
        _prepare(model, arrays.past_shapes(model.space, *arrays.past_sizes(len(teaching), max(teaching))))


def _prepare(model: Model, rows: arrays.PastRows) -> None:
    sizes = model.sizes(*rows.scores.shape)
    shapes = model.programs.quick.prepare(_begin, *_parts(model), rows, sizes)
    if shapes is not None:
        count = jax.ShapeDtypeStruct((), np.int32)
        model.programs.prepare(engine.finish, model.learner, shapes, count, sizes)


def _parts(model: Model) -> tuple[Any, ...]:
    return model.learner, model.scaling, model.policy.noise_std, model.features


def _learn(model: Model, rows: arrays.PastRows, num_tasks: Int[Any, ""], sizes: RunSizes) -> Knowledge:
    """Return `engine.learn`, in two programs that are compiled or loaded side by side."""
    _prepare(model, rows)
    begun = model.programs.quick.run(_begin, *_parts(model), rows, sizes)
    return model.programs.run(engine.finish, model.learner, begun, num_tasks, sizes)


@eqx.filter_jit
def _begin(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    features: AbstractFeatures,
    rows: arrays.PastRows,
    sizes: RunSizes,
) -> engine.Begun:
    """Return `engine.begin` of the rows; their features are evaluated in the same program."""
    return engine.begin(learner, scaling, noise_std, rows.with_features(features), sizes)


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
    past = arrays.past_rows(model.space, tasks, trials, maximise=maximise)
    if past is None:
        return None
    rows, _ = past
    sizes = model.sizes(*rows.scores.shape)
    return model.programs.run(_summarise, *_parts(model), rows, knowledge.support, sizes)


@eqx.filter_jit
def _summarise(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    features: AbstractFeatures,
    rows: arrays.PastRows,
    support: Bool[Array, " groups"],
    sizes: RunSizes,
) -> Prior:
    return engine.summarise(learner, scaling, noise_std, rows.with_features(features), support, sizes)


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
