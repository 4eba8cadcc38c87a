"""Expected improvement over the best reward seen (Jones, Schonlau & Welch 1998)."""

import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from jlibo.fields import hyper_parameter
from jlibo.policies.base import AbstractPolicy


class ExpectedImprovement(AbstractPolicy):
    """E[max(f(x) - best - margin, 0)]; before the first reward, the point with the largest variance."""

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0)
    margin: Float[Array, ""] = hyper_parameter("margin", at_least=0, default=0.0)

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
