"""The joint group of a dictionary: features of a product kernel of all parameters. Internal.

Main effects and pairs cannot represent every function of the parameters. A Matern-5/2 kernel of all
parameters can. Its projection onto the kernel functions at inducing points z_1, ..., z_M is a finite feature
map (Nystrom): phi(x) = K^(-1/2) k(z, x) with K = k(z, z), and phi(x)^T phi(x') is close to k(x, x') near the
inducing points and never larger than 1 on the diagonal.

| here           | meaning                                                                            |
|----------------|------------------------------------------------------------------------------------|
| `inducing`     | z, points of a low-discrepancy sequence in the unit box                            |
| `whitening`    | K^(-1/2), without directions whose variance is round-off                           |
| `LENGTH_SCALE` | length-scale of every coordinate for one parameter; it grows as sqrt(parameters)   |
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

LENGTH_SCALE = 0.3
LEAST_VARIANCE = 1e-5
"""Directions with a smaller share of the largest eigenvalue are left out: float32 cannot resolve them."""


@final
class JointFeatures(eqx.Module):
    """Features of a product kernel at inducing points; made by `joint_features`."""

    inducing: Float[Array, "inducing dim"]
    whitening: Float[Array, "features inducing"]
    counts: tuple[int, ...] = eqx.field(static=True)
    """Number of choices of each categorical parameter, 0 for the others."""

    @property
    def num_features(self) -> int:
        return self.whitening.shape[0]

    def __call__(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        squares = _squared_distances(point, self.inducing.astype(point.dtype), self.counts, jnp)
        kernel = _matern(squares, jnp)
        return jnp.matmul(self.whitening.astype(point.dtype), kernel, precision=lax.Precision.HIGHEST)


@lru_cache(maxsize=64)
def joint_features(counts: tuple[int, ...], num_inducing: int) -> JointFeatures:
    """Return the joint features of a space with `counts[p]` choices of parameter p, 0 for a number."""
    points = _spread(num_inducing, len(counts))
    choices = np.asarray(counts)
    codes = np.where(choices > 0, (np.floor(points * choices) + 0.5) / np.maximum(choices, 1), points)
    codes = np.unique(codes, axis=0)  # a space of few choices has fewer points
    kernel = np.stack([_matern(_squared_distances(code, codes, counts, np), np) for code in codes])
    variances, directions = np.linalg.eigh(kernel)
    kept = variances > LEAST_VARIANCE * variances[-1]
    whitening = (directions[:, kept] / np.sqrt(variances[kept])).T[::-1]
    dtype = jnp.result_type(float)
    return JointFeatures(jnp.asarray(codes, dtype), jnp.asarray(whitening, dtype), counts)


def _spread(num_points: int, dim: int) -> np.ndarray:
    """Return points of Roberts' R sequence, which fills a box evenly in any dimension."""
    ratio = 2.0
    for _ in range(64):  # the positive root of ratio^(dim + 1) = ratio + 1
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = ratio ** -np.arange(1.0, dim + 1)
    return (0.5 + np.arange(1, num_points + 1)[:, None] * steps) % 1.0


def _squared_distances(point, points, counts: Sequence[int], numpy_or_jax):
    """Return squared distances in length-scales; two different choices are at distance one."""
    length = LENGTH_SCALE * math.sqrt(len(counts))
    is_choice = np.asarray(counts) > 0
    apart = (points - point) ** 2
    if is_choice.any():
        number = np.asarray(counts, points.dtype)
        differs = numpy_or_jax.floor(points * number) != numpy_or_jax.floor(
            numpy_or_jax.minimum(point * number, number - 0.5)
        )
        apart = numpy_or_jax.where(is_choice, differs, apart)
    return apart.sum(-1) / length**2


def _matern(squares, numpy_or_jax):
    # The derivative of the square root is infinite at zero.
    distance = numpy_or_jax.sqrt(5 * numpy_or_jax.maximum(squares, 1e-12))
    return (1 + distance + distance**2 / 3) * numpy_or_jax.exp(-distance)
