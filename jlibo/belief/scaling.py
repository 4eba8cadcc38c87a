"""Scalings: where the units of a task's rewards come from.

A reward may be an accuracy or a loss in dollars; a prior over functions of size one fits neither.
`Standardise` measures each task in units of its own: (reward - centre) / scale, with centre and scale
estimated from the rewards seen so far. `RawRewards` leaves rewards as they are.
"""

import abc
from typing import Any, ClassVar, final

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.belief.belief import RunningBelief, observe, squares_about, start, with_features
from jlibo.belief.moments import Moments, Units, times, unit_of
from jlibo.belief.prior import Prior
from jlibo.fields import hyper_parameter


class AbstractScaling(eqx.Module):
    """Where a task's units come from. `state` is what past tasks taught about it."""

    num_columns: eqx.AbstractClassVar[int]

    @abc.abstractmethod
    def init(self, dtype: Any) -> Any:
        """The state before the first task."""

    @abc.abstractmethod
    def units(self, state: Any, moments: Moments, running: RunningBelief) -> Units:
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


@final
class RawRewards(AbstractScaling):
    """Rewards as they come: the paper's setting, where the norm bound B fixes their scale."""

    num_columns: ClassVar[int] = 1

    def init(self, dtype):
        return ()

    def units(self, state, moments, running):
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


@final
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

    def units(self, state, moments, running):
        past = jnp.where(
            state.num_tasks > 0, jnp.exp(state.total / jnp.maximum(state.num_tasks, 1)), self.guess
        )
        freedom = self.weight + jnp.maximum(moments.count - 1, 0)
        past = past.astype(moments.mean.dtype)
        assert running.unit is not None  # `num_columns` is 3
        unit = jnp.maximum(running.unit, unit_of(past))
        squares = times(squares_about(moments.mean, running), (running.unit / unit) ** 2)
        scale = unit * jnp.sqrt((self.weight * (past / unit) ** 2 + squares) / freedom)
        return Units(moments.mean, scale)

    def settle(self, prior, noise_std, features, rewards, is_present):
        running = start(prior, features, noise_std, self.num_columns)

        def add(carry, step):
            running, moments = carry
            place, reward, present = step
            running = with_features(observe(with_features(running, features), place, reward, present), None)
            return (running, moments.add(reward, present)), None

        begin = with_features(running, None), Moments.empty(rewards.dtype)
        steps = jnp.arange(rewards.shape[0]), rewards, is_present
        (running, moments), _ = lax.scan(add, begin, steps)
        squares = squares_about(moments.mean, running)
        assert running.unit is not None
        scale = running.unit * jnp.sqrt(squares / jnp.maximum(moments.count - 1, 1))
        # All rewards alike: the task has no scale to tell of, which zero says.
        return Units(moments.mean, jnp.where(moments.differ, scale, 0))

    def update(self, state, units):
        known = units.scale > 0
        log_scale = jnp.log(jnp.where(known, units.scale, 1))
        return PastScales(state.total + log_scale, state.num_tasks + known.astype(log_scale.dtype))
