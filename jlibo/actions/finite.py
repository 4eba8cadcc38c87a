"""A finite set of actions, given by their features."""

from typing import final

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.actions.base import AbstractActionSet, Action
from jlibo.checks import check_shape
from jlibo.front_door import check_fields
from jlibo.solver.newton import inverse_of

DESIGN_STEPS = 40
"""Steps of the Frank-Wolfe method for the optimal design."""
GOLDEN = 0.6180339887498949
"""Multiples of it, modulo one, are spread evenly over the unit interval, however many are taken."""


@final
class FiniteActions(AbstractActionSet):
    """Set of finitely many actions.

    **Arguments:**

    - `features`: features of the actions, `[actions, features]`.

    **Raises:** `ValueError` for a wrong shape.

    ```python
    import jax.numpy as jnp

    from jlibo.actions import FiniteActions

    actions = FiniteActions(jnp.asarray([[1.0, 0.0], [0.0, 1.0]]))
    print(actions.best(jnp.asarray([0.3, 0.7])).place)  # 1
    ```
    """

    features: Float[Array, "actions features"]

    def __check_init__(self):
        check_fields(self)
        if jnp.ndim(self.features) < 2:  # a batch of sets has more axes
            check_shape("features", self.features, ("actions", "features"))

    @property
    def num_features(self) -> int:
        return self.features.shape[-1]

    def uniform(self, *, key):
        count = self.features.shape[0]
        place = (jax.random.uniform(key, dtype=self.features.dtype) * count).astype(jnp.int32)
        return self.at(jnp.minimum(place, count - 1))

    def isotropic(self, *, key):
        return self.uniform(key=key)

    def best(self, weights):
        return self.at(jnp.argmax(jnp.matmul(self.features, weights, precision=lax.Precision.HIGHEST)))

    def maximise(self, score_fn, *, directions=None, key):
        return self.at(jnp.argmax(score_fn(self.features)))

    def design(self, basis, step):
        rows = jnp.matmul(self.features, basis, precision=lax.Precision.HIGHEST)
        sums = jnp.cumsum(optimal_design(rows))
        # Systematic sampling: after n steps, action k was played about n * weight_k times.
        level = jnp.mod((step + 1) * jnp.asarray(GOLDEN, rows.dtype), 1) * sums[-1]
        return self.at(jnp.minimum((sums <= level).sum(), self.features.shape[0] - 1))

    def mean(self):
        return self.features.mean(0)

    def at(self, place: Int[Array, ""]) -> Action:
        """Return the action number `place`."""
        return Action(self.features[place], jnp.asarray(place, jnp.int32))


def optimal_design(rows: Float[Array, "actions rank"]) -> Float[Array, " actions"]:
    """Return weights that sum to one and nearly maximise `log det(sum_k weight_k row_k row_k^T)`.

    This is the D-optimal design, found by the Frank-Wolfe method with its closed-form step. By the theorem of
    Kiefer and Wolfowitz it minimises the largest variance of a least-squares estimate over all actions.
    """
    count, rank = rows.shape
    dtype = rows.dtype
    # With a small multiple of the identity, the inverse exists if the rows do not span the space.
    ridge = jnp.maximum((rows**2).sum(-1).max(), jnp.finfo(dtype).tiny) * jnp.finfo(dtype).eps ** 0.5
    weights = jnp.full(count, 1 / count, dtype)
    moment = jnp.matmul(rows.T * weights, rows, precision=lax.Precision.HIGHEST)
    moment = moment + ridge * jnp.eye(rank, dtype=dtype)

    def improve(_, carry):
        weights, moment = carry
        inverse = inverse_of(moment[None])[0]
        leverage = ((jnp.matmul(rows, inverse, precision=lax.Precision.HIGHEST)) * rows).sum(-1)
        place = jnp.argmax(leverage)
        most = leverage[place]
        size = jnp.where(most > rank, (most / rank - 1) / jnp.maximum(most - 1, 1e-6), 0)
        size = jnp.clip(size, 0, 1 - 1e-3)
        weights = (1 - size) * weights.at[place].add(size / (1 - size))
        moment = (1 - size) * moment + size * jnp.outer(rows[place], rows[place])
        return weights, moment

    return lax.fori_loop(0, DESIGN_STEPS, improve, (weights, moment))[0]
