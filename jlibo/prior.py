"""A Gaussian prior over feature weights: what a kernel is, once its features are known.

| here            | paper                                                              |
|-----------------|--------------------------------------------------------------------|
| `Prior`         | a kernel k(x, x') = phi(x)^T C phi(x') with a mean function        |
| `full_prior`    | k_full = (1/p) sum_j k_j, the naive agent's kernel and k_hat_0     |
| `support_prior` | k_hat = (1/|J|) sum_{j in J} k_j for a set J of base kernels       |

f(x) = phi(x) . w with w ~ N(mean, covariance). Selecting kernels changes numbers and never shapes, so the
agent that knows the truth, the naive one and the learning ones are one compiled program.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jlibo.checks import check_finite, check_range, check_shape, fail, is_concrete


class Prior(eqx.Module):
    """w ~ N(mean, covariance); the covariance is its diagonal [features] or a whole matrix."""

    mean: Float[Array, " features"]
    covariance: Float[Array, " features"] | Float[Array, "features features"]

    def __init__(self, mean: ArrayLike, covariance: ArrayLike):
        check_shape("mean", mean, ("features",))
        check_finite("mean", mean)
        num_features = np.shape(mean)[0]
        if np.shape(covariance) not in ((num_features,), (num_features, num_features)):
            fail(
                "covariance",
                f"its diagonal [{num_features}] or a matrix [{num_features}, {num_features}]",
                f"shape {list(np.shape(covariance))}",
            )
        check_finite("covariance", covariance)
        diagonal = covariance if np.ndim(covariance) == 1 else jnp.diagonal(jnp.asarray(covariance))
        check_range("covariance", diagonal, at_least=0)
        if np.ndim(covariance) == 2 and is_concrete(covariance):
            matrix = np.asarray(covariance)
            if not np.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6 * np.abs(matrix).max(initial=0)):
                fail("covariance", "a symmetric matrix", "one that is not")
        dtype = jnp.result_type(mean, covariance, float)
        self.mean = jnp.asarray(mean, dtype)
        self.covariance = jnp.asarray(covariance, dtype)

    @property
    def num_features(self) -> int:
        return self.mean.shape[-1]

    def factor(self) -> Float[Array, "features features"]:
        """A matrix S with S S^T = covariance."""
        if self.covariance.ndim == 1:
            return jnp.diag(jnp.sqrt(self.covariance))
        return semidefinite_cholesky(self.covariance)

    def variance(self, features: Float[Array, "*points features"]) -> Float[Array, "*points"]:
        """k(x, x) at points given by their features."""
        if self.covariance.ndim == 1:
            return jnp.einsum("...f,f->...", features**2, self.covariance, precision=lax.Precision.HIGHEST)
        image = jnp.matmul(features, self.covariance, precision=lax.Precision.HIGHEST)
        return jnp.maximum((image * features).sum(-1), 0)


def support_prior(
    support: Bool[ArrayLike, " groups"], groups: tuple[int, ...] | Int[ArrayLike, " features"]
) -> Prior:
    """The average of the base kernels in `support`; of all of them when `support` is empty.

    `groups[f]` is the base kernel of feature f, as in `features.groups`.
    """
    group_of = np.asarray(groups)
    check_shape("support", support, (int(group_of.max()) + 1,))
    chosen = jnp.asarray(support)
    if chosen.dtype != bool:
        fail("support", "an array of booleans", f"dtype {chosen.dtype}")
    chosen = jnp.where(chosen.any(), chosen, True)
    weights = chosen / chosen.sum()
    return Prior(jnp.zeros(len(group_of), weights.dtype), weights[group_of])


def full_prior(groups: tuple[int, ...] | Int[ArrayLike, " features"]) -> Prior:
    """The average of all base kernels: what one uses who knows nothing yet."""
    return support_prior(np.ones(int(np.max(np.asarray(groups))) + 1, bool), groups)


def semidefinite_cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """S with S S^T = `matrix`, for a positive semi-definite `matrix` that may be singular.

    One column at a time in plain array operations: a direction without variance gives a column of zeros
    where LAPACK gives NaN, and there is no LAPACK call for concurrent executions to wait for.
    """
    size = matrix.shape[0]
    floor = 10 * size * jnp.finfo(matrix.dtype).eps * jnp.maximum(jnp.diagonal(matrix).max(), 0)

    def eliminate(i, carry):
        rest, factor = carry
        pivot = rest[i, i]
        usable = pivot > floor
        column = jnp.where(usable, rest[:, i] / jnp.sqrt(jnp.where(usable, pivot, 1)), 0)
        column = jnp.where(jnp.arange(size) >= i, column, 0)
        return rest - jnp.outer(column, column), factor.at[:, i].set(column)

    return lax.fori_loop(0, size, eliminate, (matrix, jnp.zeros_like(matrix)))[1]
