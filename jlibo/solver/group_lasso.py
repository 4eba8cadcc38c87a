"""The group lasso over tasks, solved to a certificate (paper, eq. 1: the loss of Meta-KGL).

| here           | paper                                                                     |
|----------------|---------------------------------------------------------------------------|
| `design[s]`    | Phi_s, one row an observation, one column a feature                       |
| `targets[s]`   | y_s                                                                       |
| `mask[s]`      | which rows of task s exist; N of them in all                              |
| `groups[f]`    | the base kernel j that feature f belongs to; d_j features share a j       |
| `lam`          | lambda                                                                    |
| `coef[s]`      | beta_s                                                                    |
| `group_norms`  | ||beta^(j)||_2, group j over all tasks: what Meta-KGL thresholds          |

The loss is the paper's, (1/N) ||y - Phi beta||^2, not half of it: a peer that uses 1/(2N) takes lam / 2.

The problem is solved in units in which its numbers are about one (`jlibo.solver.units`), and the
answer is given in the caller's: data of 1e-30 or 1e30 are solved as well as data of 1, in float32 too.

How it is solved: accelerated proximal gradient (`jlibo.solver.proximal`) on growing working sets of
features, each phase a `lane_while`, so that in a batch the lanes that are still at work are gathered and the
others rest.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike, check_finite, check_fits, check_range, check_shape, fail, is_concrete
from jlibo.groups import validate_groups
from jlibo.solver.batching import lane_by_lane, lane_while
from jlibo.solver.implicit import implicit_gradients
from jlibo.solver.proximal import (
    Problem,
    Progress,
    advance,
    is_crowded,
    start,
    working_set_round,
    working_set_sizes,
)
from jlibo.solver.scaled_problem import group_norms, rounded_up, scaled_problem
from jlibo.solver.solution import Solution as Solution
from jlibo.solver.solution import Status as Status
from jlibo.solver.units import LARGEST, times_power_of_two

PRECISION_FLOOR = 32
"""The smallest relative gap that is asked for, in units of rounding: 4e-6 in float32, 7e-15 in float64."""


def group_lasso(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    lam: Float[ArrayLike, ""],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
    init: Float[ArrayLike, "tasks features"] | None = None,
    tol: Float[ArrayLike, ""] = 1e-6,
    max_steps: int = 10_000,
) -> Solution:
    """Minimise (1/N) sum (y - X b)^2 + lam * sum_j ||b^(j)||_2, with b^(j) = group j over all tasks.

    **Arguments:**

    - `design`, `targets`: one matrix and one vector a task.
    - `lam`: at least 0. From `lambda_max` on, the solution is exactly zero; so it is inside `jit` for an
      infinite `lam`. With `lam = 0` the problem is least squares, whose duality gap tells nothing before the
      data are interpolated: `max_steps` ends it.
    - `groups`: group of each feature, 0 to p - 1 without holes; by default each feature is its own.
    - `mask`: rows that exist; what the others hold is never looked at. By default all.
    - `init`: where to start, such as the solution of a similar problem. The start is zero instead if that has
      the lower objective, or if `init` is not finite inside `jit`.
    - `tol`: stop when the duality gap is at most `tol` times (1/N) ||y||^2, the objective at zero; in float32
      4e-6 of it is where rounding ends what a gap can tell, so that a smaller `tol` counts as that.
    - `max_steps`: most proximal-gradient steps, up to a multiple of 10: the gap is looked at that often.

    **Returns:** a `Solution`. Works under `jit` and `vmap` over any argument but `groups`, and
    differentiates in reverse mode with respect to `design`, `targets` and `lam` (implicitly, at the groups
    in use). Bad values that are known now raise; inside `jit` they give NaN and a `status`. A solution that
    the dtype cannot hold in the caller's units has the status OUT_OF_RANGE. Numbers below the smallest normal
    one of the dtype count as zero.
    """
    design, targets, mask, ids = _front_door(design, targets, groups, mask)
    dtype = design.dtype
    check_shape("lam", lam, ())
    check_fits("lam", lam, dtype)
    check_range("lam", lam, at_least=0)
    init = _check_start(design, init, tol, max_steps)
    return _group_lasso(
        design, targets, mask, jnp.asarray(lam, dtype), init, jnp.asarray(tol, dtype), max_steps, ids=ids
    )


def lambda_max(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """The smallest `lam` whose solution is exactly zero: (2/N) max_j ||X_j^T y||_2.

    Rounded up where the dtype cannot hold it: to its smallest normal number, or to infinity.
    """
    design, targets, mask, ids = _front_door(design, targets, groups, mask)
    return _lambda_max(design, targets, mask, ids=ids)


def group_lasso_path(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    lams: Float[ArrayLike, " path"],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
    init: Float[ArrayLike, "tasks features"] | None = None,
    tol: Float[ArrayLike, ""] = 1e-6,
    max_steps: int = 10_000,
) -> Solution:
    """`group_lasso` for each of `lams` in turn, each started from the one before.

    Fastest from large to small, as in `lam_grid`. Every array of the `Solution` gets a leading axis.
    """
    check_shape("lams", lams, ("path",))
    design, targets, mask, ids = _front_door(design, targets, groups, mask)
    check_finite("lams", lams)
    for at, lam in enumerate(np.asarray(lams) if is_concrete(lams) else ()):
        check_fits(f"lams[{at}]", lam, design.dtype)
    check_range("lams", lams, at_least=0)
    init = _check_start(design, init, tol, max_steps)
    if init is None:
        init = jnp.zeros((design.shape[0], design.shape[2]), design.dtype)
    lams = jnp.asarray(lams, design.dtype)
    return _path(design, targets, mask, lams, init, jnp.asarray(tol, design.dtype), max_steps, ids=ids)


def lam_grid(
    largest: Float[ArrayLike, ""], *, num_lams: int = 20, smallest_ratio: float = 0.01
) -> Float[Array, " path"]:
    """`num_lams` values from `largest` (say `lambda_max`) down to `smallest_ratio` of it, evenly in log."""
    check_range("smallest_ratio", smallest_ratio, above=0, at_most=1)
    largest = jnp.asarray(largest)
    return largest * jnp.asarray(np.geomspace(1.0, smallest_ratio, num_lams), largest.dtype)


def _front_door(design, targets, groups, mask):
    check_shape("design", design, ("tasks", "rows", "features"))
    num_tasks, num_rows, num_features = np.shape(design)
    if 0 in (num_tasks, num_rows, num_features):
        fail("design", "at least one task, row and feature", f"shape {[num_tasks, num_rows, num_features]}")
    check_shape("targets", targets, (num_tasks, num_rows))
    design, targets = _check_real("design", design), _check_real("targets", targets)
    # Python numbers and integers take jax's default float; float32 stays float32.
    dtype = jnp.result_type(design, targets, float)
    if mask is not None:
        check_shape("mask", mask, (num_tasks, num_rows))
        mask = _check_mask(mask)
    for argument, array in (("design", design), ("targets", targets)):
        if is_concrete(array) and is_concrete(mask):
            check_fits(argument, _present(np.asarray(array), mask), dtype)
    ids = None if groups is None else validate_groups("groups", groups, num_features)
    return jnp.asarray(design, dtype), jnp.asarray(targets, dtype), mask, ids


def _check_start(design, init, tol, max_steps):
    check_shape("tol", tol, ())
    check_range("tol", tol, at_least=0)
    check_range("max_steps", max_steps, at_least=0)
    if init is None:
        return None
    check_shape("init", init, (design.shape[0], design.shape[2]))
    check_fits("init", init, design.dtype, may_vanish=True)
    return jnp.asarray(init, design.dtype)


def _check_real(argument, array):
    array = array if hasattr(array, "dtype") else np.asarray(array)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        fail(argument, "an array of real numbers", f"dtype {array.dtype}")
    return array


def _check_mask(mask):
    if jnp.asarray(mask).dtype != bool:
        fail("mask", "an array of booleans", f"dtype {jnp.asarray(mask).dtype}")
    if is_concrete(mask) and not np.asarray(mask).any():
        fail("mask", "true for at least one row", "no row at all")
    return jnp.asarray(mask)


def _present(array, mask):
    """`array` with zeros in the rows that the mask leaves out, so that nobody looks at what they hold."""
    if mask is None:
        return array
    return np.where(np.asarray(mask).reshape(mask.shape + (1,) * (array.ndim - 2)), array, 0)


@partial(jax.jit, static_argnames="ids")
def _lambda_max(design, targets, mask, *, ids):
    problem, units = scaled_problem(design, targets, mask, jnp.zeros((), design.dtype), ids)
    return rounded_up(problem.safe_norms(problem.gradient(problem.targets)).max(), units.lam)


@partial(jax.jit, static_argnames="ids")
def _group_lasso(design, targets, mask, lam, init, tol, max_steps, *, ids) -> Solution:
    answer: Any = _solve(ids, design, targets, mask, lam, init, tol, max_steps)
    coef, gap, num_steps, status = answer
    return Solution(coef, group_norms(coef, ids), gap, num_steps, status)


@partial(jax.jit, static_argnames="ids")
def _path(design, targets, mask, lams, init, tol, max_steps, *, ids) -> Solution:
    def next_lam(init, lam):
        solution = _group_lasso(design, targets, mask, lam, init, tol, max_steps, ids=ids)
        return solution.coef, solution

    _, solutions = lax.scan(next_lam, init, lams)
    return solutions


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(ids, design, targets, mask, lam, init, tol, max_steps):
    max_steps = jnp.asarray(max_steps, jnp.int32)
    return lane_by_lane(partial(_solve_one, ids))(design, targets, mask, lam, init, tol, max_steps)


def _solve_one(ids, design, targets, mask, lam, init, tol, max_steps):
    problem, units = scaled_problem(design, targets, mask, lam, ids)
    zero_gradient = problem.gradient(problem.targets)
    at_zero = (problem.targets**2).sum() / problem.num_rows
    # A NaN or infinity anywhere in the design or the targets reaches this product.
    finite = jnp.isfinite(zero_gradient).all() & jnp.isfinite(at_zero) & ~jnp.isnan(lam)
    has_rows = True if mask is None else mask.any()
    usable = finite & (lam >= 0) & has_rows
    tol = jnp.maximum(tol, PRECISION_FLOOR * float(jnp.finfo(design.dtype).eps))
    target_gap = jnp.where(usable, tol * at_zero, jnp.inf)

    coef = jnp.zeros_like(zero_gradient)
    residual, gradient = problem.targets, zero_gradient
    if init is not None:
        init = times_power_of_two(init, -units.coef)
        left = problem.residual(init)
        # False for an `init` that is not finite, or whose objective is not.
        is_better = problem.objective(init, left) < at_zero
        zero_is_optimal = problem.safe_norms(zero_gradient).max() <= problem.lam
        from_init = usable & is_better & ~zero_is_optimal
        coef, residual = jnp.where(from_init, init, coef), jnp.where(from_init, left, residual)
        gradient = problem.gradient(residual)
    gap = problem.gap(coef, residual, gradient)
    num_steps = jnp.zeros((), jnp.int32)
    data = (problem, target_gap, max_steps)
    state = Progress(coef, residual, gradient, gap, num_steps, jnp.zeros((), bool))
    for size in working_set_sizes(coef.shape[1]):
        state = eqx.tree_at(lambda s: s.outgrown, state, is_crowded(state.coef, size))
        state = lane_while(_unfinished, partial(_round, ids=ids, size=size), state, data)
    state = lax.cond(_uncertified(state, data), _all_features, lambda state, data: state, state, data)

    gap, num_steps = state.gap, state.num_steps
    coef = times_power_of_two(state.coef, units.coef)
    excess = _excess(problem, state, at_zero, state.coef - times_power_of_two(coef, -units.coef))
    # What ranges took away must neither make an answer of a solve that is none, nor count as too few steps.
    fits = (gap + excess <= target_gap) | (gap > jnp.maximum(target_gap, excess))
    fits &= jnp.isfinite(group_norms(coef, ids)).all()
    status = jnp.where(gap <= target_gap, Status.CONVERGED, Status.STEP_LIMIT)
    status = jnp.where(fits, status, Status.OUT_OF_RANGE)
    status = jnp.where(has_rows, status, Status.NO_ROWS)
    status = jnp.where(lam >= 0, status, Status.NEGATIVE_LAM)
    status = jnp.where(finite, status, Status.NON_FINITE_INPUT).astype(jnp.int32)
    usable &= fits
    gap = rounded_up(gap + excess, units.gap)
    return jnp.where(usable, coef, jnp.nan), jnp.where(usable, gap, jnp.nan), num_steps, status


def _excess(problem: Problem, state: Progress, at_zero, lost):
    """At most how much the objective at the answer exceeds what `state.gap` says, for want of range.

    The first part is what the coefficients lost in the caller's units. It changes predictions by at most
    `change`, and the root mean square of the residual is at most that at zero. The second part is what the
    gap did not see because squares underflow.
    """
    lost = jnp.abs(lost)
    change = LARGEST * lost.sum(1).max()
    excess = (2 * jnp.sqrt(at_zero) + change) * change + problem.lam * lost.sum()
    gap = problem.gap(state.coef, state.residual, state.gradient, safe=True)
    return excess + jnp.where(gap > 1.01 * state.gap, gap - state.gap, 0)


def _uncertified(state, data):
    _, target_gap, max_steps = data
    return (state.gap > target_gap) & (state.num_steps < max_steps)


def _unfinished(state: Progress, data):
    return _uncertified(state, data) & ~state.outgrown


def _round(state: Progress, data, *, ids, size):
    problem, target_gap, max_steps = data
    return working_set_round(state, problem, ids, size, target_gap, max_steps)


def _all_features(state: Progress, data):
    problem, _, _ = data
    iterate = start(problem, state.coef, state.residual, state.gradient, state.num_steps)
    at = lane_while(_uncertified, lambda at, data: advance(at, data[0]), iterate, data)
    return Progress(at.coef, at.residual, at.gradient, at.gap, at.num_steps, state.outgrown)


def _solve_forward(ids, design, targets, mask, lam, init, tol, max_steps):
    answer: Any = _solve(ids, design, targets, mask, lam, init, tol, max_steps)
    return answer, (design, targets, mask, lam, answer[0])


def _solve_backward(ids, saved, cotangents):
    design, targets, mask, lam, coef = saved
    bars = implicit_gradients(ids, design, targets, mask, lam, coef, cotangents[0])
    design_bar, targets_bar, lam_bar = bars
    return design_bar, targets_bar, None, lam_bar, None, None, None


_solve.defvjp(_solve_forward, _solve_backward)
