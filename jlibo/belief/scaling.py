"""Scalings: how the units of a task's rewards are chosen.

A reward may be an accuracy or a loss in dollars. A prior over functions of size one fits neither.
`Standardise` measures each task in units of its own: (reward - centre) / scale, with centre and scale
estimated from the rewards so far. `RawRewards` leaves rewards as they are.
"""

import abc
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.belief.belief import RunningBelief, fitted_units
from jlibo.belief.moments import Moments, Units, divisor, likeliest_units
from jlibo.belief.posterior import held_noise
from jlibo.belief.prior import Prior
from jlibo.belief.whitening import whiten
from jlibo.fields import number


class AbstractScaling(eqx.Module):
    """Base class of scalings: rules for the units of a task's rewards.

    Implement `init`, `units`, `settle` and `update`. All must be jittable. `state` is any pytree of what was
    learned about units from past tasks.
    """

    num_columns: eqx.AbstractClassVar[int]
    """Columns of the running belief: 1 if the units are always centre 0 and scale 1, else 3."""

    @abc.abstractmethod
    def init(self, dtype: Any) -> Any:
        """Return the state before the first task."""

    @abc.abstractmethod
    def units(self, state: Any, moments: Moments, running: RunningBelief) -> Units:
        """Return the units of the running task, from the moments of its rewards so far and its belief."""

    @abc.abstractmethod
    def settle(
        self,
        prior: Prior,
        noise_std: Float[Array, ""],
        features: Float[Array, "steps features"],
        rewards: Float[Array, " steps"],
        is_present: Bool[Array, " steps"],
    ) -> Units:
        """Return the units in which a finished task is stored.

        They depend only on the task's own rewards and a fixed prior, and not on earlier tasks.
        """

    @abc.abstractmethod
    def update(self, state: Any, units: Units) -> Any:
        """Return the state after a task that was stored in these units."""


@final
class RawRewards(AbstractScaling):
    """No scaling, as in the paper, where the norm bound B fixes the scale of the rewards.

    ```python
    import jlibo

    scaling = jlibo.RawRewards()  # the default of `run_lifelong`
    ```
    """

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


@final
class PastScales(eqx.Module):
    """Sum of the logarithms of past tasks' scales, and the number of these tasks."""

    total: Float[Array, ""]
    num_tasks: Float[Array, ""]


@final
class Standardise(AbstractScaling):
    """Subtract a centre from the task's rewards and divide by a scale, both of maximum likelihood.

    The estimates account for the prior (`jlibo.belief.belief.fitted_units`). The standard deviation would not
    do: a policy soon plays near the optimum, where rewards are alike, and the standard deviation would shrink
    with every such step. Nor would the mean: if the prior predicts high rewards at the first points, their
    mean is far above the mean of the function. In a mixture every component has units of its own.

    The first rewards of a task determine its scale poorly. The geometric mean of the past tasks' scales
    therefore counts as `weight` additional rewards.

    **Arguments:**

    - `guess`: positive; scale used in place of the past tasks' scales in the first task.
    - `weight`: positive; number of rewards that the past scale counts for.

    ```python
    import jlibo

    scaling = jlibo.Standardise(guess=1.0, weight=2.0)  # `run_lifelong(..., scaling=scaling)`
    ```
    """

    guess: Float[Array, ""] = eqx.field(converter=number("guess", above=0), default=1.0)
    weight: Float[Array, ""] = eqx.field(converter=number("weight", above=0), default=2.0)

    num_columns: ClassVar[int] = 3

    def init(self, dtype):
        zero = jnp.zeros((), dtype)
        return PastScales(zero, zero)

    def units(self, state, moments, running):
        past = jnp.where(
            state.num_tasks > 0, jnp.exp(state.total / jnp.maximum(state.num_tasks, 1)), self.guess
        )
        dtype = moments.mean.dtype
        return fitted_units(running, self.weight.astype(dtype), past.astype(dtype))

    def settle(self, prior, noise_std, features, rewards, is_present):
        moments = Moments.of(rewards, is_present)
        unit = divisor(moments.unit)
        # Deviations from the mean, because the squares of a large offset would cancel.
        targets = jnp.where(is_present, rewards / unit - moments.mean / unit, 0)
        rows = jnp.where(is_present[:, None], features, 0)
        means = jnp.matmul(rows, prior.mean, precision=lax.Precision.HIGHEST)
        columns = jnp.stack([-means, targets, is_present.astype(rewards.dtype)])
        noise_std = jnp.asarray(noise_std, rewards.dtype)
        noise_std = held_noise(noise_std, jnp.where(is_present, prior.variance(rows), 0).max(initial=0))
        whitened = whiten(prior, noise_std, rows, columns).columns
        products = jnp.matmul(whitened, whitened.T, precision=lax.Precision.HIGHEST)
        units = likeliest_units(products, moments.count, 0.0, 0.0)
        units = Units(moments.mean + unit * units.centre, unit * units.scale)
        # A scale of zero marks a task whose rewards are all alike; `update` ignores it.
        alike = Units(moments.mean, jnp.zeros_like(units.scale))
        return jax.tree.map(lambda a, b: jnp.where(moments.differ, a, b), units, alike)

    def update(self, state, units):
        known = units.scale > 0
        log_scale = jnp.log(jnp.where(known, units.scale, 1))
        return PastScales(state.total + log_scale, state.num_tasks + known.astype(log_scale.dtype))
