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

which is never ill-scaled, whatever the scale of a column and however small an r_j. The steps use
`diag(|r - q|)` instead of `diag(r - q)`: it is positive definite, it bounds the steps of groups that grow and
of those that vanish, and it disappears at the solution, so convergence stays quadratic. For groups that
vanish this step is too short, by a half where nothing else changes, so it is doubled. If phi does not
decrease, the step is halved. Some ten steps are enough for problems that take gradients thousands.

The ridge matrices are inverted by elimination over all tasks at once: of rows if there are fewer rows than
features, else of features. A LAPACK call inside a loop can deadlock when many executions run at once.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.proximal import CHECK_STEPS, Iterate, Problem, iterate_at

LARGEST = 128
"""Most features of a set on which Newton steps are taken. The cost of a step grows with their cube."""

VANISHING = -0.5
"""Change of a log size below which a group counts as vanishing."""

SMALLEST_START = 1e-2
"""Initial size of a group whose coefficients are zero, in units of the largest."""


@final
class _Point(eqx.Module):
    """Sizes of the groups, and what the next step needs to know at them."""

    sizes: Float[Array, " features"]
    squares: Float[Array, " features"]
    curvature: Float[Array, "features features"]
    value: Float[Array, ""]


@final
class _State(eqx.Module):
    point: _Point
    length: Float[Array, ""]
    """Length of the next step, 1 for a full one."""
    is_stuck: Bool[Array, ""]
    best: Iterate


def newton_steps(
    problem: Problem,
    start: Iterate,
    target_gap: Float[Array, ""],
    last_step: Int[Array, ""],
) -> Iterate:
    """Return the iterate after Newton steps down to `target_gap`; `start` if they did not improve on it.

    A step counts as `CHECK_STEPS` steps, which is about what it costs. With `lam = 0` there are none.
    """
    norms = problem.norms(start.coef)
    norms = jnp.maximum(norms, SMALLEST_START * norms.max())
    # At this first point the step is zero, and any value is better.
    point = _Point(norms, norms, jnp.eye(len(norms), dtype=norms.dtype), jnp.full_like(start.gap, jnp.inf))
    state = _State(point, jnp.ones_like(start.gap), problem.lam <= 0, start)
    gram = problem.with_gram().gram if problem.gram is None else problem.gram

    def is_running(state: _State):
        best = state.best
        return (best.gap > target_gap) & (best.num_steps < last_step) & ~state.is_stuck

    return lax.while_loop(is_running, lambda state: _advance(state, problem, gram), state).best


def _advance(state: _State, problem: Problem, gram) -> _State:
    eps = jnp.finfo(state.length.dtype).eps
    old, best = state.point, state.best
    sizes = old.sizes * jnp.exp(state.length * _step(old, problem))
    sizes = jnp.maximum(sizes, eps**2 * sizes.max())
    weighted, inner = ridge(problem, gram, sizes)
    squares = problem.groups.totals((weighted**2).sum(0))
    coef = jnp.sqrt(sizes) * weighted
    loss = (problem.residual(coef) ** 2).sum() / problem.num_rows
    penalties = (squares + sizes) * problem.groups.shares(sizes.dtype)
    value = loss + problem.lam / 2 * penalties.sum()
    # False also if the value is not finite.
    is_lower = value <= old.value * (1 + 10 * eps)
    new = _Point(sizes, squares, inner, value)
    point = jax.tree.map(lambda new, old: jnp.where(is_lower, new, old), new, old)
    length = jnp.where(is_lower, jnp.minimum(2 * state.length, 1), state.length / 2)
    best = _better(problem, best, _without_vanishing(problem, best, coef, sizes, squares))
    return _State(point, length, length < 1e-4, best)


def _step(point: _Point, problem: Problem) -> Float[Array, " features"]:
    """Return the change of each feature's log size; that of features in one group is the same."""
    sizes, squares = point.sizes, point.squares
    unit = jnp.sqrt(sizes + squares)
    diagonal = jnp.abs(sizes - squares) / 4 + 1e-9 * (sizes + squares)
    is_first = problem.groups.is_first(len(sizes))
    matrix = problem.groups.pair_totals(point.curvature) / (unit[:, None] * unit)
    matrix = jnp.where(is_first[:, None] & is_first, matrix, 0)
    matrix += jnp.diag(jnp.where(is_first, diagonal / (sizes + squares), 1))
    right = jnp.where(is_first, (squares - sizes) / (2 * unit), 0)
    step = _product("fg,g->f", inverse_of(matrix[None])[0], right) / unit
    step = problem.groups.totals(step)
    return jnp.clip(jnp.where(step < VANISHING, 2 * step, step), -5, 2)


def ridge(problem: Problem, gram, sizes):
    """Return the ridge regressions of all tasks, divided by the roots of `sizes`, and the curvature.

    `gram` is that of `gram_of`, or None to work with the rows. Groups of size zero have coefficients of zero.
    """
    root = jnp.sqrt(sizes)
    if gram is None:
        unit = jnp.sqrt(2 / problem.num_rows / problem.lam)
        design = problem.scaled_design() * (root * unit)
        rows = _product("snf,slf->snl", design, design)
        inverse = inverse_of(rows + jnp.eye(rows.shape[1], dtype=rows.dtype))
        dual = _product("snl,sl->sn", inverse, problem.targets)
        weighted = unit * _product("snf,sn->sf", design, dual)
        spread = design * weighted[:, None]
        return weighted, _product("snf,sng->fg", spread, _product("snl,slf->snf", inverse, spread))
    eye = jnp.eye(len(root), dtype=root.dtype)
    inverse = inverse_of(gram * (root[:, None] * root / problem.lam) + eye)
    right = root * problem.gradient(problem.targets) / problem.lam
    weighted = _product("sfg,sg->sf", inverse, right)
    curvature = ((eye - inverse) * weighted[:, :, None] * weighted[:, None, :]).sum(0)
    return weighted, curvature


def _without_vanishing(problem: Problem, best: Iterate, coef, sizes, squares) -> Iterate:
    """Return the iterate after one proximal-gradient step from `coef`, which zeroes vanishing groups.

    At a ridge solution the gradient is `lam / r` times the coefficients, so the step scales each group.
    """
    tiny = jnp.finfo(sizes.dtype).tiny
    norms = jnp.sqrt(sizes * squares)
    scale = 1 + problem.lam / best.lipschitz * (1 / sizes - 1 / jnp.maximum(norms, tiny))
    coef = coef * jnp.maximum(scale, 0)
    num_steps = best.num_steps + CHECK_STEPS
    return iterate_at(problem, coef, best.lipschitz, best.lipschitz_bound, num_steps)


def _better(problem: Problem, old: Iterate, new: Iterate) -> Iterate:
    """Return `new` if its gap is smaller and its objective no higher, else `old` with the steps counted."""
    round_off = 10 * jnp.finfo(new.coef.dtype).eps * old.objective
    is_better = (new.gap < old.gap) & (new.objective <= old.objective + round_off)
    counted = eqx.tree_at(lambda at: at.num_steps, old, new.num_steps)
    return jax.tree.map(lambda new, old: jnp.where(is_better, new, old), new, counted)


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
