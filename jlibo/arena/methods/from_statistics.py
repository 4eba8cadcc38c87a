"""Meta-learners whose prior is a function of the sufficient statistics of the finished tasks.

A subclass implements `fit`, a function of arrays. Sequential runs (`update`), histories (`learn`) and tests
call the same function.
"""

import abc
import math
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jlibo.arena.estimators import Gaussian, TaskStatistics, statistics_of
from jlibo.belief.prior import Prior
from jlibo.meta.base import AbstractMetaLearner, MetaInfo, RunSizes, TaskData, info_of
from jlibo.meta.past import PastTasks
from jlibo.meta.rows import seen_rows


@final
class StatisticsState(eqx.Module):
    """State of a learner from statistics."""

    stats: TaskStatistics
    """Statistics of all tasks of the run; zero for those that are not finished."""
    num_done: Int[Array, ""]
    prior: Prior
    """The prior of the next task."""


class AbstractStatisticsLearner(AbstractMetaLearner):
    """Base class of meta-learners from statistics; see `AbstractMetaLearner`. A subclass implements `fit`.

    ```python
    from typing import ClassVar

    import jlibo
    from jlibo.arena.estimators import task_moments
    from jlibo.arena.methods import AbstractStatisticsLearner

    class MeanOfTasks(AbstractStatisticsLearner):
        noise_std: float = 0.1
        exploration: jlibo.AbstractExploration = jlibo.NoExploration()
        data: ClassVar[str] = "all"

        def fit(self, stats, sizes):
            prior = jlibo.full_prior(sizes.groups, sizes.dtype)
            return jlibo.Prior(task_moments(stats, self.noise_std**2).mean, prior.covariance)
    ```
    """

    @abc.abstractmethod
    def fit(self, stats: TaskStatistics, sizes: RunSizes) -> Prior:
        """Return the prior of the next task, with a matrix as covariance.

        **Arguments:**

        - `stats`: the statistics of all tasks of the run; zero for those that are not finished, and for all
          before the first task has ended.
        - `sizes`: sizes of the run.
        """

    def init(self, sizes: RunSizes) -> StatisticsState:
        stats = TaskStatistics.empty(sizes.num_tasks, sizes.num_features, sizes.dtype)
        return self._state(stats, jnp.zeros((), jnp.int32), sizes)

    def prior(self, state: StatisticsState, sizes: RunSizes) -> Prior:
        return state.prior

    def update(
        self, state: StatisticsState, data: TaskData, sizes: RunSizes
    ) -> tuple[StatisticsState, MetaInfo]:
        new = statistics_of(*seen_rows(data, self.data, sizes))
        stats = jax.tree.map(
            lambda all, one: all.at[state.num_done].set(one.astype(all.dtype)), state.stats, new
        )
        return self._state(stats, state.num_done + 1, sizes), no_selection(sizes)

    def learn(
        self, past: PastTasks, num_done: Int[Array, ""], sizes: RunSizes
    ) -> tuple[StatisticsState, MetaInfo]:
        return self._state(statistics_of_past(past), num_done, sizes), no_selection(sizes)

    def _state(self, stats: TaskStatistics, num_done: Any, sizes: RunSizes) -> StatisticsState:
        prior = jax.tree.map(lambda leaf: leaf.astype(sizes.dtype), self.fit(stats, sizes))
        return StatisticsState(stats, num_done, prior)


def no_selection(sizes: RunSizes) -> MetaInfo:
    """Return the report of a learner that selects no groups: all stay in use."""
    return info_of(jnp.ones(sizes.num_groups, bool), None, sizes)


def statistics_of_past(past: PastTasks) -> TaskStatistics:
    """Return the statistics of stored tasks. Compressed rows have the same normal equations."""
    stats = statistics_of(past.features, past.targets)
    squares = stats.squares + past.lost_products[:, 0, 0]
    done = TaskStatistics(stats.gram, stats.moment, squares, past.num_observations)
    return done.only(past.is_done > 0)


def wide_belief(norm: Float[Array, ""], sizes: RunSizes) -> Gaussian:
    """Return N(0, norm^2 / d I): the expected square of the norm of the weights is norm^2."""
    size = sizes.num_features
    scale = jnp.asarray(norm, sizes.dtype) / math.sqrt(size)
    return Gaussian(jnp.zeros(size, sizes.dtype), scale * jnp.eye(size, dtype=sizes.dtype))
