"""Metrics of a run: regret, exact recovery, and the cost of exploration.

| here                | paper                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `lifelong_regret`   | R(m, n) as it grows over all steps of all tasks                              |
| `task_regret`       | the regret of each task, its sum over steps                                  |
| `recovery`          | the event J_hat_s = J*                                                       |

All functions of a result accept any leading axes (seeds, hyper-parameters) and keep them.
"""

from typing import Protocol

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike
from jlibo.lifelong.loop import LifelongResult


def lifelong_regret(result: LifelongResult) -> Float[Array, "*batch steps"]:
    """Return the cumulative regret after every step, over all tasks in order.

    **Arguments:**

    - `result`: a run, with any leading axes.

    **Returns:** an array `[..., num_tasks * horizon]`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    final = jlibo.metrics.lifelong_regret(result)[-1]
    ```
    """
    regret = result.regret
    return jnp.cumsum(regret.reshape(*regret.shape[:-2], -1), axis=-1)


def task_regret(result: LifelongResult) -> Float[Array, "*batch tasks"]:
    """Return the regret of each task, summed over its steps.

    **Arguments:**

    - `result`: a run, with any leading axes.

    **Returns:** an array `[..., num_tasks]`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    by_task = jlibo.metrics.task_regret(result)
    ```
    """
    return result.regret.sum(-1)


def simple_regret(result: LifelongResult) -> Float[Array, "*batch tasks horizon"]:
    """Return the regret of the best action so far, within each task.

    **Arguments:**

    - `result`: a run, with any leading axes.

    **Returns:** an array `[..., num_tasks, horizon]`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    best_so_far = jlibo.metrics.simple_regret(result)
    ```
    """
    return lax.cummin(result.regret, axis=result.regret.ndim - 1)


def exploration_regret(
    result: LifelongResult,
) -> tuple[Float[Array, "*batch tasks"], Float[Array, "*batch tasks"]]:
    """Return the regret of each task in two parts: forced exploration steps, and steps of the policy.

    **Arguments:**

    - `result`: a run, with any leading axes.

    **Returns:** two arrays `[..., num_tasks]`, which sum to `task_regret`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    forced, chosen = jlibo.metrics.exploration_regret(result)
    ```
    """
    forced = jnp.where(result.explored, result.regret, 0).sum(-1)
    return forced, task_regret(result) - forced


class HasSupport(Protocol):
    """Type of results with selections: lifelong or offline."""

    @property
    def support(self) -> Bool[Array, "*batch tasks groups"]: ...

    @property
    def fell_back(self) -> Bool[Array, "*batch tasks"]: ...


def support_size(result: HasSupport) -> Int[Array, "*batch tasks"]:
    """Return the number of base kernels in use after each task; an empty selection counts as all of them.

    **Arguments:**

    - `result`: a lifelong or offline result, with any leading axes.

    **Returns:** whole numbers `[..., num_tasks]`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    sizes = jlibo.metrics.support_size(result)
    ```
    """
    size = result.support.sum(-1)
    return jnp.where(result.fell_back, result.support.shape[-1], size)


def recovery(
    result: HasSupport, true_support: Bool[ArrayLike, "*batch groups"]
) -> Bool[Array, "*batch tasks"]:
    """Return whether the selection after each task is exactly the true support.

    **Arguments:**

    - `result`: a lifelong or offline result, with any leading axes.
    - `true_support`: booleans `[groups]`, or with the leading axes of the result.

    **Returns:** booleans `[..., num_tasks]`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    recovered = jlibo.metrics.recovery(result, env.support)
    ```
    """
    return (result.support == jnp.asarray(true_support)[..., None, :]).all(-1)


def mean_and_standard_error(
    values: Float[ArrayLike, "seeds *rest"],
) -> tuple[Float[Array, "*rest"], Float[Array, "*rest"]]:
    """Return mean and standard error over the leading axis. With one seed the error is zero.

    **Arguments:**

    - `values`: an array whose leading axis counts seeds.

    **Returns:** mean and standard error, without the leading axis.

    ```python
    import jax.numpy as jnp

    import jlibo

    mean, error = jlibo.metrics.mean_and_standard_error(jnp.asarray([1.0, 2.0, 3.0]))
    ```
    """
    values = jnp.asarray(values)
    num_seeds = values.shape[0]
    mean = values.mean(0)
    spread = jnp.sqrt(((values - mean) ** 2).sum(0) / max(num_seeds - 1, 1))
    return mean, spread / num_seeds**0.5
