"""The paper's data model: reward functions that share a few of many base kernels.

| here            | paper (sections 2 and 6)                                                        |
|-----------------|---------------------------------------------------------------------------------|
| `support`       | J*, drawn uniformly among the sets of `support_size` base kernels               |
| `norm_bound`    | B: coefficients are uniform in the ball of this radius, 10                      |
| `beta_min`      | c_1: a draw is kept when every group's norm is at least this, 0.5               |
| `noise_std`     | sigma, 0.1                                                                      |
"""

from functools import partial
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.checks import check_count, check_range, check_shape, fail, is_concrete
from jlibo.envs.base import AbstractEnv, Task
from jlibo.features import AbstractFeatures, box_grid
from jlibo.fields import ScalarLike, number
from jlibo.front_door import check_fields, front_door

MAX_DRAWS = 10_000
"""Maximum number of draws of a task's coefficients in rejection sampling."""


@final
class SyntheticEnv(AbstractEnv):
    """Environment whose reward functions use only the base kernels in `support`; made by `SyntheticEnv.draw`.

    ```python
    import jax

    import jlibo

    env = jlibo.SyntheticEnv.draw(jlibo.Cosine(num_features=20), support_size=3, key=jax.random.key(0))
    print(env.support.sum(), env.candidates.shape)  # 3 (1000, 1)
    ```
    """

    always_finite: ClassVar[bool] = True
    groups: tuple[int, ...] = eqx.field(static=True)
    """Base kernel of each feature."""
    support: Bool[Array, " groups"]
    """The base kernels that the reward functions use."""
    candidates: Float[Array, "candidates dim"]
    candidate_features: Float[Array, "candidates features"]
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    beta_min: Float[Array, ""] = eqx.field(converter=number("beta_min", at_least=0))
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", at_least=0))

    def __check_init__(self):
        check_fields(self)

    def task(self, index, *, key):
        coef = self.coefficients(key=key)
        return Task(jnp.matmul(self.candidate_features, coef, precision=lax.Precision.HIGHEST))

    @front_door
    def coefficients(self, *, key: PRNGKeyArray) -> Float[Array, " features"]:
        """Return one draw of beta*_s, uniform in the ball.

        Every group in the support has a norm of at least `beta_min`. The result is NaN if none of
        `MAX_DRAWS` draws meets this condition.
        """
        return draw_coefficients(
            self.support,
            self.norm_bound,
            self.beta_min,
            groups=self.groups,
            dtype=self.candidate_features.dtype,
            key=key,
        )

    @classmethod
    @front_door
    def draw(
        cls,
        features: AbstractFeatures,
        *,
        support_size: int = 5,
        norm_bound: ScalarLike = 10.0,
        beta_min: ScalarLike = 0.5,
        noise_std: ScalarLike = 0.1,
        candidates: Float[Array, "candidates dim"] | None = None,
        key: PRNGKeyArray,
    ) -> "SyntheticEnv":
        """Return an environment with a random support.

        **Arguments:**

        - `features`: the base kernels.
        - `support_size`: number of base kernels in the support.
        - `norm_bound`: radius of the ball of coefficients.
        - `beta_min`: smallest norm of a supported group's coefficients.
        - `noise_std`: standard deviation of the noise added to rewards.
        - `candidates`: points that can be played, `[candidates, dim]`. The default is the paper's: 1,000 on
          an even grid in one dimension, 40 x 40 in two. For more dimensions it must be given.
        - `key`: random key of the support. Tasks are drawn from the keys passed to `task`.

        **Returns:** a `SyntheticEnv`.

        **Raises:** `ValueError` if the support is larger than the number of base kernels, if `beta_min` is
        not below `norm_bound / sqrt(support_size)`, or if `candidates` is missing or has a wrong shape.
        """
        check_count("support_size", support_size)
        if support_size > features.num_groups:
            fail("support_size", f"at most the {features.num_groups} base kernels", support_size)
        check_range("norm_bound", norm_bound, above=0)
        if is_concrete(beta_min) and is_concrete(norm_bound):
            smallest = float(np.asarray(beta_min).max()) * support_size**0.5
            if smallest >= float(np.asarray(norm_bound).min()):
                fail(
                    "beta_min",
                    f"below norm_bound / sqrt(support_size), so that {support_size} groups fit in the ball",
                    beta_min,
                )
        if candidates is None:
            if features.dim > 2:
                fail("candidates", f"given for features of {features.dim} dimensions", None)
            candidates = box_grid(features, 1000 if features.dim == 1 else 40)
        check_shape("candidates", candidates, ("candidates", features.dim))
        return cls(
            support=draw_support(key, features.num_groups, support_size),
            candidates=jnp.asarray(candidates),
            candidate_features=features(candidates),
            norm_bound=jnp.asarray(norm_bound),
            beta_min=jnp.asarray(beta_min),
            noise_std=jnp.asarray(noise_std),
            groups=features.groups,
        )


@partial(jax.jit, static_argnums=(1, 2))
def draw_support(key: PRNGKeyArray, num_groups: int, support_size: int) -> Bool[Array, " groups"]:
    """Return a set of base kernels, uniform among those of this size."""
    _, chosen = lax.top_k(jax.random.uniform(key, (num_groups,)), support_size)
    return jnp.zeros(num_groups, bool).at[chosen].set(True)


# Jitted, because a loop outside of `jit` is recompiled at every call.
@eqx.filter_jit
def draw_coefficients(
    support: Bool[Array, " groups"],
    norm_bound: Float[Array, ""],
    beta_min: Float[Array, ""],
    *,
    groups: tuple[int, ...],
    dtype: Any,
    key: PRNGKeyArray,
) -> Float[Array, " features"]:
    """Return coefficients of the supported groups, uniform in the ball; see `SyntheticEnv.coefficients`."""
    group_of = np.asarray(groups)
    used = support[group_of]

    def draw(attempt):
        # Dropping two coordinates of a uniform point on a sphere gives a uniform point in the ball.
        draw_key = jax.random.fold_in(key, attempt)
        noise = jax.random.normal(draw_key, (len(used) + 2,), dtype)
        noise = jnp.where(jnp.append(used, jnp.ones(2, bool)), noise, 0)
        return norm_bound * (noise / jnp.sqrt((noise**2).sum()))[:-2]

    def is_too_small(coef):
        squares = jax.ops.segment_sum(coef**2, group_of, num_segments=support.shape[0])
        return jnp.any(support & (squares < beta_min**2))

    def again(carry):
        attempt, _ = carry
        return attempt + 1, draw(attempt)

    def unlucky(carry):
        attempt, coef = carry
        return (attempt == 0) | (is_too_small(coef) & (attempt < MAX_DRAWS))

    start = (jnp.zeros((), jnp.int32), jnp.zeros(used.shape, dtype))
    _, coef = lax.while_loop(unlucky, again, start)
    return jnp.where(is_too_small(coef), jnp.nan, coef)
