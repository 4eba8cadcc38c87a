"""What is measured on a run: regret, exact recovery, and the cost of exploring.

| here                | paper                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `lifelong_regret`   | R(m, n) as it grows over all steps of all tasks                              |
| `task_regret`       | the regret of each task, its sum over steps                                  |
| `recovery`          | the event J_hat_s = J*                                                       |

All functions take a `LifelongResult` with any leading axes (seeds, hyper-parameters) and keep them;
`task_regret`, `support_size` and `recovery` take the result of an offline experiment too.
"""

from typing import Any, Protocol, overload

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike
from jlibo.lifelong import LifelongResult


def lifelong_regret(result: LifelongResult) -> Float[Array, "*batch steps"]:
    """Cumulative regret after every step, tasks one after another."""
    regret = result.regret
    return jnp.cumsum(regret.reshape(*regret.shape[:-2], -1), axis=-1)


class HasRegret(Protocol):
    """Any result with the regret of every step: lifelong or offline."""

    @property
    def regret(self) -> Float[Array, "*batch tasks horizon"]: ...


def task_regret(result: HasRegret) -> Float[Array, "*batch tasks"]:
    """Regret of each task."""
    return jnp.asarray(result.regret).sum(-1)


def simple_regret(result: LifelongResult) -> Float[Array, "*batch tasks horizon"]:
    """Regret of the best action so far, within each task."""
    return lax.cummin(result.regret, axis=result.regret.ndim - 1)


def exploration_regret(
    result: LifelongResult,
) -> tuple[Float[Array, "*batch tasks"], Float[Array, "*batch tasks"]]:
    """Regret of each task, split into that of forced steps and that of the policy's own."""
    forced = jnp.where(result.explored, result.regret, 0).sum(-1)
    return forced, task_regret(result) - forced


class HasSupport(Protocol):
    """Any result that tells what was selected: lifelong or offline."""

    @property
    def support(self) -> Bool[Array, "*batch tasks groups"]: ...

    @property
    def fell_back(self) -> Bool[Array, "*batch tasks"]: ...


def support_size(result: HasSupport) -> Int[Array, "*batch tasks"]:
    """How many base kernels are in use after each task; an empty selection counts as all of them."""
    size = result.support.sum(-1)
    return jnp.where(result.fell_back, result.support.shape[-1], size)


def recovery(
    result: HasSupport, true_support: Bool[ArrayLike, "*batch groups"]
) -> Bool[Array, "*batch tasks"]:
    """Whether the selection after each task is exactly the true one."""
    return (result.support == jnp.asarray(true_support)[..., None, :]).all(-1)


@overload
def mean_and_standard_error(values: np.ndarray, *, axis: int = 0) -> tuple[np.ndarray, np.ndarray]: ...


@overload
def mean_and_standard_error(
    values: Float[ArrayLike, "..."], *, axis: int = 0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]: ...


def mean_and_standard_error(values: Any, *, axis: int = 0) -> tuple[Any, Any]:
    """Return the mean over `axis`, by default that of the seeds, and its standard error; of one entry, zero.

    NumPy arrays are averaged by NumPy, so that double precision stays double; everything else by JAX.
    """
    numpy_or_jax = np if isinstance(values, np.ndarray) else jnp
    values = numpy_or_jax.asarray(values)
    count = values.shape[axis]
    mean = values.mean(axis)
    if count == 1:
        return mean, numpy_or_jax.zeros_like(mean)
    squares = (values - numpy_or_jax.expand_dims(mean, axis)) ** 2
    return mean, numpy_or_jax.sqrt(squares.sum(axis) / (count - 1)) / count**0.5
