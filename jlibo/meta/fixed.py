"""A prior that does not change: the paper's oracle (true kernel) and naive agent (all kernels)."""

from typing import ClassVar, final

import jax
import jax.numpy as jnp

from jlibo.belief.prior import Prior, full_prior
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, group_array, info_of
from jlibo.meta.exploration import AbstractExploration, NoExploration


@final
class FixedPrior(AbstractMetaLearner):
    """Meta-learner that uses the same prior for every task.

    **Arguments:** the fields below; both have defaults.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.FixedPrior()
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.regret.sum())
    ```
    """

    fixed_prior: Prior | None = None
    """The prior; None means equal weight for all base kernels."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"
    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        return ()

    def prior(self, state, sizes):
        if self.fixed_prior is None:
            return full_prior(sizes.groups, sizes.dtype, free_groups=sizes.free_groups)
        return jax.tree.map(lambda leaf: leaf.astype(sizes.dtype), self.fixed_prior)

    def update(self, state, data, sizes):
        return self._same(sizes)

    def learn(self, past, num_done, sizes):
        return self._same(sizes)

    def _same(self, sizes):
        covariance = self.prior((), sizes).covariance
        variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
        used = jnp.zeros(sizes.num_groups, bool).at[group_array(sizes)].max(variances > 0)
        return (), info_of(used, None, sizes)
