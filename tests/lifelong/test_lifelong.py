"""The lifelong loop: actions equal to a NumPy reference, the paper's findings, and jax transformations."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jlibo
from jlibo import (
    GPUCB,
    AbstractEnv,
    AdaptiveMetaKGL,
    ConstantExploration,
    Cosine,
    FederatedMetaKGL,
    FixedPrior,
    Fourier,
    FunctionEnv,
    Greedy,
    MetaKGL,
    Prior,
    RawRewards,
    Standardise,
    Status,
    SyntheticEnv,
    TableEnv,
    Task,
    run_agents,
    run_lifelong,
    support_prior,
)
from jlibo.lifelong import metrics
from jlibo.lifelong.exploration import explore_uniformly
from jlibo.lifelong.one_task import draw_task
from tests.lifelong import reference_lifelong

# The programs run briefly: with less optimisation they compile in half the time.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
close = np.testing.assert_allclose
equal = np.testing.assert_array_equal


def scattered(num, dim=1, seed=0):
    """Random candidates, because the symmetries of a grid give exact ties."""
    return np.sort(np.random.default_rng(seed).random((num, dim)), axis=0)


def assert_same(first, second, exact=True):
    """Compare two results leaf by leaf: bitwise, or floating-point leaves up to round-off."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if exact or not jnp.issubdtype(a.dtype, jnp.floating):
            equal(a, b)
        else:
            close(a, b, rtol=1e-7, atol=1e-7)


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


# --- batches, sweeps, resuming ---

SMALL = Cosine(6)
SIZES = dict(num_tasks=4, horizon=12)
POINTS = scattered(15)


def small_run(lam, key, *, carry=None, tasks=None, progress_fn=None, learner=None):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=jax.random.fold_in(key, 99))
    learner = MetaKGL(lam, 0.25) if learner is None else learner
    return run_lifelong(
        env,
        SMALL,
        GPUCB(5.0, 0.1),
        learner,
        **SIZES,
        carry=carry,
        tasks=tasks,
        progress_fn=progress_fn,
        key=key,
    )


SEEDS = jax.random.split(jax.random.key(0), 4)


@pytest.fixture(scope="module")
def one():
    return quick_jit(small_run)


@pytest.fixture(scope="module")
def looped(one):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one(0.2, key) for key in SEEDS])


def test_sweep_is_one_trace_and_batched_equals_looped_equals_chunked(count_traces, looped):
    counted, counter = count_traces(small_run)
    sweep = quick_jit(jax.vmap(jax.vmap(counted, in_axes=(None, 0)), in_axes=(0, None)))
    lams = jnp.asarray([0.2, 0.01])
    batched = sweep(lams, SEEDS)
    sweep(jnp.asarray([0.05, 0.4]), SEEDS[::-1])
    assert counter.count == 1
    assert batched.regret.shape == (2, 4, 4, 12)
    assert_same(jax.tree.map(lambda leaf: leaf[0], batched), looped, exact=False)
    chunks = [sweep(lams, SEEDS[:2]), sweep(lams, SEEDS[2:])]
    assert counter.count == 2
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *chunks)
    assert_same(joined, batched, exact=False)


@pytest.mark.parametrize("kind", ["jitted", "not jitted"])
def test_resumed_equals_uninterrupted(one, kind):
    if kind == "jitted":
        run, whole = quick_jit(small_run, static_argnames="tasks"), one(0.2, SEEDS[0])
    else:
        run = partial(small_run, learner=FixedPrior())
        whole = run(0.2, SEEDS[0])
    first = run(0.2, SEEDS[0], tasks=range(2))
    second = run(0.2, SEEDS[0], tasks=range(2, 4), carry=first.carry)
    assert_same(second.carry, whole.carry)
    for name in ("actions", "rewards", "regret", "support", "num_explore", "status", "gap", "num_steps"):
        equal(np.concatenate([getattr(first, name), getattr(second, name)]), getattr(whole, name))


def test_progress_is_reported_once_per_task_in_a_batch():
    told = []
    run = partial(small_run, 0.2, progress_fn=lambda done: told.append(int(done)), learner=FixedPrior())
    jax.block_until_ready(quick_jit(jax.vmap(run))(SEEDS))
    jax.effects_barrier()
    assert sorted(told) == [1, 2, 3, 4]


def test_lowers_for_every_platform():
    run = jax.jit(jax.vmap(lambda lam, data: small_run(lam, jax.random.wrap_key_data(data)).regret))
    exported = jax.export.export(run, platforms=["cpu", "cuda", "tpu"])(
        jax.ShapeDtypeStruct((2,), jnp.float64), jax.ShapeDtypeStruct((2, 2), jnp.uint32)
    )
    assert exported.platforms == ("cpu", "cuda", "tpu") and exported.out_avals[0].shape == (2, 4, 12)


def test_float32_is_kept():
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    learners = {"full": FixedPrior(), "flibo": FederatedMetaKGL(0.2, 0.25, 0.25, data="all")}
    results = quick_jit(partial(run_agents, **SIZES))(env, SMALL, GPUCB(5.0, 0.1), learners, key=SEEDS[0])
    for result in results.values():
        for leaf in jax.tree.leaves(result):
            assert leaf.dtype != jnp.float64 and np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize(
    "argument, options",
    [
        ("num_tasks", dict(num_tasks=0)),
        ("horizon", dict(horizon=2.5)),
        ("tasks", dict(tasks=range(9))),
        ("tasks", dict(tasks=range(0, 4, 2))),
        ("carry", dict(tasks=range(2, 4))),
        ("carry", dict(carry=())),
    ],
)
def test_invalid_arguments_of_run_lifelong(argument, options):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0])
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        run_lifelong(env, SMALL, Greedy(0.1), FixedPrior(), **{**SIZES, **options}, key=SEEDS[0])


def test_num_tasks_is_limited_by_the_table():
    with pytest.raises(ValueError, match="`num_tasks` should be at most the 5 tasks"):
        run_lifelong(table(own=False), SMALL, Greedy(0.1), FixedPrior(), num_tasks=6, horizon=3, key=SEEDS[0])


def test_invalid_arguments_of_run_agents():
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0])
    with pytest.raises(ValueError, match="`meta_learners` should be"):
        run_agents(env, SMALL, Greedy(0.1), {}, **SIZES, key=SEEDS[0])
    with pytest.raises(ValueError, match="`exploration` should be"):
        run_agents(
            env,
            SMALL,
            Greedy(0.1),
            {"a": FixedPrior()},
            exploration={"b": ConstantExploration()},
            **SIZES,
            key=SEEDS[0],
        )


def table(own):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 15))
    values[rng.random(values.shape) < 0.4] = np.nan
    return TableEnv(values, rng.random((5, 15, 1)) if own else POINTS, noise_std=0.1).shuffled(key=SEEDS[1])


ENVS = {
    "synthetic": lambda: SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0]),
    "table": lambda: table(own=False),
    "table of own candidates": lambda: table(own=True),
    "function": lambda: FunctionEnv(
        POINTS,
        lambda point, centre: -jnp.sum((point - centre) ** 2),
        lambda index, key: jax.random.uniform(key),
        0.1,
    ),
}


# --- non-finite values ---


class BadEnv(AbstractEnv):
    """A user's environment: the values of `plain`, with `bad` in given cells [tasks, candidates]."""

    plain: FunctionEnv
    is_bad: jax.Array
    bad: jax.Array
    candidates: jax.Array
    noise_std: jax.Array

    def task(self, index, *, key):
        values = self.plain.task(index, key=key).values
        return Task(jnp.where(self.is_bad[index], self.bad, values))


FUNCTION = ENVS["function"]()


def bad_env(is_bad, bad):
    return BadEnv(
        FUNCTION, jnp.asarray(is_bad), jnp.asarray(bad), jnp.asarray(POINTS), jnp.asarray(FUNCTION.noise_std)
    )


BAD_LEARNERS = {"full": FixedPrior(), "libo": MetaKGL(0.02, 0.05), "flibo": FederatedMetaKGL(0.02, 0.05, 0.5)}


@pytest.fixture(scope="module", params=[RawRewards(), Standardise()], ids=["raw", "standardised"])
def bad_run(request):
    def run(env, repeats):
        return run_agents(
            env,
            SMALL,
            GPUCB(5.0, 0.1),
            BAD_LEARNERS,
            **SIZES,
            scaling=request.param,
            repeats=repeats,
            key=SEEDS[3],
        )

    return quick_jit(run, static_argnames="repeats")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("repeats", [True, False])
def test_non_finite_candidates_are_never_played(bad_run, bad, repeats):
    cells = np.zeros((4, 15), bool)
    plain = bad_run(bad_env(cells, bad), repeats=repeats)
    best = np.asarray(plain["full"].actions[0, -1])
    cells[0, [best, 3]] = cells[2, :12] = True
    results = bad_run(bad_env(cells, bad), repeats=repeats)
    for name, result in results.items():
        assert (np.asarray(plain[name].status) == Status.CONVERGED).all()
        for field in ("rewards", "regret", "gap"):
            assert np.isfinite(getattr(result, field)).all(), (name, field)
        assert (np.asarray(result.regret) >= 0).all() and (np.asarray(result.regret).min(1) < 1).all()
        assert not cells[np.arange(4)[:, None], np.asarray(result.actions)].any()
        expected = [Status.NON_FINITE_VALUES, Status.CONVERGED] * 2
        equal(result.status, expected)
    assert np.asarray(results["libo"].support)[-1].any()


def test_task_without_finite_values_is_reported_and_not_learned_from(bad_run):
    cells = np.zeros((4, 15), bool)
    cells[1] = True
    results = bad_run(bad_env(cells, np.nan), repeats=True)
    whole = bad_run(bad_env(np.zeros((4, 15), bool), np.nan), repeats=True)
    for name, result in results.items():
        equal(result.status, [Status.CONVERGED, Status.NON_FINITE_REWARDS] + [Status.CONVERGED] * 2)
        equal(np.isnan(result.regret).all(1), np.arange(4) == 1)
        assert np.isfinite(result.regret[2:]).all() and np.isfinite(result.gap).all()
        assert_same(result.actions[0], whole[name].actions[0])
        for leaf in jax.tree.leaves(result.carry):
            assert np.isfinite(leaf).all()
    libo = results["libo"].carry[0].past
    assert not np.any(libo.features[1]) and not np.any(libo.targets[1]) and libo.num_observations[1] == 0
    assert np.asarray(results["libo"].support)[-1].any()


def test_values_are_checked_outside_of_jit():
    fn = lambda point, parameters: jnp.where(point[0] > parameters, jnp.log(-point[0]), point[0])  # noqa: E731
    env = FunctionEnv(POINTS, fn, lambda index, key: jnp.asarray([0.5, -1.0])[index], 0.1)
    draws = draw_task(env, 0, 50, key=SEEDS[0])
    bad = POINTS[:, 0] > 0.5
    assert bad.any() and not bad[np.asarray(draws.exploration)].any() and not draws.is_whole
    close(draws.task.best_value, POINTS[~bad].max())
    with pytest.raises(ValueError, match="`values` should be finite for at least one available candidate"):
        env.task(1, key=SEEDS[0])
    with pytest.raises(ValueError, match="`candidates` should be finite"):
        FunctionEnv(np.where(bad[:, None], np.nan, POINTS), fn, lambda index, key: 0.0, 0.1)


@pytest.mark.parametrize("available", [None, np.arange(15) % 2 == 0])
def test_exploration_is_uniform_on_finite_values(available):
    """If all values are finite, the draws equal those of `explore_uniformly`."""

    class Fixed(AbstractEnv):
        values: jax.Array
        candidates: jax.Array
        noise_std: jax.Array

        def task(self, index, *, key):
            return Task(self.values, available)

    values = np.zeros(15)
    env = Fixed(jnp.asarray(values), jnp.asarray(POINTS), jnp.asarray(0.1))
    draws = draw_task(env, 0, 6000, key=SEEDS[0])
    explore_key = jax.random.split(jax.random.fold_in(SEEDS[0], 0), 4)[2]
    equal(draws.exploration, explore_uniformly(Task(env.values, available), 6000, key=explore_key))
    values[[1, 4, 8]] = np.nan
    draws = draw_task(eqx.tree_at(lambda e: e.values, env, jnp.asarray(values)), 0, 6000, key=SEEDS[0])
    good = np.isfinite(values) & (True if available is None else available)
    counts = np.bincount(np.asarray(draws.exploration), minlength=15)
    assert (counts[~good] == 0).all() and stats.chisquare(counts[good]).pvalue > 0.01


# --- noise outside of the range of the precision ---


@pytest.mark.parametrize(
    "noise_std, learner",
    [
        (1e-19, FixedPrior()),
        (1e-10, FixedPrior()),
        (1e-5, MetaKGL(0.2, 0.25)),
        (1e-2, FixedPrior(Prior(np.zeros(6), np.full(6, 1e6)))),
        (0.1, AdaptiveMetaKGL(noise_std=1e-10)),
        (1e30, FixedPrior()),
    ],
)
def test_noise_outside_of_the_precision_range_is_refused(noise_std, learner):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    with pytest.raises(ValueError, match=r"`noise_std` should be from .*float32.*, but got"):
        run_lifelong(env, SMALL, GPUCB(5.0, noise_std), learner, **SIZES, key=SEEDS[0])


@pytest.mark.parametrize("scaling", [RawRewards(), Standardise()])
def test_traced_noise_is_clipped_to_the_precision_range(scaling):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    learners = {"libo": MetaKGL(0.2, 0.25), "learned": AdaptiveMetaKGL()}

    @quick_jit
    def run(noise_std):
        policy = GPUCB(5.0, noise_std)
        own = {**learners, "learned": AdaptiveMetaKGL(noise_std=noise_std)}
        return run_agents(env, SMALL, policy, own, scaling=scaling, **SIZES, key=SEEDS[0])

    runs = [run(jnp.float32(noise_std)) for noise_std in (0.0, 1e-30, 1e-19, 1e-10, 1e-5)]
    for results in runs:
        for name, result in results.items():
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.regret)), name
            equal(result.actions[0], runs[0][name].actions[0])
    close(FixedPrior(Prior(np.zeros(6), np.full(6, 1e-8), 1e-5)).fixed_prior.noise_std, 1e-5)


def test_small_noise_with_a_small_prior_is_accepted():
    """Noise is compared with the prior's standard deviation, not with 1."""
    env = ENVS["function"]()
    env = eqx.tree_at(lambda env: env.candidates, env, jnp.asarray(POINTS, "float32"))
    learner = FixedPrior(Prior(np.zeros(6, "float32"), np.full(6, 1e-8, "float32")))
    result = run_lifelong(env, SMALL, GPUCB(5.0, 1e-6), learner, num_tasks=1, horizon=3, key=SEEDS[0])
    assert np.isfinite(result.regret).all()


def test_eager_calls_are_compiled_once():
    traces = []

    class Counting(jlibo.AbstractPolicy):
        noise_std: jax.Array

        def scores(self, belief, *, key):
            traces.append(1)
            return belief.mean + belief.std

    features = jlibo.Cosine(4)
    env = jlibo.SyntheticEnv.draw(
        features, support_size=2, candidates=jnp.linspace(0, 1, 9)[:, None], key=jax.random.key(0)
    )

    def run(prior_scale, noise):
        prior = jlibo.Prior(jnp.zeros(4), jnp.full(4, prior_scale))
        learner = jlibo.FixedPrior(prior)
        policy = Counting(jnp.asarray(noise))
        return jlibo.run_lifelong(
            env, features, policy, learner, num_tasks=2, horizon=3, key=jax.random.key(0)
        )

    run(0.25, 0.1)
    first = len(traces)
    run(0.5, 0.2)
    assert first > 0
    assert len(traces) == first
