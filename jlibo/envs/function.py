"""A user's own functions as tasks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.checks import check_count, check_finite, check_shape
from jlibo.envs.base import AbstractEnv, Task
from jlibo.policies.base import hyper_parameter


class FunctionEnv(AbstractEnv):
    """Task s is `reward_fn(point, parameters)` with `parameters = draw_fn(index, key)`.

    Both are jittable; the parameters are any pytree. A fixed list of tasks: let `draw_fn` index into it, and
    give its length as `num_tasks`.
    Where a value is NaN or infinite the candidate is never played.
    """

    candidates: Float[Array, "candidates dim"]
    reward_fn: Callable[[Float[Array, " dim"], Any], Float[Array, ""]] = eqx.field(static=True)
    draw_fn: Callable[[Array, PRNGKeyArray], Any] = eqx.field(static=True)
    noise_std: Float[Array, ""] = hyper_parameter("noise_std", at_least=0)
    num_tasks: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_shape("candidates", self.candidates, ("candidates", "dim"))
        check_finite("candidates", self.candidates)
        if self.num_tasks is not None:
            check_count("num_tasks", self.num_tasks)

    def task(self, index, *, key):
        parameters = self.draw_fn(index, key)
        values = jax.vmap(lambda point: self.reward_fn(point, parameters))(jnp.asarray(self.candidates))
        return Task(values)
