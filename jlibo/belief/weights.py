"""The Gaussian posterior over feature weights: a factor of its covariance, updated by Potter's rule.

Internal; `jlibo.belief.posterior` is the public module and describes the method.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, check_noise, largest_variance, noise_limits
from jlibo.checks import ArrayLike, check_finite, check_shape
from jlibo.front_door import front_door

HIGHEST = lax.Precision.HIGHEST


@final
class Posterior(eqx.Module):
    """Gaussian posterior of the feature weights after some observations; made by `init` and `observe`."""

    mean: Float[Array, " features"]
    factor: Float[Array, "features features"]
    """S with S S^T = covariance."""
    noise_std: Float[Array, ""]
    """Noise as used, within `jlibo.belief.prior.noise_limits`."""
    log_marginal_likelihood: Float[Array, ""]
    """Of the rewards observed so far."""
    information_gain: Float[Array, ""]
    """Of the points observed so far, in nats."""
    best_reward: Float[Array, ""]
    """Largest reward observed; minus infinity before the first."""
    num_observations: Int[Array, ""]
    num_since_best: Int[Array, ""]
    """Observations since the last one that was better than all before it."""

    @property
    def covariance(self) -> Float[Array, "features features"]:
        """Posterior covariance of the weights."""
        return jnp.matmul(self.factor, self.factor.T, precision=HIGHEST)


@front_door
def init(prior: Prior, noise_std: Float[ArrayLike, ""]) -> Posterior:
    """Return the posterior before any observation.

    **Arguments:**

    - `prior`: distribution of the weights. Its own `noise_std` is not used here.
    - `noise_std`: positive noise standard deviation of the model, which acts as a regulariser; it need not
      be the true noise. A traced value outside `jlibo.belief.prior.noise_limits` is clipped to the nearest
      limit, and a negative one gives NaN.

    **Returns:** a `Posterior` in the precision of the prior.

    **Raises:** `ValueError` if a concrete `noise_std` is not positive, or too small or too large for the
    precision beside the prior variance.

    ```python
    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    ```
    """
    dtype = prior.mean.dtype
    variance = largest_variance(prior.covariance)
    check_noise(noise_std, variance, dtype)
    zero = jnp.zeros((), dtype)
    return Posterior(
        mean=prior.mean,
        factor=prior.factor(),
        noise_std=held_noise(jnp.asarray(noise_std, dtype), variance),
        log_marginal_likelihood=zero,
        information_gain=zero,
        best_reward=zero - jnp.inf,
        num_observations=jnp.zeros((), jnp.int32),
        num_since_best=jnp.zeros((), jnp.int32),
    )


@front_door
def held_noise(noise_std: Float[Array, ""], variance: Float[Array, ""]) -> Float[Array, ""]:
    """Return `noise_std` clipped to `noise_limits` for a prior variance of `variance`; NaN if negative."""
    lower, upper = noise_limits(variance, noise_std.dtype)
    return jnp.where(noise_std >= 0, jnp.clip(noise_std, lower, upper), jnp.nan)


@front_door
def observe(
    posterior: Posterior, feature: Float[Array, " features"], reward: Float[ArrayLike, ""]
) -> Posterior:
    """Condition on one reward at a point given by its features, in O(features^2).

    **Arguments:**

    - `posterior`: posterior before the observation.
    - `feature`: features of the point.
    - `reward`: observed reward.

    **Returns:** the new `Posterior`.

    **Raises:** `ValueError` for a wrong shape or a value that is NaN or infinite.

    ```python
    import jax.numpy as jnp

    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    state = jlibo.posterior.observe(state, features(jnp.asarray([0.3])), reward=0.7)
    ```
    """
    check_shape("feature", feature, posterior.mean.shape)
    check_finite("feature", feature)
    dtype = posterior.mean.dtype
    return observe_feature(posterior, jnp.asarray(feature, dtype), check_reward(reward, dtype))[0]


@front_door
def update(posterior: Posterior, feature: Float[Array, " features"], reward: Float[Array, ""]) -> Posterior:
    """`observe` without checks, for use in loops."""
    return observe_feature(posterior, feature, reward)[0]


@front_door
def predict(
    posterior: Posterior, features: Float[Array, "*points features"]
) -> tuple[Float[Array, "*points"], Float[Array, "*points"]]:
    """Return posterior mean and variance of f (not of a noisy reward) at points given by their features.

    **Arguments:**

    - `posterior`: posterior of the weights.
    - `features`: features of the points, with any leading axes.

    **Returns:** mean and variance, each with the leading axes of `features`.

    **Raises:** `ValueError` for a wrong number of features or a value that is NaN or infinite.

    ```python
    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    points = jlibo.box_grid(features, 100)
    mean, variance = jlibo.posterior.predict(state, features(points))
    ```
    """
    features = check_features(posterior, features, np.shape(features)[:-1])
    mean = jnp.matmul(features, posterior.mean, precision=HIGHEST)
    image = jnp.matmul(features, posterior.factor, precision=HIGHEST)
    return mean, (image**2).sum(-1)


@front_door
def sample_weights(posterior: Posterior, *, key: PRNGKeyArray) -> Float[Array, " features"]:
    """Return one draw of the weights, which defines a whole function.

    **Arguments:**

    - `posterior`: posterior of the weights.
    - `key`: random key.

    **Returns:** weights `[features]`; the function is `features(x) @ weights`.

    ```python
    import jax

    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    weights = jlibo.posterior.sample_weights(state, key=jax.random.key(0))
    ```
    """
    noise = jax.random.normal(key, posterior.mean.shape, posterior.mean.dtype)
    return posterior.mean + jnp.matmul(posterior.factor, noise, precision=HIGHEST)


@front_door
def sample(
    posterior: Posterior, features: Float[Array, "*points features"], *, key: PRNGKeyArray
) -> Float[Array, "*points"]:
    """Return one joint draw of f at all points.

    **Arguments:**

    - `posterior`: posterior of the weights.
    - `features`: features of the points, with any leading axes.
    - `key`: random key.

    **Returns:** values of the drawn function, with the leading axes of `features`.

    **Raises:** `ValueError` for a wrong number of features or a value that is NaN or infinite.

    ```python
    import jax

    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    points = jlibo.box_grid(features, 100)
    values = jlibo.posterior.sample(state, features(points), key=jax.random.key(0))
    ```
    """
    features = check_features(posterior, features, np.shape(features)[:-1])
    return jnp.matmul(features, sample_weights(posterior, key=key), precision=HIGHEST)


def check_features(posterior: Posterior, features, points):
    """Return the features in the precision of the posterior, checked; `points` are their leading axes."""
    check_shape("features", features, (*points, posterior.mean.shape[0]))
    check_finite("features", features)
    return jnp.asarray(features, posterior.mean.dtype)


def check_reward(reward, dtype):
    """Return the reward in the given precision, checked."""
    check_shape("reward", reward, ())
    check_finite("reward", reward)
    return jnp.asarray(reward, dtype)


def observe_feature(posterior: Posterior, feature, reward, is_present: bool | Array = True):
    """Potter's square-root update; also returns covariance times feature, 1 / total variance and residual.

    All columns of rewards share the covariance. An absent observation has a gain of zero.
    """
    noise_variance = posterior.noise_std**2
    image = jnp.matmul(feature, posterior.factor, precision=HIGHEST)
    total = (image**2).sum() + noise_variance
    gain = 1 / total
    direction = jnp.matmul(posterior.factor, image, precision=HIGHEST)
    surprise = reward - jnp.matmul(posterior.mean, feature, precision=HIGHEST)
    shrink = gain / (1 + posterior.noise_std * jnp.sqrt(gain))
    likelihood = -0.5 * (surprise**2 * gain + jnp.log(2 * jnp.pi * total))
    information = 0.5 * jnp.log1p((image**2).sum() / noise_variance)
    if is_present is not True:
        gain, shrink = jnp.where(is_present, gain, 0), jnp.where(is_present, shrink, 0)
        likelihood, information = jnp.where(is_present, likelihood, 0), jnp.where(is_present, information, 0)
        # Padding may be NaN, and 0 * NaN is NaN, so select instead of multiplying.
        reward, surprise = jnp.where(is_present, reward, -jnp.inf), jnp.where(is_present, surprise, 0)
    new = Posterior(
        mean=posterior.mean + (gain * surprise)[..., None] * direction,
        factor=posterior.factor - jnp.outer(direction * shrink, image),
        noise_std=posterior.noise_std,
        log_marginal_likelihood=posterior.log_marginal_likelihood + likelihood,
        information_gain=posterior.information_gain + information,
        best_reward=jnp.maximum(posterior.best_reward, reward),
        num_observations=posterior.num_observations + jnp.asarray(is_present, jnp.int32),
        num_since_best=jnp.where(
            reward > posterior.best_reward, 0, posterior.num_since_best + jnp.asarray(is_present, jnp.int32)
        ),
    )
    return new, direction, gain, surprise
