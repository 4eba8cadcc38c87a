"""Gaussian priors over feature weights: kernels given by finitely many features.

| here            | paper                                                              |
|-----------------|--------------------------------------------------------------------|
| `Prior`         | a kernel k(x, x') = phi(x)^T C phi(x') with a mean function        |
| `full_prior`    | k_full = (1/p) sum_j k_j, the naive agent's kernel and k_hat_0     |
| `support_prior` | k_hat = (1/|J|) sum_{j in J} k_j for a set J of base kernels       |

f(x) = phi(x) . w with w ~ N(mean, covariance). A selection of kernels changes values and not shapes, so the
oracle, the naive agent and the learning agents share one compiled program.
"""

from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike, DType, check_finite, check_range, check_shape, fail, is_concrete
from jlibo.front_door import front_door
from jlibo.groups import validate_groups


@final
class Prior(eqx.Module):
    """Gaussian prior of the feature weights: w ~ N(mean, covariance).

    **Arguments:**

    - `mean`: mean of the weights, `[features]`.
    - `covariance`: covariance of the weights: its diagonal `[features]`, or a positive semi-definite matrix
      `[features, features]`.
    - `noise_std`: learned noise; if None, the policy's `noise_std` is used.

    **Raises:** `ValueError` for wrong shapes, for values that are NaN or infinite, for a covariance that is
    not symmetric positive semi-definite, and for a `noise_std` outside `jlibo.belief.prior.noise_limits`.
    Values are checked only if they are not traced.

    ```python
    import jax.numpy as jnp

    import jlibo

    prior = jlibo.Prior(mean=jnp.zeros(3), covariance=jnp.asarray([1.0, 0.5, 0.1]))
    agent = jlibo.FixedPrior(prior)
    ```
    """

    mean: Float[Array, " features"]
    covariance: Float[Array, " features"] | Float[Array, "features features"]
    noise_std: Float[Array, ""] | None

    @front_door
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
        """Return a matrix S with S S^T = covariance."""
        if self.covariance.ndim == 1:
            return jnp.diag(jnp.sqrt(self.covariance))
        return semidefinite_cholesky(self.covariance)

    @front_door
    def variance(self, features: Float[Array, "*points features"]) -> Float[Array, "*points"]:
        """Return k(x, x) at points given by their features."""
        if self.covariance.ndim == 1:
            return jnp.einsum("...f,f->...", features**2, self.covariance, precision=lax.Precision.HIGHEST)
        image = jnp.matmul(features, self.covariance, precision=lax.Precision.HIGHEST)
        return jnp.maximum((image * features).sum(-1), 0)


def largest_variance(covariance: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the largest variance of a single weight; `covariance` is a diagonal or a matrix."""
    return (covariance if covariance.ndim == 1 else jnp.diagonal(covariance)).max(initial=0)


def noise_limits(variance: Float[ArrayLike, ""], dtype: Any) -> tuple[Float[Array, ""] | np.ndarray, float]:
    """Return the smallest and largest `noise_std` for which posteriors in `dtype` are accurate.

    `variance` is the largest prior variance of f. The noise variance is added to it: below `eps * variance`
    the sum rounds to `variance`, and repeated observations of one point are no longer averaged. Noise whose
    square or inverse square is out of range is excluded too.
    """
    info = jnp.finfo(dtype)
    numpy_or_jax = np if is_concrete(variance) else jnp
    lower = numpy_or_jax.sqrt(numpy_or_jax.asarray(variance, dtype)) * float(info.eps) ** 0.5
    return numpy_or_jax.maximum(lower, float(info.tiny) ** 0.25).astype(dtype), 0.25 * float(info.max) ** 0.5


def check_noise(noise_std: Any, variance: Any, dtype: Any) -> None:
    """Check that `noise_std` is positive and within `noise_limits` for `dtype`."""
    check_shape("noise_std", noise_std, ())
    check_finite("noise_std", noise_std)
    check_range("noise_std", noise_std, above=0)
    if not (is_concrete(noise_std) and is_concrete(variance)):
        return
    lower, upper = (float(limit) for limit in noise_limits(np.asarray(variance), dtype))
    # The tolerance accepts a `noise_std` equal to the limit after rounding to float32.
    if not lower * (1 - 1e-6) <= float(noise_std) <= upper:
        name = jnp.dtype(dtype).name
        advice = "scale the rewards" if name == "float64" else "use float64, or scale the rewards"
        fail(
            "noise_std",
            f"from {lower:.3g} to {upper:.3g}, as {name} loses smaller noise beside a prior standard "
            f"deviation of {float(variance) ** 0.5:.3g}, and larger noise overflows ({advice})",
            float(noise_std),
        )


@final
class PriorMixture(eqx.Module):
    """A mixture of priors; made by `mixture`. The weights of a task come from one unknown component."""

    components: Prior
    """The priors, stacked along a leading axis of every leaf."""
    log_weights: Float[Array, " components"]
    """Logarithm of the probability of each component before any reward."""

    @property
    def num_components(self) -> int:
        return self.log_weights.shape[-1]


@front_door
def mixture(priors: Sequence[Prior], weights: Float[ArrayLike, " components"]) -> PriorMixture:
    """Return a mixture of priors with probabilities proportional to `weights`.

    **Arguments:**

    - `priors`: at least one. Either all covariances are diagonals or all are matrices, and either all priors
      have a `noise_std` or none has.
    - `weights`: non-negative, at least one positive; they need not sum to one.

    **Returns:** a `PriorMixture`.

    **Raises:** `ValueError` for an empty list, or weights that are negative, all zero or of another length.

    ```python
    import jlibo

    groups = jlibo.Cosine(num_features=10).groups
    narrow = jlibo.support_prior([True] * 3 + [False] * 7, groups)
    prior = jlibo.mixture([narrow, jlibo.full_prior(groups)], weights=[0.8, 0.2])
    ```
    """
    if not priors:
        fail("priors", "at least one", "none")
    check_shape("weights", weights, (len(priors),))
    check_range("weights", weights, at_least=0)
    if is_concrete(weights) and not np.any(weights):
        fail("weights", "above 0 for at least one prior", weights)
    components = jax.tree.map(lambda *leaves: jnp.stack(leaves), *priors)
    weights = jnp.asarray(weights, components.mean.dtype)
    return PriorMixture(components, jnp.log(weights / weights.sum()))


@front_door
def support_prior(
    support: Bool[ArrayLike, " groups"],
    groups: Sequence[int] | Int[np.ndarray | Array, " features"],
    dtype: DType | None = None,
    *,
    free_groups: Sequence[int] = (),
) -> Prior:
    """Return the prior of the average of the base kernels in `support`.

    **Arguments:**

    - `support`: booleans, one per base kernel. If none is selected, all base kernels are averaged.
    - `groups`: base kernel of each feature, as in `features.groups`.
    - `dtype`: precision; by default jax's default float.
    - `free_groups`: base kernels that are always in use, each with weight one beside the average of the
      others.

    **Returns:** a `Prior` with mean zero and a diagonal covariance.

    **Raises:** `ValueError` if `support` has a wrong shape or is not boolean, or `groups` is not valid.

    ```python
    import jlibo

    prior = jlibo.support_prior([True, False, True], groups=[0, 1, 2])
    print(prior.covariance)  # [0.5 0.  0.5]
    ```
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


@front_door
def full_prior(
    groups: Sequence[int] | Int[np.ndarray | Array, " features"],
    dtype: DType | None = None,
    *,
    free_groups: Sequence[int] = (),
) -> Prior:
    """Return the prior of the average of all base kernels, which uses no knowledge of past tasks.

    **Arguments:**

    - `groups`, `dtype`, `free_groups`: as for `support_prior`.

    **Returns:** a `Prior` with mean zero and a diagonal covariance.

    **Raises:** `ValueError` if `groups` is not valid.

    ```python
    import jlibo

    naive = jlibo.FixedPrior(jlibo.full_prior(jlibo.Cosine(num_features=20).groups))
    ```
    """
    groups = validate_groups("groups", groups)
    return support_prior(np.ones(max(groups) + 1, bool), groups, dtype, free_groups=free_groups)


@jax.jit
def semidefinite_cholesky(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """Return S with S S^T = `matrix`, for a positive semi-definite `matrix` that may be singular.

    Columns are eliminated one at a time with array operations. A singular matrix gives columns of zeros,
    where LAPACK gives NaN, and concurrent executions do not wait for a LAPACK call. The pivot is the largest
    remaining variance, so only round-off is dropped. S is therefore not triangular.
    """
    size = matrix.shape[0]
    floor = size * jnp.finfo(matrix.dtype).eps * jnp.maximum(jnp.diagonal(matrix).max(), 0)

    def eliminate(step, carry):
        rest, factor = carry
        i = jnp.argmax(jnp.diagonal(rest))
        pivot = rest[i, i]
        usable = pivot > floor
        column = jnp.where(usable, rest[:, i] / jnp.sqrt(jnp.where(usable, pivot, 1)), 0)
        # Set the eliminated row and column to exactly zero, so that no pivot is taken twice.
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
    """Return the same priors in one structure: with a matrix, a noise or components if any of them has it."""
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
            # Pad with components of probability zero. They come first, because the last component is the
            # one of an agent without past tasks (`Belief.wide`).
            part = part if is_batched else jax.tree.map(lambda leaf: leaf[None], part)
            weights = prior.log_weights if isinstance(prior, PriorMixture) else jnp.zeros(1, part.mean.dtype)
            absent = max(sizes) - size
            part = jax.tree.map(lambda leaf, absent=absent: _repeat_first(leaf, absent), part)
            part = PriorMixture(part, jnp.concatenate([jnp.full(absent, -jnp.inf, weights.dtype), weights]))
        answer.append(part)
    return answer


def _repeat_first(leaf: Array, times: int) -> Array:
    return jnp.concatenate([jnp.broadcast_to(leaf[:1], (times, *leaf.shape[1:])), leaf])
