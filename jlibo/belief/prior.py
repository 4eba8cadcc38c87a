"""A Gaussian prior over feature weights: what a kernel is, once its features are known.

| here            | paper                                                              |
|-----------------|--------------------------------------------------------------------|
| `Prior`         | a kernel k(x, x') = phi(x)^T C phi(x') with a mean function        |
| `full_prior`    | k_full = (1/p) sum_j k_j, the naive agent's kernel and k_hat_0     |
| `support_prior` | k_hat = (1/|J|) sum_{j in J} k_j for a set J of base kernels       |

f(x) = phi(x) . w with w ~ N(mean, covariance). Selecting kernels changes numbers and never shapes, so the
agent that knows the truth, the naive one and the learning ones are one compiled program.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike, check_finite, check_range, check_shape, fail, is_concrete
from jlibo.groups import validate_groups


class Prior(eqx.Module):
    """w ~ N(mean, covariance); the covariance is its diagonal [features] or a whole matrix.

    `noise_std`: learned noise; if None, the policy's `noise_std` is used.
    """

    mean: Float[Array, " features"]
    covariance: Float[Array, " features"] | Float[Array, "features features"]
    noise_std: Float[Array, ""] | None

    def __init__(self, mean: ArrayLike, covariance: ArrayLike, noise_std: ArrayLike | None = None):
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
        if np.ndim(covariance) == 1:
            check_range("covariance", covariance, at_least=0)
        elif is_concrete(covariance):
            _check_semidefinite("covariance", np.asarray(covariance))
        mean, covariance = jnp.asarray(mean), jnp.asarray(covariance)
        dtype = jnp.result_type(mean, covariance, float)
        self.mean = mean.astype(dtype)
        self.covariance = covariance.astype(dtype)
        if noise_std is not None:
            check_noise(noise_std, largest_variance(self.covariance), dtype)
            noise_std = jnp.asarray(noise_std, dtype)
        self.noise_std = noise_std

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


def largest_variance(covariance: Float[Array, "..."]) -> Float[Array, ""]:
    """Largest variance of a single weight; `covariance` is a diagonal or a matrix."""
    return (covariance if covariance.ndim == 1 else jnp.diagonal(covariance)).max(initial=0)


def noise_limits(variance: Float[ArrayLike, ""], dtype: Any) -> tuple[Float[Array, ""] | np.ndarray, float]:
    """Smallest and largest `noise_std` for which posteriors in `dtype` are accurate.

    `variance` is the prior variance of f, at the point where it is largest. The noise variance is added to
    it: below `eps * variance` the sum rounds to `variance`, and observations of one point are no longer
    averaged. Noise whose square or inverse square is out of range is excluded too.
    """
    info = jnp.finfo(dtype)
    numpy_or_jax = np if is_concrete(variance) else jnp
    lower = numpy_or_jax.sqrt(numpy_or_jax.asarray(variance, dtype)) * float(info.eps) ** 0.5
    return numpy_or_jax.maximum(lower, float(info.tiny) ** 0.25).astype(dtype), 0.25 * float(info.max) ** 0.5


def check_noise(noise_std: Any, variance: Any, dtype: Any) -> None:
    """Check that `noise_std` is a number that posteriors in `dtype` can hold; see `noise_limits`."""
    check_shape("noise_std", noise_std, ())
    check_finite("noise_std", noise_std)
    check_range("noise_std", noise_std, above=0)
    if not (is_concrete(noise_std) and is_concrete(variance)):
        return
    lower, upper = (float(limit) for limit in noise_limits(np.asarray(variance), dtype))
    # A float64 limit rounded to float32 must not refuse the limit itself.
    if not lower * (1 - 1e-6) <= float(noise_std) <= upper:
        name = jnp.dtype(dtype).name
        advice = "scale the rewards" if name == "float64" else "use float64, or scale the rewards"
        fail(
            "noise_std",
            f"from {lower:.3g} to {upper:.3g}, as {name} loses smaller noise beside a prior standard "
            f"deviation of {float(variance) ** 0.5:.3g}, and larger noise overflows ({advice})",
            float(noise_std),
        )


class PriorMixture(eqx.Module):
    """Several priors, one of which is right: `log_weights` says how likely each is before any reward.

    The leading axis of the leaves of `components` counts them.
    """

    components: Prior
    log_weights: Float[Array, " components"]

    @property
    def num_components(self) -> int:
        return self.log_weights.shape[-1]


def mixture(priors: Sequence[Prior], weights: Float[ArrayLike, " components"]) -> PriorMixture:
    """The priors as one, likely in proportion to `weights`. Either all are diagonal or none, and the same
    holds for a noise of their own."""
    if not priors:
        fail("priors", "at least one", "none")
    check_shape("weights", weights, (len(priors),))
    check_range("weights", weights, at_least=0)
    if is_concrete(weights) and not np.any(weights):
        fail("weights", "above 0 for at least one prior", weights)
    components = jax.tree.map(lambda *leaves: jnp.stack(leaves), *priors)
    weights = jnp.asarray(weights, components.mean.dtype)
    return PriorMixture(components, jnp.log(weights / weights.sum()))


def support_prior(
    support: Bool[ArrayLike, " groups"],
    groups: Sequence[int] | Int[np.ndarray | Array, " features"],
    dtype: Any = None,
    *,
    free_groups: Sequence[int] = (),
) -> Prior:
    """The average of the base kernels in `support`; of all of them when `support` is empty.

    `groups[f]` is the base kernel of feature f, as in `features.groups`; `dtype` is jax's default float.
    Kernels in `free_groups` are always in use, each with weight one beside the average of the others.
    """
    group_of = np.asarray(validate_groups("groups", groups))
    num_groups = int(group_of.max()) + 1
    check_shape("support", support, (num_groups,))
    chosen = jnp.asarray(support)
    if chosen.dtype != bool:
        fail("support", "an array of booleans", f"dtype {chosen.dtype}")
    is_free = np.isin(np.arange(num_groups), np.asarray(free_groups, int))
    chosen = chosen & ~is_free
    chosen = jnp.where(chosen.any(), chosen, ~is_free)
    dtype = jnp.result_type(float) if dtype is None else dtype
    weights = chosen / jnp.maximum(chosen.sum(), 1).astype(dtype) + is_free.astype(dtype)
    return Prior(jnp.zeros(len(group_of), weights.dtype), weights[group_of])


def full_prior(
    groups: Sequence[int] | Int[np.ndarray | Array, " features"],
    dtype: Any = None,
    *,
    free_groups: Sequence[int] = (),
) -> Prior:
    """The average of all base kernels: what one uses who knows nothing yet."""
    groups = validate_groups("groups", groups)
    return support_prior(np.ones(max(groups) + 1, bool), groups, dtype, free_groups=free_groups)


@jax.jit
def semidefinite_cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """S with S S^T = `matrix`, for a positive semi-definite `matrix` that may be singular.

    One column at a time in plain array operations: what is left without variance gives columns of zeros
    where LAPACK gives NaN, and there is no LAPACK call for concurrent executions to wait for. The largest
    variance left goes first, so all that is dropped in the end is round-off. S is therefore not triangular.
    """
    size = matrix.shape[0]
    floor = size * jnp.finfo(matrix.dtype).eps * jnp.maximum(jnp.diagonal(matrix).max(), 0)

    def eliminate(step, carry):
        rest, factor = carry
        i = jnp.argmax(jnp.diagonal(rest))
        pivot = rest[i, i]
        usable = pivot > floor
        column = jnp.where(usable, rest[:, i] / jnp.sqrt(jnp.where(usable, pivot, 1)), 0)
        # Exactly zero where it is eliminated, so that no direction is taken twice.
        rest = (rest - jnp.outer(column, column)).at[i].set(0).at[:, i].set(0)
        return rest, factor.at[:, step].set(column)

    return lax.fori_loop(0, size, eliminate, (matrix, jnp.zeros_like(matrix)))[1]


def _check_semidefinite(argument: str, matrix: np.ndarray) -> None:
    scale = np.abs(matrix).max(initial=0)
    if not np.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6 * scale):
        fail(argument, "a symmetric matrix", "one that is not")
    if matrix.size == 0 or np.array_equal(matrix, np.diag(np.diagonal(matrix))):
        least = np.diagonal(matrix).min(initial=0)
    else:
        least = np.linalg.eigvalsh(matrix)[0]
    precision = jnp.finfo(jnp.result_type(matrix.dtype, jnp.float32)).eps
    if least < -np.sqrt(float(precision)) * scale:
        fail(argument, "positive semi-definite", f"an eigenvalue of {least:.3g}")


def in_one_shape(
    priors: list[Prior | PriorMixture], noise_std: Float[Array, ""]
) -> list[Prior] | list[PriorMixture]:
    """The same priors in one shape: whatever one of them needs, a matrix, a noise, components, all get."""
    parts = [prior.components if isinstance(prior, PriorMixture) else prior for prior in priors]
    batched = [isinstance(prior, PriorMixture) for prior in priors]
    needs_matrix = len({part.mean.ndim < part.covariance.ndim for part in parts}) > 1
    needs_noise = any(part.noise_std is not None for part in parts)
    sizes = [prior.num_components if isinstance(prior, PriorMixture) else 1 for prior in priors]
    answer = []
    for prior, part, is_batched, size in zip(priors, parts, batched, sizes, strict=True):
        if needs_matrix and part.covariance.ndim == part.mean.ndim:
            matrix = jnp.eye(part.num_features, dtype=part.mean.dtype) * part.covariance[..., None, :]
            part = eqx.tree_at(lambda p: p.covariance, part, matrix)
        if needs_noise and part.noise_std is None:
            noise = jnp.broadcast_to(jnp.asarray(noise_std, part.mean.dtype), part.mean.shape[:-1])
            part = eqx.tree_at(lambda p: p.noise_std, part, noise, is_leaf=lambda leaf: leaf is None)
        if any(batched):
            # Components that are not there: copies of the last, which gives the units, that are impossible.
            part = part if is_batched else jax.tree.map(lambda leaf: leaf[None], part)
            weights = prior.log_weights if isinstance(prior, PriorMixture) else jnp.zeros(1, part.mean.dtype)
            absent = max(sizes) - size
            part = jax.tree.map(lambda leaf, absent=absent: _repeat_last(leaf, absent), part)
            part = PriorMixture(part, jnp.concatenate([weights, jnp.full(absent, -jnp.inf, weights.dtype)]))
        answer.append(part)
    return answer


def _repeat_last(leaf: Array, times: int) -> Array:
    return jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (times, *leaf.shape[1:]))])
