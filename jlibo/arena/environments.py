"""The environments of the arena, by name.

| name                 | tasks share                       | actions                 | setting of         |
|----------------------|-----------------------------------|-------------------------|--------------------|
| `sparse-grid`        | 5 of 50 base kernels              | grid on [0, 1]          | LiBO               |
| `sparse-box`         | 5 of 50 base kernels              | all of [0, 1]           | LiBO, continuous   |
| `sparse-legendre`    | 5 of 20 base kernels              | grid on [-1, 1]         | Meta-KeL           |
| `low-rank-contexts`  | a subspace                        | fresh normal contexts   | Yang 2021, Cella   |
| `low-rank-ball`      | a subspace                        | unit ball               | Yang 2022, BOSS    |
| `low-rank-ellipsoid` | a subspace                        | ellipsoid of each task  | Yang 2021          |
| `gaussian-arms`      | a mean                            | fixed arms of each task | AdaTS, HierTS      |
| `gaussian-ball`      | mean and covariance               | fresh points of a ball  | MQB                |
| `sparse-contexts`    | 5 of 50 features                  | fresh contexts          | Cella & Pontil     |
| `one-parameter`      | all weights                       | fresh unit vectors      | FedUCB             |
| `revelation`         | a subspace, revealed step by step | unit ball               | BOSS               |
| `shifted-sparse`     | 5 of 50 base kernels and a mean   | grid on [0, 1]          | none (a bridge)    |
| `axis-aligned-ball`  | 3 of 10 features                  | unit ball               | none (a bridge)    |
| `gaussian-low-rank`  | a covariance of rank 2            | fixed arms of each task | none (a bridge)    |

`sparse-grid-200` and `sparse-grid-800` are `sparse-grid` with more base kernels. They are not part of the
default arena, as some methods take long. Nor is `sparse-contexts-features`, where the features of a context
are correlated, as the text of Cella & Pontil has it; the code of Kim & Paik, on which theirs builds,
correlates the contexts of a step.

Where a paper has thousands of tasks or steps, the arena has fewer, so that a run takes seconds.
"""

import functools

import jax
import jax.numpy as jnp

import jlibo.features as feature_maps
from jlibo.actions import BoxActions
from jlibo.arena.environment import Environment
from jlibo.belief.prior import Prior
from jlibo.envs.linear import (
    BallArms,
    BoxArms,
    CandidateArms,
    EllipsoidArms,
    FreshArms,
    GaussianWeights,
    JointlySparseWeights,
    KernelWeights,
    LinearEnv,
    LowRankWeights,
    ShiftedWeights,
    TaskArms,
)


def sparse_grid(num_features: int = 50, *, num_candidates: int = 200, shift: float = 0.0):
    """Return the function that draws the environment of sparse kernels on a grid of [0, 1]."""
    features = feature_maps.Cosine(num_features)

    def draw(key):
        weights = KernelWeights.draw(features.groups, support_size=5, key=key)
        rows = features(feature_maps.box_grid(features, num_candidates))
        if shift:
            vector = shift * jax.random.normal(jax.random.fold_in(key, 1), (num_features,))
            weights = ShiftedWeights(weights, jnp.where(weights.support, vector, 0))
        return LinearEnv(weights, CandidateArms(rows), noise_std=0.1)

    return draw


def _sparse_box(key):
    features = feature_maps.Cosine(50)
    weights = KernelWeights.draw(features.groups, support_size=5, key=key)
    actions = BoxActions(features, num_candidates=200, num_starts=4, num_steps=20)
    return LinearEnv(weights, BoxArms(actions), noise_std=0.1)


def _sparse_legendre(key):
    features = feature_maps.Legendre(20)
    weights = KernelWeights.draw(features.groups, support_size=5, beta_min=0.0, key=key)
    rows = features(feature_maps.box_grid(features, 200))
    return LinearEnv(weights, CandidateArms(rows), noise_std=0.01)


def _low_rank_contexts(key):
    weights = LowRankWeights.draw(num_features=20, rank=3, least_norm=1.0, key=key)
    return LinearEnv(weights, FreshArms(10, 20), noise_std=1.0)


def _low_rank_ball(key, *, is_axis_aligned=False):
    weights = LowRankWeights.draw(num_features=10, rank=3, is_axis_aligned=is_axis_aligned, key=key)
    return LinearEnv(weights, BallArms(1.0, 10), noise_std=1.0)


def _low_rank_ellipsoid(key):
    weights = LowRankWeights.draw(num_features=10, rank=3, key=key)
    return LinearEnv(weights, EllipsoidArms(4.0, 10), noise_std=1.0)


def _revelation(key):
    weights = LowRankWeights.draw(num_features=10, rank=3, reveals=(0, 10, 20), key=key)
    return LinearEnv(weights, BallArms(1.0, 10), noise_std=1.0)


def gaussian_arms(hyper_std: float = 0.5, *, num_features: int = 4, num_arms: int = 20):
    """Return the function that draws the environment of the HierTS notebook."""

    def draw(key):
        covariance = 0.01 * jnp.eye(num_features)
        weights = GaussianWeights.draw(hyper_std=hyper_std, covariance=covariance, key=key)
        return LinearEnv(weights, TaskArms(num_arms, num_features), noise_std=1.0)

    return draw


def _gaussian_low_rank(key):
    key_basis, key_mean = jax.random.split(key)
    basis = LowRankWeights.draw(num_features=10, rank=2, key=key_basis).basis
    weights = GaussianWeights.draw(hyper_std=0.1, covariance=basis @ basis.T / 2, key=key_mean)
    return LinearEnv(weights, TaskArms(20, 10), noise_std=1.0)


def _gaussian_ball(key):
    mean, covariance = jnp.full(5, 2.0), 0.2 * jnp.eye(5) + 0.8
    # Before any task the original assumes mean zero and variance 4.2; the task covariance is part of it.
    weights = GaussianWeights(mean, covariance, Prior(jnp.zeros(5), 4.2 * jnp.eye(5) - covariance))
    return LinearEnv(weights, FreshArms(20, 5, "ball", radius=0.25), noise_std=1.0)


def _sparse_contexts(key, *, correlated="arms"):
    weights = JointlySparseWeights.draw(num_features=50, support_size=5, key=key)
    arms = FreshArms(50, 50, "gaussian", correlation=0.7, correlated=correlated)
    return LinearEnv(weights, arms, noise_std=0.05)


def _one_parameter(key):
    weights = GaussianWeights.draw(hyper_std=10**-0.5, covariance=jnp.zeros((10, 10)), key=key)
    return LinearEnv(weights, FreshArms(10, 10, "sphere"), noise_std=1.0)


def _listed(*environments: Environment) -> dict[str, Environment]:
    return {environment.name: environment for environment in environments}


ENVIRONMENTS: dict[str, Environment] = _listed(
    Environment("sparse-grid", "5 of 50 cosine kernels on a grid of [0, 1]", "LiBO", sparse_grid(), 20, 100),
    Environment("sparse-box", "5 of 50 cosine kernels on all of [0, 1]", "LiBO", _sparse_box, 20, 100),
    Environment(
        "sparse-legendre",
        "5 of 20 Legendre kernels on a grid",
        "Meta-KeL",
        _sparse_legendre,
        20,
        50,
    ),
    Environment(
        "low-rank-contexts",
        "a subspace of rank 3 in 20 dimensions, 10 fresh normal contexts",
        "Yang 2021, Cella 2023",
        _low_rank_contexts,
        30,
        100,
    ),
    Environment(
        "low-rank-ball",
        "a subspace of rank 3 in 10 dimensions, unit ball",
        "Yang 2022, BOSS",
        _low_rank_ball,
        30,
        300,
    ),
    Environment(
        "low-rank-ellipsoid",
        "a subspace of rank 3 in 10 dimensions, an ellipsoid of each task",
        "Yang 2021",
        _low_rank_ellipsoid,
        30,
        300,
    ),
    Environment(
        "gaussian-arms",
        "a normal mean in 4 dimensions, 20 fixed arms of each task",
        "AdaTS, HierTS",
        gaussian_arms(),
        10,
        200,
    ),
    Environment(
        "gaussian-ball",
        "mean and covariance in 5 dimensions, 20 fresh points of a ball",
        "MQB",
        _gaussian_ball,
        40,
        200,
    ),
    Environment(
        "sparse-contexts",
        "5 of 50 features, 50 fresh correlated contexts",
        "Cella & Pontil 2021",
        _sparse_contexts,
        40,
        50,
    ),
    Environment(
        "sparse-contexts-features",
        "5 of 50 features, 50 fresh contexts with correlated features",
        "Cella & Pontil 2021",
        functools.partial(_sparse_contexts, correlated="features"),
        40,
        50,
        is_default=False,
    ),
    Environment(
        "one-parameter",
        "the same weights in all tasks, 10 fresh vectors",
        "FedUCB",
        _one_parameter,
        20,
        100,
    ),
    Environment(
        "revelation",
        "a subspace of rank 3 whose directions appear in tasks 1, 11 and 21, unit ball",
        "BOSS",
        _revelation,
        30,
        300,
    ),
    Environment(
        "shifted-sparse",
        "sparse-grid with a mean that all tasks share",
        "a bridge",
        sparse_grid(shift=3.0),
        20,
        100,
    ),
    Environment(
        "axis-aligned-ball",
        "low-rank-ball with a subspace of 3 features",
        "a bridge",
        functools.partial(_low_rank_ball, is_axis_aligned=True),
        30,
        300,
    ),
    Environment(
        "sparse-grid-200",
        "5 of 200 cosine kernels on a grid of [0, 1]",
        "LiBO",
        sparse_grid(200, num_candidates=800),
        20,
        100,
        is_default=False,
    ),
    Environment(
        "sparse-grid-800",
        "5 of 800 cosine kernels on a grid of [0, 1]",
        "LiBO",
        sparse_grid(800, num_candidates=3200),
        20,
        100,
        is_default=False,
    ),
    Environment(
        "gaussian-low-rank",
        "gaussian-arms in 10 dimensions with a covariance of rank 2",
        "a bridge",
        _gaussian_low_rank,
        20,
        100,
    ),
)
"""The environments of the arena, by name."""

GROWTH = ("sparse-grid", "sparse-grid-200", "sparse-grid-800")
"""Environments that differ in the number of features only."""
