"""GP-TS: draw a function from the posterior and play where it is highest (Chowdhury & Gopalan 2017)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief.posterior import sample_weights
from jlibo.fields import hyper_parameter
from jlibo.policies.base import AbstractPolicy


class GPTS(AbstractPolicy):
    """Thompson sampling. `scale` widens the draw around the mean (v_t originally); 1 is the posterior."""

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0)
    scale: Float[Array, ""] = hyper_parameter("scale", at_least=0, default=1.0)

    def scores(self, belief, *, key):
        # One function for all points, evaluated through its weights: the draw is joint.
        deviation = sample_weights(belief.posterior, key=key) - belief.posterior.mean
        drawn = jnp.matmul(belief.features, deviation, precision=lax.Precision.HIGHEST)
        return belief.mean + self.scale * drawn
