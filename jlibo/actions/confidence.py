"""The upper confidence bound of a Gaussian belief on any action set, and where to begin to look for it."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.actions.base import AbstractActionSet, Action
from jlibo.checks import ArrayLike, check_shape
from jlibo.front_door import front_door

HIGHEST = lax.Precision.HIGHEST
POWER_STEPS = 20
"""Steps of the power iteration for the direction of the largest variance."""


@front_door
def upper_confidence(
    actions: AbstractActionSet,
    mean: Float[Array, " features"],
    factor: Float[Array, "features columns"],
    width: Float[ArrayLike, ""],
    *,
    key: PRNGKeyArray,
) -> Action:
    """Return the action with the highest `x . mean + width |factor^T x|`.

    **Arguments:**

    - `actions`: the set.
    - `mean`: mean of the weights.
    - `factor`: a matrix S whose product S S^T is the covariance of the weights.
    - `width`: factor on the standard deviation, at least 0.
    - `key`: random key of the search in sets that are not finite.

    **Returns:** an `Action`.

    **Raises:** `ValueError` for a wrong shape.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.actions import Ball, upper_confidence

    action = upper_confidence(Ball(1.0, 3), jnp.ones(3), jnp.eye(3), 2.0, key=jax.random.key(0))
    ```
    """
    check_shape("mean", mean, (actions.num_features,))
    check_shape("factor", factor, (actions.num_features, "columns"))

    width = jnp.asarray(width, mean.dtype)

    def score(points):
        squares = (jnp.matmul(points, factor, precision=HIGHEST) ** 2).sum(-1)
        # The derivative of the square root is infinite at zero, so select its argument too.
        deviation = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
        return jnp.matmul(points, mean, precision=HIGHEST) + width * deviation

    key_ascent, key_power = jax.random.split(key)
    directions = leading_directions(mean, factor, key=key_power)
    return actions.maximise(score, directions=directions, key=key_ascent)


def leading_directions(
    mean: Float[Array, " features"], factor: Float[Array, "features columns"], *, key: PRNGKeyArray
) -> Float[Array, "3 features"]:
    """Return the mean of a belief, and the direction of its largest variance with either sign."""

    def multiply(_, vector):
        vector = jnp.matmul(factor, jnp.matmul(vector, factor, precision=HIGHEST), precision=HIGHEST)
        largest = jnp.abs(vector).max()
        return vector / jnp.where(largest > 0, largest, 1)

    start = jax.random.normal(key, mean.shape, mean.dtype)
    top = lax.fori_loop(0, POWER_STEPS, multiply, start)
    return jnp.stack([mean, top, -top])
