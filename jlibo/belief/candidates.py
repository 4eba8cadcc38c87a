"""The posterior at a finite set of points: mean and variance are tracked, one product per observation.

Internal; `jlibo.belief.posterior` is the public module and describes the method.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import check_noise
from jlibo.belief.weights import HIGHEST, Posterior, check_features, check_reward, observe_feature, predict
from jlibo.checks import ArrayLike, check_range, check_shape, is_concrete
from jlibo.front_door import front_door
from jlibo.solver.batching import lane_cond

REFRESH_STEPS = 512
"""Number of observations after which the tracked variance is recomputed from the factor."""


@final
class Belief(eqx.Module):
    """The posterior at given points, which is the input of a policy; made by `belief_at`."""

    mean: Float[Array, " points"]
    variance: Float[Array, " points"]
    features: Float[Array, "points features"]
    posterior: Posterior
    wide: "Belief | None" = None
    """For a mixture of priors, the belief of its last component, in units of its own: that of an agent
    without past tasks, in the mixture of `jlibo.AdaptiveMetaKGL`."""
    trust: Float[Array, ""] | None = None
    """For a mixture of priors, the probability of all components but the last."""
    columns: Float[Array, "features points"] | None = None
    """The transposed features, for loops: a product with them is faster. None: `features` is transposed."""

    @property
    def std(self) -> Float[Array, " points"]:
        """Posterior standard deviation at the points."""
        # The derivative of the square root is infinite at zero, so select its argument too.
        positive = self.variance > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, self.variance, 1)), 0)


@front_door
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
    features = check_features(posterior, features, ("points",))
    mean, variance = predict(posterior, features)
    if is_concrete(variance) and is_concrete(posterior.noise_std):
        check_noise(posterior.noise_std, variance.max(initial=0), variance.dtype)
    return Belief(mean, variance, features, posterior)


@front_door
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
    reward = check_reward(reward, belief.posterior.mean.dtype)
    return condition(belief, index, reward, refresh=True)[0]


@front_door
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
    posterior, direction, gain, surprise = observe_feature(
        belief.posterior, belief.features[index], reward, is_present
    )
    cross = _at_points(direction, belief)
    mean = belief.mean + (gain * surprise)[..., None] * cross
    variance = jnp.maximum(belief.variance - cross**2 * gain, 0)
    new = Belief(mean, variance, belief.features, posterior, columns=belief.columns)
    if refresh:
        is_due = (posterior.num_observations % REFRESH_STEPS == 0) & is_present
        new = _refresh(new, is_due)
    return new, surprise, gain


@front_door
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


@front_door
def condition_pending(belief: Belief, index: Int[ArrayLike, ""], is_present: bool | Array = True) -> Belief:
    """`observe_pending` without checks, for use in loops; see `condition`."""
    feature = belief.features[index]
    posterior, direction, gain, _ = observe_feature(
        belief.posterior, feature, jnp.zeros(belief.mean.shape[:-1], belief.mean.dtype), is_present
    )
    cross = _at_points(direction, belief)
    posterior = eqx.tree_at(lambda at: at.factor, belief.posterior, posterior.factor)
    variance = jnp.maximum(belief.variance - cross**2 * gain, 0)
    return Belief(belief.mean, variance, belief.features, posterior, columns=belief.columns)


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


def _at_points(weights: Float[Array, " features"], belief: Belief) -> Float[Array, " points"]:
    # In this order a batch of weights gives [batch, points], the layout of means and variances. The other
    # order makes every later read strided. `dot_general` also avoids the transpose that XLA inserts for a
    # single vector, which takes a third of the time. With columns, a batch takes two thirds of the time: the
    # rows of a matrix are packed for the product at every call otherwise.
    matrix, axis = (belief.features, 1) if belief.columns is None else (belief.columns, 0)
    return jax.lax.dot_general(weights, matrix, (((0,), (axis,)), ((), ())), precision=HIGHEST)


def _check_index(belief: Belief, index):
    check_shape("index", index, ())
    check_range("index", index, at_least=0, at_most=belief.features.shape[0] - 1)
