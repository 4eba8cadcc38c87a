"""Greedy: play where the posterior mean is highest."""

from jaxtyping import Array, Float

from jlibo.fields import hyper_parameter
from jlibo.policies.base import AbstractPolicy


class Greedy(AbstractPolicy):
    """No exploration of its own: a base line, and what forced exploration alone can carry."""

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0)

    def scores(self, belief, *, key):
        return belief.mean
