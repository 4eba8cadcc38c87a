"""Solution and status of `group_lasso`: against the plain reference, celer, skglm and scikit-learn; at
lambda_max; with warm starts, masked rows, zero data and bad input."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from jlibo import Solution, Status, group_lasso, group_lasso_path, lam_grid, lambda_max
from jlibo.solver.proximal import CHECK_STEPS
from tests import reference
from tests.solver import peers
from tests.solver.problems import LAYOUTS, Problem, layout, make_problem, solve

RATIOS = np.geomspace(0.01, 1.01, 18)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The reference solves many small systems, for which more BLAS threads are slower."""
    with threadpool_limits(1):
        yield


# --------------------------------------------------------------------------------------------------- solution


def some_ratio_is_quick(seed):
    """Both ends of the range and every third ratio between them."""
    is_quick = seed % 3 == 0 or seed == len(RATIOS) - 1
    return pytest.param(seed, marks=() if is_quick else pytest.mark.slow)


every_ratio = pytest.mark.parametrize("seed", [some_ratio_is_quick(seed) for seed in range(len(RATIOS))])


def check_objective(name, seed, solvers):
    """The objective of our solution equals that of each solver's."""
    problem = make_problem(name, seed)
    lam = RATIOS[seed] * problem.lambda_max
    data = (problem.design, problem.targets, lam, problem.groups, problem.mask)
    solution = solve(problem, lam, tol=1e-11)
    ours = problem.objective(solution.coef, lam)
    assert solution.status == Status.CONVERGED
    for solve_fn in solvers:
        theirs = problem.objective(solve_fn(*data), lam)
        assert abs(ours - theirs) <= 1e-8 * theirs


@every_ratio
@pytest.mark.parametrize("name", LAYOUTS)
def test_objective_equals_reference_and_peers(name, seed):
    check_objective(
        name, seed, [lambda *data: reference.group_lasso_solve(*data, tol=1e-9)[0], peers.celer_solve]
    )


@pytest.mark.slow  # numba compiles skglm for seven seconds
@pytest.mark.parametrize("seed", range(len(RATIOS)))
@pytest.mark.parametrize("name", LAYOUTS)
def test_objective_equals_skglm(name, seed):
    check_objective(name, seed, [peers.skglm_solve])


def test_objective_equals_reference_with_two_sizes_of_working_set():
    rng = np.random.default_rng(0)
    raw = reference.random_problem(rng, 1, 40, (4,) * 32, unequal=False)
    problem = Problem(raw["design"], raw["targets"], raw["mask"], raw["groups"])
    for ratio, fewest, most in ((0.7, 1, 14), (0.2, 17, 56), (0.01, 65, 128)):
        lam = ratio * problem.lambda_max
        solution = solve(problem, lam, tol=1e-11)
        assert fewest <= np.count_nonzero(solution.coef) <= most
        coef, _ = reference.group_lasso_solve(problem.design, problem.targets, lam, *problem[:1:-1], tol=1e-9)
        np.testing.assert_allclose(problem.objective(solution.coef, lam), problem.objective(coef, lam), 1e-8)


@pytest.mark.parametrize("ids", [None, np.random.default_rng(1).permutation(12)], ids=["default", "permuted"])
def test_one_task_with_groups_of_one_equals_sklearn_lasso(ids):
    from sklearn.linear_model import Lasso

    rng = np.random.default_rng(0)
    design, targets = rng.standard_normal((30, 12)), rng.standard_normal(30)
    lam = 0.2 * lambda_max(design[None], targets[None])
    solution = group_lasso(design[None], targets[None], lam, groups=ids, tol=1e-13)
    lasso = Lasso(alpha=float(lam) / 2, fit_intercept=False, tol=1e-13, max_iter=100_000).fit(design, targets)
    np.testing.assert_allclose(solution.coef[0], lasso.coef_, atol=1e-8)
    assert 0 < np.count_nonzero(lasso.coef_) < 12
    order = np.arange(12) if ids is None else np.argsort(ids)
    np.testing.assert_allclose(solution.group_norms, np.abs(solution.coef[0])[order], rtol=1e-12)


@pytest.mark.parametrize("name", LAYOUTS)
def test_group_norms_follow_the_group_ids(name):
    problem = make_problem(name, 3)
    solution = solve(problem, 0.1 * problem.lambda_max)
    expected = reference.group_norms(np.asarray(solution.coef), problem.groups)
    np.testing.assert_allclose(solution.group_norms, expected, rtol=1e-12)
    assert np.count_nonzero(expected) > 0


# ------------------------------------------------------------------------------------------------ lambda_max


@pytest.mark.parametrize(
    "name, dtype",
    [("mixed", np.float32), ("mixed", np.float64), ("wide", np.float64), ("single", np.float64)],
)
def test_solution_is_zero_iff_lam_reaches_lambda_max(name, dtype):
    for seed in range(5):
        problem = make_problem(name, seed).cast(dtype)
        largest = lambda_max(problem.design, problem.targets, groups=problem.groups, mask=problem.mask)
        assert largest.dtype == dtype
        np.testing.assert_allclose(largest, problem.lambda_max, rtol=20 * np.finfo(dtype).eps)
        init = np.random.default_rng(seed).standard_normal(problem.design[:, 0].shape)
        for factor in (1, 1.01, 100):
            for start in (None, init):
                solution = solve(problem, factor * largest, tol=1e-6, init=start)
                assert not np.any(solution.coef) and not np.any(solution.group_norms)
                assert solution.status == Status.CONVERGED and solution.num_steps == 0
        below = solve(problem, 0.99 * largest, tol=1e-6)
        assert np.any(below.coef)


# -------------------------------------------------------------------------------------- warm starts and paths


@pytest.mark.parametrize("name", LAYOUTS)
def test_warm_start_from_the_solution_takes_no_step(name):
    problem = make_problem(name, 4)
    lam = 0.1 * problem.lambda_max
    cold = solve(problem, lam, tol=1e-8)
    warm = solve(problem, lam, tol=1e-8, init=cold.coef)
    assert warm.num_steps == 0 < cold.num_steps
    assert warm.status == Status.CONVERGED
    np.testing.assert_array_equal(warm.coef, cold.coef)


def test_warm_start_keeps_every_nonzero_feature_in_the_working_set():
    """The groups of the six features in use have 32 features, more than a working set of 16 holds."""
    rng = np.random.default_rng(0)
    problem = make_problem("wide", 0)
    members = [np.flatnonzero(problem.groups == group) for group in range(2, 8)]
    used = [members[0][0], *(features[-1] for features in members[1:])]
    problem.design[:] = 0
    problem.design[:, :, used] = np.linalg.qr(rng.standard_normal((3, 8, 6)))[0]
    problem = problem._replace(targets=rng.standard_normal((3, 8)), mask=np.ones((3, 8), bool))
    lam = 0.1 * problem.lambda_max
    near = np.array(solve(problem, lam).coef)
    near[:, used[1:]] *= 1.001
    solution = solve(problem, lam, tol=1e-5, init=near)
    np.testing.assert_allclose(solution.gap, problem.gap(solution.coef, lam), rtol=1e-6, atol=1e-14)
    assert solution.status == Status.CONVERGED


@pytest.mark.parametrize("name", ["mixed", "wide"])
def test_path_equals_single_solves_in_fewer_steps_than_cold_starts(name):
    problem = make_problem(name, 5, collinear=False)
    data, options = problem[:2], dict(groups=problem.groups, mask=problem.mask, tol=1e-9)
    lams = lam_grid(problem.lambda_max, num_lams=12, smallest_ratio=0.05)
    path = group_lasso_path(*data, lams, **options)
    assert path.coef.shape == (12, *problem.design[:, 0].shape)
    init, cold = np.zeros_like(path.coef[0]), []
    for at, lam in enumerate(lams):
        warm = group_lasso(*data, lam, init=init, **options)
        init = warm.coef
        np.testing.assert_allclose(path.coef[at], warm.coef, atol=1e-9)
        assert path.num_steps[at] == warm.num_steps
        assert path.gap[at] <= 1e-9 * problem.at_zero
        cold.append(int(group_lasso(*data, lam, **options).num_steps))
    assert path.num_steps.sum() < sum(cold)


def test_lam_grid():
    grid = lam_grid(3.0, num_lams=5, smallest_ratio=1e-4)
    np.testing.assert_allclose(grid, [3, 0.3, 0.03, 0.003, 0.0003])
    assert lam_grid(jnp.float32(3)).dtype == jnp.float32
    assert lam_grid(3.0).shape == (20,)
    with pytest.raises(ValueError, match="`smallest_ratio` should be a number > 0 and <= 1, but got 0"):
        lam_grid(3.0, smallest_ratio=0)


# --------------------------------------------------------------------------------------------------- the mask


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -1e3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_in_absent_rows_are_ignored(name, garbage):
    problem = make_problem(name, 6)
    lam = 0.1 * problem.lambda_max
    other = Problem(*(np.array(field) for field in problem[:2]), *problem[2:])
    other.design[~problem.mask] = garbage
    other.targets[~problem.mask] = garbage
    np.testing.assert_array_equal(solve(other, lam).coef, solve(problem, lam).coef)


def test_mask_equals_dropping_rows():
    problem = make_problem("mixed", 7, collinear=False)
    mask = np.arange(8) < np.array([[5], [5], [0]])
    masked = problem._replace(mask=mask, design=np.nan_to_num(problem.design))
    lam = 0.05 * masked.lambda_max
    one = solve(masked, lam)
    dropped = group_lasso(masked.design[:2, :5], masked.targets[:2, :5], lam, groups=masked.groups, tol=1e-12)
    np.testing.assert_allclose(one.coef[:2], dropped.coef, atol=1e-8)
    assert not np.any(one.coef[2])  # the task without rows


# -------------------------------------------------------------------------------------------------- zero data


@pytest.mark.parametrize("what", ["targets", "design", "both"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_zero_data_give_zero_coefficients(name, what, lam):
    problem = make_problem(name, 8)
    zeros = problem._replace(
        design=problem.design * (what == "targets"), targets=problem.targets * (what == "design")
    )
    solution = solve(zeros, lam, max_steps=50)
    assert not np.any(solution.coef) and not np.any(solution.group_norms)
    np.testing.assert_allclose(solution.gap, 0 if lam or what != "design" else zeros.at_zero)
    assert solution.num_steps == (50 if what == "design" and lam == 0 else 0)
    assert lambda_max(zeros.design, zeros.targets, groups=zeros.groups, mask=zeros.mask) == 0


def test_zero_columns_have_zero_coefficients():
    problem = make_problem("wide", 9)
    problem.design[:, :, ::3] = 0
    lam = 0.05 * problem.lambda_max
    solution = solve(problem, lam, tol=1e-11)
    coef, _ = reference.group_lasso_solve(problem.design, problem.targets, lam, problem.groups, problem.mask)
    assert solution.status == Status.CONVERGED and not np.any(solution.coef[:, ::3])
    np.testing.assert_allclose(problem.objective(solution.coef, lam), problem.objective(coef, lam), rtol=1e-8)


@pytest.mark.parametrize("name", LAYOUTS)
def test_lam_zero_fits_least_squares(name):
    problem = make_problem(name, 10)
    solution = solve(problem, 0.0, max_steps=2_000)
    assert solution.status in (Status.CONVERGED, Status.STEP_LIMIT)
    # More features than rows: least squares interpolates, and the gap is the loss.
    assert problem.objective(solution.coef, 0.0) < 1e-3 * problem.at_zero
    # Residuals of data of order one are rounded to 1e-16, however small the remaining loss.
    loss = problem.objective(solution.coef, 0.0)
    np.testing.assert_allclose(solution.gap, loss, rtol=1e-9, atol=1e-15 * problem.at_zero)


def test_one_task_one_row_one_feature():
    # (3 - 2 b)^2 + lam |b| is least at b = (12 - lam) / 8.
    solution = group_lasso([[[2.0]]], [[3.0]], 4.0, tol=1e-12)
    np.testing.assert_allclose(solution.coef, [[1.0]], rtol=1e-6)
    assert lambda_max([[[2]]], [[3]]) == 12
    assert solution.coef.dtype == jnp.float64


# ------------------------------------------------------------------------------------- status and description


def test_describe_of_one_solution_and_of_a_batch():
    problem = make_problem("mixed", 11)
    lam = 0.1 * problem.lambda_max
    assert re.fullmatch(r"converged: .* \(gap \d.*e-.*, \d+ steps\)", solve(problem, lam).describe())
    stopped = solve(problem, lam, max_steps=CHECK_STEPS)
    assert stopped.status == Status.STEP_LIMIT and stopped.num_steps == CHECK_STEPS
    assert stopped.describe().startswith("step limit: ")
    solutions = [stopped, solve(problem, lam), solve(problem, 2 * lam)]
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *solutions)
    low, middle, high = np.sort(batch.num_steps)
    assert batch.describe() == (
        f"3 problems: 2 converged, 1 step limit; steps {low} to {high}, median {middle}; "
        f"largest gap {stopped.gap:.2e}"
    )
    assert all(": " in status.words for status in Status)


def test_describe_of_a_batch_excludes_bad_problems_from_statistics():
    problem = make_problem("mixed", 11)
    good = solve(problem, 0.1 * problem.lambda_max)
    nothing = np.full_like(good.coef, np.nan)
    bad = Solution(nothing, nothing[0], np.array(np.nan), np.array(0), np.array(Status.NEGATIVE_LAM))
    batch = jax.tree.map(
        lambda *leaves: np.stack(leaves), good, replace(bad, group_norms=good.group_norms), good
    )
    steps = int(good.num_steps)
    assert batch.describe() == (
        f"3 problems: 2 converged, 1 negative lam; steps {steps} to {steps}, median {steps}; "
        f"largest gap {good.gap:.2e}; 1 without an answer"
    )
    assert jax.tree.map(lambda leaf: np.stack([leaf] * 2), bad).describe() == (
        "2 problems: 2 negative lam; none has an answer"
    )
    assert bad.describe() == Status.NEGATIVE_LAM.words


# ------------------------------------------------------------------------------------------------- bad input

GOOD = dict(design=np.ones((2, 3, 4)), targets=np.ones((2, 3)), lam=0.1)


def spoiled(array, value, *where):
    array = np.array(array)
    array[where] = value
    return array


BAD = [
    (dict(design=np.ones((3, 4))), r"`design` .* shape \[tasks, rows, features\], but got shape \[3, 4\]"),
    (dict(design=np.ones((2, 0, 4))), r"`design` .* at least one task, row and feature, .* \[2, 0, 4\]"),
    (dict(design=np.ones((2, 3, 4)) * 1j), r"`design` .* real numbers, but got dtype complex128"),
    (dict(design=spoiled(GOOD["design"], np.nan, 1, 2, 3)), r"`design` .* finite .* first at \[1, 2, 3\]"),
    (dict(targets=np.ones((2, 4))), r"`targets` .* shape \[2, 3\], but got shape \[2, 4\]"),
    (dict(targets=np.ones(6)), r"`targets` .* shape \[2, 3\], but got shape \[6\]"),
    (dict(targets=spoiled(GOOD["targets"], -np.inf, 0, 1)), r"`targets` .* finite .* first at \[0, 1\]"),
    (dict(mask=np.ones((2, 4), bool)), r"`mask` .* shape \[2, 3\], but got shape \[2, 4\]"),
    (dict(mask=np.ones((2, 3))), r"`mask` .* booleans, but got dtype float64"),
    (dict(mask=np.zeros((2, 3), bool)), r"`mask` .* at least one row, but got no row"),
    (dict(groups=[0, 1, 1]), r"`groups` .* each of the 4 features, but got 3 ids"),
    (dict(groups=[0, 1, 3, 3]), r"`groups` .* 0\.\.3 without holes, but got no feature of group 2"),
    (dict(groups=[0, 1, -1, 2]), r"`groups` .* >= 0, but got -1 for feature 2"),
    (dict(groups=[0.0, 1.0, 1.0, 2.0]), r"`groups` .* whole numbers.* float64"),
]
BAD_SOLVE = [
    (dict(lam=-0.1), r"`lam` .* >= 0, but got -0.1"),
    (dict(lam=np.nan), r"`lam` .* finite"),
    (dict(lam=np.inf), r"`lam` .* finite"),
    (dict(lam=[0.1, 0.2]), r"`lam` .* shape \[\], but got shape \[2\]"),
]
BAD_START = [
    (dict(init=np.ones((2, 3))), r"`init` .* shape \[2, 4\], but got shape \[2, 3\]"),
    (dict(init=np.full((2, 4), np.nan)), r"`init` .* finite .* first at \[0, 0\]"),
    (dict(tol=-1e-6), r"`tol` .* >= 0, but got -1e-06"),
    (dict(tol=np.nan), r"`tol` .* >= 0, but got nan"),
    (dict(tol=[1e-6]), r"`tol` .* shape \[\], but got shape \[1\]"),
    (dict(max_steps=-1), r"`max_steps` .* >= 0, but got -1"),
]
BAD_PATH = [
    (dict(lams=0.1), r"`lams` .* shape \[path\], but got shape \[\]"),
    (dict(lams=[0.1, -0.1]), r"`lams` .* >= 0, but got values from -0.1"),
    (dict(lams=[0.1, np.nan]), r"`lams` .* finite .* first at \[1\]"),
]


@pytest.mark.parametrize("change, message", BAD + BAD_SOLVE + BAD_START)
def test_bad_input_of_group_lasso(change, message):
    with pytest.raises(ValueError, match=message):
        group_lasso(**(GOOD | change))


@pytest.mark.parametrize("change, message", BAD + BAD_START + BAD_PATH)
def test_bad_input_of_path(change, message):
    arguments = GOOD | dict(lams=[0.2, 0.1]) | change
    del arguments["lam"]
    with pytest.raises(ValueError, match=message):
        group_lasso_path(**arguments)


@pytest.mark.parametrize("change, message", BAD)
def test_bad_input_of_lambda_max(change, message):
    arguments = GOOD | change
    del arguments["lam"]
    with pytest.raises(ValueError, match=message):
        lambda_max(**arguments)


def test_groups_must_be_known_before_tracing():
    with pytest.raises(ValueError, match=r"`groups` .* known before tracing, but got traced values"):
        jax.jit(lambda ids: group_lasso(**GOOD, groups=ids))(np.arange(4))


def test_wrong_shapes_raise_under_jit_too():
    with pytest.raises(ValueError, match=r"`targets` .* shape \[2, 3\]"):
        jax.jit(lambda targets: group_lasso(GOOD["design"], targets, 0.1))(np.ones((3, 2)))


SPOILERS = {
    "design": (
        lambda p: p._replace(design=np.where(p.mask[..., None], np.nan, p.design)),
        1.0,
        None,
        "INPUT",
    ),
    "targets": (lambda p: p._replace(targets=np.where(p.mask, np.inf, p.targets)), 1.0, None, "INPUT"),
    "lam": (lambda p: p, np.nan, None, "INPUT"),
    "negative": (lambda p: p, -1.0, None, "NEGATIVE_LAM"),
    "mask": (lambda p: p._replace(mask=np.zeros_like(p.mask)), 1.0, None, "NO_ROWS"),
}


@pytest.fixture(scope="module")
def jitted():
    """The solver under `jit`, where values are traced, for one problem and for a batch."""
    groups = layout("mixed")

    def run(design, targets, mask, lam, init):
        return group_lasso(design, targets, lam, groups=groups, mask=mask, init=init)

    return jax.jit(run), jax.jit(jax.vmap(run))


@pytest.mark.parametrize("what", SPOILERS)
def test_bad_values_inside_jit_give_a_status_and_nan(jitted, what):
    one, batch = jitted
    spoil, factor, fill, status = SPOILERS[what]
    good = make_problem("mixed", 12)
    bad = spoil(good)
    lam = 0.1 * good.lambda_max
    init = np.zeros_like(good.design[:, 0])
    bad_init = init if fill is None else np.full_like(init, fill)
    status = Status.NON_FINITE_INPUT if status == "INPUT" else Status[status]

    alone = one(*bad[:3], factor * lam, bad_init)
    assert alone.status == status and alone.num_steps == 0
    assert np.isnan(alone.coef).all() and np.isnan(alone.group_norms).all() and np.isnan(alone.gap)
    assert alone.describe().startswith(status.words.split(":")[0])

    # A bad batch element does not affect the others.
    lanes = [(*good[:3], lam, init), (*bad[:3], factor * lam, bad_init), (*good[:3], lam, init)]
    together = batch(*(np.stack(field) for field in zip(*lanes, strict=True)))
    expected = one(*lanes[0])
    assert list(together.status) == [Status.CONVERGED, status, Status.CONVERGED]
    assert np.isnan(together.coef[1]).all()
    for lane in (0, 2):
        np.testing.assert_allclose(together.coef[lane], expected.coef, atol=1e-12)
        assert together.num_steps[lane] == expected.num_steps
