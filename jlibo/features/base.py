"""What every feature map is: a box, grouped features, and one front door that refuses points off the box.

| here | paper |
|---|---|
| groups[f] = j | feature f belongs to phi_j, the map of base kernel k_j |
| group_sizes[j] | d_j |
| num_groups, num_features | p, d |
| the box from `lower` to `upper` | X, the domain |
"""

import abc
import math
from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jlibo.checks import as_numpy, check_finite, fail, is_concrete


class AbstractFeatures(eqx.Module):
    """A feature map on a box, its features split into groups, one group a base kernel.

    A subclass says what the features of one point are (`evaluate`); the checks and the batching are here.
    All but arrays is static, so a map is an argument of `jit` and two equal maps share one compilation.
    """

    lower: eqx.AbstractVar[tuple[float, ...]]
    upper: eqx.AbstractVar[tuple[float, ...]]
    groups: eqx.AbstractVar[tuple[int, ...]]
    names: eqx.AbstractVar[tuple[str, ...]]
    free_groups: eqx.AbstractVar[tuple[int, ...]]
    """Groups that are always in use and never penalised, such as a constant; most maps have none."""

    @abc.abstractmethod
    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        """The features of one point of the box, in the dtype of the point, without any check."""

    @final
    def __call__(self, points: Float[Array, "*batch dim"]) -> Float[Array, "*batch features"]:
        """The features of points of any batch shape, in the dtype of the points (integers: default float).

        Round-off past an edge of the box is forgiven: such a point is moved onto the edge. A point further
        out, or not finite, is an error when its value is known; inside `jit`, `vmap` or `grad` its features
        and their gradient are NaN, so a bad point is seen there too and never extrapolated.
        """
        if not isinstance(points, jax.Array | np.ndarray):
            points = jnp.asarray(points)
        self._check_shape(points)
        dtype = jnp.result_type(points)
        if not jnp.issubdtype(dtype, jnp.floating):
            if not (jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_):
                fail("points", "real numbers", f"dtype {dtype}")
            dtype = jnp.result_type(float)
        if is_concrete(points):
            self._check_inside(np.asarray(points).astype(dtype))
        return _evaluate_batch(self, jnp.asarray(points).astype(dtype))

    @property
    def dim(self) -> int:
        """The number of coordinates of a point."""
        return len(self.lower)

    @property
    def num_features(self) -> int:
        """The number of features of all groups together."""
        return len(self.groups)

    @property
    def num_groups(self) -> int:
        """The number of base kernels."""
        return len(self.names)

    @property
    def group_ids(self) -> Int[Array, " features"]:
        """The group of every feature, as an array."""
        return jnp.asarray(self.groups, jnp.int32)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The number of features of every group."""
        return tuple(int(size) for size in np.bincount(self.groups, minlength=self.num_groups))

    def _evaluate_or_nan(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        low, high, least, most = self._limits(point.dtype)
        inside = jnp.all((point >= least) & (point <= most))
        # A factor and not a `where` of the features: it leaves values and gradients inside as they are, and
        # makes the gradient outside NaN too, where a `where` would answer with a silent zero.
        poison = jnp.where(inside, jnp.ones((), point.dtype), jnp.full((), jnp.nan, point.dtype))
        return self.evaluate(clip_keeping_gradient(point, low, high)) * poison

    def _limits(self, dtype: Any) -> tuple[np.ndarray, ...]:
        """The box in `dtype`, and the box widened by what rounding a point to `dtype` may have moved it."""
        low, high = np.asarray(self.lower), np.asarray(self.upper)
        largest = np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))
        slack = 8 * float(jnp.finfo(dtype).eps) * largest
        return tuple(edge.astype(dtype) for edge in (low, high, low - slack, high + slack))

    def _check_shape(self, points: Any) -> None:
        shape = tuple(points.shape)
        if shape and shape[-1] == self.dim:
            return
        advice = ""
        if self.dim == 1:
            advice = f" (use points[{':' if len(shape) == 1 else '...'}, None] for 1-d points)"
        fail("points", f"an array of shape [..., {self.dim}]{advice}", f"shape {list(shape)}")

    def _check_inside(self, points: np.ndarray) -> None:
        _, _, least, most = self._limits(points.dtype)
        bad = ~((points >= least) & (points <= most)).all(axis=-1)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            place = f" at {list(where)}" if where else ""
            box = " x ".join(f"[{low}, {high}]" for low, high in zip(self.lower, self.upper, strict=True))
            fail("points", f"finite and in the box {box}", f"{points[where].tolist()}{place}")


@eqx.filter_jit
def _evaluate_batch(
    features: AbstractFeatures, points: Float[Array, "*batch dim"]
) -> Float[Array, "*batch features"]:
    # Compiled whole: outside of `jit` every small operation would be compiled apart, which takes seconds.
    # One `vmap` an axis, not one over a flattened batch, leaves a sharding of the batch as it is.
    evaluate = features._evaluate_or_nan
    for _ in range(points.ndim - 1):
        evaluate = jax.vmap(evaluate)
    return evaluate(points)


def clip_keeping_gradient(values: Float[Array, "..."], low: Any, high: Any) -> Float[Array, "..."]:
    """Undo round-off past the edges, with gradient 1 everywhere (`clip` answers 1/2 or 0 on the edges)."""
    return values + jax.lax.stop_gradient(jnp.clip(values, low, high) - values)


def make_box(
    lower: float | Sequence[float], upper: float | Sequence[float], dim: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check the two ends of a box, and repeat a single number over `dim` (None: as many as the other end)."""
    ends = {}
    for argument, value in (("lower", lower), ("upper", upper)):
        numbers = as_numpy(argument, value, "numbers")
        if numbers.dtype.kind not in "iuf" or numbers.ndim > 1 or numbers.size == 0:
            fail(argument, "a number, or one number for each dimension", value)
        check_finite(argument, numbers)
        ends[argument] = numbers.astype(float)
    num_dims: int = max(end.size for end in ends.values()) if dim is None else dim
    for argument, numbers in ends.items():
        if numbers.ndim == 1 and numbers.size != num_dims:
            fail(argument, f"a number, or {num_dims} numbers (one for each dimension)", numbers.tolist())
        ends[argument] = tuple(np.broadcast_to(numbers, (num_dims,)).tolist())
    if not all(low < high for low, high in zip(ends["lower"], ends["upper"], strict=True)):
        fail("lower", f"below `upper` {ends['upper']} in every dimension", ends["lower"])
    if not all(math.isfinite(high - low) for low, high in zip(ends["lower"], ends["upper"], strict=True)):
        fail("upper", f"a finite distance above `lower` {ends['lower']}", ends["upper"])
    return ends["lower"], ends["upper"]
