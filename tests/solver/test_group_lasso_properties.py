"""Properties of every solution: a valid gap, symmetries, scaling, and float32 close to float64."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import Status
from jlibo.solver.proximal import CHECK_STEPS
from tests import reference
from tests.solver.problems import LAYOUTS, Problem, make_problem, solve

seeds = st.integers(0, 10_000)
ratios = st.floats(0.02, 1.01)
names = st.sampled_from(LAYOUTS)


def assert_same_minimum(problem, lam, coef, other_coef):
    """Both gaps are at most 1e-12 (1/N) ||y||^2, so each predicts within 1e-6 ||y|| of the minimum."""
    limit = 2.1e-6 * np.linalg.norm(problem.targets[problem.mask])
    assert np.linalg.norm(problem.predictions(coef) - problem.predictions(other_coef)) <= limit
    assert abs(problem.objective(coef, lam) - problem.objective(other_coef, lam)) <= 1.1e-12 * problem.at_zero


@given(name=names, seed=seeds, ratio=ratios, max_steps=st.sampled_from([0, 1, 10, 40, 200, 100_000]))
def test_gap_bounds_the_excess_at_any_step_limit(name, seed, ratio, max_steps):
    problem = make_problem(name, seed)
    lam = ratio * problem.lambda_max
    solution = solve(problem, lam, tol=1e-9, max_steps=max_steps)
    gap, unit = float(solution.gap), problem.at_zero
    best = solve(problem, lam, tol=1e-13)
    lowest = problem.objective(best.coef, lam) - max(problem.gap(best.coef, lam), 0)
    assert gap >= 0
    assert gap >= problem.objective(solution.coef, lam) - lowest - 1e-12 * unit
    np.testing.assert_allclose(gap, problem.gap(solution.coef, lam), rtol=1e-9, atol=1e-14 * unit)
    assert (solution.status == Status.CONVERGED) == (gap <= 1e-9 * unit * (1 + 1e-12))
    assert solution.status in (Status.CONVERGED, Status.STEP_LIMIT)
    assert solution.num_steps < max_steps + CHECK_STEPS


@given(seed=seeds, ratio=ratios)
def test_gap_bounds_the_excess_over_the_reference(seed, ratio):
    problem = make_problem("mixed", seed, collinear=False)
    lam = ratio * problem.lambda_max
    coef, _ = reference.group_lasso_solve(
        problem.design, problem.targets, lam, problem.groups, problem.mask, tol=1e-10
    )
    for max_steps in (5, 30):
        solution = solve(problem, lam, max_steps=max_steps)
        excess = problem.objective(solution.coef, lam) - problem.objective(coef, lam)
        assert solution.gap >= excess - 1e-14 * problem.at_zero


@given(seed=seeds, factor=st.floats(1, 1e6))
def test_solution_is_zero_from_lambda_max_on_for_any_start(seed, factor):
    problem = make_problem("mixed", seed)
    init = np.random.default_rng(seed).standard_normal(problem.design[:, 0].shape)
    lam = factor * problem.lambda_max * (1 + 1e-14)  # the reference's own round-off
    solution = solve(problem, lam, init=init)
    assert not np.any(solution.coef) and solution.num_steps == 0


@given(name=names, seed=seeds, ratio=ratios)
def test_permuting_tasks_and_rows_permutes_the_solution(name, seed, ratio):
    problem = make_problem(name, seed)
    lam = ratio * problem.lambda_max
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(problem.targets.shape[0])[:, None]
    rows = rng.permuted(np.indices(problem.targets.shape)[1], axis=1)
    moved = Problem(*(field[tasks, rows] for field in problem[:3]), problem.groups)
    coef = np.empty_like(problem.design[:, 0])
    coef[tasks[:, 0]] = solve(moved, lam).coef
    assert_same_minimum(problem, lam, coef, solve(problem, lam).coef)


@given(seed=seeds, ratio=ratios)
def test_permuting_features_permutes_the_solution(seed, ratio):
    problem = make_problem("single", seed, collinear=False)
    lam = ratio * problem.lambda_max
    order = np.random.default_rng(seed).permutation(problem.design.shape[2])
    moved = solve(problem._replace(design=problem.design[:, :, order]), lam)
    still = solve(problem, lam)
    assert_same_minimum(problem, lam, moved.coef[:, np.argsort(order)], still.coef)
    np.testing.assert_allclose(moved.group_norms, still.group_norms[order], atol=1e-5)


@given(seed=seeds, ratio=ratios)
def test_permuting_groups_permutes_the_solution(seed, ratio):
    """Groups are static, so one permutation of features and group ids is used and it compiles once."""
    problem = make_problem("mixed", seed, collinear=False)
    lam = ratio * problem.lambda_max
    rng = np.random.default_rng(1)
    order, names = rng.permutation(problem.design.shape[2]), rng.permutation(7)
    moved = solve(
        problem._replace(design=problem.design[:, :, order], groups=names[problem.groups][order]), lam
    )
    still = solve(problem, lam)
    assert_same_minimum(problem, lam, moved.coef[:, np.argsort(order)], still.coef)
    np.testing.assert_allclose(moved.group_norms[names], still.group_norms, atol=1e-5)


@given(name=names, seed=seeds, ratio=ratios, power=st.integers(-20, 20))
def test_scaling_data_by_powers_of_two_scales_the_solution(name, seed, ratio, power):
    """Scaling by powers of two is exact, so the number of steps does not change."""
    problem, scale = make_problem(name, seed), 2.0**power
    lam = ratio * problem.lambda_max
    plain = solve(problem, lam, tol=1e-8)
    louder = solve(problem._replace(targets=scale * problem.targets), scale * lam, tol=1e-8)
    steeper = solve(problem._replace(design=scale * problem.design), scale * lam, tol=1e-8)
    assert plain.num_steps == louder.num_steps == steeper.num_steps
    np.testing.assert_allclose(louder.coef, scale * plain.coef, rtol=1e-12)
    np.testing.assert_allclose(steeper.coef, plain.coef / scale, rtol=1e-12)
    np.testing.assert_allclose(louder.gap, scale**2 * plain.gap, rtol=1e-9)


@given(name=st.sampled_from(["mixed", "wide"]), seed=seeds, ratio=ratios)
def test_float32_is_close_to_float64(name, seed, ratio):
    problem = make_problem(name, seed)
    lam = ratio * problem.lambda_max
    single = solve(problem.cast(np.float32), np.float32(lam), tol=1e-6, max_steps=10_000)
    double = solve(problem, lam)
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {np.dtype("float32"), np.dtype("int32")}
    assert single.status == Status.CONVERGED
    excess = problem.objective(single.coef, lam) - problem.objective(double.coef, lam)
    # float32 stops at a gap of 32 eps, 3.8e-6; its own rounding may add a little.
    assert -1e-12 * problem.at_zero <= excess <= 5e-6 * problem.at_zero
    distance = np.linalg.norm(problem.predictions(single.coef) - problem.predictions(double.coef))
    assert distance <= 3e-3 * np.linalg.norm(problem.targets[problem.mask])


@pytest.mark.parametrize("seed", range(3))
def test_float32_gap_bounds_the_excess_on_a_hard_problem(seed):
    """Near copies of columns in other groups, and a tolerance that cannot be met: the gap is still a bound.

    The status is CONVERGED only if the gap is at most 32 eps, below which it is dominated by rounding.
    """
    problem = make_problem("wide", seed, collinear=False)
    problem.design[:, :, 1::2] = problem.design[:, :, ::2] + 1e-4 * problem.design[:, :, 1::2]
    lam = 0.01 * problem.lambda_max
    single = solve(problem.cast(np.float32), np.float32(lam), tol=0.0, max_steps=500)
    excess = problem.objective(single.coef, lam) - problem.objective(solve(problem, lam).coef, lam)
    floor = 32 * np.finfo(np.float32).eps * problem.at_zero
    assert (single.status == Status.CONVERGED) == (single.gap <= floor * (1 + 1e-5))
    assert single.gap >= excess - 1e-6 * problem.at_zero
