"""The lifelong loop: one task after another, each played with the prior learned from those before.

| here           | paper                                                                             |
|----------------|-----------------------------------------------------------------------------------|
| `run_lifelong` | LiBO (Algorithm 2) and F-LiBO (Algorithm 3): one loop, another meta-learner       |
| `horizon`      | n, the steps of a task                                                            |
| `num_tasks`    | m                                                                                 |
| `regret`       | f_s(x*_s) - f_s(x_{s,i}); its sum over tasks and steps is R(m, n)                 |
| `support`      | J_hat_s, the kernels selected after task s                                        |

A scan over tasks around a scan over steps (`jlibo.lifelong.one_task`), all of it a pure function of the
arguments and a key. Agents that differ in their meta-learner alone run side by side (`run_agents`): priors
are data, so that the inner loop is compiled once and its product with the candidates' features serves all
agents and seeds at once.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import in_one_shape
from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.checks import check_count, check_same_tree, fail
from jlibo.envs.base import AbstractEnv, check_num_tasks
from jlibo.features import AbstractFeatures
from jlibo.lifelong.one_task import TaskResult, draw_task, run_task
from jlibo.meta.base import (
    AbstractMetaLearner,
    MetaInfo,
    Setting,
    TaskData,
    check_run_noise,
    check_state,
    only_present,
)
from jlibo.meta.exploration import AbstractExploration
from jlibo.meta.rows import settled
from jlibo.policies.base import AbstractPolicy


class LifelongResult(eqx.Module):
    """A whole run; arrays keep their axes, tasks first, then steps."""

    actions: Int[Array, "tasks horizon"]
    rewards: Float[Array, "tasks horizon"]
    regret: Float[Array, "tasks horizon"]
    """Of each step, without noise."""
    explored: Bool[Array, "tasks horizon"]
    num_explore: Int[Array, " tasks"]
    support: Bool[Array, "tasks groups"]
    """The base kernels selected after each task, with which the next one is played."""
    fell_back: Bool[Array, " tasks"]
    """The selection after the task was empty: the next task is played with all base kernels."""
    status: Int[Array, " tasks"]
    """A `Status`, as a number: of the solve after the task, or `NON_FINITE_VALUES` or `NON_FINITE_REWARDS`
    where the environment had candidates or rewards that are no finite numbers."""
    gap: Float[Array, " tasks"]
    num_steps: Int[Array, " tasks"]
    carry: Any
    """Pass it back in, with the next tasks and the same key, to go on."""


def run_lifelong(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learner: AbstractMetaLearner,
    *,
    num_tasks: int,
    horizon: int,
    exploration: AbstractExploration | None = None,
    scaling: AbstractScaling = RAW,
    repeats: bool = True,
    tasks: range | None = None,
    carry: Any = None,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> LifelongResult:
    """Play `num_tasks` tasks of `horizon` steps, learning the prior of each from those before.

    **Arguments:**

    - `env`, `features`, `policy`, `meta_learner`: any of each.
    - `exploration`: forced exploration; by default what the meta-learner asks for.
    - `scaling`: the units in which policy and meta-learner see rewards; `Standardise()` where their scale
      is not known.
    - `repeats`: whether a candidate may be played twice in a task; without noise there is nothing to learn
      from that, and a tuner would not do it.
    - `tasks`, `carry`: to stop and go on. `tasks=range(0, 10)` plays the first ten of `num_tasks`; passing
      the result's `carry` back in with `tasks=range(10, 20)` and the same key plays the next, bit for bit as
      one long run would.
    - `progress_fn`: called with the number of tasks done after each task. A host callback: leave it out
      where speed counts.

    **Returns:** a `LifelongResult`. `jax.vmap` over `key` (or over anything else) runs many seeds as one
    batch.
    """
    results = run_agents(
        env,
        features,
        policy,
        {"agent": meta_learner},
        num_tasks=num_tasks,
        horizon=horizon,
        exploration=None if exploration is None else {"agent": exploration},
        scaling=scaling,
        repeats=repeats,
        tasks=tasks,
        carry=None if carry is None else {"agent": carry},
        progress_fn=progress_fn,
        key=key,
    )
    return results["agent"]


def run_agents(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    num_tasks: int,
    horizon: int,
    exploration: Mapping[str, AbstractExploration] | None = None,
    scaling: AbstractScaling = RAW,
    repeats: bool = True,
    tasks: range | None = None,
    carry: Mapping[str, Any] | None = None,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> dict[str, LifelongResult]:
    """`run_lifelong` for several meta-learners side by side: the same tasks, noise and exploration draws."""
    check_count("num_tasks", num_tasks)
    if not repeats and horizon > env.candidates.shape[-2]:
        fail("horizon", f"at most the {env.candidates.shape[-2]} candidates without repeats", horizon)
    tasks = range(num_tasks) if tasks is None else tasks
    if len(tasks) == 0 or tasks.step != 1 or tasks.start < 0 or tasks.stop > num_tasks:
        fail("tasks", f"a range within 0..{num_tasks}", tasks)
    if (carry is None) != (tasks.start == 0):
        fail("carry", "given just when `tasks` starts after 0", f"tasks={tasks} and carry={type(carry)}")
    plan = plan_agents(
        env, features, meta_learners, num_tasks=num_tasks, horizon=horizon, exploration=exploration
    )
    for name, learner in meta_learners.items():
        check_run_noise(policy.noise_std, learner, plan.settings[name])
    if carry is None:
        states = start_agents(meta_learners, plan, scaling)
    else:
        expected = "the `carry` of a run of the same agents, features, sizes and scaling"
        wanted = jax.eval_shape(lambda: start_agents(meta_learners, plan, scaling))
        check_same_tree("carry", expected, wanted, dict(carry))
        states = carry
    indices = jnp.arange(tasks.start, tasks.stop)
    counts = jnp.asarray(plan.counts[tasks.start : tasks.stop])
    names = tuple(meta_learners)
    results = _play_compiled(
        env,
        features,
        policy,
        names,
        tuple(meta_learners[name] for name in names),
        tuple(plan.settings[name] for name in names),
        tuple(states[name] for name in names),
        indices,
        counts,
        scaling,
        repeats,
        progress_fn,
        key,
    )
    return dict(zip(names, results, strict=True))


@eqx.filter_jit
def _play_compiled(
    env,
    features,
    policy,
    names,
    learners,
    settings,
    states,
    indices,
    counts,
    scaling,
    repeats,
    progress_fn,
    key,
):
    # Outside of `jit` every call would compile its scans anew. In tuples, as `jit` sorts dictionaries.
    results = play_tasks(
        env,
        features,
        policy,
        dict(zip(names, learners, strict=True)),
        dict(zip(names, settings, strict=True)),
        dict(zip(names, states, strict=True)),
        indices,
        counts,
        scaling=scaling,
        repeats=repeats,
        progress_fn=progress_fn,
        key=key,
    )
    return tuple(results[name] for name in names)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run of several agents is, before it starts: nothing in it is traced."""

    settings: dict[str, Setting]
    counts: np.ndarray
    """Forced exploration steps, [tasks, agents]."""


def plan_agents(
    env: AbstractEnv,
    features: AbstractFeatures,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    num_tasks: int,
    horizon: int,
    exploration: Mapping[str, AbstractExploration] | None = None,
) -> Plan:
    """Sizes and schedules of the agents; all of it known before tracing."""
    check_num_tasks(env, num_tasks)
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
    dtype = env.candidates.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    settings = {
        name: Setting(features.groups, num_tasks, horizon, int(most), dtype, features.free_groups)
        for name, most in zip(meta_learners, counts.max(0), strict=True)
    }
    return Plan(settings, counts)


def start_agents(
    meta_learners: Mapping[str, AbstractMetaLearner], plan: Plan, scaling: AbstractScaling = RAW
) -> dict[str, Any]:
    """Every agent's state before the first task: its learner's, and that of its units."""
    return {
        name: (learner.init(plan.settings[name]), scaling.init(plan.settings[name].dtype))
        for name, learner in meta_learners.items()
    }


def play_tasks(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learners: Mapping[str, AbstractMetaLearner],
    settings: Mapping[str, Setting],
    states: Mapping[str, Any],
    indices: Int[Array, " tasks"],
    counts: Int[Array, "tasks agents"],
    *,
    scaling: AbstractScaling = RAW,
    repeats: bool = True,
    progress_fn: Callable[[int], None] | None = None,
    key: PRNGKeyArray,
) -> dict[str, LifelongResult]:
    """Play the tasks numbered `indices`. Numbers are data here: one compiled program plays any part of a run
    of the same length."""
    horizon = next(iter(settings.values())).horizon
    candidate_features = features(env.candidates)

    def play_task(states, step):
        index, num_explore = step
        draws = draw_task(env, index, horizon, repeats=repeats, key=key)
        points = draws.task.points
        task_features = candidate_features if points is None else features(points)
        priors = [learner.prior(states[name][0], settings[name]) for name, learner in meta_learners.items()]
        scale_states = _stack([states[name][1] for name in meta_learners])
        play = jax.vmap(partial(run_task, repeats=repeats), in_axes=(None, 0, None, None, 0, None, 0))
        prior = _stack(in_one_shape(priors, policy.noise_std))
        results = play(policy, prior, task_features, draws, num_explore, scaling, scale_states)
        new_states, infos = {}, {}
        for number, (name, learner) in enumerate(meta_learners.items()):
            result = jax.tree.map(lambda leaf, number=number: leaf[number], results)
            state, scale_state = states[name]
            data = TaskData(task_features[result.actions], result.rewards, result.explored)
            usable = jnp.isfinite(result.rewards) & jnp.isfinite(result.regret)
            if not env.always_finite:
                data = only_present(data, usable)
            data, units = settled(data, scaling, policy.noise_std, settings[name])
            state, info = learner.update(state, data, settings[name])
            check_state(learner, states[name][0], state)
            infos[name] = eqx.tree_at(lambda i: i.status, info, draws.status(info.status, usable))
            new_states[name] = state, scaling.update(scale_state, units)
        if progress_fn is not None:
            # The index is the same for all seeds, so that a batch reports each task once.
            jax.debug.callback(progress_fn, index + 1)
        return new_states, (results, infos)

    counts = counts.astype(jnp.int32)
    states, (results, infos) = jax.lax.scan(play_task, dict(states), (indices, counts))
    return {
        name: _lifelong_result(number, results, infos[name], states[name], counts)
        for number, name in enumerate(meta_learners)
    }


def _lifelong_result(number: int, results: TaskResult, info: MetaInfo, state, counts) -> LifelongResult:
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
    """Every agent's, as one batch."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
