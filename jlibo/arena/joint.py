"""The contract of joint learners: methods that see the data of all tasks at every step.

A meta-learner (`jlibo.AbstractMetaLearner`) learns from finished tasks. A joint learner may also learn within
a task, play several tasks at once, explore in its own way, and see the whole action set. The driver
(`jlibo.arena.rounds`) owns the statistics of all tasks and updates them:

    for every round:
        if the round is a tick: state = learner.refresh(state, statistics, number, sizes)
        choice = learner.choose(state, statistics, turn, sizes)
        statistics = statistics of the rewards of the choice
        state = learner.observe(state, turn, choice, rewards, sizes)
"""

import abc
from typing import Any, final

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.actions import AbstractActionSet, Action
from jlibo.arena.estimators import TaskStatistics
from jlibo.arena.schedule import Schedule
from jlibo.meta.base import RunSizes


@final
class Turn(eqx.Module):
    """What a joint learner sees of a round. All leaves but `number` have a leading axis of lanes."""

    number: Int[Array, ""]
    """Number of the round, counted from 0."""
    tasks: Int[Array, " lanes"]
    """Number of each lane's task; 0 for an empty lane."""
    steps: Int[Array, " lanes"]
    """How often the task was played before."""
    present: Bool[Array, " lanes"]
    """Which lanes play. The driver ignores what the others do; `observe` must ignore them too."""
    actions: AbstractActionSet
    """The action set of each lane."""
    exploration: Action
    """A uniform draw from the set of each lane, the same for all methods."""
    keys: PRNGKeyArray
    """A key for each lane, the same for all methods."""


@final
class Choice(eqx.Module):
    """The actions of a round."""

    actions: Action
    """The action of each lane."""
    explored: Bool[Array, " lanes"]
    """Whether it was forced exploration."""
    notes: Any = None
    """What `observe` needs to know about the choice, such as its probability."""


class AbstractJointLearner(eqx.Module):
    """Base class of methods that see the data of all tasks at every step; see the module.

    The state is any pytree of arrays whose shapes depend on the `RunSizes` only. All methods but `ticks` must
    be jittable, and free of LAPACK calls.

    ```python
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jlibo.arena import AbstractJointLearner, Choice
    from jlibo.arena.estimators import Gaussian, condition

    class GreedyRidge(AbstractJointLearner):
        def ticks(self, schedule):
            return np.zeros(schedule.num_rounds, bool)

        def init(self, sizes):
            return ()

        def refresh(self, state, statistics, number, sizes):
            return state

        def choose(self, state, statistics, turn, sizes):
            prior = Gaussian(jnp.zeros(sizes.num_features), jnp.eye(sizes.num_features))

            def one(task, actions):
                belief = condition(prior, statistics.gram[task], statistics.moment[task], 1.0)
                return actions.best(belief.mean)

            return Choice(jax.vmap(one)(turn.tasks, turn.actions), jnp.zeros_like(turn.present))

        def observe(self, state, turn, choice, rewards, sizes):
            return state
    ```
    """

    @abc.abstractmethod
    def ticks(self, schedule: Schedule) -> np.ndarray:
        """Return the rounds before which `refresh` runs, as booleans `[rounds]`. Runs on the host."""

    @abc.abstractmethod
    def init(self, sizes: RunSizes) -> Any:
        """Return the state before the first round."""

    @abc.abstractmethod
    def refresh(self, state: Any, statistics: TaskStatistics, number: Int[Array, ""], sizes: RunSizes) -> Any:
        """Return the state after learning from the statistics of all tasks.

        **Arguments:**

        - `state`: the state before.
        - `statistics`: statistics of all tasks.
        - `number`: number of the round that follows.
        - `sizes`: sizes of the run.
        """

    @abc.abstractmethod
    def choose(self, state: Any, statistics: TaskStatistics, turn: Turn, sizes: RunSizes) -> Choice:
        """Return the actions of all lanes of a round."""

    @abc.abstractmethod
    def observe(
        self, state: Any, turn: Turn, choice: Choice, rewards: Float[Array, " lanes"], sizes: RunSizes
    ) -> Any:
        """Return the state after the rewards of a round, beside the statistics, which the driver updates."""
