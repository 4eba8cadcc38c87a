"""The exact Gaussian posterior over feature weights, one rank-one update an observation.

| here                | paper (App. "Background on GP-UCB")                                      |
|---------------------|--------------------------------------------------------------------------|
| `noise_std`         | lambda_ucb, the regulariser                                              |
| `predict`           | mu_i(x) and sigma_i^2(x), in weight space: equal to the kernel formulas  |
| `information_gain`  | 1/2 log det(I + K_i / lambda_ucb^2) of the points observed               |

The covariance is kept as a factor S with S S^T = covariance and updated by Potter's rule, so a variance is
a sum of squares: it cannot become negative, in float32 after thousands of updates either. An update costs
O(features^2), plus O(candidates * features) where mean and variance are tracked on a finite candidate set.
Nothing is ever factorised again, and no shape grows. All is kept in the precision of the prior, whatever
the precision of the features and rewards that come.

Two limits of floating point are handled here. The variance tracked on candidates is a difference, whose
absolute error stays while the variance shrinks: in long runs it is computed again from the factor now and
then (`REFRESH_STEPS`). And noise that is lost beside the prior variance is refused
(`jlibo.belief.prior.noise_limits`), or moved to the limit where it is traced.
"""

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
"""Observations between two computations of the tracked variance from the factor."""


class Posterior(eqx.Module):
    """Belief about the weights after some observations."""

    mean: Float[Array, " features"]
    factor: Float[Array, "features features"]
    noise_std: Float[Array, ""]
    """As used: within `jlibo.belief.prior.noise_limits`."""
    log_marginal_likelihood: Float[Array, ""]
    information_gain: Float[Array, ""]
    best_reward: Float[Array, ""]
    """Largest reward seen; minus infinity before the first."""
    num_observations: Int[Array, ""]

    @property
    def covariance(self) -> Float[Array, "features features"]:
        return jnp.matmul(self.factor, self.factor.T, precision=HIGHEST)


class Belief(eqx.Module):
    """The posterior seen at given points: all that a policy may look at."""

    mean: Float[Array, " points"]
    variance: Float[Array, " points"]
    features: Float[Array, "points features"]
    posterior: Posterior

    @property
    def std(self) -> Float[Array, " points"]:
        # The square root of zero has no finite derivative; nothing depends on it there.
        positive = self.variance > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, self.variance, 1)), 0)


def init(prior: Prior, noise_std: Float[ArrayLike, ""]) -> Posterior:
    """The posterior before any observation. `noise_std` > 0 regularises, whatever the true noise is.

    A `noise_std` that the precision cannot hold beside the prior variance raises where it is known now. Where
    it is traced it is moved to the nearest number that can be held; a negative one gives NaN.
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
    """`noise_std`, moved within `noise_limits` for a prior variance of `variance`; NaN if negative."""
    lower, upper = noise_limits(variance, noise_std.dtype)
    return jnp.where(noise_std >= 0, jnp.clip(noise_std, lower, upper), jnp.nan)


def observe(
    posterior: Posterior, feature: Float[Array, " features"], reward: Float[ArrayLike, ""]
) -> Posterior:
    """Condition on one reward at a point given by its features."""
    check_shape("feature", feature, posterior.mean.shape)
    check_finite("feature", feature)
    dtype = posterior.mean.dtype
    return _observe(posterior, jnp.asarray(feature, dtype), _check_reward(reward, dtype))[0]


def update(posterior: Posterior, feature: Float[Array, " features"], reward: Float[Array, ""]) -> Posterior:
    """`observe` without its checks, for loops."""
    return _observe(posterior, feature, reward)[0]


def predict(
    posterior: Posterior, features: Float[Array, "*points features"]
) -> tuple[Float[Array, "*points"], Float[Array, "*points"]]:
    """Posterior mean and variance of f (not of a noisy reward) at points given by their features."""
    features = _check_features(posterior, features, np.shape(features)[:-1])
    mean = jnp.matmul(features, posterior.mean, precision=HIGHEST)
    image = jnp.matmul(features, posterior.factor, precision=HIGHEST)
    return mean, (image**2).sum(-1)


def sample_weights(posterior: Posterior, *, key: PRNGKeyArray) -> Float[Array, " features"]:
    """One draw of the weights, that is, of a whole function."""
    noise = jax.random.normal(key, posterior.mean.shape, posterior.mean.dtype)
    return posterior.mean + jnp.matmul(posterior.factor, noise, precision=HIGHEST)


def sample(
    posterior: Posterior, features: Float[Array, "*points features"], *, key: PRNGKeyArray
) -> Float[Array, "*points"]:
    """One joint draw of f at all the points."""
    features = _check_features(posterior, features, np.shape(features)[:-1])
    return jnp.matmul(features, sample_weights(posterior, key=key), precision=HIGHEST)


def belief_at(posterior: Posterior, features: Float[Array, "points features"]) -> Belief:
    """The posterior at any points; O(points * features^2)."""
    features = _check_features(posterior, features, ("points",))
    mean, variance = predict(posterior, features)
    if is_concrete(variance) and is_concrete(posterior.noise_std):
        check_noise(posterior.noise_std, variance.max(initial=0), variance.dtype)
    return Belief(mean, variance, features, posterior)


def observe_candidate(belief: Belief, index: Int[ArrayLike, ""], reward: Float[ArrayLike, ""]) -> Belief:
    """Condition on a reward at one of the belief's own points; O(points * features).

    The same as `belief_at(observe(...), features)` to round-off, without a product of all points with the
    factor.
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
    """`observe_candidate` without its checks, for loops; also for several columns of rewards at once.

    The posterior is linear in the rewards and its covariance does not see them. So one update serves any
    number of columns: belief.mean [columns, points], posterior.mean [columns, features], reward [columns].
    Where `is_present` is false nothing changes, at the same cost: that is how data are padded. The second
    answer is how far the reward was from its mean, the third 1 / its variance (0 where it is absent).

    With `refresh`, every `REFRESH_STEPS`-th observation computes the variances again from the factor, in
    O(points * features^2). Shorter runs do without.
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
    """Shrink the variance as an observation at `index` will, whatever its reward; the mean stays."""
    _check_index(belief, index)
    return condition_pending(belief, index)


def condition_pending(belief: Belief, index: Int[ArrayLike, ""], is_present: bool | Array = True) -> Belief:
    """`observe_pending` without its checks, for loops; see `condition`."""
    feature = belief.features[index]
    posterior, direction, gain, _ = _observe(
        belief.posterior, feature, jnp.zeros(belief.mean.shape[:-1], belief.mean.dtype), is_present
    )
    cross = _at_points(direction, belief.features)
    posterior = eqx.tree_at(lambda at: at.factor, belief.posterior, posterior.factor)
    variance = jnp.maximum(belief.variance - cross**2 * gain, 0)
    return Belief(belief.mean, variance, belief.features, posterior)


def _refresh(belief: Belief, is_due: Bool[Array, ""]) -> Belief:
    """The belief with its variances computed from the factor, if that is due."""
    tracked = belief.variance
    data = (belief.features, belief.posterior.factor)
    fresh = lane_cond(is_due, _fresh_variance, *lax.stop_gradient((tracked, data)))
    # The two are equal but for round-off, so that the derivative is that of the tracked variance.
    return eqx.tree_at(lambda at: at.variance, belief, fresh + (tracked - lax.stop_gradient(tracked)))


def _fresh_variance(_, data):
    features, factor = data
    return (jnp.matmul(features, factor, precision=HIGHEST) ** 2).sum(-1)


def _at_points(weights: Float[Array, " features"], features: Float[Array, "points features"]) -> Array:
    # In this order a batch of weights gives [batch, points], the layout of means and variances; the other way
    # round whatever reads it reads across the rows. And without a transpose, which XLA would make for one
    # vector on its own: a third of the time.
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
    """Potter's square-root update; also covariance times feature, 1 / total variance and the surprise.

    All rewards, or columns of them, see the same covariance. An absent observation has a gain of zero.
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
        # What pads may be NaN, and nothing times NaN is not nothing.
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
