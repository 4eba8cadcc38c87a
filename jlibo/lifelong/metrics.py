"""Metrics of a run: regret, exact recovery, and the cost of exploration.

| here                | paper                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `lifelong_regret`   | R(m, n) as it grows over all steps of all tasks                              |
| `task_regret`       | the regret of each task, its sum over steps                                  |
| `recovery`          | the event J_hat_s = J*                                                       |

All functions of a result accept any leading axes (seeds, hyper-parameters) and keep them. `task_regret`,
`support_size` and `recovery` also accept the result of an offline experiment.
"""

from typing import Any, Protocol, overload, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike
from jlibo.front_door import front_door
from jlibo.lifelong.play import LifelongResult


@front_door
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


@runtime_checkable
class HasRegret(Protocol):
    """Any result with the regret of every step: lifelong or offline."""

    @property
    def regret(self) -> Float[Array, "*batch tasks horizon"]: ...


@front_door
def task_regret(result: HasRegret) -> Float[Array, "*batch tasks"]:
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
    return jnp.asarray(result.regret).sum(-1)


@front_door
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


@front_door
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


@runtime_checkable
class HasSupport(Protocol):
    """Type of results with selections: lifelong or offline."""

    @property
    def support(self) -> Bool[Array, "*batch tasks groups"]: ...

    @property
    def fell_back(self) -> Bool[Array, "*batch tasks"]: ...


@front_door
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


@front_door
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


@overload
def mean_and_standard_error(values: np.ndarray, *, axis: int = 0) -> tuple[np.ndarray, np.ndarray]: ...


@overload
def mean_and_standard_error(
    values: Float[ArrayLike, "..."], *, axis: int = 0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]: ...


@front_door
def mean_and_standard_error(values: ArrayLike, *, axis: int = 0) -> tuple[Any, Any]:
    """Return mean and standard error over `axis`, by default the leading axis of seeds. Of one entry, zero.

    NumPy arrays are averaged by NumPy, so that double precision stays double; everything else by JAX.

    **Arguments:**

    - `values`: an array with an axis of seeds.
    - `axis`: that axis.

    **Returns:** mean and standard error, without that axis.

    ```python
    import jax.numpy as jnp

    import jlibo

    mean, error = jlibo.metrics.mean_and_standard_error(jnp.asarray([1.0, 2.0, 3.0]))
    ```
    """
    numpy_or_jax = np if isinstance(values, np.ndarray) else jnp
    values = numpy_or_jax.asarray(values)
    count = values.shape[axis]
    mean = values.mean(axis)
    if count == 1:
        return mean, numpy_or_jax.zeros_like(mean)
    squares = (values - numpy_or_jax.expand_dims(mean, axis)) ** 2
    return mean, numpy_or_jax.sqrt(squares.sum(axis) / (count - 1)) / count**0.5
