"""A hierarchical Gaussian model of tasks, fitted by EM, which learns from past tasks where rewards are high.

    weights of task s   w_s ~ N(mean, covariance)           the same mean and covariance for all tasks
    its rewards         y_s = Phi_s w_s + noise,            noise ~ N(0, noise_std^2)

| here               | meaning                                                                         |
|--------------------|---------------------------------------------------------------------------------|
| `fit_hierarchy`    | maximum a posteriori mean, covariance and noise, by a few closed-form EM steps  |
| `covariance_tasks` | strength of the inverse-Wishart prior on the covariance, in tasks like `wide`   |
| `mean_tasks`       | strength of the Gaussian prior on the mean, in tasks of mean zero               |

The E-step computes the exact posterior of every task's weights by one rank-one update per row, for all tasks
at once. A task has at most as many rows as there are features. Features without variance in the wide prior
are not used.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief import posterior as gp
from jlibo.belief.prior import Prior
from jlibo.meta.past import PastTasks

HIGHEST = lax.Precision.HIGHEST
NOISE_ROWS = 10.0
"""Strength of the prior on the noise, in rows with the initially assumed noise."""


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
    """Return the prior after `num_steps` EM steps from `start`, with a mean, a covariance and a noise.

    **Arguments:**

    - `past`: finished tasks.
    - `start`: initial prior; it must have a `noise_std`.
    - `wide`: prior without any past task, diagonal and with mean zero.
    - `num_steps`: number of EM steps.
    - `covariance_tasks`, `mean_tasks`: strength of the priors on covariance and mean; see the module.
    - `noise_std`: noise assumed before any task.

    **Returns:** a `Prior` with a `noise_std`. Its covariance includes the uncertainty of the mean.
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
    """Return every task's posterior mean, `[tasks, features]`, and factor of its covariance."""
    start = gp.init(prior, prior.noise_std)  # pyright: ignore[reportArgumentType]

    def one_task(features, targets):
        def add(posterior, row):
            feature, target = row
            # A row of zeros has no features, so it does not change mean and factor.
            return gp.update(posterior, feature, target), None

        posterior, _ = lax.scan(add, start, (features, targets))
        return posterior.mean, posterior.factor

    return jax.vmap(one_task)(past.features, past.targets)


def _weigh(weights, rows):
    return jnp.matmul(weights, rows, precision=HIGHEST)
