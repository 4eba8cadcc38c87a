"""Free (unpenalised) groups: in feature maps, priors and meta-learners.

A free constant is an intercept: the other coefficients must equal those of scikit-learn with an intercept.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso, MultiTaskLasso

from jlibo import (
    GPUCB,
    Concatenate,
    ConstantExploration,
    Cosine,
    FederatedMetaKGL,
    FixedPrior,
    Fourier,
    MetaKeL,
    MetaKGL,
    Polynomial,
    Prior,
    Scaled,
    Status,
    TableEnv,
    Unpenalised,
    full_prior,
    run_agents,
    support_prior,
)
from jlibo.experiments import run_offline
from jlibo.meta import RunSizes, TaskData, client_step
from jlibo.meta.rows import project_out, rows_of

close = np.testing.assert_allclose
equal = np.testing.assert_array_equal

# --- maps ---


def test_unpenalised_changes_only_free_groups():
    plain = Fourier(3, constant=True)
    free = Unpenalised(plain, ["constant"])
    assert (plain.free_groups, free.free_groups) == ((), (0,))
    for name in ("names", "groups", "lower", "upper", "group_sizes", "num_groups", "dim"):
        assert getattr(free, name) == getattr(plain, name)
    points = np.random.default_rng(0).uniform(size=(5, 1))
    equal(free(points), plain(points))


def test_unpenalised_accepts_one_or_many_names_in_any_order_and_nests():
    plain = Polynomial(2, dim=2, constant=True)
    assert Unpenalised(plain, "x1").free_groups == (plain.names.index("x1"),)
    both = Unpenalised(plain, ["x2", "constant", "x2"])
    assert [plain.names[j] for j in both.free_groups] == ["constant", "x2"]
    assert Unpenalised(Unpenalised(plain, ["x2"]), ["constant"]).free_groups == both.free_groups
    assert Unpenalised(plain, []).free_groups == ()


def test_free_groups_of_composed_maps():
    free = Unpenalised(Fourier(2, constant=True), ["constant"])  # 3 groups
    other = Unpenalised(Cosine(4), ["cos(2 pi x1)"])
    joined = Concatenate(Cosine(2), free, other)
    assert [joined.names[j] for j in joined.free_groups] == ["constant", "cos(2 pi x1)"]
    assert joined.free_groups == (2, 2 + 3 + 1)
    assert Scaled(joined, np.ones(9)).free_groups == joined.free_groups
    assert Concatenate(Cosine(2), Fourier(2)).free_groups == ()
    # A name that two groups share selects both.
    assert Unpenalised(Concatenate(Cosine(2), Cosine(3)), ["cos(pi x1)"]).free_groups == (0, 2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Unpenalised(Cosine(2), ["constant"]), r"`names` .*'cos\(pi x1\)'.*got \['constant'\]"),
        (lambda: Unpenalised(jnp.cos, ["constant"]), "`features` should be an AbstractFeatures"),
        (lambda: Unpenalised(Cosine(1), ["cos(pi x1)"]), "`names` should be some of the groups, .* all"),
        (
            lambda: Unpenalised(Unpenalised(Cosine(2), ["cos(pi x1)"]), ["cos(2 pi x1)"]),
            "`names` should be some of the groups, .* all",
        ),
    ],
)
def test_bad_names(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- priors ---

GROUPS = (0, 1, 1, 2, 3, 0)
FREE = (0, 2)  # features 0, 3 and 5


@pytest.mark.parametrize("with_free", [False, True], ids=["others only", "with the free ones"])
@pytest.mark.parametrize("chosen", [[], [1], [3], [1, 3]])
def test_free_kernels_have_weight_one_and_selected_kernels_are_averaged(chosen, with_free):
    support = np.isin(np.arange(4), [*chosen, *(FREE if with_free else ())])
    prior = support_prior(support, GROUPS, free_groups=FREE)
    counted = chosen or [1, 3]
    expected = [1.0 if g in FREE else (g in counted) / len(counted) for g in GROUPS]
    close(prior.covariance, expected)
    assert not prior.mean.any()


def test_full_prior_with_free_groups():
    close(full_prior(GROUPS, free_groups=FREE).covariance, [1, 0.5, 0.5, 1, 0.5, 1])
    assert full_prior(GROUPS, np.float32, free_groups=FREE).covariance.dtype == np.float32
    close(full_prior(GROUPS).covariance, 0.25)


# --- rows ---


def awkward(kind):
    """Rows, targets and the columns to project out."""
    rng = np.random.default_rng(2)
    rows, targets = rng.normal(size=(20, 6)), rng.normal(size=20)
    columns = (0,)
    if kind == "constant":
        rows[:, 0] = 1
    elif kind == "padded constant":
        rows[:, 0] = 1
        rows[13:], targets[13:] = 0, 0
    elif kind == "three":
        columns = (4, 0, 2)
    elif kind == "collinear":
        columns = (0, 2, 4)
        rows[:, 2] = -3 * rows[:, 0]
    elif kind == "zero":
        columns = (0, 3)
        rows[:, 0] = 0
    elif kind == "scales":
        columns = (0, 1, 2)
        rows[:, :3] *= [1e-4, 1, 1e4]
    elif kind == "few rows":
        columns = (0, 1, 2, 3)
        rows[3:], targets[3:] = 0, 0
    return rows, targets, columns


KINDS = ["constant", "padded constant", "three", "collinear", "zero", "scales", "few rows"]
project = jax.jit(project_out, static_argnames="columns")


@pytest.mark.parametrize("dtype, atol", [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_projection_leaves_the_residuals_of_least_squares(kind, dtype, atol):
    rows, targets, columns = awkward(kind)
    features, rest = project(rows.astype(dtype), targets.astype(dtype), columns=columns)
    assert features.dtype == rest.dtype == dtype
    joined, taken = np.column_stack([rows, targets]), rows[:, list(columns)]
    size = np.linalg.norm(taken, axis=0)
    taken = taken / np.where(size > 0, size, 1)  # columns of any scale span the same
    expected = joined - taken @ np.linalg.lstsq(taken, joined, rcond=1e-10)[0]
    others = [f for f in range(6) if f not in columns]
    close(features[:, others], expected[:, others], atol=atol * np.abs(rows[:, others]).max(), rtol=0)
    close(rest, expected[:, 6], atol=atol * np.abs(targets).max(), rtol=0)
    assert not np.asarray(features)[:, list(columns)].any()


# --- learners: an intercept ---

NUM_FEATURES, HORIZON, NUM_TASKS = 7, 24, 3
SIZES = RunSizes((0, 1, 2, 3, 4, 5, 6), NUM_TASKS, HORIZON, 10, jnp.float64, (2,))  # feature 2 is constant
LAM = 0.1


def make_tasks(shifts=(0.0, 0.0, 0.0), explore=(10, 8, 9), same_design=False, seed=0):
    """Kernels 1 and 5 matter; `shifts` are added to the rewards."""
    rng = np.random.default_rng(seed)
    tasks, first = [], None
    for shift, num_explore in zip(shifts, explore, strict=True):
        features = rng.normal(size=(HORIZON, NUM_FEATURES)) + 0.5
        features[:, 2] = 1
        features = first if first is not None and same_design else features
        first = features if first is None else first
        coef = np.zeros(NUM_FEATURES)
        coef[[1, 5]] = rng.choice([-1, 1], 2) * rng.uniform(1, 2, 2)
        rewards = shift + features @ coef + 0.3 * rng.normal(size=HORIZON)
        explored = np.arange(HORIZON) < num_explore
        tasks.append(TaskData(*map(jnp.asarray, (features, rewards, explored))))
    return tasks


@eqx.filter_jit
def update(learner, state, data, sizes):
    return learner.update(state, data, sizes)


def learn(learner, tasks, sizes=SIZES):
    learner = eqx.tree_at(lambda at: at.tol, learner, jnp.asarray(1e-12))
    state, infos = learner.init(sizes), []
    for data in tasks:
        state, info = update(learner, state, data, sizes)
        infos.append(info)
        assert Status(int(info.status)) == Status.CONVERGED
    return state, infos


both_data = pytest.mark.parametrize("data", ["exploration", "all"])


@both_data
def test_one_task_equals_sklearn_lasso_with_intercept(data):
    """Also where rows are padded (8 of 10 explored) and where 24 rows are compressed to 7."""
    task = make_tasks(shifts=(0.0, 40.0, 0.0))[1]
    used = np.asarray(task.explored) | (data == "all")
    rows, rewards = np.asarray(task.features)[used], np.asarray(task.rewards)[used]
    _, solution = client_step(rows_of(task, data, SIZES), LAM, 0.0, SIZES.groups, tol=1e-12)
    others = [f for f in range(NUM_FEATURES) if f != 2]
    peer = Lasso(alpha=LAM / 2, fit_intercept=True, tol=1e-12, max_iter=100_000).fit(rows[:, others], rewards)
    coef = np.asarray(solution.coef)[0]
    close(coef[others], peer.coef_, atol=1e-5)
    assert coef[2] == 0 and np.abs(peer.intercept_) > 20
    # The intercept is the mean of what the other features leave.
    close(np.mean(rewards - rows[:, others] @ coef[others]), peer.intercept_, atol=1e-4)


def test_many_tasks_equal_sklearn_multi_task_lasso_with_intercepts():
    tasks = make_tasks(shifts=(40.0, -7.0, 3.0), same_design=True)
    state, _ = learn(MetaKGL(LAM, 0.1, data="all"), tasks)
    others = [f for f in range(NUM_FEATURES) if f != 2]
    # MultiTaskLasso has the targets of all tasks in one row, so its N is ours over the number of tasks.
    alpha = LAM / 2 * NUM_TASKS
    rows = np.asarray(tasks[0].features)[:, others]
    rewards = np.stack([task.rewards for task in tasks], axis=1)
    peer = MultiTaskLasso(alpha=alpha, fit_intercept=True, tol=1e-12, max_iter=100_000).fit(rows, rewards)
    close(np.asarray(state.coef)[:, others], peer.coef_, atol=1e-5)
    assert not np.asarray(state.coef)[:, 2].any()


LEARNERS = {
    "meta-kgl": lambda data="exploration": MetaKGL(LAM, 0.2, data=data),
    "f-meta-kgl": lambda data="exploration": FederatedMetaKGL(LAM, 0.2, 0.5, data=data),
    "meta-kel": lambda data="exploration": MetaKeL(LAM, data=data),
}
every_learner = pytest.mark.parametrize("name", list(LEARNERS))
BOUND = RunSizes(SIZES.groups, NUM_TASKS, HORIZON, 10, jnp.float64)


@both_data
@every_learner
def test_shift_of_a_tasks_rewards_does_not_change_the_selection(name, data):
    learner = LEARNERS[name](data)
    state, infos = learn(learner, make_tasks())
    shifted, shifted_infos = learn(learner, make_tasks(shifts=(100.0, -30.0, 5.0)))
    for info, other in zip(infos, shifted_infos, strict=True):
        equal(other.support, info.support)
        assert bool(info.fell_back) == bool(other.fell_back) == False  # noqa: E712
    close(learner.prior(shifted, SIZES).covariance, learner.prior(state, SIZES).covariance, atol=1e-4)
    assert np.asarray(infos[-1].support)[[1, 2, 5]].all() and not np.asarray(infos[-1].support).all()


@every_learner
def test_shift_changes_the_selection_without_a_free_constant(name):
    """Control of the test above: without a free constant, similar kernels explain the shift."""
    learner = LEARNERS[name]()
    _, infos = learn(learner, make_tasks(), BOUND)
    _, shifted = learn(learner, make_tasks(shifts=(100.0, -30.0, 5.0)), BOUND)
    assert (np.asarray(shifted[-1].support) != np.asarray(infos[-1].support)).any()


@every_learner
def test_combinations_of_free_groups_do_not_change_the_selection(name):
    """Two free groups, of features 2 and 4 and of feature 6: any combination is added to the rewards."""
    sizes = RunSizes((0, 1, 2, 3, 2, 4, 5), NUM_TASKS, HORIZON, 10, jnp.float64, (2, 5))
    tasks, rng = make_tasks(), np.random.default_rng(5)
    added = [
        eqx.tree_at(
            lambda t: t.rewards, task, task.rewards + task.features[:, [2, 4, 6]] @ rng.normal(size=3)
        )
        for task in tasks
    ]
    learner = LEARNERS[name]()
    (_, infos), (_, others) = learn(learner, tasks, sizes), learn(learner, added, sizes)
    for info, other in zip(infos, others, strict=True):
        equal(other.support, info.support)
        assert np.asarray(info.support)[[2, 5]].all()
    equal(np.flatnonzero(infos[-1].support)[[0, 1]], [1, 2])


@every_learner
def test_selection_of_only_free_groups_falls_back(name):
    learner = LEARNERS[name]()
    hard = eqx.tree_at(lambda at: at.lam, learner, jnp.asarray(1e6))
    state, (info,) = learn(hard, make_tasks()[:1])
    assert bool(info.fell_back)
    equal(np.flatnonzero(info.support), [2])
    expected = full_prior(SIZES.groups, free_groups=(2,)).covariance
    close(hard.prior(state, SIZES).covariance, expected)
    close(learner.prior(learner.init(SIZES), SIZES).covariance, expected)


def test_selecting_learners_average_the_penalised_kernels():
    for name in ("meta-kgl", "f-meta-kgl"):
        learner = LEARNERS[name]()
        state, infos = learn(learner, make_tasks())
        support = np.asarray(infos[-1].support)
        others = support & (np.arange(NUM_FEATURES) != 2)
        expected = others / others.sum() + (np.arange(NUM_FEATURES) == 2)
        close(learner.prior(state, SIZES).covariance, expected)


def test_meta_kel_weights_of_penalised_kernels_sum_to_one():
    learner = LEARNERS["meta-kel"]()
    state, _ = learn(learner, make_tasks())
    prior = np.asarray(learner.prior(state, SIZES).covariance)
    assert prior[2] == 1
    close(np.delete(prior, 2).sum(), 1)


def test_fixed_priors_with_free_groups():
    learner = FixedPrior()
    close(learner.prior((), SIZES).covariance, full_prior(SIZES.groups, free_groups=(2,)).covariance)
    data = make_tasks()[0]
    _, info = learner.update((), data, SIZES)
    assert np.asarray(info.support).all() and not info.fell_back
    few = FixedPrior(Prior(np.zeros(7), np.isin(np.arange(7), [1, 2]).astype(float)))
    _, info = few.update((), data, SIZES)
    equal(np.flatnonzero(info.support), [1, 2])


# --- whole runs ---


def test_runs_take_free_groups_from_the_features():
    """The features' free groups are in the selection after every task, lifelong and offline alike."""
    features = Unpenalised(Cosine(5, constant=True), ["constant", "cos(4 pi x1)"])
    points = np.sort(np.random.default_rng(0).uniform(size=(15, 1)), axis=0)
    weights = np.array([[30.0, 4, 0, 0, -9], [-50, 3, 0, 0, 9], [0, -4, 0, 0, 0]])
    env = TableEnv(weights @ np.asarray(features(points)).T, points, noise_std=0.05)
    many = ConstantExploration(3)
    learners = {
        "libo": MetaKGL(0.05, 0.2, exploration=many),
        "flibo": FederatedMetaKGL(0.05, 0.2, 0.5, exploration=many),
        "kel": MetaKeL(0.05, exploration=many),
        "full": FixedPrior(),
    }
    quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    run = quick_jit(partial(run_agents, num_tasks=3, horizon=12))
    results = run(env, features, GPUCB(1.0, 0.1), learners, key=jax.random.key(0))
    for result in results.values():
        assert np.asarray(result.support)[:, [0, 4]].all() and not np.asarray(result.fell_back).any()
    equal(results["libo"].support[-1], [True, True, False, False, True])
    offline = quick_jit(partial(run_offline, num_tasks=2, num_rows=12, horizon=4))
    learners = {name: learners[name] for name in ("libo", "full")}
    played = offline(env, features, GPUCB(1.0, 0.1), learners, key=jax.random.key(0))
    equal(played["libo"].support[-1], [True, True, False, False, True])
