"""The Gaussian processes of the AutoML benchmark beside dense NumPy references of the same formulas."""

import dataclasses
import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.automl import empirical_gp, portfolio, rgpe
from benchmarks.automl.empirical_gp import Learned, Past
from benchmarks.automl.problem import Problem
from benchmarks.automl.regimes import Trials
from jlibo import Float, SearchSpace


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def kernel(left, right, length):
    return portfolio.matern(portfolio.squared_distances(left, right) / length**2)


def make_past(num_tasks=3, num_trials=4, dim=2) -> Past:
    """The last task is padding, and so is the last trial of the first task."""
    rng = np.random.default_rng(0)
    points, targets = (
        rng.uniform(size=(num_tasks + 1, num_trials, dim)),
        rng.normal(size=(num_tasks + 1, num_trials)),
    )
    present = np.ones((num_tasks + 1, num_trials), bool)
    present[-1], present[0, -1] = False, False
    return Past(points, np.where(present, targets, 0), present)


def dense_em(past: Past, inducing: np.ndarray, length: float, noise: float, num_steps: int):
    """EM by conditioning the joint Gaussian of the values at Z and of each task's trials."""
    size = len(inducing)
    prior = kernel(inducing, inducing, length) + empirical_gp.JITTER * np.eye(size)
    mean, covariance = np.zeros(size), prior.copy()
    for _ in range(num_steps):
        means, covariances = [], []
        for points, targets, present in zip(*past, strict=True):
            if not present.any():
                continue
            points, targets = points[present], targets[present]
            weights = kernel(points, inducing, length) @ np.linalg.inv(prior)
            residual = (
                kernel(points, points, length) - weights @ prior @ weights.T + noise * np.eye(len(points))
            )
            joint = np.block(
                [
                    [covariance, covariance @ weights.T],
                    [weights @ covariance, weights @ covariance @ weights.T + residual],
                ]
            )
            gain = joint[:size, size:] @ np.linalg.inv(joint[size:, size:])
            means.append(mean + gain @ (targets - weights @ mean))
            covariances.append(covariance - gain @ joint[size:, :size])
        mean = np.mean(means, axis=0)
        covariance = np.mean(
            [one + np.outer(m - mean, m - mean) for one, m in zip(covariances, means, strict=True)], axis=0
        )
        share = empirical_gp.SHRINKAGE
        target = prior * np.trace(covariance) / np.trace(prior)
        covariance = (1 - share) * covariance + share * target
    return mean, covariance


def test_em_equals_the_dense_reference():
    past, inducing = make_past(), np.random.default_rng(1).uniform(size=(6, 2))
    learned = empirical_gp.learn(past, inducing, np.array([0.5]), np.array([0.01]))
    mean, covariance = dense_em(past, inducing, 0.5, 0.01, empirical_gp.EM_STEPS)
    np.testing.assert_allclose(learned.mean, mean, atol=1e-7)
    np.testing.assert_allclose(learned.covariance, covariance, atol=1e-7)
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_kernel_of_the_past_has_the_largest_likelihood_on_the_grid():
    past = make_past()
    lengths, noises = np.array([0.2, 0.5, 2.0]), np.array([0.01, 0.5])
    best = None
    for length in lengths:
        for noise in noises:
            total = 0.0
            for points, targets, present in zip(*past, strict=True):
                if present.any():
                    matrix = kernel(points[present], points[present], length) + noise * np.eye(present.sum())
                    total -= 0.5 * targets[present] @ np.linalg.solve(matrix, targets[present])
                    total -= 0.5 * np.linalg.slogdet(matrix)[1]
            best = max(best or (-np.inf,), (total, length, noise))
    np.testing.assert_allclose(empirical_gp.choose_kernel(past, lengths, noises), best[1:])


# In one program each, as the benchmark uses them.
prior_at, fit_units, refit = map(jax.jit, (empirical_gp.prior_at, empirical_gp.fit_units, empirical_gp.refit))
posterior, own_covariance = map(jax.jit, (empirical_gp.posterior, empirical_gp.own_covariance))


def toy_task():
    rng = np.random.default_rng(2)
    inducing, points = rng.uniform(size=(6, 2)), rng.uniform(size=(9, 2))
    root = rng.normal(size=(6, 6))
    learned = Learned(rng.normal(size=6), root @ root.T / 6, 0.5, 0.01)
    return learned, inducing, points


def test_prior_away_from_the_inducing_points_is_interpolated():
    learned, inducing, points = toy_task()
    mean, covariance = prior_at(learned, inducing, points)
    matrix = kernel(inducing, inducing, 0.5) + empirical_gp.JITTER * np.eye(6)
    weights = kernel(points, inducing, 0.5) @ np.linalg.inv(matrix)
    np.testing.assert_allclose(mean, weights @ learned.mean, atol=1e-8)
    dense = (
        kernel(points, points, 0.5) - weights @ matrix @ weights.T + weights @ learned.covariance @ weights.T
    )
    np.testing.assert_allclose(covariance, dense, atol=1e-7)
    at_inducing, _ = prior_at(learned, inducing, np.concatenate([inducing, points[:3]]))
    np.testing.assert_allclose(at_inducing[:6], learned.mean, atol=1e-4)


def test_posterior_and_units_equal_the_dense_reference():
    """Location and scale are those of the largest restricted likelihood, found here on a fine grid."""
    learned, inducing, points = toy_task()
    prior_mean, prior_covariance = map(np.asarray, prior_at(learned, inducing, points))
    theta = dict(scale=jnp.log(0.3), noise=jnp.log(0.02), lengths=jnp.log(jnp.array([0.4, 0.7])))
    rows, present = np.array([1, 4, 7, 0, 0]), np.array([True, True, True, False, False])
    scores = np.array([0.3, -1.2, 2.0, 0.0, 0.0])
    mean, std, best = posterior(theta, prior_mean, prior_covariance, points, rows, scores, present)

    base = 0.3 * kernel(points / [0.4, 0.7], points / [0.4, 0.7], 1.0)
    total, rows, scores = prior_covariance + base, rows[:3], scores[:3]
    matrix = total[np.ix_(rows, rows)] + 0.02 * np.eye(3)
    inverse = np.linalg.inv(matrix)

    def loss(scale):
        weight = inverse.sum()
        location = inverse.sum(0) @ (scores / scale - prior_mean[rows]) / weight
        rest = scores / scale - location - prior_mean[rows]
        extra = empirical_gp.SCALE_TRIALS
        value = (2 + extra) * np.log(scale) + 0.5 * rest @ inverse @ rest + 0.5 * extra / scale**2
        return value + 0.5 * np.linalg.slogdet(matrix)[1] + 0.5 * np.log(weight), location, rest

    grid = np.geomspace(0.05, 20, 20001)
    scale = grid[np.argmin([loss(one)[0] for one in grid])]
    value, location, rest = loss(scale)
    fit = fit_units(matrix, prior_mean[rows], scores, np.ones(3, bool))
    np.testing.assert_allclose(fit.scale, scale, rtol=1e-3)
    np.testing.assert_allclose(fit.loss, value, atol=1e-6)
    np.testing.assert_allclose(mean, prior_mean + total[:, rows] @ inverse @ rest, rtol=5e-3, atol=5e-3)
    variance = np.diagonal(total) - np.einsum("ij,jk,ik->i", total[:, rows], inverse, total[:, rows])
    np.testing.assert_allclose(std**2, variance, atol=1e-6)
    np.testing.assert_allclose(best, scores.max() / scale - location, atol=5e-3)


def test_refit_lowers_the_loss_and_the_base_grows_if_the_task_disagrees():
    learned, inducing, points = toy_task()
    prior_mean, prior_covariance = prior_at(learned, inducing, points)
    centre = dict(scale=jnp.log(0.05), noise=jnp.log(0.01), lengths=jnp.log(jnp.array([0.5, 0.5])))
    present = jnp.ones(9, bool)
    scores = 5 * jnp.sin(9 * points[:, 0])  # ten times as rough as the past
    settings = (centre, 0.01 * prior_covariance, prior_mean, points, scores, present)
    theta = refit(centre, *settings)

    def loss(theta):
        covariance = own_covariance(theta, 0.01 * prior_covariance, points)
        return float(fit_units(covariance, prior_mean, scores, present).loss)

    assert loss(theta) < loss(centre) - 1 and theta["scale"] > centre["scale"] + 0.5


def line_problem() -> Problem:
    """Tasks with the same optimum, in different units; one row of the last task is not available."""
    grid = np.linspace(0, 1, 9)[:, None]
    base = -((grid[:, 0] - 0.6) ** 2)
    values = np.stack([base, 5 * base + 2, 0.1 * base - 1])
    values[2, 3] = np.nan
    return Problem("line", ("a", "b", "c"), SearchSpace(x=Float(0, 1)), grid, values)


def test_empirical_gp_starts_at_the_best_of_the_past():
    problem = line_problem()
    past = tuple(Trials(task, np.array([0, 2, 4, 5, 8])) for task in (0, 1))
    rows = empirical_gp.EmpiricalGP(problem, 20)(past, 2, np.random.default_rng(0))
    assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7, 8]  # each available row once
    assert abs(rows[0] - 5) <= 1
    # Adding a constant to the scores does not change the choices.
    moved = dataclasses.replace(problem, values=problem.values - 7)
    np.testing.assert_array_equal(
        empirical_gp.EmpiricalGP(moved, 20)(past, 2, np.random.default_rng(0)), rows
    )


# --- RGPE ---


def test_ranking_losses_count_misranked_pairs():
    scores = np.array([0.0, 1.0, 2.0])
    samples = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    loss = sum(rgpe.added_loss(samples[:, :count], scores[:count]) for count in (1, 2, 3))
    np.testing.assert_array_equal(loss, [0, 6, 2])
    rng = np.random.default_rng(0)
    predicted, scores_of_many = rng.normal(size=(2, 5, 8)).round(1), rng.integers(3, size=8)
    pairs = itertools.permutations(range(8), 2)
    wrong = [
        (predicted[..., i] < predicted[..., j]) ^ (scores_of_many[i] < scores_of_many[j]) for i, j in pairs
    ]
    loss = sum(rgpe.added_loss(predicted[..., :n], scores_of_many[:n]) for n in range(1, 9))
    np.testing.assert_array_equal(loss, np.sum(wrong, axis=0))
    # Leave-one-out: trial j's prediction is compared with the scores of the others.
    np.testing.assert_array_equal(
        rgpe.leave_one_out_loss(np.array([[0.0, 1.0, 2.5], [1.5, 1.0, 2.5]]), scores), [0, 1]
    )


def test_weights_are_the_shares_of_won_samples():
    own = np.array([2.0, 2.0, 2.0, 2.0])
    losses = np.array([[0.0, 0.0, 2.0, 4.0], [9.0, 9.0, 0.0, 9.0]])
    # The second model has a median above the new model's loss, so it is left out.
    weights = rgpe.rank_weights(losses, own, np.random.default_rng(0))
    np.testing.assert_allclose(weights, [0.5, 0.0, 0.5])
    equal = rgpe.rank_weights(np.zeros((2, 400)), np.full(400, 1.0), np.random.default_rng(0))
    assert equal[2] == 0 and abs(equal[0] - 0.5) < 0.1


@pytest.mark.skipif(importlib.util.find_spec("botorch") is None, reason="needs botorch")
def test_rgpe_starts_at_the_best_of_the_past():
    problem = line_problem()
    past = tuple(Trials(task, np.array([0, 2, 4, 5, 8])) for task in (0, 1))
    rows = rgpe.RGPE(problem, 6)(past, 2, np.random.default_rng(0))
    assert len(set(rows.tolist())) == 6 and 3 not in rows
    assert abs(rows[0] - 5) <= 1
