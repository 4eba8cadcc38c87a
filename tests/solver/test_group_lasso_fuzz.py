"""Random degenerate problems at scales from 1e-30 to 1e30: objective, gap, status and group norms.

The reference works in float64 on the same numbers divided by powers of two, so that nothing leaves its range.
"""

from typing import NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from jlibo import Status, group_lasso
from tests import reference
from tests.solver.problems import LAYOUTS, Problem, make_problem

ROUNDING = {np.float32: 1e-5, np.float64: 1e-13}
"""What the solver's own rounding may add to a claim, in units of (1/N) ||y||^2."""


class Case(NamedTuple):
    """A problem as given to the solver, and the same one scaled by powers of two for the reference."""

    problem: Problem
    lam: float
    init: np.ndarray
    plain: Problem
    plain_lam: float
    exponents: tuple[int, int]


def spoil(rng, problem):
    """At random: zero, equal or scaled columns, tasks without rows, zero targets, garbage in absent rows."""
    design, targets, mask = (np.array(field) for field in problem[:3])
    num_features = design.shape[2]
    some = rng.permutation(num_features)[: rng.integers(1, num_features // 2)]
    if rng.random() < 0.3:
        design[:, :, some] = 0
    if rng.random() < 0.3:
        design[:, :, some] = design[:, :, [some[0]]]
    if rng.random() < 0.3:
        design[:, :, some] *= 10.0 ** rng.integers(-8, 8)
    if rng.random() < 0.3:
        mask[rng.permutation(len(mask))[: rng.integers(1, len(mask))]] = False
        mask[rng.integers(len(mask)), 0] = True
        design[~mask] = targets[~mask] = 0
    if rng.random() < 0.05:
        targets[:] = 0
    design[~mask] = targets[~mask] = rng.choice([np.nan, np.inf, 1e3, 0.0])
    return problem._replace(design=design, targets=targets, mask=mask)


def exponent(values):
    return int(np.frexp(np.abs(values).max())[1])


def first_task(problem):
    """The problem of the first task alone, with at least one row."""
    one = Problem(*(field[:1] for field in problem[:3]), problem.groups)
    if not one.mask.any():
        one.mask[0, 0], one.design[0, 0], one.targets[0, 0] = True, 1, 1
    return one


def make_case(rng, name, dtype, one_task):
    problem = spoil(rng, make_problem(name, int(rng.integers(1000))))
    problem = first_task(problem) if one_task else problem
    mask = problem.mask
    scales = 10.0 ** rng.choice([-30, -20, -10, 0, 0, 10, 20, 30], size=2)
    kind = np.finfo(dtype)
    design, targets = (
        np.clip(values * scale, -kind.max, kind.max).astype(dtype)
        for values, scale in zip(problem[:2], scales, strict=True)
    )
    present = [np.where(mask[..., None], design, 0), np.where(mask, targets, 0)]
    units = [exponent(present[0]), exponent(present[1])]
    plain = Problem(
        np.ldexp(present[0].astype(np.float64), -units[0]),
        np.ldexp(present[1].astype(np.float64), -units[1]),
        mask,
        problem.groups,
    )
    ratio = rng.choice([0.0, 1e-3, 0.03, 0.2, 0.7, 1.2, 1e8])
    with np.errstate(all="ignore"):
        lam = dtype(np.ldexp(ratio * plain.lambda_max, sum(units)))
        init = rng.standard_normal(design[:, 0].shape) * rng.choice([0, 1e-3, 1, 1e3, 1e10, 1e20])
        init = np.ldexp(init, units[1] - units[0]).astype(dtype)
    lam = lam if lam == 0 or kind.tiny <= lam <= kind.max else dtype(np.clip(lam, kind.tiny, kind.max))
    init = np.where(np.isfinite(init), init, 0)
    plain_lam = float(np.ldexp(np.float64(lam), -sum(units)))
    return Case(Problem(design, targets, mask, problem.groups), lam, init, plain, plain_lam, tuple(units))


def check(case, dtype, solution, tol):
    """Assert objective, gap, status and group norms of a solution; return its status."""
    status = Status(int(solution.status))
    design_unit, target_unit = case.exponents
    back = design_unit - target_unit
    plain, lam, rounding = case.plain, case.plain_lam, ROUNDING[dtype] * case.plain.at_zero
    kind = np.finfo(dtype)
    # The reference's bisection overflows for very small lam, so it solves at zero instead. In either case the
    # objective of its solution at `lam` is no lower than the minimum.
    near = lam if lam > 1e-9 * plain.lambda_max else 0.0
    best, _ = reference.group_lasso_solve(*plain[:2], near, plain.groups, plain.mask, tol=1e-7, max_sweeps=60)
    if status == Status.OUT_OF_RANGE:
        sizes = np.abs(np.ldexp(best, -back))
        assert sizes.max() > 0.01 * kind.max or (0 < sizes.max() < kind.tiny / kind.eps**1.5)
        assert np.isnan(solution.coef).all() and np.isnan(solution.gap)
        return status
    assert status in (Status.CONVERGED, Status.STEP_LIMIT)
    coef = np.ldexp(np.asarray(solution.coef, np.float64), back)
    assert np.isfinite(coef).all()
    objective = plain.objective(coef, lam)
    excess = objective - min(plain.objective(best, lam), plain.at_zero)
    claimed = float(np.ldexp(np.float64(solution.gap), -2 * target_unit))
    assert excess <= claimed + rounding
    assert objective <= plain.at_zero + rounding  # no start ends worse than zero
    if status == Status.CONVERGED:
        assert excess <= max(tol, 32 * kind.eps) * plain.at_zero + rounding
    norms = reference.group_norms(np.ldexp(coef, -exponent(coef)), plain.groups)
    scale = exponent(coef) - back
    np.testing.assert_allclose(
        solution.group_norms, np.ldexp(norms, scale), rtol=20 * kind.eps, atol=2 * kind.tiny
    )
    return status


def attack(name, dtype, seed, num_cases, one_task=False):
    rng = np.random.default_rng([seed, LAYOUTS.index(name)])
    statuses = []
    with threadpool_limits(1):
        for _ in range(num_cases):
            case = make_case(rng, name, dtype, one_task)
            problem, tol = case.problem, 1e-6
            solution = group_lasso(
                problem.design,
                problem.targets,
                case.lam,
                groups=problem.groups,
                mask=problem.mask,
                init=case.init,
                tol=tol,
                max_steps=int(rng.choice([0, 30, 1000])),
            )
            statuses.append(check(case, dtype, solution, tol))
    return statuses


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_objective_gap_status_and_norms_at_every_scale(dtype):
    statuses = attack("wide", dtype, 0, 60)
    assert statuses.count(Status.CONVERGED) >= 20 and Status.STEP_LIMIT in statuses
    assert (Status.OUT_OF_RANGE in statuses) == (dtype == np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_objective_gap_status_and_norms_of_one_task(dtype):
    """Problems of one task are finished by Newton's method."""
    statuses = attack("mixed", dtype, 2, 60, one_task=True)
    assert statuses.count(Status.CONVERGED) >= 20 and Status.STEP_LIMIT in statuses


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LAYOUTS)
def test_objective_gap_status_and_norms_of_one_task_in_many_cases(name, dtype):
    assert attack(name, dtype, 3, 300, one_task=True).count(Status.CONVERGED) >= 80


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LAYOUTS)
def test_objective_gap_status_and_norms_at_every_scale_in_many_cases(name, dtype):
    statuses = attack(name, dtype, 1, 700)
    assert statuses.count(Status.CONVERGED) >= 200
