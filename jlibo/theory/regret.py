"""Regret bounds with their constants (Theorems 4.1 and 5.1, App. E and F): no O().

| here                    | paper                                                                         |
|-------------------------|-------------------------------------------------------------------------------|
| `counts`                | (n_1, ..., n_m), the forced exploration steps, whole numbers or rates         |
| `tasks_until_recovery`  | m_0, after which k_hat_s = k* with probability 1 - delta / 4                  |
| `RegretBound.mismatch`  | 2 B m_0 n                                                                     |
| `RegretBound.exploration` | 2 B N_m                                                                     |
| `RegretBound.oracle`    | R*(m, n) = m R*(n)                                                            |
| `oracle_regret.py`      | R*(n) of GP-UCB, and the remark on k_full                                     |

**Readings** ("proved" is the default):

- App. E has c_1 c_kappa^2 / (32 sigma) where Corollary D gives omega-bar, at most c_1 / 2.
- The corollary of App. E for n_s = sqrt(n) / s^(1/4) prints c_kappa for c_kappa^2 and sqrt(n / m^(1/4)) for
  sqrt(sqrt(n) / m^(1/4)). Theorem 4.1 prints log^(3/4); N_m0 ~ m_0^(3/4) gives m_0 ~ log^(4/3). Here m_0 is
  computed from the counts, so none of these approximations is used.
- lam has to follow 1 / sqrt(s) (`MetaKGL(lam_scaling="sqrt")`) for the bound to hold at every s.
"""

from functools import partial
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike, check_shape
from jlibo.front_door import front_door
from jlibo.theory.compatibility import Reading, as_real, check_reading
from jlibo.theory.federated import correct_share, vote_exponent
from jlibo.theory.recovery import recovery_probability, signal

# --- until the kernel is found ------------------------------------------------------------------------------


@front_door
def failure_by_task(
    counts: Float[ArrayLike, " tasks"],
    num_kernels: Float[ArrayLike, ""],
    *,
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    kappa: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
) -> Float[Array, " tasks"]:
    """Return the bound on P(J_hat_s != J*) after each task, from the exploration data of tasks 1 to s.

    **Arguments:**

    - `counts`: n_s, exploration steps of each task.
    - `num_kernels`: p.
    - `beta_min`, `omega`, `kappa`, `noise_std`: as in `recovery_probability`.
    """
    return _failures(_as_counts(counts), as_real(num_kernels), beta_min, omega, kappa, noise_std)


@jax.jit
def _failures(counts, num_kernels, beta_min, omega, kappa, noise_std) -> Float[Array, " tasks"]:
    totals, tasks = _totals(counts)
    ratio = signal(totals / tasks, beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    most = jnp.maximum(counts.max(), jnp.finfo(totals.dtype).tiny)
    exponent = totals / (2 * most) * (ratio - 1) ** 2
    log_failure = jnp.log(num_kernels) - exponent
    return jnp.where(ratio > 1, jnp.exp(jnp.minimum(log_failure, 0)), 1)


@front_door
def tasks_until_recovery(
    counts: Float[ArrayLike, " tasks"],
    num_kernels: Float[ArrayLike, ""],
    *,
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    kappa: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""],
    method: str = "theorem",
    reading: Reading = "proved",
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Return m_0, and whether the kernel is right from then on with probability at least 1 - delta / 4.

    **Arguments:**

    - `counts`, `num_kernels`, `beta_min`, `omega`, `kappa`, `noise_std`: as in `failure_by_task`.
    - `delta`: probability of the whole regret bound; a quarter of it is spent here.
    - `method`: "theorem", the closed form of App. E, or "sum", which adds `failure_by_task` over the tasks
      and is never later.
    - `reading`: "printed" has c_1 where the proof has omega-bar, for "theorem".

    **Returns:** m_0, which is the number of tasks if the second is false.

    **Raises:** `ValueError` for another `method`.
    """
    check_reading(reading)
    if method not in ("theorem", "sum"):
        raise ValueError(f"`method` should be 'theorem' or 'sum', but got {method!r}.")
    numbers = (beta_min, omega, kappa, noise_std, delta)
    return _first_right(_as_counts(counts), as_real(num_kernels), *numbers, method=method, reading=reading)


@partial(jax.jit, static_argnames=("method", "reading"))
def _first_right(
    counts, kernels, beta_min, omega, kappa, noise_std, delta, *, method: str, reading: Reading
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    totals, tasks = _totals(counts)
    if method == "sum":
        failures = _failures(counts, kernels, beta_min, omega, kappa, noise_std)
        later = jnp.cumsum(failures[::-1])[::-1]
        enough = later <= delta / 4
    else:
        threshold = omega if reading == "proved" else beta_min
        least = beta_min if reading == "proved" else 2 * beta_min
        # The average per task is smallest after the last task if the counts do not increase.
        ratio = signal(
            (totals / tasks).min(), beta_min=least, omega=threshold, kappa=kappa, noise_std=noise_std
        )
        most = counts.max()
        needed = 2 * most * jnp.log(4 * totals.shape[0] * kernels / delta) / (ratio - 1) ** 2
        enough = (totals >= needed) & (ratio > 1)
    reached = enough.any()
    first = jnp.where(reached, jnp.argmax(enough) + 1, totals.shape[0])
    return first.astype(jnp.int32), reached


def _as_counts(counts: Float[ArrayLike, " tasks"]) -> Float[Array, " tasks"]:
    """Return the exploration steps of each task as floats; their shape is checked."""
    counts = jnp.asarray(counts)
    check_shape("counts", counts, ("tasks",))
    return counts.astype(jnp.result_type(counts, float))


def _totals(counts: Float[Array, " tasks"]) -> tuple[Float[Array, " tasks"], Float[Array, " tasks"]]:
    """Return the steps up to each task, and the number of each task."""
    return jnp.cumsum(counts), jnp.arange(1, counts.shape[0] + 1, dtype=counts.dtype)


# --- lifelong regret ----------------------------------------------------------------------------------------


@final
class RegretBound(eqx.Module):
    """A bound on the lifelong regret that holds with probability 1 - delta, split into its terms."""

    wrong_tasks: Int[Array, ""]
    """m_0, the tasks that may be played with a wrong kernel."""
    reached: Bool[Array, ""]
    """Whether the kernel is found within the tasks; if not, every task counts as wrong."""
    exploration: Float[Array, ""]
    """2 B N_m, the cost of forced exploration."""
    mismatch: Float[Array, ""]
    """2 B m_0 n, the cost of wrong kernels."""
    oracle: Float[Array, ""]
    """m R*(n), the regret of the base bandit with the true kernel."""
    trivial: Float[Array, ""]
    """2 B m n, which no policy can exceed."""

    @property
    def total(self) -> Float[Array, ""]:
        """The sum of the three terms."""
        return self.exploration + self.mismatch + self.oracle

    @property
    def is_informative(self) -> Bool[Array, ""]:
        """Whether the bound is below the trivial one."""
        return self.total < self.trivial

    def as_dict(self) -> dict[str, float]:
        """Return the terms, their sum and the trivial bound as numbers, for JSON."""
        names = ("exploration", "mismatch", "oracle", "total", "trivial")
        return {name: float(getattr(self, name)) for name in names}


@front_door
def lifelong_regret_bound(
    counts: Float[ArrayLike, " tasks"],
    horizon: Float[ArrayLike, ""],
    num_kernels: Float[ArrayLike, ""],
    *,
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    kappa: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    norm_bound: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""],
    task_regret: Float[ArrayLike, ""],
    method: str = "theorem",
    reading: Reading = "proved",
) -> RegretBound:
    """Return the bound of Theorem 4.1 on the lifelong regret of LiBO, with the constants of App. E.

    **Arguments:**

    - `counts`: n_s, such as `jlibo.DecreasingExploration().counts(num_tasks, horizon)`. With `.rates(...)`
      the bound is that of the paper before its integer rule, which costs at most one more task.
    - `horizon`: n.
    - `num_kernels`: p.
    - `beta_min`, `omega`, `kappa`, `noise_std`: as in `recovery_probability`; `kappa` must hold with
      probability 1 - delta / 4 after every task.
    - `norm_bound`: B, the bound on ||f||_k*, so that |f| <= B.
    - `delta`: probability that the bound fails.
    - `task_regret`: R*(n), which must hold in all tasks with probability 1 - delta / 2: `gp_ucb_regret` with
      `delta / 2` and `num_tasks`.
    - `method`, `reading`: as in `tasks_until_recovery`.

    ```python
    import jlibo
    from jlibo import theory

    counts = jlibo.DecreasingExploration().counts(num_tasks=100, horizon=10_000)
    oracle = theory.gp_ucb_regret(10_000, 2, norm_bound=1.0, noise_std=1e-3, delta=0.05, num_tasks=100)
    numbers = dict(beta_min=0.5, omega=0.25, kappa=0.5, noise_std=1e-3, norm_bound=1.0, delta=0.1)
    bound = theory.lifelong_regret_bound(counts, 10_000, 50, task_regret=oracle, **numbers)
    print(bound.wrong_tasks, bound.total, bound.trivial)
    ```
    """
    wrong, reached = tasks_until_recovery(
        counts,
        num_kernels,
        beta_min=beta_min,
        omega=omega,
        kappa=kappa,
        noise_std=noise_std,
        delta=delta,
        method=method,
        reading=reading,
    )
    totals, _ = _totals(_as_counts(counts))
    return _bound(wrong, reached, totals[-1], totals.shape[0], horizon, norm_bound, task_regret)


@front_door
def federated_regret_bound(
    num_tasks: int,
    num_rows: Float[ArrayLike, ""],
    horizon: Float[ArrayLike, ""],
    num_kernels: Float[ArrayLike, ""],
    *,
    alpha: Float[ArrayLike, ""],
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    kappa: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    norm_bound: Float[ArrayLike, ""],
    delta: Float[ArrayLike, ""],
    task_regret: Float[ArrayLike, ""],
    reading: Reading = "proved",
) -> RegretBound:
    """Return the bound of Theorem 5.1 on the lifelong regret of F-LiBO, with the constants of App. F.

    **Arguments:** as in `lifelong_regret_bound`.

    - `num_tasks`: m.
    - `num_rows`: n-bar, exploration steps of each task.
    - `alpha`: share of votes that a kernel needs.
    - `reading`: "proved" has the Kullback-Leibler exponent of the vote; "printed" the weaker one with which
      the proof of App. F ends.
    """
    check_reading(reading)
    numbers: dict[str, Any] = dict(beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    kernels = as_real(num_kernels)
    if reading == "proved":
        client = recovery_probability(num_rows, 1, kernels, **numbers)
        exponent = vote_exponent(client, alpha)
    else:
        share = correct_share(alpha)
        entropy = share * jnp.log(share) + (1 - share) * jnp.log(1 - share)
        ratio = signal(num_rows, **numbers)
        exponent = entropy + (1 - share) * ((ratio - 1) ** 2 / 2 - jnp.log(kernels))
        exponent = jnp.where(ratio > 1, exponent, 0)
    safe = jnp.where(exponent > 0, exponent, 1)
    needed = jnp.ceil(jnp.log(4 * num_tasks * kernels / jnp.asarray(delta)) / safe)
    needed = jnp.maximum(needed, 1)
    reached = (exponent > 0) & (needed <= num_tasks)
    wrong = jnp.where(reached, needed, num_tasks).astype(jnp.int32)
    explored = num_tasks * as_real(num_rows)
    return _bound(wrong, reached, explored, num_tasks, horizon, norm_bound, task_regret)


def _bound(wrong, reached, explored, num_tasks: int, horizon, norm_bound, task_regret) -> RegretBound:
    steps, size = as_real(horizon), 2 * jnp.asarray(norm_bound)
    return RegretBound(
        wrong_tasks=wrong,
        reached=reached,
        exploration=size * explored,
        mismatch=size * wrong * steps,
        oracle=num_tasks * jnp.asarray(task_regret),
        trivial=size * num_tasks * steps,
    )
