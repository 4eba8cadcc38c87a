"""The last phase of the solver: steps on all features, finished by Newton's method on a few.

It solves what working sets (`jlibo.solver.working_set`) leave: problems with few features, problems with many
in the support, and ill-conditioned ones. Each round takes `CHECK_STEPS` proximal-gradient steps. A problem
that these have not solved after a while is ill-conditioned. By then they have found most of the support, and
Newton's method (`jlibo.solver.newton`) takes over on the features with the largest coefficients and, among
the others, the steepest. Features that are missing there raise the duality gap of all features; the next
gradient steps bring them in, and Newton's method follows again.
"""

from functools import partial
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.batching import lane_cond, lane_while
from jlibo.solver.newton import MOST_STEPS, newton_steps
from jlibo.solver.proximal import CHECK_STEPS, Iterate, Problem, checked, gradient_steps, start
from jlibo.solver.working_set import Progress, has_few_large, newton_size, restricted, take

FIRST_WAIT = 100
"""Proximal-gradient steps before the first Newton steps, which cost about as much as these."""


@final
class _Finish(eqx.Module):
    """State of the phase."""

    at: Iterate
    newton_at: Int[Array, ""]
    """Number of steps at which Newton's method is due."""
    wait: Int[Array, ""]
    """Number of gradient steps after which it is due again if it fails."""


def solve_on_all(
    state: Progress, problem: Problem, ids: tuple[int, ...] | None, target_gap, max_steps
) -> Progress:
    """Return the state after steps on all features down to `target_gap`, or up to `max_steps` steps."""
    problem = problem.with_gram()
    at = start(problem, state.coef, state.residual, state.gradient, state.num_steps)
    wait = jnp.asarray(FIRST_WAIT, jnp.int32)
    newton_at = at.num_steps + jnp.where(state.is_slow, 0, wait)
    data = problem, target_gap, max_steps

    def is_unfinished(finish: _Finish, data):
        _, target_gap, max_steps = data
        return (finish.at.gap > target_gap) & (finish.at.num_steps < max_steps)

    def step(finish: _Finish, data) -> _Finish:
        return _round(finish, data, ids)

    at = lane_while(is_unfinished, step, _Finish(at, newton_at, wait), data).at
    slopes, is_nonzero = problem.norms(at.gradient), (at.coef != 0).any(0)
    return Progress(
        coef=at.coef,
        residual=at.residual,
        gradient=at.gradient,
        slopes=slopes,
        is_nonzero=is_nonzero,
        gap=at.gap,
        num_steps=at.num_steps,
        outgrown=state.outgrown,
        is_slow=state.is_slow,
    )


def _round(finish: _Finish, data, ids) -> _Finish:
    problem, target_gap, max_steps = data
    at = finish.at
    coef, (ahead, age) = gradient_steps(at, problem)
    size = newton_size(*problem.design.shape)
    is_due = (at.num_steps >= finish.newton_at) & (problem.lam > 0)
    if len(coef) > 1:
        # A single task has a solution with no more features than rows, whatever gradients have found so far.
        is_due &= has_few_large(problem.norms(coef), size)
    move = _Move(coef, ahead, age, jnp.asarray(CHECK_STEPS, jnp.int32), jnp.zeros((), bool))
    newton = partial(_newton, ids=ids, size=size)
    most_steps = jnp.clip((max_steps - at.num_steps) // CHECK_STEPS - 1, 0, MOST_STEPS)
    move = lane_cond(is_due, newton, move, (at, problem, target_gap, most_steps))
    at = checked(at, problem, move.coef, (move.ahead, move.age), move.num_steps)
    wait = jnp.where(is_due & ~move.is_better, 4 * finish.wait, finish.wait)
    soon = at.num_steps + jnp.where(move.is_better, CHECK_STEPS, wait)
    return _Finish(at, jnp.where(is_due, soon, finish.newton_at), wait)


@final
class _Move(eqx.Module):
    """Where a round goes."""

    coef: Float[Array, "tasks features"]
    ahead: Float[Array, "tasks features"]
    age: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_better: Bool[Array, ""]
    """Whether Newton's method lowered the objective."""


def _newton(move: _Move, data, *, ids: tuple[int, ...] | None, size: int) -> _Move:
    """Return the move of Newton's method on `size` features, or the given one if that is not better."""
    at, problem, target_gap, most_steps = data
    norms, slopes = problem.norms(move.coef), problem.norms(at.gradient)
    small, coef, chosen = problem, move.coef, None
    if size < len(norms):
        # Those in the support first, from the largest on, then the steepest.
        tiny = jnp.finfo(norms.dtype).tiny
        steepness = slopes / jnp.maximum(slopes.max(), tiny)
        rank = jnp.where(norms > 0, 2 + norms / jnp.maximum(norms.max(), tiny), steepness)
        _, chosen = lax.top_k(rank.astype(jnp.float32), size)
        small = restricted(problem, ids, chosen)
        coef, slopes = take(coef, chosen), take(slopes, chosen)
    coef, num_steps = newton_steps(small, coef, slopes, at.lipschitz, target_gap / 2, most_steps)
    is_better = small.objective(coef, small.residual(coef)) < at.objective
    if chosen is not None:
        zeros = jnp.zeros_like(move.coef)
        coef = zeros.at[:, chosen].set(coef, unique_indices=True, mode="promise_in_bounds")
    num_steps = move.num_steps + CHECK_STEPS * num_steps
    new = _Move(coef, coef, jnp.zeros_like(move.age), num_steps, is_better)
    kept = eqx.tree_at(lambda move: move.num_steps, move, num_steps)
    return jax.tree.map(lambda new, kept: jnp.where(is_better, new, kept), new, kept)
