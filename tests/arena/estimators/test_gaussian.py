"""Beliefs as mean and factor: the conjugate update, its limits, and the marginal likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena.estimators import (
    Gaussian,
    TaskStatistics,
    condition,
    log_marginal,
    statistics_of,
    symmetric_eigen,
    top_subspace,
)
from jlibo.arena.estimators.gaussian import factor_of, resolved_noise, slope
from tests.arena.estimators.references import (
    dense_log_density,
    draw_tasks,
    gaussian_posterior,
    projector,
    random_covariance,
)

NOISE = 0.3**2
close = lambda got, want, rtol=1e-8: np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-8)  # noqa: E731


def one_task(num_rows=6, num_features=4, seed=0):
    draw = draw_tasks(1, num_rows, num_features, seed=seed)
    return draw.features[0], draw.rewards[0], statistics_of(draw.features[0], draw.rewards[0])


@pytest.mark.parametrize("rank", [4, 2, 1])
def test_factor_form_is_the_conjugate_update(rank):
    rows, rewards, stats = one_task()
    mean, covariance = np.arange(4.0), random_covariance(4, rank=rank)
    factor = factor_of(jnp.asarray(covariance))
    after = jax.jit(condition)(Gaussian(jnp.asarray(mean), factor), stats.gram, stats.moment, NOISE)
    want_mean, want_covariance = gaussian_posterior(mean, covariance, rows, rewards, NOISE)
    close(after.mean, want_mean)
    close(after.covariance, want_covariance)


def test_low_rank_factor_is_the_update_in_its_coordinates():
    rows, rewards, stats = one_task()
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 2)))[0]
    factor = jnp.zeros((4, 4)).at[:, :2].set(basis)
    after = condition(Gaussian(jnp.zeros(4), factor), stats.gram, stats.moment, NOISE)
    mean, covariance = gaussian_posterior(np.zeros(2), np.eye(2), rows @ basis, rewards, NOISE)
    close(after.mean, basis @ mean)
    close(after.covariance, basis @ covariance @ basis.T)


def test_sparse_factor_is_the_posterior_of_the_selected_kernel():
    """F = diag(1_J) / sqrt|J| is LiBO's k_hat, as `jlibo.posterior` computes it."""
    rows, rewards, stats = one_task()
    prior = jlibo.support_prior([True, False, True, False], groups=range(4))
    posterior = jlibo.posterior.init(prior, np.sqrt(NOISE))
    for row, reward in zip(rows, rewards, strict=True):
        posterior = jlibo.posterior.observe(posterior, jnp.asarray(row), jnp.asarray(reward))
    after = condition(Gaussian.of_prior(prior), stats.gram, stats.moment, NOISE)
    close(after.mean, posterior.mean)
    close(after.covariance, posterior.covariance)


def test_point_estimate_stays():
    _, _, stats = one_task()
    after = condition(Gaussian(jnp.arange(4.0), jnp.zeros((4, 4))), stats.gram, stats.moment, NOISE)
    close(after.mean, np.arange(4.0))
    close(after.factor, np.zeros((4, 4)))


@pytest.mark.parametrize("num_rows", [0, 3, 9])
def test_log_marginal_is_the_dense_gaussian_process(num_rows):
    rows, rewards, stats = one_task(num_rows)
    mean, covariance = np.arange(4.0), random_covariance(4, rank=3)
    got = log_marginal(Gaussian(jnp.asarray(mean), factor_of(jnp.asarray(covariance))), stats, NOISE)
    dense = rows @ covariance @ rows.T + NOISE * np.eye(num_rows)
    close(got, dense_log_density(rewards, rows @ mean, dense) if num_rows else 0.0)


def test_slope_is_the_derivative():
    _, _, stats = one_task()
    mean, factor = jnp.arange(4.0), factor_of(jnp.asarray(random_covariance(4)))
    found = slope(Gaussian(mean, factor), stats.gram, stats.moment, NOISE)
    by_mean, by_factor = jax.grad(lambda m, f: log_marginal(Gaussian(m, f), stats, NOISE), argnums=(0, 1))(
        mean, factor
    )
    close(found.mean, by_mean)
    close(2 * found.covariance @ factor, by_factor)


def test_statistics_ignore_absent_rows_and_add_up():
    draw = draw_tasks()
    present = np.random.default_rng(0).random(draw.rewards.shape) < 0.5
    broken = np.where(present, draw.rewards, np.nan)
    whole = statistics_of(draw.features, broken, present)
    stats = TaskStatistics.empty(*draw.weights.shape)
    for step in range(draw.rewards.shape[1]):
        stats = stats.observe(
            jnp.arange(5), draw.features[:, step], draw.rewards[:, step], jnp.asarray(present[:, step])
        )
    jax.tree.map(close, stats, whole)
    close(whole.count, present.sum(1))
    twice = TaskStatistics.empty(2, 4).observe(jnp.asarray([1, 1]), draw.features[0, :2], draw.rewards[0, :2])
    close(twice.gram[1], draw.features[0, :2].T @ draw.features[0, :2])
    only = whole.only(jnp.asarray([True, False, True, False, False]))
    close(only.count, whole.count * np.array([1, 0, 1, 0, 0]))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 17])
def test_eigen_decomposition(size):
    matrix = random_covariance(size) - 0.5 * np.eye(size)
    values, vectors = jax.jit(symmetric_eigen)(matrix)
    close(values, np.linalg.eigvalsh(matrix)[::-1])
    close(vectors.T @ vectors, np.eye(size))
    close(vectors * values @ vectors.T, matrix)


def test_eigen_decomposition_of_special_matrices():
    for matrix in (np.zeros((5, 5)), np.eye(5), np.ones((5, 5)), np.diag([3.0, 3.0, -1.0, 0.0, 3.0])):
        values, vectors = symmetric_eigen(jnp.asarray(matrix))
        close(values, np.linalg.eigvalsh(matrix)[::-1])
        close(vectors * values @ vectors.T, matrix)
    # Scales from 1e-12 to 1, and a batch
    matrices = np.stack([np.diag(10.0 ** -np.arange(0, 12, 2)), random_covariance(6, rank=2)])
    values, vectors = jax.vmap(symmetric_eigen)(jnp.asarray(matrices))
    close(jnp.einsum("bfk,bk,bgk->bfg", vectors, values, vectors), matrices)
    single = symmetric_eigen(jnp.asarray(random_covariance(12), jnp.float32))
    assert single[0].dtype == jnp.float32
    np.testing.assert_allclose(single[0], np.linalg.eigvalsh(random_covariance(12))[::-1], atol=1e-5)


def test_top_subspace():
    matrix = random_covariance(7)
    want = np.linalg.eigh(matrix)[1][:, -3:]
    close(projector(np.asarray(top_subspace(jnp.asarray(matrix), 3))), projector(want))
    with pytest.raises(ValueError, match="`rank` should be at most the 7 features"):
        top_subspace(jnp.asarray(matrix), 8)


def accurate_task(num_rows, dtype, num_features=40):
    """Observations with a ten-thousandth of the signal as noise, and the wide belief before them."""
    rng = np.random.default_rng(0)
    rows = np.asarray(jlibo.Cosine(num_features)(rng.uniform(size=(num_rows, 1))))
    rewards = rows @ (2 * rng.normal(size=num_features)) + 1e-3 * rng.normal(size=num_rows)
    belief = Gaussian(jnp.zeros(num_features, dtype), 2 * jnp.eye(num_features, dtype=dtype))
    return belief, statistics_of(jnp.asarray(rows[None], dtype), jnp.asarray(rewards[None], dtype))


@pytest.mark.parametrize("num_rows", [5, 30, 200])
def test_accurate_measurements_in_single_precision(num_rows):
    """Round-off counts as noise, so that the belief is wider than the exact one and not wrong."""
    after = {}
    for dtype in (jnp.float32, jnp.float64):
        belief, stats = accurate_task(num_rows, dtype)
        one = jax.tree.map(lambda leaf: leaf[0], stats)
        noise = jnp.asarray(1e-6, dtype)
        after[dtype] = condition(belief, one.gram, one.moment, noise)
        for number in (
            *jax.tree.leaves(slope(belief, one.gram, one.moment, noise)),
            log_marginal(belief, one, noise),
        ):
            assert np.isfinite(number).all()
    found, exact = after.values()
    spread = np.sqrt(np.diagonal(found.covariance))
    assert (spread > 0.9 * np.sqrt(np.diagonal(exact.covariance))).all()
    assert (np.abs(found.mean - exact.mean) < 2 * spread).all()


def test_round_off_is_not_noise_in_double_precision():
    _, stats = accurate_task(200, jnp.float64)
    inner = 4 * stats.gram[0]
    assert float(resolved_noise(inner, 1e-6)) == 1e-6
    assert float(resolved_noise(inner.astype(jnp.float32), jnp.float32(1e-6))) > 1e-6
    # What the prior mean predicts has round-off too.
    assert float(resolved_noise(inner, 0.0, 1e9)) > float(resolved_noise(inner, 0.0)) > 0
