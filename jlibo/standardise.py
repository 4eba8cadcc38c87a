"""The units of a task's rewards: as they come, or standardised by the task's own data, step by step.

A reward may be an accuracy or a loss in dollars; a prior over functions of size one fits neither.
`Standardise` measures each task in units of its own: (reward - centre) / scale, with centre and scale from
the rewards seen so far, so that they move with every step.

| here          | what it is                                                                      |
|---------------|---------------------------------------------------------------------------------|
| `Units`       | centre and scale, as estimated at one moment                                    |
| `Columns`     | the posterior as a linear function of the units                                 |

Nothing is computed again when the units move. The posterior mean is linear in the targets
(reward - centre) / scale, and its covariance does not see them: so the answers to the prior's mean alone, to
the rewards and to a target of one everywhere are kept as three columns, and the mean in any units is a
combination of them. So is the likelihood of what was seen, from the products of the columns' surprises.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo import posterior as gp
from jlibo.checks import ArrayLike
from jlibo.policies.base import hyper_parameter
from jlibo.prior import Prior, PriorMixture


class Moments(eqx.Module):
    """Number, mean and summed squared deviation of the rewards so far."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    sum_squares: Float[Array, ""]

    @classmethod
    def empty(cls, dtype: Any) -> "Moments":
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, zero)

    def add(self, reward: Float[Array, ""], is_present: bool | Array = True) -> "Moments":
        """With one more reward (Welford's update, which does not cancel)."""
        reward = jnp.where(is_present, reward, self.mean)
        count = self.count + jnp.asarray(is_present, self.count.dtype)
        step = reward - self.mean
        mean = self.mean + step / jnp.maximum(count, 1)
        return Moments(count, mean, self.sum_squares + step * (reward - mean))


class Units(eqx.Module):
    """Rewards are measured from `centre`, in multiples of `scale`."""

    centre: Float[Array, ""]
    scale: Float[Array, ""]

    def apply(self, rewards: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """The rewards in these units; all zero where there is no scale."""
        return jnp.where(self.scale > 0, rewards - self.centre, 0) / jnp.where(self.scale > 0, self.scale, 1)


class AbstractScaling(eqx.Module):
    """Where a task's units come from. `state` is what past tasks taught about it."""

    num_columns: eqx.AbstractClassVar[int]

    @abc.abstractmethod
    def init(self, dtype: Any) -> Any:
        """The state before the first task."""

    @abc.abstractmethod
    def units(self, state: Any, moments: Moments, columns: "Columns") -> Units:
        """The units of a task with these rewards so far, and what is believed after them."""

    @abc.abstractmethod
    def settle(
        self,
        prior: Prior,
        noise_std: Float[Array, ""],
        features: Float[Array, "steps features"],
        rewards: Float[Array, " steps"],
        is_present: Bool[Array, " steps"],
    ) -> Units:
        """The units in which a finished task is remembered: by its own rewards and a fixed prior alone, so
        that it does not matter which tasks came before."""

    @abc.abstractmethod
    def update(self, state: Any, units: Units) -> Any:
        """The state after a task that settled in these units."""


class RawRewards(AbstractScaling):
    """Rewards as they come: the paper's setting, where the norm bound B fixes their scale."""

    num_columns: ClassVar[int] = 1

    def init(self, dtype):
        return ()

    def units(self, state, moments, columns):
        one = jnp.ones_like(moments.mean)
        return Units(0 * one, one)

    def settle(self, prior, noise_std, features, rewards, is_present):
        one = jnp.ones((), rewards.dtype)
        return Units(0 * one, one)

    def update(self, state, units):
        return state


RAW = RawRewards()


class PastScales(eqx.Module):
    """The logarithms of the scales of past tasks, summed, and how many there were."""

    total: Float[Array, ""]
    num_tasks: Float[Array, ""]


class Standardise(AbstractScaling):
    """Centre on the mean of the task's rewards, and divide by the scale at which they are likeliest.

    That is not their standard deviation: a policy soon plays near the best, where rewards are alike, and the
    unit would shrink with every such step. The squares are counted against what the prior expects of points
    so close together (`squares_about`); for points far apart that is the standard deviation.

    One reward has no deviation, and two have a poor one: the geometric mean of the past tasks' scales (before
    the first, `guess`) counts as `weight` further rewards.
    """

    guess: Float[Array, ""] = hyper_parameter("guess", above=0, default=1.0)
    weight: Float[Array, ""] = hyper_parameter("weight", above=0, default=2.0)

    num_columns: ClassVar[int] = 3

    def init(self, dtype):
        zero = jnp.zeros((), dtype)
        return PastScales(zero, zero)

    def units(self, state, moments, columns):
        past = jnp.where(
            state.num_tasks > 0, jnp.exp(state.total / jnp.maximum(state.num_tasks, 1)), self.guess
        )
        freedom = self.weight + jnp.maximum(moments.count - 1, 0)
        squares = squares_about(moments.mean, columns)
        return Units(moments.mean, jnp.sqrt((self.weight * past**2 + squares) / freedom))

    def settle(self, prior, noise_std, features, rewards, is_present):
        columns = start(prior, features, noise_std, self.num_columns)

        def add(carry, step):
            columns, moments = carry
            place, reward, present = step
            columns = with_features(observe(with_features(columns, features), place, reward, present), None)
            return (columns, moments.add(reward, present)), None

        begin = with_features(columns, None), Moments.empty(rewards.dtype)
        steps = jnp.arange(rewards.shape[0]), rewards, is_present
        (columns, moments), _ = lax.scan(add, begin, steps)
        squares = squares_about(moments.mean, columns)
        # All rewards alike: the task has no scale to tell of, which zero says.
        known = moments.sum_squares > (1e-6 * moments.mean) ** 2 * moments.count
        scale = jnp.sqrt(squares / jnp.maximum(moments.count - 1, 1))
        return Units(moments.mean, jnp.where(known, scale, 0))

    def update(self, state, units):
        known = units.scale > 0
        log_scale = jnp.log(jnp.where(known, units.scale, 1))
        return PastScales(state.total + log_scale, state.num_tasks + known.astype(log_scale.dtype))


class Columns(eqx.Module):
    """What a prior believes about one task at its candidates, in whatever units.

    `belief` has a leading axis of columns in its means. For a mixture, everything but the candidates'
    features has the components' axis in front of that.
    """

    belief: gp.Belief
    products: Float[Array, "columns columns"]
    """Sum over observations of the surprises' products, each over its variance."""
    log_determinant: Float[Array, ""]
    log_weights: Float[Array, " components"] | None
    """Of a mixture's components; None for a single prior."""


def start(
    prior: Prior | PriorMixture,
    features: Float[Array, "points features"],
    noise_std: Float[ArrayLike, ""],
    num_columns: int,
) -> Columns:
    """The belief before any reward. A prior's own noise goes before `noise_std`."""

    def start_one(one: Prior) -> Columns:
        posterior = gp.init(one, noise_std if one.noise_std is None else one.noise_std)
        mean = jnp.matmul(features, one.mean, precision=lax.Precision.HIGHEST)
        zeros = jnp.zeros(num_columns, mean.dtype)
        posterior = eqx.tree_at(
            lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood),
            posterior,
            (_first_of(one.mean, num_columns), zeros - jnp.inf, zeros),
        )
        belief = gp.Belief(_first_of(mean, num_columns), one.variance(features), features, posterior)
        return Columns(belief, jnp.outer(zeros, zeros), jnp.zeros_like(mean[0]), None)

    if isinstance(prior, Prior):
        return start_one(prior)
    columns = jax.vmap(start_one, out_axes=COMPONENTS)(prior.components)
    return eqx.tree_at(lambda c: c.log_weights, columns, prior.log_weights, is_leaf=lambda leaf: leaf is None)


def observe(
    columns: Columns,
    index: Int[ArrayLike, ""],
    reward: Float[Array, ""],
    is_present: bool | Array = True,
    constant: Float[ArrayLike, ""] = 1.0,
) -> Columns:
    """Condition on a reward at candidate `index`, or do nothing where it is not there.

    `constant` is the target of the third column. It is 1 for an observation; for a row that stands for many
    (see `complete`), it is what the ones of these observations became.
    """
    num_columns = columns.products.shape[-1]
    reward = jnp.asarray(reward, columns.products.dtype)
    targets = jnp.stack([jnp.zeros_like(reward), reward, jnp.asarray(constant, reward.dtype)])
    targets = reward[None] if num_columns == 1 else targets

    def observe_one(one: Columns) -> Columns:
        belief, surprise, gain = gp.condition(one.belief, index, targets, is_present)
        return Columns(
            belief,
            one.products + gain * jnp.outer(surprise, surprise),
            one.log_determinant - jnp.log(jnp.where(gain > 0, gain, 1)),
            None,
        )

    return _each(observe_one, columns, COMPONENTS)


def complete(
    columns: Columns,
    lost_products: Float[Array, "2 2"],
    num_lost: Float[Array, ""],
    best_reward: Float[Array, ""],
) -> Columns:
    """Add what the compressed rows of many observations leave out, after `observe` of these rows.

    An orthogonal transform of n observations leaves d rows with features and n - d without. The latter do not
    move the weights, but belong to the likelihood.

    **Arguments:**

    - `lost_products`: over the rows without features, products of the columns of rewards and of ones.
    - `num_lost`: the number of observations minus that of the rows observed.
    - `best_reward`: the largest reward.
    """

    def complete_one(one: Columns) -> Columns:
        posterior = one.belief.posterior
        variance = posterior.noise_std**2
        return eqx.tree_at(
            lambda c: (
                c.products,
                c.log_determinant,
                c.belief.posterior.best_reward,
                c.belief.posterior.num_observations,
            ),
            one,
            (
                one.products.at[1:, 1:].add(lost_products / variance),
                one.log_determinant + num_lost * jnp.log(variance),
                posterior.best_reward.at[1].set(best_reward),
                posterior.num_observations + num_lost.astype(jnp.int32),
            ),
        )

    return _each(complete_one, columns, COMPONENTS)


def expect(columns: Columns, index: Int[ArrayLike, ""], is_present: bool | Array = True) -> Columns:
    """Shrink the variance as an observation at `index` will, whatever its reward."""

    def expect_one(one: Columns) -> Columns:
        belief = gp.condition_pending(one.belief, index, is_present)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(expect_one, columns, COMPONENTS)


def belief_in(columns: Columns, units: Units) -> gp.Belief:
    """The belief in the given units.

    A mixture's components become one belief of the same mean and variance, each weighed by how well it
    foretold the rewards so far. Where a policy asks for weights of features (a draw of a whole function),
    the likeliest component answers.
    """
    if columns.log_weights is None:
        return _in_units(columns, units)
    beliefs = _each(lambda one: _in_units(one, units), columns, BELIEFS)
    weights = component_weights(columns, units)
    mean = _combine(weights, beliefs.mean)
    variance = _combine(weights, beliefs.variance + (beliefs.mean - mean) ** 2)
    likeliest = jnp.argmax(weights)
    posterior = jax.tree.map(lambda leaf: leaf[likeliest], beliefs.posterior)
    return gp.Belief(mean, variance, beliefs.features, posterior)


def at_points(columns: Columns, features: Float[Array, "points features"]) -> Columns:
    """The same belief, seen at other points: O(points * features^2)."""

    def see_one(one: Columns) -> Columns:
        posterior = one.belief.posterior
        image = jnp.matmul(features, posterior.factor, precision=lax.Precision.HIGHEST)
        mean = _combine(posterior.mean, features.T)
        belief = gp.Belief(mean, (image**2).sum(-1), features, posterior)
        return eqx.tree_at(lambda c: c.belief, one, belief)

    return _each(see_one, columns, COMPONENTS)


def squares_about(centre: Float[Array, ""], columns: Columns) -> Float[Array, ""]:
    """The squared deviations of the rewards from `centre`, in units of what the prior expects them to be.

    (y - centre)^T K^-1 (y - centre), K the prior covariance of the rewards with their noise; of a mixture, by
    its last component, the widest.
    """
    products = columns.products if columns.log_weights is None else columns.products[-1]
    squares = products[1, 1] - 2 * centre * products[1, 2] + centre**2 * products[2, 2]
    return jnp.maximum(squares, 0)


def component_weights(columns: Columns, units: Units) -> Float[Array, " components"]:
    """How likely each component is by now: its weight times the likelihood of the rewards so far.

    That likelihood is the product of what was foretold for each reward from those before it, so that every
    reward is held out once.
    """
    if columns.log_weights is None:
        return jnp.ones(1, columns.products.dtype)
    scores = columns.log_weights + _each(lambda one: _log_likelihood(one, units), columns, 0)
    return jax.nn.softmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))


def _in_units(columns: Columns, units: Units) -> gp.Belief:
    belief, posterior = columns.belief, columns.belief.posterior
    combine = _combination(columns, units)
    best = units.apply(posterior.best_reward[-1 if len(combine) == 1 else 1])
    posterior = eqx.tree_at(
        lambda p: (p.mean, p.best_reward, p.log_marginal_likelihood),
        posterior,
        (_combine(combine, posterior.mean), best, _log_likelihood(columns, units)),
    )
    return gp.Belief(_combine(combine, belief.mean), belief.variance, belief.features, posterior)


def _log_likelihood(columns: Columns, units: Units) -> Float[Array, ""]:
    combine = _combination(columns, units)
    fit = _combine(combine, _combine(combine, columns.products))
    count = columns.belief.posterior.num_observations.astype(fit.dtype)
    return -0.5 * (fit + columns.log_determinant + count * jnp.log(2 * jnp.pi))


def _combination(columns: Columns, units: Units) -> Float[Array, " columns"]:
    if columns.products.shape[-1] == 1:
        return jnp.ones(1, columns.products.dtype)
    return jnp.stack([jnp.ones_like(units.scale), 1 / units.scale, -units.centre / units.scale])


def with_features(columns: Columns, features: Float[Array, "points features"] | None) -> Columns:
    """Put the candidates' features in, or take them out (None) for a loop in which all seeds share them."""
    return eqx.tree_at(lambda c: c.belief.features, columns, features, is_leaf=lambda leaf: leaf is None)


def _first_of(values: Array, num_columns: int) -> Array:
    return jnp.zeros((num_columns, *values.shape), values.dtype).at[0].set(values)


def _combine(weights, rows):
    return jnp.matmul(weights, rows, precision=lax.Precision.HIGHEST)


# Tree prefixes for `vmap`: components lead every leaf but the features, which all share.
BELIEFS: Any = gp.Belief(mean=0, variance=0, features=None, posterior=0)  # pyright: ignore
COMPONENTS: Any = Columns(belief=BELIEFS, products=0, log_determinant=0, log_weights=None)  # pyright: ignore


def _each(fn, columns: Columns, out_axes):
    """`fn` of a single prior's columns, or of each component's."""
    if columns.log_weights is None:
        return fn(columns)
    single = eqx.tree_at(lambda c: c.log_weights, columns, None)
    answer = jax.vmap(fn, in_axes=(COMPONENTS,), out_axes=out_axes)(single)
    if not isinstance(answer, Columns):
        return answer
    return eqx.tree_at(
        lambda c: c.log_weights, answer, columns.log_weights, is_leaf=lambda leaf: leaf is None
    )
