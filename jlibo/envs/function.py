"""Tasks defined by a user's functions."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.checks import check_count, check_finite, check_shape
from jlibo.envs.base import AbstractEnv, Task
from jlibo.fields import number
from jlibo.front_door import check_fields


@final
class FunctionEnv(AbstractEnv):
    """Environment whose tasks are given by two functions.

    The value of a point in task number `index` is `reward_fn(point, parameters)` with
    `parameters = draw_fn(index, key)`. Candidates whose value is NaN or infinite are never played.

    **Arguments:**

    - `candidates`: points that can be played, `[candidates, dim]`.
    - `reward_fn`: jittable function of a point `[dim]` and the task's parameters, without noise.
    - `draw_fn`: jittable function of the task's number, counted from 0, and its key. It returns the task's
      parameters, any pytree. For a fixed list of tasks, index into an array.
    - `noise_std`: standard deviation of the noise added to rewards, at least 0.
    - `num_tasks`: number of tasks, if there are only so many.

    **Raises:** `ValueError` if `candidates` has a wrong shape or a value that is NaN or infinite, or
    `noise_std` is negative.

    ```python
    import jax
    import jax.numpy as jnp

    import jlibo

    env = jlibo.FunctionEnv(
        candidates=jnp.linspace(0, 1, 50)[:, None],
        reward_fn=lambda point, optimum: -((point[0] - optimum) ** 2),
        draw_fn=lambda index, key: jax.random.uniform(key),
        noise_std=0.1,
    )
    task = env.task(0, key=jax.random.key(0))
    ```
    """

    candidates: Float[Array, "candidates dim"]
    reward_fn: Callable[[Float[Array, " dim"], Any], Float[Array, ""]] = eqx.field(static=True)
    draw_fn: Callable[[Array, PRNGKeyArray], Any] = eqx.field(static=True)
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", at_least=0))
    num_tasks: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_fields(self)
        check_shape("candidates", self.candidates, ("candidates", "dim"))
        check_finite("candidates", self.candidates)
        if self.num_tasks is not None:
            check_count("num_tasks", self.num_tasks)

    def task(self, index, *, key):
        parameters = self.draw_fn(index, key)
        values = jax.vmap(lambda point: self.reward_fn(point, parameters))(jnp.asarray(self.candidates))
        return Task(values)
