"""Moments of a task's rewards, and the units in which the rewards are measured.

Moments are kept in multiples of a power of two, so that no square is out of range. This unit is near the
largest reward so far and grows with it. Multiplication by a power of two is exact, so rewards of ordinary
size give the same numbers as without a unit.
"""

from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.solver.units import nearest_power


@final
class Units(eqx.Module):
    """Units of rewards: (reward - centre) / scale. For a mixture of priors, one pair per component."""

    centre: Float[Array, "*components"]
    scale: Float[Array, "*components"]

    def apply(self, rewards: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """Return the rewards in these units; zero where the scale is zero."""
        return jnp.where(self.scale > 0, rewards - self.centre, 0) / jnp.where(self.scale > 0, self.scale, 1)


def likeliest_units(
    products: Float[Array, "3 3"],
    count: Float[Array, ""],
    weight: Float[Array, ""] | float,
    past_scale: Float[Array, ""] | float,
) -> Units:
    """Return the centre and scale of maximum likelihood of rewards y = centre + scale (m + g).

    Here m is the prior mean at the observed points and g ~ N(0, K), with K the prior covariance of the noisy
    rewards. The centre has a flat prior; for a given scale it is the generalised least-squares estimate. With
    P the projection of K^-1 orthogonal to the constant, the inverse scale solves a quadratic equation in
    y^T P y and y^T P m.

    **Arguments:**

    - `products`: v^T K^-1 v of the columns v = (-m, y, 1).
    - `count`: number of rewards.
    - `weight`, `past_scale`: the prior of the scale counts as `weight` rewards with this deviation.
    """
    rewards, constant = products[1, 1], jnp.where(products[2, 2] > 0, products[2, 2], 1)
    share = products[1, 2] / constant
    mean_constant = -products[0, 2]
    spread = jnp.maximum(rewards - share * products[1, 2], 0)
    slope = -products[0, 1] - share * mean_constant
    freedom = jnp.maximum(count - 1, 0) + weight
    squares = spread + weight * past_scale**2
    # 1 / scale is the positive root t of squares t^2 - slope t - freedom = 0. Each of the two forms is used
    # where it does not cancel.
    positive = jnp.sqrt(slope**2 + 4 * freedom * squares) + jnp.abs(slope)
    ahead = jnp.where(positive > 0, 2 * squares / jnp.where(positive > 0, positive, 1), 0)
    behind = positive / jnp.where(freedom > 0, 2 * freedom, 1)
    scale = jnp.where(slope > 0, ahead, behind)
    return Units(share - scale * mean_constant / constant, scale)


@final
class Moments(eqx.Module):
    """Number, mean and sum of squared deviations of the rewards so far."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]
    """Sum of squared deviations from the mean, in multiples of `unit` squared."""
    unit: Float[Array, ""]
    """Power of two near the largest reward; zero if all rewards are zero."""

    @classmethod
    def empty(cls, dtype: Any) -> "Moments":
        zero = jnp.zeros((), dtype)
        return cls(zero, zero, zero, zero)

    @classmethod
    def of(cls, rewards: Float[Array, " steps"], is_present: Bool[Array, " steps"]) -> "Moments":
        """Return the moments of all present rewards; equal to repeated `add` up to round-off."""
        rewards = jnp.where(is_present, rewards, 0)
        count = is_present.sum().astype(rewards.dtype)
        unit = unit_of(jnp.abs(rewards).max(initial=0))
        scaled = rewards / divisor(unit)
        mean = scaled.sum() / jnp.maximum(count, 1)
        squares = jnp.where(is_present, scaled - mean, 0)
        return cls(count, mean * divisor(unit), (squares**2).sum(), unit)

    def add(self, reward: Float[Array, ""], is_present: bool | Array = True) -> "Moments":
        """Return the moments with one more reward, by Welford's update, which avoids cancellation."""
        reward = jnp.where(is_present, reward, self.mean)
        count = self.count + jnp.asarray(is_present, self.count.dtype)
        unit, change = larger_unit(self.unit, reward, is_present)
        step = reward - self.mean
        mean = self.mean + step / jnp.maximum(count, 1)
        product = (step / divisor(unit)) * ((reward - mean) / divisor(unit))
        return Moments(count, mean, times(self.squares, change**2) + product, unit)

    @property
    def sum_squares(self) -> Float[Array, ""]:
        """Sum of squared deviations; overflows or underflows if the squares of the rewards do."""
        return self.squares * self.unit * self.unit

    @property
    def differ(self) -> Bool[Array, ""]:
        """Whether the rewards differ by more than round-off."""
        round_off = 1e-6 * (self.mean / divisor(self.unit))
        return self.squares > round_off**2 * self.count


def unit_of(value: Float[Array, ""]) -> Float[Array, ""]:
    """Return a power of two near the size of `value`, zero for zero. Its inverse is in range too."""
    return jnp.where(value == 0, 0, nearest_power(value))


def divisor(unit: Float[Array, ""]) -> Float[Array, ""]:
    """Return the unit to divide by: `unit`, or one if all rewards are zero."""
    return jnp.where(unit > 0, unit, 1)


def times(values: Float[Array, "*any"], power: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return `values * power`, for a power of two that is usually one.

    The product is selected by `where`. Otherwise the compiler may fuse it with a following sum, which changes
    the rounding.
    """
    return jnp.where(power == 1, values, values * power)


def larger_unit(
    unit: Float[Array, ""], reward: Float[Array, ""], is_present: bool | Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the unit after adding `reward`, and the factor that converts numbers from the old unit to it."""
    new = jnp.maximum(unit, jnp.where(is_present, unit_of(reward), 0))
    return new, jnp.where(unit > 0, unit / divisor(new), 1)
