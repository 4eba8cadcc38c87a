"""OFUL: optimism over a confidence ellipsoid of linear weights (Abbasi-Yadkori, Pal & Szepesvari 2011).

| here               | original                                                                     |
|--------------------|------------------------------------------------------------------------------|
| `norm_bound`       | S, the bound on the weights, here in the prior's metric w^T C^-1 w <= S^2    |
| `noise_std`        | R, and the regulariser through it                                            |
| `information_gain` | log(det(V_t)^(1/2) / det(lambda I)^(1/2)), which the prior's C replaces      |
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.fields import hyper_parameter
from jlibo.policies.base import AbstractPolicy


class OFUL(AbstractPolicy):
    """The ellipsoid's radius is S + sqrt(2 (gain + ln(1/delta))); a point is worth its best weights."""

    norm_bound: Float[Array, ""] = hyper_parameter("norm_bound", above=0)
    delta: Float[Array, ""] = hyper_parameter("delta", above=0, at_most=1)
    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0)

    def scores(self, belief, *, key):
        gain = belief.posterior.information_gain
        radius = self.norm_bound + jnp.sqrt(2 * (gain - jnp.log(self.delta)))
        return belief.mean + radius * belief.std
