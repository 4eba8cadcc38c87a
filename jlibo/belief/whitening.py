"""Rows of observations whitened by their prior covariance, as matrix products over all rows at once.

With K = Phi C Phi^T + v I the covariance of noisy rewards at the rows Phi, and W the inverse of its Cholesky
factor, W^T W = K^-1. The posterior of the weights, the likelihood and the units of the rewards all follow
from W Phi C and from W y:

| quantity                  | formula                           |
|---------------------------|-----------------------------------|
| posterior mean            | m + (W Phi C)^T W (y - Phi m)     |
| posterior covariance      | C - (W Phi C)^T (W Phi C)         |
| y^T K^-1 z                | (W y)^T (W z)                     |
| log det K                 | -2 sum log diag W                 |

This is for many observations that are known at once: finished tasks, and the trials of a tuner. A simulated
task, which gets one observation at a time, uses the rank-one updates of `jlibo.belief.posterior`.

No LAPACK is called: a call inside a scan can deadlock when many executions run at once.
"""

from typing import NamedTuple, final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief.prior import Prior

HIGHEST = lax.Precision.HIGHEST
BLOCK = 16
"""Rows that are eliminated at once; the rest of an elimination is matrix products."""


@final
class Whitened(NamedTuple):
    """Rows whitened by a prior."""

    whitening: Float[Array, "rows rows"]
    """W, lower triangular."""
    images: Float[Array, "rows features"]
    """W Phi C."""
    columns: Float[Array, "columns rows"]
    """W v for the columns v."""


def whiten(
    prior: Prior,
    noise_std: Float[Array, ""],
    rows: Float[Array, "rows features"],
    columns: Float[Array, "columns rows"],
) -> Whitened:
    """Return the rows and columns whitened by the prior.

    **Arguments:**

    - `prior`: prior of the weights; its own noise is not used.
    - `noise_std`: standard deviation of the noise.
    - `rows`: features of the observations; zeros for padding, whose covariance is that of the noise.
    - `columns`: vectors over the rows, zero for padding.
    """
    if prior.covariance.ndim == 1:
        image = rows * prior.covariance
    else:
        image = jnp.matmul(rows, prior.covariance, precision=HIGHEST)
    noisy = jnp.matmul(image, rows.T, precision=HIGHEST) + noise_std**2 * jnp.eye(len(rows), dtype=rows.dtype)
    whitening = inverse_cholesky(noisy)
    return Whitened(
        whitening,
        jnp.matmul(whitening, image, precision=HIGHEST),
        jnp.matmul(columns, whitening.T, precision=HIGHEST),
    )


def inverse_cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """Return the inverse of the Cholesky factor of a positive definite matrix, in blocks of rows."""
    size = matrix.shape[0]
    if size <= BLOCK:
        return _inverse_cholesky_of_block(matrix)
    padded = -(-size // BLOCK) * BLOCK
    eye = jnp.eye(padded, dtype=matrix.dtype)
    places = jnp.arange(padded)
    square = eye.at[:size, :size].set(matrix)

    def eliminate(block, joined):
        first = block * BLOCK
        above = lax.dynamic_slice(joined, (first, 0), (BLOCK, 2 * padded))
        left = lax.dynamic_slice(joined, (0, first), (padded, BLOCK))
        diagonal = lax.dynamic_slice(left, (first, 0), (BLOCK, BLOCK))
        whitening = _inverse_cholesky_of_block(diagonal)
        above = jnp.matmul(whitening, above, precision=HIGHEST)
        left = jnp.matmul(left, whitening.T, precision=HIGHEST)
        left = jnp.where((places >= first + BLOCK)[:, None], left, 0)
        joined = joined - jnp.matmul(left, above, precision=HIGHEST)
        return lax.dynamic_update_slice(joined, above, (first, 0))

    joined = lax.fori_loop(0, padded // BLOCK, eliminate, jnp.concatenate([square, eye], axis=1))
    return joined[:size, padded : padded + size]


def _inverse_cholesky_of_block(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    size = matrix.shape[0]
    places = jnp.arange(size)

    def eliminate(i, joined):
        row = joined[i] / jnp.sqrt(joined[i, i])
        below = jnp.where(places > i, joined[:, i], 0) / jnp.sqrt(joined[i, i])
        return (joined - jnp.outer(below, row)).at[i].set(row)

    joined = jnp.concatenate([matrix, jnp.eye(size, dtype=matrix.dtype)], axis=1)
    return lax.fori_loop(0, size, eliminate, joined)[:, size:]
