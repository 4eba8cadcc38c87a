"""Gaussian beliefs as a mean and a factor, conditioned on sufficient statistics.

theta = mean + F z with standard normal z. The factor F may have columns of zeros, so that sparse, low-rank
and full covariances and point estimates (F = 0) have the same shape. With G = V / sigma^2 and
b = c / sigma^2,

    P = I + F^T G F,   mean' = mean + F P^-1 F^T (b - G mean),   F' F'^T = F P^-1 F^T .

P is never smaller than the identity, and no covariance is inverted.

| here           | meaning                                                              |
|----------------|----------------------------------------------------------------------|
| `condition`    | the posterior                                                        |
| `log_marginal` | log N(y; X mean, X F F^T X^T + sigma^2 I), from the statistics       |
| `slope`        | derivatives of `log_marginal` with respect to mean and covariance    |

No LAPACK is called: a call inside a scan can deadlock when many executions run at once.
"""

from functools import partial
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.belief.prior import Prior, semidefinite_cholesky
from jlibo.belief.whitening import inverse_cholesky
from jlibo.checks import check_shape
from jlibo.front_door import front_door

HIGHEST = lax.Precision.HIGHEST


@final
class Gaussian(eqx.Module):
    """Gaussian belief about the weights: theta = mean + factor z, with standard normal z.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian

    belief = Gaussian(mean=jnp.zeros(3), factor=jnp.diag(jnp.asarray([1.0, 0.5, 0.0])))
    print(belief.covariance)
    ```
    """

    mean: Float[Array, "*tasks features"]
    factor: Float[Array, "*tasks features features"]

    @property
    def covariance(self) -> Float[Array, "*tasks features features"]:
        """The covariance, factor factor^T."""
        return jnp.einsum("...fk,...gk->...fg", self.factor, self.factor, precision=HIGHEST)

    @staticmethod
    def of_prior(prior: Prior) -> "Gaussian":
        """Return a `jlibo.Prior` as mean and factor."""
        return Gaussian(prior.mean, prior.factor())

    def as_prior(self) -> Prior:
        """Return the belief as a `jlibo.Prior` with a matrix as its covariance."""
        return Prior(self.mean, self.covariance)


@final
class _Fit(NamedTuple):
    """What all functions of a belief and of statistics need."""

    noise_variance: Float[Array, ""]
    """sigma^2, with the round-off; see `resolved_noise`."""
    whitening: Float[Array, "columns columns"]
    """W, lower triangular, with W^T W = P^-1."""
    image: Float[Array, "features columns"]
    """F W^T."""
    residual: Float[Array, " features"]
    """b - G mean."""


def _fit(belief: Gaussian, gram: Array, moment: Array, noise_variance: Array) -> _Fit:
    inner = dot(dot(belief.factor.T, gram), belief.factor)
    noise_variance = resolved_noise(inner, noise_variance, dot(belief.mean, dot(gram, belief.mean)))
    whitening = inverse_cholesky(jnp.eye(len(inner), dtype=inner.dtype) + inner / noise_variance)
    residual = (moment - dot(gram, belief.mean)) / noise_variance
    return _Fit(noise_variance, whitening, dot(belief.factor, whitening.T), residual)


def resolved_noise(
    inner: Float[Array, "columns columns"],
    noise_variance: Float[Array, ""],
    square: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:
    """Return the noise variance, or that of the round-off of the sums over observations if it is larger.

    The posterior is a quotient of sums of squares and the noise variance. With a signal of ten thousand times
    the noise, which is an accurate measurement, single precision does not resolve it: the posterior of what
    the observations say little about would be round-off.

    **Arguments:**

    - `inner`: F^T V F, whose diagonal has the sums of squares that the prior expects.
    - `noise_variance`: sigma^2.
    - `square`: mean^T V mean, the sum of squares of the rewards that the prior mean predicts.
    """
    expected = lax.stop_gradient(jnp.diagonal(inner).max(initial=0))
    square = lax.stop_gradient(jnp.maximum(expected, square))
    round_off = max(10, len(inner)) * jnp.finfo(inner.dtype).eps
    return jnp.maximum(noise_variance, round_off * jnp.sqrt(jnp.maximum(expected * square, 0)))


@front_door
def condition(
    belief: Gaussian,
    gram: Float[Array, "features features"],
    moment: Float[Array, " features"],
    noise_variance: Float[Array, ""],
) -> Gaussian:
    """Return the posterior of one task, given its statistics.

    **Arguments:**

    - `belief`: the prior of theta.
    - `gram`, `moment`: sum of x x^T and sum of x y over the observations.
    - `noise_variance`: sigma^2.

    **Raises:** `ValueError` for wrong shapes.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, condition

    posterior = condition(Gaussian(jnp.zeros(2), jnp.eye(2)), jnp.eye(2), jnp.ones(2), 1.0)
    print(posterior.mean)  # [0.5 0.5]
    ```
    """
    num_features = belief.mean.shape[-1]
    check_shape("gram", gram, (num_features, num_features))
    check_shape("moment", moment, (num_features,))
    fit = _fit(belief, jnp.asarray(gram), jnp.asarray(moment), jnp.asarray(noise_variance))
    change = dot(fit.image, dot(fit.image.T, fit.residual))
    return Gaussian(belief.mean + change, fit.image)


@front_door
def log_marginal(
    belief: Gaussian, stats: TaskStatistics, noise_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the log density of the rewards of one task, log N(y; X mean, X F F^T X^T + sigma^2 I).

    **Arguments:**

    - `belief`: the prior of theta.
    - `stats`: statistics of one task, without an axis of tasks.
    - `noise_variance`: sigma^2.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, log_marginal, statistics_of

    stats = statistics_of(jnp.ones((1, 2)), jnp.zeros(1))
    print(log_marginal(Gaussian(jnp.zeros(2), jnp.eye(2)), stats, 1.0))  # -1.468
    ```
    """
    fit = _fit(belief, stats.gram, stats.moment, jnp.asarray(noise_variance))
    squares = stats.squares - dot(belief.mean, 2 * stats.moment - dot(stats.gram, belief.mean))
    explained = dot(fit.image.T, fit.residual)
    log_det = -2 * jnp.log(jnp.diagonal(fit.whitening)).sum()
    constant = stats.count * jnp.log(2 * jnp.pi * fit.noise_variance)
    return -0.5 * (constant + log_det + squares / fit.noise_variance - dot(explained, explained))


@final
class Slope(NamedTuple):
    """Derivatives of the log marginal likelihood of one task."""

    mean: Float[Array, " features"]
    """h = b - G m*, with the posterior mean m*."""
    covariance: Float[Array, "features features"]
    """(h h^T - M) / 2 with M = (Sigma + G^-1)^-1."""


def slope(
    belief: Gaussian,
    gram: Float[Array, "features features"],
    moment: Float[Array, " features"],
    noise_variance: Float[Array, ""],
) -> Slope:
    """Return the derivatives of `log_marginal` with respect to the mean and the covariance F F^T."""
    fit = _fit(belief, gram, moment, noise_variance)
    back = dot(gram, fit.image) / fit.noise_variance
    mean = fit.residual - dot(back, dot(fit.image.T, fit.residual))
    seen = gram / fit.noise_variance - dot(back, back.T)
    return Slope(mean, 0.5 * (jnp.outer(mean, mean) - seen))


def factor_of(covariance: Float[Array, "features features"]) -> Float[Array, "features features"]:
    """Return a factor of a covariance that may be singular."""
    return semidefinite_cholesky((covariance + covariance.T) / 2)


def if_finite(numbers: Any, new: Any, old: Any) -> Any:
    """Return the pytree `new` if all of `numbers` are finite, else `old`.

    In single precision the slope of a likelihood may overflow; a step along it is then not taken.
    """
    is_finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(numbers)]).all()
    return jax.tree.map(partial(jnp.where, is_finite), new, old)


def dot(left: Array, right: Array) -> Array:
    """Return the matrix product in full precision."""
    return jnp.matmul(left, right, precision=HIGHEST)
