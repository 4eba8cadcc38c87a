"""The contract of action sets: what a bandit method asks of the set of actions of one step.

| here         | rewards of an action with features x are x . theta plus noise                               |
|--------------|---------------------------------------------------------------------------------------------|
| `uniform`    | forced exploration                                                                          |
| `isotropic`  | exploration whose second moment is a multiple of the identity, where the set allows it      |
| `best`       | argmax of x . weights: greedy play, Thompson sampling, and the best value of a task         |
| `maximise`   | argmax of any score, such as an upper confidence bound                                      |
| `design`     | exploration of a subspace                                                                   |
| `mean`       | the mean of the set                                                                         |

A set is a pytree, so that a batch of sets has a leading axis on its leaves.
"""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jlibo.fields import AbstractField

ScoreFn = Callable[[Float[Array, "points features"]], Float[Array, " points"]]
"""Scores of points, given by their features. The score of a point must not depend on the other points."""


@final
class Action(eqx.Module):
    """One action of a set.

    ```python
    import jax.numpy as jnp

    from jlibo.actions import Ball

    print(Ball(jnp.ones(()), 2).best(jnp.asarray([3.0, 4.0])).features)  # [0.6 0.8]
    ```
    """

    features: Float[Array, " features"]
    """Features of the action; its expected reward is their product with the weights of the task."""
    place: Array
    """Where the action is in its set: the index in a finite set, the point of a box, else the features."""


class AbstractActionSet(eqx.Module):
    """A set of actions. All methods must be jittable, and free of LAPACK calls, as loops call them."""

    if TYPE_CHECKING:
        num_features = AbstractField[int]()
    else:
        num_features: eqx.AbstractVar[int]
        """Number of features of an action."""

    @abc.abstractmethod
    def uniform(self, *, key: PRNGKeyArray) -> Action:
        """Return a random action: uniform in a finite set and in a box, on the boundary of a ball."""

    @abc.abstractmethod
    def isotropic(self, *, key: PRNGKeyArray) -> Action:
        """Return a random action that is uniform on the largest inscribed sphere, if there is one.

        For other sets it is `uniform`.
        """

    @abc.abstractmethod
    def best(self, weights: Float[Array, " features"]) -> Action:
        """Return the action with the largest product of features and weights."""

    @abc.abstractmethod
    def maximise(
        self,
        score_fn: ScoreFn,
        *,
        directions: Float[Array, "directions features"] | None = None,
        key: PRNGKeyArray,
    ) -> Action:
        """Return the action with the highest score.

        Exact in finite sets. In other sets it is the best action that ascent finds.

        **Arguments:**

        - `score_fn`: scores of points; differentiable, unless the set is finite.
        - `directions`: directions in which to begin the search, beside a random start. Finite sets ignore it.
        - `key`: random key of the random starts.
        """

    @abc.abstractmethod
    def design(self, basis: Float[Array, "features rank"], step: Int[Array, ""]) -> Action:
        """Return the action of step number `step` of an exploration of the subspace that `basis` spans.

        After a few times `rank` steps, every direction of the subspace is well explored.
        """

    @abc.abstractmethod
    def mean(self) -> Float[Array, " features"]:
        """Return the mean of the features over the set."""
