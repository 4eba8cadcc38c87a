"""The history that meta-learners learn from: finished tasks as padded rows.

| here          | paper                                                                               |
|---------------|-------------------------------------------------------------------------------------|
| `PastTasks`   | D^exp_{1:s} or D_{1:s}, each task in at most as many rows as there are features     |
| `remember`    | the history after one more task                                                     |
| `remember_all`| the history of many tasks at once                                                   |
| `penalised`   | the rows with the features of free groups, which have no penalty, projected out     |
"""

from functools import partial
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.meta.base import RunSizes, TaskData
from jlibo.meta.rows import compress_rows, num_rows, penalised_part, seen_rows


@final
class PastTasks(eqx.Module):
    """Finished tasks as rows. Rows of zeros are padding, and so are tasks with `is_done` 0."""

    features: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    constants: Float[Array, "tasks rows"]
    """The rows of a column of ones: 1 for an observation, its image for a compressed row."""
    lost_products: Float[Array, "tasks 2 2"]
    """Products of the columns of targets and of ones in the part that no linear function of the features
    explains and that compression removed; zero without compression."""
    num_observations: Float[Array, " tasks"]
    """Number of observations that the rows of each task represent."""
    is_done: Float[Array, " tasks"]
    """1 for finished tasks, else 0."""
    keys: PRNGKeyArray | None = None
    """Random key of each task, for learners that draw noise; see `TaskData`."""


def no_past(data: str, sizes: RunSizes) -> PastTasks:
    """Return a history with space for all tasks of a run, none of them finished.

    **Arguments:**

    - `data`: which steps of a task will be stored: "exploration" or "all".
    - `sizes`: sizes of the run.
    """
    rows = num_rows(data, sizes)
    zeros = jnp.zeros(sizes.num_tasks, sizes.dtype)
    return PastTasks(
        features=jnp.zeros((sizes.num_tasks, rows, sizes.num_features), sizes.dtype),
        targets=jnp.zeros((sizes.num_tasks, rows), sizes.dtype),
        constants=jnp.zeros((sizes.num_tasks, rows), sizes.dtype),
        lost_products=jnp.zeros((sizes.num_tasks, 2, 2), sizes.dtype),
        num_observations=zeros,
        is_done=zeros,
    )


def remember(
    past: PastTasks, place: Int[Array, ""], data: TaskData, choice: str, sizes: RunSizes
) -> PastTasks:
    """Return the history with one more task, in at most as many rows as there are features.

    **Arguments:**

    - `past`: the history so far.
    - `place`: position of the task, counted from 0. It may be traced.
    - `data`: the finished task.
    - `choice`: which of its steps to store: "exploration" or "all".
    - `sizes`: sizes of the run.
    """
    task = _as_rows(data, choice, sizes)
    return jax.tree.map(lambda old, new: old.at[place].set(new), past, task)


def remember_all(data: TaskData, is_done: Bool[Array, " tasks"], choice: str, sizes: RunSizes) -> PastTasks:
    """Return the history of all tasks at once; the leaves of `data` have a leading axis of tasks."""
    tasks = jax.vmap(lambda task: _as_rows(task, choice, sizes))(data)
    tasks = eqx.tree_at(lambda past: past.is_done, tasks, is_done.astype(sizes.dtype))
    if data.key is None:
        return tasks
    return eqx.tree_at(lambda past: past.keys, tasks, data.key, is_leaf=lambda leaf: leaf is None)


def _as_rows(data: TaskData, choice: str, sizes: RunSizes) -> PastTasks:
    """Return one task as rows; the leaves have no axis of tasks."""
    features, targets, used = seen_rows(data, choice, sizes)
    columns = jnp.stack([targets, used.astype(targets.dtype)])
    lost = jnp.zeros((2, 2), sizes.dtype)
    if len(used) > sizes.num_features:
        features, kept = compress_rows(features, columns)
        lost = _products(columns) - _products(kept)
        # Round-off must not make a sum of squares negative.
        lost = jnp.where(jnp.eye(2, dtype=bool), jnp.maximum(lost, 0), lost)
        columns = kept
    count = used.sum().astype(sizes.dtype)
    return PastTasks(features, columns[0], columns[1], lost, count, jnp.ones((), sizes.dtype))


def sample_tasks(past: PastTasks, most: int) -> PastTasks:
    """Return at most `most` of the finished tasks, evenly spaced in time."""
    if len(past.is_done) <= most:
        return past
    places = jnp.arange(most)
    num_done = past.is_done.sum().astype(int)
    places = jnp.where(num_done > most, places * num_done // most, places)
    return jax.tree.map(lambda leaf: leaf[places], past)


def _products(columns: Float[Array, "2 rows"]) -> Float[Array, "2 2"]:
    return jnp.matmul(columns, columns.T, precision=lax.Precision.HIGHEST)


def penalised(
    past: PastTasks, sizes: RunSizes
) -> tuple[Float[Array, "tasks rows features"], Float[Array, "tasks rows"]]:
    """Return design and targets of the group lasso on the past, with the free groups removed."""
    if not sizes.free_groups:
        return past.features, past.targets
    return jax.vmap(partial(penalised_part, sizes=sizes))(past.features, past.targets)
