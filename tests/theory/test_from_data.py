"""Noise, lam and omega from data: estimates against simulation, and bounds against orthogonal designs."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import jlibo
from jlibo import theory
from jlibo.meta import noise
from jlibo.meta.past import remember_all

FEATURES = jlibo.Cosine(30)
COEF = 3.0 * jnp.eye(30)[3] - 2.0 * jnp.eye(30)[7]
TASKS, ROWS = 10, 9
EIGHT = jnp.broadcast_to(jnp.arange(ROWS) < 8, (TASKS, ROWS))  # one mask of rows, so that shapes are shared


@partial(jax.jit, static_argnames=("num_tasks", "num_rows"))
def draw(key, noise_std, coef=COEF, *, num_tasks=TASKS, num_rows=ROWS):
    """Uniform rows, and rewards of coefficients whose signs differ between tasks."""
    point_key, sign_key, noise_key = jax.random.split(key, 3)
    points = jlibo.sample_box(FEATURES, num_tasks * num_rows, key=point_key)
    design = FEATURES(points).reshape(num_tasks, num_rows, 30)
    signs = jax.random.rademacher(sign_key, (num_tasks, 30), design.dtype)
    targets = jnp.einsum("srf,sf->sr", design, signs * coef)
    return design, targets + noise_std * jax.random.normal(noise_key, targets.shape)


@jax.jit
def estimate(design, targets, mask=EIGHT):
    return theory.estimate_noise(design, targets, mask=mask)


@jax.jit
def estimates(keys, noise_std, coef=COEF):
    return jax.vmap(lambda key: theory.estimate_noise(*draw(key, noise_std, coef), mask=EIGHT))(keys)


@pytest.mark.parametrize("noise_std", [0.02, 0.5])
def test_noise_is_estimated_with_fewer_rows_than_features(noise_std):
    """1,000 data sets of 10 tasks with 8 rows and 30 features, of which two are used."""
    found = estimates(jax.random.split(jax.random.key(0), 1000), noise_std)
    assert found.is_identified.mean() > 0.99
    exact = np.asarray(found.num_explained) == 2
    assert exact.mean() > 0.9
    np.testing.assert_array_equal(found.freedom[exact], 10 * (8 - 2))
    ratios = np.asarray(found.noise_std) / noise_std
    np.testing.assert_allclose((ratios[exact] ** 2).mean(), 1, rtol=0.02)
    # The spread is that of a chi-squared variable with 60 degrees of freedom.
    np.testing.assert_allclose(ratios[exact].std(), 1 / np.sqrt(2 * 60), rtol=0.15)
    assert np.quantile(ratios, 0.01) > 0.7 and np.quantile(ratios, 0.99) < 1.3


def test_noise_alone_is_not_identified_and_is_the_root_mean_square():
    found = estimates(jax.random.split(jax.random.key(1), 1000), 0.5, 0 * COEF)
    assert found.is_identified.mean() <= noise.NOISE_DELTA / 2
    np.testing.assert_allclose(np.median(found.noise_std), 0.5, rtol=0.02)
    np.testing.assert_array_equal(found.freedom[~found.is_identified], 80)


def test_one_short_task_is_not_told_from_noise():
    """One task of 4 rows and 30 features: any of 27,405 sets of four explains it, so none is evidence."""
    design, targets = draw(jax.random.key(2), 0.01)
    mask = jnp.zeros((TASKS, ROWS), bool).at[0, :4].set(True)
    found = estimate(design, targets, mask)
    assert not found.is_identified and found.num_explained == 0
    np.testing.assert_allclose(found.noise_std, np.sqrt((np.asarray(targets[0, :4]) ** 2).mean()), rtol=1e-6)


def test_residuals_are_those_of_least_squares():
    design, targets = draw(jax.random.key(3), 0.1)
    found = estimate(design, targets)
    left = sum(
        np.linalg.lstsq(rows[:8, [3, 7]], rewards[:8], rcond=None)[1][0]
        for rows, rewards in zip(np.asarray(design), np.asarray(targets), strict=True)
    )
    np.testing.assert_allclose(found.noise_std, np.sqrt(left / 60), rtol=1e-6)


def test_estimate_is_equivariant_and_ignores_masked_rows():
    design, targets = draw(jax.random.key(4), 0.1)
    mask = jnp.arange(ROWS) < jnp.arange(TASKS)[:, None] % 3 + 6
    junk = jnp.where(mask, targets, jnp.nan)
    found = estimate(design, junk, mask)
    scaled = estimate(7 * design, 3 * junk, mask)
    np.testing.assert_allclose(scaled.noise_std, 3 * found.noise_std, rtol=1e-6)
    assert found.freedom == mask.sum() - 20
    np.testing.assert_allclose(found.noise_std, 0.1, rtol=0.4)


def test_limits_of_the_estimate():
    design, targets = draw(jax.random.key(5), 0.0)
    assert estimate(design, targets).noise_std < 1e-7
    nothing = estimate(design, 0 * targets)
    assert nothing.noise_std == 0 and not nothing.is_identified
    absent = estimate(design, targets, jnp.zeros((TASKS, ROWS), bool))
    assert absent.noise_std == 0 and absent.freedom == 0


def sizes_of(num_tasks, num_rows, **options):
    return jlibo.RunSizes(tuple(range(30)), num_tasks, num_rows, num_rows, jnp.zeros(()).dtype, **options)


@eqx.filter_jit
def past_of(design, targets, sizes):
    data = jlibo.TaskData(design, targets, jnp.ones(targets.shape, bool))
    return remember_all(data, jnp.ones(len(targets), bool), "all", sizes)


@eqx.filter_jit
def learn(learner, past, sizes):
    return learner.learn(past, jnp.asarray(TASKS), sizes)


def test_dense_tasks_with_more_rows_than_features_use_what_compression_removed():
    """With all 30 features used and 60 rows, the residuals have 30 degrees of freedom a task."""
    design, targets = draw(jax.random.key(6), 0.1, jnp.ones(30), num_tasks=4, num_rows=60)
    sizes = sizes_of(4, 60)
    found = eqx.filter_jit(noise.estimate_noise)(past_of(design, targets, sizes), sizes)
    left = sum(
        np.linalg.lstsq(rows, rewards, rcond=None)[1][0]
        for rows, rewards in zip(np.asarray(design), np.asarray(targets), strict=True)
    )
    assert found.num_explained == 30 and found.freedom == 120
    np.testing.assert_allclose(found.noise_std, np.sqrt(left / 120), rtol=1e-5)


def test_free_features_cost_degrees_of_freedom():
    design, targets = draw(jax.random.key(7), 0.1)
    design, targets = design.at[:, :, 0].set(1), targets + 5
    sizes = sizes_of(TASKS, ROWS, free_groups=(0,))
    found = eqx.filter_jit(noise.estimate_noise)(past_of(design, targets, sizes), sizes)
    assert found.num_explained == 2 and found.freedom == 10 * (9 - 3)
    np.testing.assert_allclose(found.noise_std, 0.1, rtol=0.3)


@jax.jit
def solve(design, targets, lam):
    return jlibo.group_lasso(design, targets, lam, tol=1e-9)


# --- lam ----------------------------------------------------------------------------------------------------


def test_lam_of_meta_kgl_is_four_times_the_estimated_noise():
    design, targets = draw(jax.random.key(8), 0.1)
    sizes = sizes_of(TASKS, ROWS)
    past = past_of(design, targets, sizes)
    level = estimate(design, targets, jnp.ones((TASKS, ROWS), bool)).noise_std
    lam = float(4 * level * noise.noise_scale(past, sizes))
    solution = solve(design, targets, lam)
    learner = jlibo.MetaKGL(4.0, 0.75, lam_scaling="estimated", omega_scaling="penalty", tol=1e-9)
    state, info = learn(learner, past, sizes)
    np.testing.assert_allclose(state.coef, solution.coef, atol=1e-5)
    squares = (np.asarray(design) ** 2).mean((0, 1))
    expected = solution.group_norms / np.sqrt(10) > theory.penalty_omega(lam, 10, squares)
    np.testing.assert_array_equal(info.support, expected)
    assert info.support[3] and info.support[7]


def test_lam_of_the_bracket_is_its_upper_end():
    design, targets = draw(jax.random.key(9), 0.1)
    sizes = sizes_of(TASKS, ROWS)
    past = past_of(design, targets, sizes)
    lower, upper = theory.lam_bracket(design, 2, beta_min=0.5, omega=0.25)
    assert lower == 0 < upper, "9 rows of 30 features prove no kappa"
    solution = solve(design, targets, upper)
    learner = jlibo.MetaKGL(1 / 8, 0.25, lam_scaling="bracket", tol=1e-9)
    state, _ = learn(learner, past, sizes)
    np.testing.assert_allclose(state.coef, solution.coef, atol=1e-5)


def test_omega_of_the_rewards_scales_with_them():
    """The threshold in units of the rewards' root mean square selects the same kernels in any units."""
    design, targets = draw(jax.random.key(9), 0.1)
    sizes = sizes_of(TASKS, ROWS)
    learner = jlibo.MetaKGL(1 / 8, 0.04, lam_scaling="bracket", omega_scaling="rewards", tol=1e-9)
    scale = float(np.sqrt((np.asarray(targets) ** 2).mean()))
    state, info = learn(learner, past_of(design, targets, sizes), sizes)
    np.testing.assert_array_equal(info.support, (state.coef**2).sum(0) > (0.04 * scale) ** 2 * TASKS)
    np.testing.assert_array_equal(np.flatnonzero(info.support), [3, 7])
    _, upper = theory.lam_bracket(design, 2, beta_min=0.08 * scale, omega=0.04 * scale)
    np.testing.assert_allclose(state.coef, solve(design, targets, upper).coef, atol=1e-5)
    larger, other = learn(learner, past_of(design, 50 * targets, sizes), sizes)
    np.testing.assert_array_equal(other.support, info.support)
    np.testing.assert_allclose(larger.coef, 50 * state.coef, atol=1e-3)


def test_upper_kappa_is_not_below_that_of_the_search():
    """The search finds a ratio that is at most the closed form, so both are upper ends."""
    features, groups = jlibo.Cosine(6), [0, 1, 1, 2, 3, 3]
    points = jlibo.sample_box(features, 2 * 200, key=jax.random.key(0))
    design = features(points).reshape(2, 200, 6)
    for num_rows in (5, 20, 200):
        mask = jnp.broadcast_to(jnp.arange(200) < num_rows, (2, 200))
        rest = dict(groups=groups, mask=mask)
        found = theory.kappa_search(design, 2, **rest, num_starts=8, num_rounds=4, key=jax.random.key(1))
        upper = theory.kappa_upper(design, 2, **rest)
        assert found.ratio <= upper * (1 + 1e-6)
    np.testing.assert_allclose(upper, theory.population_kappa(0.5, 2), rtol=0.15)


def test_ends_of_the_bracket_meet_for_orthogonal_features():
    design = jnp.asarray(linalg.hadamard(16)[:, 1:7], float)[None]
    ends = theory.lam_bracket(design, 3, beta_min=1.0, omega=0.4)
    expected = theory.theorem_lam(1, beta_min=1.0, omega=0.4, kappa=3**-0.5)
    np.testing.assert_allclose(ends, [expected, expected], rtol=1e-6)


# --- omega --------------------------------------------------------------------------------------------------


def test_error_of_orthogonal_features_is_below_omega_as_often_as_promised():
    """2,000 data sets: with lam above the noise at level delta, all errors are below the threshold."""
    num_tasks, num_rows, num_features, delta = 3, 16, 6, 0.1
    design = jnp.asarray(np.broadcast_to(linalg.hadamard(16)[:, 1:7], (3, 16, 6)), float)
    lam = theory.noise_lam(num_rows, num_tasks, num_features, noise_std=0.3, delta=delta)
    omega = theory.penalty_omega(lam, num_tasks, 1.0)
    coef = jnp.zeros((3, 6)).at[:, 2].set(2.1 * omega)

    def errors(key):
        targets = jnp.einsum("srf,sf->sr", design, coef) + 0.3 * jax.random.normal(key, (3, 16))
        found = jlibo.group_lasso(design, targets, lam, tol=1e-7)
        error = jnp.sqrt(((found.coef - coef) ** 2).sum(0)) / num_tasks**0.5
        return error.max(), (found.group_norms > omega * num_tasks**0.5) == (jnp.arange(6) == 2)

    error, right = jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(0), 2000))
    assert (error > omega).mean() <= delta
    assert right.all(1).mean() >= 1 - delta
    assert np.median(error) > omega / 2, "the threshold is not absurdly large"


def test_omega_is_monotone_and_equals_the_theorems_up_to_its_factor():
    at = lambda **changes: theory.penalty_omega(  # noqa: E731
        **{"lam": 0.1, "num_tasks": 4.0, "mean_square": 0.5, **changes}
    )
    np.testing.assert_allclose(at(), 0.75 * 2 * 0.1 / 0.5)
    assert at(lam=0.11) > at() and at(num_tasks=5.0) > at() and at(mean_square=0.6) < at()
    # Theorem 3.3 at kappa^2 = z / s*: the error is 8 s* sqrt(m) lam / z.
    lam = theory.theorem_lam(4.0, beta_min=0.5, omega=0.25, kappa=theory.population_kappa(0.5, 5))
    np.testing.assert_allclose(theory.penalty_omega(lam, 4.0, 0.5), 0.25 * 0.75 / (8 * 5), rtol=1e-6)


def test_wrong_arguments_are_refused():
    design, targets = draw(jax.random.key(0), 0.1)
    with pytest.raises(ValueError, match="targets"):
        theory.estimate_noise(design, targets[:, :-1])
    with pytest.raises(ValueError, match="mask"):
        theory.estimate_noise(design, targets, mask=jnp.ones((2, 2), bool))
    with pytest.raises(ValueError, match="support_size"):
        theory.kappa_upper(design, 31)
    with pytest.raises(ValueError, match="`omega_scaling` should be"):
        jlibo.MetaKGL(0.1, 0.1, omega_scaling="gap")
