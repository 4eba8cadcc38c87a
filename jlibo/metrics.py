"""What is measured on a run: regret, exact recovery, and the cost of exploring.

| here                | paper                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `lifelong_regret`   | R(m, n) as it grows over all steps of all tasks                              |
| `task_regret`       | the regret of each task, its sum over steps                                  |
| `recovery`          | the event J_hat_s = J*                                                       |

All functions take a `LifelongResult` with any leading axes (seeds, hyper-parameters) and keep them;
`task_regret`, `support_size` and `recovery` take the result of an offline experiment too.
"""

from typing import Protocol

import jax.numpy as jnp
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


def mean_and_standard_error(
    values: Float[ArrayLike, "seeds *rest"],
) -> tuple[Float[Array, "*rest"], Float[Array, "*rest"]]:
    """Over the leading axis; with one seed the error is zero."""
    values = jnp.asarray(values)
    num_seeds = values.shape[0]
    mean = values.mean(0)
    spread = jnp.sqrt(((values - mean) ** 2).sum(0) / max(num_seeds - 1, 1))
    return mean, spread / num_seeds**0.5
