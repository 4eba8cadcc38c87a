"""Meta-learners: selection, messages of federated clients, and lossless compression of rows."""

import inspect
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import (
    AbstractMetaLearner,
    AdaptiveMetaKGL,
    Cosine,
    CustomExploration,
    FederatedMetaKGL,
    FixedPrior,
    Fourier,
    MetaKeL,
    MetaKGL,
    NoExploration,
    Prior,
    SelfTunedMetaKGL,
    Status,
    SyntheticEnv,
    full_prior,
    support_prior,
)
from jlibo.lifelong.loop import run_lifelong
from jlibo.meta import RunSizes, TaskData, client_step, compress_rows, server_vote
from jlibo.meta.meta_kgl import solve_past
from jlibo.meta.past import no_past, remember
from jlibo.meta.rows import rows_of
from jlibo.policies import GPUCB
from tests import reference

GROUPS = (0, 0, 1, 2, 2, 3, 1, 4)
NUM_GROUPS, HORIZON, EXPLORE, NUM_TASKS = 5, 12, 6, 4
SIZES = RunSizes(GROUPS, NUM_TASKS, HORIZON, EXPLORE, jnp.float64)
SUPPORT = np.array([False, True, False, True, False])
close = np.testing.assert_allclose


@eqx.filter_jit
def update(learner, state, data, sizes):
    return learner.update(state, data, sizes)


@pytest.fixture(scope="module")
def tasks():
    """Four tasks on the same two base kernels; task s explores for 6 - s steps."""
    rng = np.random.default_rng(0)
    out = []
    for task in range(NUM_TASKS):
        features = rng.normal(size=(HORIZON, len(GROUPS)))
        coef = rng.choice([-1, 1], len(GROUPS)) * rng.uniform(1, 2, len(GROUPS)) * SUPPORT[list(GROUPS)]
        rewards = features @ coef + 0.05 * rng.normal(size=HORIZON)
        explored = np.arange(HORIZON) < EXPLORE - task
        out.append(TaskData(*map(jnp.asarray, (features, rewards, explored))))
    return out


def learn(learner, tasks, sizes=SIZES):
    state, infos = learner.init(sizes), []
    for data in tasks:
        state, info = update(learner, state, data, sizes)
        infos.append(info)
    return state, infos


def raw_rows(tasks, data):
    """The rows available to a learner, as design, targets and mask, not compressed."""
    mask = np.stack([np.asarray(t.explored) | (data == "all") for t in tasks])
    return np.stack([t.features for t in tasks]), np.stack([t.rewards for t in tasks]), mask


def tight(learner):
    """Set a tight tolerance; it is an array, so that tests with other tolerances do not recompile."""
    return eqx.tree_at(lambda at: at.tol, learner, jnp.asarray(1e-10))


def kgl(lam=0.1, omega=0.25, **options):
    return tight(MetaKGL(lam, omega, **options))


def federated(alpha=0.5, **options):
    return tight(FederatedMetaKGL(0.1, 0.25, alpha, **options))


both_data = pytest.mark.parametrize("data", ["exploration", "all"])
selecting = pytest.mark.parametrize("make", [kgl, federated])


# --- Meta-KGL ---


@both_data
def test_meta_kgl_equals_the_reference_and_recovers_the_support(tasks, data):
    state, infos = learn(kgl(data=data), tasks)
    for done, info in enumerate(infos, start=1):
        design, targets, mask = raw_rows(tasks[:done], data)
        coef, _ = reference.group_lasso_solve(design, targets, 0.1, GROUPS, mask, tol=1e-10)
        norms = reference.group_norms(coef, GROUPS)
        np.testing.assert_array_equal(info.support, norms > 0.25 * np.sqrt(done))
        assert Status(int(info.status)) == Status.CONVERGED and not info.fell_back
    np.testing.assert_array_equal(infos[-1].support, SUPPORT)
    close(state.coef, coef, atol=1e-4)
    prior = kgl().prior(state, SIZES)
    close(prior.covariance, support_prior(SUPPORT, GROUPS).covariance)


@both_data
@selecting
def test_gap_is_in_the_units_of_the_loss(tasks, data, make):
    """With compressed and absent rows too, the gap bounds the excess of the paper's loss."""
    learner = eqx.tree_at(lambda at: at.tol, make(data=data), jnp.asarray(1e-3))
    _, info = update(learner, learner.init(SIZES), tasks[2], SIZES)
    design, targets, mask = raw_rows(tasks[2:3], data)
    _, solution = client_step(rows_of(tasks[2], data, SIZES), 0.1, 0.25, GROUPS, tol=1e-3)
    coef = np.asarray(solution.coef)
    best, _ = reference.group_lasso_solve(design, targets, 0.1, GROUPS, mask, tol=1e-12)
    excess = [reference.group_lasso_objective(design, targets, 0.1, GROUPS, mask, b) for b in (coef, best)]
    limit = 1e-3 * np.mean(targets[mask] ** 2) * (1 + 1e-9)
    assert -1e-12 <= excess[0] - excess[1] <= float(info.gap) <= limit
    close(info.gap, solution.gap, rtol=1e-6)


@pytest.mark.parametrize("done", [1, 3])
def test_threshold_is_omega_sqrt_s_and_strict(tasks, done):
    """A kernel is dropped exactly when omega * sqrt(s) reaches its norm."""
    state, _ = learn(kgl(omega=0.0), tasks[:done])
    norms = reference.group_norms(np.asarray(state.coef), GROUPS)
    for norm in norms[norms > 0]:
        for factor in (1 - 1e-9, 1 + 1e-9):
            _, infos = learn(kgl(omega=float(factor * norm / np.sqrt(done))), tasks[:done])
            np.testing.assert_array_equal(infos[-1].support, norms > factor * norm)


@selecting
def test_empty_selection_falls_back_to_all_kernels_and_sets_fell_back(tasks, make):
    learner = eqx.tree_at(lambda at: at.omega, make(), jnp.asarray(1e6))
    state, (info,) = learn(learner, tasks[:1])
    assert bool(info.fell_back) and not info.support.any()
    close(learner.prior(state, SIZES).covariance, full_prior(GROUPS).covariance)


@selecting
def test_prior_before_the_first_task_is_the_full_prior(make):
    learner = make()
    close(learner.prior(learner.init(SIZES), SIZES).covariance, full_prior(GROUPS).covariance)


def test_lam_scaling_sqrt_divides_lam_by_sqrt_s(tasks):
    constant, scaled = kgl(), kgl(lam_scaling="sqrt")
    state, _ = learn(scaled, tasks[:2])
    third, _ = update(scaled, state, tasks[2], SIZES)
    expected, _ = update(kgl(float(0.1 / np.sqrt(3))), state, tasks[2], SIZES)
    other, _ = update(constant, state, tasks[2], SIZES)
    close(third.coef, expected.coef, atol=1e-12)
    assert not np.allclose(third.coef, other.coef, atol=1e-3)


def test_warm_start_does_not_change_the_solution(tasks):
    learner = kgl()
    state, (*_, warm_info) = learn(learner, tasks)
    before, _ = learn(learner, tasks[:-1])
    assert np.asarray(before.coef).any()
    cold_start = eqx.tree_at(lambda s: s.coef, before, jnp.zeros_like(before.coef))
    cold, cold_info = update(learner, cold_start, tasks[-1], SIZES)
    np.testing.assert_array_equal(cold_info.support, warm_info.support)
    close(cold.coef, state.coef, atol=1e-3)
    # A solve that starts from the solution takes no step.
    solve = eqx.filter_jit(solve_past)
    assert (
        int(solve(state.past, learner.lam, SIZES, init=state.coef, tol=1e-10, max_steps=1000).num_steps) == 0
    )


def test_task_without_exploration_does_not_change_the_solution(tasks):
    learner = kgl()
    state, (info,) = learn(learner, tasks[:1])
    silent = eqx.tree_at(lambda t: t.explored, tasks[1], jnp.zeros(HORIZON, bool))
    after, _ = update(learner, state, silent, SIZES)
    close(after.coef, state.coef, atol=1e-6)
    assert np.isfinite(np.asarray(info.gap))


# --- F-Meta-KGL ---


@both_data
def test_federated_equals_separate_clients(tasks, data):
    learner = federated(data=data)
    ballot, infos = learn(learner, tasks)
    messages = [client_step(rows_of(task, data, SIZES), 0.1, 0.25, GROUPS, tol=1e-10)[0] for task in tasks]
    for message in messages:
        assert message.dtype == bool and message.shape == (NUM_GROUPS,)
    np.testing.assert_array_equal(ballot.counts, np.sum(messages, axis=0))
    for done, info in enumerate(infos, start=1):
        expected = np.sum(messages[:done], axis=0) >= 0.5 * done
        np.testing.assert_array_equal(info.support, expected)
    # The server's whole state: vote counts, the number of clients, and the support.
    assert sorted(str(leaf.dtype) for leaf in jax.tree.leaves(ballot)) == ["bool", "int32", "int32"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "alpha, clients, needed",
    [
        (0.25, 4, 1),
        (0.25, 5, 2),
        (0.25, 8, 2),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.7, 10, 7),
        (1, 3, 3),
        (0, 3, 0),
    ],
)
def test_votes_needed(alpha, clients, needed, dtype):
    counts = jnp.arange(clients + 1)
    elected = server_vote(counts, jnp.asarray(clients), jnp.asarray(alpha, dtype))
    np.testing.assert_array_equal(elected, np.arange(clients + 1) >= needed)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, np.nan])
def test_alpha_outside_its_range(alpha):
    with pytest.raises(ValueError, match="`alpha` should be"):
        FederatedMetaKGL(0.1, 0.25, alpha)


# --- Meta-KeL and fixed priors ---


@both_data
def test_meta_kel_weights_are_the_normalised_group_norms(tasks, data):
    state, infos = learn(tight(MetaKeL(0.1, data=data)), tasks)
    design, targets, mask = raw_rows(tasks, data)
    coef, _ = reference.group_lasso_solve(design, targets, 0.1, GROUPS, mask, tol=1e-10)
    norms = reference.group_norms(coef, GROUPS)
    close(state.weights, norms / norms.sum(), atol=1e-5)
    close(np.sum(state.weights), 1)
    assert (np.asarray(infos[-1].support) >= SUPPORT).all()
    close(MetaKeL(0.1).prior(state, SIZES).covariance, np.asarray(state.weights)[list(GROUPS)])


def test_meta_kel_weights_are_uniform_if_all_norms_are_zero(tasks):
    state, (info,) = learn(tight(MetaKeL(1e6)), tasks[:1])
    close(state.weights, 1 / NUM_GROUPS)
    assert bool(info.fell_back)


def test_fixed_priors(tasks):
    oracle = FixedPrior(support_prior(SUPPORT, GROUPS))
    _, (info,) = learn(oracle, tasks[:1])
    np.testing.assert_array_equal(info.support, SUPPORT)
    close(FixedPrior().prior((), SIZES).covariance, full_prior(GROUPS).covariance)
    dense = FixedPrior(Prior(np.arange(8.0), np.diag([0.0, 1, 0, 0, 0, 0, 1, 0])))
    _, (info,) = learn(dense, tasks[:1])
    assert np.flatnonzero(info.support).tolist() == [0, 1]


@both_data
def test_printed_weights_of_meta_kel_are_norms_and_their_threshold_is_meta_kgl(tasks, data):
    """k_hat = sum_j (eta_j / c_1) k_j; eta above omega sqrt(m), averaged, is LiBO's kernel."""
    beta_min, omega = 0.5, 0.25
    printed = tight(MetaKeL(0.1, data=data, scaling="printed", beta_min=beta_min))
    state, _ = learn(printed, tasks)
    design, targets, mask = raw_rows(tasks, data)
    coef, _ = reference.group_lasso_solve(design, targets, 0.1, GROUPS, mask, tol=1e-10)
    norms = reference.group_norms(coef, GROUPS)
    close(state.weights, norms / beta_min, atol=1e-4)
    reading, _ = learn(tight(MetaKeL(0.1, data=data)), tasks)
    close(reading.weights, state.weights / state.weights.sum(), rtol=1e-8)
    selected = np.asarray(state.weights) * beta_min > omega * np.sqrt(len(tasks))
    libo, _ = learn(kgl(0.1, omega, data=data), tasks)
    close(kgl().prior(libo, SIZES).covariance, support_prior(selected, GROUPS).covariance, rtol=1e-8)
    nothing, _ = learn(tight(MetaKeL(1e6, scaling="printed", beta_min=beta_min)), tasks[:1])
    close(nothing.weights, printed.init(SIZES).weights)


@pytest.mark.parametrize("make", [lambda **o: MetaKGL(0.1, 0.25, **o), lambda **o: MetaKeL(0.1, **o)])
def test_bad_options(make):
    with pytest.raises(ValueError, match="`data` should be"):
        make(data="some")
    with pytest.raises(ValueError, match="`lam_scaling` should be"):
        MetaKGL(0.1, 0.25, lam_scaling="root")
    with pytest.raises(ValueError, match="`lam` should be"):
        MetaKGL(-0.1, 0.25)


# --- rows ---


def awkward_rows(kind, dtype):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(30, 7))
    if kind == "copies":
        rows[:, [2, 5]] = rows[:, [0, 0]]
    elif kind == "low rank":
        rows = rows[:, :2] @ rng.normal(size=(2, 7))
    elif kind == "few rows":
        rows[4:] = 0
    elif kind == "zero":
        rows[:] = 0
    elif kind == "zero column first":
        rows[:, 0] = 0
    elif kind == "scales":
        rows *= 10.0 ** np.arange(-3, 4)
    return rows.astype(dtype), rng.normal(size=30).astype(dtype)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-13), ("float32", 3e-6)])
@pytest.mark.parametrize(
    "kind", ["regular", "copies", "low rank", "few rows", "zero", "zero column first", "scales"]
)
def test_compression_keeps_the_normal_equations(kind, dtype, rtol):
    rows, targets = awkward_rows(kind, dtype)
    columns = np.stack([targets, np.ones_like(targets)])
    compressed, z = jax.jit(compress_rows)(jnp.asarray(rows), jnp.asarray(columns))
    assert compressed.shape == (7, 7) and z.shape == (2, 7) and compressed.dtype == z.dtype == dtype
    r, z, rows, columns = (np.asarray(a, np.float64) for a in (compressed, z, rows, columns))
    lengths = np.linalg.norm(rows, axis=0)
    slack = rtol * (np.outer(lengths, lengths) if kind == "scales" else (lengths.max() + 1e-30) ** 2)
    assert (np.abs(r.T @ r - rows.T @ rows) <= 20 * slack).all()
    for image, column in zip(z, columns, strict=True):
        slack = rtol * lengths * np.linalg.norm(column) if kind == "scales" else rtol * lengths.max() * 6
        assert (np.abs(r.T @ image - rows.T @ column) <= 20 * slack).all()


def test_learners_of_exploration_data_need_exploration():
    points = np.linspace(0, 1, 5)[:, None]
    env = SyntheticEnv.draw(Cosine(4), support_size=1, candidates=points, key=jax.random.key(0))
    run = dict(num_tasks=2, horizon=5, key=jax.random.key(0))
    for learner in (MetaKGL(0.1, 0.2), FederatedMetaKGL(0.1, 0.2, 0.5), MetaKeL(0.1)):
        with pytest.raises(ValueError, match="`exploration` should be a schedule that explores"):
            run_lifelong(env, Cosine(4), GPUCB(1.0, 0.1), learner, exploration=NoExploration(), **run)


@pytest.mark.parametrize("rate", [7, 30])
def test_groups_of_features_end_to_end(rate):
    """Fourier pairs, with fewer and with more exploration rows than features."""
    features = Fourier(4)
    points = np.linspace(0, 1, 41)[:, None]
    env = SyntheticEnv.draw(features, support_size=2, candidates=points, key=jax.random.key(1))
    learner = MetaKGL(0.1, 0.25, exploration=CustomExploration(lambda task, horizon: rate))
    run = partial(run_lifelong, env, features, GPUCB(10.0, 0.1), learner, num_tasks=6, horizon=30)
    batch = jax.jit(
        jax.vmap(lambda key: run(key=key)), compiler_options={"xla_backend_optimization_level": 0}
    )
    result = batch(jax.random.split(jax.random.key(2), 2))
    assert result.support.shape == (2, 6, 4)
    found, true = np.asarray(result.support[:, -1]), np.asarray(env.support)
    assert (found >= true).all()
    assert rate < 8 or (found == true).all()
    assert (np.asarray(result.status) == Status.CONVERGED).all()


# --- all past tasks at once ---

EVERY_LEARNER = {
    "MetaKGL": kgl,
    "MetaKGL, lam / sqrt(s)": partial(kgl, lam_scaling="sqrt"),
    "MetaKGL, all data": partial(kgl, data="all"),
    "MetaKGL, estimated": partial(kgl, 4.0, 0.75, lam_scaling="estimated", omega_scaling="penalty"),
    "MetaKGL, bracket": partial(kgl, 0.125, 0.04, lam_scaling="bracket", omega_scaling="rewards", data="all"),
    "MetaKeL": lambda: tight(MetaKeL(0.1)),
    "MetaKeL, all data": lambda: tight(MetaKeL(0.1, data="all")),
    "FederatedMetaKGL": federated,
    "FederatedMetaKGL, all data": partial(federated, data="all"),
    "FederatedMetaKGL, unanimous": partial(federated, 1.0),
    "FixedPrior": FixedPrior,
    "SelfTunedMetaKGL": SelfTunedMetaKGL,
    "SelfTunedMetaKGL, all data": partial(SelfTunedMetaKGL, data="all"),
    "AdaptiveMetaKGL": AdaptiveMetaKGL,
    "AdaptiveMetaKGL, no selection": partial(AdaptiveMetaKGL, select=False),
}


store = eqx.filter_jit(remember)


@eqx.filter_jit
def learn_at_once(learner, past, num_done, sizes):
    return learner.learn(past, num_done, sizes)


def all_classes(cls):
    return {cls}.union(*map(all_classes, cls.__subclasses__()))


def test_every_learner_of_the_library_is_in_the_table():
    # Those of the arena are in the table of tests/arena/methods.
    of_library = {one for one in all_classes(AbstractMetaLearner) if one.__module__.startswith("jlibo.")}
    of_library = {one for one in of_library if not one.__module__.startswith("jlibo.arena.")}
    concrete = {one for one in of_library if not inspect.isabstract(one)}
    assert {type(make()) for make in EVERY_LEARNER.values()} == concrete


# Each program takes a second to compile. Without free groups, `tests/contracts` has every learner: there
# `learn` equals `update` too. The rows of exploration and of all data are made by one function, so that each
# learner is quick with one of them.
FREE_GROUPS = (4,)
SLOW = {
    "MetaKGL, lam / sqrt(s)",
    "MetaKGL, all data",
    "MetaKeL",
    "FederatedMetaKGL, all data",
    "SelfTunedMetaKGL",
}


def some_slow(name, *more):
    return pytest.param(name, *more, marks=[pytest.mark.slow] if name in SLOW else [])


WITH_FREE_GROUPS = [
    *[some_slow(name, FREE_GROUPS) for name in EVERY_LEARNER],
    *[pytest.param(name, (), marks=pytest.mark.slow) for name in EVERY_LEARNER if "," not in name],
]


@pytest.mark.parametrize("num_done", [1, NUM_TASKS])
@pytest.mark.parametrize("name, free_groups", WITH_FREE_GROUPS)
def test_learning_all_tasks_at_once_equals_updating_task_by_task(tasks, name, num_done, free_groups):
    """Also with room for more tasks than were done."""
    learner = EVERY_LEARNER[name]()
    sizes = RunSizes(GROUPS, NUM_TASKS, HORIZON, EXPLORE, jnp.float64, free_groups)
    expected, infos = learn(learner, tasks[:num_done], sizes)
    past = no_past(learner.data, sizes)
    for place, task in enumerate(tasks[:num_done]):
        past = store(past, jnp.asarray(place), task, learner.data, sizes)
    found, info = learn_at_once(learner, past, jnp.asarray(num_done), sizes)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype or one.dtype.kind == other.dtype.kind == "i"
        close(one, other, atol=1e-4)
    priors = [learner.prior(state, sizes) for state in (found, expected)]
    for one, other in zip(*map(jax.tree.leaves, priors), strict=True):
        close(one, other, atol=1e-4)
    np.testing.assert_array_equal(info.support, infos[-1].support)
    np.testing.assert_array_equal(info.fell_back, infos[-1].fell_back)
    np.testing.assert_array_equal(info.status, infos[-1].status)


@pytest.mark.parametrize("name", [some_slow(name) for name in EVERY_LEARNER])
def test_learning_from_no_tasks_gives_the_finite_initial_prior(name):
    learner = EVERY_LEARNER[name]()
    # The sizes of the test above, so that nothing is compiled again.
    sizes = RunSizes(GROUPS, NUM_TASKS, HORIZON, EXPLORE, jnp.float64, FREE_GROUPS)
    past = no_past(learner.data, sizes)
    state, _ = learn_at_once(learner, past, jnp.asarray(0), sizes)
    prior, first = learner.prior(state, sizes), learner.prior(learner.init(sizes), sizes)
    if isinstance(learner, AdaptiveMetaKGL):  # without tasks, the learned component has the weight 0
        np.testing.assert_array_equal(np.exp(prior.log_weights), [0, 1])
        prior = prior.components
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(prior))
    if not isinstance(learner, AdaptiveMetaKGL):  # it adds the uncertainty of the mean
        for one, other in zip(jax.tree.leaves(prior), jax.tree.leaves(first), strict=True):
            close(one, other)
