"""Uniform: play a point drawn uniformly. Random search, and the policy of forced exploration."""

from typing import final

import equinox as eqx
import jax
from jaxtyping import Array, Float

from jlibo.fields import number
from jlibo.policies.base import AbstractPolicy


@final
class Uniform(AbstractPolicy):
    """Random scores, independent of the observations. On a box, all starts have the same score.

    **Arguments:**

    - `noise_std`: the noise that the posterior assumes, above 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.Uniform()
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0), default=1.0)

    def scores(self, belief, *, key):
        return jax.random.uniform(key, belief.mean.shape, belief.mean.dtype)
