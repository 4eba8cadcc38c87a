"""Newton's method in the space of group norms: its optimum, and the problems that need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import Status, group_lasso, lambda_max
from jlibo.solver import all_features, working_set
from jlibo.solver.newton import inverse_of, newton_steps, ridge
from jlibo.solver.proximal import Pairs, Problem, Singletons, advance, gram_of, start
from tests import reference

GROUPS = np.array([0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7])


def legendre(num_rows, num_features, seed=0):
    """One task with Legendre features of points at one end: ill-conditioned, with five active features."""
    rng = np.random.default_rng(seed)
    points = 1 - 0.3 * rng.uniform(size=num_rows)
    design = np.polynomial.legendre.legvander(points, num_features)[None, :, 1:]
    coef = np.zeros(num_features)
    coef[rng.permutation(num_features)[:5]] = rng.uniform(0.5, 2, 5)
    return design, design @ coef + 0.1 * rng.standard_normal(num_rows)


def as_problem(design, targets, lam, groups=None):
    kind = Singletons() if groups is None else Pairs(jnp.asarray(groups[:, None] == groups))
    rows = jnp.asarray(float(targets.size))
    return Problem(jnp.asarray(design), jnp.asarray(targets), jnp.asarray(lam), rows, kind)


def begin(problem, num_rounds):
    zeros = jnp.zeros(problem.design[:, 0].shape)
    gradient = problem.gradient(problem.targets)
    at = start(problem, zeros, problem.targets, gradient, jnp.zeros((), jnp.int32))
    for _ in range(num_rounds):
        at = advance(at, problem)
    return at


@pytest.mark.parametrize("condition", [1, 1e6, 1e12])
def test_inverse(condition):
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((3, 9, 9)))[0]
    values = np.geomspace(1, condition, 9)
    matrices = (basis * values) @ np.swapaxes(basis, 1, 2)
    np.testing.assert_allclose(
        inverse_of(jnp.asarray(matrices)) @ matrices, np.stack([np.eye(9)] * 3), atol=1e-14 * condition
    )


def test_inverse_of_a_badly_scaled_matrix_is_accurate_entry_by_entry():
    scale = np.float32(10.0) ** np.arange(-6, 7, 2)
    matrix = np.eye(7, dtype=np.float32) + np.outer(scale, scale)
    # (I + u u^T)^-1 = I - u u^T / (1 + u^T u)
    double = scale.astype(float)
    expected = np.eye(7) - np.outer(double, double) / (1 + double @ double)
    got = np.asarray(inverse_of(jnp.asarray(matrix[None]))[0])
    np.testing.assert_allclose(got[:-1, :-1], expected[:-1, :-1], rtol=1e-2, atol=1e-6)
    np.testing.assert_allclose(got[-1, -1], expected[-1, -1], rtol=1e-2)


@pytest.mark.parametrize("num_rows", [5, 20])
def test_ridge_and_curvature_by_rows_and_by_features(num_rows):
    """b minimises the ridge objective, and the curvature is that of phi in log r."""
    rng = np.random.default_rng(0)
    problem = as_problem(rng.standard_normal((3, num_rows, 12)), rng.standard_normal((3, num_rows)), 0.3)
    sizes = jnp.asarray(rng.uniform(0.1, 2, 12))
    gram = None if num_rows == 5 else gram_of(problem)

    def phi(log_sizes):
        root = jnp.exp(log_sizes / 2)
        design = problem.design * root
        matrix = 2 / problem.num_rows * jnp.einsum("snf,sng->sfg", design, design) + 0.3 * jnp.eye(12)
        right = 2 / problem.num_rows * jnp.einsum("snf,sn->sf", design, problem.targets)
        weighted = jnp.linalg.solve(matrix, right[..., None])[..., 0]
        loss = (problem.residual(root * weighted) ** 2).sum() / problem.num_rows
        return loss + 0.15 * ((weighted**2).sum() + (root**2).sum()), weighted

    log_sizes = jnp.log(sizes)
    weighted, curvature = ridge(problem, gram, sizes)
    np.testing.assert_allclose(weighted, phi(log_sizes)[1], rtol=1e-8)
    squares = (weighted**2).sum(0)
    slope = jax.grad(lambda at: phi(at)[0])(log_sizes)
    np.testing.assert_allclose(slope, 0.15 * (sizes - squares), rtol=1e-6, atol=1e-12)
    hessian = jax.hessian(lambda at: phi(at)[0])(log_sizes)
    np.testing.assert_allclose(
        hessian, 0.3 * (curvature + jnp.diag(sizes - squares) / 2), rtol=1e-6, atol=1e-10
    )


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["single", "groups"])
@pytest.mark.parametrize("num_tasks, num_rows", [(1, 8), (1, 30), (4, 8), (4, 20)])
def test_newton_steps_reach_the_optimum_of_the_reference(num_tasks, num_rows, groups):
    rng = np.random.default_rng(num_rows)
    design, targets = (
        rng.standard_normal((num_tasks, num_rows, 12)),
        rng.standard_normal((num_tasks, num_rows)),
    )
    design[:, :, 5] = design[:, :, 4]  # collinear
    lam = 0.1 * float(lambda_max(design, targets, groups=groups))
    problem = as_problem(design, targets, lam, groups)
    at_zero = float((targets**2).mean())
    target = jnp.asarray(1e-11 * at_zero)
    coef, num_steps = from_iterate(problem, begin(problem, 1), target, 50)
    assert 1 < num_steps < 40
    assert reference.group_lasso_gap(design, targets, lam, groups, None, np.asarray(coef)) <= 2 * target
    best, _ = reference.group_lasso_solve(design, targets, lam, groups, None, tol=1e-10)
    objective = reference.group_lasso_objective(design, targets, lam, groups, None, np.asarray(coef))
    np.testing.assert_allclose(
        objective, reference.group_lasso_objective(design, targets, lam, groups, None, best), rtol=1e-9
    )


def from_iterate(problem, at, target_gap, most_steps):
    slopes = problem.norms(at.gradient)
    return newton_steps(problem, at.coef, slopes, at.lipschitz, jnp.asarray(target_gap), most_steps)


def test_newton_steps_stop_at_the_limit_and_lower_the_objective():
    design, targets = legendre(40, 20)
    problem = as_problem(design, targets, 1e-3 * float(lambda_max(design, targets)))
    before = begin(problem, 2)
    coef, num_steps = from_iterate(problem, before, 0.0, 5)
    assert num_steps == 5
    assert problem.objective(coef, problem.residual(coef)) < before.objective


def test_newton_steps_stop_at_round_off_and_at_zero():
    design, targets = legendre(40, 20)
    problem = as_problem(design, targets, 1e-2 * float(lambda_max(design, targets)))
    _, num_steps = from_iterate(problem, begin(problem, 2), 0.0, 1_000)
    assert num_steps < 200
    at_zero = begin(problem, 0)
    coef, num_steps = from_iterate(problem, at_zero, 0.0, 1_000)
    assert num_steps == 0 and not coef.any()
    later = begin(problem, 2)
    coef, num_steps = from_iterate(problem, later, 0.0, 0)
    assert num_steps == 0
    np.testing.assert_allclose(coef, later.coef, atol=1e-12)


@pytest.mark.parametrize("dtype, tol", [(np.float32, 1e-6), (np.float64, 1e-6), (np.float64, 1e-9)])
@pytest.mark.parametrize("num_rows, num_features", [(12, 50), (50, 50)])
def test_ill_conditioned_problems_of_one_task_converge(dtype, tol, num_rows, num_features, monkeypatch):
    """Proximal gradient alone needs thousands of steps, and with few rows reaches the step limit."""
    design, targets = legendre(num_rows, num_features)
    design, targets = design.astype(dtype), targets.astype(dtype)
    lam = dtype(1e-3 * lambda_max(design, targets))
    solution = group_lasso(design, targets, lam, tol=tol, max_steps=2_000)
    assert solution.status == Status.CONVERGED and solution.num_steps < 2_000
    double = [np.asarray(array, float) for array in (design, targets, lam, solution.coef)]
    gap = reference.group_lasso_gap(*double[:3], None, None, double[3])
    at_zero = (double[1] ** 2).mean()
    assert gap <= max(2 * tol, 1e-5 if dtype == np.float32 else 0) * at_zero


def many(num_tasks, num_rows, num_features, seed=0):
    """Tasks with Legendre features of points at one end and a shared support of five."""
    rng = np.random.default_rng(seed)
    support = rng.permutation(num_features)[:5]
    design, targets = [], []
    for task in range(num_tasks):
        rows, _ = legendre(num_rows, num_features, seed=seed + task)
        design.append(rows[0])
        targets.append(rows[0][:, support] @ rng.uniform(0.5, 2, 5) + 0.1 * rng.standard_normal(num_rows))
    return np.stack(design), np.stack(targets)


@pytest.mark.parametrize("dtype, tol", [(np.float32, 1e-6), (np.float64, 1e-6), (np.float64, 1e-10)])
@pytest.mark.parametrize("shape, groups", [((8, 12, 50), 1), ((6, 60, 50), 1), ((5, 16, 60), 3)])
def test_ill_conditioned_problems_of_many_tasks_converge(dtype, tol, shape, groups):
    """With proximal gradient alone they need several times as many steps, or reach the limit."""
    design, targets = (array.astype(dtype) for array in many(*shape))
    ids = None if groups == 1 else np.arange(shape[2]) // groups
    lam = dtype(1e-2 * lambda_max(design, targets, groups=ids))
    solution = group_lasso(design, targets, lam, groups=ids, tol=tol, max_steps=3_000)
    assert solution.status == Status.CONVERGED
    double = [np.asarray(array, float) for array in (design, targets, lam, solution.coef)]
    gap = reference.group_lasso_gap(*double[:3], ids, None, double[3])
    assert gap <= max(2 * tol, 1e-5 if dtype == np.float32 else 0) * (double[1] ** 2).mean()


def test_newton_takes_over_on_part_of_the_features(monkeypatch):
    """The same optimum with and without Newton's method, in far fewer steps with it."""
    design, targets = many(6, 60, 50)
    lam = 1e-2 * float(lambda_max(design, targets))
    assert working_set.newton_size(*design.shape) < 50
    solution = group_lasso(design, targets, lam, tol=1e-9)
    never = working_set.SLOW_STEPS * 10**6
    monkeypatch.setattr(all_features, "FIRST_WAIT", never)
    monkeypatch.setattr(working_set, "SLOW_STEPS", never)
    jax.clear_caches()
    plain = group_lasso(design, targets, lam, tol=1e-9, max_steps=200_000)
    monkeypatch.undo()
    jax.clear_caches()
    assert solution.status == plain.status == Status.CONVERGED
    assert plain.num_steps > 3 * solution.num_steps
    np.testing.assert_allclose(solution.coef, plain.coef, atol=1e-3)


def test_sizes_of_sets():
    assert working_set.newton_size(1, 100, 128) == 32
    assert working_set.newton_size(2, 100, 50) == 24
    assert working_set.newton_size(2, 100, 128) == 56
    assert working_set.newton_size(2, 5, 128) == 48
    assert working_set.newton_size(2, 5, 7) == 7
    assert working_set.working_set_sizes(1, working_set.LARGEST) == ()
    assert all(size <= working_set.LARGEST for size in working_set.working_set_sizes(1, 1_000))


def test_one_task_with_more_features_than_newton_takes_equals_the_reference():
    design, targets = legendre(30, 150)
    lam = 0.02 * float(lambda_max(design, targets))
    solution = group_lasso(design, targets, lam, tol=1e-8, max_steps=20_000)
    assert solution.status == Status.CONVERGED
    gap = reference.group_lasso_gap(design, targets, lam, None, None, np.asarray(solution.coef))
    assert gap <= 1.01e-8 * (targets**2).mean()


def test_a_batch_of_one_task_problems_equals_single_solves():
    problems = [legendre(20, 24, seed) for seed in range(4)]
    design, targets = (np.stack(field) for field in zip(*problems, strict=True))
    lams = np.array([float(lambda_max(*problem)) for problem in problems]) * np.array([1e-3, 1e-2, 0.5, 2.0])
    together = jax.vmap(lambda *data: group_lasso(*data, tol=1e-9))(design, targets, lams)
    for lane, problem in enumerate(problems):
        alone = group_lasso(*problem, lams[lane], tol=1e-9)
        assert together.status[lane] == alone.status == Status.CONVERGED
        assert together.num_steps[lane] == alone.num_steps
        np.testing.assert_allclose(together.coef[lane], alone.coef, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 4, 6), (1, 12, 60), (5, 8, 20), (8, 10, 50)])
def test_random_ill_conditioned_problems_need_few_steps(shape, dtype):
    """Nearly collinear columns, which share coefficients along flat valleys, and columns of many scales."""
    rng = np.random.default_rng(0)
    num_tasks, num_rows, num_features = shape
    designs, targets, lams = [], [], []
    for number in range(40):
        design = rng.standard_normal(shape)
        if number % 2:
            design += 3 * rng.standard_normal((num_tasks, num_rows, 1))
        else:
            design *= 10.0 ** rng.uniform(-1, 1, num_features)
        coef = np.zeros((num_tasks, num_features))
        coef[:, rng.permutation(num_features)[:5]] = rng.uniform(0.5, 2, (num_tasks, 5))
        noise = 0.1 * rng.standard_normal((num_tasks, num_rows))
        designs.append(design)
        targets.append(np.einsum("snf,sf->sn", design, coef) + noise)
        lams.append(float(lambda_max(design, targets[-1])) * 10 ** rng.uniform(-3, -0.3))
    arrays = (np.stack(field).astype(dtype) for field in (designs, targets, lams))
    solution = jax.jit(jax.vmap(lambda *data: group_lasso(*data)))(*arrays)
    assert (solution.status == Status.CONVERGED).all()
    assert solution.num_steps.max() < 3_000  # 10,000 before, with steps in log r
