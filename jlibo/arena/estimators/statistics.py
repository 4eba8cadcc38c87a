"""Sufficient statistics of tasks with linear rewards, y = x . theta_s + noise.

| here       | meaning                                                            |
|------------|--------------------------------------------------------------------|
| `gram`     | V_s = sum_t x_t x_t^T                                              |
| `moment`   | c_s = sum_t x_t y_t                                                |
| `squares`  | sum_t y_t^2                                                        |
| `count`    | n_s, the number of observations                                    |

These are plain sums: they are not divided by the noise variance, which is an argument of the functions that
need it. A task without observations has zeros everywhere and changes no estimate.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.front_door import front_door

HIGHEST = lax.Precision.HIGHEST


@final
class TaskStatistics(eqx.Module):
    """Sums over the observations of every task; made by `statistics_of` or `TaskStatistics.empty`.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import TaskStatistics

    stats = TaskStatistics.empty(num_tasks=3, num_features=2)
    stats = stats.observe(jnp.asarray(1), jnp.asarray([1.0, 2.0]), jnp.asarray(0.5))
    print(stats.count)  # [0. 1. 0.]
    ```
    """

    gram: Float[Array, "*tasks features features"]
    moment: Float[Array, "*tasks features"]
    squares: Float[Array, "*tasks"]
    count: Float[Array, "*tasks"]

    @staticmethod
    def empty(num_tasks: int, num_features: int, dtype: Any = None) -> "TaskStatistics":
        """Return the statistics of `num_tasks` tasks without observations."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return TaskStatistics(
            jnp.zeros((num_tasks, num_features, num_features), dtype),
            jnp.zeros((num_tasks, num_features), dtype),
            jnp.zeros(num_tasks, dtype),
            jnp.zeros(num_tasks, dtype),
        )

    @property
    def num_tasks(self) -> int:
        """Number of tasks, those without observations included."""
        return self.count.shape[0]

    @property
    def num_features(self) -> int:
        """Number of features."""
        return self.gram.shape[-1]

    @property
    def present(self) -> Float[Array, "*tasks"]:
        """1 for tasks with observations, else 0."""
        return (self.count > 0).astype(self.gram.dtype)

    def observe(
        self,
        task: Int[Array, "*played"],
        features: Float[Array, "*played features"],
        rewards: Float[Array, "*played"],
        present: Bool[Array, "*played"] | None = None,
    ) -> "TaskStatistics":
        """Return the statistics after one observation, or after one observation in each of several tasks.

        The same task may occur more than once. Observations that are not `present` change nothing.
        """
        weight = jnp.ones_like(rewards) if present is None else present.astype(rewards.dtype)
        weighted = features * weight[..., None]
        rewards = rewards * weight
        outer = weighted[..., :, None] * weighted[..., None, :]
        return TaskStatistics(
            self.gram.at[task].add(outer),
            self.moment.at[task].add(weighted * rewards[..., None]),
            self.squares.at[task].add(rewards**2),
            self.count.at[task].add(weight),
        )

    def only(self, chosen: Bool[Array, " tasks"]) -> "TaskStatistics":
        """Return the same statistics with those of the tasks that are not `chosen` set to zero."""

        def part(leaf):
            return jnp.where(chosen.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

        return jax.tree.map(part, self)


@front_door
def statistics_of(
    features: Float[Array, "*tasks rows features"],
    rewards: Float[Array, "*tasks rows"],
    present: Bool[Array, "*tasks rows"] | None = None,
) -> TaskStatistics:
    """Return the statistics of tasks given by their observations.

    **Arguments:**

    - `features`: x_t of each observation.
    - `rewards`: y_t.
    - `present`: which rows exist; by default all. The values of the others are ignored.

    **Returns:** `TaskStatistics`, with an axis of tasks if the arguments have one.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import statistics_of

    stats = statistics_of(jnp.ones((4, 10, 3)), jnp.zeros((4, 10)))
    print(stats.gram.shape)  # (4, 3, 3)
    ```
    """
    features, rewards = jnp.asarray(features), jnp.asarray(rewards)
    if present is not None:
        features, rewards = jnp.where(present[..., None], features, 0), jnp.where(present, rewards, 0)
    count = jnp.full(rewards.shape[:-1], rewards.shape[-1]) if present is None else present.sum(-1)
    return TaskStatistics(
        jnp.einsum("...tf,...tg->...fg", features, features, precision=HIGHEST),
        jnp.einsum("...tf,...t->...f", features, rewards, precision=HIGHEST),
        (rewards**2).sum(-1),
        count.astype(features.dtype),
    )
