"""The loop over the steps of one task: forced exploration first, then the policy.

| here          | paper                                                                              |
|---------------|------------------------------------------------------------------------------------|
| `draw_task`   | f_s, the noise eps_{s,i}, and uniform draws from the domain to explore with        |
| `run_task`    | the steps i = 1, ..., n of task s (the inner loop of Algorithms 2 and 3)           |
| `num_explore` | n_s, the forced exploration steps                                                  |
| `regret`      | f_s(x*_s) - f_s(x_{s,i})                                                           |
"""

from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief import belief as running
from jlibo.belief.belief import with_features
from jlibo.belief.candidates import REFRESH_STEPS
from jlibo.belief.moments import Moments
from jlibo.belief.prior import Prior, PriorMixture
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.envs.base import AbstractEnv, Task, finite_part, move_to_available
from jlibo.front_door import front_door
from jlibo.lifelong.exploration import explore_once, explore_uniformly
from jlibo.policies.base import AbstractPolicy, choose
from jlibo.solver.group_lasso import Status


@final
class TaskResult(eqx.Module):
    """Result of one task, with one entry per step; returned by `run_task`."""

    actions: Int[Array, " horizon"]
    """Index of the candidate played."""
    rewards: Float[Array, " horizon"]
    """Noisy reward, as observed."""
    regret: Float[Array, " horizon"]
    """Best value minus value of the action, without noise."""
    explored: Bool[Array, " horizon"]
    """Whether the step was forced exploration."""


@final
class Draws(eqx.Module):
    """Random draws of a task, shared by all agents of a seed; made by `draw_task`."""

    task: Task
    noise: Float[Array, " horizon"]
    exploration: Int[Array, " horizon"]
    """Candidates to play in forced exploration steps."""
    policy_keys: PRNGKeyArray
    """One key per step, for policies that use randomness."""
    is_whole: Bool[Array, ""] | None = None
    """Whether the values of all available candidates are finite; None if the environment guarantees it."""

    def status(self, solve_status: Int[Array, ""], usable: Bool[Array, " horizon"]) -> Int[Array, ""]:
        """Return the task's `Status`: that of the solve after it, unless values or rewards are not finite."""
        status = solve_status
        if self.is_whole is not None:
            is_partial = ~self.is_whole & (status == Status.CONVERGED)
            status = jnp.where(is_partial, Status.NON_FINITE_VALUES, status)
        return jnp.where(usable.all(), status, Status.NON_FINITE_REWARDS).astype(jnp.int32)


@final
class TaskKeys(NamedTuple):
    """Random keys of one task, one per purpose; made by `split_task_key`."""

    task: PRNGKeyArray
    """For the environment's task."""
    noise: PRNGKeyArray
    exploration: PRNGKeyArray
    policy: PRNGKeyArray
    """For the policy; it is split into one key per step."""


def split_task_key(key: PRNGKeyArray) -> TaskKeys:
    """Return the keys of a task, given its own key: that of the run with the task's index folded in."""
    return TaskKeys(*jax.random.split(key, len(TaskKeys._fields)))


LEARNER_STREAM = 0x6E6F6973
"""Number by which the stream of the learners' draws differs from that of the tasks."""


def learner_key(key: PRNGKeyArray, index: Int[Array, ""]) -> PRNGKeyArray:
    """Return the key for what meta-learners draw after task `index` of a run, given the key of the run.

    It is independent of the keys of the task itself, so learners with and without noise meet the same tasks.
    """
    return jax.random.fold_in(jax.random.fold_in(key, LEARNER_STREAM), index)


@front_door
def draw_task(
    env: AbstractEnv, index: Int[Array, ""], horizon: int, *, repeats: bool = True, key: PRNGKeyArray
) -> Draws:
    """Return the random draws of task `index` of a run.

    They depend on `key` and `index` only, so a resumed run has the same draws as an uninterrupted one.

    **Arguments:**

    - `env`: the environment.
    - `index`: number of the task, counted from 0.
    - `horizon`: number of steps.
    - `repeats`: whether exploration may draw a candidate twice.
    - `key`: random key of the run, not of the task.

    **Returns:** the draws to pass to `run_task`: the task, the noise and exploration draw of each step, and
    the policy's keys.

    ```python
    import jax

    import jlibo

    env = jlibo.TableEnv.from_table(jlibo.load_table("glmnet"), metric="auc")
    draws = jlibo.draw_task(env, 0, horizon=20, key=jax.random.key(0))
    ```
    """
    keys = split_task_key(jax.random.fold_in(key, index))
    task = env.task(index, key=keys.task)
    noise = env.noise_std * jax.random.normal(keys.noise, (horizon,), task.values.dtype)
    policy_keys = jax.random.split(keys.policy, horizon)
    explore = explore_uniformly if repeats else explore_once
    if env.always_finite:
        return Draws(task, noise, explore(task, horizon, key=keys.exploration), policy_keys)
    played = finite_part(task)
    available = jnp.asarray(played.available)
    is_whole = (available == (True if task.available is None else task.available)).all()
    if repeats:
        # Draw from all candidates first, so that the check does not change draws if all values are finite.
        exploration = explore_uniformly(task, horizon, key=keys.exploration)
        move_key = jax.random.fold_in(keys.exploration, 1)
        exploration = move_to_available(exploration, available, key=move_key)
    else:
        exploration = explore_once(played, horizon, key=keys.exploration)
    return Draws(played, noise, exploration, policy_keys, is_whole)


@front_door
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

    **Arguments:**

    - `policy`: chooses the actions after exploration.
    - `prior`: prior of the task's weights.
    - `features`: features of the candidates.
    - `draws`: random draws of the task, from `draw_task`.
    - `num_explore`: number of forced exploration steps. It may be traced.
    - `scaling`, `scale_state`: units in which the policy sees rewards, and the scaling's state from past
      tasks. The result has the rewards as observed.
    - `repeats`: if False, the policy does not play a candidate again until all available ones are played.

    **Returns:** a `TaskResult`.

    ```python
    import jax

    import jlibo

    features = jlibo.Cosine(num_features=20)
    env = jlibo.SyntheticEnv.draw(features, key=jax.random.key(0))
    draws = jlibo.draw_task(env, 0, horizon=30, key=jax.random.key(1))
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    result = jlibo.run_task(policy, jlibo.full_prior(features.groups), env.candidate_features, draws, 5)
    print(result.regret.sum())
    ```
    """
    values, best_value = draws.task.values, draws.task.best_value
    features = jnp.asarray(features)
    columns = features.T
    horizon = draws.noise.shape[0]
    state = running.start(prior, features, policy.noise_std, scaling.num_columns)
    playable = draws.task.available
    if not repeats:
        playable = jnp.ones(values.shape, bool) if playable is None else playable

    def play(carry, step):
        # The candidates' features are not part of the carry, so that all seeds share them.
        state, moments, left = with_features(carry[0], features, columns), carry[1], carry[2]
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
