"""The group-lasso problem scaled to magnitudes near one, with masked rows zeroed and lam bounded."""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.proximal import AbstractGroups, Members, Problem, Singletons
from jlibo.solver.units import Units, exponent_near, halves, largest, near_one, times_power_of_two


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


@final
class Scaled(NamedTuple):
    """A problem scaled to magnitudes near one."""

    problem: Problem
    """Without the masked rows."""
    units: Units
    zero_gradient: Float[Array, "tasks features"]
    """Minus the gradient of the loss at zero, in these units."""


def scaled_problem(data: ProblemData, ids: tuple[int, ...] | None) -> Scaled:
    """Return the problem without the masked rows, scaled so that targets and gradients are near one."""
    design, targets, mask, lam = data
    num_rows = jnp.asarray(targets.size, design.dtype)
    if mask is not None:
        design = jnp.where(mask[:, :, None], design, 0)
        targets = jnp.where(mask, targets, 0)
        num_rows = jnp.maximum(mask.sum(), 1).astype(design.dtype)
    targets_unit = exponent_near(targets)
    targets = times_power_of_two(targets, -targets_unit)
    problem = Problem(design, targets, lam, num_rows, _groups(ids))
    design_unit, gradient = _design_unit(problem)
    units = Units(design_unit, targets_unit)
    # The bound is far above `lambda_max` of the scaled data: larger values and infinity give the same
    # solution.
    lam = jnp.minimum(times_power_of_two(lam, -units.lam), jnp.sqrt(jnp.finfo(design.dtype).max))
    unit = halves(-design_unit, design.dtype)
    return Scaled(Problem(design, targets, lam, num_rows, problem.groups, unit), units, gradient)


def _design_unit(problem: Problem) -> tuple[Int[Array, ""], Float[Array, "tasks features"]]:
    """Return the exponent that scales the design, and the gradient at zero in that unit.

    The gradient at zero is needed in any case, and its magnitude is a unit of the design, since the targets
    are near one. A pass over the design for its largest entry would take up to a third of a solve. It is made
    only if the gradient is zero or so large or small that its sums may have left the range of the dtype.
    """
    gradient = problem.gradient(problem.targets)
    size = largest(gradient)
    exponent = exponent_near(size)
    half_range = jnp.finfo(gradient.dtype).maxexp // 2
    # The largest magnitude is NaN if any entry is.
    is_accurate = (jnp.abs(exponent) < half_range) & jnp.isfinite(size) & (size > 0)

    def from_entries():
        size = exponent_near(problem.design)
        unit = halves(-size, problem.design.dtype)
        scaled = Problem(problem.design, problem.targets, problem.lam, problem.num_rows, problem.groups, unit)
        gradient = scaled.gradient(problem.targets)
        # The unit that the same data would have at another magnitude, unless the gradient is far smaller than
        # the entries: roots of odd powers of two are rounded, so other units give other last bits.
        rest = exponent_near(gradient)
        rest = jnp.where(jnp.abs(rest) < half_range // 2, rest, 0)
        return size + rest, times_power_of_two(gradient, -rest)

    return lax.cond(is_accurate, lambda: (exponent, times_power_of_two(gradient, -exponent)), from_entries)


def rounded_up(value: Float[Array, ""], exponent: Array) -> Float[Array, ""]:
    """Return `value * 2**exponent`, or the smallest normal number if a positive result underflows."""
    result = times_power_of_two(value, exponent)
    return jnp.where(value > 0, jnp.maximum(result, jnp.finfo(value.dtype).tiny), result)
