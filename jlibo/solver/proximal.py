"""Accelerated proximal gradient for the multi-task group lasso: one step, one certificate, one working set.

| here             | paper                                                                  |
|------------------|------------------------------------------------------------------------|
| `design[s]`      | Phi_s, the features of task s, rows that are absent set to zero        |
| `targets`        | y                                                                      |
| `coef[s]`        | beta_s; group j over all tasks is beta^(j)                             |
| `lam`            | lambda                                                                 |
| `num_rows`       | N = number of (x, y) pairs over all tasks                              |
| `gradient`       | (2/N) Phi^T (y - Phi beta), minus the gradient of the loss in eq. (1)  |

The block-diagonal matrix of eq. (1) never exists: a product with it is a batched product over tasks.

*Light steps, rare checks.* A step is two products with the design and little else; every `CHECK_STEPS` of
them the objective and the duality gap are computed, and steps that went wrong are undone.

*The certificate.* With the dual point theta = scale * (2/N) * residual, scaled until it is feasible,

    gap = (1/N) ||residual||^2 (1 - scale)^2 + sum_j (lam ||b_j|| - scale <b_j, gradient_j>),

a sum of terms that are each non-negative. Nothing cancels, so that the gap means something in float32 too.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.units import near_one

CHECK_STEPS = 10
"""Steps between two looks at the duality gap."""

CURVATURE_MARGIN = 1.1
"""The first step size trusts an estimate of the curvature, from below, by this much."""

ROUND_STEPS = 100
"""Most steps inside a working set before the full gradient is looked at again."""

ROUND_POWER = 4
"""How much a round lowers the gap inside its working set: to (size of the set / all features) ** this. The
smaller the set, the dearer a look at all features against one more step inside it."""


class AbstractGroups(eqx.Module):
    """Which features belong together: sums over a group, handed back to each of its features."""

    @abc.abstractmethod
    def totals(self, values: Float[Array, " features"]) -> Float[Array, " features"]:
        """Sum of `values` over each feature's own group."""

    @abc.abstractmethod
    def shares(self, dtype: Any) -> Float[Array, " features"] | float:
        """One over the size of each feature's group: sums over features become sums over groups."""


class Singletons(AbstractGroups):
    """Every feature is a group of its own."""

    def totals(self, values):
        return values

    def shares(self, dtype):
        return 1.0


class Members(AbstractGroups):
    """Groups known before tracing, as a padded table: sums by gathering, never by scattering."""

    ids: tuple[int, ...] = eqx.field(static=True)

    def totals(self, values):
        table, _ = self._table()
        padded = jnp.append(values, jnp.zeros((), values.dtype))
        return padded[table].sum(1)[np.asarray(self.ids)]

    def shares(self, dtype):
        _, sizes = self._table()
        return jnp.asarray(1.0 / sizes[np.asarray(self.ids)], dtype)

    def _table(self):
        ids = np.asarray(self.ids)
        sizes = np.bincount(ids)
        table = np.full((len(sizes), sizes.max()), len(ids))
        for group, size in enumerate(sizes):
            table[group, :size] = np.flatnonzero(ids == group)
        return table, sizes


class Pairs(AbstractGroups):
    """Groups of a few features chosen while running, as the matrix of who shares a group with whom."""

    same: Bool[Array, "features features"]

    def totals(self, values):
        return jnp.where(self.same, values, 0).sum(-1)

    def shares(self, dtype):
        return 1.0 / self.same.sum(-1).astype(dtype)


class Problem(eqx.Module):
    """Minimise (1/num_rows) ||targets - design coef||^2 + lam * sum of group norms."""

    design: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    lam: Float[Array, ""]
    num_rows: Float[Array, ""]
    groups: AbstractGroups

    def residual(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return self.targets - self.predict(coef)

    def predict(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return jnp.einsum("snf,sf->sn", self.design, coef, precision=lax.Precision.HIGHEST)

    def gradient(self, residual: Float[Array, "tasks rows"]) -> Float[Array, "tasks features"]:
        product = jnp.einsum("snf,sn->sf", self.design, residual, precision=lax.Precision.HIGHEST)
        return 2 / self.num_rows * product

    def norms(self, values: Float[Array, "tasks features"]) -> Float[Array, " features"]:
        """The norm of each feature's group, over all tasks. Values below 1e-19 count as zero in float32."""
        return jnp.sqrt(self.groups.totals((values**2).sum(0)))

    def safe_norms(self, values: Float[Array, "tasks features"]) -> Float[Array, " features"]:
        """`norms`, whatever the size of the values; too dear for a step."""
        values, unit = near_one(values)
        return unit * self.norms(values)

    def objective(self, coef, residual) -> Float[Array, ""]:
        penalty = (self.norms(coef) * self.groups.shares(coef.dtype)).sum()
        return (residual**2).sum() / self.num_rows + self.lam * penalty

    def gap(self, coef, residual, gradient, *, safe: bool = False) -> Float[Array, ""]:
        """The duality gap at `coef`: an upper bound on how far its objective is from the minimum.

        With `safe`, also where all of the gradient is so small that its squares underflow.
        """
        tiny = jnp.finfo(coef.dtype).tiny
        energy = (residual**2).sum()
        steepest = (self.safe_norms if safe else self.norms)(gradient).max()
        feasible = self.lam / jnp.maximum(steepest, tiny)
        best = (residual * self.targets).sum() / jnp.maximum(energy, tiny)
        scale = jnp.clip(best, 0, feasible)
        penalty = self.lam * self.norms(coef) - scale * self.groups.totals((coef * gradient).sum(0))
        penalty = jnp.maximum(penalty, 0) * self.groups.shares(coef.dtype)
        return energy / self.num_rows * (1 - scale) ** 2 + penalty.sum()


class Iterate(eqx.Module):
    """A certified point, and the momentum and step size that lead on from it."""

    coef: Float[Array, "tasks features"]
    residual: Float[Array, "tasks rows"]
    gradient: Float[Array, "tasks features"]
    objective: Float[Array, ""]
    gap: Float[Array, ""]
    previous_coef: Float[Array, "tasks features"]
    momentum: Float[Array, ""]
    lipschitz: Float[Array, ""]
    lipschitz_bound: Float[Array, ""]
    num_steps: Int[Array, ""]


def start(problem: Problem, coef, residual, gradient, num_steps) -> Iterate:
    """An iterate at rest. The step size begins with an estimate of the largest curvature of any task."""

    def power_step(direction):
        image = problem.predict(direction)
        return image, problem.gradient(image)

    _, direction = power_step(gradient)
    image, _ = power_step(direction)
    tiny = jnp.finfo(coef.dtype).tiny
    curvature = (image**2).sum(-1) / jnp.maximum((direction**2).sum(-1), tiny)
    estimate = CURVATURE_MARGIN * 2 / problem.num_rows * curvature.max()
    bound = 2 / problem.num_rows * (problem.design**2).sum((1, 2)).max()
    # Where nothing bends, any step size is right; one is as good as another.
    bound = jnp.where(bound > 0, bound, 1)
    return Iterate(
        coef=coef,
        residual=residual,
        gradient=gradient,
        objective=problem.objective(coef, residual),
        gap=problem.gap(coef, residual, gradient),
        previous_coef=coef,
        momentum=jnp.ones((), coef.dtype),
        lipschitz=jnp.where(estimate > 0, jnp.minimum(estimate, bound), bound),
        lipschitz_bound=bound,
        num_steps=num_steps,
    )


def step(problem: Problem, lipschitz, coef, previous_coef, momentum):
    """One accelerated proximal-gradient step (FISTA), without momentum again after an overshoot."""
    tiny = jnp.finfo(coef.dtype).tiny
    next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
    ahead = coef + (momentum - 1) / next_momentum * (coef - previous_coef)
    moved = ahead + problem.gradient(problem.residual(ahead)) / lipschitz
    shrink = 1 - problem.lam / lipschitz / jnp.maximum(problem.norms(moved), tiny)
    new_coef = moved * jnp.maximum(shrink, 0)
    overshoot = ((new_coef - ahead) * (new_coef - coef)).sum() < 0
    return new_coef, coef, jnp.where(overshoot, 1, next_momentum)


def advance(state: Iterate, problem: Problem) -> Iterate:
    """`CHECK_STEPS` steps, then a look at where they led.

    Steps that were too long for the curvature they met raise the objective: they are taken back, and the
    next ones are half as long. Steps that overflowed are taken back whatever their length.
    """
    coef, previous_coef, momentum = lax.fori_loop(
        0,
        CHECK_STEPS,
        lambda _, at: step(problem, state.lipschitz, *at),
        (state.coef, state.previous_coef, state.momentum),
    )
    residual = problem.residual(coef)
    gradient = problem.gradient(residual)
    objective = problem.objective(coef, residual)
    round_off = 10 * jnp.finfo(coef.dtype).eps * state.objective
    at_bound = (state.lipschitz >= state.lipschitz_bound) & jnp.isfinite(objective)
    good = (objective <= state.objective + round_off) | at_bound
    new = Iterate(
        coef=coef,
        residual=residual,
        gradient=gradient,
        objective=objective,
        gap=problem.gap(coef, residual, gradient),
        previous_coef=previous_coef,
        momentum=momentum,
        lipschitz=state.lipschitz,
        lipschitz_bound=state.lipschitz_bound,
        num_steps=state.num_steps + CHECK_STEPS,
    )
    back = eqx.tree_at(
        lambda at: (at.previous_coef, at.momentum, at.lipschitz, at.num_steps),
        state,
        (
            state.coef,
            jnp.ones_like(momentum),
            jnp.minimum(2 * state.lipschitz, state.lipschitz_bound),
            new.num_steps,
        ),
    )
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, back)


class Progress(eqx.Module):
    """Where a working-set phase stands."""

    coef: Float[Array, "tasks features"]
    residual: Float[Array, "tasks rows"]
    gradient: Float[Array, "tasks features"]
    gap: Float[Array, ""]
    num_steps: Int[Array, ""]
    outgrown: Bool[Array, ""]


def is_crowded(coef: Float[Array, "tasks features"], size: int) -> Bool[Array, ""]:
    """Whether so many features are in use that a working set of `size` has too little room for new ones."""
    return 8 * (coef != 0).any(0).sum() > 7 * size


def working_set_round(
    state: Progress, problem: Problem, ids: tuple[int, ...], size: int, target_gap, max_steps
) -> Progress:
    """Solve on the `size` most promising features, all others staying zero, then look at all of them again.

    The set holds every feature that is not zero (`is_crowded` sees to it that there is room), then the others
    of their groups, then those whose group has the steepest gradient. A group that is cut by the set's edge
    does no harm: its other features are zero, so its norm is right.
    """
    coef = state.coef
    group_totals = problem.groups.totals
    nonzero = (coef != 0).any(0)
    in_use = group_totals(nonzero.astype(coef.dtype)) > 0
    steepness = group_totals((state.gradient**2).sum(0))
    rank = jnp.where(in_use, jnp.finfo(coef.dtype).max, steepness)
    _, chosen = lax.top_k(jnp.where(nonzero, jnp.inf, rank), size)

    def take(array):
        return array.at[..., chosen].get(mode="promise_in_bounds")

    if isinstance(problem.groups, Singletons):
        groups = problem.groups
    else:
        chosen_ids = jnp.asarray(np.asarray(ids))[chosen]
        groups = Pairs(chosen_ids[:, None] == chosen_ids[None, :])
    small = Problem(take(problem.design), problem.targets, problem.lam, problem.num_rows, groups)
    decrease = (size / coef.shape[1]) ** ROUND_POWER
    small_target = jnp.maximum(decrease * state.gap, target_gap / 2)
    last_step = jnp.minimum(state.num_steps + ROUND_STEPS, max_steps)

    inner = start(small, take(coef), state.residual, take(state.gradient), state.num_steps)
    inner = lax.while_loop(
        lambda at: (at.gap > small_target) & (at.num_steps < last_step),
        lambda at: advance(at, small),
        inner,
    )
    coef = jnp.zeros_like(coef).at[:, chosen].set(inner.coef, unique_indices=True)
    gradient = problem.gradient(inner.residual)
    # No step at all: what is missing lies outside the set's reach, so a larger set has to take over.
    outgrown = is_crowded(coef, size) | (inner.num_steps == state.num_steps)
    gap = problem.gap(coef, inner.residual, gradient)
    return Progress(coef, inner.residual, gradient, gap, inner.num_steps, outgrown)


def working_set_sizes(num_features: int) -> tuple[int, ...]:
    """Sizes to try before all features at once: each is a compiled loop of its own, so there are few."""
    sizes = []
    size = 16
    while 2 * size <= num_features:
        sizes.append(size)
        size *= 4
    return tuple(sizes)
