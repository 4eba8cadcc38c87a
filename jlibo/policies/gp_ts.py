"""GP-TS: draw a function from the posterior and play where it is highest (Chowdhury & Gopalan 2017)."""

from typing import final

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.belief.posterior import sample_weights
from jlibo.fields import number
from jlibo.policies.base import AbstractPolicy


@final
class GPTS(AbstractPolicy):
    """Thompson sampling: scores are one function drawn from the posterior.

    **Arguments:**

    - `noise_std`: the noise that the posterior assumes, above 0.
    - `scale`: factor on the deviation of the draw from the mean (v_t in the original), at least 0; 1 samples
      the posterior.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.GPTS(noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    scale: Float[Array, ""] = eqx.field(converter=number("scale", at_least=0), default=1.0)

    def scores(self, belief, *, key):
        # One draw of the weights gives one function for all points, so the scores are a joint sample.
        deviation = sample_weights(belief.posterior, key=key) - belief.posterior.mean
        drawn = jnp.matmul(belief.features, deviation, precision=lax.Precision.HIGHEST)
        return belief.mean + self.scale * drawn
