"""The numbers behind the tuner: pure functions of padded arrays, the ones that `run_lifelong` is made of.

| here        | in the simulator                                                                     |
|-------------|--------------------------------------------------------------------------------------|
| `learn`     | the meta-learner's state after all past tasks (`update`, task by task)               |
| `suggest`   | one step of `run_task`: units, belief, policy, the best candidate not yet tried      |
| `exploration_order` | the forced exploration of a task (`draw_task`)                               |

Shapes are padded: a trial or a task more does not compile anew until the padding is full. Trials are
conditioned on in weight space, so an answer costs O(trials * features^2 + candidates * features^2).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo import standardise
from jlibo.envs.base import Task, explore_once
from jlibo.lifelong import settled
from jlibo.meta import AdaptiveMetaKGL, SelfTunedMetaKGL, Setting, TaskData, fit_hierarchy
from jlibo.meta.base import selected_prior
from jlibo.meta.selection import no_past, remember
from jlibo.policies.base import AbstractPolicy
from jlibo.prior import Prior, PriorMixture
from jlibo.standardise import Moments, PastScales, Standardise

Learner = AdaptiveMetaKGL | SelfTunedMetaKGL


class PastTrials(eqx.Module):
    """All past tasks' finished trials, padded. Scores are better when higher, and of size one or so."""

    features: Float[Array, "tasks trials features"]
    scores: Float[Array, "tasks trials"]
    explored: Bool[Array, "tasks trials"]
    present: Bool[Array, "tasks trials"]
    log_units: Float[Array, " tasks"]
    """Logarithm of what the scores were divided by before they came here."""


class OwnTrials(eqx.Module):
    """The trials of the task at hand, padded: told (in `scores`) or pending."""

    features: Float[Array, "trials features"]
    scores: Float[Array, " trials"]
    told: Bool[Array, " trials"]
    pending: Bool[Array, " trials"]


class Knowledge(eqx.Module):
    """What past tasks taught."""

    prior: Prior | PriorMixture
    support: Bool[Array, " groups"]
    scales: PastScales
    summary: Prior
    """Mean and covariance of the weights over the past tasks, also where the prior does not use them."""


class Suggestion(eqx.Module):
    index: Int[Array, ""]
    mean: Float[Array, ""]
    std: Float[Array, ""]
    """Of the score at the suggestion, in the scores' own units."""
    weights: Float[Array, " components"]
    """How much each component of the prior has the say by now; the last is the wide one."""


@eqx.filter_jit
def learn(
    learner: Learner,
    scaling: Standardise,
    noise_std: Float[Array, ""],
    past: PastTrials,
    num_tasks: Int[Array, ""],
    setting: Setting,
) -> Knowledge:
    """Learn from all past tasks at once."""

    def add(carry, step):
        history, scales = carry
        place, features, scores, explored, present, log_units = step
        data, units = settled(TaskData(features, scores, explored, present), scaling, noise_std, setting)
        is_task = present.any()
        new = remember(history, place, data, learner_data(learner), setting)
        history = jax.tree.map(lambda a, b: jnp.where(is_task, a, b), new, history)
        known = is_task & (units.scale > 0)
        # As a logarithm: scores of 1e300 are divided by their size before they come here.
        log_scale = jnp.where(known, jnp.log(jnp.where(known, units.scale, 1)) + log_units, 0)
        scales = PastScales(scales.total + log_scale, scales.num_tasks + known)
        return (history, scales), None

    places = jnp.arange(setting.num_tasks)
    steps = (places, past.features, past.scores, past.explored, past.present, past.log_units)
    begin = no_past(learner_data(learner), setting), scaling.init(setting.dtype)
    (history, scales), _ = jax.lax.scan(add, begin, steps)
    state, info = learner.learn(history, num_tasks, setting)
    wide = selected_prior(info.support, setting)
    number = jnp.asarray(noise_std, setting.dtype)
    one = jnp.ones((), setting.dtype)
    summary = fit_hierarchy(
        history,
        Prior(wide.mean, jnp.diag(wide.covariance), number),
        wide,
        num_steps=10,
        covariance_tasks=5 * one,
        mean_tasks=one,
        noise_std=number,
    )
    return Knowledge(learner.prior(state, setting), info.support, scales, summary)


def learner_data(learner: Learner) -> str:
    """Which trials of a task the learner looks at."""
    return learner.data if isinstance(learner, SelfTunedMetaKGL) else "all"


def nothing_known(learner: Learner, scaling: Standardise, setting: Setting) -> Knowledge:
    """Before the first task."""
    prior = learner.prior(learner.init(setting), setting)
    support = jnp.ones(setting.num_groups, bool)
    wide = selected_prior(support, setting)
    return Knowledge(prior, support, scaling.init(setting.dtype), wide)


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
    columns = standardise.start(knowledge.prior, trials.features, policy.noise_std, scaling.num_columns)

    def add(carry, step):
        columns, moments = carry
        place, score, is_told, is_pending = step
        columns = standardise.with_features(columns, trials.features)
        columns = standardise.observe(columns, place, score, is_told)
        columns = standardise.expect(columns, place, is_pending)
        return (standardise.with_features(columns, None), moments.add(score, is_told)), None

    places = jnp.arange(trials.scores.shape[0])
    begin = standardise.with_features(columns, None), Moments.empty(trials.scores.dtype)
    (columns, moments), _ = jax.lax.scan(add, begin, (places, trials.scores, trials.told, trials.pending))
    scales = PastScales(
        knowledge.scales.total - knowledge.scales.num_tasks * log_units, knowledge.scales.num_tasks
    )
    units = scaling.units(scales, moments, columns)
    belief = standardise.belief_in(standardise.at_points(columns, candidates), units)
    scores = policy.scores(belief, key=key)
    # A score that is no number never wins, and where none is one, the first candidate left is as good as any.
    scores = jnp.where(available & ~jnp.isnan(scores), scores, -jnp.inf)
    best = jnp.argmax(scores)
    best = jnp.where(available[best], best, jnp.argmax(available))
    return Suggestion(
        best,
        belief.mean[best] * units.scale + units.centre,
        belief.std[best] * units.scale,
        standardise.component_weights(columns, units),
    )


@eqx.filter_jit
def _order(num_candidates: int, num_draws: int, available: Any, key: PRNGKeyArray) -> Int[Array, " draws"]:
    task = Task(jnp.zeros(num_candidates), available)
    return explore_once(task, num_draws, key=key)


def exploration_order(num_candidates: int, num_draws: int, *, key: PRNGKeyArray) -> Int[Array, " draws"]:
    """The candidates that forced exploration draws in one task, first to last, as `draw_task` draws them."""
    _, _, explore_key, _ = jax.random.split(key, 4)
    return _order(num_candidates, num_draws, None, explore_key)
