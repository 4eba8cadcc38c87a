"""Which configurations are considered next: a pool over the space, points around the best, or all there are.

A space with few configurations is considered whole. Others get a pool drawn once for each task, and with
every question some more points near the best trials so far, at several distances, so that the search can
close in on an optimum that lies between the points of the pool.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jlibo.tune.space.space import Int, SearchSpace

POOL, NEARBY = 768, 256
DISTANCES = (0.2, 0.05, 0.01)
NUM_CENTRES = 4
FAILURE_RADIUS = 0.1
MARGIN = 2.0
"""A configuration next to a failure is considered if a score is nearer, by this factor."""
SAME = 1e-9
"""Unit coordinates closer than this are the same: logarithms of arrays and of numbers round differently."""
MANY_POINTS = 1000
"""More points than this are searched by a tree."""


def num_configurations(space: SearchSpace) -> int | None:
    """How many configurations a space has; None if a parameter is continuous."""
    counts = [parameter.num_values for parameter in space.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def whole_space(space: SearchSpace, most: int = POOL + NEARBY) -> np.ndarray | None:
    """All configurations of a space that has at most `most`, as unit points; None if there are more."""
    count = num_configurations(space)
    return None if count is None or count > most else _configurations(space, np.arange(count))


def _configurations(space: SearchSpace, places: np.ndarray) -> np.ndarray:
    """The unit points of the configurations at `places` in a finite space, the last parameter fastest."""
    columns = []
    for parameter in reversed(list(space.values())):
        places, digits = np.divmod(places, parameter.num_values or 1)
        first = parameter.low if isinstance(parameter, Int) else 0
        columns.append(parameter.codes_to_unit(first + digits.astype(float)))
    return np.stack(columns[::-1], axis=1)


def untried(space: SearchSpace, tried: np.ndarray, *, seed: Sequence[int]) -> np.ndarray | None:
    """Points of the space that are not among those tried, [NEARBY, dim]; None if there are none left.

    For the case that all points of a pool were tried, although the space has more.
    """
    rng = np.random.default_rng(list(seed))
    count = num_configurations(space)
    if count is None or count >= 2**53:  # more than will ever be tried: nearly any point is new
        points = space.sample_unit(NEARBY, rng=rng)
    else:
        # Among any len(tried) + 1 different configurations one is new. They are taken at equal distances.
        step = int(rng.integers(1, count)) if count > 1 else 1
        while math.gcd(step, count) > 1:
            step = step % count + 1
        num_drawn = min(len(tried) + NEARBY, count)
        first = int(rng.integers(count))
        points = _configurations(space, np.asarray([(first + step * k) % count for k in range(num_drawn)]))
    points = points[~_same(points, tried)][:NEARBY]
    return None if len(points) == 0 else points[np.arange(NEARBY) % len(points)]


def pool(space: SearchSpace, *, seed: Sequence[int]) -> np.ndarray:
    """Points spread over the space, the same for the same seed."""
    return space.sample_unit(POOL, rng=np.random.default_rng(list(seed)))


def nearby(space: SearchSpace, centres: np.ndarray, *, seed: Sequence[int]) -> np.ndarray:
    """Points around the given ones, [NEARBY, dim]; around none, points anywhere."""
    rng = np.random.default_rng(list(seed))
    if len(centres) == 0:
        return space.sample_unit(NEARBY, rng=rng)
    centres = centres[:NUM_CENTRES]
    chosen = centres[rng.integers(len(centres), size=NEARBY)]
    distances = np.asarray(DISTANCES)[rng.integers(len(DISTANCES), size=NEARBY)]
    steps = rng.normal(size=chosen.shape) * distances[:, None]
    # Half of them move along one coordinate alone, which in many dimensions is the only way to stay near.
    alone = rng.integers(chosen.shape[1], size=NEARBY)
    along = rng.uniform(size=NEARBY) < 0.5
    steps[along] = np.where(np.arange(chosen.shape[1]) == alone[along, None], steps[along], 0)
    moved = chosen + steps
    # Reflected at the edges: clipping would put half of them on an edge that the best point lies near.
    moved = np.abs(moved)
    moved = 1 - np.abs(1 - moved)
    return space.snap(np.clip(moved, 0, 1))


def left_to_try(
    candidates: np.ndarray, tried: np.ndarray, failed: np.ndarray, scored: np.ndarray
) -> np.ndarray:
    """Which candidates to consider: not tried before, and not next to a failure, unless a score is nearer.

    How near is next to it grows with the number of failures. One may be bad luck; after several, the model
    hopes for much where everything fails, and is led away from there. Where that leaves nothing, the quarter
    that is farthest from all failures; where all was tried, everything that did not fail.
    """
    new = ~_same(candidates, tried)
    if not new.any():
        sound = ~_same(candidates, failed)
        return sound if sound.any() else np.ones(len(candidates), bool)
    if len(failed) == 0:
        return new
    to_failure = _distance(candidates, failed)
    to_score = _distance(candidates, scored) if len(scored) else np.full(len(candidates), np.inf)
    radius = FAILURE_RADIUS * math.sqrt(candidates.shape[1]) * len(failed)
    safe = new & ~((to_failure < radius) & (to_failure < MARGIN * to_score))
    return safe if safe.any() else new & (to_failure >= np.quantile(to_failure[new], 0.75))


def was_tried(point: np.ndarray, tried: np.ndarray) -> bool:
    """Whether a point is one of those tried, to round-off."""
    return bool((np.abs(tried - point) < SAME).all(axis=1).any())


def _same(candidates: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Which candidates are one of the points, to round-off."""
    if len(points) > MANY_POINTS:
        distances, _ = _tree(points).query(candidates, p=np.inf, distance_upper_bound=SAME)
        return np.isfinite(distances)
    same: np.ndarray = np.ones((len(candidates), len(points)), bool)
    for own, others in zip(candidates.T, points.T, strict=True):  # a loop over few, over arrays of many
        same &= np.abs(own[:, None] - others) < SAME
    return np.any(same, axis=1)


def _distance(candidates: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How far each candidate is from the nearest of the points, of which there is at least one."""
    if len(points) > MANY_POINTS:
        return _tree(points).query(candidates)[0]
    squares = np.zeros((len(candidates), len(points)))
    for own, others in zip(candidates.T, points.T, strict=True):
        squares += (own[:, None] - others) ** 2
    return np.sqrt(squares.min(1))


def _tree(points: np.ndarray) -> Any:
    from scipy.spatial import KDTree  # a dependency of jax; not above, for few tasks are so long

    # Split at midpoints: of discrete parameters many coordinates are equal, and medians would not part them.
    return KDTree(points, balanced_tree=False, compact_nodes=False)
