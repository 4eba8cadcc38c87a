"""The hierarchical Gaussian model of tasks, in closed form (Basu et al. 2021; Hong et al. 2022).

    mu ~ N(mu_q, Sigma_q),   theta_s ~ N(mu, Sigma_0),   y = x . theta_s + noise

| here                    | AdaTS and HierTS                                                             |
|-------------------------|------------------------------------------------------------------------------|
| `hyper`                 | N(mu_q, Sigma_q), the prior of the mean of tasks                             |
| `task_factor`           | F_0 with F_0 F_0^T = Sigma_0, the covariance of tasks around their mean      |
| `evidence_on_mean`      | (Sigma_0 + G_s^-1)^-1 and its moment: what a task says about mu              |
| `hyper_posterior`       | N(mu_bar, Sigma_bar), the posterior of mu                                    |
| `leave_one_out_priors`  | N(mu_bar^-s, Sigma_0 + Sigma_bar^-s), the prior of a task from all others    |
| `hierarchical_beliefs`  | the marginal posterior of every theta_s given the data of all tasks          |

No covariance is inverted, so Sigma_q and Sigma_0 may be singular or zero: Sigma_q = 0 is Thompson sampling
that knows the mean, Sigma_0 = 0 one bandit for all tasks. The notebook published with Hong et al. (2022) uses
Sigma_bar^-1 mu_bar in place of (Sigma_0 + Sigma_bar)^-1 mu_bar; the formulas here are those of the exact
posterior.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jlibo.arena.estimators.gaussian import Gaussian, condition, dot, factor_of, resolved_noise
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.belief.whitening import inverse_cholesky
from jlibo.front_door import front_door


@final
class MeanEvidence(eqx.Module):
    """What tasks say about their common mean mu: a Gaussian likelihood as a precision and a moment.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import MeanEvidence

    nothing = MeanEvidence.none(3, jnp.float32)
    ```
    """

    precision: Float[Array, "*tasks features features"]
    moment: Float[Array, "*tasks features"]

    @staticmethod
    def none(num_features: int, dtype: Any = None) -> "MeanEvidence":
        """Return the evidence of no task."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return MeanEvidence(jnp.zeros((num_features, num_features), dtype), jnp.zeros(num_features, dtype))

    @property
    def total(self) -> "MeanEvidence":
        """The evidence of all tasks together."""
        return jax.tree.map(lambda leaf: leaf.sum(0), self)


@front_door
def evidence_on_mean(
    task_factor: Float[Array, "features features"],
    gram: Float[Array, "features features"],
    moment: Float[Array, " features"],
    noise_variance: Float[Array, ""],
) -> MeanEvidence:
    """Return what the data of one task say about the mean of tasks: `(Sigma_0 + G^-1)^-1` and its moment.

    A sequential run adds them up task by task, which is AdaTS.

    **Arguments:**

    - `task_factor`: a factor of Sigma_0.
    - `gram`, `moment`: sum of x x^T and sum of x y over the observations of the task.
    - `noise_variance`: sigma^2.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import evidence_on_mean

    evidence = evidence_on_mean(0.1 * jnp.eye(2), 4 * jnp.eye(2), jnp.ones(2), 1.0)
    print(evidence.precision)  # 3.846 on the diagonal: 1 / (0.01 + 1/4)
    ```
    """
    noise_variance = resolved_noise(dot(dot(task_factor.T, jnp.asarray(gram)), task_factor), noise_variance)
    gram, moment = jnp.asarray(gram) / noise_variance, jnp.asarray(moment) / noise_variance
    inner = dot(dot(task_factor.T, gram), task_factor)
    whitening = inverse_cholesky(jnp.eye(len(inner), dtype=inner.dtype) + inner)
    image = dot(task_factor, whitening.T)
    back = dot(gram, image)
    return MeanEvidence(gram - dot(back, back.T), moment - dot(back, dot(image.T, moment)))


@front_door
def hyper_posterior(hyper: Gaussian, evidence: MeanEvidence) -> Gaussian:
    """Return the posterior N(mu_bar, Sigma_bar) of the mean of tasks.

    **Arguments:**

    - `hyper`: its prior N(mu_q, Sigma_q).
    - `evidence`: sum of the evidence of all tasks, without an axis of tasks.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, MeanEvidence, hyper_posterior

    hyper = Gaussian(jnp.zeros(2), jnp.eye(2))
    print(hyper_posterior(hyper, MeanEvidence.none(2)).mean)  # [0. 0.]
    ```
    """
    return condition(hyper, evidence.precision, evidence.moment, jnp.ones_like(evidence.moment[0]))


def new_task_prior(mean: Gaussian, task_factor: Float[Array, "features features"]) -> Gaussian:
    """Return the prior of a task whose mean has the distribution `mean`: their covariances add up."""
    return Gaussian(mean.mean, factor_of(mean.covariance + dot(task_factor, task_factor.T)))


def all_evidence(
    task_factor: Float[Array, "features features"], stats: TaskStatistics, noise_variance: Float[Array, ""]
) -> MeanEvidence:
    """Return the evidence of each task."""
    one = jax.vmap(evidence_on_mean, in_axes=(None, 0, 0, None))
    return one(task_factor, stats.gram, stats.moment, noise_variance)


@front_door
def leave_one_out_priors(
    hyper: Gaussian,
    task_factor: Float[Array, "features features"],
    stats: TaskStatistics,
    noise_variance: Float[Array, ""],
) -> Gaussian:
    """Return the prior of every task given the data of all other tasks.

    Conditioned on the task's own data it is the belief of `hierarchical_beliefs`.

    **Arguments:** as in `hierarchical_beliefs`.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, TaskStatistics, leave_one_out_priors

    hyper, stats = Gaussian(jnp.zeros(2), jnp.eye(2)), TaskStatistics.empty(3, 2)
    print(leave_one_out_priors(hyper, 0.1 * jnp.eye(2), stats, 1.0).mean.shape)  # (3, 2)
    ```
    """
    evidence = all_evidence(task_factor, stats, noise_variance)
    # The sum over the other tasks: a difference from the total would leave round-off behind.
    others = 1 - jnp.eye(stats.num_tasks, dtype=stats.gram.dtype)
    rest = jax.tree.map(lambda leaf: dot(others, leaf.reshape(len(leaf), -1)).reshape(leaf.shape), evidence)
    means = jax.vmap(hyper_posterior, in_axes=(None, 0))(hyper, rest)
    return jax.vmap(new_task_prior, in_axes=(0, None))(means, task_factor)


@front_door
def hierarchical_beliefs(
    hyper: Gaussian,
    task_factor: Float[Array, "features features"],
    stats: TaskStatistics,
    noise_variance: Float[Array, ""],
    tasks: Int[Array, " chosen"] | None = None,
) -> Gaussian:
    """Return the posterior of every task's weights, given the data of all tasks.

    It is the marginal of HierTS: drawing mu first and then theta_s given mu has the same law for each task.

    **Arguments:**

    - `hyper`: the prior N(mu_q, Sigma_q) of the mean of tasks.
    - `task_factor`: a factor of Sigma_0, the covariance of tasks around their mean.
    - `stats`: the statistics of all tasks.
    - `noise_variance`: sigma^2.
    - `tasks`: the tasks whose posteriors are returned; by default all.

    **Returns:** `Gaussian` with a leading axis of tasks.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, TaskStatistics, hierarchical_beliefs

    hyper, stats = Gaussian(jnp.zeros(2), jnp.eye(2)), TaskStatistics.empty(3, 2)
    print(hierarchical_beliefs(hyper, 0.1 * jnp.eye(2), stats, 1.0).mean.shape)  # (3, 2)
    ```
    """
    mean = hyper_posterior(hyper, all_evidence(task_factor, stats, noise_variance).total)

    def belief(gram, moment):
        # Given mu, theta = A mu + what the task's own data say, with the covariance of `own`.
        own = condition(Gaussian(jnp.zeros_like(moment), task_factor), gram, moment, noise_variance)
        shrink = jnp.eye(len(moment), dtype=moment.dtype) - dot(own.covariance, gram) / noise_variance
        spread = dot(shrink, mean.factor)
        return Gaussian(own.mean + dot(shrink, mean.mean), factor_of(own.covariance + dot(spread, spread.T)))

    if tasks is None:
        return jax.vmap(belief)(stats.gram, stats.moment)
    return jax.vmap(belief)(stats.gram[tasks], stats.moment[tasks])
