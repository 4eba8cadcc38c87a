"""Noise, lam and omega from data: what the theorems need and nobody knows.

| here               | paper                                                                             |
|--------------------|-----------------------------------------------------------------------------------|
| `estimate_noise`   | sigma, from the rows and rewards of all tasks                                     |
| `kappa_upper`      | an upper bound on kappa(Phi) that needs no search and is never 0                  |
| `lam_bracket`      | the lambda of Theorem 3.3 at both ends of kappa's bracket                         |
| `penalty_omega`    | the omega that equals the error of a group norm, for orthogonal features          |

The error bound of App. D is 8 sqrt(m) lambda / kappa^2 for a group norm over sqrt(m), and kappa^2 is at most
z / s*: Theorem 3.3 has omega-bar for the error, so lambda = omega-bar kappa^2 / (8 sqrt(m)). For orthogonal
features of mean square z the solution is a soft threshold. The penalty shrinks a group by lambda m / (2 z),
and the noise, below lambda N / 4, moves it by at most half of that. So the error is at most
3/4 sqrt(m) lambda / z: the same form, without the factor of the worst case.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.checks import ArrayLike, check_shape
from jlibo.front_door import front_door
from jlibo.meta.noise import NoiseEstimate, noise_of_rows, spread_kappa
from jlibo.theory import blocks
from jlibo.theory.compatibility import Real, as_real, check_size, kappa_lower
from jlibo.theory.recovery import theorem_lam

ORTHOGONAL_ERROR = 0.75
"""Error of a group norm for orthogonal features, in units of sqrt(m) lambda / z."""


@front_door
def estimate_noise(
    design: Float[Array, "tasks rows features"],
    targets: Float[Array, "tasks rows"],
    *,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> NoiseEstimate:
    """Return an estimate of the noise from rows and rewards, also with fewer rows than features.

    The residuals are those of fits to a few features that all tasks share; `jlibo.meta.noise` says how they
    are chosen. If no few features explain the rewards better than noise alone, the noise is not identified,
    and the estimate is the root mean square of the rewards. The true noise is then smaller.
    `jlibo.MetaKGL(4.0, omega, lam_scaling="estimated")` uses this estimate of its own data.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `targets`: rewards of the rows, without a mean that the features cannot represent.
    - `mask`: rows that are present; by default all.

    **Returns:** a `NoiseEstimate`.

    **Raises:** `ValueError` for wrong shapes.

    ```python
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo import theory

    features, (point_key, noise_key) = jlibo.Cosine(30), jax.random.split(jax.random.key(0))
    points = jlibo.sample_box(features, 12 * 10, key=point_key).reshape(12, 10, 1)
    noise = 0.1 * jax.random.normal(noise_key, (12, 10))
    design = features(points)  # 12 tasks of 10 rows, 30 features of which two are used
    targets = design @ (2.0 * jnp.eye(30)[3] - jnp.eye(30)[7]) + noise
    print(theory.estimate_noise(design, targets).noise_std)  # 0.1
    ```
    """
    check_shape("design", design, ("tasks", "rows", "features"))
    check_shape("targets", targets, design.shape[:2])
    present = jnp.ones(targets.shape, bool) if mask is None else jnp.asarray(mask)
    check_shape("mask", present, design.shape[:2])
    counts = present.sum(1).astype(design.dtype)
    rows, rewards = jnp.where(present[..., None], design, 0), jnp.where(present, targets, 0)
    nothing = jnp.zeros_like(counts)
    return noise_of_rows(rows, rewards, counts, nothing, nothing)


@front_door
def kappa_upper(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """Return an upper bound on kappa without a search, `sqrt(z / s*)` with the mean squares z of the design.

    z is the mean of the s* smallest. It is the ratio of directions that are spread over s* kernels and are
    equal in all tasks. With many uniform rows and orthogonal features it is kappa. With few rows kappa is
    usually 0, which `kappa_bracket` finds out and this bound does not.

    **Arguments:** as in `kappa_lower`.

    ```python
    import jax.numpy as jnp

    from jlibo import theory

    print(theory.kappa_upper(2 * jnp.eye(4)[None], support_size=2))  # 0.707, which is kappa
    ```
    """
    check_size(design, support_size, groups)
    index = blocks.GroupIndex.of(blocks.group_ids(design, groups))
    diagonal = jnp.diagonal(blocks.gram(design, mask), axis1=-2, axis2=-1).mean(0)
    own = jnp.where(index.present, diagonal[index.places], 0)
    return spread_kappa(own.sum(1) / index.present.sum(1), support_size)


@front_door
def lam_bracket(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    beta_min: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the lam of Theorem 3.3 at `kappa_lower` and at `kappa_upper` of a design.

    The theorem holds for a lam of at most the first, and for none above the second. With few rows the first
    is 0: then no lam is known to have the guarantee, and a lam of 0 would penalise nothing. The second is the
    one to use. `jlibo.MetaKGL(1 / 8, omega, lam_scaling="bracket")` does, with s* from `estimate_noise`.

    **Arguments:**

    - `design`, `support_size`, `groups`, `mask`: as in `kappa_lower`.
    - `beta_min`, `omega`: as in `theorem_lam`.

    **Returns:** the two ends.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features = jlibo.Cosine(20)
    design = features(jlibo.sample_box(features, 10, key=jax.random.key(0)))[None]
    print(theory.lam_bracket(design, 2, beta_min=0.5, omega=0.25))  # 0 and 0.0056
    ```
    """
    ends = (kappa(design, support_size, groups=groups, mask=mask) for kappa in (kappa_lower, kappa_upper))
    lower, upper = (theorem_lam(design.shape[0], beta_min=beta_min, omega=omega, kappa=end) for end in ends)
    return lower, upper


@front_door
def penalty_omega(lam: Real, num_tasks: Real, mean_square: Real) -> Float[Array, "*any"]:
    """Return the error of a group norm over sqrt(m) for orthogonal features, `3/4 sqrt(m) lam / z`.

    It holds if lam exceeds the noise as in `noise_lam`. A kernel that is not used stays below this threshold,
    and one with c_1 of at least twice the threshold stays above.
    `jlibo.MetaKGL(lam, 0.75, omega_scaling="penalty")` has this threshold, with z of each kernel.

    **Arguments:**

    - `lam`: penalty of the group lasso.
    - `num_tasks`: m.
    - `mean_square`: z, the mean square of a feature of the kernel.

    ```python
    from jlibo import theory

    lam = theory.noise_lam(10, 30, 50, noise_std=0.1, delta=0.1)
    print(theory.penalty_omega(lam, 30, 0.5))  # 0.31: the paper's omega is 0.25
    ```
    """
    root = jnp.sqrt(as_real(num_tasks))
    return ORTHOGONAL_ERROR * root * jnp.asarray(lam) / jnp.asarray(mean_square)
