"""Regret bounds of GP-UCB in one task, with their constants: with the true kernel, and with all kernels.

| here                   | paper                                                                          |
|------------------------|--------------------------------------------------------------------------------|
| `gp_ucb_regret`        | R*(n), GP-UCB with the true kernel (Chowdhury & Gopalan 2017, Theorem 3)       |
| `full_kernel_regret`   | the remark of App. E: k_full instead of a learned kernel                       |
| `kernel_norm`          | ||f||_k of the average of kernels                                              |

**Readings** ("proved" is the default):

- lambda_ucb = 1 + 2/n in App. E is lambda_ucb^2 = 1 + 2/n in Chowdhury & Gopalan, whose regulariser is not
  squared.
- The joint bound over m tasks (App. E) holds each task at level delta. Independent tasks fail independently,
  so m of them need delta / m each.
- ||f||_k for k = (1/|J|) sum k_j is sqrt(|J|) ||beta||_2 (`kernel_norm`), not ||beta||_2. In the remark on
  k_full the norm therefore grows by sqrt(p / s*), not by p / s*.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.front_door import front_door
from jlibo.policies.gp_ucb import kernel_width
from jlibo.policies.oful import ellipsoid_width
from jlibo.theory.compatibility import Reading, Real, as_real, check_reading
from jlibo.theory.information_gain import information_gain_bound


@front_door
def kernel_norm(coef_norm: Real, num_kernels: Real) -> Float[Array, "*any"]:
    """Return `||f||_k = sqrt(|J|) ||beta||_2` for the average k of |J| kernels.

    **Arguments:**

    - `coef_norm`: ||beta||_2, such as the `norm_bound` of `jlibo.SyntheticEnv`.
    - `num_kernels`: |J|.
    """
    return jnp.sqrt(as_real(num_kernels)) * jnp.asarray(coef_norm)


@front_door
def gp_ucb_regret(
    horizon: Real,
    num_features: Real,
    *,
    norm_bound: Real,
    noise_std: Real,
    delta: Real,
    regulariser: Real | None = None,
    information_gain: Real | None = None,
    num_tasks: Real = 1.0,
    reading: Reading = "proved",
) -> Float[Array, "*any"]:
    """Return the bound on the regret of one task by GP-UCB with the true kernel, with its constants.

    Without `regulariser` it is that of Chowdhury & Gopalan (2017): `4 nu sqrt((n + 2) gamma)` with
    `nu = B + sigma sqrt(2 (gamma + 1 + ln(1/delta)))` and lambda_ucb^2 = 1 + 2/n. With another regulariser it
    is `2 nu sqrt(2 n gamma / ln(1 + lambda_ucb^-2))`, where `nu = B + (sigma / lambda_ucb)
    sqrt(2 (gamma + ln(1/delta)))` is the width of OFUL (Abbasi-Yadkori et al. 2011).

    **Arguments:**

    - `horizon`: n.
    - `num_features`: d*, the dimension of the kernel.
    - `norm_bound`: B, the bound on ||f||_k; see `kernel_norm`.
    - `noise_std`: sigma.
    - `delta`: probability that the bound fails in one of the tasks.
    - `regulariser`: lambda_ucb; by default that of Chowdhury & Gopalan.
    - `information_gain`: gamma_n; by default `information_gain_bound`.
    - `num_tasks`: number of tasks that must all satisfy the bound.
    - `reading`: "printed" does not divide delta by the number of tasks, and has lambda_ucb = 1 + 2/n.

    ```python
    from jlibo import theory

    print(theory.gp_ucb_regret(10_000, 5, norm_bound=1.0, noise_std=0.1, delta=0.1))
    ```
    """
    check_reading(reading)
    steps = as_real(horizon)
    level = jnp.asarray(delta) / (as_real(num_tasks) if reading == "proved" else 1)
    if regulariser is None:
        lam = jnp.sqrt(1 + 2 / steps) if reading == "proved" else 1 + 2 / steps
        gain = _gain(information_gain, steps, num_features, lam)
        width = kernel_width(jnp.asarray(norm_bound), jnp.asarray(noise_std), gain, level)
        return 4 * width * jnp.sqrt((steps + 2) * gain)
    lam = jnp.asarray(regulariser)
    gain = _gain(information_gain, steps, num_features, lam)
    width = jnp.asarray(norm_bound) + jnp.asarray(noise_std) / lam * ellipsoid_width(
        jnp.zeros(()), gain, level
    )
    return 2 * width * jnp.sqrt(2 * steps * gain / jnp.log1p(lam**-2))


def _gain(given: Real | None, steps, num_features: Real, lam) -> Float[Array, "*any"]:
    return information_gain_bound(steps, num_features, lam) if given is None else jnp.asarray(given)


@front_door
def full_kernel_regret(
    horizon: Real,
    num_features: Real,
    *,
    num_kernels: Real,
    support_size: Real,
    norm_bound: Real,
    noise_std: Real,
    delta: Real,
    regulariser: Real | None = None,
    num_tasks: Real = 1.0,
    reading: Reading = "proved",
) -> Float[Array, "*any"]:
    """Return the bound on the regret of one task by GP-UCB with k_full, the average of all kernels.

    **Arguments:** as in `gp_ucb_regret`, with d = `num_features` of all kernels.

    - `num_kernels`, `support_size`: p and s*. The norm of f grows by sqrt(p / s*); "printed" has p / s*.
    """
    ratio = as_real(num_kernels) / as_real(support_size)
    factor = jnp.sqrt(ratio) if reading == "proved" else ratio
    return gp_ucb_regret(
        horizon,
        num_features,
        norm_bound=factor * jnp.asarray(norm_bound),
        noise_std=noise_std,
        delta=delta,
        regulariser=regulariser,
        num_tasks=num_tasks,
        reading=reading,
    )
