"""Least squares with a shared low-rank representation, theta_s = B w_s, by alternating minimisation.

| here                     | Yang et al. (2021), Hu et al. (2021)                                   |
|--------------------------|------------------------------------------------------------------------|
| `basis`                  | B_hat, orthonormal columns                                             |
| `weights`                | w_hat_s                                                                |
| `low_rank_least_squares` | argmin sum_s ||y_s - X_s B w_s||^2, the estimate of MLinGreedy and MTLR-OFUL |
| `start_basis`            | ridge regression per task, then the largest singular vectors           |

Given B, every task is a regression in `rank` coordinates. Given the weights, B solves the linear system
sum_s (w_s w_s^T kron V_s) vec(B) = sum_s vec(c_s w_s^T). Both steps are exact, so the loss never increases.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.arena.estimators.eigen import check_rank, symmetric_eigen, top_subspace
from jlibo.arena.estimators.gaussian import dot
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.checks import check_count, check_shape
from jlibo.front_door import front_door
from jlibo.solver.newton import inverse_of

HIGHEST = lax.Precision.HIGHEST
JITTER_POWER = 2 / 3
"""A system gets a relative ridge of eps to this power. The round-off of a singular system is eps / ridge, and
a regular one is changed by the ridge."""


@final
class LowRankFit(eqx.Module):
    """Answer of `low_rank_least_squares`."""

    basis: Float[Array, "features rank"]
    """Orthonormal columns."""
    weights: Float[Array, "tasks rank"]
    loss: Float[Array, ""]
    """Sum of the squared residuals."""

    @property
    def coef(self) -> Float[Array, "tasks features"]:
        """theta_s = B w_s of every task."""
        return dot(self.weights, self.basis.T)


def solve_ridge(
    gram: Float[Array, "tasks size size"], moment: Float[Array, "tasks size"], ridge: Float[Array, ""]
) -> Float[Array, "tasks size"]:
    """Return (V_s + ridge I)^-1 c_s; a relative ridge of round-off is added, so that V_s may be singular."""
    size = gram.shape[-1]
    traces = jnp.trace(gram, axis1=-2, axis2=-1) / size
    jitter = float(jnp.finfo(gram.dtype).eps) ** JITTER_POWER * jnp.where(traces > 0, traces, 1)
    diagonal = (ridge + jitter)[:, None, None] * jnp.eye(size, dtype=gram.dtype)
    return jnp.einsum("tfg,tg->tf", inverse_of(gram + diagonal), moment, precision=HIGHEST)


def shared_factor(
    gram: Float[Array, "tasks features features"],
    moment: Float[Array, "tasks features"],
    weights: Float[Array, "tasks rank"],
    products: Float[Array, "tasks rank rank"],
) -> Float[Array, "features rank"]:
    """Return the B that minimises sum_s E|y_s - X_s B w_s|^2, given the moments of the weights.

    **Arguments:**

    - `gram`, `moment`: V_s and c_s.
    - `weights`: E w_s.
    - `products`: E w_s w_s^T.
    """
    num_features, rank = gram.shape[-1], weights.shape[-1]
    system = jnp.einsum("tij,tfg->ifjg", products, gram, precision=HIGHEST)
    right = jnp.einsum("ti,tf->if", weights, moment, precision=HIGHEST)
    size = rank * num_features
    zero = jnp.zeros((), gram.dtype)
    solved = solve_ridge(system.reshape(1, size, size), right.reshape(1, size), zero)
    return solved.reshape(rank, num_features).T


@front_door
def task_least_squares(
    stats: TaskStatistics, ridge: Float[Array, ""] | float = 0.0
) -> Float[Array, "tasks features"]:
    """Return the least-squares weights of every task on its own, (V_s + ridge I)^-1 c_s.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `ridge`: penalty of the squared norm. With 0, the answer for a task with fewer observations than
      features is close to one of many minimisers.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import TaskStatistics, task_least_squares

    print(task_least_squares(TaskStatistics.empty(3, 2)))  # zeros
    ```
    """
    return solve_ridge(stats.gram, stats.moment, jnp.asarray(ridge, stats.gram.dtype))


@front_door
def start_basis(
    stats: TaskStatistics, rank: int, ridge: Float[Array, ""] | float = 1.0
) -> Float[Array, "features rank"]:
    """Return the `rank` largest left singular vectors of the tasks' ridge estimates.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `rank`: number of singular vectors.
    - `ridge`: penalty of the squared norm in every task's own regression.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import TaskStatistics, start_basis

    print(start_basis(TaskStatistics.empty(3, 4), rank=2).shape)  # (4, 2)
    ```
    """
    coef = task_least_squares(stats, ridge)
    return top_subspace(dot(coef.T, coef), rank)


@front_door
def low_rank_least_squares(
    stats: TaskStatistics,
    rank: int,
    *,
    start: Float[Array, "features rank"] | None = None,
    ridge: Float[Array, ""] | float = 0.0,
    num_steps: int = 30,
) -> LowRankFit:
    """Return the low-rank least-squares fit after `num_steps` alternating minimisations.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `rank`: number of columns of B.
    - `start`: initial B; by default `start_basis`.
    - `ridge`: penalty of the squared norm of each w_s.
    - `num_steps`: number of minimisations over B.

    **Returns:** `LowRankFit`.

    **Raises:** `ValueError` for a rank that is not from 1 to the number of features, or a `start` of a wrong
    shape.

    ```python
    import jax

    from jlibo.arena.estimators import low_rank_least_squares, statistics_of

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    fit = low_rank_least_squares(statistics_of(rows, rows[..., 0]), rank=1)
    print(abs(fit.basis[0, 0]))  # 1.0
    ```
    """
    num_features = stats.num_features
    check_rank(rank, num_features)
    check_count("num_steps", num_steps, at_least=0)
    if start is None:
        start = start_basis(stats, rank)
    check_shape("start", start, (num_features, rank))
    ridge = jnp.asarray(ridge, stats.gram.dtype)

    def step(_, basis):
        weights = weights_in(basis, stats, ridge)
        products = weights[:, :, None] * weights[:, None, :]
        return orthonormal(shared_factor(stats.gram, stats.moment, weights, products))

    basis = lax.fori_loop(0, num_steps, step, jnp.asarray(start, stats.gram.dtype))
    weights = weights_in(basis, stats, ridge)
    coef = dot(weights, basis.T)
    return LowRankFit(basis, weights, squared_loss(stats, coef))


def weights_in(
    basis: Float[Array, "features rank"], stats: TaskStatistics, ridge: Float[Array, ""]
) -> Float[Array, "tasks rank"]:
    """Return the least-squares weights of every task in the coordinates of `basis`."""
    inner = jnp.einsum("fi,tfg,gj->tij", basis, stats.gram, basis, precision=HIGHEST)
    return solve_ridge(inner, dot(stats.moment, basis), ridge)


def squared_loss(stats: TaskStatistics, coef: Float[Array, "tasks features"]) -> Float[Array, ""]:
    """Return the sum over tasks of ||y_s - X_s theta_s||^2."""
    image = jnp.einsum("tfg,tg->tf", stats.gram, coef, precision=HIGHEST)
    return stats.squares.sum() - (coef * (2 * stats.moment - image)).sum()


def orthonormal(matrix: Float[Array, "features rank"]) -> Float[Array, "features rank"]:
    """Return an orthonormal basis of the columns of a matrix, by their Gram matrix and a second pass."""

    def once(matrix):
        values, vectors = symmetric_eigen(dot(matrix.T, matrix))
        floor = jnp.finfo(matrix.dtype).eps * jnp.maximum(values[0], 0)
        scale = jnp.where(values > floor, jax.lax.rsqrt(jnp.where(values > floor, values, 1)), 0)
        return dot(matrix, vectors * scale)

    return once(once(matrix))
