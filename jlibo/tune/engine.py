"""Numerical functions of the tuner: pure functions of padded arrays, shared with `run_lifelong`. Internal.

| here        | in the simulator                                                                     |
|-------------|--------------------------------------------------------------------------------------|
| `learn`     | the meta-learner's state after all past tasks (`update`, task by task)               |
| `condition` | the belief of a task after its trials, and the units of its scores                   |
| `suggest`   | one step of `run_task`: units, belief, policy, the best available candidate          |
| `exploration_order` | the forced exploration of a task (`draw_task`)                               |

Shapes are padded, so that adding a trial or a task does not recompile until the padding is full. Trials are
conditioned on in weight space, so a suggestion costs O(rows * features^2 + candidates * features^2). The rows
are the trials, or a fixed number of rows that is equivalent to any number of trials (`Compressed`).
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.moments import Moments, Units
from jlibo.belief.observations import Observations, after
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.belief.scaling import PastScales, Standardise
from jlibo.envs.base import Task
from jlibo.lifelong.exploration import explore_once
from jlibo.lifelong.one_task import split_task_key
from jlibo.meta import AbstractMetaLearner, RunSizes, TaskData, fit_hierarchy
from jlibo.meta.base import selected_prior
from jlibo.meta.hierarchy import PART_TASKS
from jlibo.meta.past import PastTasks, remember_all
from jlibo.meta.rows import settled
from jlibo.meta.selection import AbstractPathLearner
from jlibo.policies.base import AbstractPolicy
from jlibo.solver.solution import Solution


@final
class PastTrials(eqx.Module):
    """Finished trials of all past tasks, padded. Higher scores are better; their magnitude is about one."""

    features: Float[Array, "tasks trials features"]
    scores: Float[Array, "tasks trials"]
    explored: Bool[Array, "tasks trials"]
    present: Bool[Array, "tasks trials"]
    log_units: Float[Array, " tasks"]
    """Logarithm of the number that the scores were divided by."""


@final
class Compressed(eqx.Module):
    """Statistics of many told trials that complement the equivalent rows in `OwnTrials`."""

    ones: Float[Any, " trials"]
    """The column of ones in the coordinates of these rows."""
    lost_products: Float[Any, "2 2"]
    """Products of the columns of scores and ones outside of the span of the rows."""
    num_lost: Float[Any, ""]
    """The number of told trials minus the number of rows for them."""
    moments: Moments
    best: Float[Any, ""]
    num_since_best: Int[Any, ""]
    """Told trials after the first one with the best score."""


@final
class OwnTrials(eqx.Module):
    """The trials of the running task, padded: told (with a score in `scores`) or pending.

    With `compressed`, the rows are not trials: few rows represent many trials exactly.
    """

    features: Float[Any, "trials features"]
    scores: Float[Any, " trials"]
    told: Bool[Any, " trials"]
    pending: Bool[Any, " trials"]
    compressed: Compressed | None = None


@final
class Knowledge(eqx.Module):
    """What was learned from past tasks: a prior, the support, and the scales of the scores."""

    prior: Prior | PriorMixture
    support: Bool[Array, " groups"]
    scales: PastScales


@final
class Begun(NamedTuple):
    """The past tasks as rows, the scales of their units, and the path of a selection (None without one)."""

    history: PastTasks
    scales: PastScales
    path: Solution | None


NUM_RANKED = 64
"""Number of candidates that a suggestion ranks. Later ones are used if another process takes the first."""


@final
class Suggestion(eqx.Module):
    """The candidate to try next, the runners-up, and the prediction at the candidate."""

    index: Int[Array, ""]
    ranking: Int[Array, " ranked"]
    """The best candidates, best first; `index` is the first. Unavailable candidates come last."""
    mean: Float[Array, ""]
    std: Float[Array, ""]
    """Predictive mean and standard deviation of the score at the suggestion, in the units of the scores."""
    weights: Float[Array, " components"]
    """Posterior weight of each component of the prior; the last component is the wide one."""


@eqx.filter_jit
def learn(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    num_tasks: Int[Array, ""],
    sizes: RunSizes,
) -> Knowledge:
    """Return what is learned from all past tasks in one batch: `finish` of `begin`."""
    return finish(learner, begin(learner, scaling, noise_std, past, sizes), num_tasks, sizes)


@eqx.filter_jit
def begin(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    sizes: RunSizes,
) -> Begun:
    """Return the first part of `learn`, which takes long to compile and little time to run."""
    history, scales = history_of(learner.data, scaling, noise_std, past, sizes)
    path = learner.path(history, sizes) if isinstance(learner, AbstractPathLearner) else None
    return Begun(history, scales, path)


@eqx.filter_jit
def finish(
    learner: AbstractMetaLearner, begun: Begun, num_tasks: Int[Array, ""], sizes: RunSizes
) -> Knowledge:
    """Return the result of `learn`, given that of `begin`."""
    if isinstance(learner, AbstractPathLearner):
        state, info = learner.learn_on(begun.path, begun.history, num_tasks, sizes)
    else:
        state, info = learner.learn(begun.history, num_tasks, sizes)
    return Knowledge(learner.prior(state, sizes), info.support, begun.scales)


@eqx.filter_jit
def summarise(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    support: Bool[Array, " groups"],
    sizes: RunSizes,
) -> Prior:
    """Return mean and covariance of the weights over the past tasks, also if the learner's prior has none.

    `support` is the selected support. Suggestions do not need this result, so it is not a part of `learn`.
    """
    history, _ = history_of(learner.data, scaling, noise_std, past, sizes)
    wide = selected_prior(support, sizes)
    number = jnp.asarray(noise_std, sizes.dtype)
    one = jnp.ones((), sizes.dtype)
    return fit_hierarchy(
        history,
        Prior(wide.mean, jnp.diag(wide.covariance), number),
        wide,
        num_steps=10,
        covariance_tasks=5 * one,
        mean_tasks=one,
        noise_std=number,
    )


def history_of(
    choice: str,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    sizes: RunSizes,
) -> tuple[PastTasks, PastScales]:
    """Return the past tasks as rows, each task in its own units, and the scales of these units.

    `choice`: which steps of a task to use, "exploration" or "all".
    """

    tasks = TaskData(past.features, past.scores, past.explored, past.present)

    def in_units(task: TaskData):
        data, units = settled(task, scaling, noise_std, sizes)
        return data.rewards, units

    # In parts, because the systems of equations of all tasks at once take several times the memory of the
    # data.
    scores, units = jax.lax.map(in_units, tasks, batch_size=PART_TASKS)
    data = eqx.tree_at(lambda data: data.rewards, tasks, scores)
    history = remember_all(data, past.present.any(1), choice, sizes)
    known = past.present.any(1) & (units.scale > 0)
    # In logarithms, because the scores may have been divided by numbers such as 1e300.
    log_scales = jnp.where(known, jnp.log(jnp.where(known, units.scale, 1)) + past.log_units, 0)
    return history, PastScales(log_scales.sum(), known.sum().astype(sizes.dtype))


def nothing_known(learner: AbstractMetaLearner, scaling: Standardise, sizes: RunSizes) -> Knowledge:
    """Return the knowledge before the first task."""
    prior = learner.prior(learner.init(sizes), sizes)
    return Knowledge(prior, jnp.ones(sizes.num_groups, bool), scaling.init(sizes.dtype))


def condition(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    trials: OwnTrials,
    points: Float[Array, "points features"],
    log_units: Float[Array, ""],
) -> tuple[running.RunningBelief, Units]:
    """Return the belief at `points` after the trials of a task, and the units of its scores.

    It is the one conditioning on a task's trials, for suggestions (`suggest`) and explanations
    (`jlibo.tune.outlook`). `log_units`: log of the divisor of the scores.
    """
    compressed = trials.compressed
    ones = jnp.ones_like(trials.scores) if compressed is None else compressed.ones
    observations = Observations(trials.features, trials.scores, trials.told, trials.pending, ones)
    state = after(knowledge.prior, observations, points, noise_std)
    if compressed is None:
        moments = Moments.of(trials.scores, trials.told)
    else:
        lost = (compressed.lost_products, compressed.num_lost)
        state = running.complete(state, *lost, compressed.best, compressed.num_since_best)
        moments = compressed.moments
    past = knowledge.scales
    scales = PastScales(past.total - past.num_tasks * log_units, past.num_tasks)
    return state, scaling.units(scales, moments, state)


@eqx.filter_jit
def suggest(
    policy: AbstractPolicy,
    scaling: Standardise,
    knowledge: Knowledge,
    trials: OwnTrials,
    candidates: Float[Array, "candidates features"],
    available: Bool[Array, " candidates"],
    log_units: Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> Suggestion:
    """Return the available candidate to try next. `log_units`: log of the divisor of the own scores."""
    state, units = condition(policy.noise_std, scaling, knowledge, trials, candidates, log_units)
    belief = running.in_units(state, units)
    scores = policy.scores(belief, key=key)
    # Scores of NaN or -inf rank last among the available candidates, but before the unavailable ones.
    scores = jnp.where(scores > -jnp.inf, scores, jnp.finfo(scores.dtype).min)
    scores = jnp.where(available, scores, -jnp.inf)
    _, ranking = jax.lax.top_k(scores, min(NUM_RANKED, scores.shape[0]))
    best = ranking[0]
    shown = running.common_units(state, units)
    return Suggestion(
        best,
        ranking,
        belief.mean[best] * shown.scale + shown.centre,
        belief.std[best] * shown.scale,
        running.component_weights(state, units),
    )


@eqx.filter_jit
def exploration_order(num_candidates: int, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """Return the candidates that forced exploration draws in one task, in order, as `draw_task` does."""
    task = Task(jnp.zeros(num_candidates), None)
    return explore_once(task, num_draws, key=split_task_key(key).exploration)
