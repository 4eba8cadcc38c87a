"""The rows of a task that a meta-learner stores, compressed without loss to at most one per feature.

A least-squares loss over n rows and d < n features depends on the rows only through their normal equations.
`compress_rows` returns d rows with the same normal equations, so learning from all data of a task costs no
more than d rows for any horizon. `project_out` eliminates features without penalty: the remaining problem is
the original one minimised over their coefficients. For a constant feature, this centres all rows.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.belief.moments import Units
from jlibo.belief.prior import full_prior
from jlibo.belief.scaling import AbstractScaling
from jlibo.checks import fail
from jlibo.meta.base import RunSizes, TaskData


@final
class Rows(eqx.Module):
    """Rows that represent `num_observations` observations; unused rows are zero."""

    features: Float[Array, "rows features"]
    targets: Float[Array, " rows"]
    num_observations: Float[Array, ""]


DATA_CHOICES = ("exploration", "all")
"""Which steps of a task a learner uses: those of forced exploration, or all."""


def num_rows(data: str, sizes: RunSizes) -> int:
    """Return the number of rows stored per task."""
    if data == "exploration":
        if sizes.max_explore == 0:
            fail("exploration", "a schedule that explores, as the learner uses exploration data", "none")
        return min(sizes.max_explore, sizes.num_features)
    return min(sizes.horizon, sizes.num_features)


def seen_rows(
    task: TaskData, data: str, sizes: RunSizes
) -> tuple[Float[Array, "steps features"], Float[Array, " steps"], Bool[Array, " steps"]]:
    """Return features and rewards that the learner uses, zero where absent, and which are present."""
    length = sizes.max_explore if data == "exploration" else sizes.horizon
    used = (task.explored if data == "exploration" else task.is_present)[:length]
    return (
        jnp.where(used[:, None], task.features[:length], 0),
        jnp.where(used, task.rewards[:length], 0),
        used,
    )


def rows_of(task: TaskData, data: str, sizes: RunSizes) -> Rows:
    """Return the rows of a task that the learner uses, at most as many as there are features."""
    features, targets, used = seen_rows(task, data, sizes)
    features, targets = penalised_part(features, targets, sizes)
    if len(used) > sizes.num_features:
        features, (targets,) = compress_rows(features, targets[None])
    return Rows(features, targets, used.sum().astype(features.dtype))


def settled(
    data: TaskData, scaling: AbstractScaling, noise_std: Float[Array, ""], sizes: RunSizes
) -> tuple[TaskData, Units]:
    """Return a finished task with its rewards in the units in which it is stored, and these units."""
    prior = full_prior(sizes.groups, sizes.dtype, free_groups=sizes.free_groups)
    rewards = data.rewards.astype(sizes.dtype)
    units = scaling.settle(
        prior, jnp.asarray(noise_std, sizes.dtype), data.features, rewards, data.is_present
    )
    return eqx.tree_at(lambda d: d.rewards, data, units.apply(rewards)), units


def penalised_part(
    features: Float[Array, "rows features"], targets: Float[Array, " rows"], sizes: RunSizes
) -> tuple[Float[Array, "rows features"], Float[Array, " rows"]]:
    """Return the data of the group lasso: the free groups projected out, the rest groups set to zero."""
    group_of = np.asarray(sizes.groups)
    is_rest = np.isin(group_of, np.asarray(sizes.rest_groups, int))
    if is_rest.any():
        features = jnp.where(is_rest, 0, features)
    is_free = np.isin(group_of, np.asarray(sizes.free_groups, int)) & ~is_rest
    if is_free.any():
        features, targets = project_out(features, targets, tuple(np.flatnonzero(is_free).tolist()))
    return features, targets


def project_out(
    features: Float[Array, "rows features"], targets: Float[Array, " rows"], columns: tuple[int, ...]
) -> tuple[Float[Array, "rows features"], Float[Array, " rows"]]:
    """Return features and targets projected orthogonally to `columns`; these columns become zero."""
    joined = jnp.concatenate([features, targets[:, None]], axis=1)
    floor = 10 * jnp.finfo(features.dtype).eps
    for column in columns:
        direction = joined[:, column]
        size = (direction**2).sum()
        # A column that is a combination of earlier ones has only round-off left.
        usable = size > (floor**2) * (features[:, column] ** 2).sum()
        share = jnp.matmul(direction, joined, precision=lax.Precision.HIGHEST)
        joined = joined - jnp.where(usable, jnp.outer(direction, share / jnp.where(usable, size, 1)), 0)
        joined = joined.at[:, column].set(0)
    return joined[:, :-1], joined[:, -1]


def compress_rows(
    features: Float[Array, "rows features"], columns: Float[Array, "columns rows"]
) -> tuple[Float[Array, "features features"], Float[Array, "columns features"]]:
    """Return R and Z with ||R b - z||^2 = ||features b - y||^2 - constant for every b and column y of data.

    This is a Householder QR decomposition, written as a loop over columns. A LAPACK call inside a scan can
    deadlock when many executions run at once. The loop costs less than the task that produced the rows.
    """
    num_columns = features.shape[1]
    places = jnp.arange(features.shape[0])
    # A column that is a combination of earlier ones has only round-off left and is not reflected.
    floors = 10 * jnp.finfo(features.dtype).eps * jnp.sqrt((features**2).sum(0))

    def reflect(i, matrix):
        column = jnp.where(places >= i, matrix[:, i], 0)
        norm = jnp.sqrt((column**2).sum())
        usable = norm > floors[i]
        reflector = jnp.where(usable, column / jnp.where(usable, norm, 1), 0)
        sign = jnp.where(reflector[i] < 0, -1, 1)
        scale = 1 / (1 + jnp.abs(reflector[i]))
        reflector = jnp.where(usable, reflector.at[i].add(sign), 0)
        image = jnp.matmul(reflector, matrix, precision=lax.Precision.HIGHEST)
        return matrix - jnp.outer(scale * reflector, image)

    joined = jnp.concatenate([features, columns.T], axis=1)
    joined = lax.fori_loop(0, num_columns, reflect, joined)
    upper = jnp.triu(joined[:num_columns, :num_columns])
    return upper, joined[:num_columns, num_columns:].T
