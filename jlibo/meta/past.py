"""The history that meta-learners learn from: finished tasks as padded rows.

| here          | paper                                                                               |
|---------------|-------------------------------------------------------------------------------------|
| `PastTasks`   | D^exp_{1:s} or D_{1:s}, each task in at most as many rows as there are features     |
| `remember`    | the history after one more task                                                     |
| `penalised`   | the rows with the features of free groups, which have no penalty, projected out     |
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jlibo.meta.base import RunSizes, TaskData
from jlibo.meta.rows import compress_rows, free_features, num_rows, project_out, seen_rows


@final
class PastTasks(eqx.Module):
    """Finished tasks as rows. Rows of zeros are padding, and so are tasks with `is_done` 0."""

    features: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    lost_squares: Float[Array, " tasks"]
    """Sum of squared rewards that no linear function of the features explains and that compression removed;
    zero without compression."""
    num_observations: Float[Array, " tasks"]
    """Number of observations that the rows of each task represent."""
    is_done: Float[Array, " tasks"]
    """1 for finished tasks, else 0."""


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
        lost_squares=zeros,
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
    features, targets, used = seen_rows(data, choice, sizes)
    lost = jnp.zeros((), sizes.dtype)
    if len(used) > sizes.num_features:
        features, kept = compress_rows(features, targets)
        lost = jnp.maximum((targets**2).sum() - (kept**2).sum(), 0)
        targets = kept
    return PastTasks(
        features=past.features.at[place].set(features),
        targets=past.targets.at[place].set(targets),
        lost_squares=past.lost_squares.at[place].set(lost),
        num_observations=past.num_observations.at[place].set(used.sum()),
        is_done=past.is_done.at[place].set(1),
    )


def penalised(
    past: PastTasks, sizes: RunSizes
) -> tuple[Float[Array, "tasks rows features"], Float[Array, "tasks rows"]]:
    """Return design and targets of the group lasso on the past, with the free groups projected out."""
    if not sizes.free_groups:
        return past.features, past.targets
    columns = free_features(sizes)
    return jax.vmap(lambda features, targets: project_out(features, targets, columns))(
        past.features, past.targets
    )
