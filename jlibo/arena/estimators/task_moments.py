"""Moments of tasks from least-squares estimates, corrected for their noise (MQB: Peleg, Pearl & Meir 2022).

| here              | paper                                                                               |
|-------------------|-------------------------------------------------------------------------------------|
| `mean`            | mu_n, the mean of the least-squares estimates                                       |
| `covariance`      | Sig_n, their covariance minus sigma^2 times the mean of V_s^-1                      |
| `widening`        | sqrt((5 d + 2 log(d n T)) / (n - 1)), which times c_w is added to the diagonal      |

The correction makes the covariance unbiased, but with few tasks it has negative eigenvalues. They are raised
to a floor.
"""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.arena.estimators.eigen import symmetric_eigen
from jlibo.arena.estimators.gaussian import Gaussian, dot
from jlibo.arena.estimators.low_rank import task_least_squares
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.belief.whitening import inverse_cholesky
from jlibo.front_door import front_door
from jlibo.solver.newton import inverse_of


@final
class TaskMoments(NamedTuple):
    """Answer of `task_moments`."""

    mean: Float[Array, " features"]
    covariance: Float[Array, "features features"]
    """Unbiased; it may have negative eigenvalues."""
    num_tasks: Float[Array, ""]
    """Number of tasks that were used."""


def is_informative(
    stats: TaskStatistics, noise_variance: Float[Array, ""], smallest: Float[Array, ""] | float
) -> Bool[Array, " tasks"]:
    """Return for which tasks the smallest eigenvalue of V_s / sigma^2 is at least `smallest`."""
    # That is so if V - smallest sigma^2 I has a Cholesky factor, which takes less time than the eigenvalues.
    shift = smallest * noise_variance * jnp.eye(stats.num_features, dtype=stats.gram.dtype)
    return jnp.isfinite(jax.vmap(inverse_cholesky)(stats.gram - shift)).all((1, 2))


@front_door
def task_moments(
    stats: TaskStatistics, noise_variance: Float[Array, ""], *, smallest: Float[Array, ""] | float = 0.03
) -> TaskMoments:
    """Return the mean and the bias-corrected covariance of the tasks' weights.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `noise_variance`: sigma^2.
    - `smallest`: a task is used if the smallest eigenvalue of V_s / sigma^2 is at least this.

    **Returns:** `TaskMoments`; zeros if there are fewer than two such tasks.

    ```python
    import jax

    from jlibo.arena.estimators import statistics_of, task_moments

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    print(task_moments(statistics_of(rows, rows[..., 0]), 0.01).mean)  # close to [1, 0, 0]
    ```
    """
    noise_variance = jnp.asarray(noise_variance, stats.gram.dtype)
    used = is_informative(stats, noise_variance, smallest) & (stats.count > 0)
    weight = used.astype(stats.gram.dtype)
    count = weight.sum()
    coef = jnp.where(used[:, None], task_least_squares(stats), 0)
    mean = coef.sum(0) / jnp.maximum(count, 1)
    away = jnp.where(used[:, None], coef - mean, 0)
    eye = jnp.eye(stats.num_features, dtype=stats.gram.dtype)
    inverses = inverse_of(jnp.where(used[:, None, None], stats.gram, eye))
    noise = noise_variance * (inverses * weight[:, None, None]).sum(0) / jnp.maximum(count, 1)
    covariance = dot(away.T, away) / jnp.maximum(count - 1, 1) - noise
    return TaskMoments(mean, jnp.where(count > 1, covariance, 0), count)


def widening(num_features: int, num_tasks: Float[Array, ""], num_steps: Float[Array, ""]) -> Float[Array, ""]:
    """Return `sqrt((5 d + 2 log(d n T)) / n)` for n tasks; n is at least one."""
    count = jnp.maximum(num_tasks, 1)
    return jnp.sqrt((5 * num_features + 2 * jnp.log(num_features * count * num_steps)) / count)


@front_door
def moment_belief(
    moments: TaskMoments,
    extra_variance: Float[Array, ""] | float = 0.0,
    floor: Float[Array, ""] | float = 0.0,
) -> Gaussian:
    """Return the belief with these moments, made positive semi-definite.

    **Arguments:**

    - `moments`: from `task_moments`.
    - `extra_variance`: added to every eigenvalue of the covariance.
    - `floor`: smallest eigenvalue after that.

    ```python
    import jax

    from jlibo.arena.estimators import moment_belief, statistics_of, task_moments

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    print(moment_belief(task_moments(statistics_of(rows, rows[..., 0]), 0.01), 0.1).covariance)
    ```
    """
    values, vectors = symmetric_eigen(moments.covariance)
    values = jnp.maximum(jnp.maximum(values + extra_variance, floor), 0)
    return Gaussian(moments.mean, vectors * jnp.sqrt(values))
