"""The scan over tasks, for several agents at once; `jlibo.lifelong.loop` is its front door."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import in_one_shape
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.checks import check_count, fail
from jlibo.envs.base import AbstractEnv, check_num_tasks
from jlibo.envs.linear.base import LinearEnv
from jlibo.features import AbstractFeatures
from jlibo.lifelong.one_task import TaskResult, draw_task, learner_key, run_task
from jlibo.meta.base import AbstractMetaLearner, MetaInfo, RunSizes, TaskData, check_state, only_present
from jlibo.meta.exploration import AbstractExploration
from jlibo.meta.rows import settled
from jlibo.policies.base import AbstractPolicy


@final
class LifelongResult(eqx.Module):
    """Result of a run, with the axes tasks and steps; returned by `run_lifelong`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    learner = jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.regret.shape, result.support.shape)  # (3, 16) (3, 10)
    ```
    """

    actions: Int[Array, "tasks horizon"] | Float[Array, "tasks horizon dim"]
    """Index of the candidate played; in a box, a ball or an ellipsoid, the point."""
    rewards: Float[Array, "tasks horizon"]
    """Noisy reward, as observed."""
    regret: Float[Array, "tasks horizon"]
    """Best value minus value of the action, without noise."""
    explored: Bool[Array, "tasks horizon"]
    """Whether the step was forced exploration."""
    num_explore: Int[Array, " tasks"]
    """Number of forced exploration steps."""
    support: Bool[Array, "tasks groups"]
    """Base kernels selected after each task; they form the prior of the next task."""
    fell_back: Bool[Array, " tasks"]
    """Whether the selection after the task was empty, so that the next prior has all base kernels."""
    status: Int[Array, " tasks"]
    """A `Status`, as a number: that of the solve after the task, or `NON_FINITE_VALUES` or
    `NON_FINITE_REWARDS` if values of candidates or rewards are not finite."""
    gap: Float[Array, " tasks"]
    """Duality gap of the solve after the task."""
    num_steps: Int[Array, " tasks"]
    """Steps of the solve after the task."""
    carry: Any
    """State after the last task. Pass it to `run_lifelong` with the next tasks and the same key to resume."""


@final
class RunSpec(eqx.Module):
    """The parts of a run of several agents that stay the same from task to task."""

    env: AbstractEnv | LinearEnv
    features: AbstractFeatures | None
    """None for a linear environment, whose action sets have features."""
    policy: AbstractPolicy
    names: tuple[str, ...] = eqx.field(static=True)
    """Name of each agent. A tuple, because `jit` sorts the keys of dictionaries."""
    learners: tuple[AbstractMetaLearner, ...]
    """Meta-learner of each agent."""
    sizes: tuple[RunSizes, ...]
    """Sizes of each agent's run; they differ in `max_explore` only."""
    scaling: AbstractScaling
    repeats: bool = eqx.field(static=True)
    """Whether a candidate may be played twice in a task."""

    @staticmethod
    def of(
        env: AbstractEnv | LinearEnv,
        features: AbstractFeatures | None,
        policy: AbstractPolicy,
        meta_learners: Mapping[str, AbstractMetaLearner],
        sizes: Mapping[str, RunSizes],
        *,
        scaling: AbstractScaling = RAW,
        repeats: bool = True,
    ) -> "RunSpec":
        """Return the spec of agents that are given by name."""
        return RunSpec(
            env,
            features,
            policy,
            tuple(meta_learners),
            tuple(meta_learners.values()),
            tuple(sizes[name] for name in meta_learners),
            scaling,
            repeats,
        )


@final
@dataclasses.dataclass(frozen=True)
class AgentPlan:
    """Sizes and schedules of a run of several agents, known before tracing; made by `plan_agents`."""

    sizes: dict[str, RunSizes]
    """Sizes of each agent's run, by name."""
    counts: np.ndarray
    """Number of forced exploration steps, `[tasks, agents]`."""


def plan_agents(
    env: AbstractEnv | LinearEnv,
    features: AbstractFeatures,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    num_tasks: int,
    horizon: int,
    exploration: Mapping[str, AbstractExploration] | None = None,
) -> AgentPlan:
    """Return sizes and schedules of the agents; the arguments are checked."""
    if isinstance(env, AbstractEnv):
        check_num_tasks(env, num_tasks)
    elif env.groups != features.groups:
        fail("features", f"a map with the environment's {len(env.groups)} features and groups", features)
    check_count("num_tasks", num_tasks)
    check_count("horizon", horizon)
    if not meta_learners:
        fail("meta_learners", "at least one", "none")
    unknown = set(exploration or {}) - set(meta_learners)
    if unknown:
        fail("exploration", f"schedules for agents among {sorted(meta_learners)}", sorted(unknown))
    schedules = [
        (exploration or {}).get(name, learner.exploration) for name, learner in meta_learners.items()
    ]
    counts = np.stack([schedule.counts(num_tasks, horizon) for schedule in schedules], axis=1)
    dtype = jnp.result_type(float)
    if isinstance(env, AbstractEnv) and jnp.issubdtype(env.candidates.dtype, jnp.floating):
        dtype = env.candidates.dtype
    sizes = {
        name: RunSizes.of(features, num_tasks=num_tasks, horizon=horizon, max_explore=int(most), dtype=dtype)
        for name, most in zip(meta_learners, counts.max(0), strict=True)
    }
    return AgentPlan(sizes, counts)


def start_agents(
    meta_learners: Mapping[str, AbstractMetaLearner], plan: AgentPlan, scaling: AbstractScaling = RAW
) -> dict[str, Any]:
    """Return the state of each agent before the first task: that of its meta-learner and of its scaling."""
    return {
        name: (learner.init(plan.sizes[name]), scaling.init(plan.sizes[name].dtype))
        for name, learner in meta_learners.items()
    }


def play_tasks(
    spec: RunSpec,
    states: Mapping[str, Any],
    indices: Int[Array, " tasks"],
    counts: Int[Array, "tasks agents"],
    *,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> dict[str, LifelongResult]:
    """Play the tasks `indices` of a run; return the result of each agent, by name.

    Indices and counts are data: one compiled program plays any part of the same length of a run.

    **Arguments:**

    - `spec`: environment, features, policy and agents.
    - `states`: state of each agent before these tasks, from `start_agents` or from a result's `carry`.
    - `indices`: numbers of the tasks, counted from 0.
    - `counts`: number of forced exploration steps of each task and agent.
    - `progress_fn`, `key`: as in `run_lifelong`.
    """
    env, features = cast(AbstractEnv, spec.env), cast(AbstractFeatures, spec.features)
    policy, scaling, horizon = spec.policy, spec.scaling, spec.sizes[0].horizon
    candidate_features = features(env.candidates)

    def play_task(index, num_explore, prior, scale_states):
        draws = draw_task(env, index, horizon, repeats=spec.repeats, key=key)
        points = draws.task.points
        task_features = candidate_features if points is None else features(points)
        play = jax.vmap(partial(run_task, repeats=spec.repeats), in_axes=(None, 0, None, None, 0, None, 0))
        results = play(policy, prior, task_features, draws, num_explore, scaling, scale_states)

        def finish(result: TaskResult, data_key: PRNGKeyArray):
            data = TaskData(task_features[result.actions], result.rewards, result.explored, key=data_key)
            usable = jnp.isfinite(result.rewards) & jnp.isfinite(result.regret)
            if not env.always_finite:
                data = only_present(data, usable)
            return data, lambda status: draws.status(status, usable)

        return results, finish

    return scan_tasks(spec, states, indices, counts, play_task, progress_fn=progress_fn, key=key)


def scan_tasks(
    spec: RunSpec,
    states: Mapping[str, Any],
    indices: Int[Array, " tasks"],
    counts: Int[Array, "tasks agents"],
    play_fn: Callable,
    *,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> dict[str, LifelongResult]:
    """Scan over tasks, in which every agent plays with its prior and learns from what it played.

    **Arguments:**

    - `spec`, `states`, `indices`, `counts`, `progress_fn`, `key`: as in `play_tasks`.
    - `play_fn`: plays one task: a function of its index and, with a leading axis over agents, the numbers of
      exploration steps, the priors and the states of the scaling. It returns the results of all agents, and a
      function that is called with one agent's result and a key: it returns the `TaskData`, and a function
      from the status of the solve to that of the task.
    """
    agents = tuple(zip(spec.names, spec.learners, spec.sizes, strict=True))

    def play_task(states, step):
        index, num_explore = step
        priors = [learner.prior(states[name][0], sizes) for name, learner, sizes in agents]
        prior = _stack(in_one_shape(priors, spec.policy.noise_std))
        scale_states = _stack([states[name][1] for name in spec.names])
        results, finish = play_fn(index, num_explore, prior, scale_states)
        new_states, infos = {}, {}
        for number, (name, learner, sizes) in enumerate(agents):
            result = jax.tree.map(lambda leaf, number=number: leaf[number], results)
            state, scale_state = states[name]
            data, status_of = finish(result, learner_key(key, index))
            data, units = settled(data, spec.scaling, spec.policy.noise_std, sizes)
            new_state, info = learner.update(state, data, sizes)
            check_state(learner, state, new_state)
            infos[name] = eqx.tree_at(lambda i: i.status, info, status_of(info.status))
            new_states[name] = new_state, spec.scaling.update(scale_state, units)
        if progress_fn is not None:
            # The index is the same for all seeds, so a batch reports each task once.
            jax.debug.callback(progress_fn, index + 1)
        return new_states, (results, infos)

    counts = counts.astype(jnp.int32)
    states, (results, infos) = jax.lax.scan(play_task, dict(states), (indices, counts))
    return {
        name: _result_of_agent(number, results, infos[name], states[name], counts)
        for number, name in enumerate(spec.names)
    }


def _result_of_agent(number: int, results: Any, info: MetaInfo, state, counts) -> LifelongResult:
    """Return the result of one agent, given those of the tasks of all agents."""
    own = jax.tree.map(lambda leaf: leaf[:, number], results)
    return LifelongResult(
        actions=own.actions,
        rewards=own.rewards,
        regret=own.regret,
        explored=own.explored,
        num_explore=counts[:, number],
        support=info.support,
        fell_back=info.fell_back,
        status=info.status,
        gap=info.gap,
        num_steps=info.num_steps,
        carry=state,
    )


def _stack(trees: list) -> Any:
    """Return the agents' trees as one tree with a leading axis over agents."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
