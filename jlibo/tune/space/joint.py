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

A parameter that can be off has one more place, *off*, that is equally far from all its values: two points
that are both off there are not apart, however they differ elsewhere. A Matern kernel is positive definite for
points of a Euclidean space, and distances here are those of such points. The choices of a parameter are the
corners of a regular simplex with edges of length 1, and off is its centre, at the squared distance
(k - 1) / (2 k). The numbers of a parameter are on an arc of a circle of radius 1/2 and length 1, whose centre
is off: two numbers are at the squared distance sin(u - u')^2, nearly (u - u')^2, and off is at 1/4 of each.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jlibo.tune.space.conditions import OFF, Intervals, activity

LENGTH_SCALE = 0.3
SPARE = 4
"""With conditions, so many times the inducing points are drawn: some of them coincide."""
LEAST_VARIANCE = 1e-5
"""Directions with a smaller share of the largest eigenvalue are left out: float32 cannot resolve them."""


@final
class JointFeatures(eqx.Module):
    """Features of a product kernel at inducing points; made by `joint_features`."""

    inducing: Float[Array, "inducing dim"]
    whitening: Float[Array, "features inducing"]
    is_on: Bool[Array, "inducing dim"] | None
    """Which parameters are on at the inducing points; None if no parameter has a condition."""
    counts: tuple[int, ...] = eqx.field(static=True)
    """Number of choices of each categorical parameter, 0 for the others."""
    conditions: Intervals = eqx.field(static=True)
    num_on: int = eqx.field(static=True)
    """The largest number of parameters that are on together."""

    @property
    def num_features(self) -> int:
        return self.whitening.shape[0]

    def __call__(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        inducing = self.inducing.astype(point.dtype)
        on = None
        if self.is_on is not None:
            on = _On(activity(point, self.conditions, jnp), self.is_on, _can_be_off(self.conditions))
        squares = _squared_distances(point, inducing, self.counts, on, self.num_on, jnp)
        kernel = _matern(squares, jnp)
        return jnp.matmul(self.whitening.astype(point.dtype), kernel, precision=lax.Precision.HIGHEST)


@lru_cache(maxsize=64)
def joint_features(counts: tuple[int, ...], num_inducing: int, conditions: Intervals = ()) -> JointFeatures:
    """Return the joint features of a space with `counts[p]` choices of parameter p, 0 for a number."""
    # Points that differ only where they are off are one point, so more are drawn.
    points = _spread(num_inducing * (SPARE if conditions else 1), len(counts))
    choices = np.asarray(counts)
    codes = np.where(choices > 0, (np.floor(points * choices) + 0.5) / np.maximum(choices, 1), points)
    if conditions:
        codes = np.where(activity(codes, conditions, np), codes, OFF)
        _, first = np.unique(codes, axis=0, return_index=True)
        codes = codes[np.sort(first)[:num_inducing]]
    codes = np.unique(codes, axis=0)  # a space of few choices has fewer points
    is_on = activity(codes, conditions, np) if conditions else None
    num_on = len(counts) if is_on is None else int(is_on.sum(1).max())
    rows = []
    for place, code in enumerate(codes):
        on = None if is_on is None else _On(is_on[place], is_on, _can_be_off(conditions))
        rows.append(_matern(_squared_distances(code, codes, counts, on, num_on, np), np))
    kernel = np.stack(rows)
    variances, directions = np.linalg.eigh(kernel)
    kept = variances > LEAST_VARIANCE * variances[-1]
    whitening = (directions[:, kept] / np.sqrt(variances[kept])).T[::-1]
    dtype = jnp.result_type(float)
    return JointFeatures(
        jnp.asarray(codes.astype(dtype)),  # converted by NumPy: by jax, each shape is a program
        jnp.asarray(whitening.astype(dtype)),
        None if is_on is None else jnp.asarray(is_on),
        counts,
        conditions,
        num_on,
    )


@final
class _On(NamedTuple):
    """Which parameters are on at a point and at other points, and which can be off at all."""

    point: Any
    points: Any
    can_be_off: np.ndarray


def _can_be_off(conditions: Intervals) -> np.ndarray:
    return np.array([bool(some) for some in conditions])


def _spread(num_points: int, dim: int) -> np.ndarray:
    """Return points of Roberts' R sequence, which fills a box evenly in any dimension."""
    ratio = 2.0
    for _ in range(64):  # the positive root of ratio^(dim + 1) = ratio + 1
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = ratio ** -np.arange(1.0, dim + 1)
    return (0.5 + np.arange(1, num_points + 1)[:, None] * steps) % 1.0


def _squared_distances(point, points, counts: Sequence[int], on: _On | None, num_on: int, numpy_or_jax):
    """Return squared distances in length-scales; two different choices are at distance one.

    `on` is None if no parameter has a condition.
    """
    length = LENGTH_SCALE * math.sqrt(num_on)
    is_choice = np.asarray(counts) > 0
    apart = (points - point) ** 2
    if on is not None:
        apart = numpy_or_jax.where(on.can_be_off, numpy_or_jax.sin(points - point) ** 2, apart)
    if is_choice.any():
        number = np.asarray(counts, points.dtype)
        differs = numpy_or_jax.floor(points * number) != numpy_or_jax.floor(
            numpy_or_jax.minimum(point * number, number - 0.5)
        )
        apart = numpy_or_jax.where(is_choice, differs, apart)
    if on is not None:
        most = np.maximum(counts, 1)
        to_centre = np.where(is_choice, (most - 1) / (2 * most), 0.25).astype(points.dtype)
        off_once = numpy_or_jax.where(on.point ^ on.points, to_centre, numpy_or_jax.zeros_like(to_centre))
        apart = numpy_or_jax.where(on.point & on.points, apart, off_once)
    return apart.sum(-1) / length**2


def _matern(squares, numpy_or_jax):
    # The derivative of the square root is infinite at zero.
    distance = numpy_or_jax.sqrt(5 * numpy_or_jax.maximum(squares, 1e-12))
    return (1 + distance + distance**2 / 3) * numpy_or_jax.exp(-distance)
