"""Greedy: play where the posterior mean is highest."""

from typing import final

import equinox as eqx
from jaxtyping import Array, Float

from jlibo.fields import number
from jlibo.policies.base import AbstractPolicy


@final
class Greedy(AbstractPolicy):
    """Scores are the posterior mean: no exploration beyond forced exploration. A baseline.

    **Arguments:**

    - `noise_std`: the noise that the posterior assumes, above 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.Greedy(noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))

    def scores(self, belief, *, key):
        return belief.mean
