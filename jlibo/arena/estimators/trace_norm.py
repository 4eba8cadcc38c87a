"""Least squares with a trace-norm penalty (Cella, Lounici & Pontil 2022; Cella et al. 2023).

    minimise over A = [a_1 ... a_m]:   (1/n) sum_s ||y_s - X_s a_s||^2 + lam ||A|_*

| here                       | paper                                                                      |
|----------------------------|----------------------------------------------------------------------------|
| `coef`                     | W_hat, one row per task                                                    |
| `num_rounds`               | n, the observations per task; by default the largest count                 |
| `trace_norm_least_squares` | the estimate, by accelerated proximal gradient steps on the statistics     |
| `practical_lam`            | lam_n of the experiments of Cella et al. (2023)                            |

A proximal step reduces every singular value by lam times the step, down to zero. The singular values come
from the smaller Gram matrix (`symmetric_eigen`), so no LAPACK is called. The duality gap is that of the
scaled residuals: with R = (2/n) X^T (y - X A) and s = min(1, lam / ||R||_op), the dual value is
(2 s y.r - s^2 r.r) / n for the residuals r.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.arena.estimators.eigen import symmetric_eigen
from jlibo.arena.estimators.gaussian import HIGHEST, dot
from jlibo.arena.estimators.low_rank import squared_loss
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.checks import check_count, check_shape
from jlibo.front_door import front_door

SQUARINGS = 6
"""Squarings of a Gram matrix in the bound on its largest eigenvalue."""


@final
class TraceNormFit(eqx.Module):
    """Answer of `trace_norm_least_squares`."""

    coef: Float[Array, "tasks features"]
    gap: Float[Array, ""]
    """Duality gap: the loss is at most this far from its minimum."""
    num_steps: Int[Array, ""]
    """Proximal steps taken."""


@front_door
def shrink_singular_values(
    matrix: Float[Array, "rows columns"], threshold: Float[Array, ""]
) -> Float[Array, "rows columns"]:
    """Return the matrix with every singular value reduced by `threshold`, to no less than zero.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import shrink_singular_values

    print(shrink_singular_values(jnp.diag(jnp.asarray([3.0, 1.0])), 2.0))  # diagonal 1 and 0
    ```
    """
    matrix = jnp.asarray(matrix)
    if matrix.shape[0] < matrix.shape[1]:
        return shrink_singular_values(matrix.T, threshold).T
    values, vectors = symmetric_eigen(dot(matrix.T, matrix))
    sizes = jnp.sqrt(jnp.maximum(values, 0))
    kept = jnp.maximum(sizes - threshold, 0) / jnp.where(sizes > 0, sizes, 1)
    return dot(dot(matrix, vectors * kept), vectors.T)


@front_door
def practical_lam(
    scale: Float[Array, ""],
    num_tasks: Float[Array, ""] | float,
    num_features: int,
    num_rounds: Float[Array, ""],
    delta: Float[Array, ""] | float = 0.1,
) -> Float[Array, ""]:
    """Return the penalty of the experiments of Cella et al. (2023), for any number of rounds above 0.

    It is `scale` times the larger of u + v and sqrt(u) + sqrt(v), with u = (m + d) / n and
    v = log(2/delta) / n.

    ```python
    from jlibo.arena.estimators import practical_lam

    print(practical_lam(0.1, num_tasks=10, num_features=20, num_rounds=40.0))
    ```
    """
    size, log_term = (num_tasks + num_features) / num_rounds, jnp.log(2 / delta) / num_rounds
    return scale * jnp.maximum(size + log_term, jnp.sqrt(size) + jnp.sqrt(log_term))


@front_door
def trace_norm_least_squares(
    stats: TaskStatistics,
    lam: Float[Array, ""],
    *,
    num_rounds: Float[Array, ""] | None = None,
    start: Float[Array, "tasks features"] | None = None,
    tol: float = 1e-6,
    max_steps: int = 500,
) -> TraceNormFit:
    """Return the minimiser of (1/n) sum_s ||y_s - X_s a_s||^2 + lam ||A||_*.

    **Arguments:**

    - `stats`: the statistics of all tasks. A task without observations gets weights zero.
    - `lam`: penalty, at least 0.
    - `num_rounds`: n; by default the largest number of observations of a task.
    - `start`: initial weights, such as the previous answer.
    - `tol`: steps stop when the weights change by less than `tol` times their size.
    - `max_steps`: most proximal steps.

    **Returns:** `TraceNormFit`.

    **Raises:** `ValueError` for a `start` of a wrong shape.

    ```python
    import jax

    from jlibo.arena.estimators import statistics_of, trace_norm_least_squares

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    fit = trace_norm_least_squares(statistics_of(rows, rows[..., 0]), 0.1)
    print(fit.gap, fit.num_steps)
    ```
    """
    check_count("max_steps", max_steps)
    if start is None:
        start = jnp.zeros_like(stats.moment)
    check_shape("start", start, stats.moment.shape)
    dtype = stats.gram.dtype
    start, lam = jnp.asarray(start, dtype), jnp.asarray(lam, dtype)
    rounds = jnp.maximum(stats.count.max() if num_rounds is None else jnp.asarray(num_rounds, dtype), 1)
    lipschitz = 2 / rounds * largest_eigenvalue(stats.gram).max()
    size = 1 / jnp.where(lipschitz > 0, lipschitz, 1)

    def slope_at(coef):
        return 2 / rounds * (image_of(stats, coef) - stats.moment)

    def step(state):
        coef, point, momentum, _, count = state
        new = shrink_singular_values(point - size * slope_at(point), lam * size)
        # Restart the momentum when it points uphill.
        is_uphill = ((point - new) * (new - coef)).sum() > 0
        momentum = jnp.where(is_uphill, 1, momentum)
        next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        point = new + jnp.where(is_uphill, 0, (momentum - 1) / next_momentum) * (new - coef)
        change = jnp.sqrt(((new - coef) ** 2).sum())
        return new, point, next_momentum, change, count + 1

    def proceed(state):
        coef, _, _, change, count = state
        return (change > tol * jnp.sqrt((coef**2).sum())) & (count < max_steps)

    begin = (start, start, jnp.ones((), dtype), jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32))
    coef, _, _, _, count = lax.while_loop(proceed, step, begin)
    return TraceNormFit(coef, _gap(stats, coef, slope_at(coef), lam, rounds), count)


def _gap(stats: TaskStatistics, coef, slope, lam, rounds):
    loss = squared_loss(stats, coef)
    total = stats.squares.sum()
    product = total - (coef * stats.moment).sum()
    gram = dot(slope.T, slope) if slope.shape[0] >= slope.shape[1] else dot(slope, slope.T)
    largest = jnp.sqrt(jnp.maximum(symmetric_eigen(gram)[0][0], 0))
    scale = jnp.minimum(1, lam / jnp.where(largest > 0, largest, 1))
    dual = (2 * scale * product - scale**2 * loss) / rounds
    gram = dot(coef.T, coef) if coef.shape[0] >= coef.shape[1] else dot(coef, coef.T)
    squares = symmetric_eigen(gram)[0]
    # The root of a round-off error is large: squares at that level are those of singular values of zero.
    floor = len(squares) * jnp.finfo(squares.dtype).eps * squares[0]
    trace_norm = jnp.where(squares > floor, jnp.sqrt(jnp.maximum(squares, 0)), 0).sum()
    return loss / rounds + lam * trace_norm - dual


def image_of(stats: TaskStatistics, coef: Float[Array, "tasks features"]) -> Float[Array, "tasks features"]:
    """Return V_s a_s of every task."""
    return jnp.einsum("tfg,tg->tf", stats.gram, coef, precision=HIGHEST)


def largest_eigenvalue(matrices: Float[Array, "tasks size size"]) -> Float[Array, " tasks"]:
    """Return an upper bound on the largest eigenvalue of positive semi-definite matrices.

    It is the Frobenius norm of the matrix to the power 2^k, to the power 2^-k: above the largest eigenvalue
    by a factor of at most size^(2^-(k+1)), three percent for 50 features.
    """

    def norms_of(matrices):
        norms = jnp.sqrt((matrices**2).sum((1, 2)))
        return jnp.where(norms > 0, norms, 1)

    norms = norms_of(matrices)
    log_norm, power = jnp.log(norms), matrices / norms[:, None, None]
    for _ in range(SQUARINGS):
        power = dot(power, power)
        norms = norms_of(power)
        log_norm, power = 2 * log_norm + jnp.log(norms), power / norms[:, None, None]
    return jnp.where(matrices.any((1, 2)), jnp.exp(log_norm / 2**SQUARINGS), 0)
