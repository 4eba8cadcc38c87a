"""The driver of joint learners: one scan over rounds, with the tasks of every round given by a schedule.

Weights, action sets, noise and keys of a task's steps are those of `jlibo.lifelong.linear`: functions of the
key of the run, the task and the step. They do not depend on the schedule or on the method. A meta-learner
with a policy plays as a joint learner by `OneAfterAnother`; tests compare it with the scan over tasks.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.arena.estimators import TaskStatistics
from jlibo.arena.joint import AbstractJointLearner, Turn
from jlibo.arena.schedule import Schedule
from jlibo.checks import check_same_tree, check_shape
from jlibo.envs.linear.base import LinearEnv, value_of
from jlibo.front_door import front_door
from jlibo.lifelong.linear import draw_linear_task
from jlibo.meta.base import RunSizes


@final
class RoundsResult(eqx.Module):
    """Result of a run of rounds; returned by `run_rounds`. `Schedule.by_task` arranges an array by task."""

    features: Float[Array, "rounds lanes features"]
    """Features of the actions."""
    rewards: Float[Array, "rounds lanes"]
    """Noisy reward, as observed; zero in empty lanes."""
    regret: Float[Array, "rounds lanes"]
    """Best value minus value of the action, without noise; zero in empty lanes."""
    explored: Bool[Array, "rounds lanes"]
    """Whether it was forced exploration."""
    statistics: TaskStatistics
    """Statistics of all tasks after the last round."""
    state: Any
    """State of the learner after the last round."""


@front_door
def run_rounds(
    env: LinearEnv,
    learner: AbstractJointLearner,
    schedule: Schedule,
    sizes: RunSizes | None = None,
    *,
    key: PRNGKeyArray,
) -> RoundsResult:
    """Play the rounds of a schedule.

    Use `jax.vmap` over `key` to run many seeds as one batch.

    **Arguments:**

    - `env`: the environment.
    - `learner`: chooses the actions of every round.
    - `schedule`: the tasks of every round.
    - `sizes`: sizes of the run; by default those of environment and schedule.
    - `key`: random key of the run.

    **Returns:** a `RoundsResult`.

    ```python
    import jax
    import jlibo
    from jlibo.arena import OneAfterAnother, Schedule, run_rounds
    from jlibo.envs.linear import BallArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    weights = LowRankWeights.draw(num_features=6, rank=2, key=key)
    env = LinearEnv(weights, BallArms(1.0, 6), noise_std=1.0)
    learner = OneAfterAnother(jlibo.FixedPrior(), jlibo.GPTS(noise_std=1.0))
    result = run_rounds(env, learner, Schedule.concurrent(num_tasks=3, horizon=5), key=key)
    print(result.regret.shape)  # (5, 3)
    ```
    """
    if sizes is None:
        sizes = sizes_of(env, schedule)
    ticks = np.asarray(learner.ticks(schedule), bool)
    check_shape(f"{type(learner).__name__}.ticks(...)", ticks, (schedule.num_rounds,))
    rounds = (
        jnp.arange(schedule.num_rounds),
        jnp.asarray(np.maximum(schedule.task_of, 0)),
        jnp.asarray(schedule.step_of),
        jnp.asarray(schedule.present),
        jnp.asarray(ticks),
    )
    which = "all" if ticks.all() else "some" if ticks.any() else "none"
    return _run_compiled(env, learner, rounds, which, sizes, schedule.horizon, schedule.num_tasks, key=key)


def sizes_of(env: LinearEnv, schedule: Schedule, *, max_explore: int = 0) -> RunSizes:
    """Return the sizes of a run of a schedule."""
    dtype = jnp.result_type(float)
    return RunSizes(env.groups, schedule.num_tasks, schedule.horizon, max_explore, dtype)


# Jitted, because a scan outside of `jit` is recompiled at every call.
@eqx.filter_jit
def _run_compiled(env, learner, rounds, which, sizes, horizon, num_tasks, *, key):
    draws = jax.vmap(lambda index: draw_linear_task(env, index, horizon, key=key))(jnp.arange(num_tasks))

    def turn_of(number, tasks, steps, present):
        def lane(task, step):
            own = jax.tree.map(lambda leaf: leaf[task], draws.task)
            actions = env.actions(own, key=draws.set_keys[task, step])
            explore = actions.uniform(key=draws.exploration_keys[task, step])
            best = value_of(actions.best(own.weights).features, own.weights)
            return actions, explore, draws.policy_keys[task, step], own.weights, best

        actions, explore, keys, weights, best = jax.vmap(lane)(tasks, steps)
        return Turn(number, tasks, steps, present, actions, explore, keys), weights, best

    def play(carry, step):
        state, statistics = carry
        number, tasks, steps, present, is_tick = step

        def refresh(state):
            new = learner.refresh(state, statistics, number, sizes)
            _check_state(learner, "refresh", state, new)
            return new

        if which == "all":
            state = refresh(state)
        elif which == "some":
            # The condition is the same for all seeds, so a batch computes one branch only.
            state = jax.lax.cond(is_tick, refresh, lambda state: state, state)
        turn, weights, best = turn_of(number, tasks, steps, present)
        choice = learner.choose(state, statistics, turn, sizes)
        features = choice.actions.features
        values = jnp.einsum("lf,lf->l", features, weights, precision=jax.lax.Precision.HIGHEST)
        rewards = jnp.where(present, values + draws.noise[tasks, steps], 0)
        statistics = statistics.observe(tasks, features, rewards, present)
        new = learner.observe(state, turn, choice, rewards, sizes)
        _check_state(learner, "observe", state, new)
        regret = jnp.where(present, best - values, 0)
        return (new, statistics), (features, rewards, regret, choice.explored & present)

    empty = TaskStatistics.empty(num_tasks, env.num_features, sizes.dtype)
    (state, statistics), outputs = jax.lax.scan(play, (learner.init(sizes), empty), rounds)
    return RoundsResult(*outputs, statistics, state)


def _check_state(learner: AbstractJointLearner, method: str, before: Any, after: Any) -> None:
    name = type(learner).__name__
    expected = f"a state of the structure, shapes and dtypes of the one passed in ({name}.init)"
    check_same_tree(f"{name}.{method}(...)", expected, before, after)
