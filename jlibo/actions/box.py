"""A continuous box as an action set: the features of its points, maximised by multi-start gradient ascent."""

from collections.abc import Callable
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jlibo.actions.base import AbstractActionSet, Action
from jlibo.actions.finite import FiniteActions
from jlibo.features import AbstractFeatures, sample_box
from jlibo.features.base import clip_keeping_gradient
from jlibo.fields import size, static_number
from jlibo.front_door import check_fields

NUM_SAMPLES = 512
"""Number of points that stand for the box in `mean` and `design`."""


class Climbed(NamedTuple):
    """Result of `climb_box`."""

    point: Float[Array, " dim"]
    score: Float[Array, ""]
    start_score: Float[Array, ""]
    """The best score among the candidates."""


@final
class BoxActions(AbstractActionSet):
    """All points of a box, given by a feature map on it.

    `maximise` scores a random sample of the box and follows the gradient from its best points, as
    `jlibo.maximise` does.

    **Arguments:**

    - `feature_map`: the map, whose box is the set.
    - `num_candidates`: size of the sample.
    - `num_starts`: number of points from which gradient ascent starts.
    - `num_steps`: steps of Adam from each of them; with 0 the best point of the sample is returned.
    - `learning_rate`: initial learning rate of Adam, above 0, for a box scaled to the unit cube.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo.actions import BoxActions

    box = BoxActions(jlibo.Cosine(num_features=5))
    action = box.maximise(lambda rows: rows @ jnp.ones(5), key=jax.random.key(0))
    print(action.place)  # a point of the box
    ```
    """

    feature_map: AbstractFeatures
    num_candidates: int = size("num_candidates", 512)
    num_starts: int = size("num_starts", 8)
    num_steps: int = size("num_steps", 60, at_least=0)
    learning_rate: float = static_number("learning_rate", 0.03, above=0)

    def __check_init__(self):
        check_fields(self)

    @property
    def num_features(self) -> int:
        return self.feature_map.num_features

    def uniform(self, *, key):
        return self._at(sample_box(self.feature_map, 1, key=key)[0])

    def isotropic(self, *, key):
        return self.uniform(key=key)

    def best(self, weights):
        # The sample must not depend on the step: the best value of a task is a constant.
        def score(rows):
            return jnp.matmul(rows, weights, precision=lax.Precision.HIGHEST)

        return self.maximise(score, key=jax.random.key(0))

    def maximise(self, score_fn, *, directions=None, key):
        candidates = sample_box(self.feature_map, self.num_candidates, key=key)
        found = climb_box(
            lambda point: score_fn(self.feature_map(point)[None])[0],
            self.feature_map,
            candidates,
            num_starts=min(self.num_starts, self.num_candidates),
            num_steps=self.num_steps,
            learning_rate=jnp.asarray(self.learning_rate, candidates.dtype),
        )
        return self._at(found.point)

    def design(self, basis, step):
        points = self._sample()
        chosen = FiniteActions(self.feature_map(points)).design(basis, step)
        return Action(chosen.features, points[chosen.place])

    def mean(self):
        return self.feature_map(self._sample()).mean(0)

    def _at(self, point) -> Action:
        return Action(self.feature_map(point), point)

    def _sample(self) -> Float[Array, "points dim"]:
        return sample_box(self.feature_map, NUM_SAMPLES, key=jax.random.key(1))


def climb_box(
    score_fn: Callable[[Float[Array, " dim"]], Float[Array, ""]],
    features: AbstractFeatures,
    candidates: Float[Array, "candidates dim"],
    *,
    num_starts: int,
    num_steps: int,
    learning_rate: Float[Array, ""],
) -> Climbed:
    """Return the point of the box of `features` with the highest score, by ascent from the best candidates.

    **Arguments:**

    - `score_fn`: score of one point.
    - `candidates`: initial points.
    - `num_starts`, `num_steps`, `learning_rate`: as in `BoxActions`.
    """
    lower = jnp.asarray(features.lower, candidates.dtype)
    upper = jnp.asarray(features.upper, candidates.dtype)

    def from_unit(unit_point):
        return clip_keeping_gradient(lower + (upper - lower) * unit_point, lower, upper)

    def climb(start, start_score):
        unit_start = jnp.clip((start - lower) / (upper - lower), 0, 1)
        unit_point, value = _climb(
            lambda u: score_fn(from_unit(u)), unit_start, start_score, num_steps, learning_rate
        )
        # If all scores on the path are NaN or not better, keep the start.
        better = value > start_score
        return jnp.where(better, from_unit(unit_point), start), jnp.where(better, value, start_score)

    candidate_scores = lax.map(score_fn, candidates, batch_size=min(256, candidates.shape[0]))
    # A candidate whose score is NaN, for example outside the box, is chosen last.
    candidate_scores = jnp.where(jnp.isnan(candidate_scores), -jnp.inf, candidate_scores)
    start_scores, order = lax.top_k(candidate_scores, num_starts)
    points, scores = jnp.clip(candidates[order], lower, upper), start_scores
    if num_steps > 0:
        points, scores = jax.vmap(climb)(points, scores)
    best = jnp.argmax(scores)
    return Climbed(points[best], scores[best], start_scores[0])


def _climb(score_fn, start, start_score, num_steps, learning_rate):
    """Return the best point on the path of Adam and its score; the start and its score if none is better."""
    import optax  # imported late: it would take a tenth of the time of `import jlibo`, and only boxes need it

    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.01))

    def ascend(carry, _):
        point, state, best_point, best_score = carry
        value, gradient = jax.value_and_grad(score_fn)(point)
        better = value > best_score
        best_point = jnp.where(better, point, best_point)
        best_score = jnp.where(better, value, best_score)
        updates, state = optimiser.update(-jnp.nan_to_num(gradient), state, point)
        point = jnp.clip(point + updates, 0, 1)
        return (point, state, best_point, best_score), None

    carry = (start, optimiser.init(start), start, start_score)
    # One more iteration than steps scores the last point. It costs one gradient and halves the program.
    (_, _, best_point, best_score), _ = lax.scan(ascend, carry, length=num_steps + 1)
    return best_point, best_score
