"""The joint choice of actions of MTLR-OFUL (Hu, Chen, Jin, Li & Wang 2021), without its rank constraint.

MTLR-OFUL maximises sum_s x_s . theta_s over actions and over all low-rank Theta in a confidence set
sum_s |theta_s - theta_hat_s|^2_{V_s} <= L. This is not computable. Here the rank is used in the estimate
theta_hat but not in the maximisation, whose value is then

    sum_s x_s . theta_hat_s + sqrt(L) sqrt(sum_s |x_s|^2_{V_s^-1}),

a bonus that tasks share. It is the maximum over unit vectors u of sqrt(L) sum_s u_s |x_s|_{V_s^-1}: for given
shares u every task maximises an upper confidence bound on its own, and for given actions the best u is
proportional to their widths. The two are alternated, which never decreases the value, from the best actions
for each multiplier eta of x . theta_hat + eta |x|^2_{V^-1} on a grid. With one task it is OFUL.

| here           | paper                                                                                |
|----------------|--------------------------------------------------------------------------------------|
| `radius`       | L = c (m r + d r log(m n)) sigma^2, `confidence_radius`; the constants are ours      |
| `joint_choice` | the actions of all tasks in a round                                                  |
"""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.arena.estimators.gaussian import HIGHEST
from jlibo.checks import check_count, check_shape
from jlibo.front_door import front_door

NUM_MULTIPLIERS = 40
"""Default number of multipliers on the grid."""
NUM_ROUNDS = 5
"""Alternating maximisations from each multiplier."""
RANGE = 1e3
"""Ratio of the largest multiplier on the grid to the multiplier of the shared bonus of greedy actions."""


@final
class JointChoice(NamedTuple):
    """Answer of `joint_choice`."""

    actions: Int[Array, " tasks"]
    value: Float[Array, ""]
    """Estimated rewards of all tasks plus the shared bonus."""


@front_door
def confidence_radius(
    scale: Float[Array, ""],
    num_tasks: int,
    num_features: int,
    rank: int,
    num_rounds: Float[Array, ""],
    noise_variance: Float[Array, ""],
) -> Float[Array, ""]:
    """Return L = `scale` (m r + d r log(m n)) sigma^2.

    ```python
    from jlibo.arena.estimators import confidence_radius

    print(confidence_radius(1.0, num_tasks=10, num_features=5, rank=2, num_rounds=100.0, noise_variance=1.0))
    ```
    """
    count = jnp.maximum(num_tasks * jnp.asarray(num_rounds), 1)
    return scale * (num_tasks * rank + num_features * rank * jnp.log(count)) * noise_variance


@front_door
def joint_choice(
    actions: Float[Array, "tasks actions features"],
    coef: Float[Array, "tasks features"],
    inverse: Float[Array, "tasks features features"],
    radius: Float[Array, ""],
    *,
    present: Bool[Array, " tasks"] | None = None,
    num_multipliers: int = NUM_MULTIPLIERS,
) -> JointChoice:
    """Return the action of every task that together maximise the rewards plus a shared bonus.

    **Arguments:**

    - `actions`: features of the actions of every task.
    - `coef`: theta_hat_s.
    - `inverse`: V_s^-1, with the ridge in V_s.
    - `radius`: L.
    - `present`: which tasks choose an action; the others do not count.
    - `num_multipliers`: size of the grid of multipliers.

    **Returns:** `JointChoice`, with indices of actions.

    **Raises:** `ValueError` for wrong shapes.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import joint_choice

    arms = jnp.eye(3)[None].repeat(2, axis=0)
    print(joint_choice(arms, jnp.zeros((2, 3)), jnp.eye(3)[None].repeat(2, axis=0), 1.0).actions)
    ```
    """
    actions, coef, inverse = jnp.asarray(actions), jnp.asarray(coef), jnp.asarray(inverse)
    num_tasks, _, num_features = actions.shape
    check_shape("coef", coef, (num_tasks, num_features))
    check_shape("inverse", inverse, (num_tasks, num_features, num_features))
    check_count("num_multipliers", num_multipliers, at_least=2)
    rewards = jnp.einsum("taf,tf->ta", actions, coef, precision=HIGHEST)
    squares = jnp.einsum("taf,tfg,tag->ta", actions, inverse, actions, precision=HIGHEST)
    squares = jnp.maximum(squares, 0)
    weight = jnp.ones(num_tasks, rewards.dtype)
    if present is not None:
        weight = jnp.asarray(present).astype(rewards.dtype)
    radius = jnp.asarray(radius, rewards.dtype)

    widths = jnp.sqrt(squares)

    def at(values, chosen):
        return jnp.take_along_axis(values, chosen[:, None], 1)[:, 0] * weight

    def improve(_, chosen):
        own = at(widths, chosen)
        total = jnp.sqrt((own**2).sum())
        share = own / jnp.where(total > 0, total, 1)
        return jnp.argmax(rewards + jnp.sqrt(radius) * share[:, None] * widths, 1)

    def evaluate(multiplier):
        chosen = lax.fori_loop(0, NUM_ROUNDS, improve, jnp.argmax(rewards + multiplier * squares, 1))
        return chosen, at(rewards, chosen).sum() + jnp.sqrt(radius * at(squares, chosen).sum())

    # At the optimum the multiplier is sqrt(L) / (2 sqrt(sum of squares)), and the sum of squares is between
    # its values at the smallest and at the largest bonus of every task.
    least = jnp.sqrt((squares.min(1) * weight).sum())
    most = jnp.sqrt((squares.max(1) * weight).sum())
    tiny = jnp.finfo(rewards.dtype).tiny ** 0.5
    low = jnp.sqrt(radius) / (2 * jnp.maximum(most, tiny))
    high = jnp.sqrt(radius) / (2 * jnp.maximum(jnp.maximum(least, most / RANGE), tiny))
    grid = jnp.exp(jnp.linspace(jnp.log(low + tiny), jnp.log(high + tiny), num_multipliers))
    choices, values = jax.vmap(evaluate)(grid)
    best = jnp.argmax(values)
    return JointChoice(choices[best], values[best])
