"""The contract of policies: a score for every point, given the belief. The loop plays the highest score."""

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.posterior import Belief
from jlibo.checks import check_shape, fail, is_concrete
from jlibo.fields import AbstractField
from jlibo.front_door import front_door


class AbstractPolicy(eqx.Module):
    """A base bandit (BaseBO in the paper). A subclass declares `noise_std` and implements `scores`.

    The score of a point must not depend on the other points, except through what `key` draws once for all of
    them, such as a function drawn from the posterior. The same policy then works on a finite candidate set,
    by argmax (`jlibo.choose`), and on a continuous box, by gradient ascent (`jlibo.maximise`).

    ```python
    import equinox as eqx
    import jax.numpy as jnp
    import jlibo
    from jaxtyping import Array

    class LowerConfidence(jlibo.AbstractPolicy):
        noise_std: Array = eqx.field(converter=jnp.asarray)

        def scores(self, belief, *, key):
            return belief.mean - belief.std

    policy = LowerConfidence(0.1)
    ```
    """

    if TYPE_CHECKING:
        noise_std = AbstractField[Float[Array, ""]]()
    else:
        noise_std: eqx.AbstractVar[Float[Array, ""]]
        """The standard deviation of the noise that the posterior assumes: lambda_ucb."""

    @abc.abstractmethod
    def scores(self, belief: Belief, *, key: PRNGKeyArray) -> Float[Array, " points"]:
        """Return the score of each point of the belief; the point with the highest score is played next."""


@front_door
def choose(
    policy: AbstractPolicy,
    belief: Belief,
    *,
    available: Bool[Array, " points"] | None = None,
    key: PRNGKeyArray,
) -> Int[Array, ""]:
    """Return the index of the available point with the highest score.

    **Arguments:**

    - `policy`: computes the scores.
    - `belief`: the posterior at the points, from `jlibo.posterior.belief_at`.
    - `available`: true for the points that may be chosen; by default all.

    **Returns:** an index into the points of the belief. The first of equal scores is chosen. If all available
    points have the score minus infinity, the first of them is chosen.

    **Raises:** `ValueError` if `available` or the scores have a wrong shape, or if no point is available.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.GPUCB(nu=2.0, noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    belief = jlibo.posterior.belief_at(posterior, features(jlibo.box_grid(features, 100)))
    print(jlibo.choose(policy, belief, key=jax.random.key(0)))
    ```
    """
    scores = policy.scores(belief, key=key)
    check_shape("scores", scores, belief.mean.shape)
    if available is None:
        return _first_best(scores)
    check_shape("available", available, scores.shape)
    if is_concrete(available) and not np.asarray(available).any():
        fail("available", "true for at least one point", "no point at all")
    available = jnp.asarray(available)
    best = _first_best(jnp.where(available, scores, -jnp.inf))
    # If all available points score minus infinity, `best` may be unavailable.
    return jnp.where(available[best], best, jnp.argmax(available))


def _first_best(scores: Float[Array, " points"]) -> Int[Array, ""]:
    """Return `jnp.argmax(scores)`, with the same result for NaN and ties, by two plain reductions.

    Plain reductions vectorise; a reduction over pairs of value and index does not.
    """
    # The barriers keep the compiler from computing the scores once per reduction, and from broadcasting the
    # maximum to every point.
    scores = lax.optimization_barrier(scores)
    num_points = scores.shape[0]
    is_best = (scores == lax.optimization_barrier(scores.max())) | jnp.isnan(scores)
    places = jnp.arange(num_points, dtype=jnp.int32)
    return jnp.where(is_best, places, num_points).min()
