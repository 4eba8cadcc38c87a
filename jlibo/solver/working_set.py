"""Growing working sets of features, on which the group lasso is solved.

On each set, proximal gradient takes steps. A problem of one task that it has not solved after
`GRADIENT_STEPS` is ill-conditioned; Newton's method (`jlibo.solver.newton`) takes over. With many tasks a
Newton step costs as much as a hundred gradient steps, and gradients are faster.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.newton import LARGEST, newton_steps
from jlibo.solver.proximal import Iterate, Pairs, Problem, Singletons, advance, start

GRADIENT_STEPS = 300
"""Most proximal-gradient steps of a round before Newton steps. They cost about as much as these do."""

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

    def take(array):
        return array.at[..., chosen].get(mode="promise_in_bounds")

    if isinstance(problem.groups, Singletons):
        groups = problem.groups
    else:
        chosen_ids = jnp.asarray(np.asarray(ids))[chosen]
        groups = Pairs(chosen_ids[:, None] == chosen_ids[None, :])
    design = take(problem.design)
    if problem.unit is not None:
        design = design * problem.unit[0] * problem.unit[1]
    small = Problem(design, problem.targets, problem.lam, problem.num_rows, groups).with_gram()
    decrease = (size / num_features) ** ROUND_POWER
    small_target = jnp.maximum(decrease * state.gap, target_gap / 2)
    last_step = jnp.minimum(state.num_steps + round_steps(small), max_steps)

    inner = start(small, take(state.coef), state.residual, take(state.gradient), state.num_steps)
    inner = solve_further(small, inner, small_target, last_step)
    gradient = problem.gradient(inner.residual)
    slopes = problem.norms(gradient)
    is_nonzero = (
        jnp.zeros_like(state.is_nonzero)
        .at[chosen]
        .set((inner.coef != 0).any(0), unique_indices=True, mode="promise_in_bounds")
    )
    return Progress(
        coef=state.coef.at[:, chosen].set(inner.coef, unique_indices=True, mode="promise_in_bounds"),
        residual=inner.residual,
        gradient=gradient,
        slopes=slopes,
        is_nonzero=is_nonzero,
        gap=small.gap(inner.coef, inner.residual, take(gradient), slopes.max()),
        num_steps=inner.num_steps,
        # No step was taken: the remaining gap comes from features outside the set, so a larger set is needed.
        outgrown=is_crowded(is_nonzero, size) | (inner.num_steps == state.num_steps),
    )


def has_newton(problem: Problem) -> bool:
    """Return whether Newton steps are worth their cost: with one task, and not too many features."""
    num_tasks, _, num_features = problem.design.shape
    return num_tasks == 1 and num_features <= LARGEST


def round_steps(problem: Problem) -> int:
    """Return the largest number of steps of a round, in which a Newton step counts as several."""
    return 2 * GRADIENT_STEPS if has_newton(problem) else ROUND_STEPS


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


def solve_further(problem: Problem, at: Iterate, target_gap, last_step) -> Iterate:
    """Return the iterate after steps down to `target_gap`, or up to the step with number `last_step`."""
    newton = has_newton(problem)
    first = jnp.minimum(at.num_steps + GRADIENT_STEPS, last_step) if newton else last_step
    at = lax.while_loop(
        lambda at: (at.gap > target_gap) & (at.num_steps < first),
        lambda at: advance(at, problem),
        at,
    )
    if not newton:
        return at
    # Without the condition, what Newton's method computes once would be computed for nothing in most calls.
    return lax.cond(
        (at.gap > target_gap) & (at.num_steps < last_step) & (problem.lam > 0),
        lambda at: newton_steps(problem, at, target_gap, last_step),
        lambda at: at,
        at,
    )
