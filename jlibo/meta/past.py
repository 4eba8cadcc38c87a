"""The history that meta-learners learn from: finished tasks as padded rows.

| here          | paper                                                                               |
|---------------|-------------------------------------------------------------------------------------|
| `PastTasks`   | D^exp_{1:s} or D_{1:s}, each task in at most as many rows as there are features     |
| `remember`    | the history after one more task                                                     |
| `remember_all`| the history of many tasks at once                                                   |
| `latest`      | the history of the latest tasks alone                                               |
| `penalised`   | the rows with the features of free groups, which have no penalty, projected out     |

A history with fewer places than the run has tasks keeps the latest tasks, in a ring: once it is full, a new
task takes the place of the oldest. The group lasso does not depend on the order of tasks; `in_order` restores
it for learners that sample tasks by time. Either way, learners are then in the state of a run on the kept
tasks alone.
"""

from functools import partial
from typing import Any, final

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


def no_past(data: str, sizes: RunSizes, *, most: int | None = None) -> PastTasks:
    """Return a history with space for the tasks of a run, none of them finished.

    **Arguments:**

    - `data`: which steps of a task will be stored: "exploration" or "all".
    - `sizes`: sizes of the run.
    - `most`: most tasks to keep, the latest ones; None for all tasks of the run.
    """
    rows = num_rows(data, sizes)
    num_places = sizes.num_tasks if most is None else min(most, sizes.num_tasks)
    zeros = jnp.zeros(num_places, sizes.dtype)
    return PastTasks(
        features=jnp.zeros((num_places, rows, sizes.num_features), sizes.dtype),
        targets=jnp.zeros((num_places, rows), sizes.dtype),
        constants=jnp.zeros((num_places, rows), sizes.dtype),
        lost_products=jnp.zeros((num_places, 2, 2), sizes.dtype),
        num_observations=zeros,
        is_done=zeros,
    )


def remember(
    past: PastTasks, place: Int[Array, ""], data: TaskData, choice: str, sizes: RunSizes
) -> PastTasks:
    """Return the history with one more task, in at most as many rows as there are features.

    **Arguments:**

    - `past`: the history so far.
    - `place`: number of tasks before this one. It may be traced. It is the place of the task; if the history
      is full, the places of the oldest tasks are used again.
    - `data`: the finished task.
    - `choice`: which of its steps to store: "exploration" or "all".
    - `sizes`: sizes of the run.
    """
    return put(past, place, _as_rows(data, choice, sizes))


def put(tasks: Any, place: Int[Array, ""], task: Any) -> Any:
    """Return arrays with an axis of the places of a history, with the entry of one more task.

    **Arguments:**

    - `tasks`: a pytree of arrays with a leading axis of places.
    - `place`: as in `remember`.
    - `task`: a pytree of the entries of the task, without that axis.
    """
    return jax.tree.map(lambda old, new: old.at[place % len(old)].set(new), tasks, task)


def in_order(past: PastTasks, num_done: Int[Array, ""], sizes: RunSizes) -> PastTasks:
    """Return the history after `num_done` tasks in order of time, the oldest at place 0."""
    num_places = len(past.is_done)
    if num_places >= sizes.num_tasks:  # no task is forgotten
        return past
    oldest = jnp.where(num_done > num_places, num_done % num_places, 0)
    return jax.tree.map(lambda leaf: jnp.roll(leaf, -oldest, axis=0), past)


def latest(past: PastTasks, most: int | None) -> PastTasks:
    """Return the history of the latest `most` finished tasks, in as many places; None keeps all.

    The places of `past` are in order of time, and so are those of the result.
    """
    if most is None or len(past.is_done) <= most:
        return past
    num_forgotten = jnp.maximum(past.is_done.sum().astype(jnp.int32) - most, 0)
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, num_forgotten, most), past)


def num_kept(past: PastTasks, num_done: Int[Array, ""]) -> Int[Array, ""]:
    """Return how many of `num_done` finished tasks are in the history."""
    return jnp.minimum(num_done, len(past.is_done))


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
    """Return at most `most` of the finished tasks, evenly spaced; places of `past` are in order of time."""
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
