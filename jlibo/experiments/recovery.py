"""The protocol of recovery experiments: learn from uniform rows, for several numbers of rows and kernels.

| here                | paper                                                                             |
|---------------------|-----------------------------------------------------------------------------------|
| `Recovery`          | Meta-KGL on D_{1:s} of uniform rows, for s = 1, ..., m (Theorem 3.3)              |
| `Sized.num_rows`    | n, the rows of a task that an agent sees                                          |
| `Sized.num_kernels` | p, the base kernels that an agent knows                                           |

All agents of a seed see the same tasks: one with fewer rows sees the first of them, one with fewer kernels
the first of those. No task is played, so thousands of kernels are cheap. The regret of an agent is that of
one action: the candidate with the highest posterior mean on a new task, after as many uniform rows.
"""

from collections.abc import Mapping
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, PriorMixture
from jlibo.envs import AbstractEnv, Task
from jlibo.experiments.protocols import OFFLINE_FIELDS, AbstractProtocol, World
from jlibo.experiments.spec import SettingError
from jlibo.features import AbstractFeatures
from jlibo.fields import size
from jlibo.front_door import check_fields
from jlibo.lifelong.offline import OfflineResult
from jlibo.lifelong.one_task import draw_task
from jlibo.meta import AbstractMetaLearner, RunSizes, TaskData


@final
class Sized(eqx.Module):
    """A meta-learner that sees the first rows of each task and knows the first base kernels only.

    **Arguments:**

    - `learner`: the meta-learner.
    - `num_rows`: rows of each task that it sees.
    - `num_kernels`: base kernels that it knows; None means all.
    """

    learner: AbstractMetaLearner
    num_rows: int = eqx.field(static=True)
    num_kernels: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_fields(self)


@final
class Recovery(AbstractProtocol):
    """Learn from uniform rows of up to `num_tasks` tasks; the agents are `Sized` meta-learners.

    **Arguments:**

    - `num_tasks`: largest number of tasks.
    - `offline_rows`: rows that are drawn of each task, at least those that any agent sees.
    """

    num_tasks: int = size("num_tasks", 10)
    offline_rows: int = size("offline_rows", 64)

    @property
    def horizon(self) -> int:
        """One action is played."""
        return 1

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
        return 4

    def start(self, world):
        return ()

    def advance(self, world: World, state, segment):
        learners: Mapping[str, Any] = world.learners
        candidate_features = world.features(world.env.candidates)

        def draw(index):
            draws = draw_task(world.env, index, self.offline_rows, key=world.key)
            rewards = draws.task.values[draws.exploration] + draws.noise
            return candidate_features[draws.exploration], rewards, draws.task

        # All tasks at once, the last of them to test on; the agents see parts of the same rows.
        rows, rewards, tasks = jax.vmap(draw)(jnp.arange(self.num_tasks + 1))
        test = jax.tree.map(lambda leaf: leaf[-1], tasks)
        seen = TaskData(rows, rewards, jnp.ones(rewards.shape, bool))
        results = {
            name: self._run(world, sized, seen, test, candidate_features) for name, sized in learners.items()
        }
        return results, state

    def bytes_per_step(self, itemsize):
        return itemsize

    def _run(
        self,
        world: World,
        sized: Sized,
        seen: TaskData,
        test: Task,
        candidate_features: Float[Array, "candidates features"],
    ) -> OfflineResult:
        features, learner = world.features, sized.learner
        if sized.num_rows > self.offline_rows:
            raise SettingError(
                f"'offline_rows' should be at least {sized.num_rows}, the rows of an agent, "
                f"but got {self.offline_rows}."
            )
        known = _known(features, sized.num_kernels)
        groups = tuple(np.asarray(features.groups)[known].tolist())
        num_rows = sized.num_rows
        sizes = RunSizes(groups, self.num_tasks, num_rows, num_rows, candidate_features.dtype)
        own = TaskData(
            seen.features[:, :num_rows, known], seen.rewards[:, :num_rows], seen.explored[:, :num_rows]
        )

        def learn(learner_state, data):
            learner_state, info = learner.update(learner_state, data, sizes)
            return learner_state, (learner.prior(learner_state, sizes), info)

        past, last = jax.tree.map(lambda leaf: leaf[:-1], own), jax.tree.map(lambda leaf: leaf[-1], own)
        _, (priors, infos) = lax.scan(learn, learner.init(sizes), past)

        def guess(prior):
            mean = _posterior_mean(prior, last, candidate_features[:, known], world.policy.noise_std)
            return (test.best_value - test.values[jnp.argmax(mean)])[None]

        unknown = jnp.zeros((self.num_tasks, features.num_groups - sizes.num_groups), bool)
        return OfflineResult(
            jax.vmap(guess)(priors),
            jnp.concatenate([infos.support, unknown], axis=1),
            infos.fell_back,
            infos.status,
            infos.gap,
            infos.num_steps,
        )


def exploration_rows(
    env: AbstractEnv, features: AbstractFeatures, num_tasks: int, num_rows: int, key: PRNGKeyArray
) -> Float[Array, "tasks rows features"]:
    """Return the rows that an agent of `Recovery` with all kernels sees in a world with this key."""
    return features(env.candidates)[_exploration_places(env, jnp.arange(num_tasks), num_rows, key=key)]


@eqx.filter_jit
def _exploration_places(
    env: AbstractEnv, indices: Int[Array, " tasks"], num_rows: int, *, key: PRNGKeyArray
) -> Int[Array, "tasks rows"]:
    """Return the candidates that forced exploration plays in each task. Compiled once for all seeds."""
    return jax.vmap(lambda index: draw_task(env, index, num_rows, key=key).exploration)(indices)


def _known(features: AbstractFeatures, num_kernels: int | None) -> np.ndarray:
    """Return the positions of the features of the first base kernels."""
    groups = np.asarray(features.groups)
    return np.flatnonzero(groups < (features.num_groups if num_kernels is None else num_kernels))


def _posterior_mean(
    prior: Prior | PriorMixture,
    data: TaskData,
    candidate_features: Float[Array, "candidates features"],
    noise_std: Float[Array, ""],
) -> Float[Array, " candidates"]:
    """Return the posterior mean at the candidates, from the kernel matrix of the rows.

    The matrix of the rows is small, and that of the features is not.
    """
    if not isinstance(prior, Prior) or prior.covariance.ndim != 1:
        raise SettingError("the agents of 'Recovery' should have priors with a diagonal covariance.")
    rows, rewards, dtype = data.features, data.rewards, data.features.dtype
    weighted = rows * prior.covariance.astype(dtype)
    noise = noise_std.astype(dtype) ** 2
    matrix = jnp.matmul(weighted, rows.T, precision=lax.Precision.HIGHEST)
    matrix = matrix + noise * jnp.eye(rows.shape[0], dtype=dtype)
    residual = rewards - rows @ prior.mean.astype(dtype)
    weights = prior.mean.astype(dtype) + weighted.T @ _solve(matrix, residual)
    return jnp.matmul(candidate_features, weights, precision=lax.Precision.HIGHEST)


def _solve(matrix: Float[Array, "rows rows"], right: Float[Array, " rows"]) -> Float[Array, " rows"]:
    """Return the solution of a positive definite system, by elimination without LAPACK.

    jax 0.10 can deadlock when several threads run LAPACK calls of batched programs.
    """

    def eliminate(place, table):
        pivot = table[place] / table[place, place]
        others = table - table[:, place][:, None] * pivot[None]
        return others.at[place].set(pivot)

    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    return lax.fori_loop(0, right.shape[0], eliminate, table)[:, -1]
