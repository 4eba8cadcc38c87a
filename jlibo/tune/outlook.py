"""The recommended trial and the expected gain of one more trial. Internal.

Pure functions of padded arrays that start from `engine.condition`, as suggestions do. All numbers are given
the scores told so far: a pending trial counts as one that is still to come. f is the function without noise,
and x* the recommended trial.

| here          | what it is                                                                          |
|---------------|-------------------------------------------------------------------------------------|
| `index`       | x*, the told trial with the highest posterior mean of f                             |
| `mean`, `std` | those of f(x*)                                                                      |
| `gain`        | the largest E[max(f(x) - f(x*), 0)] of all candidates x                             |

`gain` uses the joint posterior of f(x) and f(x*). It is therefore small for two points whose values are both
uncertain, but equal for all the model knows.

Suggestions assume a level of noise. With noisier scores, the trial with the best score would seem better and
more certain than it is. Therefore x*, `mean` and `std` are averages over several levels (`NOISE_FACTORS`),
weighted by the likelihood of the scores. A high level may also mean that the features cannot represent f, and
then a trial may really be as good as its score. A part of the variance above the assumed noise,
`MISFIT_SHARE`, therefore counts as a part of f that differs from trial to trial.
"""

from functools import partial
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief import belief as running
from jlibo.belief.moments import Units
from jlibo.belief.posterior import Posterior
from jlibo.belief.prior import PriorMixture
from jlibo.belief.scaling import Standardise
from jlibo.features import AbstractFeatures
from jlibo.policies.log_expected_improvement import log_gain
from jlibo.tune.arrays import OwnRows
from jlibo.tune.ask import Choices
from jlibo.tune.engine import Knowledge, OwnTrials, condition

HIGHEST = lax.Precision.HIGHEST
NOISE_FACTORS = (1.0, 0.3, 3.0, 8.0)
"""Levels of noise for the recommended trial, in multiples of the noise that suggestions assume. The first
is one."""
NOISE_SPREAD = 1.0
"""Standard deviation of the logarithm of the level before any score."""
MISFIT_SHARE = 0.25
"""Share of the variance above the assumed noise that is a part of f and not noise."""


@final
class Tried(NamedTuple):
    """The trials of the task, padded: their unit points, their scores, and which have one."""

    points: Float[Any, "trials dim"]
    scores: Float[Any, " trials"]
    """In the units of the rows."""
    told: Bool[Any, " trials"]


@final
class Outlook(eqx.Module):
    """The recommended trial and the expected gain of one more trial, in the units of the rows' scores."""

    index: Int[Array, ""]
    """Position of the recommended trial in `Tried`; arbitrary if no trial was told."""
    mean: Float[Array, ""]
    std: Float[Array, ""]
    """Posterior mean and standard deviation of f at the recommended trial."""
    gain: Float[Array, ""]
    scale: Float[Array, ""]
    """Standard deviation of f over the space, as the prior expects it."""


@final
class Look(NamedTuple):
    """The outlook, and what it was computed from."""

    outlook: Outlook
    state: running.RunningBelief
    units: Units
    values: Float[Array, "candidates features"]
    best: Float[Array, " features"]
    """Features of the recommended trial."""


@eqx.filter_jit
def look(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    features: AbstractFeatures,
    rows: OwnRows | OwnTrials,
    tried: Tried,
    choices: Choices,
    log_units: Float[Any, ""],
) -> Look:
    """Return the outlook and what it was computed from. One program, for forecasts and `insight`."""
    told = rows.with_features(features) if isinstance(rows, OwnRows) else rows
    told = eqx.tree_at(lambda trials: trials.pending, told, jnp.zeros_like(told.pending))
    points, values = features(tried.points), choices.values(features)
    factors = jnp.asarray(NOISE_FACTORS, points.dtype)
    at_level = partial(_level, noise_std, scaling, knowledge, told, log_units, points, tried.scores)
    levels = jax.vmap(at_level)(factors)
    means, stds = _averaged(levels, factors)
    state, units = jax.tree.map(lambda leaf: leaf[0], (levels.state, levels.units))
    index = jnp.argmax(jnp.where(tried.told, means, -jnp.inf))
    best = points[index]
    gain = _gains(state, units, values - best)
    gain = jnp.where(choices.available, gain, 0).max() * units.scale
    return Look(Outlook(index, means[index], stds[index], gain, units.scale), state, units, values, best)


def _gains(
    state: running.RunningBelief, units: Units, differences: Float[Array, "candidates features"]
) -> Float[Array, " candidates"]:
    """Return E[max(f(x) - f(x*), 0)] in `units`, given the differences phi(x) - phi(x*)."""
    # f is linear in the features, so the belief at a difference of features is that of the difference.
    weights, beliefs, _ = components(running.at(state, differences), units)
    tiny = jnp.finfo(differences.dtype).tiny ** 0.25
    stds = jnp.maximum(jnp.sqrt(jnp.maximum(beliefs.variance, 0)), tiny)
    return jnp.matmul(weights, stds * jnp.exp(log_gain(beliefs.mean / stds)), precision=HIGHEST)


@final
class _Level(NamedTuple):
    """The belief at one level of noise, f at the trials in the units of the rows, and the log likelihood."""

    state: running.RunningBelief
    units: Units
    means: Float[Array, " trials"]
    stds: Float[Array, " trials"]
    evidence: Float[Array, ""]


def _level(
    noise_std: Float[Array, ""],
    scaling: Standardise,
    knowledge: Knowledge,
    told: OwnTrials,
    log_units: Float[Any, ""],
    points: Float[Array, "trials features"],
    scores: Float[Array, " trials"],
    factor: Float[Array, ""],
) -> _Level:
    scaled = _with_noise(knowledge, noise_std, factor)
    state, units = condition(noise_std, scaling, scaled, told, points, log_units)
    units = running.common_units(state, units)  # one pair for all components
    weights, _, posteriors = components(state, units)
    likelihoods = posteriors.log_marginal_likelihood
    if isinstance(scaled.prior, PriorMixture):
        likelihoods = likelihoods + scaled.prior.log_weights
    # The density of the scores themselves: each level has units of its own.
    count = posteriors.num_observations[0].astype(likelihoods.dtype)
    evidence = jax.nn.logsumexp(likelihoods) - count * jnp.log(units.scale)
    belief = running.in_units(state, units)
    # f = phi . w + misfit. Given the scores, the misfit is its share of the residual.
    share = MISFIT_SHARE * jnp.maximum(1 - 1 / factor**2, 0)
    mean = (1 - share) * belief.mean + share * units.apply(scores)
    noise_variance = (weights * posteriors.noise_std**2).sum()
    variance = (1 - share) ** 2 * belief.variance + share * (1 - share) * noise_variance
    std = jnp.sqrt(jnp.maximum(variance, 0)) * units.scale
    return _Level(state, units, mean * units.scale + units.centre, std, evidence)


def _averaged(
    levels: _Level, factors: Float[Array, " levels"]
) -> tuple[Float[Array, " trials"], Float[Array, " trials"]]:
    """Return mean and standard deviation of f at the trials, averaged over the level of the noise."""
    logits = levels.evidence - 0.5 * (jnp.log(factors) / NOISE_SPREAD) ** 2
    weights = jax.nn.softmax(jnp.where(jnp.isnan(logits), -jnp.inf, logits))[:, None]
    mean = (weights * levels.means).sum(0)
    # The squares of the scores may be out of range.
    size = jnp.maximum(levels.stds.max(0), jnp.finfo(mean.dtype).tiny)
    squares = (levels.stds / size) ** 2 + ((levels.means - mean) / size) ** 2
    return mean, size * jnp.sqrt((weights * squares).sum(0))


def _with_noise(knowledge: Knowledge, noise_std: Float[Array, ""], factor: Float[Array, ""]) -> Knowledge:
    """Return the knowledge with the noise of its prior, or `noise_std` if it has none, times `factor`."""
    prior = knowledge.prior
    parts = prior.components if isinstance(prior, PriorMixture) else prior
    noise = factor * (noise_std if parts.noise_std is None else parts.noise_std)
    noise = jnp.broadcast_to(noise, parts.mean.shape[:-1]).astype(parts.mean.dtype)
    parts = eqx.tree_at(lambda one: one.noise_std, parts, noise, is_leaf=lambda leaf: leaf is None)
    new = PriorMixture(parts, prior.log_weights) if isinstance(prior, PriorMixture) else parts
    return Knowledge(new, knowledge.support, knowledge.scales)


def components(
    state: running.RunningBelief, units: Units
) -> tuple[Float[Array, " components"], Any, Posterior]:
    """Return the weight, the belief and the posterior of each component of the prior."""
    weights = running.component_weights(state, units)
    if state.log_weights is None:
        belief = running.in_units(state, units)
        beliefs = eqx.tree_at(lambda b: (b.mean, b.variance), belief, replace_fn=lambda leaf: leaf[None])
        return weights, beliefs, jax.tree.map(lambda leaf: leaf[None], belief.posterior)
    single = eqx.tree_at(lambda c: c.log_weights, state, None)
    beliefs = jax.vmap(
        lambda one: running.in_units(one, units), in_axes=(running.COMPONENTS,), out_axes=running.BELIEFS
    )(single)
    return weights, beliefs, beliefs.posterior
