"""Maximise a policy's scores over a continuous box: multi-start projected gradient ascent."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.actions.box import climb_box
from jlibo.belief.posterior import Posterior, belief_at
from jlibo.checks import check_count, check_finite, check_range, check_shape, fail, is_concrete
from jlibo.features import AbstractFeatures, sample_box
from jlibo.front_door import front_door
from jlibo.policies.base import AbstractPolicy


@final
class BoxMaximum(eqx.Module):
    """Result of `maximise`; see there for an example."""

    point: Float[Array, " dim"]
    """The best point found."""
    score: Float[Array, ""]
    """The score of `point`."""
    start_score: Float[Array, ""]
    """The best score among the initial candidates."""


@front_door
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
    """Return the point of the box with the highest score, by gradient ascent from the best candidates.

    All candidates are scored. Adam then maximises the scores from the `num_starts` best candidates, in
    coordinates scaled to the box. Each path keeps its best point, so the result is never worse than the best
    candidate.

    **Arguments:**

    - `policy`: computes the scores.
    - `posterior`: the posterior over the weights of `features`.
    - `features`: the map whose box is searched.
    - `candidates`: initial points in the box, of shape `[candidates, dim]`; by default a uniform sample.
    - `num_candidates`: size of that sample.
    - `num_starts`: number of candidates from which gradient ascent starts.
    - `num_steps`: steps of Adam; with 0 the best candidate is returned.
    - `learning_rate`: initial learning rate of Adam, above 0.

    **Returns:** a `BoxMaximum`.

    **Raises:** `ValueError` for an invalid argument, for features that do not match the posterior, or if a
    candidate is not in the box.

    ```python
    import jax
    import jlibo

    features = jlibo.Cosine(10)
    policy = jlibo.GPUCB(nu=2.0, noise_std=0.1)
    posterior = jlibo.posterior.init(jlibo.full_prior(features.groups), policy.noise_std)
    posterior = jlibo.posterior.observe(posterior, features([0.3]), 1.0)
    print(jlibo.maximise(policy, posterior, features, key=jax.random.key(0)).point)
    ```
    """
    check_count("num_candidates", num_candidates)
    check_count("num_starts", num_starts)
    check_count("num_steps", num_steps, at_least=0)
    check_finite("learning_rate", learning_rate)
    check_range("learning_rate", learning_rate, above=0)
    num_features = posterior.mean.shape[0]
    if features.num_features != num_features:
        fail("features", f"a map to the posterior's {num_features} features", f"{features.num_features}")
    key_order, key_scores = jax.random.split(key)
    if candidates is None:
        candidates = sample_box(features, num_candidates, key=key_order)
    else:
        check_shape("candidates", candidates, ("candidates", features.dim))
        candidates = jnp.asarray(candidates)
        _check_inside(candidates, features)
        # Ties are broken by order: shuffle, so that they do not always favour the same candidate.
        candidates = jax.random.permutation(key_order, candidates)
    candidates = candidates.astype(posterior.mean.dtype)
    rate = jnp.asarray(learning_rate, candidates.dtype)
    num_starts = min(num_starts, candidates.shape[0])
    return _maximise(
        policy,
        posterior,
        features,
        candidates,
        num_starts=num_starts,
        num_steps=num_steps,
        learning_rate=rate,
        key=key_scores,
    )


@eqx.filter_jit
def _maximise(policy, posterior, features, candidates, *, num_starts, num_steps, learning_rate, key):
    # Jitted, because a loop outside of `jit` is recompiled at every call.
    def score(point):
        belief = belief_at(posterior, features(point)[None])
        # The same key for all points: a policy that samples a function must sample the same one.
        scores = policy.scores(belief, key=key)
        check_shape("scores", scores, (1,))
        return scores[0]

    found = climb_box(
        score, features, candidates, num_starts=num_starts, num_steps=num_steps, learning_rate=learning_rate
    )
    return BoxMaximum(found.point, found.score, found.start_score)


def _check_inside(candidates, features):
    if candidates.shape[0] == 0:
        fail("candidates", "at least one point", "none")
    if not is_concrete(candidates):
        return
    check_finite("candidates", candidates)
    low, high = np.asarray(features.lower), np.asarray(features.upper)
    slack = 1e-6 * np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))  # float32 round-off
    points = np.asarray(candidates)
    bad = ~((points >= low - slack) & (points <= high + slack)).all(axis=1)
    if bad.any():
        fail("candidates", f"in the box {features.lower} to {features.upper}", points[bad][0].tolist())
