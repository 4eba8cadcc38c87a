"""Linear environments: the reward of an action with features x in task s is x . theta_s plus noise.

| here        | what it is                                                                                   |
|-------------|----------------------------------------------------------------------------------------------|
| `weights`   | the law of theta_s: what the tasks share, and how they differ                                |
| `arms`      | the law of action sets: fixed candidates, fresh contexts in every step, a ball, a box        |

Weights, action sets and noise depend on the key of the run, the task and the step only, not on the method, so
that all methods face the same draws.
"""

import abc
from typing import TYPE_CHECKING, Any, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jlibo.actions.base import AbstractActionSet
from jlibo.checks import fail
from jlibo.envs.linear.facts import Facts
from jlibo.fields import AbstractField, number
from jlibo.front_door import check_fields

ArmKind = Literal["fixed", "fresh", "continuous"]


class AbstractWeights(eqx.Module):
    """A law of the weights of tasks. Implement `draw_weights`, `groups` and `facts`."""

    if TYPE_CHECKING:
        groups = AbstractField[tuple[int, ...]]()
    else:
        groups: eqx.AbstractVar[tuple[int, ...]]
        """Group of each feature."""

    @abc.abstractmethod
    def draw_weights(self, index: Int[Array, ""], *, key: PRNGKeyArray) -> Float[Array, " features"]:
        """Return the weights of task number `index`, counted from 0. `key` is the task's own."""

    @property
    @abc.abstractmethod
    def facts(self) -> Facts:
        """All facts about the law; see `Facts`."""


class AbstractArms(eqx.Module):
    """A law of action sets. Implement `draw_arms` and `actions`, and declare `kind` and `num_features`."""

    if TYPE_CHECKING:
        kind = AbstractField[ArmKind]()
        num_features = AbstractField[int]()
    else:
        kind: eqx.AbstractVar[ArmKind]
        """"fixed": finitely many actions, the same in all steps of a task. "fresh": finitely many, new ones
        in every step. "continuous": infinitely many, the same in all steps of a task."""
        num_features: eqx.AbstractVar[int]
        """Number of features of an action."""

    @abc.abstractmethod
    def draw_arms(self, index: Int[Array, ""], *, key: PRNGKeyArray) -> Any:
        """Return what the action sets of task number `index` share: any pytree of arrays."""

    @abc.abstractmethod
    def actions(self, arms: Any, *, key: PRNGKeyArray) -> AbstractActionSet:
        """Return the action set of a step of the task with these `arms`. `key` is the step's own."""


@final
class LinearTask(eqx.Module):
    """One task of a linear environment; made by `LinearEnv.task`."""

    weights: Float[Array, " features"]
    """theta_s, hidden from the agent."""
    arms: Any
    """What the action sets of the task share."""


@final
class LinearEnv(eqx.Module):
    """Environment with linear rewards over any action set.

    **Arguments:**

    - `weights`: the law of the weights of tasks.
    - `arms`: the law of the action sets.
    - `noise_std`: standard deviation of the noise added to rewards, at least 0.

    **Raises:** `ValueError` if the two laws have different numbers of features.

    ```python
    import jax

    from jlibo.envs.linear import BallArms, LinearEnv, LowRankWeights

    weights = LowRankWeights.draw(num_features=6, rank=2, key=jax.random.key(0))
    env = LinearEnv(weights, BallArms(1.0, 6), noise_std=1.0)
    task = env.task(0, key=jax.random.key(1))
    best = env.actions(task, key=jax.random.key(2)).best(task.weights)
    ```
    """

    weights: AbstractWeights
    arms: AbstractArms
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", at_least=0))

    def __check_init__(self):
        check_fields(self)
        if len(self.weights.groups) != self.arms.num_features:
            fail("arms", f"of {len(self.weights.groups)} features, as the weights", self.arms.num_features)

    @property
    def groups(self) -> tuple[int, ...]:
        """Group of each feature."""
        return self.weights.groups

    @property
    def num_features(self) -> int:
        """Number of features of an action."""
        return self.arms.num_features

    @property
    def facts(self) -> Facts:
        """All that a method could be told about the environment."""
        return eqx.tree_at(
            lambda facts: facts.noise_std,
            self.weights.facts,
            self.noise_std,
            is_leaf=lambda leaf: leaf is None,
        )

    def task(self, index: Int[Array, ""], *, key: PRNGKeyArray) -> LinearTask:
        """Return task number `index`, counted from 0. `key` is the task's own."""
        weights = self.weights.draw_weights(index, key=key)
        return LinearTask(weights, self.arms.draw_arms(index, key=jax.random.fold_in(key, 1)))

    def actions(self, task: LinearTask, *, key: PRNGKeyArray) -> AbstractActionSet:
        """Return the action set of a step. `key` is the step's own; only fresh arms use it."""
        return self.arms.actions(task.arms, key=key)


def value_of(features: Float[Array, "*points features"], weights: Float[Array, " features"]) -> Array:
    """Return the expected rewards of actions given by their features."""
    return jnp.matmul(features, weights, precision=lax.Precision.HIGHEST)


def one_group_each(num_features: int) -> tuple[int, ...]:
    """Return groups of one feature each."""
    return tuple(range(num_features))
