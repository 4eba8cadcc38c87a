"""The running belief: what a prior, or a mixture of priors, believes about one task after its rewards so far.

| verb              | what it does                                                                          |
|-------------------|---------------------------------------------------------------------------------------|
| `start`           | the belief of a prior before any reward                                               |
| `observe`         | condition on a reward at a candidate                                                  |
| `observe_pending` | shrink the variance as an observation will, before its reward is known                |
| `at`              | the same belief at other points                                                       |
| `in_units`        | mean and variance in given units, as a policy sees them                               |

The units of the rewards (`jlibo.belief.scaling`) are estimated from the rewards and move with every step.
Nothing is computed again for that. The posterior mean is linear in the targets (reward - centre) / scale, and
its covariance does not depend on them. So three columns are kept: the responses to the prior's mean, to the
rewards and to a target of one everywhere. The mean in any units is a combination of the columns, and so is
the likelihood of the rewards, from the products of the columns' residuals.

Squares of rewards of 1e20 or 1e-20 are out of the range of float32. The column of rewards is therefore
kept in multiples of a power of two, `unit`, near the largest reward of the task so far. Multiplication by
a power of two is exact: rewards of ordinary size give the same numbers as without.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.belief import posterior as gp
from jlibo.belief.moments import Units, divisor, larger_unit, times
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.checks import ArrayLike


class RunningBelief(eqx.Module):
    """What a prior believes about one task at its candidates, in whatever units.

    `belief` has a leading axis of columns in its means. For a mixture, everything but the candidates'
    features has the components' axis in front of that.
    """

    belief: gp.Belief
    products: Float[Array, "columns columns"]
    """Sum over observations of the surprises' products, each over its variance."""
    log_determinant: Float[Array, ""]
    log_weights: Float[Array, " components"] | None
    """Of a mixture's components; None for a single prior."""
    unit: Float[Array, ""] | None
    """What the column of rewards is in multiples of, as in `Moments`; None for a single column."""


def start(
    prior: Prior | PriorMixture,
    features: Float[Array, "points features"],
    noise_std: Float[ArrayLike, ""],
    num_columns: int,
) -> RunningBelief:
    """The belief before any reward. A prior's own noise goes before `noise_std`.

    Noise that the precision cannot hold beside the largest prior variance at the candidates is moved to the
    nearest that it can; see `jlibo.belief.prior.noise_limits`.
    """

    def start_one(one: Prior) -> RunningBelief:
        posterior = gp.init(one, noise_std if one.noise_std is None else one.noise_std)
        mean = jnp.matmul(features, one.mean, precision=lax.Precision.HIGHEST)
        variance = one.variance(features)
        held = gp.held_noise(posterior.noise_std, variance.max(initial=0))
        posterior = eqx.tree_at(lambda p: p.noise_std, posterior, held)
        zeros = jnp.zeros(num_columns, mean.dtype)
        posterior = eqx.tree_at(
            lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood),
            posterior,
            (_first_of(one.mean, num_columns), zeros - jnp.inf, zeros),
        )
        belief = gp.Belief(_first_of(mean, num_columns), variance, features, posterior)
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
    """Condition on a reward at candidate `index`, or do nothing where it is not there.

    `constant` is the target of the third column. It is 1 for an observation; for a row that stands for many
    (see `complete`), it is what the ones of these observations became. `refresh` as in
    `posterior.condition`: for runs of more than `posterior.REFRESH_STEPS` observations.
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
    """The columns, each multiplied by its change of unit."""
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
) -> RunningBelief:
    """Add what the compressed rows of many observations leave out, after `observe` of these rows.

    An orthogonal transform of n observations leaves d rows with features and n - d without. The latter do not
    move the weights, but belong to the likelihood.

    **Arguments:**

    - `lost_products`: over the rows without features, products of the columns of rewards and of ones.
    - `num_lost`: the number of observations minus that of the rows observed.
    - `best_reward`: the largest reward.
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
            ),
            one,
            (
                one.products.at[1:, 1:].add(lost_products / variance),
                one.log_determinant + num_lost * jnp.log(variance),
                posterior.best_reward.at[1].set(best_reward / unit),
                posterior.num_observations + num_lost.astype(jnp.int32),
            ),
        )

    return _each(complete_one, running, COMPONENTS)


def observe_pending(
    running: RunningBelief, index: Int[ArrayLike, ""], is_present: bool | Array = True
) -> RunningBelief:
    """Shrink the variance as an observation at `index` will, whatever its reward."""

    def pending_one(one: RunningBelief) -> RunningBelief:
        belief = gp.condition_pending(one.belief, index, is_present)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(pending_one, running, COMPONENTS)


def in_units(running: RunningBelief, units: Units) -> gp.Belief:
    """The belief in the given units.

    A mixture's components become one belief of the same mean and variance, each weighed by how well it
    foretold the rewards so far. Where a policy asks for weights of features (a draw of a whole function),
    the likeliest component answers.
    """
    if running.log_weights is None:
        return _in_units(running, units)
    beliefs = _each(lambda one: _in_units(one, units), running, BELIEFS)
    weights = component_weights(running, units)
    mean = _combine(weights, beliefs.mean)
    variance = _combine(weights, beliefs.variance + (beliefs.mean - mean) ** 2)
    likeliest = jnp.argmax(weights)
    posterior = jax.tree.map(lambda leaf: leaf[likeliest], beliefs.posterior)
    return gp.Belief(mean, variance, beliefs.features, posterior)


def at(running: RunningBelief, features: Float[Array, "points features"]) -> RunningBelief:
    """The same belief, seen at other points: O(points * features^2)."""

    def see_one(one: RunningBelief) -> RunningBelief:
        posterior = one.belief.posterior
        image = jnp.matmul(features, posterior.factor, precision=lax.Precision.HIGHEST)
        mean = _combine(posterior.mean, features.T)
        belief = gp.Belief(mean, (image**2).sum(-1), features, posterior)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(see_one, running, COMPONENTS)


def squares_about(centre: Float[Array, ""], running: RunningBelief) -> Float[Array, ""]:
    """The squared deviations of the rewards from `centre`, in units of what the prior expects them to be.

    (y - centre)^T K^-1 (y - centre), K the prior covariance of the rewards with their noise; of a mixture, by
    its last component, the widest. In multiples of `columns.unit` squared.
    """
    centre = centre if running.unit is None else centre / divisor(running.unit)
    products = running.products if running.log_weights is None else running.products[-1]
    squares = products[1, 1] - 2 * centre * products[1, 2] + centre**2 * products[2, 2]
    return jnp.maximum(squares, 0)


def component_weights(running: RunningBelief, units: Units) -> Float[Array, " components"]:
    """How likely each component is by now: its weight times the likelihood of the rewards so far.

    That likelihood is the product of what was foretold for each reward from those before it, so that every
    reward is held out once.
    """
    if running.log_weights is None:
        return jnp.ones(1, running.products.dtype)
    scores = running.log_weights + _each(lambda one: _log_likelihood(one, units), running, 0)
    return jax.nn.softmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))


def _in_units(running: RunningBelief, units: Units) -> gp.Belief:
    belief, posterior = running.belief, running.belief.posterior
    combine = _combination(running, units)
    best = (
        posterior.best_reward[0] if running.unit is None else posterior.best_reward[1] * divisor(running.unit)
    )
    best = units.apply(best)
    posterior = eqx.tree_at(
        lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood),
        posterior,
        (_combine(combine, posterior.mean), best, _log_likelihood(running, units)),
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


def with_features(running: RunningBelief, features: Float[Array, "points features"] | None) -> RunningBelief:
    """Put the candidates' features in, or take them out (None) for a loop in which all seeds share them."""
    return eqx.tree_at(lambda c: c.belief.features, running, features, is_leaf=lambda leaf: leaf is None)


def _first_of(values: Array, num_columns: int) -> Array:
    return jnp.zeros((num_columns, *values.shape), values.dtype).at[0].set(values)


def _combine(weights, rows):
    return jnp.matmul(weights, rows, precision=lax.Precision.HIGHEST)


# Tree prefixes for `vmap`: components lead every leaf but the features, which all share.
BELIEFS: Any = gp.Belief(mean=0, variance=0, features=None, posterior=0)  # pyright: ignore
COMPONENTS: Any = RunningBelief(belief=BELIEFS, products=0, log_determinant=0, log_weights=None, unit=None)  # pyright: ignore


def _each(fn, running: RunningBelief, out_axes):
    """`fn` of a single prior's columns, or of each component's."""
    if running.log_weights is None:
        return fn(running)
    single = eqx.tree_at(lambda c: c.log_weights, running, None)
    answer = jax.vmap(fn, in_axes=(COMPONENTS,), out_axes=out_axes)(single)
    if not isinstance(answer, RunningBelief):
        return answer
    return eqx.tree_at(
        lambda c: c.log_weights, answer, running.log_weights, is_leaf=lambda leaf: leaf is None
    )
