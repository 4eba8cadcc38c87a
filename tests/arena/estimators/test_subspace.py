"""Moment estimators of the span of weights, and the exact identity behind them."""

import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import reward_moment, subspace_prior, top_subspace, weight_moment
from tests.arena.estimators.references import draw_tasks, projector


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def icosahedron() -> np.ndarray:
    """Its vertices on the unit sphere: the mean of any polynomial of degree up to 5 is that of the sphere."""
    golden = (1 + 5**0.5) / 2
    corners = [(0, a, b * golden) for a in (1, -1) for b in (1, -1)]
    points = np.array([np.roll(corner, shift) for corner in corners for shift in range(3)])
    return points / np.linalg.norm(points[0])


def test_reward_moment_identity():
    """E[y^2 x x^T] on the sphere, exactly: a spherical design and noise of two values."""
    points, theta, noise_std, size = icosahedron(), np.array([1.0, -2.0, 0.5]), 0.7, 3
    features = np.concatenate([points, points])
    rewards = features @ theta + noise_std * np.repeat([1.0, -1.0], len(points))
    want = (2 * np.outer(theta, theta) + theta @ theta * np.eye(size)) / (size * (size + 2))
    want = want + noise_std**2 * np.eye(size) / size
    close(reward_moment(features, rewards) / len(features), want)
    close(projector(np.asarray(top_subspace(jnp.asarray(want), 1))), projector(theta[:, None]))


def test_reward_moment_leaves_out_absent_rows():
    draw = draw_tasks()
    present = np.random.default_rng(0).random(draw.rewards.shape) < 0.5
    broken = np.where(present, draw.rewards, np.nan)
    want = np.einsum("tr,trf,trg->fg", present * draw.rewards**2, draw.features, draw.features)
    close(reward_moment(draw.features, broken, present), want)
    with pytest.raises(ValueError, match="`rewards` should be an array of shape"):
        reward_moment(draw.features, draw.rewards[:2])


def test_span_of_known_weights():
    weights = draw_tasks(9, 2, 6, rank=2).weights
    present = np.arange(9) < 6
    moment = weight_moment(weights, present)
    close(moment, weights[:6].T @ weights[:6])
    basis = top_subspace(moment, 2)
    close(projector(np.asarray(basis)), projector(weights.T))
    prior = subspace_prior(basis, 3.0)
    close(prior.covariance, 9 * projector(weights.T))
    close(prior.factor[:, 2:], np.zeros((6, 4)))
