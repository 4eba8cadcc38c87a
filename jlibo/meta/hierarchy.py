"""A hierarchical Gaussian model of tasks, fitted by EM: past tasks teach where good configurations lie.

    weights of task s   w_s ~ N(mean, covariance)           the same mean and covariance for all tasks
    its rewards         y_s = Phi_s w_s + noise,            noise ~ N(0, noise_std^2)

| here              | what it is                                                                       |
|-------------------|----------------------------------------------------------------------------------|
| `fit_hierarchy`   | maximum a posteriori mean, covariance and noise, by a few closed-form EM steps   |
| `covariance_tasks`| the inverse-Wishart prior on the covariance counts as so many tasks like `wide`  |
| `mean_tasks`      | the Gaussian prior on the mean counts as so many tasks of mean zero              |

The E-step is the exact posterior of every task's weights, one rank-one update a row, all tasks at once; a
task is at most as many rows as there are features. Features that have no variance in the wide prior stay out
of it all.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo import posterior as gp
from jlibo.meta.past import PastTasks
from jlibo.prior import Prior

HIGHEST = lax.Precision.HIGHEST
NOISE_ROWS = 10.0
"""The prior on the noise counts as so many rows of the noise that was assumed first."""


def fit_hierarchy(
    past: PastTasks,
    start: Prior,
    wide: Prior,
    *,
    num_steps: int,
    covariance_tasks: Float[Array, ""],
    mean_tasks: Float[Array, ""],
    noise_std: Float[Array, ""],
) -> Prior:
    """Mean, covariance and noise after `num_steps` EM steps from `start`, which must have a noise.

    `wide` (diagonal, mean zero) is what is believed without any task; `noise_std` what is believed of the
    noise. The answer's covariance includes what is not known of the mean.
    """
    wide_matrix = jnp.diag(wide.covariance)
    num_tasks = past.is_done.sum()

    def step(_, prior: Prior) -> Prior:
        means, factors = _posteriors(past, prior)
        weights = past.is_done
        mean = _weigh(weights, means) / (num_tasks + mean_tasks)
        away = (means - mean) * weights[:, None]
        spread = jnp.matmul(away.T, away, precision=HIGHEST)
        doubt = jnp.einsum("tfk,tgk,t->fg", factors, factors, weights, precision=HIGHEST)
        covariance = covariance_tasks * wide_matrix + spread + doubt + mean_tasks * jnp.outer(mean, mean)
        covariance = covariance / (covariance_tasks + num_tasks)
        residual = past.targets - jnp.einsum("trf,tf->tr", past.features, means, precision=HIGHEST)
        images = jnp.einsum("trf,tfk->trk", past.features, factors, precision=HIGHEST)
        squares = ((residual**2).sum(1) + (images**2).sum((1, 2)) + past.lost_squares) * weights
        rows = (past.num_observations * weights).sum()
        noise_variance = (squares.sum() + NOISE_ROWS * noise_std**2) / (rows + NOISE_ROWS)
        return Prior(mean, covariance, jnp.sqrt(noise_variance))

    fitted = lax.fori_loop(0, num_steps, step, start)
    return eqx.tree_at(
        lambda prior: prior.covariance, fitted, fitted.covariance * (1 + 1 / (num_tasks + mean_tasks))
    )


def _posteriors(past: PastTasks, prior: Prior) -> tuple[Array, Array]:
    """Every task's posterior mean [tasks, features], and factor of the covariance."""
    start = gp.init(prior, prior.noise_std)  # pyright: ignore[reportArgumentType]

    def one_task(features, targets):
        def add(posterior, row):
            feature, target = row
            # A row of zeros would count as a reward of zero that was certain: harmless, it moves nothing.
            return gp.update(posterior, feature, target), None

        posterior, _ = lax.scan(add, start, (features, targets))
        return posterior.mean, posterior.factor

    return jax.vmap(one_task)(past.features, past.targets)


def _weigh(weights, rows):
    return jnp.matmul(weights, rows, precision=HIGHEST)
