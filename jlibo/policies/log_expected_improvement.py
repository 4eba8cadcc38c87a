"""The logarithm of expected improvement, which ranks points whose expected improvement underflows.

| here       | Ament, Daulton, Eriksson, Balandat & Bakshy 2023                             |
|------------|------------------------------------------------------------------------------|
| `log_gain` | log h(z), h(z) = pdf(z) + z cdf(z)                                           |

Far below the best reward, expected improvement is smaller than any floating-point number. Every point then
scores zero and the policy cannot rank them. The logarithm still distinguishes the points.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from jlibo.checks import check_count
from jlibo.fields import number
from jlibo.front_door import check_fields
from jlibo.policies.base import AbstractPolicy


@final
class LogExpectedImprovement(AbstractPolicy):
    """Scores `log E[max(f(x) - best - margin, 0)]`.

    Before the first reward, the scores are the mean if the prior has one, else the standard deviation.

    **Arguments:**

    - `noise_std`: the noise that the posterior assumes, above 0.
    - `margin`: a reward counts as an improvement only above `best + margin`; at least 0.
    - `patience`: after this many observations without a new best one, every second point is chosen in another
      way until there is one, at least 1; None for never. A model that is wrong may stay on a plateau of equal
      rewards for ever. A uniform draw leaves it, and costs at most every second observation. If the belief is
      that of a mixture, and the past is trusted by more than one half, the first, third, ... of these points
      is the one with the largest improvement under the last component, as an agent without past tasks would
      choose, and the others are drawn: a past that misleads cannot hold the search.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.LogExpectedImprovement(noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    margin: Float[Array, ""] = eqx.field(converter=number("margin", at_least=0), default=0.0)
    patience: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_fields(self)
        if self.patience is not None:
            check_count("patience", self.patience)

    def scores(self, belief, *, key):
        scores = self._improvement(belief)
        if self.patience is None:
            return scores
        waited = belief.posterior.num_since_best - self.patience
        other = jax.random.uniform(key, scores.shape, scores.dtype)
        if belief.wide is not None:
            # Without trust in the past, the belief is that of the last component already.
            is_asked = (waited % 4 == 0) & (jnp.asarray(belief.trust) > 0.5)
            other = jnp.where(is_asked, self._improvement(belief.wide), other)
        return jnp.where((waited >= 0) & (waited % 2 == 0), other, scores)

    def _improvement(self, belief):
        best = belief.posterior.best_reward
        started = jnp.isfinite(best)
        improvement = belief.mean - jnp.where(started, best, 0) - self.margin
        std = jnp.maximum(belief.std, jnp.finfo(belief.mean.dtype).tiny ** 0.25)
        score = jnp.log(std) + log_gain(improvement / std)
        has_mean = jnp.any(belief.posterior.mean != 0)
        return jnp.where(started, score, jnp.where(has_mean, belief.mean, belief.std))


def log_gain(ratio: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return `log(pdf(z) + z cdf(z))`, accurate for every z."""
    # For very negative z, h(z) = pdf(z) (1 + z cdf(z) / pdf(z)) cancels; its expansion in 1/z^2 is exact
    # there.
    tail_start = -6.0 if ratio.dtype.itemsize <= 4 else -20.0
    # Clip the input of each formula to its own range: an overflow outside of it would make the gradient NaN.
    low, high = jnp.clip(ratio, tail_start, 0), jnp.maximum(ratio, 0)
    below = jnp.log(norm.pdf(low) * (1 + low * jnp.exp(log_ndtr(low) - norm.logpdf(low))))
    middle = jnp.where(ratio > 0, jnp.log(norm.pdf(high) + high * jnp.exp(log_ndtr(high))), below)
    far = jnp.minimum(ratio, tail_start)
    inverse = 1 / far**2
    series = 1 - inverse * (3 - inverse * (15 - inverse * (105 - 945 * inverse)))
    tail = norm.logpdf(far) + jnp.log(inverse * series)
    return jnp.where(ratio > tail_start, middle, tail)
