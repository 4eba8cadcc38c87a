"""Every method of the rivals: it runs on small environments, and its learner keeps the contract."""

import inspect
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena import METHODS, OneAfterAnother, Schedule, SequentialAgent, run_rounds
from jlibo.arena.cards import facts_of
from jlibo.arena.estimators import HyperPrior
from jlibo.arena.methods import (
    DoublyRobustLasso,
    EmpiricalBayes,
    HierarchicalPrior,
    JointHierarchy,
    LikelihoodPrior,
    PredictivePrior,
    TaskMomentsPrior,
    TraceNormPrior,
)
from jlibo.arena.methods.from_statistics import statistics_of_past
from jlibo.arena.registry import FAMILIES
from jlibo.envs.linear import BallArms, FreshArms, GaussianWeights, LinearEnv, LowRankWeights, TaskArms
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData
from jlibo.meta.past import no_past, remember

SIZE, NUM_TASKS, HORIZON, NOISE = 3, 5, 8, 0.5
OURS = {method.name: method for family in FAMILIES[1:] for method in family}
SIZES = RunSizes(tuple(range(SIZE)), NUM_TASKS, HORIZON, HORIZON, jnp.float64)
FRESH = FreshArms(4, SIZE)
GAUSSIAN = dict(hyper_std=1.0, covariance=0.04 * np.eye(SIZE))


def env_for(method, key):
    """A small environment with the facts on the card of the method."""
    if "rank" in method.card or "norm_bound" in method.card:
        weights = LowRankWeights.draw(num_features=SIZE, rank=2, key=key)
    else:
        weights = GaussianWeights.draw(**GAUSSIAN, key=key)
    return LinearEnv(weights, FRESH if "whole_action_set" in method.card else BallArms(1.0, SIZE), NOISE)


def play(method, key, *, schedule=None):
    env = env_for(method, key)
    agent = method.make(env.facts.only(facts_of(method.card)), SIZES)
    if isinstance(agent, SequentialAgent):
        agent = OneAfterAnother(agent.meta_learner, agent.policy, agent.exploration)
    if schedule is None:
        is_concurrent = method.setting == "concurrent"
        schedule = (Schedule.concurrent if is_concurrent else Schedule.sequential)(NUM_TASKS, HORIZON)
    return run_rounds(env, agent, schedule, SIZES, key=key)


@pytest.mark.parametrize("name", OURS)
def test_method_runs_and_batches_are_loops(name):
    keys = jax.random.split(jax.random.key(0), 2)
    run = eqx.filter_jit(eqx.filter_vmap(lambda key: play(OURS[name], key).regret))
    together = np.asarray(run(keys))
    assert np.isfinite(together).all() and (together >= -1e-9).all() and together.any()
    # A seed has the same result at any place of any batch.
    again = np.asarray(run(jnp.stack([keys[1], keys[1]])))
    np.testing.assert_allclose(again, np.stack([together[1]] * 2), atol=1e-8)


def test_every_method_has_a_page():
    pages = Path(jlibo.__file__).parent.parent / "docs" / "arena"
    lines = [line for page in pages.glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    named = " ".join(line for line in lines if line.startswith("**In the arena.**"))
    for name, method in METHODS.items():
        assert f"`{name}`" in named
        assert method.summary
    assert set(OURS) < set(METHODS)
    assert all(method.reference for method in OURS.values())


def prior(variance=1.0):
    return jlibo.Prior(jnp.zeros(SIZE), variance * jnp.ones(SIZE))


LEARNERS = {
    "HierarchicalPrior": HierarchicalPrior(prior(), 0.04 * jnp.eye(SIZE), NOISE),
    "EmpiricalBayes": EmpiricalBayes(NOISE, 1.0),
    "EmpiricalBayes, low rank": EmpiricalBayes(NOISE, 1.0, "low-rank", 2),
    "TaskMomentsPrior": TaskMomentsPrior(NOISE, prior(), data="all"),
    "ABLR": LikelihoodPrior(NOISE, 1.0, learn_mean=False, num_steps=20),
    "F-PACOH": LikelihoodPrior(
        NOISE, 1.0, hyper=HyperPrior.on_functions(np.eye(SIZE), np.eye(SIZE), 0.1), num_steps=20
    ),
    "TraceNormPrior": TraceNormPrior(1.0),
    "TraceNormPrior, covariance": TraceNormPrior(1.0, readout="covariance"),
}


def finished_tasks(num_tasks=NUM_TASKS, seed=0):
    rng = np.random.default_rng(seed)
    weights = np.array([1.0, -1.0, 0.0]) + 0.2 * rng.normal(size=(num_tasks, SIZE))
    features = rng.normal(size=(num_tasks, HORIZON, SIZE))
    rewards = np.einsum("trf,tf->tr", features, weights) + NOISE * rng.normal(size=(num_tasks, HORIZON))
    explored = np.zeros((num_tasks, HORIZON), bool)
    return [
        TaskData(*(jnp.asarray(leaf[s]) for leaf in (features, rewards, explored))) for s in range(num_tasks)
    ]


def test_every_learner_of_the_arena_is_in_the_table():
    def all_classes(one):
        return {one}.union(*map(all_classes, one.__subclasses__()))

    found = {one for one in all_classes(AbstractMetaLearner) if one.__module__.startswith("jlibo.arena.")}
    concrete = {one for one in found if not inspect.isabstract(one)}
    # `PredictivePrior` learns from rows, and has a test of its own.
    assert {type(one) for one in LEARNERS.values()} | {PredictivePrior} == concrete


@eqx.filter_jit
def update(learner, state, data):
    return learner.update(state, data, SIZES)


@pytest.mark.parametrize("name", LEARNERS)
def test_updates_one_by_one_are_learning_at_once(name):
    learner = LEARNERS[name]
    state, past = learner.init(SIZES), no_past("all", SIZES)
    for place, data in enumerate(finished_tasks()):
        state, info = update(learner, state, data)
        past = remember(past, jnp.asarray(place), data, "all", SIZES)
    at_once, _ = learner.learn(past, jnp.asarray(NUM_TASKS), SIZES)
    np.testing.assert_allclose(at_once.prior.mean, state.prior.mean, atol=1e-6)
    np.testing.assert_allclose(at_once.prior.covariance, state.prior.covariance, atol=1e-6)
    found = statistics_of_past(past)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), found, state.stats)
    assert info.support.all() and int(state.num_done) == NUM_TASKS


def test_learned_priors_move_to_the_tasks():
    """After five similar tasks the mean is near that of the tasks, for every learner of a mean."""
    for name in ("HierarchicalPrior", "EmpiricalBayes", "TaskMomentsPrior", "F-PACOH"):
        learner, state = LEARNERS[name], LEARNERS[name].init(SIZES)
        before = learner.prior(state, SIZES)
        np.testing.assert_allclose(before.mean, np.zeros(SIZE))
        for data in finished_tasks():
            state, _ = update(learner, state, data)
        found = learner.prior(state, SIZES)
        assert np.abs(found.mean - np.array([1.0, -1.0, 0.0])).max() < 0.6, name


def test_predictive_prior_learns_from_rows():
    learner = PredictivePrior(NOISE, 1.0, batch_size=3, learning_rate=0.3)
    state, past = learner.init(SIZES), no_past("all", SIZES)
    np.testing.assert_allclose(learner.prior(state, SIZES).covariance, np.eye(SIZE) / SIZE)
    for place, data in enumerate(finished_tasks()):
        state, _ = update(learner, state, data)
        past = remember(past, jnp.asarray(place), data, "all", SIZES)
    for found in (state.learned, learner.learn(past, jnp.asarray(NUM_TASKS), SIZES)[0].learned):
        assert np.abs(found.mean - np.array([1.0, -1.0, 0.0])).max() < 0.6


def test_hierarchy_on_tasks_in_sequence_is_adats():
    """With a bound the actions are deterministic, and must be the same at every step."""
    env = LinearEnv(GaussianWeights.draw(**GAUSSIAN, key=jax.random.key(3)), TaskArms(6, SIZE), NOISE)
    facts = env.facts
    width = 2.0
    joint = JointHierarchy(facts.hyper_prior, facts.task_covariance, NOISE, "bound", width)
    learner = HierarchicalPrior(facts.hyper_prior, facts.task_covariance, NOISE)
    alone = OneAfterAnother(learner, jlibo.GPUCB(width, NOISE))
    schedule, key = Schedule.sequential(NUM_TASKS, HORIZON), jax.random.key(4)
    want, found = (run_rounds(env, one, schedule, SIZES, key=key) for one in (alone, joint))
    np.testing.assert_allclose(found.features, want.features)
    np.testing.assert_allclose(found.rewards, want.rewards)


def test_doubly_robust_lasso_of_each_task_is_that_of_a_run_with_one_task():
    """With one task both penalties are the same; with more, tasks alone do not influence each other."""
    env = LinearEnv(LowRankWeights.draw(num_features=SIZE, rank=2, key=jax.random.key(3)), FRESH, NOISE)
    settings = dict(first_steps=3, explore_scale=0.2, penalty_scale=0.05, tol=1e-9)
    schedules = {1: Schedule.concurrent(1, 12), 3: Schedule.concurrent(3, 12)}

    def play(num_tasks, share_support):
        learner = DoublyRobustLasso(**settings, share_support=share_support)
        return run_rounds(env, learner, schedules[num_tasks], key=jax.random.key(4)).features

    np.testing.assert_allclose(play(1, True), play(1, False))
    np.testing.assert_allclose(play(3, False)[:, :1], play(1, True))
    assert not np.allclose(play(3, True)[:, :1], play(1, True))


def test_doubly_robust_lasso_refuses_sets_that_are_not_finite():
    env = LinearEnv(GaussianWeights.draw(**GAUSSIAN, key=jax.random.key(3)), BallArms(1.0, SIZE), NOISE)
    with pytest.raises(ValueError, match="`actions` should be a finite set"):
        run_rounds(env, DoublyRobustLasso(), Schedule.concurrent(2, 4), key=jax.random.key(0))
