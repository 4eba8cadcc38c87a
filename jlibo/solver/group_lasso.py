"""The group lasso over tasks, solved to a given duality gap (paper, eq. 1: the loss of Meta-KGL).

| here           | paper                                                                     |
|----------------|---------------------------------------------------------------------------|
| `design[s]`    | Phi_s, one row per observation, one column per feature                    |
| `targets[s]`   | y_s                                                                       |
| `mask[s]`      | which rows of task s exist; N is their number over all tasks              |
| `groups[f]`    | the base kernel j that feature f belongs to; d_j features share a j       |
| `lam`          | lambda                                                                    |
| `coef[s]`      | beta_s                                                                    |
| `group_norms`  | ||beta^(j)||_2, group j over all tasks; Meta-KGL thresholds these norms   |

The loss is the paper's, (1/N) ||y - Phi beta||^2, without a factor 1/2. A solver whose loss has 1/(2N) needs
lam / 2 for the same solution.

The data are scaled to magnitudes near one (`jlibo.solver.units`) and the solution is scaled back, so data of
magnitude 1e-30 or 1e30 are solved as accurately as data of magnitude 1, in float32 too.

The algorithm is accelerated proximal gradient (`jlibo.solver.proximal`) on growing working sets of features
(`jlibo.solver.working_set`), then on all features (`jlibo.solver.all_features`), where Newton's method
(`jlibo.solver.newton`) finishes ill-conditioned problems. Each phase is a `lane_while`: in a batch, only the
unfinished batch elements continue.
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
from jlibo.front_door import front_door
from jlibo.groups import validate_groups
from jlibo.solver.all_features import solve_on_all
from jlibo.solver.batching import lane_by_lane, lane_while
from jlibo.solver.implicit import implicit_gradients
from jlibo.solver.proximal import Problem
from jlibo.solver.scaled_problem import ProblemData, group_norms, rounded_up, scaled_problem
from jlibo.solver.solution import Solution as Solution
from jlibo.solver.solution import Status as Status
from jlibo.solver.units import largest, times_power_of_two
from jlibo.solver.working_set import (
    Progress,
    is_crowded,
    working_set_round,
    working_set_sizes,
)

PRECISION_FLOOR = 32
"""Smallest relative gap that is requested, in units of machine epsilon: 4e-6 in float32, 7e-15 in float64."""


@front_door
def group_lasso(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    lam: Float[ArrayLike, ""],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
    init: Float[ArrayLike, "tasks features"] | None = None,
    tol: Float[ArrayLike, ""] = 1e-6,
    max_steps: int | Int[Array, ""] = 10_000,
) -> Solution:
    """Minimise `(1/N) sum (y - X b)^2 + lam * sum_j ||b^(j)||_2`, where `b^(j)` is group j over all tasks.

    `N` is the number of rows present. Works under `jit` and `vmap` over any argument but `groups`, and is
    differentiable in reverse mode with respect to `design`, `targets` and `lam` (implicit differentiation
    over the groups in the support). Numbers below the smallest normal number of the dtype count as zero.

    **Arguments:**

    - `design`, `targets`: one matrix and one vector per task.
    - `lam`: the penalty, at least 0. For `lam >= lambda_max` the solution is exactly zero, also for an
      infinite `lam` inside `jit`. With `lam = 0` the problem is least squares; its duality gap is not
      informative until the data are interpolated, so the solver runs for `max_steps`.
    - `groups`: group of each feature, 0 to p - 1 without gaps. By default each feature is its own group.
    - `mask`: true for the rows that exist. The values of other rows are never used. By default all rows
      exist.
    - `init`: initial coefficients, such as the solution of a similar problem. Zero is used instead if it has
      the lower objective, or if `init` is not finite inside `jit`.
    - `tol`: stop when the duality gap is at most `tol` times `(1/N) ||y||^2`, the objective at zero. In
      float32 rounding errors limit the relative gap to 4e-6; a smaller `tol` counts as 4e-6.
    - `max_steps`: maximum number of proximal-gradient steps, rounded up to a multiple of 10, since the gap is
      computed every 10 steps. A Newton step, which ill-conditioned problems need, counts as 10.

    **Returns:** a `Solution`. If the dtype cannot represent the coefficients in the caller's units, its
    status is `OUT_OF_RANGE`.

    **Raises:** `ValueError` for an invalid argument whose value is known (not traced). Inside `jit`, invalid
    values give NaN and a `status` instead.

    ```python
    import jax
    import jlibo

    key_x, key_noise = jax.random.split(jax.random.key(0))
    design = jax.random.normal(key_x, (3, 40, 5))  # 3 tasks, 40 rows each, 5 features
    targets = 2 * design[:, :, 1] + 0.1 * jax.random.normal(key_noise, (3, 40))
    solution = jlibo.group_lasso(design, targets, 0.5)
    print(solution.describe())
    print(solution.group_norms > 0)  # only feature 1 is in the support
    ```
    """
    design, targets, mask, ids = _front_door(design, targets, groups, mask)
    dtype = design.dtype
    check_shape("lam", lam, ())
    check_fits("lam", lam, dtype)
    check_range("lam", lam, at_least=0)
    init = _check_start(design, init, tol, max_steps)
    data = ProblemData(design, targets, mask, jnp.asarray(lam, dtype))
    return _group_lasso(data, init, jnp.asarray(tol, dtype), max_steps, ids=ids)


@front_door
def lambda_max(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """Return the smallest `lam` for which the solution is exactly zero: `(2/N) max_j ||X_j^T y||_2`.

    **Arguments:**

    - `design`, `targets`, `groups`, `mask`: as in `group_lasso`.

    **Returns:** a scalar. If the dtype cannot represent the value, it is rounded up to the smallest normal
    number or to infinity.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jax
    import jlibo

    design = jax.random.normal(jax.random.key(0), (3, 40, 5))
    targets = design[:, :, 1]
    lam = jlibo.lambda_max(design, targets)
    print(jlibo.group_lasso(design, targets, lam).coef)  # zeros
    ```
    """
    design, targets, mask, ids = _front_door(design, targets, groups, mask)
    return _lambda_max(design, targets, mask, ids=ids)


@front_door
def group_lasso_path(
    design: Float[ArrayLike, "tasks rows features"],
    targets: Float[ArrayLike, "tasks rows"],
    lams: Float[ArrayLike, " path"],
    *,
    groups: Int[ArrayLike, " features"] | None = None,
    mask: Bool[ArrayLike, "tasks rows"] | None = None,
    init: Float[ArrayLike, "tasks features"] | None = None,
    tol: Float[ArrayLike, ""] = 1e-6,
    max_steps: int | Int[Array, ""] = 10_000,
) -> Solution:
    """Solve `group_lasso` for each of `lams` in order, each warm-started from the previous solution.

    A decreasing sequence, as returned by `lam_grid`, is fastest.

    **Arguments:**

    - `lams`: the penalties, each finite and at least 0.
    - `init`: initial coefficients for the first of `lams`; zero by default.
    - `design`, `targets`, `groups`, `mask`, `tol`, `max_steps`: as in `group_lasso`.

    **Returns:** a `Solution` whose arrays have a leading axis over `lams`.

    **Raises:** `ValueError` for an invalid argument whose value is known.

    ```python
    import jax
    import jlibo

    design = jax.random.normal(jax.random.key(0), (3, 40, 5))
    targets = design[:, :, 1] + 0.5 * design[:, :, 3]
    lams = jlibo.lam_grid(jlibo.lambda_max(design, targets), num_lams=10)
    path = jlibo.group_lasso_path(design, targets, lams)
    print(path.group_norms.shape)  # (10, 5)
    ```
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
    data = ProblemData(design, targets, mask, jnp.asarray(lams, design.dtype))
    return _path(data, init, jnp.asarray(tol, design.dtype), max_steps, ids=ids)


@front_door
def lam_grid(
    largest: Float[ArrayLike, ""], *, num_lams: int = 20, smallest_ratio: float = 0.01
) -> Float[Array, " path"]:
    """Return `num_lams` log-spaced values from `largest` down to `smallest_ratio * largest`.

    **Arguments:**

    - `largest`: the first value, usually `lambda_max`.
    - `num_lams`: the number of values.
    - `smallest_ratio`: the last value divided by the first, above 0 and at most 1.

    **Returns:** a decreasing array of shape `[num_lams]`.

    **Raises:** `ValueError` if `smallest_ratio` is out of range.

    ```python
    import jlibo

    print(jlibo.lam_grid(1.0, num_lams=3))  # 1, 0.1, 0.01
    ```
    """
    check_range("smallest_ratio", smallest_ratio, above=0, at_most=1)
    largest = jnp.asarray(largest)
    return largest * jnp.asarray(np.geomspace(1.0, smallest_ratio, num_lams), largest.dtype)


def _front_door(design, targets, groups, mask):
    """Check the data arguments; return them as arrays of one dtype, with static group ids."""
    check_shape("design", design, ("tasks", "rows", "features"))
    num_tasks, num_rows, num_features = np.shape(design)
    if 0 in (num_tasks, num_rows, num_features):
        fail("design", "at least one task, row and feature", f"shape {[num_tasks, num_rows, num_features]}")
    check_shape("targets", targets, (num_tasks, num_rows))
    design, targets = _check_real("design", design), _check_real("targets", targets)
    # Python numbers and integers get JAX's default float; float32 stays float32.
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
    array = array if isinstance(array, jax.Array) else np.asarray(array)
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
    """Return `array` with zeros in the masked rows, so that their values are not checked."""
    if mask is None:
        return array
    return np.where(np.asarray(mask).reshape(mask.shape + (1,) * (array.ndim - 2)), array, 0)


@partial(jax.jit, static_argnames="ids")
def _lambda_max(design, targets, mask, *, ids):
    data = ProblemData(design, targets, mask, jnp.zeros((), design.dtype))
    problem, units, zero_gradient = scaled_problem(data, ids)
    # The gradient at zero is near one.
    return rounded_up(problem.norms(zero_gradient).max(), units.lam)


@partial(jax.jit, static_argnames="ids")
def _group_lasso(data: ProblemData, init, tol, max_steps, *, ids) -> Solution:
    answer: Any = _solve(ids, data, init, tol, max_steps)
    coef, gap, num_steps, status = answer
    return Solution(coef, group_norms(coef, ids), gap, num_steps, status)


@partial(jax.jit, static_argnames="ids")
def _path(data: ProblemData, init, tol, max_steps, *, ids) -> Solution:
    def next_lam(init, lam):
        solution = _group_lasso(data._replace(lam=lam), init, tol, max_steps, ids=ids)
        return solution.coef, solution

    _, solutions = lax.scan(next_lam, init, data.lam)
    return solutions


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(ids, data: ProblemData, init, tol, max_steps):
    max_steps = jnp.asarray(max_steps, jnp.int32)
    return lane_by_lane(partial(_solve_one, ids))(data, init, tol, max_steps)


def _solve_one(ids, given: ProblemData, init, tol, max_steps):
    problem, units, zero_gradient = scaled_problem(given, ids)
    lam = given.lam
    at_zero = (problem.targets**2).sum() / problem.num_rows
    zero_slopes = problem.norms(zero_gradient)
    # A NaN or infinity anywhere in the design or the targets propagates to these.
    finite = jnp.isfinite(zero_slopes.max()) & jnp.isfinite(at_zero) & ~jnp.isnan(lam)
    has_rows = True if given.mask is None else given.mask.any()
    usable = finite & (lam >= 0) & has_rows
    tol = jnp.maximum(tol, PRECISION_FLOOR * float(jnp.finfo(given.design.dtype).eps))
    target_gap = jnp.where(usable, tol * at_zero, jnp.inf)

    coef = jnp.zeros_like(zero_gradient)
    residual, gradient, slopes = problem.targets, zero_gradient, zero_slopes
    if init is not None:
        init = times_power_of_two(init, -units.coef)
        left = problem.residual(init)
        # False if `init` or its objective is not finite.
        is_better = problem.objective(init, left) < at_zero
        zero_is_optimal = zero_slopes.max() <= problem.lam
        from_init = usable & is_better & ~zero_is_optimal
        coef, residual = jnp.where(from_init, init, coef), jnp.where(from_init, left, residual)
        gradient = problem.gradient(residual)
        slopes = problem.norms(gradient)
    gap = problem.gap(coef, residual, gradient, slopes.max())
    num_steps = jnp.zeros((), jnp.int32)
    is_nonzero, no = (coef != 0).any(0), jnp.zeros((), bool)
    state = Progress(coef, residual, gradient, slopes, is_nonzero, gap, num_steps, no, no)
    data = (problem, target_gap, max_steps)
    for size in working_set_sizes(*coef.shape):
        state = eqx.tree_at(lambda s: s.outgrown, state, is_crowded(state.is_nonzero, size))
        state = lane_while(_unfinished, partial(_round, ids=ids, size=size), state, data)
    state = lax.cond(
        _uncertified(state, data),
        lambda state, data: solve_on_all(state, data[0], ids, *data[1:]),
        lambda state, data: state,
        state,
        data,
    )

    gap, num_steps = state.gap, state.num_steps
    coef = times_power_of_two(state.coef, units.coef)
    excess = _excess(problem, state, at_zero, state.coef - times_power_of_two(coef, -units.coef))
    # The error due to the limited range of the dtype must neither let an inaccurate solution pass as
    # converged nor be reported as a step limit.
    fits = (gap + excess <= target_gap) | (gap > jnp.maximum(target_gap, excess))
    # A bound on the group norms.
    fits &= jnp.isfinite(largest(coef) * float(np.sqrt(coef.size)))
    status = jnp.where(gap <= target_gap, Status.CONVERGED, Status.STEP_LIMIT)
    status = jnp.where(fits, status, Status.OUT_OF_RANGE)
    status = jnp.where(has_rows, status, Status.NO_ROWS)
    status = jnp.where(lam >= 0, status, Status.NEGATIVE_LAM)
    status = jnp.where(finite, status, Status.NON_FINITE_INPUT).astype(jnp.int32)
    usable &= fits
    gap = rounded_up(gap + excess, units.gap)
    return jnp.where(usable, coef, jnp.nan), jnp.where(usable, gap, jnp.nan), num_steps, status


def _excess(problem: Problem, state: Progress, at_zero, lost):
    """Return a bound on the error of `state.gap` that the limited range of the dtype causes.

    The first part bounds the effect of `lost`, the part of the coefficients that is lost in the caller's
    units. It changes predictions by at most `change`, and the root mean square of the residual is at most its
    value at zero. The second part is what the gap misses because squares underflow.
    """
    tiny = jnp.finfo(state.slopes.dtype).tiny

    def of_lost():
        change = jnp.abs(problem.predict(lost)).max()
        return (2 * jnp.sqrt(at_zero) + change) * change + problem.lam * jnp.abs(lost).sum()

    def of_underflow():
        steepest = problem.safe_norms(state.gradient).max()
        gap = problem.gap(state.coef, state.residual, state.gradient, steepest)
        return jnp.where(gap > 1.01 * state.gap, gap - state.gap, 0)

    # Of most problems nothing is lost, and passes over the design and the gradient are saved.
    excess = lax.cond((lost != 0).any(), of_lost, lambda: 0 * at_zero)
    underflows = state.slopes.max() < tiny**0.25
    return excess + lax.cond(underflows, of_underflow, lambda: 0 * at_zero)


def _uncertified(state, data):
    _, target_gap, max_steps = data
    return (state.gap > target_gap) & (state.num_steps < max_steps)


def _unfinished(state: Progress, data):
    return _uncertified(state, data) & ~state.outgrown


def _round(state: Progress, data, *, ids, size):
    problem, target_gap, max_steps = data
    return working_set_round(state, problem, ids, size, target_gap, max_steps)


def _solve_forward(ids, data: ProblemData, init, tol, max_steps):
    answer: Any = _solve(ids, data, init, tol, max_steps)
    return answer, (data, answer[0])


def _solve_backward(ids, saved, cotangents):
    data, coef = saved
    return implicit_gradients(ids, data, coef, cotangents[0]), None, None, None


_solve.defvjp(_solve_forward, _solve_backward)
