"""Growing working sets of features, on which proximal gradient solves the group lasso.

A problem that takes many steps on a set is ill-conditioned. Unless its support or its number of features is
large, it goes on to the last phase (`jlibo.solver.all_features`), where Newton's method finishes it.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.proximal import Pairs, Problem, Singletons, advance, start

LARGEST = 128
"""Most features of a problem of one task that is solved without working sets, and of one of many tasks that
leaves them because it is ill-conditioned."""

NEWTON_COST = 11
"""Cost of a Newton step, in gradient steps on all features, up to which it has more than `FEW_FEATURES`."""

FEW_FEATURES = 24
"""Number of features on which Newton steps are taken in any case."""

FEW_ROWS = 24
"""Tasks with at most so many rows have Newton steps on 48 features: then rows are eliminated."""

SLOW_STEPS = 200
"""Proximal-gradient steps on working sets after which a problem counts as ill-conditioned."""

SMALL = 0.01
"""A group counts as large if its norm is at least this part of the largest."""

ROUND_STEPS = 100
"""Maximum number of steps on a working set before the full gradient is computed again."""

ROUND_POWER = 4
"""A round lowers the gap on its working set by the factor (size of the set / number of features) ** this. The
smaller the set, the more a full gradient costs relative to one more step on the set."""


@final
class Progress(eqx.Module):
    """State of a working-set phase."""

    coef: Float[Array, "tasks features"]
    residual: Float[Array, "tasks rows"]
    gradient: Float[Array, "tasks features"]
    slopes: Float[Array, " features"]
    """The norm of the gradient over each feature's group."""
    is_nonzero: Bool[Array, " features"]
    """Which features have coefficients other than zero. All others are zero in all tasks."""
    gap: Float[Array, ""]
    num_steps: Int[Array, ""]
    outgrown: Bool[Array, ""]
    """Whether the problem leaves the working sets of this size."""
    is_slow: Bool[Array, ""]
    """Whether the problem is ill-conditioned, so that Newton's method is due."""


def is_crowded(is_nonzero: Bool[Array, " features"], size: int) -> Bool[Array, ""]:
    """Return whether the nonzero features leave too little room for new ones in a working set of `size`."""
    return 8 * is_nonzero.sum() > 7 * size


def working_set_round(
    state: Progress, problem: Problem, ids: tuple[int, ...], size: int, target_gap, max_steps
) -> Progress:
    """Solve on a working set of `size` features, all others zero, then compute the full gradient and gap.

    The set has every nonzero feature (`is_crowded` ensures that they fit), then the other features of their
    groups, then the features whose groups have the largest gradient. A group may be only partly in the set:
    its other features are zero, so its norm is correct. Arrays over all features are read as seldom as
    possible: in large problems a pass over one takes as long as a step on the set.
    """
    num_features = len(state.slopes)
    in_use = problem.groups.totals(state.is_nonzero.astype(state.slopes.dtype)) > 0
    # The gradient is near one. In float32, XLA selects the largest without sorting all.
    steepness = state.slopes.astype(jnp.float32)
    rank = jnp.where(in_use, jnp.finfo(jnp.float32).max, steepness)
    _, chosen = lax.top_k(jnp.where(state.is_nonzero, jnp.inf, rank), size)
    small = restricted(problem, ids, chosen)
    decrease = (size / num_features) ** ROUND_POWER
    small_target = jnp.maximum(decrease * state.gap, target_gap / 2)
    last_step = jnp.minimum(state.num_steps + ROUND_STEPS, max_steps)

    inner = start(
        small, take(state.coef, chosen), state.residual, take(state.gradient, chosen), state.num_steps
    )
    inner = lax.while_loop(
        lambda at: (at.gap > small_target) & (at.num_steps < last_step),
        lambda at: advance(at, small),
        inner,
    )
    gradient = problem.gradient(inner.residual)
    slopes = problem.norms(gradient)
    is_nonzero = (
        jnp.zeros_like(state.is_nonzero)
        .at[chosen]
        .set((inner.coef != 0).any(0), unique_indices=True, mode="promise_in_bounds")
    )
    # Steps on all features of many tasks cost more than Newton's method saves if there are many features.
    is_slow = (inner.num_steps >= SLOW_STEPS) & (num_features <= LARGEST or len(state.coef) == 1)
    is_slow &= has_few_large(small.norms(inner.coef), newton_size(*problem.design.shape))
    return Progress(
        coef=state.coef.at[:, chosen].set(inner.coef, unique_indices=True, mode="promise_in_bounds"),
        residual=inner.residual,
        gradient=gradient,
        slopes=slopes,
        is_nonzero=is_nonzero,
        gap=small.gap(inner.coef, inner.residual, take(gradient, chosen), slopes.max()),
        num_steps=inner.num_steps,
        # No step was taken: the remaining gap comes from features outside the set, so a larger set is needed.
        outgrown=is_crowded(is_nonzero, size) | (inner.num_steps == state.num_steps) | is_slow,
        is_slow=is_slow,
    )


def take(array: Array, chosen: Int[Array, " set"]) -> Array:
    """Return the entries of the chosen features."""
    return array.at[..., chosen].get(mode="promise_in_bounds")


def restricted(problem: Problem, ids: tuple[int, ...] | None, chosen: Int[Array, " set"]) -> Problem:
    """Return the problem of the chosen features alone, with Gram matrices if they are worth their cost."""
    if isinstance(problem.groups, Singletons):
        groups = problem.groups
    else:
        chosen_ids = jnp.asarray(np.asarray(ids))[chosen]
        groups = Pairs(chosen_ids[:, None] == chosen_ids[None, :])
    design = take(problem.design, chosen)
    if problem.unit is not None:
        design = design * problem.unit[0] * problem.unit[1]
    return Problem(design, problem.targets, problem.lam, problem.num_rows, groups).with_gram()


def newton_size(num_tasks: int, num_rows: int, num_features: int) -> int:
    """Return the number of features on which Newton steps are taken.

    The cost of a step grows with its cube, and that of a gradient step with the square of the number of all
    features. Where rows are eliminated, it hardly depends on the number of features. A step of a single task
    costs hardly more than the system of the groups.
    """
    affordable = int((NEWTON_COST * num_features**2) ** (1 / 3)) // 8 * 8
    size = 32 if num_tasks == 1 else 48 if num_rows <= FEW_ROWS else max(FEW_FEATURES, affordable)
    return min(size, num_features)


def has_few_large(norms: Float[Array, " features"], size: int) -> Bool[Array, ""]:
    """Return whether at most `size` features are in groups that count as large."""
    return (norms > SMALL * norms.max()).sum() <= size


def working_set_sizes(num_tasks: int, num_features: int) -> tuple[int, ...]:
    """Return the sizes to try before all features. Each size compiles its own loop, so there are few."""
    if num_tasks == 1:
        return () if num_features <= LARGEST else (LARGEST // 2,)
    sizes = []
    size = 16
    while 2 * size <= num_features:
        sizes.append(size)
        size *= 4
    return tuple(sizes)
