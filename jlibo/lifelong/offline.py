"""Offline meta-learning: learn from m tasks of random data, then play one new task (paper, section 6.1).

For every m from 1 to `num_tasks` the kernel learned from the first m data sets plays the same test task, so
that what changes along a curve is the kernel alone.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, PriorMixture, in_one_shape
from jlibo.envs.base import AbstractEnv, check_num_tasks
from jlibo.features import AbstractFeatures
from jlibo.lifelong.one_task import draw_task, run_task
from jlibo.meta.base import AbstractMetaLearner, Setting, TaskData, check_state
from jlibo.policies.base import AbstractPolicy


class OfflineResult(eqx.Module):
    """One agent: the test task's regret, and the selection, after each number of offline tasks."""

    regret: Float[Array, "tasks horizon"]
    support: Bool[Array, "tasks groups"]
    fell_back: Bool[Array, " tasks"]
    status: Int[Array, " tasks"]
    gap: Float[Array, " tasks"]
    num_steps: Int[Array, " tasks"]


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
    """Learn from `num_tasks` tasks of `num_rows` uniform draws, then play a new task of `horizon` steps."""
    check_num_tasks(env, num_tasks, held_out=1)
    candidate_features = features(env.candidates)
    setting = Setting(
        features.groups, num_tasks, num_rows, num_rows, candidate_features.dtype, features.free_groups
    )

    def learn(states, index):
        draws = draw_task(env, index, num_rows, key=key)
        data = TaskData(
            features=candidate_features[draws.exploration],
            rewards=draws.task.values[draws.exploration] + draws.noise,
            explored=jnp.ones(num_rows, bool),
        )
        new_states, priors, infos = {}, [], {}
        for name, learner in meta_learners.items():
            new_states[name], infos[name] = learner.update(states[name], data, setting)
            check_state(learner, states[name], new_states[name])
            priors.append(learner.prior(new_states[name], setting))
        return new_states, (in_one_shape(priors, policy.noise_std), infos)

    states = {name: learner.init(setting) for name, learner in meta_learners.items()}
    _, (priors, infos) = jax.lax.scan(learn, states, jnp.arange(num_tasks))
    test = draw_task(env, jnp.asarray(num_tasks), horizon, key=key)

    def play(prior: Prior | PriorMixture):
        return run_task(policy, prior, candidate_features, test, jnp.zeros((), jnp.int32)).regret

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *priors)
    regret = jax.vmap(jax.vmap(play))(stacked)
    return {
        name: OfflineResult(
            regret[number],
            infos[name].support,
            infos[name].fell_back,
            infos[name].status,
            infos[name].gap,
            infos[name].num_steps,
        )
        for number, name in enumerate(meta_learners)
    }
