"""Points of a map's box, and the bound k_j(x, x) <= 1 that the theory asks of every base kernel.

| here | paper |
|---|---|
| max_kernel_diagonal(features)[j] | max over x of k_j(x, x) = ||phi_j(x)||^2 |
| box_grid(features, 1000), box_grid(features, 40) | the candidates: 1,000 points in 1-d, 40 x 40 in 2-d |
"""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.checks import check_count, check_finite, fail, is_concrete
from jlibo.features.base import AbstractFeatures
from jlibo.features.combine import Scaled


def box_grid(features: AbstractFeatures, num_per_dim: int | Sequence[int]) -> Float[Array, "points dim"]:
    """An even grid over the box with both ends, last coordinate fastest; one count, or one a dimension."""
    single = isinstance(num_per_dim, int)
    counts = (num_per_dim,) * features.dim if single else tuple(num_per_dim)
    for count in counts:
        check_count("num_per_dim", count, at_least=2)
    if len(counts) != features.dim:
        fail("num_per_dim", f"one count, or {features.dim} counts", f"{len(counts)} counts")
    axes = [np.linspace(*ends) for ends in zip(features.lower, features.upper, counts, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, features.dim)
    return jnp.asarray(points, jnp.result_type(float))


def sample_box(
    features: AbstractFeatures, num_points: int, *, key: PRNGKeyArray
) -> Float[Array, "points dim"]:
    """Points drawn uniformly from the box."""
    check_count("num_points", num_points)
    dtype = jnp.result_type(float)
    low, high = np.asarray(features.lower), np.asarray(features.upper)
    unit = jax.random.uniform(key, (num_points, features.dim), dtype)
    points = low.astype(dtype)[None] + (high - low).astype(dtype)[None] * unit
    return jnp.clip(
        points, low.astype(dtype)[None], high.astype(dtype)[None]
    )  # the sum may round past an end


def max_kernel_diagonal(
    features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray
) -> Float[Array, " groups"]:
    """The largest k_j(x, x) over a uniform sample of the box and, up to 10 dimensions, its corners."""
    points = sample_box(features, num_points, key=key)
    if features.dim <= 10:
        corners = list(itertools.product(*zip(features.lower, features.upper, strict=True)))
        points = jnp.concatenate([jnp.asarray(corners, points.dtype), points])
    return _max_diagonal(features, points)


def check_bounded(features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray) -> None:
    """Raise if a group breaks k_j(x, x) <= 1 on the sample of `max_kernel_diagonal`, round-off aside."""
    diagonal = max_kernel_diagonal(features, num_points=num_points, key=key)
    if not is_concrete(diagonal):
        return
    largest = np.asarray(diagonal)
    bad = np.flatnonzero(~(largest <= 1 + _slack(largest.dtype)))  # negated, to catch NaN
    if bad.size:
        shown = ", ".join(f"{features.names[j]!r} (group {j}: {largest[j]:.4g})" for j in bad[:5])
        more = f" and {bad.size - 5} more" if bad.size > 5 else ""
        fail(
            "features",
            "bounded, k_j(x, x) <= 1 for every group (try jlibo.normalise)",
            f"a larger maximum for {shown}{more}",
        )


def normalise(features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray) -> Scaled:
    """Scale down to 1 the groups that break k_j(x, x) <= 1 on the sample of `max_kernel_diagonal`.

    Other groups keep their scale. A maximum between the sampled points is not seen: take more points for a
    map with narrow peaks.
    """
    diagonal = max_kernel_diagonal(features, num_points=num_points, key=key)
    check_finite("features", diagonal)
    over = diagonal > 1 + _slack(diagonal.dtype)
    return Scaled(features, jnp.where(over, 1 / jnp.sqrt(jnp.where(over, diagonal, 1)), 1))


def _slack(dtype) -> float:
    """What round-off may add to a diagonal of 1: sums of squares of a few hundred recurrence steps."""
    return float(np.sqrt(jnp.finfo(dtype).eps))


@eqx.filter_jit
def _max_diagonal(features: AbstractFeatures, points: Float[Array, "points dim"]) -> Float[Array, " groups"]:
    # In batches, keeping the largest: all points at once would hold [points, features].
    batch = 256
    missing = -points.shape[0] % batch
    padded = jnp.concatenate([points, jnp.broadcast_to(points[:1], (missing, features.dim))])

    def step(largest, some_points):
        squares = features(some_points).T ** 2
        diagonal = jax.ops.segment_sum(squares, features.group_ids, features.num_groups)
        return jnp.maximum(largest, jnp.max(diagonal, axis=1)), None

    start = jnp.zeros(features.num_groups, points.dtype)
    largest, _ = jax.lax.scan(step, start, padded.reshape(-1, batch, features.dim))
    return largest
