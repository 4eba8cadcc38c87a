"""Proximal gradient: steps with Gram matrices and with the rows, the gap of a working set, the step size."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.solver.proximal import CHECK_STEPS, Problem, Singletons, advance, gram_of, start, two_steps
from tests import reference


def make(num_rows, num_features, seed=0, lam=0.1):
    rng = np.random.default_rng(seed)
    design = jnp.asarray(rng.standard_normal((3, num_rows, num_features)))
    targets = jnp.asarray(rng.standard_normal((3, num_rows)))
    return Problem(design, targets, jnp.asarray(lam), jnp.asarray(float(targets.size)), Singletons())


def begin(problem):
    zeros = jnp.zeros(problem.design[:, 0].shape)
    gradient = problem.gradient(problem.targets)
    return start(problem, zeros, problem.targets, gradient, jnp.zeros((), jnp.int32))


def test_gram_matrices_are_used_with_at_least_as_many_rows_as_features():
    assert make(10, 10).with_gram().gram is not None
    assert make(10, 11).with_gram().gram is None


def test_descent_and_curve_with_gram_matrices_equal_those_with_rows():
    rows = make(15, 12)
    gram = rows.with_gram()
    coef = jnp.asarray(np.random.default_rng(1).standard_normal((3, 12)))
    np.testing.assert_allclose(gram.descent(coef), rows.gradient(rows.residual(coef)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gram.descent(coef), rows.descent(coef), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gram.curve(coef), rows.curve(coef), rtol=1e-12, atol=1e-12)


def test_gram_matrices_have_the_unit_of_the_design():
    problem = make(15, 12)
    other = Problem(
        problem.design / 8,
        problem.targets,
        problem.lam,
        problem.num_rows,
        problem.groups,
        (jnp.asarray(2.0), jnp.asarray(4.0)),
    )
    np.testing.assert_array_equal(gram_of(other), gram_of(problem))
    np.testing.assert_array_equal(other.with_gram().correlation, problem.with_gram().correlation)


@pytest.mark.parametrize("with_gram", [False, True])
def test_two_steps_are_fista_with_a_reset_on_overshoot(with_gram):
    problem = make(15, 12)
    coef = np.zeros((3, 12))
    ahead, age, length = coef, 0.0, 3.0

    def proximal(ahead):
        moved = ahead + np.asarray(problem.gradient(problem.residual(jnp.asarray(ahead)))) / length
        norms = np.sqrt((moved**2).sum(0))
        return moved * np.maximum(1 - 0.1 / length / norms, 0)

    at = (jnp.asarray(coef), jnp.asarray(coef), jnp.asarray(age))
    used, resets = problem.with_gram() if with_gram else problem, 0
    run = jax.jit(lambda at: two_steps(used, jnp.asarray(length), *at))
    for _ in range(30):
        at = run(at)
        first = proximal(ahead)
        ahead = first + (age + 1) / (age + 3) * (first - coef)
        coef = proximal(ahead)
        overshoots = ((coef - ahead) * (coef - first)).sum() < 0
        resets += overshoots
        age = 0.0 if overshoots else age + 2
        ahead = coef + age / (age + 2) * (coef - first)
        np.testing.assert_allclose(at[0], coef, atol=1e-12)
        assert at[2] == age
    assert resets > 0


def test_gap_of_a_working_set_equals_that_over_all_features():
    problem = make(15, 12)
    coef = np.zeros((3, 12))
    coef[:, :4] = np.random.default_rng(2).standard_normal((3, 4)) / 10
    residual = problem.residual(jnp.asarray(coef))
    gradient = problem.gradient(residual)
    small = Problem(problem.design[..., :5], problem.targets, problem.lam, problem.num_rows, problem.groups)
    steepest = problem.norms(gradient).max()
    got = small.gap(jnp.asarray(coef[:, :5]), residual, gradient[:, :5], steepest)
    expected = reference.group_lasso_gap(
        np.asarray(problem.design), np.asarray(problem.targets), 0.1, None, None, coef
    )
    np.testing.assert_allclose(got, problem.gap(jnp.asarray(coef), residual, gradient), rtol=1e-12)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_step_size_lies_between_the_estimate_and_the_bound():
    problem = make(15, 12).with_gram()
    at = begin(problem)
    largest = np.linalg.eigvalsh(np.asarray(problem.gram)).max()
    assert at.lipschitz <= at.lipschitz_bound
    assert at.lipschitz_bound >= largest
    assert 0.5 * largest <= at.lipschitz <= 1.1 * largest * (1 + 1e-12)


def test_steps_that_are_too_long_are_undone_and_halved():
    problem = make(15, 12).with_gram()
    at = begin(problem)
    short = eqx.tree_at(lambda at: at.lipschitz, at, at.lipschitz / 64)
    after = advance(short, problem)
    assert after.lipschitz == at.lipschitz / 32 and after.age == 0
    np.testing.assert_array_equal(after.coef, at.coef)
    assert after.num_steps == at.num_steps + CHECK_STEPS
    assert advance(at, problem).objective < at.objective
