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

*Steps and checks.* A step consists of little more than one product with the Gram matrices of the tasks
(`with_gram`), or two with the design if there are fewer rows than features. The objective and the duality gap
are computed every `CHECK_STEPS` steps, from the design, and steps that raised the objective are undone.

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
    gram: Float[Array, "tasks features features"] | None = None
    """(2/N) X^T X of each task, or None; see `with_gram`."""
    correlation: Float[Array, "tasks features"] | None = None
    """The gradient at zero, (2/N) X^T y, if there are Gram matrices."""

    def scaled_design(self) -> Float[Array, "tasks rows features"]:
        return self.design if self.unit is None else self.design * self.unit[0] * self.unit[1]

    def with_gram(self) -> "Problem":
        """Return the problem with Gram matrices if it has at least as many rows as features, else itself.

        With fewer rows, steps are hardly less work, and the matrices cost as much as tens of steps.
        """
        _, num_rows, num_features = self.design.shape
        if num_features > num_rows:
            return self
        correlation = self.gradient(self.targets)
        return Problem(
            self.design,
            self.targets,
            self.lam,
            self.num_rows,
            self.groups,
            self.unit,
            gram_of(self),
            correlation,
        )

    def residual(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return self.targets - self.predict(coef)

    def predict(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks rows"]:
        return self._product("snf,sf->sn", coef)

    def gradient(self, residual: Float[Array, "tasks rows"]) -> Float[Array, "tasks features"]:
        return 2 / self.num_rows * self._product("snf,sn->sf", residual)

    def descent(self, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks features"]:
        """Return `gradient(residual(coef))`, from the Gram matrices if there are any."""
        if self.gram is None or self.correlation is None:
            return self.gradient(self.residual(coef))
        return self.correlation - self.curve(coef)

    def curve(self, direction: Float[Array, "tasks features"]) -> Float[Array, "tasks features"]:
        """Return the Hessian of the loss times `direction`."""
        if self.gram is None:
            return self.gradient(self.predict(direction))
        return jnp.einsum("sfg,sg->sf", self.gram, direction, precision=lax.Precision.HIGHEST)

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

    def gap(self, coef, residual, gradient, steepest: Float[Array, ""] | None = None) -> Float[Array, ""]:
        """Return the duality gap at `coef`: an upper bound on the objective minus its minimum.

        If the problem has only some of the features and all others have coefficients of zero, `steepest` is
        the largest norm of the gradient over all groups. By default it is computed from `gradient`.
        """
        return self.objective_and_gap(coef, residual, gradient, steepest)[1]

    def objective_and_gap(
        self, coef, residual, gradient, steepest: Float[Array, ""] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return `objective` and `gap`, which have terms in common."""
        tiny = jnp.finfo(coef.dtype).tiny
        energy = (residual**2).sum()
        steepest = self.norms(gradient).max() if steepest is None else steepest
        feasible = self.lam / jnp.maximum(steepest, tiny)
        best = (residual * self.targets).sum() / jnp.maximum(energy, tiny)
        scale = jnp.clip(best, 0, feasible)
        shares = self.groups.shares(coef.dtype)
        penalties = self.lam * self.norms(coef)
        excess = penalties - scale * self.groups.totals((coef * gradient).sum(0))
        loss, excess = energy / self.num_rows, jnp.maximum(excess, 0) * shares
        return loss + (penalties * shares).sum(), loss * (1 - scale) ** 2 + excess.sum()


def gram_of(problem: Problem) -> Float[Array, "tasks features features"]:
    """Return (2/N) X^T X of each task."""
    design = problem.scaled_design()
    gram = jnp.einsum("snf,sng->sfg", design, design, precision=lax.Precision.HIGHEST)
    return 2 / problem.num_rows * gram


@final
class Iterate(eqx.Module):
    """A point with its duality gap, and the momentum and step size of the next steps."""

    coef: Float[Array, "tasks features"]
    residual: Float[Array, "tasks rows"]
    gradient: Float[Array, "tasks features"]
    objective: Float[Array, ""]
    gap: Float[Array, ""]
    ahead: Float[Array, "tasks features"]
    """Where the next step starts: `coef` plus the momentum."""
    age: Float[Array, ""]
    """Number of steps since the momentum was zero."""
    lipschitz: Float[Array, ""]
    lipschitz_bound: Float[Array, ""]
    num_steps: Int[Array, ""]


def iterate_at(
    problem: Problem,
    coef,
    lipschitz,
    lipschitz_bound,
    num_steps,
    *,
    residual=None,
    gradient=None,
    momentum=None,
) -> Iterate:
    """Return the iterate at `coef`. `momentum` is (ahead, age), by default none."""
    residual = problem.residual(coef) if residual is None else residual
    gradient = problem.gradient(residual) if gradient is None else gradient
    ahead, age = (coef, jnp.zeros((), coef.dtype)) if momentum is None else momentum
    objective, gap = problem.objective_and_gap(coef, residual, gradient)
    return Iterate(
        coef=coef,
        residual=residual,
        gradient=gradient,
        objective=objective,
        gap=gap,
        ahead=ahead,
        age=age,
        lipschitz=lipschitz,
        lipschitz_bound=lipschitz_bound,
        num_steps=num_steps,
    )


def start(problem: Problem, coef, residual, gradient, num_steps) -> Iterate:
    """Return an iterate without momentum; its step size uses an estimate of the largest task curvature."""
    direction = problem.curve(gradient)
    image = problem.curve(direction)
    tiny = jnp.finfo(coef.dtype).tiny
    # At most the largest curvature, and at least the Rayleigh quotient.
    curvature = jnp.sqrt((image**2).sum(-1) / jnp.maximum((direction**2).sum(-1), tiny))
    estimate = CURVATURE_MARGIN * curvature.max()
    if problem.gram is None:
        bound = 2 / problem.num_rows * (problem.scaled_design() ** 2).sum((1, 2)).max()
    else:
        bound = jnp.diagonal(problem.gram, axis1=1, axis2=2).sum(1).max()
    # With zero curvature any step size is valid.
    bound = jnp.where(bound > 0, bound, 1)
    lipschitz = jnp.where(estimate > 0, jnp.minimum(estimate, bound), bound)
    return iterate_at(problem, coef, lipschitz, bound, num_steps, residual=residual, gradient=gradient)


def two_steps(problem: Problem, lipschitz, coef, ahead, age):
    """Take two accelerated proximal-gradient steps (FISTA); an overshoot of the second resets the momentum.

    With a test after every step, a step would take half as long again.
    """
    tiny = jnp.finfo(coef.dtype).tiny

    def proximal(ahead):
        moved = ahead + problem.descent(ahead) / lipschitz
        shrink = 1 - problem.lam / lipschitz / jnp.maximum(problem.norms(moved), tiny)
        return moved * jnp.maximum(shrink, 0)

    first = proximal(ahead)
    ahead = first + (age + 1) / (age + 3) * (first - coef)
    second = proximal(ahead)
    # Over the tasks first: that reduction is vectorised, one to a scalar is not.
    overshoot = ((second - ahead) * (second - first)).sum(0).sum() < 0
    age = jnp.where(overshoot, 0, age + 2)
    return second, second + age / (age + 2) * (second - first), age


def advance(state: Iterate, problem: Problem) -> Iterate:
    """Return the iterate after `CHECK_STEPS` steps, or the old one and a smaller step size; see `checked`."""
    coef, momentum = gradient_steps(state, problem)
    return checked(state, problem, coef, momentum, CHECK_STEPS)


def gradient_steps(state: Iterate, problem: Problem) -> tuple[Array, tuple[Array, Array]]:
    """Return the coefficients after `CHECK_STEPS` steps, and the momentum: (ahead, age)."""
    coef, *momentum = lax.fori_loop(
        0,
        CHECK_STEPS // 2,
        lambda _, at: two_steps(problem, state.lipschitz, *at),
        (state.coef, state.ahead, state.age),
    )
    return coef, (momentum[0], momentum[1])


def checked(state: Iterate, problem: Problem, coef, momentum, num_steps) -> Iterate:
    """Return the iterate at `coef` after `num_steps` more steps, or the old one with a smaller step size.

    Steps that are too long for the curvature raise the objective. They are undone, and the step size is
    halved. Steps that overflow are undone whatever their size.
    """
    bound, num_steps = state.lipschitz_bound, state.num_steps + num_steps
    new = iterate_at(problem, coef, state.lipschitz, bound, num_steps, momentum=momentum)
    round_off = 10 * jnp.finfo(coef.dtype).eps * state.objective
    at_bound = (state.lipschitz >= bound) & jnp.isfinite(new.objective)
    good = (new.objective <= state.objective + round_off) | at_bound
    back = eqx.tree_at(
        lambda at: (at.ahead, at.age, at.lipschitz, at.num_steps),
        state,
        (state.coef, jnp.zeros_like(state.age), jnp.minimum(2 * state.lipschitz, bound), num_steps),
    )
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, back)
