"""Priors of tasks that predict held-out rewards of a task from its first ones (ALPaCA: Harrison et al. 2018).

| here               | paper                                                                              |
|--------------------|------------------------------------------------------------------------------------|
| `mean`, `factor`   | K_0, and a factor of sigma^2 L_0^-1, the covariance of the last layer's weights    |
| `predictive_loss`  | log(1 + phi^T L_n^-1 phi) + (y - phi^T K_n)^2 / ((1 + ...) sigma^2)                |
| `context`          | n, the number of rewards that the prediction is given                              |

Features are given here, where the original learns them. The factor of the covariance is learned in place of
that of the precision; both are the same set of priors. Unlike the marginal likelihood, which is the sum of
the losses of each reward given all earlier ones, the loss predicts all later rewards, from a few contexts.
"""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.arena.estimators.gaussian import Gaussian, condition, dot, if_finite
from jlibo.arena.estimators.statistics import statistics_of
from jlibo.checks import check_count, check_shape
from jlibo.front_door import front_door


@final
class TaskRows(NamedTuple):
    """Observations of tasks in the order of play."""

    features: Float[Array, "tasks rows features"]
    rewards: Float[Array, "tasks rows"]
    present: Bool[Array, "tasks rows"]


@front_door
def predictive_losses(
    belief: Gaussian,
    features: Float[Array, "rows features"],
    rewards: Float[Array, " rows"],
    noise_variance: Float[Array, ""],
) -> Float[Array, " rows"]:
    """Return -2 log of the predictive density of each reward, up to the constant log(2 pi).

    **Arguments:**

    - `belief`: belief about the weights.
    - `features`, `rewards`: the observations; each is predicted on its own.
    - `noise_variance`: sigma^2.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, predictive_losses

    belief = Gaussian(jnp.zeros(2), jnp.eye(2))
    print(predictive_losses(belief, jnp.eye(2), jnp.ones(2), 1.0))  # log(2) + 1/2
    ```
    """
    variance = (dot(features, belief.factor) ** 2).sum(1) + noise_variance
    return jnp.log(variance) + (rewards - dot(features, belief.mean)) ** 2 / variance


@front_door
def one_step_losses(
    belief: Gaussian,
    features: Float[Array, "rows features"],
    rewards: Float[Array, " rows"],
    noise_variance: Float[Array, ""],
) -> Float[Array, " rows"]:
    """Return the loss of each reward given all earlier ones; their sum is -2 log marginal - n log(2 pi).

    **Arguments:** as in `predictive_losses`, with `belief` the prior.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, one_step_losses

    print(one_step_losses(Gaussian(jnp.zeros(2), jnp.eye(2)), jnp.eye(2), jnp.ones(2), 1.0))
    ```
    """

    def step(belief, row):
        features, reward = row
        loss = predictive_losses(belief, features[None], reward[None], noise_variance)[0]
        gram = features[:, None] * features
        return condition(belief, gram, features * reward, noise_variance), loss

    return lax.scan(step, belief, (jnp.asarray(features), jnp.asarray(rewards)))[1]


def context_lengths(num_rows: int, num_contexts: int) -> np.ndarray:
    """Return numbers of rewards to predict from: 0 and others, evenly spaced below `num_rows`."""
    return np.unique(np.linspace(0, num_rows - 1, num_contexts).astype(int))


@front_door
def held_out_loss(
    belief: Gaussian, rows: TaskRows, noise_variance: Float[Array, ""], num_contexts: int = 4
) -> Float[Array, ""]:
    """Return the mean loss of the rewards after a context, over tasks and over `num_contexts` contexts.

    **Arguments:**

    - `belief`: the prior of all tasks.
    - `rows`: observations of all tasks.
    - `noise_variance`: sigma^2.
    - `num_contexts`: number of context lengths, evenly spaced.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, TaskRows, held_out_loss

    rows = TaskRows(jnp.ones((3, 4, 2)), jnp.ones((3, 4)), jnp.ones((3, 4), bool))
    print(held_out_loss(Gaussian(jnp.zeros(2), jnp.eye(2)), rows, 1.0))
    ```
    """
    num_rows = rows.rewards.shape[1]
    places = jnp.arange(num_rows)

    def of_context(length):
        inside = rows.present & (places < length)
        stats = statistics_of(rows.features, rows.rewards, inside)
        after = jax.vmap(condition, in_axes=(None, 0, 0, None))(
            belief, stats.gram, stats.moment, noise_variance
        )
        losses = jax.vmap(predictive_losses, in_axes=(0, 0, 0, None))(
            after, rows.features, rows.rewards, noise_variance
        )
        outside = rows.present & (places >= length)
        counts = outside.sum(1)
        of_tasks = jnp.where(outside, losses, 0).sum(1) / jnp.maximum(counts, 1)
        return of_tasks.sum() / jnp.maximum((counts > 0).sum(), 1)

    return jax.vmap(of_context)(jnp.asarray(context_lengths(num_rows, num_contexts))).mean()


@front_door
def fit_predictive_prior(
    rows: TaskRows,
    start: Gaussian,
    noise_variance: Float[Array, ""],
    *,
    num_contexts: int = 4,
    batch_size: int | None = None,
    num_steps: int = 100,
    learning_rate: Float[Array, ""] | float = 0.03,
) -> Gaussian:
    """Return the prior after `num_steps` steps of Adam on `held_out_loss` from `start`.

    **Arguments:**

    - `rows`: observations of all tasks; absent tasks have no row that is present.
    - `start`: initial mean and factor.
    - `noise_variance`, `num_contexts`: as in `held_out_loss`.
    - `batch_size`: number of tasks of each step, which takes the next ones in turn; by default all.
    - `num_steps`: steps of Adam.
    - `learning_rate`: of Adam; it falls to zero with the cosine of the step.

    **Returns:** the prior as mean and factor; `start` if no row is present.

    **Raises:** `ValueError` for rewards of a wrong shape.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.arena.estimators import Gaussian, TaskRows, fit_predictive_prior

    features = jax.random.normal(jax.random.key(0), (10, 6, 2))
    rows = TaskRows(features, features[..., 0], jnp.ones((10, 6), bool))
    learned = fit_predictive_prior(rows, Gaussian(jnp.zeros(2), jnp.eye(2)), 0.01)
    print(learned.mean)  # close to [1, 0]
    ```
    """
    check_count("num_steps", num_steps)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    check_shape("rows.rewards", rows.rewards, rows.features.shape[:2])
    adam = optax.scale_by_adam()
    dtype = rows.features.dtype
    noise_variance = jnp.asarray(noise_variance, dtype)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), start)
    # Values of absent rows may be anything, and 0 * NaN is NaN.
    features = jnp.where(rows.present[..., None], rows.features, 0)
    rows = TaskRows(features, jnp.where(rows.present, rows.rewards, 0), rows.present)
    is_task = rows.present.any(1)
    order, num_present = jnp.argsort(~is_task, stable=True), jnp.maximum(is_task.sum(), 1)
    batch_size = len(is_task) if batch_size is None else min(batch_size, len(is_task))

    def batch(number):
        if batch_size == len(is_task):
            return rows
        turns = jnp.arange(batch_size)
        chosen = jax.tree.map(lambda leaf: leaf[order[(number * batch_size + turns) % num_present]], rows)
        # With fewer tasks than a batch has, none counts twice.
        return chosen._replace(present=chosen.present & (turns < num_present)[:, None])

    def loss(belief, number):
        return held_out_loss(belief, batch(number), noise_variance, num_contexts)

    def step(number, state):
        belief, moments = state
        slope = jax.grad(loss)(belief, number)
        move, after = adam.update(slope, moments)
        rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * number / num_steps))
        moved = jax.tree.map(lambda leaf, by: (leaf - rate * by).astype(dtype), belief, move)
        return if_finite(slope, (moved, after), state)

    fitted, _ = lax.fori_loop(0, num_steps, step, (start, adam.init(start)))
    return jax.tree.map(lambda new, old: jnp.where(rows.present.any(), new, old), fitted, start)
