"""Low-rank least squares: monotone, exact for full rank and for noiseless data, equivariant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import (
    TaskStatistics,
    low_rank_least_squares,
    start_basis,
    statistics_of,
    task_least_squares,
)
from jlibo.arena.estimators.low_rank import weights_in
from tests.arena.estimators.references import draw_tasks, least_squares, projector

SIZE, RANK = 5, 2


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def stats_of(draw):
    return statistics_of(draw.features, draw.rewards)


def low_rank_draw(num_rows=8, noise_std=0.3, seed=0):
    return draw_tasks(12, num_rows, SIZE, rank=RANK, noise_std=noise_std, seed=seed)


def test_least_squares_of_every_task():
    draw = low_rank_draw()
    close(task_least_squares(stats_of(draw)), least_squares(draw))
    ridge = np.stack(
        [np.linalg.solve(x.T @ x + 0.7 * np.eye(SIZE), x.T @ y) for x, y in zip(*draw[:2], strict=True)]
    )
    close(task_least_squares(stats_of(draw), 0.7), ridge)
    few = low_rank_draw(num_rows=3)  # fewer observations than features: the residuals still vanish
    coef = np.asarray(task_least_squares(stats_of(few)))
    np.testing.assert_allclose(np.einsum("trf,tf->tr", few.features, coef), few.rewards, atol=1e-5)


def test_start_is_the_svd_of_ridge_estimates():
    draw = low_rank_draw()
    coef = np.asarray(task_least_squares(stats_of(draw), 1.0))
    want = np.linalg.svd(coef.T)[0][:, :RANK]
    close(projector(np.asarray(start_basis(stats_of(draw), RANK))), projector(want))


def test_full_rank_is_independent_least_squares():
    draw = low_rank_draw()
    fit = low_rank_least_squares(stats_of(draw), SIZE, num_steps=2)
    close(fit.coef, least_squares(draw))


def test_coordinates_of_a_full_basis_are_independent_least_squares():
    """What E2TC and least squares with an SVD commit to: with rank d, the task's own estimate."""
    draw = low_rank_draw()
    basis = jnp.asarray(np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0])
    close(weights_in(basis, stats_of(draw), jnp.zeros(())) @ basis.T, least_squares(draw))
    few = basis[:, :RANK]  # else, least squares on the projected rows
    rows = np.asarray(draw.features @ few)
    want = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(rows, draw.rewards, strict=True)])
    close(weights_in(few, stats_of(draw), jnp.zeros(())), want)


def test_noiseless_data_are_recovered():
    draw = low_rank_draw(num_rows=3, noise_std=0.0)  # fewer rows than features
    fit = jax.jit(lambda stats: low_rank_least_squares(stats, RANK, num_steps=200))(stats_of(draw))
    close(fit.coef, draw.weights, 1e-4)
    assert float(fit.loss) < 1e-6


def test_loss_never_increases_and_is_stationary():
    draw = low_rank_draw()
    losses = [float(low_rank_least_squares(stats_of(draw), RANK, num_steps=n).loss) for n in (0, 1, 2, 5, 20)]
    assert np.all(np.diff(losses) <= 1e-9) and losses[-1] < losses[0]
    fit = low_rank_least_squares(stats_of(draw), RANK, num_steps=200)
    close(fit.basis.T @ fit.basis, np.eye(RANK))
    residual = draw.rewards - np.einsum("trf,tf->tr", draw.features, np.asarray(fit.coef))
    close(fit.loss, (residual**2).sum())
    gradient = np.einsum("trf,tr->tf", draw.features, residual)
    close(gradient @ fit.basis, np.zeros((12, RANK)), 1e-6)
    close(gradient.T @ fit.weights, np.zeros((SIZE, RANK)), 1e-6)


def test_rank_one_and_one_feature():
    one = draw_tasks(4, 5, 1)
    close(low_rank_least_squares(stats_of(one), 1).coef, least_squares(one))


def test_rotation_padding_and_batches():
    draw = low_rank_draw()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0]
    fit = low_rank_least_squares(stats_of(draw), RANK)
    turned = low_rank_least_squares(statistics_of(draw.features @ turn.T, draw.rewards), RANK)
    close(turned.coef, fit.coef @ turn.T, 1e-7)
    stats = stats_of(draw)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:3])]), stats)
    more = low_rank_least_squares(padded, RANK)
    close(more.coef[:12], fit.coef)
    close(more.coef[12:], np.zeros((3, SIZE)))
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), stats)
    both = jax.vmap(lambda one: low_rank_least_squares(one, RANK).coef)(batch)
    close(both[0], fit.coef)
    order = [3, 1, 0, 4, 2]
    moved = low_rank_least_squares(statistics_of(draw.features[:, :, order], draw.rewards), RANK)
    close(moved.coef, fit.coef[:, np.array(order)])


def test_nothing_and_errors():
    empty = TaskStatistics.empty(3, SIZE)
    assert np.isfinite(low_rank_least_squares(empty, RANK).coef).all()
    with pytest.raises(ValueError, match="`start` should be an array of shape"):
        low_rank_least_squares(empty, RANK, start=jnp.ones((SIZE, 3)))


def test_single_precision():
    draw = low_rank_draw()
    single = statistics_of(jnp.asarray(draw.features, jnp.float32), jnp.asarray(draw.rewards, jnp.float32))
    fit = low_rank_least_squares(single, RANK)
    assert fit.coef.dtype == jnp.float32
    close(fit.coef, low_rank_least_squares(stats_of(draw), RANK).coef, 1e-3)
