"""Look-up in a table of evaluations made before: each task is a row, each candidate a configuration."""

import os
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.checks import ArrayLike, check_shape, fail, is_concrete
from jlibo.envs.base import AbstractEnv, Task
from jlibo.policies.base import hyper_parameter
from jlibo.tables import Table, read_csv


class TableEnv(AbstractEnv):
    """Tasks from a table, in the order of its rows or a shuffled one.

    `values[t, c]` is the reward of candidate c in task t; NaN where it was never evaluated: such a cell is
    never played. `candidates` are shared by all tasks, [candidates, dim], or each task's own,
    [tasks, candidates, dim]; tasks with fewer configurations are padded with NaN values.
    """

    always_finite: ClassVar[bool] = True
    candidates: Float[Array, "candidates dim"]
    values: Float[Array, "tasks candidates"]
    available: Bool[Array, "tasks candidates"]
    own_candidates: Float[Array, "tasks candidates dim"] | None
    order: Int[Array, " tasks"]
    noise_std: Float[Array, ""] = hyper_parameter("noise_std", at_least=0)

    def __init__(self, values: ArrayLike, candidates: ArrayLike, *, noise_std: float = 0.0):
        check_shape("values", values, ("tasks", "candidates"))
        num_tasks, num_candidates = np.shape(values)
        if np.ndim(candidates) == 3:
            check_shape("candidates", candidates, (num_tasks, num_candidates, "dim"))
        else:
            check_shape("candidates", candidates, (num_candidates, "dim"))
        values = jnp.asarray(values)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            values = values.astype(float)  # whole numbers; candidates take the precision of the values
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
            # What pads a task may be anything, NaN too: a candidate that can be played takes its place.
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
    def from_table(
        cls,
        table: Table,
        *,
        metric: str | None = None,
        maximise: bool = True,
        scale_to_unit: bool = True,
        noise_std: float = 0.0,
    ) -> "TableEnv":
        """Tasks whose reward is one metric of a table, or minus the metric where less is better.

        `scale_to_unit` brings each parameter into [0, 1] by its least and greatest value in the whole table,
        so that a configuration is the same point in every task. `metric` may go unnamed if there is one.
        """
        values = table.metric(metric)
        candidates = table.unit_params() if scale_to_unit else table.params
        return cls(values if maximise else -values, candidates, noise_std=noise_std)

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike,
        *,
        task: str | None = None,
        params: str | Sequence[str] | None = None,
        metric: str | None = None,
        log: str | Sequence[str] = (),
        maximise: bool = True,
        scale_to_unit: bool = True,
        noise_std: float = 0.0,
    ) -> "TableEnv":
        """Tasks from a file with the columns task, parameters..., metric: `read_csv`, then `from_table`."""
        table = read_csv(path, task=task, params=params, metrics=metric, log=log)
        return cls.from_table(table, maximise=maximise, scale_to_unit=scale_to_unit, noise_std=noise_std)

    @property
    def num_tasks(self) -> int:
        """Number of rows of the table."""
        return self.values.shape[-2]

    def shuffled(self, *, key: PRNGKeyArray) -> "TableEnv":
        """The same tasks in a random order."""
        return eqx.tree_at(lambda env: env.order, self, jax.random.permutation(key, self.order))

    def task(self, index, *, key):
        row = self.order[index]
        points = None if self.own_candidates is None else self.own_candidates[row]
        return Task(self.values[row], self.available[row], points)
