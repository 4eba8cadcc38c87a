"""Estimates of the span of all tasks' weights, theta_s = B w_s.

| here              | paper                                                                             |
|-------------------|-----------------------------------------------------------------------------------|
| `reward_moment`   | sum of y^2 x x^T: E2TC, the moment estimator of Yang et al. (2021)                |
| `weight_moment`   | sum of theta_s theta_s^T of least-squares estimates: Yang et al. (2022)           |
| `subspace_prior`  | theta = B w with w ~ N(0, scale^2 I), as a belief                                 |

The span is that of the largest eigenvectors of a moment (`top_subspace`). For x uniform on the unit sphere,

    E[y^2 x x^T] = (2 theta theta^T + |theta|^2 I) / (d (d + 2)) + sigma^2 I / d,

so its average over tasks has the right eigenvectors. The second moment needs at least d observations of a
task, and far fewer tasks.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.arena.estimators.gaussian import HIGHEST, Gaussian, dot
from jlibo.checks import check_shape
from jlibo.front_door import front_door


@front_door
def reward_moment(
    features: Float[Array, "*rows features"],
    rewards: Float[Array, "*rows"],
    present: Bool[Array, "*rows"] | None = None,
) -> Float[Array, "features features"]:
    """Return the sum of y^2 x x^T over all observations; those that are not `present` are left out.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import reward_moment

    print(reward_moment(jnp.eye(2), jnp.asarray([2.0, 1.0])))  # 4 and 1 on the diagonal
    ```
    """
    features, rewards = jnp.asarray(features), jnp.asarray(rewards)
    check_shape("rewards", rewards, features.shape[:-1])
    if present is not None:
        features, rewards = jnp.where(present[..., None], features, 0), jnp.where(present, rewards, 0)
    weighted = (features * rewards[..., None]).reshape(-1, features.shape[-1])
    return dot(weighted.T, weighted)


@front_door
def weight_moment(
    coef: Float[Array, "tasks features"], present: Float[Array, " tasks"] | Bool[Array, " tasks"]
) -> Float[Array, "features features"]:
    """Return the sum of theta_s theta_s^T over the tasks that are `present`.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import weight_moment

    print(weight_moment(jnp.ones((3, 2)), jnp.asarray([1.0, 1.0, 0.0])))  # all entries 2
    ```
    """
    coef, present = jnp.asarray(coef), jnp.asarray(present)
    check_shape("present", present, coef.shape[:1])
    return jnp.einsum("tf,t,tg->fg", coef, present.astype(coef.dtype), coef, precision=HIGHEST)


@front_door
def subspace_prior(basis: Float[Array, "features rank"], scale: Float[Array, ""] | float = 1.0) -> Gaussian:
    """Return the belief theta = B w with w ~ N(0, scale^2 I).

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import subspace_prior

    print(subspace_prior(jnp.eye(3)[:, :1]).covariance)  # 1 in the first place, else 0
    ```
    """
    basis = jnp.asarray(basis)
    num_features, rank = basis.shape
    factor = jnp.pad(basis * scale, [(0, 0), (0, num_features - rank)])
    return Gaussian(jnp.zeros(num_features, basis.dtype), factor)
