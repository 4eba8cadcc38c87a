"""Independent references of the estimators in plain NumPy: dense joint Gaussians, normal equations, SVDs."""

from typing import NamedTuple

import numpy as np


class Draw(NamedTuple):
    """Observations of tasks with linear rewards."""

    features: np.ndarray
    """[tasks, rows, features]"""
    rewards: np.ndarray
    """[tasks, rows]"""
    weights: np.ndarray
    """[tasks, features]"""


def draw_tasks(
    num_tasks=5, num_rows=6, num_features=4, *, noise_std=0.3, rank=None, mean=0.0, seed=0
) -> Draw:
    """Tasks with Gaussian rows, and weights of a low rank if `rank` is given."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_tasks, num_rows, num_features))
    if rank is None:
        weights = mean + rng.normal(size=(num_tasks, num_features))
    else:
        basis = np.linalg.qr(rng.normal(size=(num_features, rank)))[0]
        weights = mean + rng.normal(size=(num_tasks, rank)) @ basis.T
    rewards = np.einsum("trf,tf->tr", features, weights) + noise_std * rng.normal(size=(num_tasks, num_rows))
    return Draw(features, rewards, weights)


def random_covariance(num_features, *, rank=None, seed=0) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(num_features, rank or num_features + 2))
    return factor @ factor.T / factor.shape[1]


def dense_log_density(rewards, mean, covariance) -> float:
    """log N(rewards; mean, covariance)."""
    away = rewards - mean
    _, log_det = np.linalg.slogdet(covariance)
    return -0.5 * (len(away) * np.log(2 * np.pi) + log_det + away @ np.linalg.solve(covariance, away))


def gaussian_posterior(mean, covariance, features, rewards, noise_variance):
    """Posterior mean and covariance in kernel form: no inverse of the prior covariance."""
    cross = covariance @ features.T
    dense = features @ cross + noise_variance * np.eye(len(features))
    gain = np.linalg.solve(dense, cross.T).T
    return mean + gain @ (rewards - features @ mean), covariance - gain @ cross.T


def joint_hierarchy(hyper_mean, hyper_covariance, task_covariance, draw: Draw, noise_variance):
    """Posterior of (mu, theta_1, ..., theta_m) as one Gaussian vector; mean and covariance."""
    num_tasks, num_rows, size = draw.features.shape
    blocks = num_tasks + 1
    prior_mean = np.tile(hyper_mean, blocks)
    prior = np.tile(hyper_covariance, (blocks, blocks))
    for block in range(1, blocks):
        part = slice(block * size, (block + 1) * size)
        prior[part, part] += task_covariance
    design = np.zeros((num_tasks * num_rows, blocks * size))
    for task in range(num_tasks):
        design[task * num_rows : (task + 1) * num_rows, (task + 1) * size : (task + 2) * size] = (
            draw.features[task]
        )
    return gaussian_posterior(prior_mean, prior, design, draw.rewards.ravel(), noise_variance)


def least_squares(draw: Draw) -> np.ndarray:
    return np.stack(
        [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(draw.features, draw.rewards, strict=True)]
    )


def soft_threshold_singular_values(matrix, threshold):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - threshold, 0)) @ right


def projector(basis) -> np.ndarray:
    """Projection on the span of the columns."""
    return basis @ np.linalg.pinv(basis)
