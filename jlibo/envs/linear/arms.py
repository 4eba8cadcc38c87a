"""Laws of action sets: what can be played in the steps of a task.

| law             | actions                                          | setting of                            |
|-----------------|--------------------------------------------------|---------------------------------------|
| `CandidateArms` | the same finite set in all tasks                 | LiBO, Meta-KeL                        |
| `TaskArms`      | a finite set of each task                        | AdaTS, HierTS                         |
| `FreshArms`     | a finite set of each step                        | Yang 2021, Cella 2021 and 2023, MQB   |
| `BallArms`      | a ball                                           | Yang 2022, BOSS                       |
| `EllipsoidArms` | an ellipsoid of each task                        | Yang 2021                             |
| `BoxArms`       | the features of all points of a box              | LiBO without a list of candidates     |
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.actions.ball import Ball, Ellipsoid
from jlibo.actions.box import BoxActions
from jlibo.actions.finite import FiniteActions
from jlibo.checks import check_count, check_shape
from jlibo.envs.linear.base import AbstractArms
from jlibo.fields import choice, number
from jlibo.front_door import check_fields


@final
class CandidateArms(AbstractArms):
    """The same finite set of actions in all tasks.

    **Arguments:**

    - `features`: features of the actions, `[actions, features]`.

    **Raises:** `ValueError` for a wrong shape.
    """

    features: Float[Array, "actions features"]
    kind: ClassVar[str] = "fixed"

    def __check_init__(self):
        check_fields(self)
        check_shape("features", self.features, ("actions", "features"))

    @property
    def num_features(self) -> int:
        return self.features.shape[-1]

    def draw_arms(self, index, *, key):
        return ()

    def actions(self, arms, *, key):
        return FiniteActions(self.features)


@final
class TaskArms(AbstractArms):
    """A finite set of each task, drawn independently.

    **Arguments:**

    - `num_arms`: number of actions.
    - `num_features`: number of features.
    - `shape`: "sphere" for the unit sphere, "cube" for the cube from -1/2 to 1/2.

    **Raises:** `ValueError` for an argument out of range.
    """

    num_arms: int = eqx.field(static=True)
    num_features: int = eqx.field(static=True)
    shape: str = choice("shape", ("sphere", "cube"))
    kind: ClassVar[str] = "fixed"

    def __check_init__(self):
        _check_sizes(self)

    def draw_arms(self, index, *, key):
        size = (self.num_arms, self.num_features)
        return jax.random.uniform(key, size) - 0.5 if self.shape == "cube" else _on_sphere(key, size)

    def actions(self, arms, *, key):
        return FiniteActions(arms)


@final
class FreshArms(AbstractArms):
    """A finite set of each step, drawn independently: contexts.

    **Arguments:**

    - `num_arms`: number of actions of a step.
    - `num_features`: number of features.
    - `shape`: "gaussian" for normal features with variance 1, "sphere" for the sphere and "ball" for the ball
      of the given radius.
    - `radius`: radius of sphere or ball, above 0.
    - `correlation`: correlation between the features of an action, or between actions, for the shape
      "gaussian"; at least 0 and below 1.
    - `correlated`: what is correlated: "features" or "arms".

    **Raises:** `ValueError` for an argument out of range.
    """

    num_arms: int = eqx.field(static=True)
    num_features: int = eqx.field(static=True)
    shape: str = choice("shape", ("gaussian", "sphere", "ball"))
    radius: Float[Array, ""] = eqx.field(converter=number("radius", above=0), default=1.0)
    correlation: Float[Array, ""] = eqx.field(
        converter=number("correlation", at_least=0, at_most=1), default=0.0
    )
    correlated: str = choice("correlated", ("features", "arms"))
    kind: ClassVar[str] = "fresh"

    def __check_init__(self):
        _check_sizes(self)

    def draw_arms(self, index, *, key):
        return ()

    def actions(self, arms, *, key):
        size = (self.num_arms, self.num_features)
        if self.shape == "gaussian":
            own_key, common_key = jax.random.split(key)
            axis = 1 if self.correlated == "features" else 0
            common = jax.random.normal(common_key, (size[0], 1) if axis == 1 else (1, size[1]))
            own = jax.random.normal(own_key, size)
            return FiniteActions(jnp.sqrt(self.correlation) * common + jnp.sqrt(1 - self.correlation) * own)
        if self.shape == "sphere":
            return FiniteActions(self.radius * _on_sphere(key, size))
        # Dropping two coordinates of a uniform point on a sphere gives a uniform point in the ball.
        return FiniteActions(self.radius * _on_sphere(key, (size[0], size[1] + 2))[:, :-2])


@final
class BallArms(AbstractArms):
    """A ball.

    **Arguments:**

    - `radius`: radius of the ball, above 0.
    - `num_features`: number of features.

    **Raises:** `ValueError` for an argument out of range.
    """

    radius: Float[Array, ""] = eqx.field(converter=number("radius", above=0))
    num_features: int = eqx.field(static=True)
    kind: ClassVar[str] = "continuous"

    def __check_init__(self):
        check_fields(self)
        check_count("num_features", self.num_features)

    def draw_arms(self, index, *, key):
        return ()

    def actions(self, arms, *, key):
        return Ball(self.radius, self.num_features)


@final
class EllipsoidArms(AbstractArms):
    """An ellipsoid of each task, with random axes whose squared half-lengths are between 1 / condition and 1.

    **Arguments:**

    - `condition`: largest condition number of the matrix of the ellipsoid, at least 1.
    - `num_features`: number of features.

    **Raises:** `ValueError` for an argument out of range.
    """

    condition: Float[Array, ""] = eqx.field(converter=number("condition", at_least=1))
    num_features: int = eqx.field(static=True)
    kind: ClassVar[str] = "continuous"

    def __check_init__(self):
        check_fields(self)
        check_count("num_features", self.num_features)

    def draw_arms(self, index, *, key):
        key_axes, key_lengths = jax.random.split(key)
        axes = random_basis(key_axes, self.num_features, self.num_features)
        logs = jax.random.uniform(key_lengths, (self.num_features,)) * jnp.log(self.condition)
        lengths = jnp.exp(-0.5 * logs)
        return Ellipsoid(axes * lengths, lengths.min())

    def actions(self, arms, *, key):
        return arms


@final
class BoxArms(AbstractArms):
    """All points of a box, by their features; maximised by multi-start gradient ascent.

    **Arguments:**

    - `actions_of_box`: the set, `jlibo.actions.BoxActions`.

    ```python
    import jax

    import jlibo
    from jlibo.actions import BoxActions
    from jlibo.envs.linear import BoxArms, KernelWeights, LinearEnv

    features = jlibo.Cosine(num_features=20)
    weights = KernelWeights.draw(features.groups, support_size=3, key=jax.random.key(0))
    env = LinearEnv(weights, BoxArms(BoxActions(features)), noise_std=0.1)
    ```
    """

    actions_of_box: BoxActions
    kind: ClassVar[str] = "continuous"

    def __check_init__(self):
        check_fields(self)

    @property
    def num_features(self) -> int:
        return self.actions_of_box.num_features

    def draw_arms(self, index, *, key):
        return ()

    def actions(self, arms, *, key):
        return self.actions_of_box


def random_basis(key: PRNGKeyArray, num_features: int, rank: int) -> Float[Array, "features rank"]:
    """Return `rank` orthonormal vectors, uniform among all such (Haar).

    Columns are orthogonalised one at a time, twice, with array operations: environments are drawn inside of
    loops, where LAPACK calls of concurrent executions can wait for each other.
    """

    def orthogonalise(step, basis):
        vector = basis[:, step % rank]
        known = jnp.where(jnp.arange(rank) < step % rank, basis, 0)
        share = jnp.matmul(vector, known, precision=lax.Precision.HIGHEST)
        vector = vector - jnp.matmul(known, share, precision=lax.Precision.HIGHEST)
        return basis.at[:, step % rank].set(vector / jnp.sqrt((vector**2).sum()))

    normal = jax.random.normal(key, (num_features, rank))
    return lax.fori_loop(0, 2 * rank, orthogonalise, normal)


def _on_sphere(key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
    normal = jax.random.normal(key, shape)
    return normal / jnp.sqrt((normal**2).sum(-1, keepdims=True))


def _check_sizes(arms) -> None:
    check_fields(arms)
    check_count("num_arms", arms.num_arms)
    check_count("num_features", arms.num_features)
