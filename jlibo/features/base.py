"""The contract of feature maps: a box, grouped features, and a checked call that rejects points off the box.

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
from typing import TYPE_CHECKING, Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jlibo.checks import as_numpy, check_finite, fail, is_concrete
from jlibo.fields import AbstractField
from jlibo.front_door import front_door


class AbstractFeatures(eqx.Module):
    """A feature map on a box. Its features are split into groups, one group per base kernel.

    A subclass declares the box, the groups and their names, and implements `evaluate` for one point. Checks
    and batching are inherited. All fields but arrays are static, so a map can be an argument of `jit`, and
    equal maps share one compilation.

    ```python
    import jax.numpy as jnp
    import jlibo

    class Sines(jlibo.AbstractFeatures):
        lower = (0.0,)
        upper = (1.0,)
        groups = (0, 1)
        names = ("slow", "fast")
        free_groups = ()

        def evaluate(self, point):
            return jnp.sin(jnp.array([1.0, 10.0], point.dtype) * point)

    print(Sines()(jnp.zeros((5, 1))).shape)  # (5, 2)
    ```
    """

    if TYPE_CHECKING:
        lower = AbstractField[tuple[float, ...]]()
        upper = AbstractField[tuple[float, ...]]()
        groups = AbstractField[tuple[int, ...]]()
        names = AbstractField[tuple[str, ...]]()
        free_groups = AbstractField[tuple[int, ...]]()
    else:
        lower: eqx.AbstractVar[tuple[float, ...]]
        """Lower end of the box, one number per dimension."""
        upper: eqx.AbstractVar[tuple[float, ...]]
        """Upper end of the box, one number per dimension."""
        groups: eqx.AbstractVar[tuple[int, ...]]
        """Group of each feature, 0 to p - 1 without gaps."""
        names: eqx.AbstractVar[tuple[str, ...]]
        """Name of each group."""
        free_groups: eqx.AbstractVar[tuple[int, ...]]
        """Groups that are always in the support and never penalised, such as a constant; most maps have
        none."""
    rest_groups: tuple[int, ...] = eqx.field(static=True, default=(), kw_only=True)
    """Free groups that can represent almost any function, for what the other groups do not explain. Without a
    penalty they would explain all data, so the selection of groups is made as if they did not exist."""

    @abc.abstractmethod
    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        """Return the features of one point of the box, in the dtype of the point, without checks."""

    @final
    @front_door
    def __call__(self, points: Float[Array, "*batch dim"]) -> Float[Array, "*batch features"]:
        """Return the features of points of any batch shape.

        A point outside the box by no more than round-off is moved onto the edge.

        **Arguments:**

        - `points`: array of shape `[..., dim]`.

        **Returns:** an array of shape `[..., num_features]` in the dtype of the points; in the default float
        dtype for integers.

        **Raises:** `ValueError` if the shape or dtype is wrong, or if a point whose value is known is outside
        the box or not finite. Inside `jit`, `vmap` or `grad` the features of such a point and their gradient
        are NaN; they are never extrapolated.
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
        """The number of features over all groups."""
        return len(self.groups)

    @property
    def num_groups(self) -> int:
        """The number of base kernels."""
        return len(self.names)

    @property
    def group_ids(self) -> Int[Array, " features"]:
        """The group of each feature, as an array."""
        return jnp.asarray(self.groups, jnp.int32)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The number of features of each group."""
        return tuple(int(size) for size in np.bincount(self.groups, minlength=self.num_groups))

    def _evaluate_or_nan(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        low, high, least, most = self._limits(point.dtype)
        inside = jnp.all((point >= least) & (point <= most))
        # Multiply instead of selecting: values and gradients inside the box do not change, and the gradient
        # outside is NaN. A `where` on the features would give a gradient of zero there.
        poison = jnp.where(inside, jnp.ones((), point.dtype), jnp.full((), jnp.nan, point.dtype))
        return self.evaluate(clip_keeping_gradient(point, low, high)) * poison

    def _limits(self, dtype: Any) -> tuple[np.ndarray, ...]:
        """Return the box in `dtype`, and the box widened by the rounding error of a point in `dtype`."""
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
    # Jitted, because outside of `jit` each small operation is compiled separately, which takes seconds. One
    # `vmap` per axis, instead of one over a flattened batch, preserves the sharding of the batch.
    evaluate = features._evaluate_or_nan
    for _ in range(points.ndim - 1):
        evaluate = jax.vmap(evaluate)
    return evaluate(points)


def clip_keeping_gradient(values: Float[Array, "..."], low: Any, high: Any) -> Float[Array, "..."]:
    """Return `values` clipped, with gradient 1 everywhere (that of `clip` is 1/2 or 0 on the edges)."""
    return values + jax.lax.stop_gradient(jnp.clip(values, low, high) - values)


def make_box(
    lower: float | Sequence[float], upper: float | Sequence[float], dim: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check the ends of a box and return them as tuples of `dim` numbers.

    A single number is repeated. If `dim` is None, it is the length of the longer end.
    """
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
