"""A hierarchical Gaussian model of tasks, fitted by EM, which learns from past tasks where rewards are high.

    weights of task s   w_s ~ N(mean, covariance)              the same mean and covariance for all tasks
    its rewards         y_s = centre_s + scale_s (Phi_s w_s + noise),            noise ~ N(0, noise_std^2)

| here               | meaning                                                                         |
|--------------------|---------------------------------------------------------------------------------|
| `fit_hierarchy`    | maximum a posteriori mean, covariance and noise, by a few closed-form EM steps  |
| `covariance_tasks` | strength of the inverse-Wishart prior on the covariance, in tasks like `wide`   |
| `mean_tasks`       | strength of the Gaussian prior on the mean, in tasks of mean zero               |
| `log_evidence`     | log likelihood of every task under a prior                                      |

The units of a task, centre_s and scale_s, are estimated together with the rest. A task that was only tried
near its optimum has a high mean of rewards; its units become those in which it agrees with the other tasks.
The estimates start from the units in which the task is stored: a deviation of 1 counts as `UNIT_REWARDS`
rewards.

The E-step computes the exact posterior of every task's weights, for all tasks at once. A task has at most as
many rows as there are features, and its rows give a system of as many equations (`jlibo.belief.whitening`).
Tasks are visited in parts, so that the arrays of a part fit into a cache and many tasks need little memory.
Features without variance in the wide prior are not used.
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.belief.moments import Units, likeliest_units
from jlibo.belief.prior import Prior
from jlibo.belief.whitening import whiten
from jlibo.meta.past import PastTasks

HIGHEST = lax.Precision.HIGHEST
NOISE_ROWS = 10.0
"""Strength of the prior on the noise, in rows with the initially assumed noise."""
FEW_TASKS, LAST_STEPS = 64, 3
"""With more than `FEW_TASKS` tasks, only the last `LAST_STEPS` EM steps use all of them."""
PART_TASKS = 8
"""Most tasks of a part."""
UNIT_REWARDS = 3.0
"""Strength of the prior on a task's scale, in rewards."""


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

    def step(number, prior: Prior) -> Prior:
        variance = jnp.square(prior.noise_std)  # pyright: ignore[reportArgumentType]

        def add(total: _Total, tasks: PastTasks):
            fit = _explain(tasks, prior)
            units = jax.vmap(likeliest_units, in_axes=(0, 0, None, None))(
                fit.products, tasks.num_observations, UNIT_REWARDS, 1.0
            )
            residual, lost = _in_units(tasks, fit, units)
            # K^-1 (z - Phi mean) = W^T e, with the whitened residual e = W (z - Phi mean).
            change = jnp.einsum("trf,tr->tf", fit.images, residual, precision=HIGHEST)
            # Posterior covariances: that of the prior minus the images' products, summed over tasks.
            images = (fit.images * tasks.is_done[:, None, None]).reshape(-1, change.shape[1])
            # With K = Phi C Phi^T + v I, the residual z - Phi w is v K^-1 (z - Phi mean), and the covariance
            # of Phi w given the rewards is v I - v^2 K^-1.
            unexplained = jnp.einsum("tkr,tk->tr", fit.whitening, residual, precision=HIGHEST)
            doubt = jnp.maximum(variance - variance**2 * (fit.whitening**2).sum(1), 0)
            squares = (variance**2 * unexplained**2 + doubt).sum(1) + lost
            total = _Total(
                total.shrunk + jnp.matmul(images.T, images, precision=HIGHEST),
                total.squares + (squares * tasks.is_done).sum(),
                total.num_rows + (tasks.num_observations * tasks.is_done).sum(),
            )
            return total, (change, tasks.is_done)

        zero = jnp.zeros_like(variance)
        nothing = jnp.zeros_like(past.features[:, 0]), jnp.zeros_like(past.is_done)
        # The first steps need few tasks, because they are far from the result in any case.
        most = jnp.where(number < num_steps - LAST_STEPS, FEW_TASKS, len(past.is_done))
        start = _Total(jnp.zeros_like(wide_matrix), zero, zero)
        total, (change, visited) = add_up(add, start, past, nothing, most)
        num_tasks = visited.sum()
        mean = prior.mean * num_tasks + jnp.matmul(visited, change, precision=HIGHEST)
        mean = mean / (num_tasks + mean_tasks)
        away = (prior.mean + change - mean) * visited[:, None]
        covariance = (
            covariance_tasks * wide_matrix
            + num_tasks * prior.covariance
            - total.shrunk
            + jnp.matmul(away.T, away, precision=HIGHEST)
            + mean_tasks * jnp.outer(mean, mean)
        )
        covariance = (covariance + covariance.T) / (2 * (covariance_tasks + num_tasks))
        noise_variance = (total.squares + NOISE_ROWS * noise_std**2) / (total.num_rows + NOISE_ROWS)
        return Prior(mean, covariance, jnp.sqrt(noise_variance))

    fitted = lax.fori_loop(0, num_steps, step, start)
    scale = 1 + 1 / (past.is_done.sum() + mean_tasks)
    return eqx.tree_at(lambda prior: prior.covariance, fitted, fitted.covariance * scale)


@final
class _Total(NamedTuple):
    """Sums over tasks in one EM step."""

    shrunk: Float[Array, "features features"]
    """Prior covariance minus posterior covariance."""
    squares: Float[Array, ""]
    """Expected squared noise of the rows."""
    num_rows: Float[Array, ""]


def log_evidence(past: PastTasks, prior: Prior) -> Float[Array, " tasks"]:
    """Return the log likelihood of each task's rewards, in the units in which they are stored.

    The prior needs a `noise_std`. The value is that of the product of predictive densities of each reward
    given the ones before it. It is zero for tasks that are not done.
    """
    variance = jnp.square(prior.noise_std)  # pyright: ignore[reportArgumentType]

    def of_part(_, tasks: PastTasks):
        fit = _explain(tasks, prior)
        zero = jnp.zeros_like(tasks.is_done)
        residual, lost = _in_units(tasks, fit, Units(zero, zero + 1))
        num_lost = tasks.num_observations - (tasks.features != 0).any(2).sum(1)
        fits = (residual**2).sum(1) + lost / variance
        # Rows of padding have the variance of the noise in K, but are no observations.
        padding = (tasks.features.shape[1] + num_lost - tasks.num_observations) * jnp.log(variance)
        log_determinant = -2 * jnp.log(jnp.diagonal(fit.whitening, axis1=1, axis2=2)).sum(1)
        log_determinant += num_lost * jnp.log(variance) - padding
        score = fits + log_determinant + tasks.num_observations * jnp.log(2 * jnp.pi)
        return None, -0.5 * tasks.is_done * score

    return add_up(of_part, None, past, jnp.zeros_like(past.is_done), len(past.is_done))[1]


@final
class _Fit(NamedTuple):
    """The rows of every task, whitened by a prior as in `jlibo.belief.whitening`."""

    whitening: Float[Array, "tasks rows rows"]
    images: Float[Array, "tasks rows features"]
    columns: Float[Array, "tasks 3 rows"]
    """W v for the columns v = (-Phi mean, targets, ones)."""
    products: Float[Array, "tasks 3 3"]
    """v^T K^-1 v, the part that compression removed included."""


def _explain(past: PastTasks, prior: Prior) -> _Fit:
    rows, noise_std = past.features, jnp.asarray(prior.noise_std)
    means = jnp.einsum("trf,f->tr", rows, prior.mean, precision=HIGHEST)
    columns = jnp.stack([-means, past.targets, past.constants], axis=1)
    fit = jax.vmap(whiten, in_axes=(None, None, 0, 0))(prior, noise_std, rows, columns)
    products = jnp.einsum("tck,tdk->tcd", fit.columns, fit.columns, precision=HIGHEST)
    products = products.at[:, 1:, 1:].add(past.lost_products / noise_std**2)
    return _Fit(*fit, products)


def _in_units(past: PastTasks, fit: _Fit, units: Units) -> tuple[Float[Array, "tasks rows"], Array]:
    """Return each task's whitened residual in the given units, and the squares that compression removed."""
    scale = jnp.where(units.scale > 0, units.scale, 1)
    combine = jnp.stack([jnp.ones_like(scale), 1 / scale, -units.centre / scale], axis=1)
    residual = jnp.einsum("tc,tck->tk", combine, fit.columns, precision=HIGHEST)
    lost = jnp.einsum("tc,tcd,td->t", combine[:, 1:], past.lost_products, combine[:, 1:], precision=HIGHEST)
    return residual, jnp.maximum(lost, 0)


def add_up(add_fn, total: Any, past: PastTasks, nothing: Any, most: int | Int[Array, ""]) -> tuple[Any, Any]:
    """Return the total over finished tasks and the outputs of each task, visiting tasks in parts.

    Parts after the last finished task are not visited: a history has space for all tasks of a run, and most
    of them are not finished for most of the run. If the others have more than `most` tasks, only as many of
    them are visited, evenly spaced.

    **Arguments:**

    - `add_fn`: function of the total and the tasks of a part; returns the new total and their outputs.
    - `total`: the total without any task.
    - `past`: the tasks.
    - `nothing`: the outputs of tasks that are not visited; leaves have a leading axis of tasks.
    - `most`: most tasks to visit, rounded up to whole parts. It may be traced.
    """
    num_tasks = len(past.is_done)
    num_parts = -(-num_tasks // PART_TASKS)
    size = -(-num_tasks // num_parts)

    def split(leaf):
        padding = [(0, num_parts * size - num_tasks)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, padding).reshape(num_parts, size, *leaf.shape[1:])

    parts, outputs = jax.tree.map(split, past), jax.tree.map(split, nothing)
    last = jnp.where(past.is_done > 0, jnp.arange(1, num_tasks + 1), 0).max()
    num_used = -(-last // size)
    num_visits = jnp.minimum(num_used, -(-most // size))

    def visit(number, state):
        total, outputs = state
        part = number * num_used // num_visits
        total, output = add_fn(total, jax.tree.map(lambda leaf: leaf[part], parts))
        return total, jax.tree.map(lambda leaf, new: leaf.at[part].set(new), outputs, output)

    total, outputs = lax.fori_loop(0, num_visits, visit, (total, outputs))
    return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num_tasks], outputs)
