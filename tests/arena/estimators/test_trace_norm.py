"""The trace-norm estimate: closed forms, the duality gap, and optimality against a plain solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import (
    TaskStatistics,
    practical_lam,
    shrink_singular_values,
    statistics_of,
    trace_norm_least_squares,
)
from jlibo.arena.estimators.trace_norm import largest_eigenvalue
from tests.arena.estimators.references import (
    draw_tasks,
    least_squares,
    random_covariance,
    soft_threshold_singular_values,
)

SIZE, NUM_TASKS, NUM_ROWS = 4, 6, 7


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def stats_of(draw):
    return statistics_of(draw.features, draw.rewards)


def draw(seed=0, num_tasks=NUM_TASKS):
    return draw_tasks(num_tasks, NUM_ROWS, SIZE, rank=2, seed=seed)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_shrinkage_is_that_of_the_svd(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    for threshold in (0.0, 0.7, 100.0):
        close(
            shrink_singular_values(matrix, threshold),
            soft_threshold_singular_values(matrix, threshold),
        )


@pytest.mark.parametrize("num_tasks", [3, 6])
def test_orthonormal_design_has_a_closed_form(num_tasks):
    """With X^T X / n = I the answer is the OLS matrix with singular values reduced by lam / 2."""
    rng = np.random.default_rng(0)
    features = np.stack([np.linalg.qr(rng.normal(size=(NUM_ROWS, SIZE)))[0] for _ in range(num_tasks)])
    features = features * np.sqrt(NUM_ROWS)
    rewards = rng.normal(size=(num_tasks, NUM_ROWS))
    ols = np.einsum("trf,tr->tf", features, rewards) / NUM_ROWS
    fit = trace_norm_least_squares(statistics_of(features, rewards), 0.6, tol=1e-12)
    close(fit.coef, soft_threshold_singular_values(ols, 0.3))
    assert abs(float(fit.gap)) < 1e-9


def test_no_penalty_is_independent_least_squares():
    data = draw()
    fit = trace_norm_least_squares(stats_of(data), 0.0, tol=1e-13, max_steps=5000)
    close(fit.coef, least_squares(data))


def test_solution_is_a_minimum():
    data, lam = draw(), 0.5
    fit = jax.jit(lambda s: trace_norm_least_squares(s, lam, tol=1e-12, max_steps=2000))(stats_of(data))

    def loss(coef):
        residual = data.rewards - np.einsum("trf,tf->tr", data.features, coef)
        return (residual**2).sum() / NUM_ROWS + lam * np.linalg.svd(coef, compute_uv=False).sum()

    coef = np.zeros((NUM_TASKS, SIZE))  # plain proximal steps
    step = 0.5 * NUM_ROWS / max(np.linalg.eigvalsh(x.T @ x)[-1] for x in data.features)
    for _ in range(5000):
        residual = data.rewards - np.einsum("trf,tf->tr", data.features, coef)
        slope = -2 / NUM_ROWS * np.einsum("trf,tr->tf", data.features, residual)
        coef = soft_threshold_singular_values(coef - step * slope, step * lam)
    close(fit.coef, coef, 1e-7)
    assert float(fit.gap) + 1e-12 >= 0 and float(fit.gap) < 1e-8
    rough = trace_norm_least_squares(stats_of(data), lam, tol=1e-2)
    assert loss(np.asarray(rough.coef)) - loss(coef) <= float(rough.gap) + 1e-12
    warm = trace_norm_least_squares(stats_of(data), lam, start=fit.coef, tol=1e-8)
    assert int(warm.num_steps) < int(fit.num_steps)


def test_large_penalty_gives_zero():
    fit = trace_norm_least_squares(stats_of(draw()), 1e3)
    close(fit.coef, np.zeros((NUM_TASKS, SIZE)))


def test_rotation_padding_and_batches():
    data = draw()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0]
    solve = jax.jit(lambda s: trace_norm_least_squares(s, 0.5, num_rounds=7.0, tol=1e-12).coef)
    coef = solve(stats_of(data))
    close(solve(statistics_of(data.features @ turn.T, data.rewards)), coef @ turn.T, 1e-7)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:2])]), stats_of(data))
    more = solve(padded)
    close(more[:NUM_TASKS], coef)
    close(more[NUM_TASKS:], np.zeros((2, SIZE)))
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), stats_of(data), stats_of(draw(1)))
    both = jax.vmap(lambda s: trace_norm_least_squares(s, 0.5, num_rounds=7.0, tol=1e-12).coef)(batch)
    close(both[0], coef)
    close(both[1], solve(stats_of(draw(1))))


def test_bound_on_the_largest_eigenvalue():
    matrices = np.stack([random_covariance(9, seed=0), random_covariance(9, rank=1), np.zeros((9, 9))])
    bound = np.asarray(largest_eigenvalue(jnp.asarray(matrices)))
    largest = np.linalg.eigvalsh(matrices)[:, -1]
    assert np.all(bound >= largest - 1e-12) and np.all(bound <= 1.03 * largest + 1e-12)


def test_practical_lam_and_nothing():
    size, log_term = 30 / 40, np.log(20) / 40
    want = 0.1 * max(size + log_term, np.sqrt(size) + np.sqrt(log_term))
    close(practical_lam(0.1, num_tasks=10, num_features=20, num_rounds=40.0), want)
    fit = trace_norm_least_squares(TaskStatistics.empty(3, SIZE), 0.1)
    close(fit.coef, np.zeros((3, SIZE)))
    with pytest.raises(ValueError, match="`start` should be an array of shape"):
        trace_norm_least_squares(TaskStatistics.empty(3, SIZE), 0.1, start=jnp.zeros(3))
