"""The numbers behind the tuner: pure functions of padded arrays, the ones that `run_lifelong` is made of.

| here        | in the simulator                                                                     |
|-------------|--------------------------------------------------------------------------------------|
| `learn`     | the meta-learner's state after all past tasks (`update`, task by task)               |
| `suggest`   | one step of `run_task`: units, belief, policy, the best candidate not yet tried      |
| `exploration_order` | the forced exploration of a task (`draw_task`)                               |

Shapes are padded: a trial or a task more does not compile anew until the padding is full. Trials are
conditioned on in weight space, so an answer costs O(rows * features^2 + candidates * features^2). The rows
are the trials, or a fixed number of rows that stand for any number of them (`Compressed`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.moments import Moments
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.belief.scaling import PastScales, Standardise
from jlibo.envs.base import Task
from jlibo.lifelong.exploration import explore_once
from jlibo.lifelong.one_task import split_task_key
from jlibo.meta import AbstractMetaLearner, RunSizes, TaskData, fit_hierarchy
from jlibo.meta.base import selected_prior
from jlibo.meta.past import PastTasks, no_past, remember
from jlibo.meta.rows import settled
from jlibo.policies.base import AbstractPolicy


class PastTrials(eqx.Module):
    """All past tasks' finished trials, padded. Scores are better when higher, and of size one or so."""

    features: Float[Array, "tasks trials features"]
    scores: Float[Array, "tasks trials"]
    explored: Bool[Array, "tasks trials"]
    present: Bool[Array, "tasks trials"]
    log_units: Float[Array, " tasks"]
    """Logarithm of what the scores were divided by before they came here."""


class Compressed(eqx.Module):
    """What is left of many told trials beside the rows of `OwnTrials` that stand for them."""

    ones: Float[Any, " trials"]
    """What a column of ones became in these rows."""
    lost_products: Float[Any, "2 2"]
    """Products of the columns of scores and ones over what the rows leave out."""
    num_lost: Float[Any, ""]
    """The number of told trials minus the number of rows for them."""
    moments: Moments
    best: Float[Any, ""]


class OwnTrials(eqx.Module):
    """The trials of the task at hand, padded: told (in `scores`) or pending.

    With `compressed`, a row is not a trial: few rows stand for many trials, exactly.
    """

    features: Float[Any, "trials features"]
    scores: Float[Any, " trials"]
    told: Bool[Any, " trials"]
    pending: Bool[Any, " trials"]
    compressed: Compressed | None = None


class Knowledge(eqx.Module):
    """What past tasks taught."""

    prior: Prior | PriorMixture
    support: Bool[Array, " groups"]
    scales: PastScales


NUM_RANKED = 64
"""How many candidates a suggestion ranks: those that may be taken if another process was faster."""


class Suggestion(eqx.Module):
    index: Int[Array, ""]
    ranking: Int[Array, " ranked"]
    """The best candidates, best first; `index` is the first. What is not available comes last."""
    mean: Float[Array, ""]
    std: Float[Array, ""]
    """Of the score at the suggestion, in the scores' own units."""
    weights: Float[Array, " components"]
    """How much each component of the prior has the say by now; the last is the wide one."""


@eqx.filter_jit
def learn(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    num_tasks: Int[Array, ""],
    sizes: RunSizes,
) -> Knowledge:
    """What all past tasks teach, learned at once."""
    history, scales = _history(learner, scaling, noise_std, past, sizes)
    state, info = learner.learn(history, num_tasks, sizes)
    return Knowledge(learner.prior(state, sizes), info.support, scales)


@eqx.filter_jit
def summarise(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    support: Bool[Array, " groups"],
    sizes: RunSizes,
) -> Prior:
    """Mean and covariance of the weights over the past tasks, also where the learner's prior has none.

    `support` is what was selected. No question of a task needs this, so it is not a part of `learn`.
    """
    history, _ = _history(learner, scaling, noise_std, past, sizes)
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


def _history(
    learner: AbstractMetaLearner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    sizes: RunSizes,
) -> tuple[PastTasks, PastScales]:
    """The past tasks as rows in units of their own, and the scales of these units."""

    def add(carry, step):
        history, scales = carry
        place, features, scores, explored, present, log_units = step
        data, units = settled(TaskData(features, scores, explored, present), scaling, noise_std, sizes)
        is_task = present.any()
        new = remember(history, place, data, learner.data, sizes)
        history = jax.tree.map(lambda a, b: jnp.where(is_task, a, b), new, history)
        known = is_task & (units.scale > 0)
        # As a logarithm: scores of 1e300 are divided by their size before they come here.
        log_scale = jnp.where(known, jnp.log(jnp.where(known, units.scale, 1)) + log_units, 0)
        scales = PastScales(scales.total + log_scale, scales.num_tasks + known)
        return (history, scales), None

    places = jnp.arange(sizes.num_tasks)
    steps = (places, past.features, past.scores, past.explored, past.present, past.log_units)
    begin = no_past(learner.data, sizes), scaling.init(sizes.dtype)
    (history, scales), _ = jax.lax.scan(add, begin, steps)
    return history, scales


def nothing_known(learner: AbstractMetaLearner, scaling: Standardise, sizes: RunSizes) -> Knowledge:
    """Before the first task."""
    prior = learner.prior(learner.init(sizes), sizes)
    return Knowledge(prior, jnp.ones(sizes.num_groups, bool), scaling.init(sizes.dtype))


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
    """The best of the available candidates to try next. `log_units`: what own scores were divided by."""
    compressed = trials.compressed
    state = running.start(knowledge.prior, trials.features, policy.noise_std, scaling.num_columns)

    def add(carry, step):
        state, moments = carry
        place, score, one, is_told, is_pending = step
        state = running.with_features(state, trials.features)
        state = running.observe(state, place, score, is_told, one)
        state = running.observe_pending(state, place, is_pending)
        return (running.with_features(state, None), moments.add(score, is_told)), None

    places = jnp.arange(trials.scores.shape[0])
    begin = running.with_features(state, None), Moments.empty(trials.scores.dtype)
    ones = jnp.ones_like(trials.scores) if compressed is None else compressed.ones
    steps = (places, trials.scores, ones, trials.told, trials.pending)
    (state, moments), _ = jax.lax.scan(add, begin, steps)
    if compressed is not None:
        state = running.complete(state, compressed.lost_products, compressed.num_lost, compressed.best)
        moments = compressed.moments
    scales = PastScales(
        knowledge.scales.total - knowledge.scales.num_tasks * log_units, knowledge.scales.num_tasks
    )
    units = scaling.units(scales, moments, state)
    belief = running.in_units(running.at(state, candidates), units)
    scores = policy.scores(belief, key=key)
    # A score that is NaN or -inf never wins, but what is available still goes before what is not.
    scores = jnp.where(scores > -jnp.inf, scores, jnp.finfo(scores.dtype).min)
    scores = jnp.where(available, scores, -jnp.inf)
    _, ranking = jax.lax.top_k(scores, min(NUM_RANKED, scores.shape[0]))
    best = ranking[0]
    return Suggestion(
        best,
        ranking,
        belief.mean[best] * units.scale + units.centre,
        belief.std[best] * units.scale,
        running.component_weights(state, units),
    )


@eqx.filter_jit
def _order(num_candidates: int, num_draws: int, available: Any, key: PRNGKeyArray) -> Int[Array, " draws"]:
    task = Task(jnp.zeros(num_candidates), available)
    return explore_once(task, num_draws, key=key)


def exploration_order(num_candidates: int, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """The candidates that forced exploration draws in one task, first to last, as `draw_task` draws them."""
    return _order(num_candidates, num_draws, None, split_task_key(key).exploration)
