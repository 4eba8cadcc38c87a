"""The driver: equal to the scan over tasks, whatever the schedule, the padding or the batch."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena import AbstractJointLearner, Choice, OneAfterAnother, Schedule, run_rounds
from jlibo.arena.estimators import Gaussian, condition, statistics_of
from jlibo.arena.rounds import sizes_of
from jlibo.envs.linear import BallArms, EllipsoidArms, FreshArms, KernelWeights, LinearEnv, TaskArms
from jlibo.lifelong.linear import play_linear_tasks
from jlibo.lifelong.play import AgentPlan, RunSpec, start_agents
from tests.lifelong.small_runs import quick_jit

KEY = jax.random.key(0)
LAW = KernelWeights.draw(range(5), support_size=2, norm_bound=2.0, beta_min=0.1, key=KEY)
SEQUENCE = Schedule.sequential(3, 6)
# Different variances: with equal ones all actions of a ball have the same score at first.
PRIOR = jlibo.Prior(jnp.asarray([0.1, 0.0, 0.2, 0.0, -0.1]), jnp.asarray([1.0, 0.7, 0.5, 0.3, 0.1]))
LEARNERS = {
    "fixed": jlibo.FixedPrior(PRIOR, exploration=jlibo.ConstantExploration(0.5)),
    "group lasso": jlibo.MetaKGL(lam=0.05, omega=0.05),
}
ARMS = {
    "ball": BallArms(1.0, 5),
    "ellipsoid": EllipsoidArms(3.0, 5),
    "fresh": FreshArms(4, 5),
    "task": TaskArms(6, 5),
}


class Greedy(AbstractJointLearner):
    """Greedy play on shared ridge regression; the state counts what the driver called."""

    every: ClassVar[int] = 2

    def ticks(self, schedule):
        return np.arange(schedule.num_rounds) % self.every == 0

    def init(self, sizes):
        return {"refreshed": jnp.zeros((), jnp.int32), "plays": jnp.zeros(sizes.num_tasks, jnp.int32)}

    def refresh(self, state, statistics, number, sizes):
        return {**state, "refreshed": state["refreshed"] + 1}

    def choose(self, state, statistics, turn, sizes):
        prior = Gaussian(jnp.zeros(sizes.num_features), jnp.eye(sizes.num_features))

        def one(task, step, actions, explore):
            belief = condition(prior, statistics.gram[task], statistics.moment[task], 1.0)
            best = actions.best(belief.mean)
            is_first = step == 0
            return Choice(jax.tree.map(lambda a, b: jnp.where(is_first, a, b), explore, best), is_first)

        return jax.vmap(one)(turn.tasks, turn.steps, turn.actions, turn.exploration)

    def observe(self, state, turn, choice, rewards, sizes):
        return {**state, "plays": state["plays"].at[turn.tasks].add(turn.present.astype(jnp.int32))}


def scan_over_tasks(env, learner, policy, key):
    counts = learner.exploration.counts(3, 6)[:, None]
    sizes = {"a": sizes_of(env, SEQUENCE, max_explore=int(counts.max()))}
    spec = RunSpec.of(env, None, policy, {"a": learner}, sizes)
    states = start_agents({"a": learner}, AgentPlan(sizes, counts))
    return play_linear_tasks(spec, states, jnp.arange(3), jnp.asarray(counts), key=key)["a"]


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("learner, policy", [("fixed", "gp_ucb"), ("group lasso", "gp_ts")])
def test_a_sequential_schedule_is_the_scan_over_tasks(arms, learner, policy):
    env, learner = LinearEnv(LAW, ARMS[arms], noise_std=0.3), LEARNERS[learner]
    policy = {"gp_ucb": jlibo.GPUCB(nu=2.0, noise_std=0.3), "gp_ts": jlibo.GPTS(noise_std=0.3)}[policy]
    expected = scan_over_tasks(env, learner, policy, KEY)
    found = run_rounds(env, OneAfterAnother(learner, policy), SEQUENCE, key=KEY)
    np.testing.assert_allclose(SEQUENCE.by_task(found.regret), expected.regret, atol=1e-6)
    np.testing.assert_allclose(SEQUENCE.by_task(found.rewards), expected.rewards, atol=1e-6)
    np.testing.assert_array_equal(SEQUENCE.by_task(found.explored), expected.explored)


ENV = LinearEnv(LAW, ARMS["fresh"], noise_std=0.3)


def test_the_schedule_does_not_change_what_a_method_without_transfer_does():
    """Weights, contexts and noise are functions of task and step."""
    runs = []
    for schedule in (SEQUENCE, Schedule.concurrent(3, 6), Schedule.shuffled(3, 6, 2, seed=1)):
        found = run_rounds(ENV, Greedy(), schedule, key=KEY)
        runs.append(schedule.by_task(found.regret))
        np.testing.assert_array_equal(found.state["plays"], [6, 6, 6])
        assert found.state["refreshed"] == -(-schedule.num_rounds // 2)
    np.testing.assert_allclose(runs[1], runs[0], atol=1e-12)
    np.testing.assert_allclose(runs[2], runs[0], atol=1e-12)


def test_concurrent_play_of_one_task_is_sequential_play():
    one, other = (getattr(Schedule, kind)(1, 6) for kind in ("sequential", "concurrent"))
    np.testing.assert_array_equal(one.task_of, other.task_of)


def test_empty_lanes_and_rounds_change_nothing():
    padded = np.full((14, 3), -1)
    padded[:6, 0], padded[8:, 2] = 0, 1
    schedule, sequence = Schedule(padded), Schedule.sequential(2, 6)
    found, expected = (run_rounds(ENV, Greedy(), one, key=KEY) for one in (schedule, sequence))
    np.testing.assert_allclose(schedule.by_task(found.regret), sequence.by_task(expected.regret), atol=1e-12)
    for one, other in zip(
        jax.tree.leaves(found.statistics), jax.tree.leaves(expected.statistics), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-12)
    assert not found.regret[6:8].any()
    assert not found.explored[padded < 0].any()


def test_statistics_are_those_of_the_actions_and_rewards():
    found = run_rounds(ENV, Greedy(), SEQUENCE, key=KEY)
    rows, rewards = found.features.reshape(3, 6, 5), found.rewards.reshape(3, 6)
    expected = statistics_of(rows, rewards)
    for one, other in zip(jax.tree.leaves(found.statistics), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_batch_of_seeds_equals_each_seed():
    schedule = Schedule.concurrent(3, 4)
    keys = jax.random.split(KEY, 3)
    one = quick_jit(lambda key: run_rounds(ENV, Greedy(), schedule, key=key).regret)
    batch = quick_jit(jax.vmap(lambda key: run_rounds(ENV, Greedy(), schedule, key=key).regret))(keys)
    np.testing.assert_allclose(batch, [one(key) for key in keys], atol=1e-10)


def test_a_learner_that_changes_its_state_is_named():
    class Changing(Greedy):
        def observe(self, state, turn, choice, rewards, sizes):
            return {**state, "plays": state["plays"].astype(float)}

    with pytest.raises(ValueError, match=r"Changing.observe\(...\)"):
        run_rounds(ENV, Changing(), SEQUENCE, key=KEY)


def test_ticks_of_a_wrong_length_are_refused():
    class Short(Greedy):
        def ticks(self, schedule):
            return np.ones(2, bool)

    with pytest.raises(ValueError, match=r"`Short.ticks\(...\)` should be an array of shape \[18\]"):
        run_rounds(ENV, Short(), SEQUENCE, key=KEY)


def test_tasks_of_different_lengths_are_refused_by_one_after_another():
    learner = OneAfterAnother(LEARNERS["fixed"], jlibo.GPTS(noise_std=0.3))
    with pytest.raises(ValueError, match="`schedule` should be one that plays every task 2 times"):
        run_rounds(ENV, learner, Schedule(np.asarray([[0, 1], [0, -1]])), key=KEY)
