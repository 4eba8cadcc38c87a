"""The running belief: the posterior of one task under a prior or a mixture of priors, in any reward units.

| function          | what it does                                                                          |
|-------------------|---------------------------------------------------------------------------------------|
| `start`           | belief of a prior before any reward                                                   |
| `observe`         | condition on a reward at a candidate                                                  |
| `observe_pending` | reduce the variance as for an observation whose reward is not known yet               |
| `at`              | the same belief at other points                                                       |
| `in_units`        | mean and variance in given units, as a policy sees them                               |
| `fitted_units`    | the units in which the prior explains the rewards best                                |

The units of the rewards (`jlibo.belief.scaling`) are estimated from the rewards and change at every step.
The posterior is not recomputed when they change. The posterior mean is linear in the targets
(reward - centre) / scale, and its covariance does not depend on them. Three columns are kept: the responses
to the prior mean, to the rewards, and to a target of one everywhere. The mean in any units is a linear
combination of the columns. The likelihood of the rewards in any units follows from the products of the
columns' residuals.

Squares of rewards of 1e20 or 1e-20 are out of the range of float32. The column of rewards is therefore
kept in multiples of a power of two, `unit`, near the largest reward of the task so far. Multiplication by
a power of two is exact, so rewards of ordinary size give the same numbers as without a unit.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.belief import posterior as gp
from jlibo.belief.moments import Units, divisor, larger_unit, likeliest_units, times, unit_of
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.checks import ArrayLike


@final
class RunningBelief(eqx.Module):
    """Belief about one task at its candidates, before the units of the rewards are chosen.

    The means in `belief` have a leading axis of columns. For a mixture, all leaves except the candidates'
    features have an axis of components in front of it.
    """

    belief: gp.Belief
    products: Float[Array, "columns columns"]
    """Sum over observations of the products of the columns' residuals, divided by the predictive variance."""
    log_determinant: Float[Array, ""]
    log_weights: Float[Array, " components"] | None
    """Prior log weights of a mixture's components; None for a single prior."""
    unit: Float[Array, ""] | None
    """Unit of the column of rewards, as in `Moments`; None for a single column."""


def start(
    prior: Prior | PriorMixture,
    features: Float[Array, "points features"],
    noise_std: Float[ArrayLike, ""],
    num_columns: int,
) -> RunningBelief:
    """Return the belief before any reward. The prior's `noise_std`, if it has one, replaces `noise_std`.

    Noise outside `jlibo.belief.prior.noise_limits` for the largest prior variance at the candidates is
    clipped to the nearest limit.
    """

    def start_one(one: Prior) -> RunningBelief:
        posterior = gp.init(one, noise_std if one.noise_std is None else one.noise_std)
        mean = jnp.matmul(features, one.mean, precision=lax.Precision.HIGHEST)
        variance = one.variance(features)
        held = gp.held_noise(posterior.noise_std, variance.max(initial=0))
        posterior = eqx.tree_at(lambda p: p.noise_std, posterior, held)
        zeros = jnp.zeros(num_columns, mean.dtype)
        posterior = eqx.tree_at(
            lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood, p.num_since_best),
            posterior,
            (first_column(one.mean, num_columns), zeros - jnp.inf, zeros, jnp.zeros(num_columns, jnp.int32)),
        )
        belief = gp.Belief(first_column(mean, num_columns), variance, features, posterior)
        unit = None if num_columns == 1 else jnp.zeros((), mean.dtype)
        return RunningBelief(belief, jnp.outer(zeros, zeros), jnp.zeros_like(mean[0]), None, unit)

    if isinstance(prior, Prior):
        return start_one(prior)
    running = jax.vmap(start_one, out_axes=COMPONENTS)(prior.components)
    return eqx.tree_at(lambda c: c.log_weights, running, prior.log_weights, is_leaf=lambda leaf: leaf is None)


def observe(
    running: RunningBelief,
    index: Int[ArrayLike, ""],
    reward: Float[Array, ""],
    is_present: bool | Array = True,
    constant: Float[ArrayLike, ""] = 1.0,
    *,
    refresh: bool = False,
) -> RunningBelief:
    """Condition on a reward at candidate `index`; no change where `is_present` is false.

    `constant` is the target of the third column: 1 for an observation. For a compressed row that represents
    many observations (see `complete`), it is the same transform applied to a column of ones. `refresh` is
    that of `posterior.condition`; use it for runs of more than `candidates.REFRESH_STEPS` observations.
    """
    reward = jnp.asarray(reward, running.products.dtype)
    unit, change = running.unit, None
    if unit is None:
        targets = reward[None]
    else:
        unit, change = larger_unit(unit, reward, is_present)
        one = jnp.ones_like(reward)
        constant = jnp.asarray(constant, reward.dtype)
        targets = jnp.stack([jnp.zeros_like(reward), reward / divisor(unit), constant])
        change = jnp.stack([one, change, one])

    def observe_one(one: RunningBelief) -> RunningBelief:
        one = one if change is None else _in_new_unit(one, change)
        belief, surprise, gain = gp.condition(one.belief, index, targets, is_present, refresh=refresh)
        return RunningBelief(
            belief,
            one.products + gain * jnp.outer(surprise, surprise),
            one.log_determinant - jnp.log(jnp.where(gain > 0, gain, 1)),
            None,
            unit,
        )

    return _each(observe_one, running, COMPONENTS)


def _in_new_unit(running: RunningBelief, change: Float[Array, " columns"]) -> RunningBelief:
    """Return the belief with each column multiplied by its change of unit."""
    running = eqx.tree_at(
        lambda c: (c.belief.mean, c.belief.posterior.mean, c.products),
        running,
        replace_fn=lambda leaf: times(leaf, change[:, None]),
    )
    return eqx.tree_at(
        lambda c: (c.belief.posterior.best_reward, c.products),
        running,
        replace_fn=lambda leaf: times(leaf, change),
    )


def complete(
    running: RunningBelief,
    lost_products: Float[Array, "2 2"],
    num_lost: Float[Array, ""],
    best_reward: Float[Array, ""],
    num_since_best: Int[Array, ""],
) -> RunningBelief:
    """Add the part of many observations that compressed rows leave out. Call it after `observe` of the rows.

    An orthogonal transform of n observations gives d rows with features and n - d rows without. The latter do
    not change the posterior of the weights, but they contribute to the likelihood.

    **Arguments:**

    - `lost_products`: products of the columns of rewards and of ones, summed over the rows without features.
    - `num_lost`: number of observations minus number of rows observed.
    - `best_reward`: the largest reward.
    - `num_since_best`: number of observations after it.
    """

    unit = divisor(jnp.asarray(running.unit))
    in_unit = jnp.stack([1 / unit, jnp.ones_like(unit)])
    lost_products = lost_products * in_unit * in_unit[:, None]

    def complete_one(one: RunningBelief) -> RunningBelief:
        posterior = one.belief.posterior
        variance = posterior.noise_std**2
        return eqx.tree_at(
            lambda c: (
                c.products,
                c.log_determinant,
                c.belief.posterior.best_reward,
                c.belief.posterior.num_observations,
                c.belief.posterior.num_since_best,
            ),
            one,
            (
                one.products.at[1:, 1:].add(lost_products / variance),
                one.log_determinant + num_lost * jnp.log(variance),
                posterior.best_reward.at[1].set(best_reward / unit),
                posterior.num_observations + num_lost.astype(jnp.int32),
                posterior.num_since_best.at[1].set(num_since_best),
            ),
        )

    return _each(complete_one, running, COMPONENTS)


def observe_pending(
    running: RunningBelief, index: Int[ArrayLike, ""], is_present: bool | Array = True
) -> RunningBelief:
    """Reduce the variance as an observation at `index` does, for any reward; the mean stays."""

    def pending_one(one: RunningBelief) -> RunningBelief:
        belief = gp.condition_pending(one.belief, index, is_present)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(pending_one, running, COMPONENTS)


def in_units(running: RunningBelief, units: Units) -> gp.Belief:
    """Return the belief in the given units.

    A mixture becomes one belief with the mixture's mean and variance, in the units of its most probable
    component (`common_units`). Components are reweighted by their predictive likelihood of the rewards so
    far. The `posterior` of the result, which policies use to draw a whole function, is that of the most
    probable component. `wide` is the belief of the last component.
    """
    if running.log_weights is None:
        return _in_units(running, units)
    weights = component_weights(running, units)
    likeliest = jnp.argmax(weights)
    units = _per_component(running, units)
    beliefs = _each(_in_units, running, BELIEFS, units)
    scale = units.scale[likeliest]
    ratio = (units.scale / scale)[:, None]
    means = beliefs.mean * ratio + ((units.centre - units.centre[likeliest]) / scale)[:, None]
    mean = _combine(weights, means)
    variance = _combine(weights, beliefs.variance * ratio**2 + (means - mean) ** 2)
    posterior, last = (
        jax.tree.map(lambda leaf, place=place: leaf[place], beliefs.posterior) for place in (likeliest, -1)
    )
    wide = gp.Belief(beliefs.mean[-1], beliefs.variance[-1], beliefs.features, last)
    return gp.Belief(mean, variance, beliefs.features, posterior, wide, weights[:-1].sum())


def common_units(running: RunningBelief, units: Units) -> Units:
    """Return the units of the result of `in_units`: those of the most probable component."""
    if running.log_weights is None:
        return units
    likeliest = jnp.argmax(component_weights(running, units))
    return jax.tree.map(lambda leaf: leaf[likeliest], _per_component(running, units))


def at(running: RunningBelief, features: Float[Array, "points features"]) -> RunningBelief:
    """Return the same belief at other points, in O(points * features^2)."""

    def see_one(one: RunningBelief) -> RunningBelief:
        posterior = one.belief.posterior
        image = jnp.matmul(features, posterior.factor, precision=lax.Precision.HIGHEST)
        mean = _combine(posterior.mean, features.T)
        belief = gp.Belief(mean, (image**2).sum(-1), features, posterior)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(see_one, running, COMPONENTS)


def fitted_units(running: RunningBelief, weight: Float[Array, ""], past_scale: Float[Array, ""]) -> Units:
    """Return the units of maximum likelihood of the rewards so far, one pair per component.

    `weight` and `past_scale` are those of `jlibo.belief.moments.likeliest_units`.
    """

    def fit_one(one: RunningBelief) -> Units:
        dtype = one.products.dtype
        own = jnp.asarray(one.unit)  # three columns, so the belief has a unit; zero if all rewards are zero
        # In multiples of a power of two near the rewards and the past scale, so that no square overflows.
        unit = divisor(jnp.maximum(own, unit_of(past_scale)))
        change = jnp.stack([jnp.ones_like(own), own / unit, jnp.ones_like(own)])
        products = times(times(one.products, change), change[:, None])
        count = one.belief.posterior.num_observations.astype(dtype)
        units = likeliest_units(products, count, weight, past_scale / unit)
        return Units(units.centre * unit, units.scale * unit)

    return _each(fit_one, running, 0)


def component_weights(running: RunningBelief, units: Units) -> Float[Array, " components"]:
    """Return each component's posterior probability: prior weight times likelihood of the rewards so far.

    The likelihood is the product of the predictive densities of each reward given the rewards before it, so
    every reward is held out once. It is a density of the rewards and not of the rewards in a component's own
    units, and a centre that was fitted to the rewards is integrated out.
    """
    if running.log_weights is None:
        return jnp.ones(1, running.products.dtype)
    scores = running.log_weights + _each(_log_evidence, running, 0, _per_component(running, units))
    return jax.nn.softmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))


def _log_evidence(running: RunningBelief, units: Units) -> Float[Array, ""]:
    log_likelihood = _log_likelihood(running, units)
    if running.unit is None:
        return log_likelihood
    count = running.belief.posterior.num_observations.astype(log_likelihood.dtype)
    constant = running.products[2, 2]
    constant = jnp.where(constant > 0, constant, 1)
    log_scale = jnp.log(jnp.where(units.scale > 0, units.scale, 1))
    return log_likelihood - jnp.maximum(count - 1, 0) * log_scale - 0.5 * jnp.log(constant)


def _per_component(running: RunningBelief, units: Units) -> Units:
    num_components = running.products.shape[0]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_components,)), units)


def _in_units(running: RunningBelief, units: Units) -> gp.Belief:
    belief, posterior = running.belief, running.belief.posterior
    combine = _combination(running, units)
    best = (
        posterior.best_reward[0] if running.unit is None else posterior.best_reward[1] * divisor(running.unit)
    )
    best = units.apply(best)
    posterior = eqx.tree_at(
        lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood, p.num_since_best),
        posterior,
        (
            _combine(combine, posterior.mean),
            best,
            _log_likelihood(running, units),
            posterior.num_since_best[0 if running.unit is None else 1],
        ),
    )
    return gp.Belief(_combine(combine, belief.mean), belief.variance, belief.features, posterior)


def _log_likelihood(running: RunningBelief, units: Units) -> Float[Array, ""]:
    combine = _combination(running, units)
    fit = _combine(combine, _combine(combine, running.products))
    count = running.belief.posterior.num_observations.astype(fit.dtype)
    return -0.5 * (fit + running.log_determinant + count * jnp.log(2 * jnp.pi))


def _combination(running: RunningBelief, units: Units) -> Float[Array, " columns"]:
    if running.unit is None:
        return jnp.ones(1, running.products.dtype)
    return jnp.stack(
        [jnp.ones_like(units.scale), divisor(running.unit) / units.scale, -units.centre / units.scale]
    )


def with_features(
    running: RunningBelief,
    features: Float[Array, "points features"] | None,
    columns: Float[Array, "features points"] | None = None,
) -> RunningBelief:
    """Set the candidates' features. None removes them from a loop's carry, so that all seeds share them.

    `columns` is `features.T`, made outside of the loop; see `Belief`.
    """
    return eqx.tree_at(
        lambda c: (c.belief.features, c.belief.columns),
        running,
        (features, columns),
        is_leaf=lambda leaf: leaf is None,
    )


def first_column(values: Array, num_columns: int) -> Array:
    """Return columns of zeros but for the first, which is `values`."""
    return jnp.zeros((num_columns, *values.shape), values.dtype).at[0].set(values)


def _combine(weights, rows):
    return jnp.matmul(weights, rows, precision=lax.Precision.HIGHEST)


# Tree prefixes for `vmap`: every leaf has a leading axis of components, except the shared features.
BELIEFS: Any = gp.Belief(mean=0, variance=0, features=None, posterior=0)  # pyright: ignore
COMPONENTS: Any = RunningBelief(belief=BELIEFS, products=0, log_determinant=0, log_weights=None, unit=None)  # pyright: ignore


def _each(fn, running: RunningBelief, out_axes, *others):
    """Apply `fn` to the belief of a single prior, or to that of each component.

    `others` are further arguments; for a mixture their leaves have a leading axis of components.
    """
    if running.log_weights is None:
        return fn(running, *others)
    single = eqx.tree_at(lambda c: c.log_weights, running, None)
    axes = (COMPONENTS, *(0 for _ in others))
    answer = jax.vmap(fn, in_axes=axes, out_axes=out_axes)(single, *others)
    if not isinstance(answer, RunningBelief):
        return answer
    return eqx.tree_at(
        lambda c: c.log_weights, answer, running.log_weights, is_leaf=lambda leaf: leaf is None
    )
