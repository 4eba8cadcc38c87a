"""The history that meta-learners learn from: finished tasks as padded rows.

| here          | paper                                                                               |
|---------------|-------------------------------------------------------------------------------------|
| `PastTasks`   | D^exp_{1:s} or D_{1:s}, each task in at most as many rows as there are features     |
| `remember`    | the history after one more task                                                     |
| `remember_all`| the history of many tasks at once                                                   |
| `latest`      | the history of the latest tasks alone                                               |
| `penalised`   | the rows with the features of free groups, which have no penalty, projected out     |

The places of a history are in order of time. A history with fewer places than the run has tasks keeps the
latest tasks: once it is full, each new task moves the others by one place and the oldest is forgotten. A
learner of it is therefore in the state of a run on these tasks alone. A ring buffer would save this copy, but
the rows are read several times in every update, and learners sample tasks by time.
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
    - `place`: position of the task, counted from 0. It may be traced. Beyond the last place, the
      history is full: the oldest task is forgotten, and the new one gets the last place.
    - `data`: the finished task.
    - `choice`: which of its steps to store: "exploration" or "all".
    - `sizes`: sizes of the run.
    """
    task = _as_rows(data, choice, sizes)
    return put_last(past, place, task, sizes)


def put_last(tasks: Any, place: Int[Array, ""], task: Any, sizes: RunSizes) -> Any:
    """Return arrays with an entry for each task of a history, with the entry of one more task.

    **Arguments:**

    - `tasks`: a pytree of arrays with a leading axis of the places of a history.
    - `place`: as in `remember`.
    - `task`: the new entry, without that axis.
    - `sizes`: sizes of the run.
    """

    def put(old, new):
        if len(old) >= sizes.num_tasks:  # it cannot become full before the end of the run
            return old.at[place].set(new)
        is_full = (place >= len(old)).astype(jnp.int32)
        moved = lax.dynamic_slice_in_dim(jnp.concatenate([old, old[:1]]), is_full, len(old))
        return moved.at[jnp.minimum(place, len(old) - 1)].set(new)

    return jax.tree.map(put, tasks, task)


def latest(past: PastTasks, most: int | None) -> PastTasks:
    """Return the history of the latest `most` finished tasks, in as many places; None keeps all."""
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
