"""The unit ball and the ellipsoid as action sets.

A linear function has its maximum on such a set in closed form. Any other score is maximised by repeating it:
`x <- best(gradient of the score at x)`. A convex score lies above its tangents, so no step can make it worse.
The upper confidence bound `x . mean + width |x|_covariance` is convex, and its step is
`best(mean + width covariance x / |x|_covariance)`. A linear score is maximised by one step.

| here      | original (Yang et al. 2021)                                                      |
|-----------|----------------------------------------------------------------------------------|
| `factor`  | a square root of Q_s, in {x : x^T Q_s^-1 x <= 1}                                 |
| `inner`   | lambda_0, the radius of the largest inscribed ball                               |
"""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.actions.base import AbstractActionSet, Action, ScoreFn
from jlibo.checks import check_finite, check_shape, fail
from jlibo.fields import number
from jlibo.front_door import check_fields, front_door

ASCENT_STEPS = 20
"""Steps of `ascend` from every start."""


@final
class Ball(AbstractActionSet):
    """The ball of all points of at most a given norm.

    **Arguments:**

    - `radius`: radius of the ball, above 0.
    - `num_features`: dimension of the ball.

    **Raises:** `ValueError` for an argument out of range.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.actions import Ball, upper_confidence

    ball = Ball(1.0, 3)
    action = upper_confidence(ball, jnp.ones(3), jnp.eye(3), 2.0, key=jax.random.key(0))
    ```
    """

    radius: Float[Array, ""] = eqx.field(converter=number("radius", above=0))
    num_features: int = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self)

    def uniform(self, *, key):
        return _on(self.radius * _direction(key, self.num_features))

    def isotropic(self, *, key):
        return self.uniform(key=key)

    def best(self, weights):
        return _on(self.radius * _unit(weights))

    def maximise(self, score_fn, *, directions=None, key):
        return _on(ascend(lambda weights: self.best(weights).features, score_fn, directions, self, key=key))

    def design(self, basis, step):
        return _on(self.radius * basis[:, step % basis.shape[1]])

    def mean(self):
        return jnp.zeros(self.num_features)


@final
class Ellipsoid(AbstractActionSet):
    """The image of the unit ball under a matrix: {x : x^T Q^-1 x <= 1} for Q = factor factor^T.

    **Arguments:**

    - `factor`: the matrix, `[features, features]`, invertible.
    - `inner`: radius of the largest inscribed ball, the smallest singular value of `factor`.

    ```python
    import jax.numpy as jnp

    from jlibo.actions import Ellipsoid

    ellipsoid = Ellipsoid.of(jnp.diag(jnp.asarray([4.0, 1.0])))
    print(ellipsoid.best(jnp.asarray([1.0, 0.0])).features)  # [2. 0.]
    ```
    """

    factor: Float[Array, "features features"]
    inner: Float[Array, ""] = eqx.field(converter=number("inner", above=0))

    def __check_init__(self):
        check_fields(self)

    @classmethod
    @front_door
    def of(cls, shape: Float[Array, "features features"]) -> "Ellipsoid":
        """Return the ellipsoid {x : x^T Q^-1 x <= 1} of a matrix Q = `shape` that is not traced.

        **Raises:** `ValueError` if `shape` is not a symmetric positive definite matrix.
        """
        check_shape("shape", shape, ("features", np.shape(shape)[0] if np.ndim(shape) else "features"))
        check_finite("shape", shape)
        matrix = np.asarray(shape)
        values = np.linalg.eigvalsh(matrix)
        if not np.allclose(matrix, matrix.T, atol=1e-5 * np.abs(matrix).max()) or values[0] <= 0:
            fail("shape", "a symmetric positive definite matrix", f"a smallest eigenvalue of {values[0]:.3g}")
        return cls(jnp.asarray(np.linalg.cholesky(matrix)), jnp.asarray(values[0] ** 0.5))

    @property
    def num_features(self) -> int:
        return self.factor.shape[-1]

    def uniform(self, *, key):
        direction = _direction(key, self.num_features).astype(self.factor.dtype)
        return _on(jnp.matmul(self.factor, direction, precision=lax.Precision.HIGHEST))

    def isotropic(self, *, key):
        return _on(self.inner * _direction(key, self.num_features).astype(self.factor.dtype))

    def best(self, weights):
        inside = _unit(jnp.matmul(weights, self.factor, precision=lax.Precision.HIGHEST))
        return _on(jnp.matmul(self.factor, inside, precision=lax.Precision.HIGHEST))

    def maximise(self, score_fn, *, directions=None, key):
        return _on(ascend(lambda weights: self.best(weights).features, score_fn, directions, self, key=key))

    def design(self, basis, step):
        return _on(self.inner * basis[:, step % basis.shape[1]])

    def mean(self):
        return jnp.zeros(self.num_features, self.factor.dtype)


def ascend(
    best_fn: Callable[[Float[Array, " features"]], Float[Array, " features"]],
    score_fn: ScoreFn,
    directions: Float[Array, "directions features"] | None,
    actions: AbstractActionSet,
    *,
    key: PRNGKeyArray,
) -> Float[Array, " features"]:
    """Return the point with the highest score on paths of linear maximisation; see the module.

    **Arguments:**

    - `best_fn`: the maximiser of a linear function on the set.
    - `score_fn`: scores of points; its gradient is followed.
    - `directions`: starts are the maximisers in these directions, and one random action.
    - `actions`: the set, for the random start.
    """

    def score(point):
        return score_fn(point[None])[0]

    def climb(start):
        def step(carry, _):
            point, best, highest = carry
            value, gradient = jax.value_and_grad(score)(point)
            better = value > highest
            best, highest = jnp.where(better, point, best), jnp.where(better, value, highest)
            return (best_fn(jnp.nan_to_num(gradient)), best, highest), None

        # One more iteration than steps scores the last point.
        (_, best, highest), _ = lax.scan(step, (start, start, score(start)), length=ASCENT_STEPS + 1)
        return best, highest

    # The random start comes first: among equal scores it is chosen.
    starts = actions.uniform(key=key).features[None]
    if directions is not None:
        starts = jnp.concatenate([starts.astype(directions.dtype), jax.vmap(best_fn)(directions)])
    points, scores = jax.vmap(climb)(starts)
    return points[jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))]


def _on(point: Float[Array, " features"]) -> Action:
    return Action(point, point)


def _direction(key: PRNGKeyArray, num_features: int) -> Float[Array, " features"]:
    return _unit(jax.random.normal(key, (num_features,)))


def _unit(vector: Float[Array, " features"]) -> Float[Array, " features"]:
    """Return the vector with norm one; the first axis if it is zero."""
    largest = jnp.abs(vector).max()
    # Scaled first, so that no square underflows.
    scaled = vector / jnp.where(largest > 0, largest, 1)
    first = jnp.zeros_like(vector).at[0].set(1)
    scaled = jnp.where(largest > 0, scaled, first)
    return scaled / jnp.sqrt((scaled**2).sum())
