"""Expected improvement over the best observed reward (Jones, Schonlau & Welch 1998)."""

from typing import final

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from jlibo.fields import number
from jlibo.policies.base import AbstractPolicy


@final
class ExpectedImprovement(AbstractPolicy):
    """Scores `E[max(f(x) - best - margin, 0)]`; before the first reward, the standard deviation.

    **Arguments:**

    - `noise_std`: the noise that the posterior assumes, above 0.
    - `margin`: a reward counts as an improvement only above `best + margin`; at least 0.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.ExpectedImprovement(noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    margin: Float[Array, ""] = eqx.field(converter=number("margin", at_least=0), default=0.0)

    def scores(self, belief, *, key):
        best = belief.posterior.best_reward
        started = jnp.isfinite(best)
        std = belief.std
        improvement = belief.mean - jnp.where(started, best, 0) - self.margin
        uncertain = std > 0
        ratio = improvement / jnp.where(uncertain, std, 1)
        expected = improvement * norm.cdf(ratio) + std * norm.pdf(ratio)
        expected = jnp.where(uncertain, expected, jnp.maximum(improvement, 0))
        return jnp.where(started, expected, std)
