"""Gram matrices of a multi-task design, by task and by group.

| here                  | paper                                                                        |
|-----------------------|------------------------------------------------------------------------------|
| `design[s]`           | Phi_s, the features of task s; Phi is block-diagonal                         |
| `gram(design)[s]`     | (m / N) Phi_s^T Phi_s, a diagonal block of (m / N) Phi^T Phi                 |
| `num_rows(...)`       | N = n_1 + ... + n_m, the number of observations                              |
| `GroupIndex.places[j]` | the features of phi_j, padded to the largest d_j                            |
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import check_shape, fail
from jlibo.groups import validate_groups

Groups = Sequence[int] | np.ndarray | None


def group_ids(design: Float[Array, "tasks rows features"], groups: Groups) -> tuple[int, ...]:
    """Return the group of each feature as a tuple; by default every feature is a group of its own.

    **Raises:** `ValueError` if `design` is not of shape `[tasks, rows, features]`, or `groups` is invalid.
    """
    check_shape("design", design, ("tasks", "rows", "features"))
    num_features = design.shape[-1]
    return tuple(range(num_features)) if groups is None else validate_groups("groups", groups, num_features)


def num_rows(
    design: Float[Array, "tasks rows features"], mask: Bool[Array, "tasks rows"] | None
) -> Float[Array, ""]:
    """Return N, the number of rows that are present in all tasks together."""
    if mask is None:
        return jnp.asarray(design.shape[0] * design.shape[1], design.dtype)
    check_shape("mask", mask, design.shape[:2])
    return jnp.asarray(mask).sum().astype(design.dtype)


def gram(
    design: Float[Array, "tasks rows features"], mask: Bool[Array, "tasks rows"] | None = None
) -> Float[Array, "tasks features features"]:
    """Return `(m / N) Phi_s^T Phi_s` for every task.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `mask`: rows that are present; by default all.
    """
    count = num_rows(design, mask)
    rows = design if mask is None else jnp.where(jnp.asarray(mask)[..., None], design, 0)
    products = jnp.einsum("srf,srg->sfg", rows, rows, precision=lax.Precision.HIGHEST)
    return products * (design.shape[0] / jnp.maximum(count, 1))


@final
class GroupIndex(NamedTuple):
    """Positions of the features of each group, padded to the size of the largest group."""

    places: Int[np.ndarray, "groups size"]
    """Position of each feature; 0 where padded."""
    present: Bool[np.ndarray, "groups size"]
    """False where padded."""

    @staticmethod
    def of(ids: tuple[int, ...]) -> "GroupIndex":
        """Return the index of validated group ids."""
        members = [np.flatnonzero(np.asarray(ids) == group) for group in range(max(ids) + 1)]
        size = max(len(one) for one in members)
        places = np.stack([np.pad(one, (0, size - len(one))) for one in members])
        present = np.stack([np.arange(size) < len(one) for one in members])
        return GroupIndex(places, present)

    @property
    def size(self) -> int:
        """Number of features of the largest group."""
        return self.places.shape[1]


def diagonal_blocks(
    grams: Float[Array, "tasks features features"], index: GroupIndex
) -> Float[Array, "tasks groups size size"]:
    """Return the blocks of the Gram matrices within each group; entries of padding are zero."""
    blocks = grams[:, index.places[:, :, None], index.places[:, None, :]]
    return jnp.where(index.present[:, :, None] & index.present[:, None, :], blocks, 0)


def extreme_eigenvalues(
    blocks: Float[Array, "tasks groups size size"], index: GroupIndex
) -> tuple[Float[Array, "tasks groups"], Float[Array, "tasks groups"]]:
    """Return the smallest and the largest eigenvalue of each block, padding excluded."""
    if index.size == 1:
        return blocks[..., 0, 0], blocks[..., 0, 0]
    # A diagonal entry outside the spectrum of the block, which is at least 0, marks padding: -1 for the
    # largest eigenvalue, more than the trace for the smallest.
    padding = np.eye(index.size) * ~index.present[:, None, :]
    above = jnp.trace(blocks, axis1=-2, axis2=-1)[..., None, None] + 1
    largest = jnp.linalg.eigvalsh(blocks - padding.astype(blocks.dtype))[..., -1]
    smallest = jnp.linalg.eigvalsh(blocks + above * padding.astype(blocks.dtype))[..., 0]
    return smallest, largest


def check_support_size(support_size: int, num_groups: int) -> None:
    """Raise a `ValueError` unless `support_size` is a whole number from 1 to the number of groups."""
    if isinstance(support_size, bool) or not isinstance(support_size, int | np.integer):
        fail("support_size", "a whole number known before tracing", f"{support_size!r}")
    if not 1 <= support_size <= num_groups:
        fail("support_size", f"from 1 to the number of groups, {num_groups}", support_size)
