"""What a policy is: a score for every point, from the belief alone. The loop plays the highest score."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.posterior import Belief
from jlibo.checks import check_shape, fail, is_concrete


class AbstractPolicy(eqx.Module):
    """A base bandit (BaseBO in the paper). Implement `scores`; everything else follows.

    `scores` must treat each point on its own, apart from what `key` draws once for all of them (a function
    drawn from the posterior, say). Then the same policy plays on a finite candidate set, by argmax, and on a
    continuous box, by gradient ascent (`jlibo.maximise`).
    """

    noise_std: eqx.AbstractVar[Float[Array, ""]]
    """The noise that the posterior assumes: lambda_ucb."""

    @abc.abstractmethod
    def scores(self, belief: Belief, *, key: PRNGKeyArray) -> Float[Array, " points"]:
        """How much each point of the belief is worth playing next."""


def choose(
    policy: AbstractPolicy,
    belief: Belief,
    *,
    available: Bool[Array, " points"] | None = None,
    key: PRNGKeyArray,
) -> Int[Array, ""]:
    """The index of the belief's point with the highest score, among those `available`."""
    scores = policy.scores(belief, key=key)
    check_shape("scores", scores, belief.mean.shape)
    if available is None:
        return _first_best(scores)
    check_shape("available", available, scores.shape)
    if is_concrete(available) and not np.asarray(available).any():
        fail("available", "true for at least one point", "no point at all")
    available = jnp.asarray(available)
    best = _first_best(jnp.where(available, scores, -jnp.inf))
    # Where all that is available scores minus infinity, the first of it.
    return jnp.where(available[best], best, jnp.argmax(available))


def _first_best(scores: Float[Array, " points"]) -> Int[Array, ""]:
    """`jnp.argmax`, NaN and ties included, as two plain reductions: they vectorise where one over pairs of
    value and place does not."""
    # The barriers keep the compiler from computing the scores once for each reduction, and from writing the
    # best of them out for every point.
    scores = lax.optimization_barrier(scores)
    num_points = scores.shape[0]
    is_best = (scores == lax.optimization_barrier(scores.max())) | jnp.isnan(scores)
    places = jnp.arange(num_points, dtype=jnp.int32)
    return jnp.where(is_best, places, num_points).min()
