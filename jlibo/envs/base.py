"""The interface of environments: candidates to play, and a sequence of tasks that assign values to them."""

import abc
from typing import TYPE_CHECKING, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.checks import check_count, fail, is_concrete
from jlibo.fields import AbstractField


@final
class Task(eqx.Module):
    """One bandit problem over a finite set of candidates.

    **Raises:** `ValueError` if no available candidate has a finite value. Traced values are not checked.

    ```python
    import jax.numpy as jnp

    import jlibo

    task = jlibo.Task(values=jnp.asarray([0.1, 0.7, 0.4]), available=jnp.asarray([True, False, True]))
    print(task.best_value)  # 0.4
    ```
    """

    values: Float[Array, " candidates"]
    """f_s at every candidate: the expected rewards, which are hidden from the agent."""
    available: Bool[Array, " candidates"] | None = None
    """Which candidates can be played; None means all."""
    points: Float[Array, "candidates dim"] | None = None
    """Candidates of this task; None means those of the environment."""

    def __check_init__(self):
        if not (is_concrete(self.values) and is_concrete(self.available)) or np.ndim(self.values) != 1:
            return
        available = True if self.available is None else np.asarray(self.available)
        if not (np.isfinite(self.values) & available).any():
            fail("values", "finite for at least one available candidate", "no such candidate")

    @property
    def best_value(self) -> Float[Array, ""]:
        """f_s(x*_s), the value from which regret is measured; NaN if no candidate can be played."""
        if self.available is None:
            return self.values.max()
        best = jnp.where(self.available, self.values, -jnp.inf).max()
        return jnp.where(jnp.any(self.available), best, jnp.nan)


class AbstractEnv(eqx.Module):
    """A sequence of tasks. Implement `task`; it must be jittable and a pure function of its arguments."""

    if TYPE_CHECKING:
        candidates = AbstractField[Float[Array, "candidates dim"]]()
        noise_std = AbstractField[Float[Array, ""]]()
    else:
        candidates: eqx.AbstractVar[Float[Array, "candidates dim"]]
        noise_std: eqx.AbstractVar[Float[Array, ""]]
    always_finite: ClassVar[bool] = False
    """Whether the values of available candidates are known to be finite. If not, runs check them: candidates
    whose value is NaN or infinite are not played, and the result's `status` reports them."""
    if TYPE_CHECKING:
        num_tasks = AbstractField[int | None]()
    else:
        # Without an annotation or a descriptor: dataclasses then let subclasses declare it in any way.
        num_tasks = None
    """How many tasks there are; None: as many as asked for. An environment with a limit declares a static
    field or a property of this name, and runs of more tasks are refused."""

    @abc.abstractmethod
    def task(self, index: Int[Array, ""], *, key: PRNGKeyArray) -> Task:
        """Task number `index`, counted from 0. `key` is the task's own."""


def check_num_tasks(env: AbstractEnv, num_tasks: int, *, held_out: int = 0) -> None:
    """Check that `env` has `num_tasks` tasks, and `held_out` further ones to test on."""
    check_count("num_tasks", num_tasks)
    if env.num_tasks is not None and num_tasks + held_out > env.num_tasks:
        less = f", less {held_out} to test on" if held_out else ""
        fail("num_tasks", f"at most the {env.num_tasks} tasks of the environment{less}", num_tasks)


def finite_part(task: Task) -> Task:
    """Return the task with candidates whose value is NaN or infinite made unavailable."""
    is_finite = jnp.isfinite(task.values)
    available = is_finite if task.available is None else is_finite & task.available
    return Task(jnp.where(available, task.values, 0), available, task.points)


def move_to_available(
    draws: Int[Array, " draws"], available: Bool[Array, " candidates"], *, key: PRNGKeyArray
) -> Int[Array, " draws"]:
    """Return the draws, with unavailable candidates replaced by uniform draws from the available ones."""
    counts = jnp.cumsum(available.astype(jnp.int32))
    places = jax.random.uniform(key, draws.shape) * counts[-1]
    others = jnp.searchsorted(counts, places.astype(jnp.int32), side="right")
    others = jnp.minimum(others, available.shape[0] - 1).astype(draws.dtype)
    return jnp.where(available[draws], draws, others)
