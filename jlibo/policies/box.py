"""Maximise a policy's scores over a continuous box: multi-start projected gradient ascent."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.checks import check_count, check_range, check_shape
from jlibo.features import AbstractFeatures, sample_box
from jlibo.policies.base import AbstractPolicy
from jlibo.posterior import Posterior, belief_at


class BoxMaximum(eqx.Module):
    """The best point found, its score, and the best score among the starting candidates."""

    point: Float[Array, " dim"]
    score: Float[Array, ""]
    start_score: Float[Array, ""]


def maximise(
    policy: AbstractPolicy,
    posterior: Posterior,
    features: AbstractFeatures,
    *,
    candidates: Float[Array, "candidates dim"] | None = None,
    num_candidates: int = 512,
    num_starts: int = 8,
    num_steps: int = 60,
    learning_rate: float = 0.03,
    key: PRNGKeyArray,
) -> BoxMaximum:
    """The point of the box with the highest score, by gradient ascent from the best candidates.

    All `candidates` (by default a uniform sample of the box) are scored; from the `num_starts` best, Adam
    climbs the same scores in coordinates scaled to the box, and each path keeps the best point it saw. The
    answer is therefore never worse than the best candidate.
    """
    check_count("num_candidates", num_candidates)
    check_count("num_starts", num_starts)
    check_count("num_steps", num_steps, at_least=0)
    check_range("learning_rate", learning_rate, above=0)
    key_sample, key_scores = jax.random.split(key)
    if candidates is None:
        candidates = sample_box(features, num_candidates, key=key_sample)
    check_shape("candidates", candidates, ("candidates", features.dim))
    candidates = jnp.asarray(candidates, posterior.mean.dtype)
    num_starts = min(num_starts, candidates.shape[0])
    lower = jnp.asarray(features.lower, candidates.dtype)
    width = jnp.asarray(features.upper, candidates.dtype) - lower

    def score(unit_point):
        belief = belief_at(posterior, features(lower + width * unit_point)[None])
        # The same key everywhere: a policy that draws a function draws the same one.
        return policy.scores(belief, key=key_scores)[0]

    unit_candidates = (candidates - lower) / width
    candidate_scores = lax.map(score, unit_candidates, batch_size=256)
    start_scores, order = lax.top_k(candidate_scores, num_starts)
    points, scores = jax.vmap(lambda start: _climb(score, start, num_steps, learning_rate))(
        unit_candidates[order]
    )
    # A start whose climb saw nothing but NaN, or nothing better, stands for itself.
    better = scores > start_scores
    points = jnp.where(better[:, None], points, unit_candidates[order])
    scores = jnp.where(better, scores, start_scores)
    best = jnp.argmax(scores)
    point = jnp.clip(lower + width * points[best], lower, lower + width)
    return BoxMaximum(point, scores[best], start_scores[0])


def _climb(score_fn, start, num_steps, learning_rate):
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, max(num_steps, 1), alpha=0.01))

    def ascend(carry, _):
        point, state, best_point, best_score = carry
        value, gradient = jax.value_and_grad(score_fn)(point)
        better = value > best_score
        best_point = jnp.where(better, point, best_point)
        best_score = jnp.where(better, value, best_score)
        updates, state = optimiser.update(-jnp.nan_to_num(gradient), state, point)
        point = jnp.clip(point + updates, 0, 1)
        return (point, state, best_point, best_score), None

    carry = (start, optimiser.init(start), start, score_fn(start))
    (point, _, best_point, best_score), _ = lax.scan(ascend, carry, length=num_steps)
    value = score_fn(point)
    better = value > best_score
    return jnp.where(better, point, best_point), jnp.where(better, value, best_score)
