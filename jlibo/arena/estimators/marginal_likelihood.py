"""Diagonal priors of tasks that maximise a regularised marginal likelihood, by gradient ascent.

    theta_s ~ N(mu, diag(v)),   y = x . theta_s + noise of known variance

| method                           | objective, to be maximised over mu and log v                          |
|----------------------------------|-----------------------------------------------------------------------|
| ABLR (Perrone et al. 2018)       | sum_s log Z_s with mu = 0; one v for all features, or one per group   |
| PACOH-MAP (Rothfuss et al. 2021) | sum_s log Z_s + log N(mu; 0, s_mu^2) + log N(log v; 0, s_v^2)         |
| F-PACOH (Rothfuss et al. 2021b)  | sum_s log Z_s / n_s - kappa (1/sqrt(T) + 1/(T n_s)) KL per task       |

log Z_s is the log density of a task's rewards (`log_marginal`). KL is that from the prior on functions, at
given points, to a Gaussian hyper-prior on functions. All originals learn a neural feature map as well; here
features are given. One variance per group in ABLR is automatic relevance determination.

Derivatives are closed forms (`jlibo.arena.estimators.gaussian.slope`), and steps are those of Adam.
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from jlibo.arena.estimators.gaussian import Gaussian, dot, if_finite, slope
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.belief.whitening import inverse_cholesky
from jlibo.checks import check_count, check_shape
from jlibo.front_door import front_door
from jlibo.groups import validate_groups


@final
class DiagonalPrior(eqx.Module):
    """The parameters that are learned: theta ~ N(mean, diag(exp(log_variance) of each feature's group)).

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import DiagonalPrior

    prior = DiagonalPrior(mean=jnp.zeros(3), log_variance=jnp.zeros(1))
    print(prior.belief((0, 0, 0)).covariance)
    ```
    """

    mean: Float[Array, " features"]
    log_variance: Float[Array, " groups"]

    def belief(self, groups: tuple[int, ...]) -> Gaussian:
        """Return the prior as mean and factor."""
        return Gaussian(self.mean, jnp.diag(jnp.exp(self.log_variance / 2)[np.asarray(groups)]))


@final
class HyperPrior(eqx.Module):
    """What regularises the likelihood.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import HyperPrior

    none = HyperPrior.none(num_features=3)
    ```
    """

    mean_precision: Float[Array, ""]
    """1 / s_mu^2."""
    scale_precision: Float[Array, ""]
    """1 / s_v^2."""
    weight: Float[Array, ""]
    """kappa; 0 for a likelihood that is not divided by the number of observations (ABLR and PACOH-MAP)."""
    points: Float[Array, "points features"]
    """Features of the points at which functions are compared."""
    whitening: Float[Array, "points points"]
    """W with W^T W the inverse of the hyper-prior's covariance at the points."""
    jitter: Float[Array, ""]
    """Variance added to the functions of the prior at the points."""

    @staticmethod
    def none(
        num_features: int, mean_precision: float | Array = 0.0, scale_precision: float | Array = 0.0
    ) -> "HyperPrior":
        """Return a hyper-prior on the parameters alone."""
        zero, nothing = jnp.zeros(()), jnp.zeros((0, num_features))
        precisions = jnp.asarray(mean_precision), jnp.asarray(scale_precision)
        return HyperPrior(*precisions, zero, nothing, jnp.zeros((0, 0)), zero)

    @staticmethod
    def on_functions(
        points: Float[Array, "points features"],
        covariance: Float[Array, "points points"],
        weight: float | Array,
        jitter: float | Array = 1e-3,
    ) -> "HyperPrior":
        """Return a hyper-prior on functions at `points`; `jitter` is added to its covariance as well."""
        points, covariance = jnp.asarray(points), jnp.asarray(covariance)
        check_shape("covariance", covariance, (len(points), len(points)))
        zero, jitter = jnp.zeros(()), jnp.asarray(jitter)
        whitening = inverse_cholesky(covariance + jitter * jnp.eye(len(points), dtype=covariance.dtype))
        return HyperPrior(zero, zero, jnp.asarray(weight), points, whitening, jitter)


def functional_divergence(
    mean: Float[Array, " features"], variance: Float[Array, " features"], hyper: HyperPrior
) -> Float[Array, ""]:
    """Return KL(N(Phi mu, Phi diag(v) Phi^T + jitter I) || hyper-prior) at the points of the hyper-prior."""
    count = len(hyper.points)
    covariance = dot(hyper.points * variance, hyper.points.T)
    covariance = covariance + hyper.jitter * jnp.eye(count, dtype=covariance.dtype)
    own = inverse_cholesky(covariance)
    image = dot(hyper.whitening, covariance)
    away = dot(hyper.whitening, dot(hyper.points, mean))
    log_ratio = 2 * (jnp.log(jnp.diagonal(own)) - jnp.log(jnp.diagonal(hyper.whitening))).sum()
    return 0.5 * ((image * hyper.whitening).sum() + (away**2).sum() - count + log_ratio)


@final
class _Slope(NamedTuple):
    mean: Float[Array, " features"]
    variance: Float[Array, " features"]


def _divergence_slope(mean, variance, hyper: HyperPrior) -> _Slope:
    """Return the derivatives of `functional_divergence`."""
    count = len(hyper.points)
    covariance = dot(hyper.points * variance, hyper.points.T)
    own = inverse_cholesky(covariance + hyper.jitter * jnp.eye(count, dtype=covariance.dtype))
    ours, theirs = dot(own, hyper.points), dot(hyper.whitening, hyper.points)
    return _Slope(dot(theirs.T, dot(theirs, mean)), 0.5 * ((theirs**2).sum(0) - (ours**2).sum(0)))


@front_door
def objective_slope(
    prior: DiagonalPrior,
    stats: TaskStatistics,
    noise_variance: Float[Array, ""],
    hyper: HyperPrior,
    groups: tuple[int, ...],
) -> DiagonalPrior:
    """Return the derivatives of the objective with respect to the mean and to the log variances.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import DiagonalPrior, HyperPrior, TaskStatistics, objective_slope

    prior, stats = DiagonalPrior(jnp.zeros(2), jnp.zeros(1)), TaskStatistics.empty(3, 2)
    print(objective_slope(prior, stats, 1.0, HyperPrior.none(2), (0, 0)).mean)  # [0. 0.]
    ```
    """
    group_of = np.asarray(groups)
    belief = prior.belief(groups)
    slopes = jax.vmap(slope, in_axes=(None, 0, 0, None))(
        belief, stats.gram, stats.moment, jnp.asarray(noise_variance)
    )
    present, counts = stats.present, jnp.maximum(stats.count, 1)
    num_tasks = jnp.maximum(present.sum(), 1)
    by_count = hyper.weight > 0
    weight = present * jnp.where(by_count, 1 / counts, 1)
    by_variance = jnp.einsum("t,tff->f", weight, slopes.covariance)
    by_mean = dot(weight, slopes.mean)
    if len(hyper.points):
        variance = jnp.diagonal(belief.covariance)
        rate = present * (1 / jnp.sqrt(num_tasks) + 1 / (num_tasks * counts))
        total = hyper.weight * rate.sum()
        divergence = _divergence_slope(prior.mean, variance, hyper)
        by_mean, by_variance = by_mean - total * divergence.mean, by_variance - total * divergence.variance
    by_log = by_variance * jnp.exp(prior.log_variance)[group_of]
    return DiagonalPrior(
        by_mean - hyper.mean_precision * prior.mean,
        jax.ops.segment_sum(by_log, group_of, num_segments=len(prior.log_variance))
        - hyper.scale_precision * prior.log_variance,
    )


@front_door
def fit_diagonal_prior(
    stats: TaskStatistics,
    start: DiagonalPrior,
    noise_variance: Float[Array, ""],
    *,
    hyper: HyperPrior | None = None,
    groups: tuple[int, ...] | None = None,
    learn_mean: bool = True,
    num_steps: int = 200,
    learning_rate: Float[Array, ""] | float = 0.05,
) -> DiagonalPrior:
    """Return the prior after `num_steps` steps of Adam on the objective from `start`.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `start`: initial parameters, with as many log variances as there are groups.
    - `noise_variance`: sigma^2.
    - `hyper`: hyper-prior; by default none, which is maximum likelihood.
    - `groups`: group of each feature; by default every feature is a group of its own.
    - `learn_mean`: whether to learn the mean; if False it stays that of `start`.
    - `num_steps`: steps of Adam.
    - `learning_rate`: of Adam; it falls to zero with the cosine of the step.

    **Returns:** the parameters; `start` if no task has observations.

    **Raises:** `ValueError` for invalid groups or parameters of wrong shapes.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.arena.estimators import DiagonalPrior, fit_diagonal_prior, statistics_of

    rows = jax.random.normal(jax.random.key(0), (20, 10, 2))
    start = DiagonalPrior(jnp.zeros(2), jnp.zeros(2))
    prior = fit_diagonal_prior(statistics_of(rows, rows[..., 0]), start, 0.01)
    print(prior.mean)  # close to [1, 0]
    ```
    """
    num_features = stats.num_features
    groups = tuple(range(num_features)) if groups is None else groups
    groups = validate_groups("groups", groups, num_features)
    check_count("num_steps", num_steps)
    check_shape("start.mean", start.mean, (num_features,))
    check_shape("start.log_variance", start.log_variance, (max(groups) + 1,))
    dtype = stats.gram.dtype
    known = HyperPrior.none(num_features) if hyper is None else hyper
    known, start = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (known, start))
    noise_variance = jnp.asarray(noise_variance, dtype)
    adam = optax.scale_by_adam()

    def step(number, state):
        prior, moments = state
        up = objective_slope(prior, stats, noise_variance, known, groups)
        move, after = adam.update(up, moments)
        rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * number / num_steps))
        new = jax.tree.map(lambda leaf, by: (leaf + rate * by).astype(dtype), prior, move)
        new = new if learn_mean else DiagonalPrior(prior.mean, new.log_variance)
        return if_finite(up, (new, after), state)

    fitted, _ = lax.fori_loop(0, num_steps, step, (start, adam.init(start)))
    return jax.tree.map(lambda new, old: jnp.where(stats.present.any(), new, old), fitted, start)
