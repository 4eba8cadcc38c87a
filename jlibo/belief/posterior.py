"""The exact Gaussian posterior over feature weights, with one rank-one update per observation.

| here                | paper (App. "Background on GP-UCB")                                      |
|---------------------|--------------------------------------------------------------------------|
| `noise_std`         | lambda_ucb, the regulariser                                              |
| `predict`           | mu_i(x) and sigma_i^2(x), in weight space: equal to the kernel formulas  |
| `information_gain`  | 1/2 log det(I + K_i / lambda_ucb^2) of the points observed               |

The covariance is kept as a factor S with S S^T = covariance and updated by Potter's rule. A variance is then
a sum of squares, so it cannot become negative, even in float32 after thousands of updates. An update costs
O(features^2), plus O(candidates * features) where mean and variance are tracked on a finite candidate set.
Nothing is factorised again, and no shape grows. All arrays have the precision of the prior, whatever the
precision of the features and rewards.

Two limits of floating point are handled here. The variance tracked on candidates is a difference: its
absolute error stays while the variance shrinks. In long runs it is therefore recomputed from the factor every
`REFRESH_STEPS` observations. Noise that is too small or too large beside the prior variance
(`jlibo.belief.prior.noise_limits`) is refused, or clipped to the limit if it is traced.

```python
import jax

import jlibo

features = jlibo.Cosine(num_features=10)
points = jlibo.box_grid(features, 100)
state = jlibo.posterior.init(jlibo.full_prior(features.groups), noise_std=0.1)
state = jlibo.posterior.observe(state, features(points[3]), reward=0.7)
mean, variance = jlibo.posterior.predict(state, features(points))
draw = jlibo.posterior.sample(state, features(points), key=jax.random.key(0))
```
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, check_noise, largest_variance, noise_limits
from jlibo.checks import ArrayLike, check_finite, check_range, check_shape, is_concrete
from jlibo.solver.batching import lane_cond

HIGHEST = lax.Precision.HIGHEST
REFRESH_STEPS = 512
"""Number of observations after which the tracked variance is recomputed from the factor."""


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

    @property
    def covariance(self) -> Float[Array, "features features"]:
        """Posterior covariance of the weights."""
        return jnp.matmul(self.factor, self.factor.T, precision=HIGHEST)


@final
class Belief(eqx.Module):
    """The posterior at given points, which is the input of a policy; made by `belief_at`."""

    mean: Float[Array, " points"]
    variance: Float[Array, " points"]
    features: Float[Array, "points features"]
    posterior: Posterior

    @property
    def std(self) -> Float[Array, " points"]:
        """Posterior standard deviation at the points."""
        # The derivative of the square root is infinite at zero, so select its argument too.
        positive = self.variance > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, self.variance, 1)), 0)


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
    )


def held_noise(noise_std: Float[Array, ""], variance: Float[Array, ""]) -> Float[Array, ""]:
    """Return `noise_std` clipped to `noise_limits` for a prior variance of `variance`; NaN if negative."""
    lower, upper = noise_limits(variance, noise_std.dtype)
    return jnp.where(noise_std >= 0, jnp.clip(noise_std, lower, upper), jnp.nan)


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
    return _observe(posterior, jnp.asarray(feature, dtype), _check_reward(reward, dtype))[0]


def update(posterior: Posterior, feature: Float[Array, " features"], reward: Float[Array, ""]) -> Posterior:
    """`observe` without checks, for use in loops."""
    return _observe(posterior, feature, reward)[0]


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
    features = _check_features(posterior, features, np.shape(features)[:-1])
    mean = jnp.matmul(features, posterior.mean, precision=HIGHEST)
    image = jnp.matmul(features, posterior.factor, precision=HIGHEST)
    return mean, (image**2).sum(-1)


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
    features = _check_features(posterior, features, np.shape(features)[:-1])
    return jnp.matmul(features, sample_weights(posterior, key=key), precision=HIGHEST)


def belief_at(posterior: Posterior, features: Float[Array, "points features"]) -> Belief:
    """Return the belief at given points, in O(points * features^2).

    **Arguments:**

    - `posterior`: posterior of the weights.
    - `features`: features of the points.

    **Returns:** a `Belief`, the input of policies and of `observe_candidate`.

    **Raises:** `ValueError` for wrong shapes or values, or if the noise is too small or too large for the
    precision beside the largest variance at the points (`jlibo.belief.prior.noise_limits`).

    ```python
    import jax

    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    points = jlibo.box_grid(features, 100)
    belief = jlibo.posterior.belief_at(state, features(points))
    action = jlibo.choose(jlibo.GPUCB(nu=10.0, noise_std=0.1), belief, key=jax.random.key(0))
    ```
    """
    features = _check_features(posterior, features, ("points",))
    mean, variance = predict(posterior, features)
    if is_concrete(variance) and is_concrete(posterior.noise_std):
        check_noise(posterior.noise_std, variance.max(initial=0), variance.dtype)
    return Belief(mean, variance, features, posterior)


def observe_candidate(belief: Belief, index: Int[ArrayLike, ""], reward: Float[ArrayLike, ""]) -> Belief:
    """Condition on a reward at one of the belief's own points.

    Equal to `belief_at(observe(...), features)` up to round-off. It costs O(points * features), plus
    O(features^2), because it does not multiply all points by the factor, except at every
    `REFRESH_STEPS`-th observation.

    **Arguments:**

    - `belief`: belief before the observation.
    - `index`: index of the point.
    - `reward`: observed reward.

    **Returns:** the new `Belief` at the same points.

    **Raises:** `ValueError` for an index out of range or a reward that is NaN or infinite.

    ```python
    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    points = jlibo.box_grid(features, 100)
    belief = jlibo.posterior.belief_at(state, features(points))
    belief = jlibo.posterior.observe_candidate(belief, 3, reward=0.7)
    ```
    """
    _check_index(belief, index)
    reward = _check_reward(reward, belief.posterior.mean.dtype)
    return condition(belief, index, reward, refresh=True)[0]


def condition(
    belief: Belief,
    index: Int[ArrayLike, ""],
    reward: Float[Array, "*columns"],
    is_present: bool | Array = True,
    *,
    refresh: bool = False,
) -> tuple[Belief, Float[Array, "*columns"], Float[Array, ""]]:
    """`observe_candidate` without checks, for use in loops; also for several columns of rewards at once.

    The posterior mean is linear in the rewards and its covariance does not depend on them. One update
    therefore serves any number of columns, with shapes `[columns, points]` of `belief.mean`,
    `[columns, features]` of `posterior.mean` and `[columns]` of `reward`.

    **Arguments:**

    - `belief`, `index`, `reward`: as for `observe_candidate`.
    - `is_present`: where false, the belief does not change, at the same cost. Use it for padded data.
    - `refresh`: recompute the variances from the factor at every `REFRESH_STEPS`-th observation, in
      O(points * features^2). Shorter runs do not need it.

    **Returns:** the new belief, the residual of the reward from its predicted mean, and 1 / its predictive
    variance (0 where it is absent).
    """
    posterior, direction, gain, surprise = _observe(
        belief.posterior, belief.features[index], reward, is_present
    )
    cross = _at_points(direction, belief.features)
    mean = belief.mean + (gain * surprise)[..., None] * cross
    variance = jnp.maximum(belief.variance - cross**2 * gain, 0)
    new = Belief(mean, variance, belief.features, posterior)
    if refresh:
        is_due = (posterior.num_observations % REFRESH_STEPS == 0) & is_present
        new = _refresh(new, is_due)
    return new, surprise, gain


def observe_pending(belief: Belief, index: Int[ArrayLike, ""]) -> Belief:
    """Reduce the variance as an observation at `index` does, for any reward; the mean stays.

    Use it for evaluations that still run, so that a batch of choices spreads out.

    **Arguments:**

    - `belief`: current belief.
    - `index`: index of the pending point.

    **Returns:** a `Belief` with which to choose the next point. Condition the original belief, and not this
    one, on the reward.

    **Raises:** `ValueError` for an index out of range.

    ```python
    import jlibo

    features = jlibo.Cosine(num_features=10)
    prior = jlibo.full_prior(features.groups)
    state = jlibo.posterior.init(prior, noise_std=0.1)
    points = jlibo.box_grid(features, 100)
    belief = jlibo.posterior.belief_at(state, features(points))
    pending = jlibo.posterior.observe_pending(belief, 3)
    ```
    """
    _check_index(belief, index)
    return condition_pending(belief, index)


def condition_pending(belief: Belief, index: Int[ArrayLike, ""], is_present: bool | Array = True) -> Belief:
    """`observe_pending` without checks, for use in loops; see `condition`."""
    feature = belief.features[index]
    posterior, direction, gain, _ = _observe(
        belief.posterior, feature, jnp.zeros(belief.mean.shape[:-1], belief.mean.dtype), is_present
    )
    cross = _at_points(direction, belief.features)
    posterior = eqx.tree_at(lambda at: at.factor, belief.posterior, posterior.factor)
    variance = jnp.maximum(belief.variance - cross**2 * gain, 0)
    return Belief(belief.mean, variance, belief.features, posterior)


def _refresh(belief: Belief, is_due: Bool[Array, ""]) -> Belief:
    """Return the belief with its variances recomputed from the factor if `is_due`."""
    tracked = belief.variance
    data = (belief.features, belief.posterior.factor)
    fresh = lane_cond(is_due, _fresh_variance, *lax.stop_gradient((tracked, data)))
    # The two are equal up to round-off, so use the derivative of the tracked variance.
    return eqx.tree_at(lambda at: at.variance, belief, fresh + (tracked - lax.stop_gradient(tracked)))


def _fresh_variance(_, data):
    features, factor = data
    return (jnp.matmul(features, factor, precision=HIGHEST) ** 2).sum(-1)


def _at_points(weights: Float[Array, " features"], features: Float[Array, "points features"]) -> Array:
    # In this order a batch of weights gives [batch, points], the layout of means and variances. The other
    # order makes every later read strided. `dot_general` also avoids the transpose that XLA inserts for a
    # single vector, which takes a third of the time.
    return jax.lax.dot_general(weights, features, (((0,), (1,)), ((), ())), precision=HIGHEST)


def _check_features(posterior: Posterior, features, points):
    check_shape("features", features, (*points, posterior.mean.shape[0]))
    check_finite("features", features)
    return jnp.asarray(features, posterior.mean.dtype)


def _check_reward(reward, dtype):
    check_shape("reward", reward, ())
    check_finite("reward", reward)
    return jnp.asarray(reward, dtype)


def _check_index(belief: Belief, index):
    check_shape("index", index, ())
    check_range("index", index, at_least=0, at_most=belief.features.shape[0] - 1)


def _observe(posterior: Posterior, feature, reward, is_present: bool | Array = True):
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
    )
    return new, direction, gain, surprise
