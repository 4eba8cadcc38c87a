"""Moments of tasks: exact without noise, unbiased with it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import TaskStatistics, moment_belief, statistics_of, task_moments
from jlibo.arena.estimators.task_moments import TaskMoments, is_informative, widening
from tests.arena.estimators.references import draw_tasks, random_covariance

SIZE, NOISE_STD = 3, 0.5


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def test_known_weights_give_the_sample_moments():
    draw = draw_tasks(9, 6, SIZE, noise_std=0.0)
    found = task_moments(statistics_of(draw.features, draw.rewards), 1e-20)
    close(found.mean, draw.weights.mean(0))
    close(found.covariance, np.cov(draw.weights.T))
    assert float(found.num_tasks) == 9


def test_formula():
    draw = draw_tasks(9, 6, SIZE, noise_std=NOISE_STD)
    ols = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(*draw[:2], strict=True)])
    noise = NOISE_STD**2 * np.mean([np.linalg.inv(x.T @ x) for x in draw.features], axis=0)
    found = jax.jit(task_moments)(statistics_of(draw.features, draw.rewards), NOISE_STD**2)
    close(found.mean, ols.mean(0))
    close(found.covariance, np.cov(ols.T) - noise)


def test_covariance_is_unbiased():
    """Over many draws, the mean of the estimate is the covariance of tasks, within 5 standard errors."""
    true, rng = random_covariance(SIZE), np.random.default_rng(0)
    num_draws, num_tasks, num_rows = 3000, 5, 6
    features = rng.normal(size=(num_draws, num_tasks, num_rows, SIZE))
    weights = rng.normal(size=(num_draws, num_tasks, SIZE)) @ np.linalg.cholesky(true).T
    noise = NOISE_STD * rng.normal(size=features.shape[:-1])
    rewards = np.einsum("dtrf,dtf->dtr", features, weights) + noise
    stats = jax.vmap(statistics_of)(features, rewards)
    found = jax.jit(jax.vmap(lambda one: task_moments(one, NOISE_STD**2, smallest=0.0).covariance))(stats)
    error = np.asarray(found).std(0) / np.sqrt(num_draws)
    assert np.all(np.abs(np.asarray(found).mean(0) - true) < 5 * error)


def test_tasks_without_information_are_left_out():
    draw = draw_tasks(9, 6, SIZE)
    stats = statistics_of(draw.features, draw.rewards)
    few = statistics_of(draw.features[:, :2], draw.rewards[:, :2])  # fewer rows than features
    assert not is_informative(few, jnp.asarray(0.1), 0.03).any()
    assert is_informative(stats, jnp.asarray(0.1), 0.03).all()
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), stats, few)
    padded = jax.tree.map(lambda a: jnp.concatenate([a, jnp.zeros_like(a[:2])]), joined)
    want, found = task_moments(stats, 0.1), task_moments(padded, 0.1)
    jax.tree.map(close, found, want)
    nothing = task_moments(TaskStatistics.empty(4, SIZE), 0.1)
    close(nothing.covariance, np.zeros((SIZE, SIZE)))


def test_belief_is_semidefinite_and_widened():
    covariance = np.diag([1.0, -0.5, 0.2])
    moments = TaskMoments(jnp.arange(3.0), jnp.asarray(covariance), jnp.asarray(5.0))
    close(moment_belief(moments, floor=0.01).covariance, np.diag([1.0, 0.01, 0.2]))
    close(moment_belief(moments, 0.6).covariance, np.diag([1.6, 0.1, 0.8]))
    close(moment_belief(moments, 0.6).mean, np.arange(3.0))
    close(widening(3, jnp.asarray(10.0), jnp.asarray(200.0)), np.sqrt((15 + 2 * np.log(6000)) / 10))


def test_rotation():
    draw = draw_tasks(9, 6, SIZE)
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0]
    before = task_moments(statistics_of(draw.features, draw.rewards), 0.1)
    after = task_moments(statistics_of(draw.features @ turn.T, draw.rewards), 0.1)
    close(after.mean, turn @ before.mean)
    close(after.covariance, turn @ before.covariance @ turn.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_informative_tasks_are_those_with_a_large_smallest_eigenvalue(dtype):
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(20, 20)))[0] for _ in range(5)]
    least = [0.0, 0.29, 0.31, 1.0, 40.0]
    values = [np.diag(np.r_[100.0 * np.ones(19), one]) for one in least]
    gram = np.stack([basis @ one @ basis.T for basis, one in zip(bases, values, strict=True)])
    stats = eqx.tree_at(
        lambda stats: stats.gram, TaskStatistics.empty(5, 20, dtype), jnp.asarray(gram, dtype)
    )
    found = is_informative(stats, jnp.asarray(0.1, dtype), 3.0)
    np.testing.assert_array_equal(found, [False, False, True, True, True])
