"""Tasks looked up in a table of recorded evaluations: each task is a row, each candidate a configuration."""

import os
from collections.abc import Sequence
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.checks import ArrayLike, check_shape, fail, is_concrete
from jlibo.envs.base import AbstractEnv, Task
from jlibo.fields import ScalarLike, number
from jlibo.front_door import front_door
from jlibo.tables import Table, read_csv


@final
class TableEnv(AbstractEnv):
    """Environment whose tasks are the rows of a table, in their order or shuffled.

    **Arguments:**

    - `values`: rewards, `[tasks, candidates]`. A cell that is NaN was never evaluated and is never played.
    - `candidates`: points shared by all tasks, `[candidates, dim]`, or each task's own,
      `[tasks, candidates, dim]`. Pad tasks with fewer configurations with NaN values.
    - `noise_std`: standard deviation of the noise added to rewards, at least 0.

    **Raises:** `ValueError` if shapes do not agree, a task has no known value, or a value is infinite.

    ```python
    import jax.numpy as jnp

    import jlibo

    env = jlibo.TableEnv(
        values=jnp.asarray([[0.6, 0.7, 0.8], [0.9, 0.8, jnp.nan]]),
        candidates=jnp.asarray([[0.0], [0.5], [1.0]]),
    )
    glmnet = jlibo.TableEnv.from_table(jlibo.load_table("glmnet"), metric="auc")
    print(env.num_tasks, glmnet.num_tasks)  # 2 49
    ```
    """

    always_finite: ClassVar[bool] = True
    candidates: Float[Array, "candidates dim"]
    values: Float[Array, "tasks candidates"]
    available: Bool[Array, "tasks candidates"]
    own_candidates: Float[Array, "tasks candidates dim"] | None
    order: Int[Array, " tasks"]
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", at_least=0))

    @front_door
    def __init__(self, values: ArrayLike, candidates: ArrayLike, *, noise_std: ScalarLike = 0.0):
        check_shape("values", values, ("tasks", "candidates"))
        num_tasks, num_candidates = np.shape(values)
        if np.ndim(candidates) == 3:
            check_shape("candidates", candidates, (num_tasks, num_candidates, "dim"))
        else:
            check_shape("candidates", candidates, (num_candidates, "dim"))
        values = jnp.asarray(values)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            values = values.astype(float)  # candidates take the dtype of the values, so it must be a float
        available = ~jnp.isnan(values)
        if is_concrete(available):
            empty = np.flatnonzero(~np.asarray(available).any(1))
            if empty.size:
                fail("values", "known for at least one candidate of each task", f"none for task {empty[0]}")
            if np.isinf(np.asarray(values)).any():
                fail("values", "finite, or NaN where unknown", "an infinite value")
        candidates = jnp.asarray(candidates, values.dtype)
        shared = candidates.ndim == 2
        if not shared:
            # Padding may be NaN, so replace it by a candidate that can be played.
            first = jnp.argmax(available, axis=1)[:, None, None]
            candidates = jnp.where(
                available[..., None], candidates, jnp.take_along_axis(candidates, first, axis=1)
            )
        self.candidates = candidates if shared else candidates[0]
        self.own_candidates = None if shared else candidates
        self.values = jnp.where(available, values, 0)
        self.available = available
        self.order = jnp.arange(num_tasks)
        self.noise_std = noise_std  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    @front_door
    def from_table(
        cls,
        table: Table,
        *,
        metric: str | None = None,
        maximise: bool = True,
        scale_to_unit: bool = True,
        noise_std: ScalarLike = 0.0,
    ) -> "TableEnv":
        """Return an environment whose rewards are one metric of a table.

        **Arguments:**

        - `table`: the table.
        - `metric`: name of the metric; optional if there is only one.
        - `maximise`: if False, less is better, and the reward is minus the metric.
        - `scale_to_unit`: scale each parameter to `[0, 1]` by its minimum and maximum over the whole table,
          so that a configuration is the same point in every task.
        - `noise_std`: standard deviation of the noise added to rewards.

        **Returns:** a `TableEnv`.

        **Raises:** `ValueError` if there is no such metric, or a task has no known value of it.
        """
        values = table.metric(metric)
        candidates = table.unit_params() if scale_to_unit else table.params
        return cls(values if maximise else -values, candidates, noise_std=noise_std)

    @classmethod
    @front_door
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        *,
        task: str | None = None,
        params: str | Sequence[str] | None = None,
        metric: str | None = None,
        log: str | Sequence[str] = (),
        maximise: bool = True,
        scale_to_unit: bool = True,
        noise_std: ScalarLike = 0.0,
    ) -> "TableEnv":
        """Return an environment from a CSV file: `read_csv`, then `from_table`.

        **Arguments:**

        - `path`, `task`, `params`, `log`: as for `jlibo.read_csv`.
        - `metric`: column with the metric; by default the last column.
        - `maximise`, `scale_to_unit`, `noise_std`: as for `from_table`.

        **Returns:** a `TableEnv`.

        **Raises:** `ValueError` under the rules of `jlibo.read_csv`.
        """
        table = read_csv(path, task=task, params=params, metrics=metric, log=log)
        return cls.from_table(table, maximise=maximise, scale_to_unit=scale_to_unit, noise_std=noise_std)

    @property
    def num_tasks(self) -> int:
        """Number of rows of the table."""
        return self.values.shape[-2]

    @front_door
    def shuffled(self, *, key: PRNGKeyArray) -> "TableEnv":
        """Return the environment with its tasks in a random order."""
        return eqx.tree_at(lambda env: env.order, self, jax.random.permutation(key, self.order))

    def task(self, index, *, key):
        row = self.order[index]
        points = None if self.own_candidates is None else self.own_candidates[row]
        return Task(self.values[row], self.available[row], points)
