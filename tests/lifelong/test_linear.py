"""Runs on action sets: the same as on candidates where sets are equal, and the same in batches and parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.actions import BoxActions
from jlibo.envs.linear import BallArms, BoxArms, CandidateArms, FreshArms, KernelWeights, LinearEnv, TaskArms
from jlibo.lifelong.linear import draw_linear_task, play_linear_tasks, run_linear_task
from jlibo.lifelong.play import AgentPlan, RunSpec, start_agents
from jlibo.meta.base import RunSizes
from tests.lifelong.small_runs import assert_same, close, equal, quick_jit

KEY = jax.random.key(0)
FEATURES = jlibo.Cosine(5)
POLICY = jlibo.GPUCB(nu=4.0, noise_std=0.1)
LAW = KernelWeights.draw(FEATURES.groups, support_size=2, key=KEY)
ENV = jlibo.SyntheticEnv.draw(FEATURES, support_size=2, key=KEY)
ON_CANDIDATES = LinearEnv(LAW, CandidateArms(ENV.candidate_features), noise_std=0.1)
BOX = LinearEnv(
    LAW, BoxArms(BoxActions(FEATURES, num_candidates=32, num_starts=2, num_steps=20)), noise_std=0.1
)
SIZES = dict(num_tasks=3, horizon=8)


def run(env, learner, *, policy=POLICY, **rest):
    return jlibo.run_lifelong(env, FEATURES, policy, learner, **SIZES, key=KEY, **rest)


@pytest.mark.parametrize("policy", [POLICY, jlibo.GPTS(noise_std=0.1)])
def test_candidates_as_a_linear_environment_give_the_run_on_candidates(policy):
    learner = jlibo.AdaptiveMetaKGL(num_lams=2, num_steps=2, exploration=jlibo.NoExploration())
    first, second = (run(env, learner, policy=policy) for env in (ENV, ON_CANDIDATES))
    equal(first.actions, second.actions)
    close(first.regret, second.regret, atol=1e-12)
    close(first.rewards, second.rewards, rtol=1e-12)
    equal(first.support, second.support)


def test_a_box_needs_no_candidates_and_is_as_good_as_a_fine_grid():
    """With the true kernel, both find the maximum of every task in a few steps."""
    learner = jlibo.FixedPrior(jlibo.support_prior(LAW.support, FEATURES.groups))
    rest = dict(num_tasks=3, horizon=20, key=KEY)
    policy = jlibo.GPUCB(nu=1.0, noise_std=0.1)
    on_box, on_grid = (jlibo.run_lifelong(env, FEATURES, policy, learner, **rest) for env in (BOX, ENV))
    assert on_box.actions.shape == (3, 20, 1)
    assert ((on_box.actions >= 0) & (on_box.actions <= 1)).all()
    assert on_box.regret.min() > -1e-3
    for result in (on_box, on_grid):
        assert result.regret[:, -5:].max() < 0.05 * result.regret[:, :2].mean()


def test_a_box_run_with_scaling_and_a_mixture_can_be_resumed():
    learner = jlibo.AdaptiveMetaKGL(num_lams=2, num_steps=2)
    rest = dict(scaling=jlibo.Standardise())
    whole = run(BOX, learner, **rest)
    first = run(BOX, learner, tasks=range(2), **rest)
    second = run(BOX, learner, tasks=range(2, 3), carry=first.carry, **rest)
    close(jnp.concatenate([first.regret, second.regret]), whole.regret, atol=1e-6)
    equal(jnp.concatenate([first.support, second.support]), whole.support)


def played(env, policy, key, *, horizon=6, learner=None):
    learner = jlibo.MetaKGL(lam=0.1, omega=0.1) if learner is None else learner
    counts = learner.exploration.counts(3, horizon)[:, None]
    groups = env.groups
    sizes = {"a": RunSizes(groups, 3, horizon, max(1, int(counts.max())), jnp.result_type(float))}
    spec = RunSpec.of(env, None, policy, {"a": learner}, sizes)
    states = start_agents({"a": learner}, AgentPlan(sizes, counts))
    return play_linear_tasks(spec, states, jnp.arange(3), jnp.asarray(counts), key=key)["a"]


@pytest.mark.parametrize("arms", [BallArms(1.0, 5), FreshArms(4, 5), TaskArms(4, 5)])
def test_a_batch_of_seeds_equals_each_seed(arms):
    env = LinearEnv(LAW, arms, noise_std=0.1)
    keys = jax.random.split(KEY, 3)
    one = quick_jit(lambda key: played(env, jlibo.GPTS(noise_std=0.1), key).regret)
    batch = quick_jit(jax.vmap(lambda key: played(env, jlibo.GPTS(noise_std=0.1), key).regret))(keys)
    close(batch, [one(key) for key in keys], atol=1e-9)
    assert batch.min() > -1e-9


def test_draws_do_not_depend_on_the_horizon_or_on_the_method():
    env = LinearEnv(LAW, FreshArms(4, 5), noise_std=0.1)
    short, long = (draw_linear_task(env, 1, horizon, key=KEY) for horizon in (4, 9))
    assert_same(short.task, long.task)
    for name in ("noise", "set_keys", "exploration_keys", "policy_keys"):
        one, other = getattr(short, name), getattr(long, name)[:4]
        if name != "noise":
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        equal(one, other)


def test_forced_exploration_comes_first_and_is_uniform():
    env = LinearEnv(LAW, BallArms(2.0, 5), noise_std=0.1)
    draws = draw_linear_task(env, 0, 6, key=KEY)
    result = run_linear_task(env, POLICY, jlibo.full_prior(range(5)), draws, 4)
    equal(result.explored, [True] * 4 + [False] * 2)
    explored = jax.vmap(lambda key: env.actions(draws.task, key=key).uniform(key=key).features)(
        draws.exploration_keys
    )
    close(result.features[:4], explored[:4])
    close(jnp.linalg.norm(result.features, axis=1), 2.0)
    values = result.features @ draws.task.weights
    close(result.rewards, values + draws.noise)
    close(result.regret, 2 * jnp.linalg.norm(draws.task.weights) - values)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`repeats` should be True for a LinearEnv"):
        run(BOX, jlibo.FixedPrior(), repeats=False)
    with pytest.raises(ValueError, match="`features` should be a map with the environment's 5 features"):
        jlibo.run_lifelong(BOX, jlibo.Cosine(6), POLICY, jlibo.FixedPrior(), **SIZES, key=KEY)


def test_noise_depends_on_task_and_step_only():
    """The rewards minus the values are the same for two methods."""
    env = LinearEnv(LAW, FreshArms(4, 5), noise_std=0.1)
    results = [played(env, policy, KEY) for policy in (POLICY, jlibo.Greedy(noise_std=0.1))]
    draws = [draw_linear_task(env, index, 6, key=KEY) for index in range(3)]
    for result in results:
        best = [
            [
                env.actions(one.task, key=key).best(one.task.weights).features @ one.task.weights
                for key in one.set_keys
            ]
            for one in draws
        ]
        noise = result.rewards - (np.asarray(best) - result.regret)
        close(noise, [one.noise for one in draws], atol=1e-12)
