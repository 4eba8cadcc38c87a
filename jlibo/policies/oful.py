"""OFUL: optimism over a confidence ellipsoid of linear weights (Abbasi-Yadkori, Pal & Szepesvari 2011).

| here               | original                                                                     |
|--------------------|------------------------------------------------------------------------------|
| `norm_bound`       | S, the bound on the weights, here in the prior's metric w^T C^-1 w <= S^2    |
| `noise_std`        | R, and the regulariser through it                                            |
| `information_gain` | log(det(V_t)^(1/2) / det(lambda I)^(1/2)), which the prior's C replaces      |
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.fields import number
from jlibo.policies.base import AbstractPolicy


def ellipsoid_width(
    norm_bound: Float[Array, "*any"], gain: Float[Array, "*any"], delta: Float[Array, "*any"]
) -> Float[Array, "*any"]:
    """Return `S + sqrt(2 (gain + ln(1/delta)))`, for a regulariser equal to the noise level."""
    return norm_bound + jnp.sqrt(2 * (gain - jnp.log(delta)))


@final
class OFUL(AbstractPolicy):
    """Scores are the largest reward over a confidence ellipsoid of the weights.

    The radius of the ellipsoid is `S + sqrt(2 (gain + ln(1/delta)))`.

    **Arguments:**

    - `norm_bound`: S, the bound on the weights in the metric of the prior, above 0.
    - `delta`: probability that the confidence sets fail, above 0 and at most 1.
    - `noise_std`: the noise that the posterior assumes, above 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.OFUL(norm_bound=10.0, delta=0.1, noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    delta: Float[Array, ""] = eqx.field(converter=number("delta", above=0, at_most=1))
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))

    def scores(self, belief, *, key):
        gain = belief.posterior.information_gain
        return belief.mean + ellipsoid_width(self.norm_bound, gain, self.delta) * belief.std
