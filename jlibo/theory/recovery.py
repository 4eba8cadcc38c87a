"""Recovery of the support (Theorem 3.3, App. D): probabilities, and the numbers that a probability needs.

| here                 | paper                                                                             |
|----------------------|-----------------------------------------------------------------------------------|
| `beta_min`           | c_1 of Assumption 3.1                                                             |
| `margin`             | omega-bar = min(omega, c_1 - omega)                                               |
| `kappa`              | c_kappa, at most kappa(Phi)                                                       |
| `signal`             | omega-bar c_kappa^2 sqrt(n) / (32 sigma), which must exceed 1                     |
| `theorem_lam`        | lambda = omega-bar c_kappa^2 / (8 sqrt(m))                                        |
| `noise_lam`          | the smallest lambda with lambda N / 4 above the noise, with probability 1 - delta  |
| `recovery_log_failure` | log of p exp(-m (signal - 1)^2 / 2)                                             |
| `design_failure`     | the sum over j in the corollaries of App. D, for a given design                   |
| `federated.py`       | App. F, the vote of the clients                                                   |

**Readings.** Theorem 3.3 prints the exponent m (signal - 1)^2. Its proof, with the trace N and the norm n in
the corollary of App. D, gives half of it, and App. E has the half too. Without the half the concentration
inequality behind it is false: P(|Z| >= 1 + t) > exp(-t^2) for a standard normal Z and t >= 4. "proved" is
with the half, "printed" without. Everything else agrees in both readings.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.checks import ArrayLike
from jlibo.front_door import front_door
from jlibo.theory import blocks
from jlibo.theory.compatibility import Reading, Real, as_real, check_reading


@front_door
def margin(beta_min: Real, omega: Real) -> Float[Array, "*any"]:
    """Return omega-bar = min(omega, c_1 - omega), the largest error of a group norm that selects rightly.

    It is 0 where `omega` is not between 0 and `beta_min`. The best omega is `beta_min / 2`.
    """
    omega, beta_min = jnp.asarray(omega), jnp.asarray(beta_min)
    return jnp.maximum(jnp.minimum(omega, beta_min - omega), 0)


@front_door
def theorem_lam(num_tasks: Real, *, beta_min: Real, omega: Real, kappa: Real) -> Float[Array, "*any"]:
    """Return the lam of Theorem 3.3, the largest for which the error bound is `margin`.

    For a client of the federated theorem, `num_tasks` is 1.

    **Arguments:**

    - `num_tasks`: m, the tasks with data.
    - `beta_min`: c_1, a lower bound on the norm of a supported group, per task.
    - `omega`: threshold of Meta-KGL.
    - `kappa`: c_kappa, a lower bound on kappa.

    ```python
    from jlibo import theory

    print(theory.theorem_lam(30, beta_min=0.5, omega=0.25, kappa=0.1**0.5))  # 0.00057
    ```
    """
    return margin(beta_min, omega) * jnp.asarray(kappa) ** 2 / (8 * jnp.sqrt(as_real(num_tasks)))


@front_door
def signal(
    num_rows: Real, *, beta_min: Real, omega: Real, kappa: Real, noise_std: Real
) -> Float[Array, "*any"]:
    """Return `omega-bar kappa^2 sqrt(n) / (32 sigma)`. The theorem says something only where it exceeds 1.

    **Arguments:**

    - `num_rows`: n, rows of each task; the average N / m if tasks differ.
    - `beta_min`, `omega`, `kappa`: as in `theorem_lam`.
    - `noise_std`: sigma; infinite signal for 0.
    """
    strength = margin(beta_min, omega) * jnp.asarray(kappa) ** 2 * jnp.sqrt(as_real(num_rows))
    return strength / (32 * jnp.asarray(noise_std))


@front_door
def recovery_log_failure(
    num_rows: Real,
    num_tasks: Real,
    num_kernels: Real,
    *,
    beta_min: Real,
    omega: Real,
    kappa: Real,
    noise_std: Real,
    reading: Reading = "proved",
) -> Float[Array, "*any"]:
    """Return the logarithm of the bound on P(J_hat != J*), at most 0; 0 where the theorem says nothing.

    **Arguments:** as in `recovery_probability`.
    """
    check_reading(reading)
    ratio = signal(num_rows, beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    exponent = as_real(num_tasks) * (ratio - 1) ** 2 / (2 if reading == "proved" else 1)
    bound = jnp.log(as_real(num_kernels)) - exponent
    return jnp.where(ratio > 1, jnp.minimum(bound, 0), 0)


@front_door
def recovery_probability(
    num_rows: Real,
    num_tasks: Real,
    num_kernels: Real,
    *,
    beta_min: Real,
    omega: Real,
    kappa: Real,
    noise_std: Real,
    reading: Reading = "proved",
) -> Float[Array, "*any"]:
    """Return the lower bound of Theorem 3.3 on P(J_hat = J*), for Meta-KGL with `theorem_lam`.

    It is the worst case over designs with k_j(x, x) <= 1. `design_recovery_probability` is for a given one.

    **Arguments:**

    - `num_rows`: n, rows of each task.
    - `num_tasks`: m.
    - `num_kernels`: p.
    - `beta_min`: c_1, a lower bound on the norm of a supported group, per task.
    - `omega`: threshold of Meta-KGL, between 0 and `beta_min`.
    - `kappa`: c_kappa, a lower bound on kappa of the design.
    - `noise_std`: sigma, the sub-Gaussian noise level.
    - `reading`: "proved" or "printed", see `jlibo.theory.recovery`.

    **Returns:** a probability, 0 where the theorem says nothing.

    ```python
    from jlibo import theory

    numbers = dict(beta_min=0.5, omega=0.25, kappa=0.1**0.5, noise_std=0.1)
    print(theory.recovery_probability(16_000, 30, 50, **numbers))  # 0: n must exceed 16,384
    print(theory.recovery_probability(60_000, 30, 50, **numbers))  # 0.9998
    ```
    """
    log_failure = recovery_log_failure(
        num_rows,
        num_tasks,
        num_kernels,
        beta_min=beta_min,
        omega=omega,
        kappa=kappa,
        noise_std=noise_std,
        reading=reading,
    )
    return jnp.abs(jnp.expm1(log_failure))  # 1 - exp(log_failure), without the sign of -0


@front_door
def noise_lam(
    num_rows: Real, num_tasks: Real, num_kernels: Real, *, noise_std: Real, delta: Real
) -> Float[Array, "*any"]:
    """Return the smallest lam at which the noise event of App. D has probability at least 1 - delta.

    It needs neither c_1 nor kappa, and `estimate_noise` returns the noise. Theorem 3.3 says that recovery has
    probability 1 - delta if `noise_lam <= theorem_lam`. `jlibo.MetaKGL(4 * noise_std, omega,
    lam_scaling="noise")` has this lam with the traces of its own data.

    **Arguments:** as in `recovery_probability`; `delta` is the probability that the noise is larger.

    ```python
    from jlibo import theory

    print(theory.noise_lam(10, 30, 50, noise_std=0.1, delta=0.1))  # 0.038
    ```
    """
    tasks = as_real(num_tasks)
    level = 1 + jnp.sqrt(2 * _log_ratio(num_kernels, delta) / tasks)
    return 4 * jnp.asarray(noise_std) * level / jnp.sqrt(as_real(num_rows) * tasks)


# --- inverted -----------------------------------------------------------------------------------------------


@front_door
def least_rows(*, beta_min: Real, omega: Real, kappa: Real, noise_std: Real) -> Float[Array, "*any"]:
    """Return the n above which the theorem says anything, `(32 sigma / (omega-bar kappa^2))^2`.

    ```python
    from jlibo import theory

    print(theory.least_rows(beta_min=0.5, omega=0.25, kappa=0.1**0.5, noise_std=0.1))  # 16,384 = 128^2
    ```
    """
    return (32 * jnp.asarray(noise_std) / (margin(beta_min, omega) * jnp.asarray(kappa) ** 2)) ** 2


@front_door
def rows_needed(
    delta: Real,
    num_tasks: Real,
    num_kernels: Real,
    *,
    beta_min: Real,
    omega: Real,
    kappa: Real,
    noise_std: Real,
) -> Float[Array, "*any"]:
    """Return the n at which `recovery_probability` is 1 - delta, as a real number.

    **Arguments:** as in `recovery_probability`; `delta` is the probability of a wrong support.
    """
    least = least_rows(beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    return least * _signal_needed(delta, num_tasks, num_kernels) ** 2


@front_door
def tasks_needed(
    delta: Real,
    num_rows: Real,
    num_kernels: Real,
    *,
    beta_min: Real,
    omega: Real,
    kappa: Real,
    noise_std: Real,
) -> Float[Array, "*any"]:
    """Return the m at which `recovery_probability` is 1 - delta; infinite where no number of tasks helps.

    **Arguments:** as in `recovery_probability`; `delta` is the probability of a wrong support.
    """
    ratio = signal(num_rows, beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    needed = 2 * _log_ratio(num_kernels, delta) / (ratio - 1) ** 2
    return jnp.where(ratio > 1, needed, jnp.inf)


@front_door
def smallest_beta_min(
    delta: Real, num_rows: Real, num_tasks: Real, num_kernels: Real, *, kappa: Real, noise_std: Real
) -> Float[Array, "*any"]:
    """Return the smallest c_1 that is found with probability 1 - delta, for omega = c_1 / 2.

    **Arguments:** as in `recovery_probability`; `delta` is the probability of a wrong support.
    """
    needed = _signal_needed(delta, num_tasks, num_kernels)
    rows, noise = as_real(num_rows), jnp.asarray(noise_std)
    return 2 * 32 * noise * needed / (jnp.asarray(kappa) ** 2 * jnp.sqrt(rows))


def _signal_needed(delta: Real, num_tasks: Real, num_kernels: Real) -> Float[Array, "*any"]:
    return 1 + jnp.sqrt(2 * _log_ratio(num_kernels, delta) / as_real(num_tasks))


def _log_ratio(num_kernels: Real, delta: Real) -> Float[Array, "*any"]:
    return jnp.log(as_real(num_kernels)) - jnp.log(jnp.asarray(delta))


# --- a given design -----------------------------------------------------------------------------------------


@front_door
def design_failure(
    design: Float[Array, "tasks rows features"],
    lam: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> Float[Array, " groups"]:
    """Return a bound on P(||(Phi^(j))^T eps||_2 > lam N / 4) for every group j, with the design's own traces.

    Their sum bounds the probability that the error bound of App. D fails. It needs no bound on k_j(x, x).
    The bound holds for Gaussian noise; the paper states it for sub-Gaussian noise.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `lam`: penalty of the group lasso.
    - `noise_std`: sigma.
    - `groups`: group of each feature; by default every feature is a group.
    - `mask`: rows that are present; by default all.

    **Returns:** probabilities `[groups]`, at most 1.
    """
    ids = blocks.group_ids(design, groups)
    return _failure(blocks.gram(design, mask), blocks.num_rows(design, mask), lam, noise_std, ids=ids)


@partial(jax.jit, static_argnames="ids")
def _failure(
    grams: Float[Array, "tasks features features"],
    count: Float[Array, ""],
    lam: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    *,
    ids: tuple[int, ...],
) -> Float[Array, " groups"]:
    """Return `design_failure` of a design with these Gram matrices and `count` rows in all tasks."""
    index, dtype = blocks.GroupIndex.of(ids), grams.dtype
    unscaled = grams * (jnp.maximum(count, 1) / grams.shape[0])
    own = blocks.diagonal_blocks(unscaled, index)
    traces = jnp.trace(own, axis1=-2, axis2=-1).sum(0)
    _, largest = blocks.extreme_eigenvalues(own, index)
    norms = largest.max(0)
    threshold = jnp.asarray(lam, dtype) * count / (4 * jnp.asarray(noise_std, dtype))
    excess = threshold - jnp.sqrt(traces)
    bound = jnp.exp(-(excess**2) / (2 * jnp.maximum(norms, jnp.finfo(dtype).tiny)))
    return jnp.where(excess > 0, jnp.minimum(bound, 1), 1)


@front_door
def design_recovery_probability(
    design: Float[Array, "tasks rows features"],
    *,
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    kappa: Float[ArrayLike, ""],
    noise_std: Float[ArrayLike, ""],
    lam: Float[ArrayLike, ""] | None = None,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """Return a lower bound on P(J_hat = J*) for a given design (the last corollary of App. D).

    It is at least `recovery_probability` for the same numbers.

    **Arguments:**

    - `design`, `groups`, `mask`: as in `design_failure`.
    - `beta_min`, `omega`, `kappa`, `noise_std`: as in `recovery_probability`; `kappa` is a lower bound on the
      kappa of this design.
    - `lam`: penalty of Meta-KGL; by default `theorem_lam`. The corollary says nothing about a larger one.

    **Returns:** a probability, 0 where the corollary says nothing.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features = jlibo.Cosine(5)
    points = jlibo.sample_box(features, 4 * 200, key=jax.random.key(0)).reshape(4, 200, 1)
    design = features(points)
    kappa = theory.kappa_lower(design, 1)
    numbers = dict(beta_min=1.0, omega=0.5, kappa=kappa, noise_std=0.01)
    print(theory.design_recovery_probability(design, **numbers))
    ```
    """
    largest = theorem_lam(design.shape[0], beta_min=beta_min, omega=omega, kappa=kappa).astype(design.dtype)
    penalty = largest if lam is None else jnp.asarray(lam, design.dtype)
    failure = design_failure(design, penalty, noise_std, groups=groups, mask=mask).sum()
    # A penalty that is equal up to round-off is not larger.
    allowed = (penalty <= largest * (1 + 1e-5)) & (largest > 0)
    return jnp.where(allowed, jnp.maximum(1 - failure, 0), 0)
