"""Offline meta-learning: learn from m tasks of random data, then play one new task (paper, section 6.1).

For every m from 1 to `num_tasks`, the prior learned from the first m data sets is used to play the same test
task. Only the prior varies with m.

| here        | paper                                                                                 |
|-------------|---------------------------------------------------------------------------------------|
| `num_tasks` | the largest m                                                                         |
| `num_rows`  | the size of each offline data set                                                     |
| `horizon`   | n, the steps of the test task                                                         |
"""

from collections.abc import Mapping
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, PriorMixture, in_one_shape
from jlibo.envs.base import AbstractEnv, check_num_tasks
from jlibo.features import AbstractFeatures
from jlibo.front_door import front_door
from jlibo.lifelong.one_task import draw_task, learner_key, run_task
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData, check_state
from jlibo.policies.base import AbstractPolicy


@final
class OfflineResult(eqx.Module):
    """Result of one agent for each number of offline tasks; returned by `run_offline`."""

    regret: Float[Array, "tasks horizon"]
    """Regret of each step of the test task, without noise."""
    support: Bool[Array, "tasks groups"]
    """Selected base kernels."""
    fell_back: Bool[Array, " tasks"]
    """Whether the selection was empty, so that the prior has all base kernels."""
    status: Int[Array, " tasks"]
    """`Status` of the solve, as a number."""
    gap: Float[Array, " tasks"]
    """Duality gap of the solve."""
    num_steps: Int[Array, " tasks"]
    """Steps of the solve."""


@front_door
def run_offline(
    env: AbstractEnv,
    features: AbstractFeatures,
    policy: AbstractPolicy,
    meta_learners: Mapping[str, AbstractMetaLearner],
    *,
    num_tasks: int,
    num_rows: int,
    horizon: int,
    key: PRNGKeyArray,
) -> dict[str, OfflineResult]:
    """Learn from up to `num_tasks` tasks of uniform draws, then play a new task with each learned prior.

    **Arguments:**

    - `env`: the environment; its task number `num_tasks` is the test task.
    - `features`: the feature map; its groups are the base kernels.
    - `policy`: plays the test task, without forced exploration.
    - `meta_learners`: meta-learner of each agent, by name.
    - `num_tasks`: number of offline tasks.
    - `num_rows`: number of uniform draws in each offline task.
    - `horizon`: number of steps of the test task.
    - `key`: random key of the run.

    **Returns:** the `OfflineResult` of each agent, by name.

    **Raises:** `ValueError` if the environment has fewer than `num_tasks + 1` tasks.

    ```python
    import jax

    import jlibo
    from jlibo.lifelong.offline import run_offline

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    learners = {"Meta-KGL": jlibo.MetaKGL(lam=0.1, omega=0.25), "naive": jlibo.FixedPrior()}
    results = run_offline(
        env, features, policy, learners, num_tasks=3, num_rows=10, horizon=16, key=jax.random.key(3)
    )
    print({name: result.regret.sum(axis=1) for name, result in results.items()})
    ```
    """
    check_num_tasks(env, num_tasks, held_out=1)
    candidate_features = features(env.candidates)
    sizes = RunSizes.of(
        features,
        num_tasks=num_tasks,
        horizon=num_rows,
        max_explore=num_rows,
        dtype=candidate_features.dtype,
    )

    learners = tuple(meta_learners.values())
    results = _learn_and_play(env, policy, learners, candidate_features, sizes, horizon=horizon, key=key)
    return dict(zip(meta_learners, results, strict=True))


@eqx.filter_jit
def _learn_and_play(
    env: AbstractEnv,
    policy: AbstractPolicy,
    learners: tuple[AbstractMetaLearner, ...],
    candidate_features: Float[Array, "candidates features"],
    sizes: RunSizes,
    *,
    horizon: int,
    key: PRNGKeyArray,
) -> list[OfflineResult]:
    # Jitted, because a scan outside of `jit` is recompiled at every call.
    num_tasks, num_rows = sizes.num_tasks, sizes.horizon

    def learn(states, index):
        draws = draw_task(env, index, num_rows, key=key)
        data = TaskData(
            features=candidate_features[draws.exploration],
            rewards=draws.task.values[draws.exploration] + draws.noise,
            explored=jnp.ones(num_rows, bool),
            key=learner_key(key, index),
        )
        new_states, priors, infos = [], [], []
        for learner, state in zip(learners, states, strict=True):
            new_state, info = learner.update(state, data, sizes)
            check_state(learner, state, new_state)
            new_states.append(new_state)
            infos.append(info)
            priors.append(learner.prior(new_state, sizes))
        return new_states, (in_one_shape(priors, policy.noise_std), infos)

    states = [learner.init(sizes) for learner in learners]
    _, (priors, infos) = jax.lax.scan(learn, states, jnp.arange(num_tasks))
    test = draw_task(env, jnp.asarray(num_tasks), horizon, key=key)

    def play(prior: Prior | PriorMixture):
        return run_task(policy, prior, candidate_features, test, jnp.zeros((), jnp.int32)).regret

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *priors)
    regret = jax.vmap(jax.vmap(play))(stacked)
    return [
        OfflineResult(regret[number], info.support, info.fell_back, info.status, info.gap, info.num_steps)
        for number, info in enumerate(infos)
    ]
