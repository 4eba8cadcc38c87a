"""One task, step by step: forced exploration first, then the policy. The inner loop of everything here.

| here          | paper                                                                              |
|---------------|------------------------------------------------------------------------------------|
| `draw_task`   | f_s, the noise eps_{s,i}, and uniform draws from the domain to explore with        |
| `run_task`    | the steps i = 1, ..., n of task s (the inner loop of Algorithms 2 and 3)           |
| `num_explore` | n_s, the forced exploration steps                                                  |
| `regret`      | f_s(x*_s) - f_s(x_{s,i})                                                           |
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.belief import with_features
from jlibo.belief.moments import Moments
from jlibo.belief.posterior import REFRESH_STEPS
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.envs.base import AbstractEnv, Task, finite_part, move_to_available
from jlibo.lifelong.exploration import explore_once, explore_uniformly
from jlibo.policies.base import AbstractPolicy, choose
from jlibo.solver.group_lasso import Status


class TaskResult(eqx.Module):
    """One task, step by step."""

    actions: Int[Array, " horizon"]
    rewards: Float[Array, " horizon"]
    regret: Float[Array, " horizon"]
    explored: Bool[Array, " horizon"]


class Draws(eqx.Module):
    """Everything random about a task but the policy: the same for all agents of a seed."""

    task: Task
    noise: Float[Array, " horizon"]
    exploration: Int[Array, " horizon"]
    policy_keys: PRNGKeyArray
    is_whole: Bool[Array, ""] | None = None
    """Whether the values of all available candidates were finite; None: known to be."""

    def status(self, solve_status: Int[Array, ""], usable: Bool[Array, " horizon"]) -> Int[Array, ""]:
        """The task's `Status`: that of the solve after it, unless values or rewards were not finite."""
        status = solve_status
        if self.is_whole is not None:
            is_partial = ~self.is_whole & (status == Status.CONVERGED)
            status = jnp.where(is_partial, Status.NON_FINITE_VALUES, status)
        return jnp.where(usable.all(), status, Status.NON_FINITE_REWARDS).astype(jnp.int32)


def draw_task(
    env: AbstractEnv, index: Int[Array, ""], horizon: int, *, repeats: bool = True, key: PRNGKeyArray
) -> Draws:
    """The draws of task `index` of the run with this `key`, whichever part of the run is being computed.

    `repeats`: whether exploration may draw a candidate twice.
    """
    task_key, noise_key, explore_key, policy_key = jax.random.split(jax.random.fold_in(key, index), 4)
    task = env.task(index, key=task_key)
    noise = env.noise_std * jax.random.normal(noise_key, (horizon,), task.values.dtype)
    policy_keys = jax.random.split(policy_key, horizon)
    explore = explore_uniformly if repeats else explore_once
    if env.always_finite:
        return Draws(task, noise, explore(task, horizon, key=explore_key), policy_keys)
    played = finite_part(task)
    available = jnp.asarray(played.available)
    is_whole = (available == (True if task.available is None else task.available)).all()
    if repeats:
        # Drawn as if all were finite, so that the check changes no draw of a task where all are.
        exploration = explore_uniformly(task, horizon, key=explore_key)
        exploration = move_to_available(exploration, available, key=jax.random.fold_in(explore_key, 1))
    else:
        exploration = explore_once(played, horizon, key=explore_key)
    return Draws(played, noise, exploration, policy_keys, is_whole)


def run_task(
    policy: AbstractPolicy,
    prior: Prior | PriorMixture,
    features: Float[Array, "candidates features"],
    draws: Draws,
    num_explore: Int[Array, ""],
    scaling: AbstractScaling = RAW,
    scale_state: Any = (),
    *,
    repeats: bool = True,
) -> TaskResult:
    """Play one task: `num_explore` uniform draws first, then the policy on the posterior of all rewards.

    The policy sees rewards in the units of `scaling`; the result has them as they came. Without `repeats`
    the policy leaves out what was played before, as long as there is anything else.
    """
    values, best_value = draws.task.values, draws.task.best_value
    features = jnp.asarray(features)
    horizon = draws.noise.shape[0]
    state = running.start(prior, features, policy.noise_std, scaling.num_columns)
    playable = draws.task.available
    if not repeats:
        playable = jnp.ones(values.shape, bool) if playable is None else playable

    def play(carry, step):
        # The candidates' features stay out of the carry, so that all seeds share them.
        state, moments, left = with_features(carry[0], features), carry[1], carry[2]
        is_forced, explore, noise, key = step
        belief = running.in_units(state, scaling.units(scale_state, moments, state))
        chosen = choose(policy, belief, available=left, key=key)
        action = jnp.where(is_forced, explore, chosen)
        value = values[action]
        reward = value + noise
        state = running.observe(state, action, reward, refresh=horizon > REFRESH_STEPS)
        if not repeats:
            left = left.at[action].set(False)
            left = jnp.where(left.any(), left, jnp.asarray(playable))
        carry = with_features(state, None), moments.add(reward), left
        return carry, (action, reward, best_value - value)

    is_forced = jnp.arange(horizon) < num_explore
    steps = (is_forced, draws.exploration, draws.noise, draws.policy_keys)
    start = with_features(state, None), Moments.empty(draws.noise.dtype), playable
    _, (actions, rewards, regret) = jax.lax.scan(play, start, steps)
    return TaskResult(actions, rewards, regret, is_forced)
