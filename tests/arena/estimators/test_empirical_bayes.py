"""EM: monotone, exact when the weights are known, and the same optimum as gradient methods."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import (
    Gaussian,
    TaskStatistics,
    fit_gaussian,
    fit_low_rank,
    statistics_of,
    total_log_marginal,
)
from jlibo.arena.estimators.gaussian import factor_of, slope
from tests.arena.estimators.references import dense_log_density, draw_tasks, random_covariance

NOISE = 0.3**2
SIZE = 4


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def wide(size=SIZE):
    return Gaussian(jnp.zeros(size), jnp.eye(size))


def stats_of(draw):
    return statistics_of(draw.features, draw.rewards)


FITS = {
    "full": partial(fit_gaussian, structure="full"),
    "diagonal": partial(fit_gaussian, structure="groups"),
    "groups": partial(fit_gaussian, structure="groups", groups=[0, 0, 1, 1]),
    "isotropic, mean zero": partial(fit_gaussian, structure="groups", groups=[0] * SIZE, learn_mean=False),
    "rank 2": partial(fit_low_rank, rank=2),
    "rank 2, mean zero": partial(fit_low_rank, rank=2, learn_mean=False),
}


@pytest.mark.parametrize("name", FITS)
def test_no_step_decreases_the_likelihood(name):
    stats = stats_of(draw_tasks(8, 3, SIZE, mean=1.0))
    start = Gaussian(jnp.zeros(SIZE), factor_of(jnp.asarray(random_covariance(SIZE))))
    if name not in ("full", "rank 2", "rank 2, mean zero"):
        start = wide()
    step = jax.jit(lambda belief: FITS[name](stats, belief, NOISE, num_steps=1))
    belief, likelihoods = start, []
    for _ in range(25):
        belief = step(belief)
        likelihoods.append(float(total_log_marginal(belief, stats, NOISE)))
    assert np.all(np.diff(likelihoods) >= -1e-8 * np.abs(likelihoods[:-1]))
    assert likelihoods[-1] > likelihoods[0] + 0.1
    many = FITS[name](stats, start, NOISE, num_steps=25)
    close(many.covariance, belief.covariance)


def test_likelihood_is_that_of_dense_gaussians():
    draw = draw_tasks(5, 3, SIZE)
    mean, covariance = np.arange(float(SIZE)), random_covariance(SIZE)
    belief = Gaussian(jnp.asarray(mean), factor_of(jnp.asarray(covariance)))
    want = sum(
        dense_log_density(y, x @ mean, x @ covariance @ x.T + NOISE * np.eye(len(y)))
        for x, y in zip(draw.features, draw.rewards, strict=True)
    )
    close(total_log_marginal(belief, stats_of(draw), NOISE), want)


def test_known_weights_give_sample_moments():
    """With nearly noiseless rewards of many rows the posterior is a point: mean and covariance of theta."""
    draw = draw_tasks(20, 8, SIZE, noise_std=0.0)
    found = fit_gaussian(stats_of(draw), wide(), 1e-14, num_steps=3)
    close(found.mean, draw.weights.mean(0))
    close(found.covariance, np.cov(draw.weights.T, bias=True))
    diagonal = fit_gaussian(stats_of(draw), wide(), 1e-14, num_steps=3, structure="groups")
    close(diagonal.covariance, np.diag(draw.weights.var(0)))


def test_fixed_point_is_stationary():
    """At the limit of EM the derivative of the likelihood vanishes: the optimum of a gradient method."""
    stats = stats_of(draw_tasks(30, 6, SIZE, mean=0.5))
    found = jax.jit(lambda: fit_gaussian(stats, wide(), NOISE, num_steps=300))()
    slopes = jax.vmap(slope, in_axes=(None, 0, 0, None))(found, stats.gram, stats.moment, NOISE)
    close(slopes.mean.sum(0), np.zeros(SIZE), 1e-7)
    close(slopes.covariance.sum(0), np.zeros((SIZE, SIZE)), 1e-7)


def test_low_rank_of_full_rank_is_full():
    stats = stats_of(draw_tasks(30, 6, SIZE, mean=0.5))
    full = jax.jit(lambda: fit_gaussian(stats, wide(), NOISE, num_steps=400))()
    low = fit_low_rank(stats, full, NOISE, rank=SIZE, num_steps=5)  # both have the same fixed points
    close(low.covariance, full.covariance, 1e-7)
    close(low.mean, full.mean, 1e-7)


@pytest.mark.parametrize("name", FITS)
def test_absent_tasks_and_batches_change_nothing(name):
    stats = stats_of(draw_tasks(6, 3, SIZE))
    fit = jax.jit(partial(FITS[name], num_steps=5))
    found = fit(stats, wide(), NOISE)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:2])]), stats)
    close(fit(padded, wide(), NOISE).covariance, found.covariance)
    nothing = fit(TaskStatistics.empty(6, SIZE), wide(), NOISE)
    assert np.isfinite(nothing.covariance).all()
    close(nothing.mean, np.zeros(SIZE))
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.zeros_like(leaf)]), stats)
    both = jax.vmap(partial(FITS[name], num_steps=5), in_axes=(0, None, None))(batch, wide(), NOISE)
    close(both.mean[0], found.mean)


def test_prior_tasks_pull_towards_the_start():
    stats = stats_of(draw_tasks(6, 3, SIZE))
    much = fit_gaussian(stats, wide(), NOISE, num_steps=5, prior_tasks=1e12)
    close(much.covariance, np.eye(SIZE), 1e-6)


def test_rotation():
    draw = draw_tasks(6, 5, SIZE)
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0]
    found = fit_gaussian(stats_of(draw), wide(), NOISE, num_steps=5)
    turned = fit_gaussian(statistics_of(draw.features @ turn.T, draw.rewards), wide(), NOISE, num_steps=5)
    close(turned.covariance, turn @ found.covariance @ turn.T)
    order = [2, 0, 3, 1]
    moved = statistics_of(draw.features[:, :, order], draw.rewards)
    for name in ("full", "diagonal"):
        before, after = (
            FITS[name](stats_of(draw), wide(), NOISE, num_steps=5),
            FITS[name](moved, wide(), NOISE, num_steps=5),
        )
        close(after.covariance, np.asarray(before.covariance)[np.ix_(order, order)])


def test_errors():
    stats = TaskStatistics.empty(2, SIZE)
    with pytest.raises(ValueError, match="`structure` should be 'full' or 'groups'"):
        fit_gaussian(stats, wide(), NOISE, num_steps=1, structure="half")
    with pytest.raises(ValueError, match="`rank` should be from 1 to the 4 features, but got 5"):
        fit_low_rank(stats, wide(), NOISE, rank=5, num_steps=1)
