"""Protocols of experiments: how agents meet tasks, in segments of a few tasks.

| protocol   | paper                                                                                       |
|------------|---------------------------------------------------------------------------------------------|
| `Lifelong` | section 6.2: one task after another, each played with the prior learned from those before    |
| `Offline`  | section 6.1: learn from m tasks of random data, then play one new task, for every m          |
"""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.envs import AbstractEnv
from jlibo.features import AbstractFeatures
from jlibo.fields import AbstractField, size
from jlibo.front_door import check_fields
from jlibo.lifelong.offline import OfflineResult, run_offline
from jlibo.lifelong.play import LifelongResult, RunSpec, plan_agents, play_tasks, start_agents
from jlibo.meta import AbstractMetaLearner
from jlibo.policies import AbstractPolicy

SEGMENT_TASKS = 7
"""Most tasks in a segment. Segments have equal length, a divisor of the number of tasks."""

_PER_TASK, _PER_STEP = ("agent", "task"), ("agent", "task", "step")
OFFLINE_FIELDS: dict[str, tuple[str, ...]] = {
    "regret": _PER_STEP,
    "support": ("agent", "task", "group"),
    "fell_back": _PER_TASK,
    "status": _PER_TASK,
    "gap": _PER_TASK,
    "num_steps": _PER_TASK,
}
"""The arrays of an `OfflineResult`, and their axes."""


@final
class World(NamedTuple):
    """What the agents of one seed meet."""

    env: AbstractEnv
    features: AbstractFeatures
    policy: AbstractPolicy
    learners: Mapping[str, AbstractMetaLearner]
    key: PRNGKeyArray


class AbstractProtocol(eqx.Module):
    """Base class of protocols. All fields are static."""

    if TYPE_CHECKING:
        num_tasks = AbstractField[int]()
        horizon = AbstractField[int]()
    else:
        num_tasks: eqx.AbstractVar[int]
        horizon: eqx.AbstractVar[int]

    @property
    @abc.abstractmethod
    def fields(self) -> Mapping[str, tuple[str, ...]]:
        """The arrays of a result, and their axes."""

    @property
    @abc.abstractmethod
    def result_type(self) -> type[LifelongResult] | type[OfflineResult]:
        """The class of an agent's result."""

    @property
    @abc.abstractmethod
    def num_segments(self) -> int:
        """Number of segments of a run."""

    @property
    @abc.abstractmethod
    def seeds_at_once(self) -> int:
        """Number of seeds that are computed at a time by default; more need more memory."""

    @abc.abstractmethod
    def start(self, world: World) -> Any:
        """Return the state before the first segment."""

    @abc.abstractmethod
    def advance(
        self, world: World, state: Any, segment: Any
    ) -> tuple[Mapping[str, LifelongResult] | Mapping[str, OfflineResult], Any]:
        """Return the results of the agents in a segment, and the state after it."""

    @abc.abstractmethod
    def bytes_per_step(self, itemsize: int) -> int:
        """Return the bytes that the result of one agent has for each step of a task."""


@final
class Lifelong(AbstractProtocol):
    """One task after another, each played with the prior learned from those before.

    **Arguments:**

    - `num_tasks`: number of tasks.
    - `horizon`: number of steps of each task.
    - `scaling`: the units in which the agents see rewards.
    """

    num_tasks: int = size("num_tasks", 20)
    horizon: int = size("horizon", 100)
    scaling: AbstractScaling = RAW

    def __check_init__(self):
        check_fields(self)

    @property
    def fields(self):
        steps = dict.fromkeys(("actions", "rewards", "explored"), _PER_STEP)
        return {**OFFLINE_FIELDS, **steps, "num_explore": _PER_TASK}

    @property
    def result_type(self):
        return LifelongResult

    @property
    def num_segments(self):
        return self.num_tasks // self._segment_length

    @property
    def seeds_at_once(self):
        return 100

    @property
    def _segment_length(self) -> int:
        return max(n for n in range(1, SEGMENT_TASKS + 1) if self.num_tasks % n == 0)

    def start(self, world):
        return start_agents(world.learners, self._plan(world), self.scaling)

    def advance(self, world, state, segment):
        length, plan = self._segment_length, self._plan(world)
        indices = segment * length + jnp.arange(length, dtype=jnp.int32)
        spec = RunSpec.of(
            world.env, world.features, world.policy, world.learners, plan.sizes, scaling=self.scaling
        )
        counts = jnp.asarray(plan.counts)[indices]
        results = play_tasks(spec, state, indices, counts, key=world.key)
        return results, {name: result.carry for name, result in results.items()}

    def bytes_per_step(self, itemsize):
        # Regret and reward, an action (4 bytes), and whether it was explored (1 byte).
        return 2 * itemsize + 5

    def _plan(self, world: World):
        return plan_agents(
            world.env, world.features, world.learners, num_tasks=self.num_tasks, horizon=self.horizon
        )


@final
class Offline(AbstractProtocol):
    """Learn from m tasks of random data, then play one new task; for every m up to `num_tasks`.

    **Arguments:**

    - `num_tasks`: largest number of offline tasks.
    - `horizon`: number of steps of the new task.
    - `offline_rows`: number of observations of each offline task.
    """

    num_tasks: int = size("num_tasks", 30)
    horizon: int = size("horizon", 70)
    offline_rows: int = size("offline_rows", 10)

    @property
    def fields(self):
        return OFFLINE_FIELDS

    @property
    def result_type(self):
        return OfflineResult

    @property
    def num_segments(self):
        return 1

    @property
    def seeds_at_once(self):
        # All priors, one for each number of tasks, are evaluated at the same time.
        return 20

    def start(self, world):
        return ()

    def advance(self, world, state, segment):
        results = run_offline(
            world.env,
            world.features,
            world.policy,
            world.learners,
            num_tasks=self.num_tasks,
            num_rows=self.offline_rows,
            horizon=self.horizon,
            key=world.key,
        )
        return results, state

    def bytes_per_step(self, itemsize):
        return itemsize
