"""The lifelong loop: tasks in sequence, each played with the prior learned from the tasks before it.

| here           | paper                                                                             |
|----------------|-----------------------------------------------------------------------------------|
| `run_lifelong` | LiBO (Algorithm 2) and F-LiBO (Algorithm 3): the same loop, other meta-learners   |
| `horizon`      | n, the steps of a task                                                            |
| `num_tasks`    | m                                                                                 |
| `regret`       | f_s(x*_s) - f_s(x_{s,i}); its sum over tasks and steps is R(m, n)                 |
| `support`      | J_hat_s, the kernels selected after task s                                        |

A run is a scan over tasks around a scan over steps (`jlibo.lifelong.one_task`), and a pure function of its
arguments and a key. Agents that differ only in their meta-learner run as one batch (`run_agents`): priors are
data, so the inner loop is compiled once, and one product with the candidates' features serves all agents and
seeds.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jlibo.belief.scaling import RAW, AbstractScaling
from jlibo.checks import check_count, check_same_tree, fail
from jlibo.envs.base import AbstractEnv
from jlibo.envs.linear.base import LinearEnv
from jlibo.features import AbstractFeatures
from jlibo.front_door import front_door
from jlibo.lifelong.linear import play_linear_tasks
from jlibo.lifelong.play import LifelongResult, RunSpec, plan_agents, play_tasks, start_agents
from jlibo.meta.base import (
    AbstractMetaLearner,
    check_run_noise,
)
from jlibo.meta.exploration import AbstractExploration
from jlibo.policies.base import AbstractPolicy


@front_door
def run_lifelong(
    env: AbstractEnv | LinearEnv,
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
    """Play `num_tasks` tasks of `horizon` steps, each with the prior learned from the tasks before it.

    Use `jax.vmap` over `key` (or over another argument) to run many seeds as one batch.

    **Arguments:**

    - `env`: the environment, a sequence of tasks. With a `jlibo.envs.linear.LinearEnv` over `BoxArms` there
      are no candidates: actions are points of a box, found by multi-start gradient ascent.
    - `features`: the feature map; its groups are the base kernels.
    - `policy`: chooses the actions after forced exploration.
    - `meta_learner`: learns the prior.
    - `num_tasks`: number of tasks of the run.
    - `horizon`: number of steps of each task.
    - `exploration`: schedule of forced exploration; by default that of the meta-learner.
    - `scaling`: units in which policy and meta-learner see rewards. Use `Standardise()` if the scale of the
      rewards is unknown.
    - `repeats`: whether a candidate may be played twice in a task. Without noise a second play gives no
      information, so tuning uses False.
    - `tasks`, `carry`: to stop and resume. `tasks=range(0, 10)` plays the first ten of `num_tasks`. Passing
      the result's `carry` with `tasks=range(10, 20)` and the same key plays the next ten. The results are bit
      for bit those of one long run.
    - `progress_fn`: called with the number of finished tasks after each task. It is a host callback: leave it
      out where speed matters.
    - `key`: random key of the run.

    **Returns:** a `LifelongResult`.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    learner = jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.regret.sum())
    ```
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


@front_door
def run_agents(
    env: AbstractEnv | LinearEnv,
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
    """Run several meta-learners as one batch, on the same tasks, noise and exploration draws.

    **Arguments:**

    - `meta_learners`: meta-learner of each agent, by name.
    - `exploration`: schedules of forced exploration, by name. An agent without an entry uses the schedule of
      its meta-learner.
    - `carry`: the `carry` of each agent's result, by name, to resume.
    - All other arguments: as in `run_lifelong`.

    **Returns:** the `LifelongResult` of each agent, by name.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    learners = {"LiBO": jlibo.MetaKGL(lam=0.1, omega=0.25), "naive": jlibo.FixedPrior()}
    results = jlibo.run_agents(env, features, policy, learners, num_tasks=3, horizon=16, key=key)
    print({name: float(result.regret.sum()) for name, result in results.items()})
    ```
    """
    check_count("num_tasks", num_tasks)
    if isinstance(env, LinearEnv):
        if not repeats:
            fail("repeats", "True for a LinearEnv, whose actions are not a list of candidates", repeats)
    elif not repeats and horizon > env.candidates.shape[-2]:
        fail("horizon", f"at most the {env.candidates.shape[-2]} candidates without repeats", horizon)
    tasks = range(num_tasks) if tasks is None else tasks
    if len(tasks) == 0 or tasks.step != 1 or tasks.start < 0 or tasks.stop > num_tasks:
        fail("tasks", f"a range within 0..{num_tasks}", tasks)
    if (carry is None) != (tasks.start == 0):
        fail(
            "carry",
            "given if and only if `tasks` starts after 0",
            f"{tasks} and carry {type(carry).__name__}",
        )
    plan = plan_agents(
        env, features, meta_learners, num_tasks=num_tasks, horizon=horizon, exploration=exploration
    )
    for name, learner in meta_learners.items():
        check_run_noise(policy.noise_std, learner, plan.sizes[name])
    spec = RunSpec.of(env, features, policy, meta_learners, plan.sizes, scaling=scaling, repeats=repeats)
    if carry is None:
        states = start_agents(meta_learners, plan, scaling)
    else:
        expected = "the `carry` of a run of the same agents, features, sizes and scaling"
        wanted = jax.eval_shape(lambda: start_agents(meta_learners, plan, scaling))
        check_same_tree("carry", expected, wanted, dict(carry))
        states = carry
    results = _play_compiled(
        spec,
        {name: states[name] for name in meta_learners},
        jnp.arange(tasks.start, tasks.stop),
        jnp.asarray(plan.counts[tasks.start : tasks.stop]),
        progress_fn=progress_fn,
        key=key,
    )
    # In the caller's order: `jit` sorts the keys of dictionaries.
    return {name: results[name] for name in meta_learners}


@eqx.filter_jit
def _play_compiled(spec, states, indices, counts, *, progress_fn, key):
    # Jitted, because a scan outside of `jit` is recompiled at every call.
    play = play_linear_tasks if isinstance(spec.env, LinearEnv) else play_tasks
    return play(spec, states, indices, counts, progress_fn=progress_fn, key=key)
