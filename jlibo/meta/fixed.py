"""A prior that never changes: the oracle (the true kernel) and the naive agent (all kernels) of the paper."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from jlibo.belief.prior import Prior, full_prior
from jlibo.meta.base import AbstractMetaLearner, group_array, info_of
from jlibo.meta.exploration import AbstractExploration, NoExploration


class FixedPrior(AbstractMetaLearner):
    """Learns nothing. Without a `prior`, all base kernels count alike."""

    fixed_prior: Prior | None = None
    exploration: AbstractExploration = NoExploration()

    data: ClassVar[str] = "all"

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
