"""The loop over tasks and steps on action sets of any kind: fresh contexts, a ball, an ellipsoid, a box.

| function            | what it does                                                                      |
|---------------------|-----------------------------------------------------------------------------------|
| `draw_linear_task`  | weights, noise and keys of a task, which all methods share                        |
| `run_linear_task`   | the steps of one task, as `jlibo.lifelong.one_task.run_task` on candidates        |
| `play_linear_tasks` | the scan over tasks, as `jlibo.lifelong.play.play_tasks`                          |

If the actions of a task are finitely many and fixed, the steps are those of `run_task`, and the results are
the same. Otherwise mean and variance are not tracked: every step computes them where the search asks for
them, in O(features^2) a point.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.actions import FiniteActions
from jlibo.belief import belief as running
from jlibo.belief.belief import RunningBelief, with_features
from jlibo.belief.moments import Moments
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.envs.base import Task
from jlibo.envs.linear.base import LinearEnv, LinearTask, value_of
from jlibo.lifelong.one_task import Draws, run_task, split_task_key
from jlibo.lifelong.play import LifelongResult, RunSpec, scan_tasks
from jlibo.meta.base import TaskData
from jlibo.policies.acting import act
from jlibo.policies.base import AbstractPolicy
from jlibo.solver.group_lasso import Status


@final
class LinearDraws(eqx.Module):
    """Random draws of a task of a linear environment, shared by all methods; made by `draw_linear_task`.

    Each of them is a function of the key of the run, the task and the step.
    """

    task: LinearTask
    noise: Float[Array, " horizon"]
    set_keys: PRNGKeyArray
    """One key per step, for the action set."""
    exploration_keys: PRNGKeyArray
    """One key per step, for a uniform draw from the action set."""
    policy_keys: PRNGKeyArray
    """One key per step, for policies that use randomness."""


@final
class LinearTaskResult(eqx.Module):
    """Result of one task, with one entry per step; returned by `run_linear_task`."""

    features: Float[Array, "horizon features"]
    """Features of the action."""
    actions: Array
    """Where the action is in its set; see `jlibo.actions.Action.place`."""
    rewards: Float[Array, " horizon"]
    """Noisy reward, as observed."""
    regret: Float[Array, " horizon"]
    """Best value of the step minus value of the action, without noise."""
    explored: Bool[Array, " horizon"]
    """Whether the step was forced exploration."""


def draw_linear_task(
    env: LinearEnv, index: Int[Array, ""], horizon: int, *, key: PRNGKeyArray
) -> LinearDraws:
    """Return the random draws of task `index` of a run; `key` is that of the run.

    Weights and noise are those of `draw_task` on an environment with the same law.
    """
    keys = split_task_key(jax.random.fold_in(key, index))
    task = env.task(index, key=keys.task)
    return LinearDraws(
        task,
        env.noise_std * jax.random.normal(keys.noise, (horizon,), task.weights.dtype),
        jax.random.split(jax.random.fold_in(keys.task, 2), horizon),
        jax.random.split(keys.exploration, horizon),
        jax.random.split(keys.policy, horizon),
    )


def run_linear_task(
    env: LinearEnv,
    policy: AbstractPolicy,
    prior: Prior | PriorMixture,
    draws: LinearDraws,
    num_explore: Int[Array, ""],
    scaling: AbstractScaling = RAW,
    scale_state: Any = (),
) -> LinearTaskResult:
    """Play one task: `num_explore` uniform draws first, then the policy on the posterior of all rewards.

    The arguments are those of `run_task`, with an environment in place of the features of candidates.
    """
    task, weights = draws.task, draws.task.weights
    horizon = draws.noise.shape[0]
    # The same in every step, unless the arms are fresh.
    actions = env.actions(task, key=draws.set_keys[0])
    if env.arms.kind == "fixed" and isinstance(actions, FiniteActions):
        explore = jax.vmap(lambda key: actions.uniform(key=key).place)(draws.exploration_keys)
        values = value_of(actions.features, weights)
        on_candidates = Draws(Task(values), draws.noise, explore, draws.policy_keys)
        found = run_task(policy, prior, actions.features, on_candidates, num_explore, scaling, scale_state)
        chosen = actions.features[found.actions]
        return LinearTaskResult(chosen, found.actions, found.rewards, found.regret, found.explored)

    is_fresh = env.arms.kind == "fresh"
    fixed_best = value_of(actions.best(weights).features, weights)
    explored = jax.vmap(lambda key: actions.uniform(key=key).features)(draws.exploration_keys)
    state = running.start(prior, explored, policy.noise_std, scaling.num_columns)

    def play(carry, step):
        state, moments = carry
        is_forced, noise, set_key, explore_key, key = step
        state = with_features(state, jnp.zeros((1, env.num_features), noise.dtype))
        current = env.actions(task, key=set_key) if is_fresh else actions
        units = scaling.units(scale_state, moments, state)
        posterior = running.in_units(state, units).posterior
        chosen = act(
            policy,
            lambda rows: running.in_units(running.at(state, rows), units),
            posterior,
            current,
            key=key,
        )
        explore = current.uniform(key=explore_key)
        action = jax.tree.map(lambda one, other: jnp.where(is_forced, one, other), explore, chosen)
        value = value_of(action.features, weights)
        best = value_of(current.best(weights).features, weights) if is_fresh else fixed_best
        reward = value + noise
        here = running.at(state, action.features[None])
        carry = with_features(_observe(here, reward), None), moments.add(reward)
        return carry, (action.features, action.place, reward, best - value)

    is_forced = jnp.arange(horizon) < num_explore
    keys = draws.set_keys, draws.exploration_keys, draws.policy_keys
    start = with_features(running.at(state, jnp.zeros((1, env.num_features))), None)
    carry = start, Moments.empty(draws.noise.dtype)
    _, (features, places, rewards, regret) = jax.lax.scan(play, carry, (is_forced, draws.noise, *keys))
    return LinearTaskResult(features, places, rewards, regret, is_forced)


def _observe(here: RunningBelief, reward: Float[Array, ""]) -> RunningBelief:
    """Condition on a reward at the only point of the belief."""
    return running.observe(here, jnp.zeros((), jnp.int32), reward)


def play_linear_tasks(
    spec: RunSpec,
    states: Mapping[str, Any],
    indices: Int[Array, " tasks"],
    counts: Int[Array, "tasks agents"],
    *,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> dict[str, LifelongResult]:
    """Play the tasks `indices` of a run on a linear environment; the arguments are those of `play_tasks`."""
    env = cast(LinearEnv, spec.env)

    def play_task(index, num_explore, prior, scale_states):
        draws = draw_linear_task(env, index, spec.sizes[0].horizon, key=key)
        play = jax.vmap(run_linear_task, in_axes=(None, None, 0, None, 0, None, 0))
        results = play(env, spec.policy, prior, draws, num_explore, spec.scaling, scale_states)

        def finish(result: LinearTaskResult, data_key: PRNGKeyArray):
            data = TaskData(result.features, result.rewards, result.explored, key=data_key)
            usable = jnp.isfinite(result.rewards).all()
            return data, lambda status: jnp.where(usable, status, Status.NON_FINITE_REWARDS).astype(jnp.int32)

        return results, finish

    return scan_tasks(spec, states, indices, counts, play_task, progress_fn=progress_fn, key=key)
