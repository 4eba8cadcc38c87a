"""The lifelong loop: actions equal to a NumPy reference, and the paper's findings."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

from jlibo import (
    GPUCB,
    Cosine,
    FederatedMetaKGL,
    FixedPrior,
    Fourier,
    MetaKGL,
    SyntheticEnv,
    run_agents,
    run_lifelong,
    support_prior,
)
from jlibo.lifelong import metrics
from jlibo.lifelong.one_task import draw_task
from tests.lifelong import reference_lifelong
from tests.lifelong.small_runs import assert_same, close, equal, quick_jit, scattered

# --- comparison with NumPy ---

LAM = {"libo": 0.5, "flibo": 0.2}
OMEGA, ALPHA, NU, NOISE = 0.25, 0.25, 10.0, 0.1
NUM_TASKS, HORIZON = 8, 30
FEATURES = {"cosine": Cosine(12), "fourier": Fourier(5)}
AGENTS = {
    "cosine": ["oracle", "full", "libo", "flibo", "libo all", "flibo all"],
    "fourier": ["libo", "flibo all"],
}


def make_learner(name, env, features):
    agent, _, data = name.partition(" ")
    options = dict(data=data or "exploration", tol=1e-10)
    return {
        "oracle": lambda: FixedPrior(support_prior(env.support, features.groups)),
        "full": FixedPrior,
        "libo": lambda: MetaKGL(LAM["libo"], OMEGA, **options),
        "flibo": lambda: FederatedMetaKGL(LAM["flibo"], OMEGA, ALPHA, **options),
    }[agent]()


@pytest.fixture(scope="module")
def played():
    """Per feature map and seed: the environment, its draws as NumPy arrays, and all agents' results."""
    out = {}
    for kind, features in FEATURES.items():
        run = quick_jit(partial(run_agents, num_tasks=NUM_TASKS, horizon=HORIZON))
        draw = quick_jit(lambda env, index, key: draw_task(env, index, HORIZON, key=key))
        for seed in (4, 21):
            env_key, key = jax.random.key(seed), jax.random.key(seed + 1)
            env = SyntheticEnv.draw(features, support_size=3, candidates=scattered(60), key=env_key)
            learners = {name: make_learner(name, env, features) for name in AGENTS[kind]}
            results = run(env, features, GPUCB(NU, NOISE), learners, key=key)
            draws = [draw(env, index, key) for index in range(NUM_TASKS)]
            tasks = [tuple(map(np.asarray, (d.task.values, d.noise, d.exploration))) for d in draws]
            out[kind, seed] = env, learners, tasks, results
    return out


@pytest.mark.parametrize("seed", [4, 21])
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in AGENTS.items() for name in names])
def test_actions_equal_numpy_reference(played, kind, name, seed):
    env, _, tasks, results = played[kind, seed]
    agent, _, data = name.partition(" ")
    result = results[name]
    assert (np.asarray(result.status) == 0).all(), "not solved: nothing to compare"
    expected = reference_lifelong.run(
        agent,
        np.asarray(env.candidate_features),
        FEATURES[kind].groups,
        tasks,
        np.asarray(result.actions),
        support=np.flatnonzero(env.support),
        nu=NU,
        noise_std=NOISE,
        lam=LAM.get(agent),
        omega=OMEGA,
        alpha=ALPHA,
        data=data or "exploration",
    )
    equal(result.num_explore, expected["num_explore"])
    equal(result.actions, expected["actions"])
    equal(result.support, expected["support"])
    close(result.regret, expected["regret"], rtol=0, atol=1e-12)
    close(result.rewards, expected["rewards"], rtol=0, atol=1e-12)
    equal(result.explored, np.arange(HORIZON) < np.asarray(result.num_explore)[:, None])
    equal(result.fell_back, ~expected["support"].any(1))
    if agent in ("libo", "flibo"):
        assert len(np.unique(expected["support"], axis=0)) > 1, "the selection never changed: a weak test"


def test_all_agents_have_the_same_tasks(played):
    _, _, tasks, results = played["cosine", 4]
    for result in results.values():
        for task, (values, noise, _) in enumerate(tasks):
            actions = np.asarray(result.actions[task])
            close(result.rewards[task], values[actions] + noise, atol=1e-12)
    longer = np.minimum(results["libo"].num_explore, results["flibo"].num_explore)
    for task, count in enumerate(longer):
        equal(results["libo"].actions[task, :count], results["flibo"].actions[task, :count])


def test_run_agents_equals_run_lifelong(played):
    name = "libo all"
    env, learners, _, results = played["cosine", 4]
    run = quick_jit(partial(run_lifelong, num_tasks=NUM_TASKS, horizon=HORIZON))
    alone = run(env, FEATURES["cosine"], GPUCB(NU, NOISE), learners[name], key=jax.random.key(5))
    assert_same(
        eqx.tree_at(lambda r: r.carry, alone, ()), eqx.tree_at(lambda r: r.carry, results[name], ()), False
    )


# --- the paper's findings ---


@pytest.fixture(scope="module")
def findings():
    """Four agents, 40 seeds, and enough tasks for three periods of the vote."""
    features, candidates = Cosine(30), scattered(100)

    @quick_jit
    @jax.vmap
    def run(key):
        env_key, run_key = jax.random.split(key)
        env = SyntheticEnv.draw(features, support_size=4, candidates=candidates, key=env_key)
        learners = {
            "oracle": FixedPrior(support_prior(env.support, features.groups)),
            "full": FixedPrior(),
            "libo": MetaKGL(LAM["libo"], OMEGA),
            "flibo": FederatedMetaKGL(LAM["flibo"], OMEGA, ALPHA),
        }
        results = run_agents(
            env, features, GPUCB(NU, NOISE), learners, num_tasks=14, horizon=100, key=run_key
        )
        return results, env.support

    return run(jax.random.split(jax.random.key(0), 40))


@pytest.mark.parametrize("worse, better", [("full", "flibo"), ("flibo", "libo"), ("libo", "oracle")])
def test_regret_order_of_the_agents(findings, worse, better):
    results, _ = findings
    total = {name: np.asarray(result.regret).sum((1, 2)) for name, result in results.items()}
    mean, error = metrics.mean_and_standard_error(total[worse] - total[better])
    assert mean > 3 * error, f"{worse} - {better}: {mean} +- {error}"


def test_libo_regret_approaches_the_oracle(findings):
    results, support = findings
    last = {name: np.asarray(metrics.task_regret(r))[:, -4:].mean() for name, r in results.items()}
    assert last["libo"] - last["oracle"] < 0.3 * (last["full"] - last["oracle"])
    first = np.asarray(metrics.task_regret(results["libo"]))[:, 0].mean()
    assert last["libo"] < 0.5 * first
    # The remaining difference is due to forced exploration: the regret of chosen steps is near the oracle's.
    _, chosen = metrics.exploration_regret(results["libo"])
    assert np.asarray(chosen)[:, -4:].mean() < 1.2 * last["oracle"]
    recovered = np.asarray(metrics.recovery(results["libo"], support)).mean(0)
    assert recovered[-1] > recovered[0] and recovered[-1] > 0.5


def test_flibo_support_oscillates_with_period_one_over_alpha_and_decays(findings):
    results, _ = findings
    size = np.asarray(metrics.support_size(results["flibo"])).mean(0)
    after = {task: size[task - 1] for task in range(1, 15)}  # counted from 1, as in the paper
    drops = [after[peak] - after[peak + 1] for peak in (4, 8, 12)]
    assert drops[0] > drops[1] > drops[2] > 0
    for start in (5, 9):
        between = [after[task] for task in range(start, start + 4)]
        assert between == sorted(between), "between two drops each client can only add"


def test_all_solves_converge(findings):
    for name, result in findings[0].items():
        assert (np.asarray(result.status) == 0).all(), name
        assert np.isfinite(np.asarray(result.gap)).all()
