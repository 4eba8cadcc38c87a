"""Data, starts and lam of any size: the solution equals that of the same problem in other units.

All tests use one layout, so that each dtype compiles once.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import MetaKGL, Status, group_lasso, group_lasso_path, lambda_max
from jlibo.solver.units import exponent_near, near_one, times_power_of_two
from tests.solver.problems import make_problem

equal = np.testing.assert_array_equal
GROUPS = make_problem("mixed", 0).groups
RATIO = 0.1


def run(design, targets, mask, lam, init):
    return group_lasso(design, targets, lam, groups=GROUPS, mask=mask, init=init, tol=1e-6)


jitted = jax.jit(run)
several = jax.jit(jax.vmap(run))


def arguments(dtype, seed=0, design=0, targets=0):
    """A problem with its design scaled exactly by 2**design and its targets by 2**targets."""
    problem = make_problem("mixed", seed)
    rng = np.random.default_rng(seed)
    init = 0.1 * rng.standard_normal(problem.design[:, 0].shape)
    lam = RATIO * problem.lambda_max
    exponents = (design, targets, design + targets, targets - design)
    values = (problem.design, problem.targets, lam, init)
    with np.errstate(over="ignore"):
        design, targets, lam, init = (
            np.ldexp(value.astype(dtype), power) for value, power in zip(values, exponents, strict=True)
        )
    return design, targets, problem.mask, lam, init


def assert_rescaled(solution, plain, design, targets):
    """Equal to the exactly rescaled plain solution; a gap outside the dtype's range is rounded up."""
    kind = np.finfo(plain.coef.dtype)
    equal(solution.coef, np.ldexp(plain.coef, targets - design))
    equal(solution.group_norms, np.ldexp(plain.group_norms, targets - design))
    with np.errstate(over="ignore"):
        gap = np.ldexp(plain.gap, 2 * targets)
    equal(solution.gap, np.maximum(gap, kind.tiny))
    assert solution.status == plain.status == Status.CONVERGED
    assert solution.num_steps == plain.num_steps > 0


SCALES = {
    np.float32: [(-100, 0), (100, 0), (0, -100), (0, 100), (-60, -60), (60, 60), (-33, -33), (3, -64)],
    np.float64: [(-900, 0), (900, 0), (0, -900), (0, 900), (-500, -500), (500, 500), (-33, -33)],
}


@pytest.mark.parametrize("dtype", SCALES)
def test_rescaled_problem_gives_exactly_the_rescaled_solution(dtype):
    """Without internal scaling, these problems gave zeros and CONVERGED, or NaN."""
    for seed in range(3):
        plain = jitted(*arguments(dtype, seed))
        for design, targets in SCALES[dtype]:
            assert_rescaled(jitted(*arguments(dtype, seed, design, targets)), plain, design, targets)


def test_each_batch_element_has_its_own_units():
    scales = [(0, 0), *SCALES[np.float32]]
    lanes = [arguments(np.float32, 0, *scale) for scale in scales]
    together = several(*(np.stack(field) for field in zip(*lanes, strict=True)))
    plain = jitted(*lanes[0])
    for lane, scale in enumerate(scales):
        assert_rescaled(jax.tree.map(lambda leaf, lane=lane: leaf[lane], together), plain, *scale)


def test_garbage_in_absent_rows_does_not_affect_the_units():
    design, targets, mask, lam, init = arguments(np.float32, 0, -100, -10)
    plain = jitted(design, targets, mask, lam, init)
    for garbage in (np.nan, np.inf, 3e38):
        spoiled = np.where(mask[..., None], design, np.float32(garbage)), np.where(mask, targets, garbage)
        solution = jitted(spoiled[0], spoiled[1].astype(np.float32), mask, lam, init)
        equal(solution.coef, plain.coef)
        assert solution.status == Status.CONVERGED


def test_constant_data_under_jit_are_scaled():
    """XLA folds constants and reorders products of them."""
    design, targets, mask, lam, init = arguments(np.float32, 0, -90, -20)
    known = jax.jit(lambda lam: run(design, targets, mask, lam, init))(lam)
    np.testing.assert_allclose(known.coef, jitted(design, targets, mask, lam, init).coef, rtol=1e-3)
    assert known.status == Status.CONVERGED


@pytest.mark.parametrize("design, targets", [(-100, 100), (100, -100), (-124, 5), (20, -110)])
def test_solution_out_of_range_has_a_status_and_nan(design, targets):
    *arrays, init = arguments(np.float32, 0, design, targets)
    solution = jitted(*arrays, np.zeros_like(init))
    assert solution.status == Status.OUT_OF_RANGE
    assert np.isnan(solution.coef).all() and np.isnan(solution.group_norms).all() and np.isnan(solution.gap)
    assert solution.describe() == Status.OUT_OF_RANGE.words
    assert "float64" in Status.OUT_OF_RANGE.words


def test_columns_of_too_different_scales_are_out_of_range_in_float32():
    """At zero the second column's gradient is 7e-26 > lam; its square underflows: no float32 gap."""
    design = np.array([[[1, 0], [0, 1e-25]]] * 2)
    targets, lam = np.array([[0, 1.0]] * 2), 1e-26
    single = group_lasso(design.astype(np.float32), targets.astype(np.float32), np.float32(lam), max_steps=20)
    assert single.status == Status.OUT_OF_RANGE
    # Float64 solves it: with u = 1e-25 b, (1 - u)^2 / 2 + sqrt(2) u / 10 is least at u = 1 - sqrt(2) / 10.
    double = group_lasso(design, targets, lam)
    np.testing.assert_allclose(1e-25 * double.coef[:, 1], 1 - np.sqrt(2) / 10, rtol=1e-2)
    assert double.status == Status.CONVERGED


@pytest.mark.parametrize("dtype", SCALES)
def test_lambda_max_in_any_units(dtype):
    kind = np.finfo(dtype)
    limit = partial(lambda_max, groups=GROUPS)
    design, targets, mask, *_ = arguments(dtype)
    plain = np.asarray(limit(design, targets, mask=mask))
    for powers in [*SCALES[dtype], (-kind.maxexp + 30,) * 2, (kind.maxexp - 30,) * 2]:
        scaled = arguments(dtype, 0, *powers)
        largest = limit(*scaled[:2], mask=mask)
        with np.errstate(over="ignore"):
            equal(largest, np.maximum(np.ldexp(plain, sum(powers)), kind.tiny))
        # The solution is zero from there on, also if lambda_max was rounded up.
        solution = jitted(*scaled[:3], largest, scaled[4])
        assert not np.any(solution.coef) and solution.status == Status.CONVERGED


def test_gradients_in_other_units():
    weights = np.random.default_rng(0).standard_normal((3, 28)).astype(np.float32)

    @jax.jit
    def gradients(design, targets, mask, lam):
        def loss(design, targets, lam):
            solution = run(design, targets, mask, lam, jnp.zeros((3, 28), design.dtype))
            return (solution.coef * weights).sum() + solution.group_norms[2]

        return jax.grad(loss, (0, 1, 2))(design, targets, lam)

    plain = gradients(*arguments(np.float32)[:4])
    assert all(np.any(grad) for grad in plain)
    for design, targets in [(-55, 0), (50, 0), (0, -100), (0, 100), (-40, -40), (30, -30)]:
        scaled = gradients(*arguments(np.float32, 0, design, targets)[:4])
        # d coef / d design has the unit of coef over that of design, and so on.
        for grad, want, unit in zip(scaled, plain, (design, targets, design + targets), strict=True):
            equal(grad, np.ldexp(want, targets - design - unit))


def test_a_path_in_other_units():
    design, targets, mask, lam, _ = arguments(np.float32)
    lams = lam * np.array([5, 2, 1], np.float32)
    plain = group_lasso_path(design, targets, lams, groups=GROUPS, mask=mask)
    design, targets, _, lam, _ = arguments(np.float32, 0, -90, 20)
    path = group_lasso_path(design, targets, lam * np.array([5, 2, 1], np.float32), groups=GROUPS, mask=mask)
    equal(path.coef, np.ldexp(plain.coef, 110))
    equal(path.num_steps, plain.num_steps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_are_exact(dtype):
    kind, rng = np.finfo(dtype), np.random.default_rng(0)
    most = kind.maxexp - 3
    exponents = np.arange(-4 * most, 4 * most + 1, 7)
    values = np.ldexp(
        rng.uniform(1, 2, len(exponents)).astype(dtype), rng.integers(-most, most, len(exponents))
    )
    got = jax.jit(jax.vmap(times_power_of_two))(values, exponents.astype(np.int32))
    with np.errstate(over="ignore"):
        want = np.ldexp(values, exponents)
    equal(got, np.where(want < kind.tiny, 0, want))  # XLA flushes subnormal numbers to zero
    for value, exponent in [
        (0, 0),
        (1, 0),
        (-1.2, 0),
        (1.8, 1),
        (kind.tiny, -most),
        (kind.max, most),
        (np.nan, 0),
    ]:
        array = jnp.asarray([0, value], dtype)
        assert exponent_near(array) == exponent
        if not np.isnan(value):
            near, power = near_one(array)
            equal(near * power, array)
            assert np.abs(near).max() <= 8


# ------------------------------------------------------------------------------------------------------ start


def test_distant_start_never_ends_worse_than_zero():
    rng = np.random.default_rng(0)
    for case in range(100):
        problem = make_problem("mixed", case)
        lam = rng.choice([0.01, 0.1, 0.5]) * problem.lambda_max
        init = rng.standard_normal(problem.design[:, 0].shape) * 10.0 ** rng.integers(1, 30)
        solution = group_lasso(*problem[:2], lam, groups=GROUPS, mask=problem.mask, init=init, max_steps=20)
        assert problem.objective(solution.coef, lam) <= problem.at_zero * (1 + 1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_non_finite_or_huge_start_counts_as_zero(bad):
    design, targets, mask, lam, init = arguments(np.float32)
    cold = jitted(design, targets, mask, lam, np.zeros_like(init))
    init[1, 3] = bad
    warm = jitted(design, targets, mask, lam, init)
    equal(warm.coef, cold.coef)
    assert warm.num_steps == cold.num_steps and warm.status == Status.CONVERGED


# -------------------------------------------------------------------------------------------------------- lam


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_lam_inside_jit_gives_zero(dtype):
    design, targets, mask, _, init = arguments(dtype)
    solution = jitted(design, targets, mask, dtype(np.inf), init)
    assert solution.status == Status.CONVERGED and solution.gap == 0 and solution.num_steps == 0
    assert not np.any(solution.coef) and not np.any(solution.group_norms)
    for lam, status in [(np.nan, Status.NON_FINITE_INPUT), (-np.inf, Status.NEGATIVE_LAM)]:
        solution = jitted(design, targets, mask, dtype(lam), init)
        assert solution.status == status and np.isnan(solution.coef).all()


SINGLE = dict(design=np.ones((2, 3, 4), np.float32), targets=np.ones((2, 3), np.float32), lam=0.1)
UNFIT = [
    (dict(lam=1e39), r"`lam` .* at most 3\.4e\+38 in size, the largest float32, but got 1e\+39"),
    (dict(lam=1e-50), r"`lam` .* zero, or at least 1\.2e-38 .* but got 1e-50 \(rescale"),
    (dict(design=np.full((2, 3, 4), 1e39)), r"`design` .* the largest float32, but got 1e\+39"),
    (dict(targets=np.full((2, 3), 1e-60)), r"`targets` .* the smallest normal float32, but got 1e-60"),
    (dict(targets=np.full((2, 3), 1e-40, np.float32)), r"`targets` .* the smallest normal float32"),
    (dict(init=np.full((2, 4), -1e39)), r"`init` .* the largest float32, but got 1e\+39"),
]


@pytest.mark.parametrize("change, message", UNFIT)
def test_concrete_values_outside_the_dtype_raise(change, message):
    with jax.enable_x64(False), pytest.raises(ValueError, match=message):
        group_lasso(**(SINGLE | change))


def test_concrete_lams_and_hyperparameters_outside_the_dtype_raise():
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=r"`lams\[1\]` .* the smallest normal float32, but got 1e-39"):
            group_lasso_path(SINGLE["design"], SINGLE["targets"], [1.0, 1e-39])
        with pytest.raises(ValueError, match=r"`lam` .* the largest float32, but got 1e\+39"):
            MetaKGL(1e39, 0.1)
        # Small entries become zero in `init`, and in `targets` that have larger entries too.
        group_lasso(**(SINGLE | dict(init=np.full((2, 4), 1e-60))), max_steps=0)
        group_lasso(**(SINGLE | dict(targets=np.full((2, 3), [1, 1, 1e-60]))), max_steps=0)
