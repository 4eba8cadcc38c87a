"""Laws of sparse weights: the tasks share the groups of features in use."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.belief.prior import Prior
from jlibo.checks import check_count, fail
from jlibo.envs.linear.base import AbstractWeights, one_group_each
from jlibo.envs.linear.facts import Facts
from jlibo.envs.synthetic import draw_coefficients, draw_support
from jlibo.fields import ScalarLike, number
from jlibo.front_door import check_fields, front_door


@final
class KernelWeights(AbstractWeights):
    """Weights on a few groups of features, as in `jlibo.SyntheticEnv`; made by `KernelWeights.draw`.

    ```python
    import jax

    from jlibo.envs.linear import KernelWeights

    law = KernelWeights.draw(range(20), support_size=3, key=jax.random.key(0))
    print(law.support.sum())  # 3
    ```
    """

    groups: tuple[int, ...] = eqx.field(static=True)
    support_size: int = eqx.field(static=True)
    support: Bool[Array, " groups"]
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    beta_min: Float[Array, ""] = eqx.field(converter=number("beta_min", at_least=0))

    def __check_init__(self):
        check_fields(self)

    @classmethod
    @front_door
    def draw(
        cls,
        groups: tuple[int, ...] | range,
        *,
        support_size: int = 5,
        norm_bound: ScalarLike = 10.0,
        beta_min: ScalarLike = 0.5,
        key: PRNGKeyArray,
    ) -> "KernelWeights":
        """Return a law with a random support.

        **Arguments:**

        - `groups`: group of each feature, as in `features.groups`.
        - `support_size`, `norm_bound`, `beta_min`, `key`: as in `jlibo.SyntheticEnv.draw`. With equal
          arguments, support and coefficients are those of `SyntheticEnv`.
        """
        check_count("support_size", support_size)
        groups = tuple(groups)
        num_groups = max(groups) + 1
        if support_size > num_groups:
            fail("support_size", f"at most the {num_groups} groups", support_size)
        support = draw_support(key, num_groups, support_size)
        return cls(groups, support_size, support, jnp.asarray(norm_bound), jnp.asarray(beta_min))

    def draw_weights(self, index, *, key):
        dtype = jnp.result_type(float)
        return draw_coefficients(
            self.support, self.norm_bound, self.beta_min, groups=self.groups, dtype=dtype, key=key
        )

    @property
    def _rank(self) -> int | None:
        """Number of features in use; None if it depends on which groups are in use."""
        sizes = set(np.bincount(self.groups).tolist())
        return self.support_size * sizes.pop() if len(sizes) == 1 else None

    @property
    def facts(self) -> Facts:
        used = self.support[np.asarray(self.groups)].astype(float)
        # The covariance of a uniform point in a ball; the smallest norm of a group hardly changes it.
        variances = self.norm_bound**2 / (used.sum() + 2) * used
        share = self.support_size / self.support.shape[0]
        everywhere = jnp.full(used.shape, share) * variances.max()
        return Facts(
            norm_bound=self.norm_bound,
            rank=self._rank,
            sparsity=self.support_size,
            support=self.support,
            prior=Prior(jnp.zeros(used.shape), variances),
            marginal=Prior(jnp.zeros(used.shape), everywhere),
        )


@final
class JointlySparseWeights(AbstractWeights):
    """Weights that are uniform between 0 and 1 on a few features, and zero on the others.

    **Arguments:**

    - `support`: the features in use, `[features]`.
    - `support_size`: their number.

    ```python
    import jax

    from jlibo.envs.linear import JointlySparseWeights

    law = JointlySparseWeights.draw(num_features=50, support_size=5, key=jax.random.key(0))
    ```
    """

    support: Bool[Array, " features"]
    support_size: int = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self)

    @classmethod
    @front_door
    def draw(cls, *, num_features: int, support_size: int, key: PRNGKeyArray) -> "JointlySparseWeights":
        """Return a law with a random support."""
        check_count("num_features", num_features)
        check_count("support_size", support_size)
        if support_size > num_features:
            fail("support_size", f"at most the {num_features} features", support_size)
        return cls(draw_support(key, num_features, support_size), support_size)

    @property
    def groups(self) -> tuple[int, ...]:
        return one_group_each(self.support.shape[0])

    def draw_weights(self, index, *, key):
        return jnp.where(self.support, jax.random.uniform(key, self.support.shape), 0)

    @property
    def facts(self) -> Facts:
        used = self.support.astype(float)
        share = self.support_size / self.support.shape[0]
        return Facts(
            norm_bound=jnp.sqrt(jnp.asarray(float(self.support_size))),
            rank=self.support_size,
            sparsity=self.support_size,
            support=self.support,
            prior=Prior(used / 2, used / 12),
            marginal=Prior(jnp.full(used.shape, share / 2), jnp.full(used.shape, share / 3 - share**2 / 4)),
        )
