"""Points in the box of a map, and the bound k_j(x, x) <= 1 that the theory requires of each base kernel.

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
from jlibo.front_door import front_door


@front_door
def box_grid(features: AbstractFeatures, num_per_dim: int | Sequence[int]) -> Float[Array, "points dim"]:
    """Return an even grid over the box, ends included, with the last coordinate varying fastest.

    **Arguments:**

    - `features`: the map whose box is used.
    - `num_per_dim`: points per dimension, at least 2; one count for all, or one per dimension.

    **Returns:** an array of shape `[points, dim]`.

    **Raises:** `ValueError` for an invalid count or a wrong number of counts.

    ```python
    import jlibo

    print(jlibo.box_grid(jlibo.Cosine(50), 1000).shape)  # (1000, 1)
    print(jlibo.box_grid(jlibo.Cosine(50, dim=2), 40).shape)  # (1600, 2)
    ```
    """
    return jnp.asarray(_even_points(features, num_per_dim), jnp.result_type(float))


def _even_points(features: AbstractFeatures, num_per_dim: int | Sequence[int]) -> np.ndarray:
    single = isinstance(num_per_dim, int)
    counts = (num_per_dim,) * features.dim if single else tuple(num_per_dim)
    for count in counts:
        check_count("num_per_dim", count, at_least=2)
    if len(counts) != features.dim:
        fail("num_per_dim", f"one count, or {features.dim} counts", f"{len(counts)} counts")
    axes = [np.linspace(*ends) for ends in zip(features.lower, features.upper, counts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, features.dim)


@front_door
def box_midpoints(features: AbstractFeatures, num_per_dim: int) -> Float[Array, "points dim"]:
    """Return the midpoints of the cells of an even grid over the box; no point is on its boundary.

    **Arguments:**

    - `features`: the map whose box is used.
    - `num_per_dim`: cells per dimension, at least 2.

    **Returns:** an array of shape `[points, dim]`.

    **Raises:** `ValueError` for an invalid count.

    ```python
    import jlibo

    print(jlibo.box_midpoints(jlibo.Cosine(50), 4)[:, 0])  # 0.125, 0.375, 0.625, 0.875
    ```
    """
    grid = _even_points(features, num_per_dim)
    centre = (np.asarray(features.lower) + np.asarray(features.upper)) / 2
    # The grid with ends, moved towards the centre of the box by half a cell.
    return jnp.asarray(centre + (grid - centre) * (1 - 1 / num_per_dim), jnp.result_type(float))


@front_door
def sample_box(
    features: AbstractFeatures, num_points: int, *, key: PRNGKeyArray
) -> Float[Array, "points dim"]:
    """Return points drawn uniformly from the box.

    **Arguments:**

    - `features`: the map whose box is used.
    - `num_points`: number of points, at least 1.

    **Returns:** an array of shape `[num_points, dim]`.

    **Raises:** `ValueError` if `num_points` is not a whole number >= 1.

    ```python
    import jax
    import jlibo

    print(jlibo.sample_box(jlibo.Cosine(50, dim=2), 10, key=jax.random.key(0)).shape)  # (10, 2)
    ```
    """
    check_count("num_points", num_points)
    dtype = jnp.result_type(float)
    low, high = np.asarray(features.lower), np.asarray(features.upper)
    unit = jax.random.uniform(key, (num_points, features.dim), dtype)
    points = low.astype(dtype)[None] + (high - low).astype(dtype)[None] * unit
    return jnp.clip(
        points, low.astype(dtype)[None], high.astype(dtype)[None]
    )  # the sum may round past an end


@front_door
def max_kernel_diagonal(
    features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray
) -> Float[Array, " groups"]:
    """Return, for each group, the largest k_j(x, x) over a uniform sample of the box.

    In up to 10 dimensions the corners of the box are added to the sample.

    **Arguments:**

    - `features`: the map.
    - `num_points`: size of the sample, at least 1.

    **Returns:** an array of shape `[num_groups]`.

    **Raises:** `ValueError` if `num_points` is not a whole number >= 1.

    ```python
    import jax
    import jlibo

    print(jlibo.max_kernel_diagonal(jlibo.Cosine(3), key=jax.random.key(0)))  # 1, 1, 1
    ```
    """
    points = sample_box(features, num_points, key=key)
    if features.dim <= 10:
        corners = list(itertools.product(*zip(features.lower, features.upper, strict=True)))
        points = jnp.concatenate([jnp.asarray(corners, points.dtype), points])
    return _max_diagonal(features, points)


@front_door
def check_bounded(features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray) -> None:
    """Raise if a group violates k_j(x, x) <= 1 on the sample of `max_kernel_diagonal`, up to round-off.

    Under `jit` the values are not known and nothing is checked.

    **Arguments:**

    - `features`, `num_points`, `key`: as in `max_kernel_diagonal`.

    **Raises:** `ValueError` that names the groups. `normalise` scales them down.

    ```python
    import jax
    import jlibo

    jlibo.check_bounded(jlibo.Legendre(10), key=jax.random.key(0))
    ```
    """
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


@front_door
def normalise(features: AbstractFeatures, *, num_points: int = 4096, key: PRNGKeyArray) -> Scaled:
    """Return the map with every group scaled to k_j(x, x) <= 1 on the sample of `max_kernel_diagonal`.

    Groups that satisfy the bound keep their scale. A maximum between sampled points is missed: use more
    points for a map with narrow peaks.

    **Arguments:**

    - `features`, `num_points`, `key`: as in `max_kernel_diagonal`.

    **Returns:** a `Scaled` map.

    **Raises:** `ValueError` if a feature is not finite on the sample.

    ```python
    import jax
    import jlibo

    steep = jlibo.FunctionFeatures(lambda x: 3 * x, groups=[0], lower=0.0, upper=1.0)
    features = jlibo.normalise(steep, key=jax.random.key(0))
    jlibo.check_bounded(features, key=jax.random.key(1))
    ```
    """
    diagonal = max_kernel_diagonal(features, num_points=num_points, key=key)
    check_finite("features", diagonal)
    return Scaled(features, _scales(diagonal))


@jax.jit
def _scales(diagonal: Float[Array, " groups"]) -> Float[Array, " groups"]:
    """Return the factors that scale groups with these largest k_j(x, x) down to 1; 1 for those below."""
    over = diagonal > 1 + _slack(diagonal.dtype)
    return jnp.where(over, 1 / jnp.sqrt(jnp.where(over, diagonal, 1)), 1)


def _slack(dtype) -> float:
    """Return the round-off allowed on a diagonal of 1: squares after a few hundred recurrence steps."""
    return float(np.sqrt(jnp.finfo(dtype).eps))


@eqx.filter_jit
def _max_diagonal(features: AbstractFeatures, points: Float[Array, "points dim"]) -> Float[Array, " groups"]:
    # In batches, because all points at once would need an array [points, features].
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
