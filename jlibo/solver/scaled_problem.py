"""The group-lasso problem scaled to magnitudes near one, with masked rows zeroed and lam bounded."""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jlibo.solver.proximal import AbstractGroups, Members, Problem, Singletons
from jlibo.solver.units import Units, exponent_near, halves, near_one, times_power_of_two


@final
class ProblemData(NamedTuple):
    """The arrays of a group-lasso problem in the caller's units."""

    design: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    mask: Bool[Array, "tasks rows"] | None
    """Which rows exist; None if all do, and in a cotangent."""
    lam: Float[Array, "*path"]
    """The penalty, or one per problem of a path."""


def _groups(ids: tuple[int, ...] | None) -> AbstractGroups:
    if ids is None or len(set(ids)) == len(ids):
        return Singletons()
    return Members(ids)


def group_norms(coef: Float[Array, "tasks features"], ids: tuple[int, ...] | None) -> Float[Array, " groups"]:
    """Return the norm of each group over all tasks, without overflow or underflow."""
    coef, unit = near_one(coef)
    squares = (coef**2).sum(0)
    if ids is not None:
        squares = jax.ops.segment_sum(squares, np.asarray(ids), num_segments=max(ids) + 1)
    used = squares != 0  # true for NaN, so NaN propagates
    return unit * jnp.where(used, jnp.sqrt(jnp.where(used, squares, 1)), 0)


def scaled_problem(data: ProblemData, ids: tuple[int, ...] | None) -> tuple[Problem, Units]:
    """Return the problem without the masked rows, scaled to magnitudes near one, and its units."""
    design, targets, mask, lam = data
    num_rows = jnp.asarray(targets.size, design.dtype)
    if mask is not None:
        design = jnp.where(mask[:, :, None], design, 0)
        targets = jnp.where(mask, targets, 0)
        num_rows = jnp.maximum(mask.sum(), 1).astype(design.dtype)
    units = Units(exponent_near(design), exponent_near(targets))
    targets = times_power_of_two(targets, -units.targets)
    # The bound is far above `lambda_max` of the scaled data: larger values and infinity give the same
    # solution.
    lam = jnp.minimum(times_power_of_two(lam, -units.lam), jnp.sqrt(jnp.finfo(design.dtype).max))
    return Problem(design, targets, lam, num_rows, _groups(ids), halves(-units.design, design.dtype)), units


def rounded_up(value: Float[Array, ""], exponent: Array) -> Float[Array, ""]:
    """Return `value * 2**exponent`, or the smallest normal number if a positive result underflows."""
    result = times_power_of_two(value, exponent)
    return jnp.where(value > 0, jnp.maximum(result, jnp.finfo(value.dtype).tiny), result)
