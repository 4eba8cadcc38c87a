"""Empirical Bayes by EM: the prior of tasks that maximises the likelihood of all tasks' rewards.

    theta_s ~ N(mu, Sigma),   y = x . theta_s + noise of known variance

E-step: posterior mean m_s and covariance S_s of every task. M-step: mu is the mean of m_s, and Sigma the mean
of S_s + (m_s - mu)(m_s - mu)^T, or its projection on the covariances of the chosen structure. No step
decreases the likelihood.

| `structure`  | covariance                                                                         |
|--------------|------------------------------------------------------------------------------------|
| "full"       | any                                                                                |
| "groups"     | diagonal, one variance per group of features (one group: isotropic)                |

`fit_low_rank` has Sigma = F F^T with F of `rank` columns; its M-step solves for mu and F given the moments of
z. A covariance can also be pulled towards that of `start`, as if `prior_tasks` tasks had it.

`jlibo.meta.hierarchy` is another model of the same kind: it also learns the noise and the units of every
task's rewards, for the tuner, and works on rows.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jlibo.arena.estimators.gaussian import HIGHEST, Gaussian, condition, dot, factor_of, log_marginal
from jlibo.arena.estimators.low_rank import shared_factor
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.groups import validate_groups

Structure = Literal["full", "groups"]


@front_door
def total_log_marginal(
    belief: Gaussian, stats: TaskStatistics, noise_variance: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the log likelihood of the rewards of all tasks, whose weights are independent draws of `belief`.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, TaskStatistics, total_log_marginal

    belief, stats = Gaussian(jnp.zeros(2), jnp.eye(2)), TaskStatistics.empty(3, 2)
    print(total_log_marginal(belief, stats, 1.0))  # 0.0
    ```
    """
    one = jax.vmap(log_marginal, in_axes=(None, 0, None))
    return one(belief, stats, jnp.asarray(noise_variance)).sum()


@front_door
def fit_gaussian(
    stats: TaskStatistics,
    start: Gaussian,
    noise_variance: Float[Array, ""],
    *,
    num_steps: int,
    structure: Structure = "full",
    groups: Sequence[int] | np.ndarray | None = None,
    learn_mean: bool = True,
    prior_tasks: Float[Array, ""] | float = 0.0,
) -> Gaussian:
    """Return the prior of tasks after `num_steps` EM steps from `start`.

    **Arguments:**

    - `stats`: the statistics of all tasks; tasks without observations are ignored.
    - `start`: initial mean and covariance. With structure "groups" its covariance must be diagonal.
    - `noise_variance`: sigma^2.
    - `num_steps`: number of EM steps.
    - `structure`: "full", or "groups" for a diagonal with one variance per group.
    - `groups`: group of each feature for "groups"; by default every feature is a group of its own.
    - `learn_mean`: whether to learn the mean; if False it stays that of `start`.
    - `prior_tasks`: strength of an inverse-Wishart prior at the covariance of `start`, in tasks; 0 for
      maximum likelihood.

    **Returns:** the prior as mean and factor; `start` if no task has observations.

    **Raises:** `ValueError` for an unknown structure or invalid groups.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, fit_gaussian, statistics_of

    rows = jax.random.normal(jax.random.key(0), (20, 10, 2))
    stats = statistics_of(rows, rows @ jnp.asarray([1.0, 0.0]))
    learned = fit_gaussian(stats, Gaussian(jnp.zeros(2), jnp.eye(2)), 0.01, num_steps=20)
    print(learned.mean)  # close to [1, 0]
    ```
    """
    check_count("num_steps", num_steps)
    if structure not in ("full", "groups"):
        fail("structure", "'full' or 'groups'", repr(structure))
    num_features = stats.num_features
    group_of = np.arange(num_features) if groups is None else groups
    group_of = np.asarray(validate_groups("groups", group_of, num_features))
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, stats.gram.dtype), start)
    present, wide = stats.present, start.covariance
    num_tasks = present.sum()
    strength = jnp.asarray(prior_tasks, stats.gram.dtype)
    noise_variance = jnp.asarray(noise_variance, stats.gram.dtype)

    def step(_, belief: Gaussian) -> Gaussian:
        after = jax.vmap(condition, in_axes=(None, 0, 0, None))(
            belief, stats.gram, stats.moment, noise_variance
        )
        mean = dot(present, after.mean) / jnp.maximum(num_tasks, 1) if learn_mean else belief.mean
        away = (after.mean - mean) * present[:, None]
        spread = jnp.moveaxis(after.factor * present[:, None, None], 1, 0).reshape(num_features, -1)
        total = strength * wide + dot(away.T, away) + dot(spread, spread.T)
        covariance = total / jnp.maximum(strength + num_tasks, jnp.finfo(total.dtype).tiny)
        return Gaussian(mean, _structured(covariance, structure, group_of))

    fitted = lax.fori_loop(0, num_steps, step, start)
    return jax.tree.map(lambda new, old: jnp.where(num_tasks > 0, new, old), fitted, start)


def _structured(covariance, structure: str, group_of: np.ndarray):
    """Return a factor of the projection of a covariance on those of a structure."""
    if structure == "full":
        return factor_of(covariance)
    sums = jax.ops.segment_sum(jnp.diagonal(covariance), group_of, num_segments=int(group_of.max()) + 1)
    return jnp.diag(jnp.sqrt(sums / np.bincount(group_of))[group_of])


@final
class _Coordinates(NamedTuple):
    """Moments of z of every task."""

    mean: Float[Array, "tasks rank"]
    second: Float[Array, "tasks rank rank"]


@front_door
def fit_low_rank(
    stats: TaskStatistics,
    start: Gaussian,
    noise_variance: Float[Array, ""],
    *,
    rank: int,
    num_steps: int,
    learn_mean: bool = True,
) -> Gaussian:
    """Return the prior of tasks with a covariance of given rank, after `num_steps` EM steps.

    **Arguments:**

    - `stats`, `noise_variance`, `num_steps`, `learn_mean`: as in `fit_gaussian`.
    - `start`: initial mean and factor. The first `rank` columns of the factor are used, which should be
      linearly independent.
    - `rank`: number of columns of F.

    **Returns:** the prior as mean and factor, whose columns after the first `rank` are zero; `start` if no
    task has observations.

    **Raises:** `ValueError` for a rank that is not from 1 to the number of features.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, fit_low_rank, statistics_of

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    stats = statistics_of(rows, rows[..., 0])
    start = Gaussian(jnp.zeros(3), jnp.ones((3, 3)))
    print(fit_low_rank(stats, start, 0.01, rank=1, num_steps=20).mean.shape)  # (3,)
    ```
    """
    check_count("num_steps", num_steps)
    if not 1 <= rank <= stats.num_features:
        fail("rank", f"from 1 to the {stats.num_features} features", rank)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, stats.gram.dtype), start)
    present = stats.present
    num_features = stats.num_features
    noise_variance = jnp.asarray(noise_variance, stats.gram.dtype)

    def coordinates(belief: Gaussian, gram, moment) -> _Coordinates:
        factor = belief.factor[:, :rank]
        standard = Gaussian(jnp.zeros(rank, factor.dtype), jnp.eye(rank, dtype=factor.dtype))
        inner = dot(dot(factor.T, gram), factor)
        after = condition(standard, inner, dot(factor.T, moment - dot(gram, belief.mean)), noise_variance)
        return _Coordinates(after.mean, after.covariance + jnp.outer(after.mean, after.mean))

    def step(_, belief: Gaussian) -> Gaussian:
        z = jax.vmap(coordinates, in_axes=(None, 0, 0))(belief, stats.gram, stats.moment)
        if not learn_mean:
            known = jnp.einsum("tfg,g->tf", stats.gram, belief.mean, precision=HIGHEST)
            factor = shared_factor(stats.gram, stats.moment - known, z.mean, z.second)
            return Gaussian(belief.mean, jnp.pad(factor, [(0, 0), (0, num_features - rank)]))
        # The mean is one more column of the factor, with the coordinate one.
        ones = jnp.ones_like(z.mean[:, :1])
        mean = jnp.concatenate([ones, z.mean], 1)
        second = jnp.concatenate([mean[:, None], jnp.concatenate([z.mean[:, :, None], z.second], 2)], 1)
        joined = shared_factor(stats.gram, stats.moment, mean, second)
        return Gaussian(joined[:, 0], jnp.pad(joined[:, 1:], [(0, 0), (0, num_features - rank)]))

    first = Gaussian(start.mean, start.factor.at[:, rank:].set(0))
    fitted = lax.fori_loop(0, num_steps, step, first)
    return jax.tree.map(lambda new, old: jnp.where(present.any(), new, old), fitted, first)
