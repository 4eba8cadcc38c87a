"""Uniform: play anywhere. Random search, and the policy of forced exploration."""

import jax
from jaxtyping import Array, Float

from jlibo.fields import hyper_parameter
from jlibo.policies.base import AbstractPolicy


class Uniform(AbstractPolicy):
    """Scores that are independent of what was seen; on a box, any start is as good as any other."""

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0, default=1.0)

    def scores(self, belief, *, key):
        return jax.random.uniform(key, belief.mean.shape, belief.mean.dtype)
