"""A prior that never changes: the oracle (the true kernel) and the naive agent (all kernels) of the paper."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from jlibo.exploration import AbstractExploration, NoExploration
from jlibo.meta.base import AbstractMetaLearner, group_array, info_of
from jlibo.prior import Prior, full_prior


class FixedPrior(AbstractMetaLearner):
    """Learns nothing. Without a `prior`, all base kernels count alike."""

    fixed_prior: Prior | None = None
    exploration: AbstractExploration = NoExploration()

    data: ClassVar[str] = "all"

    def init(self, setting):
        return ()

    def prior(self, state, setting):
        if self.fixed_prior is None:
            return full_prior(setting.groups, setting.dtype, free_groups=setting.free_groups)
        return jax.tree.map(lambda leaf: leaf.astype(setting.dtype), self.fixed_prior)

    def update(self, state, data, setting):
        return self._same(setting)

    def learn(self, past, num_done, setting):
        return self._same(setting)

    def _same(self, setting):
        covariance = self.prior((), setting).covariance
        variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
        used = jnp.zeros(setting.num_groups, bool).at[group_array(setting)].max(variances > 0)
        return (), info_of(used, None, setting)
