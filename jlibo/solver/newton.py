"""Newton's method for the group lasso in the space of group norms, which finishes what gradients began.

| here         | paper                                                                               |
|--------------|-------------------------------------------------------------------------------------|
| `sizes`      | r_j, one positive number per group; at the solution ||beta^(j)||_2                  |
| `weighted`   | v = beta / sqrt(r), feature by feature                                              |
| `squares`    | q_j = ||v^(j)||^2, which equals r_j at the solution for every group in the support  |

The norm of a group is `||b^(j)|| = min over r_j > 0 of (||b^(j)||^2 / r_j + r_j) / 2`. For given r, every
task is a ridge regression of its own, and what is left is a smooth convex problem in as many unknowns as
there are groups, whatever the number of tasks:

    phi(r) = (1/N) ||y - X b(r)||^2 + (lam / 2) sum_j (q_j + r_j),
    d phi / d log r_j = (lam / 2) (r_j - q_j).

The Hessian in log r is lam times `curvature + diag(r - q) / 2`, with the positive semidefinite

    curvature = sum_s (v_s v_s^T) * (I - S_s),   S_s = (I + sqrt(r) (2/N) X_s^T X_s sqrt(r) / lam)^-1,

which is never ill-scaled, whatever the scale of a column and however small an r_j. The steps p solve

    (curvature + diag(|r - q| / 4) + damping) p = (q - r) / 2.

In place of `diag(r - q) / 2`, the absolute value makes the matrix positive definite, it bounds the steps of
groups that grow and of those that vanish, and it disappears at the solution, so convergence stays
quadratic. In float32, the damping, a small multiple of diag(r + q), keeps flat directions from being noise.
A size changes by the factor 1 + p and not by exp(p): phi is convex in r and not in log r, and where nearly
collinear columns share a coefficient, its valleys are straight lines in r. Where p is below -1/2 the factor
continues as an exponential, which stays positive. If phi does not decrease, the step is halved. Some ten
steps are enough for problems that take gradients thousands.

At a ridge solution the gradient of the loss is lam b / r, so the duality gap follows from r and q alone, and
no step has to compute it from the data.

The ridge matrices are inverted by elimination over all tasks at once: of rows if there are fewer rows than
features, else of features. A LAPACK call inside a loop can deadlock when many executions run at once.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.proximal import Problem

MOST_STEPS = 25
"""Most Newton steps before the next gradient steps. Some ten are enough for most problems."""

DAMPING = 1e3
"""Multiple of diag(r + q) that is added to the Hessian, in units of machine epsilon."""

SMALLEST_START = 1e-2
"""Initial size of a group whose coefficients are zero, in units of the largest."""


@final
class _Point(eqx.Module):
    """Sizes of the groups, the ridge regressions at them, and what the next step needs to know."""

    sizes: Float[Array, " features"]
    weighted: Float[Array, "tasks features"]
    squares: Float[Array, " features"]
    curvature: Float[Array, "features features"]
    value: Float[Array, ""]
    gap: Float[Array, ""]


@final
class _State(eqx.Module):
    point: _Point
    length: Float[Array, ""]
    """Length of the next step, 1 for a full one."""
    num_steps: Int[Array, ""]
    is_stuck: Bool[Array, ""]


def newton_steps(
    problem: Problem,
    coef: Float[Array, "tasks features"],
    slopes: Float[Array, " features"],
    lipschitz: Float[Array, ""],
    target_gap: Float[Array, ""],
    most_steps: int | Int[Array, ""],
) -> tuple[Float[Array, "tasks features"], Int[Array, ""]]:
    """Return the coefficients after Newton steps from `coef` down to `target_gap`, and their number.

    **Arguments:**

    - `problem`: the problem, with `lam > 0`.
    - `slopes`: the norm of the gradient over each feature's group at `coef`, or near it. A group of zeros
      starts at a size that matters only if the gradient would let it grow.
    - `lipschitz`: bound on the curvature, for the proximal step that ends the method.
    - `target_gap`: duality gap of the problem at which to stop.
    - `most_steps`: maximum number of steps.
    """
    eps = jnp.finfo(coef.dtype).eps
    norms = problem.norms(coef)
    grows = (norms > 0) | (slopes > problem.lam)
    norms = jnp.maximum(norms, jnp.where(grows, SMALLEST_START, eps**2) * norms.max())
    # At this first point the step is zero, and any value is better.
    infinite = jnp.full_like(target_gap, jnp.inf)
    weighted = coef / jnp.sqrt(jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))
    point = _Point(norms, weighted, norms, jnp.eye(len(norms), dtype=norms.dtype), infinite, infinite)
    state = _State(point, jnp.ones_like(target_gap), jnp.zeros((), jnp.int32), norms.max() <= 0)
    gram = problem.with_gram().gram if problem.gram is None else problem.gram

    def is_running(state: _State):
        return (state.point.gap > target_gap) & (state.num_steps < most_steps) & ~state.is_stuck

    state = lax.while_loop(is_running, lambda state: _advance(state, problem, gram), state)
    return _without_vanishing(problem, state.point, lipschitz), state.num_steps


def _advance(state: _State, problem: Problem, gram) -> _State:
    eps = jnp.finfo(state.length.dtype).eps
    old = state.point
    sizes = old.sizes * _factor(state.length * _step(old, problem))
    sizes = jnp.maximum(sizes, eps**2 * sizes.max())
    weighted, curvature = ridge(problem, gram, sizes)
    squares = problem.groups.totals((weighted**2).sum(0))
    loss = (problem.residual(jnp.sqrt(sizes) * weighted) ** 2).sum() / problem.num_rows
    shares = problem.groups.shares(sizes.dtype)
    value = loss + problem.lam / 2 * ((squares + sizes) * shares).sum()
    # At a ridge solution the gradient is lam / r times the coefficients, which gives the duality gap of
    # `jlibo.solver.proximal` from sizes and squares alone.
    scale = 1 / jnp.sqrt(jnp.maximum((squares / sizes).max(), 1))
    excess = jnp.maximum(jnp.sqrt(sizes * squares) - scale * squares, 0)
    gap = loss * (1 - scale) ** 2 + problem.lam * (excess * shares).sum()
    # False also if the value is not finite.
    is_lower = value <= old.value * (1 + 10 * eps)
    new = _Point(sizes, weighted, squares, curvature, value, gap)
    point = jax.tree.map(lambda new, old: jnp.where(is_lower, new, old), new, old)
    length = jnp.where(is_lower, jnp.minimum(2 * state.length, 1), state.length / 2)
    # Round-off: the value no longer falls, nor does the gap.
    is_level = is_lower & (value >= old.value * (1 - 10 * eps)) & (gap >= old.gap)
    return _State(point, length, state.num_steps + 1, is_level | (length < 1e-4))


def _step(point: _Point, problem: Problem) -> Float[Array, " features"]:
    """Return the relative change of each feature's size; that of features in one group is the same."""
    sizes, squares = point.sizes, point.squares
    unit = jnp.sqrt(sizes + squares)
    damping = max(1e-9, DAMPING * float(jnp.finfo(sizes.dtype).eps))
    diagonal = jnp.abs(sizes - squares) / 4 + damping * (sizes + squares)
    is_first = problem.groups.is_first(len(sizes))
    matrix = problem.groups.pair_totals(point.curvature) / (unit[:, None] * unit)
    matrix = jnp.where(is_first[:, None] & is_first, matrix, 0)
    matrix += jnp.diag(jnp.where(is_first, diagonal / (sizes + squares), 1))
    right = jnp.where(is_first, (squares - sizes) / (2 * unit), 0)
    step = _product("fg,g->f", inverse_of(matrix[None])[0], right) / unit
    return problem.groups.totals(step)


def _factor(step: Float[Array, " features"]) -> Float[Array, " features"]:
    """Return the factors of the sizes: `1 + step`, continued by an exponential for groups that vanish."""
    return jnp.where(step > -0.5, 1 + jnp.minimum(step, 5), 0.5 * jnp.exp(jnp.maximum(2 * step + 1, -5)))


def ridge(problem: Problem, gram, sizes):
    """Return the ridge regressions of all tasks, divided by the roots of `sizes`, and the curvature.

    `gram` is that of `gram_of`, or None to work with the rows. Groups of size zero have coefficients of zero.
    """
    root = jnp.sqrt(sizes)
    if gram is None:
        unit = jnp.sqrt(2 / problem.num_rows / problem.lam)
        design = problem.scaled_design() * (root * unit)
        rows = _product("snf,slf->snl", design, design)
        rows += jnp.eye(rows.shape[1], dtype=rows.dtype)
        inverse = inverse_of(rows)
        dual = _solution(rows, inverse, problem.targets)
        weighted = unit * _product("snf,sn->sf", design, dual)
        spread = design * weighted[:, None]
        return weighted, _product("snf,sng->fg", spread, _product("snl,slf->snf", inverse, spread))
    eye = jnp.eye(len(root), dtype=root.dtype)
    matrices = gram * (root[:, None] * root / problem.lam) + eye
    inverse = inverse_of(matrices)
    right = root * problem.gradient(problem.targets) / problem.lam
    weighted = _solution(matrices, inverse, right)
    curvature = ((eye - inverse) * weighted[:, :, None] * weighted[:, None, :]).sum(0)
    return weighted, curvature


def _solution(matrices, inverses, right):
    """Return the solution of each task's linear system, given the inverse of its matrix.

    The product with the inverse alone is inaccurate for ill-conditioned matrices: in float32, the duality gap
    then stays above 1e-5. One step of iterative refinement makes the residual as small as round-off.
    """
    solution = _product("sfg,sg->sf", inverses, right)
    residual = right - _product("sfg,sg->sf", matrices, solution)
    return solution + _product("sfg,sg->sf", inverses, residual)


def _without_vanishing(problem: Problem, point: _Point, lipschitz) -> Float[Array, "tasks features"]:
    """Return the coefficients after one proximal-gradient step, which zeroes vanishing groups.

    At a ridge solution the gradient is `lam / r` times the coefficients, so the step scales each group.
    """
    tiny = jnp.finfo(lipschitz.dtype).tiny
    norms = jnp.sqrt(point.sizes * point.squares)
    inverses = 1 / jnp.maximum(point.sizes, tiny) - 1 / jnp.maximum(norms, tiny)
    scale = 1 + problem.lam / lipschitz * inverses
    return jnp.sqrt(point.sizes) * point.weighted * jnp.maximum(scale, 0)


def inverse_of(matrices: Float[Array, "tasks size size"]) -> Float[Array, "tasks size size"]:
    """Return the inverses of symmetric positive definite matrices, by elimination of one column at a time."""
    places = jnp.arange(matrices.shape[-1])

    def eliminate(k, matrices):
        column = lax.dynamic_index_in_dim(matrices, k, 2, keepdims=False)
        row = lax.dynamic_index_in_dim(matrices, k, 1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, 1)
        # The product has the right values in the row and the column of the pivot, too, where it is added to
        # zero: no large numbers cancel.
        is_pivot = places == k
        column = jnp.where(is_pivot, -1, column)
        row = jnp.where(is_pivot, 1, row) / pivot
        # Without the barrier, XLA computes both vectors again for every entry of the product.
        column, row = lax.optimization_barrier((column, row))
        rest = jnp.where(is_pivot[:, None] | is_pivot, 0, matrices)
        return rest - column[:, :, None] * row[:, None, :]

    return lax.fori_loop(0, len(places), eliminate, matrices)


def _product(subscripts: str, *arrays: Array) -> Array:
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST)
