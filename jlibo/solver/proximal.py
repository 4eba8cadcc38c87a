"""Accelerated proximal gradient for the multi-task group lasso: the problem, its duality gap, steps.

| here             | paper                                                                  |
|------------------|------------------------------------------------------------------------|
| `design[s]`      | Phi_s, the features of task s; masked rows are zero                    |
| `targets`        | y                                                                      |
| `coef[s]`        | beta_s; group j over all tasks is beta^(j)                             |
| `lam`            | lambda                                                                 |
| `num_rows`       | N = number of (x, y) pairs over all tasks                              |
| `gradient`       | (2/N) Phi^T (y - Phi beta), minus the gradient of the loss in eq. (1)  |

The block-diagonal matrix of eq. (1) is never formed: a product with it is a batched product over tasks.

*Steps and checks.* A step consists of little more than two products with the design. The objective and the
duality gap are computed every `CHECK_STEPS` steps, and steps that raised the objective are undone.

*Duality gap.* With the dual point theta = scale * (2/N) * residual, scaled to be feasible,

    gap = (1/N) ||residual||^2 (1 - scale)^2 + sum_j (lam ||b_j|| - scale <b_j, gradient_j>),

a sum of non-negative terms. There is no cancellation, so the gap is accurate in float32 too.
"""

import abc
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.solver.units import near_one

CHECK_STEPS = 10
"""Steps between two computations of the duality gap."""

CURVATURE_MARGIN = 1.1
"""Factor on the curvature estimate, which is a lower bound, for the initial step size."""


class AbstractGroups(eqx.Module):
    """A partition of the features into groups. Group sums are returned per feature."""

    @abc.abstractmethod
    def totals(self, values: Float[Array, " features"]) -> Float[Array, " features"]:
        """Return, for each feature, the sum of `values` over its group."""

    @abc.abstractmethod
    def shares(self, dtype: Any) -> Float[Array, " features"] | float:
        """Return 1 / (group size) for each feature: weights that turn sums over features into group sums."""

    @abc.abstractmethod
    def pair_totals(self, matrix: Float[Array, "features features"]) -> Float[Array, "features features"]:
        """Return, for each two features, the sum of `matrix` over their two groups."""

    @abc.abstractmethod
    def is_first(self, num_features: int) -> Bool[Array, " features"]:
        """Return which features are the first of their group: one of each."""


@final
class Singletons(AbstractGroups):
    """Every feature is a group of its own."""

    def totals(self, values):
        return values

    def shares(self, dtype):
        return 1.0

    def pair_totals(self, matrix):
        return matrix

    def is_first(self, num_features):
        return jnp.ones(num_features, bool)


@final
class Members(AbstractGroups):
    """Static groups. Sums gather from a padded table instead of scattering."""

    ids: tuple[int, ...] = eqx.field(static=True)

    def totals(self, values):
        table, _ = self._table()
        padded = jnp.append(values, jnp.zeros((), values.dtype))
        return padded[table].sum(1)[np.asarray(self.ids)]

    def shares(self, dtype):
        _, sizes = self._table()
        return jnp.asarray(1.0 / sizes[np.asarray(self.ids)], dtype)

    def pair_totals(self, matrix):
        return self._pairs().pair_totals(matrix)

    def is_first(self, num_features):
        return self._pairs().is_first(num_features)

    def _pairs(self):
        ids = np.asarray(self.ids)
        return Pairs(jnp.asarray(ids[:, None] == ids))

    def _table(self):
        ids = np.asarray(self.ids)
        sizes = np.bincount(ids)
        table = np.full((len(sizes), sizes.max()), len(ids))
        for group, size in enumerate(sizes):
            table[group, :size] = np.flatnonzero(ids == group)
        return table, sizes


@final
class Pairs(AbstractGroups):
    """Groups of a few features chosen at run time, as a matrix: true where two features share a group."""

    same: Bool[Array, "features features"]

    def totals(self, values):
        return jnp.where(self.same, values, 0).sum(-1)

    def shares(self, dtype):
        return 1.0 / self.same.sum(-1).astype(dtype)

    def pair_totals(self, matrix):
        same = self.same.astype(matrix.dtype)
        return jnp.matmul(
            jnp.matmul(same, matrix, precision=lax.Precision.HIGHEST), same, precision=lax.Precision.HIGHEST
        )

    def is_first(self, num_features):
        return ~jnp.tril(self.same, -1).any(1)


@final
class Problem(eqx.Module):
    """Minimise (1/num_rows) ||targets - unit design coef||^2 + lam * sum of group norms."""

    design: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    lam: Float[Array, ""]
    num_rows: Float[Array, ""]
    groups: AbstractGroups
    unit: tuple[Float[Array, ""], Float[Array, ""]] | None = None
    """Two powers of two whose product scales the design; None for 1.

    The vectors that the design is multiplied with are scaled, and not the design: a copy of a large design
    takes as long as a third of a solve. One factor is applied before and one after a product, so neither the
    vector nor the product leaves the range of the dtype.
    """

    def scaled_design(self) -> Float[Array, "tasks rows features"]:
        return self.design if self.unit is None else self.design * self.unit[0] * self.unit[1]

    def residual(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return self.targets - self.predict(coef)

    def predict(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return self._product("snf,sf->sn", coef)

    def gradient(self, residual: Float[Array, "tasks rows"]) -> Float[Array, "tasks features"]:
        return 2 / self.num_rows * self._product("snf,sn->sf", residual)

    def _product(self, subscripts: str, vectors: Float[Array, "tasks _"]) -> Float[Array, "tasks _"]:
        before, after = (1, 1) if self.unit is None else self.unit
        product = jnp.einsum(subscripts, self.design, vectors * before, precision=lax.Precision.HIGHEST)
        return product * after

    def norms(self, values: Float[Array, "tasks features"]) -> Float[Array, " features"]:
        """Return each feature's group norm over all tasks. Values below 1e-19 count as zero in float32."""
        return jnp.sqrt(self.groups.totals((values**2).sum(0)))

    def safe_norms(self, values: Float[Array, "tasks features"]) -> Float[Array, " features"]:
        """Return `norms` without overflow or underflow; too expensive for every step."""
        values, unit = near_one(values)
        return unit * self.norms(values)

    def objective(self, coef, residual) -> Float[Array, ""]:
        penalty = (self.norms(coef) * self.groups.shares(coef.dtype)).sum()
        return (residual**2).sum() / self.num_rows + self.lam * penalty

    def gap(self, coef, residual, gradient, *, safe: bool = False) -> Float[Array, ""]:
        """Return the duality gap at `coef`: an upper bound on the objective minus its minimum.

        With `safe`, the bound also holds if the gradient is so small that its squares underflow.
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


@final
class Iterate(eqx.Module):
    """A point with its duality gap, and the momentum and step size of the next steps."""

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
    """Return an iterate without momentum; its step size uses an estimate of the largest task curvature."""

    def power_step(direction):
        image = problem.predict(direction)
        return image, problem.gradient(image)

    _, direction = power_step(gradient)
    image, _ = power_step(direction)
    tiny = jnp.finfo(coef.dtype).tiny
    curvature = (image**2).sum(-1) / jnp.maximum((direction**2).sum(-1), tiny)
    estimate = CURVATURE_MARGIN * 2 / problem.num_rows * curvature.max()
    bound = 2 / problem.num_rows * (problem.scaled_design() ** 2).sum((1, 2)).max()
    # With zero curvature any step size is valid.
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
    """Take one accelerated proximal-gradient step (FISTA); an overshoot resets the momentum."""
    tiny = jnp.finfo(coef.dtype).tiny
    next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
    ahead = coef + (momentum - 1) / next_momentum * (coef - previous_coef)
    moved = ahead + problem.gradient(problem.residual(ahead)) / lipschitz
    shrink = 1 - problem.lam / lipschitz / jnp.maximum(problem.norms(moved), tiny)
    new_coef = moved * jnp.maximum(shrink, 0)
    overshoot = ((new_coef - ahead) * (new_coef - coef)).sum() < 0
    return new_coef, coef, jnp.where(overshoot, 1, next_momentum)


def advance(state: Iterate, problem: Problem) -> Iterate:
    """Return the iterate after `CHECK_STEPS` steps, or the old one with a smaller step size if they failed.

    Steps that are too long for the curvature raise the objective. They are undone, and the step size is
    halved. Steps that overflow are undone whatever their size.
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
