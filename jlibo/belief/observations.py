"""The belief after many observations that are known at once: finished tasks, and the trials of a tuner.

`after` equals `start` and one `observe` per observation (`jlibo.belief.belief`), in matrix products over all
rows (`jlibo.belief.whitening`).
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.belief.belief import COMPONENTS, RunningBelief, first_column
from jlibo.belief.moments import divisor, unit_of
from jlibo.belief.posterior import Belief, Posterior, held_noise
from jlibo.belief.prior import Prior, PriorMixture, semidefinite_cholesky
from jlibo.belief.whitening import whiten
from jlibo.checks import ArrayLike


@final
class Observations(eqx.Module):
    """Observations of one task, padded. A row is told (it has a reward), pending, or padding."""

    features: Float[Array, "rows features"]
    rewards: Float[Array, " rows"]
    told: Bool[Array, " rows"]
    pending: Bool[Array, " rows"]
    constants: Float[Array, " rows"]
    """The targets of the third column: ones, or their transform for compressed rows; see `complete`."""


def after(
    prior: Prior | PriorMixture,
    observations: Observations,
    points: Float[Array, "points features"],
    noise_std: Float[ArrayLike, ""],
) -> RunningBelief:
    """Return the belief at `points` after all observations, with three columns.

    It equals `start`, `observe` of the told rows and `observe_pending` of the pending ones, up to round-off.
    The cost is that of matrix products: O(rows * features^2 + points * features^2).
    """
    # Pending rows come last. Their rewards then have no influence on the whitened rows before them.
    order = jnp.argsort(observations.pending, stable=True)
    seen = jax.tree.map(lambda leaf: leaf[order], observations)
    rewards = jnp.where(seen.told, seen.rewards, 0)
    unit = unit_of(jnp.abs(rewards).max(initial=0))
    rows = jnp.where((seen.told | seen.pending)[:, None], seen.features, 0)
    targets = jnp.stack([jnp.zeros_like(rewards), rewards / divisor(unit), seen.constants])
    scored = jnp.where(seen.told, targets, -jnp.inf)
    best = scored.max(1, initial=-jnp.inf)
    is_later = jnp.arange(len(rewards)) > jnp.argmax(scored, axis=1)[:, None]
    num_since_best = (is_later & seen.told).sum(1).astype(jnp.int32)

    def after_one(one: Prior) -> RunningBelief:
        dtype = one.mean.dtype
        variance = one.variance(points)
        noise = jnp.asarray(noise_std if one.noise_std is None else one.noise_std, dtype)
        noise = held_noise(noise, variance.max(initial=0))
        first = first_column(one.mean, 3)
        columns = jnp.where(seen.told, targets - _product(first, rows.T), 0)
        fit = whiten(one, noise, rows, columns)
        residual = jnp.where(seen.told, fit.columns, 0)
        mean = first + _product(residual, fit.images)
        variance = variance - (_product(points, fit.images.T) ** 2).sum(-1)
        log_variance = -2 * jnp.log(jnp.diagonal(fit.whitening))
        gain = jnp.where(seen.told | seen.pending, log_variance - 2 * jnp.log(noise), 0)
        covariance = one.covariance if one.covariance.ndim == 2 else jnp.diag(one.covariance)
        posterior = Posterior(
            mean=mean,
            # Only policies that draw functions use the factor. Otherwise the compiler removes it.
            factor=semidefinite_cholesky(covariance - _product(fit.images.T, fit.images)),
            noise_std=noise,
            log_marginal_likelihood=jnp.zeros(3, dtype),
            information_gain=0.5 * gain.sum(),
            best_reward=best,
            num_observations=seen.told.sum().astype(jnp.int32),
            num_since_best=num_since_best,
        )
        belief = Belief(_product(mean, points.T), jnp.maximum(variance, 0), points, posterior)
        log_determinant = jnp.where(seen.told, log_variance, 0).sum()
        return RunningBelief(belief, _product(residual, residual.T), log_determinant, None, unit)

    if isinstance(prior, Prior):
        return after_one(prior)
    running = jax.vmap(after_one, out_axes=COMPONENTS)(prior.components)
    return eqx.tree_at(lambda c: c.log_weights, running, prior.log_weights, is_leaf=lambda leaf: leaf is None)


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
