"""A hierarchical Gaussian model of tasks, fitted by EM, which learns from past tasks where rewards are high.

    weights of task s   w_s ~ N(mean, covariance)              the same mean and covariance for all tasks
    its rewards         y_s = centre_s + scale_s (Phi_s w_s + noise),            noise ~ N(0, noise_std^2)

| here               | meaning                                                                         |
|--------------------|---------------------------------------------------------------------------------|
| `fit_hierarchy`    | maximum a posteriori mean, covariance and noise, by a few closed-form EM steps  |
| `covariance_tasks` | strength of the inverse-Wishart prior on the covariance, in tasks like `wide`   |
| `mean_tasks`       | strength of the Gaussian prior on the mean, in tasks of mean zero               |
| `log_evidence`     | log likelihood of every task under a prior                                      |

The units of a task, centre_s and scale_s, are estimated together with the rest. A task that was only tried
near its optimum has a high mean of rewards; its units become those in which it agrees with the other tasks.
The estimates start from the units in which the task is stored: a deviation of 1 counts as `UNIT_REWARDS`
rewards.

The E-step computes the exact posterior of every task's weights, for all tasks at once. A task has at most as
many rows as there are features, and its rows give a system of as many equations. No LAPACK is called, since a
call inside a scan can deadlock. Features without variance in the wide prior are not used.
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief.moments import Units, likeliest_units
from jlibo.belief.prior import Prior
from jlibo.meta.past import PastTasks

HIGHEST = lax.Precision.HIGHEST
NOISE_ROWS = 10.0
"""Strength of the prior on the noise, in rows with the initially assumed noise."""
UNIT_REWARDS = 3.0
"""Strength of the prior on a task's scale, in rewards."""


def fit_hierarchy(
    past: PastTasks,
    start: Prior,
    wide: Prior,
    *,
    num_steps: int,
    covariance_tasks: Float[Array, ""],
    mean_tasks: Float[Array, ""],
    noise_std: Float[Array, ""],
) -> Prior:
    """Return the prior after `num_steps` EM steps from `start`, with a mean, a covariance and a noise.

    **Arguments:**

    - `past`: finished tasks.
    - `start`: initial prior; it must have a `noise_std`.
    - `wide`: prior without any past task, diagonal and with mean zero.
    - `num_steps`: number of EM steps.
    - `covariance_tasks`, `mean_tasks`: strength of the priors on covariance and mean; see the module.
    - `noise_std`: noise assumed before any task.

    **Returns:** a `Prior` with a `noise_std`. Its covariance includes the uncertainty of the mean.
    """
    wide_matrix = jnp.diag(wide.covariance)
    done = past.is_done
    num_tasks = done.sum()
    num_rows = (past.num_observations * done).sum()

    def step(_, prior: Prior) -> Prior:
        fit = _explain(past, prior)
        units = jax.vmap(likeliest_units, in_axes=(0, 0, None, None))(
            fit.products, past.num_observations, UNIT_REWARDS, 1.0
        )
        residual, lost = _in_units(past, fit, units)
        # K^-1 (z - Phi mean) = F^T e, with the whitened residual e = F (z - Phi mean) and F^T F = K^-1.
        change = jnp.einsum("trf,tr->tf", fit.images, residual, precision=HIGHEST)
        mean = prior.mean * num_tasks + jnp.matmul(done, change, precision=HIGHEST)
        mean = mean / (num_tasks + mean_tasks)
        away = (prior.mean + change - mean) * jnp.sqrt(done)[:, None]
        # Posterior covariances: that of the prior minus the images' products, summed over tasks.
        images = (fit.images * jnp.sqrt(done)[:, None, None]).reshape(-1, len(mean))
        covariance = (
            covariance_tasks * wide_matrix
            + num_tasks * prior.covariance
            - jnp.matmul(images.T, images, precision=HIGHEST)
            + jnp.matmul(away.T, away, precision=HIGHEST)
            + mean_tasks * jnp.outer(mean, mean)
        )
        covariance = (covariance + covariance.T) / (2 * (covariance_tasks + num_tasks))
        # With K = Phi C Phi^T + v I, the residual z - Phi w is v K^-1 (z - Phi mean), and the covariance of
        # Phi w given the rewards is v I - v^2 K^-1.
        variance = jnp.square(prior.noise_std)  # pyright: ignore[reportArgumentType]
        unexplained = jnp.einsum("tkr,tk->tr", fit.whitening, residual, precision=HIGHEST)
        doubt = variance - variance**2 * (fit.whitening**2).sum(1)
        squares = (variance**2 * unexplained**2 + jnp.maximum(doubt, 0)).sum(1) + lost
        noise_variance = ((squares * done).sum() + NOISE_ROWS * noise_std**2) / (num_rows + NOISE_ROWS)
        return Prior(mean, covariance, jnp.sqrt(noise_variance))

    fitted = lax.fori_loop(0, num_steps, step, start)
    return eqx.tree_at(
        lambda prior: prior.covariance, fitted, fitted.covariance * (1 + 1 / (num_tasks + mean_tasks))
    )


def log_evidence(past: PastTasks, prior: Prior) -> Float[Array, " tasks"]:
    """Return the log likelihood of each task's rewards, in the units in which they are stored.

    The prior needs a `noise_std`. The value is that of the product of predictive densities of each reward
    given the ones before it. It is zero for tasks that are not done.
    """
    fit = _explain(past, prior)
    zero = jnp.zeros_like(past.is_done)
    residual, lost = _in_units(past, fit, Units(zero, zero + 1))
    variance = jnp.square(prior.noise_std)  # pyright: ignore[reportArgumentType]
    num_lost = past.num_observations - (past.features != 0).any(2).sum(1)
    fits = (residual**2).sum(1) + lost / variance
    # Rows of padding have the variance of the noise in K, but are no observations.
    padding = (past.features.shape[1] + num_lost - past.num_observations) * jnp.log(variance)
    log_determinant = fit.log_determinant + num_lost * jnp.log(variance) - padding
    return -0.5 * past.is_done * (fits + log_determinant + past.num_observations * jnp.log(2 * jnp.pi))


@final
class _Fit(NamedTuple):
    """The rows of every task under a prior, with K the covariance of its noisy rows and F^T F = K^-1."""

    whitening: Float[Array, "tasks rows rows"]
    """F, lower triangular."""
    images: Float[Array, "tasks rows features"]
    """F Phi C, with C the prior covariance of the weights."""
    columns: Float[Array, "tasks 3 rows"]
    """F v for the columns v = (-Phi mean, targets, ones)."""
    products: Float[Array, "tasks 3 3"]
    """v^T K^-1 v, the part that compression removed included."""
    log_determinant: Float[Array, " tasks"]
    """Of K."""


def _explain(past: PastTasks, prior: Prior) -> _Fit:
    rows = past.features
    variance = jnp.square(prior.noise_std)  # pyright: ignore[reportArgumentType]
    if prior.covariance.ndim == 1:
        image = rows * prior.covariance
    else:
        image = jnp.einsum("trf,fg->trg", rows, prior.covariance, precision=HIGHEST)
    noisy = jnp.einsum("trf,tsf->trs", image, rows, precision=HIGHEST)
    noisy = noisy + variance * jnp.eye(rows.shape[1], dtype=rows.dtype)
    whitening = jax.vmap(_inverse_cholesky)(noisy)
    means = jnp.einsum("trf,f->tr", rows, prior.mean, precision=HIGHEST)
    columns = jnp.stack([-means, past.targets, past.constants], axis=1)
    columns = jnp.einsum("tkr,tcr->tck", whitening, columns, precision=HIGHEST)
    products = jnp.einsum("tck,tdk->tcd", columns, columns, precision=HIGHEST)
    products = products.at[:, 1:, 1:].add(past.lost_products / variance)
    images = jnp.einsum("tkr,trf->tkf", whitening, image, precision=HIGHEST)
    log_determinant = -2 * jnp.log(jnp.diagonal(whitening, axis1=1, axis2=2)).sum(1)
    return _Fit(whitening, images, columns, products, log_determinant)


def _in_units(past: PastTasks, fit: _Fit, units: Units) -> tuple[Float[Array, "tasks rows"], Array]:
    """Return each task's whitened residual in the given units, and the squares that compression removed."""
    scale = jnp.where(units.scale > 0, units.scale, 1)
    combine = jnp.stack([jnp.ones_like(scale), 1 / scale, -units.centre / scale], axis=1)
    residual = jnp.einsum("tc,tck->tk", combine, fit.columns, precision=HIGHEST)
    lost = jnp.einsum("tc,tcd,td->t", combine[:, 1:], past.lost_products, combine[:, 1:], precision=HIGHEST)
    return residual, jnp.maximum(lost, 0)


def _inverse_cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """Return the inverse of the Cholesky factor of a positive definite matrix, without LAPACK."""
    size = matrix.shape[0]
    places = jnp.arange(size)

    def eliminate(i, joined):
        row = joined[i] / jnp.sqrt(joined[i, i])
        below = jnp.where(places > i, joined[:, i], 0) / jnp.sqrt(joined[i, i])
        return (joined - jnp.outer(below, row)).at[i].set(row)

    identity = jnp.eye(size, dtype=matrix.dtype)
    joined = lax.fori_loop(0, size, eliminate, jnp.concatenate([matrix, identity], axis=1))
    return joined[:, size:]
