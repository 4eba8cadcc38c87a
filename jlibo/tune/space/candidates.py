"""Candidates: the whole space, or a pool over it and points around the best trials. Internal.

If a space has few configurations, all of them are candidates. Otherwise the candidates are a pool, drawn once
per task, and points near the best trials so far, drawn again at every ask. The latter lie at several
distances, so that the search can approach an optimum between the points of the pool.
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
"""A configuration near a failure stays a candidate if its distance to the failure is at least this many
times its distance to a scored trial."""
SAME = 1e-9
"""Unit coordinates that differ by less are equal: logarithms of arrays and of scalars round differently."""
MANY_POINTS = 1000
"""With more points than this, nearest neighbours are found with a k-d tree."""


def num_configurations(space: SearchSpace) -> int | None:
    """Return the number of configurations of a space; None if a parameter is continuous."""
    counts = [parameter.num_values for parameter in space.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def whole_space(space: SearchSpace, most: int = POOL + NEARBY) -> np.ndarray | None:
    """Return all configurations of a space as unit points; None if there are more than `most`."""
    count = num_configurations(space)
    return None if count is None or count > most else _configurations(space, np.arange(count))


def _configurations(space: SearchSpace, places: np.ndarray) -> np.ndarray:
    """Return the unit points of the configurations with these indices; the last parameter varies fastest."""
    columns = []
    for parameter in reversed(list(space.values())):
        places, digits = np.divmod(places, parameter.num_values or 1)
        first = parameter.low if isinstance(parameter, Int) else 0
        columns.append(parameter.codes_to_unit(first + digits.astype(float)))
    return np.stack(columns[::-1], axis=1)


def untried(space: SearchSpace, tried: np.ndarray, *, seed: Sequence[int]) -> np.ndarray | None:
    """Return untried points of the space, `[NEARBY, dim]`; None if every configuration was tried.

    Used when all points of a pool were tried although the space has more.
    """
    rng = np.random.default_rng(list(seed))
    count = num_configurations(space)
    if count is None or count >= 2**53:  # far more than can be tried, so nearly every point is new
        points = space.sample_unit(NEARBY, rng=rng)
    else:
        # At least one of any len(tried) + 1 distinct configurations is new. A step that is coprime to `count`
        # gives equally spaced indices that do not repeat.
        step = int(rng.integers(1, count)) if count > 1 else 1
        while math.gcd(step, count) > 1:
            step = step % count + 1
        num_drawn = min(len(tried) + NEARBY, count)
        first = int(rng.integers(count))
        points = _configurations(space, np.asarray([(first + step * k) % count for k in range(num_drawn)]))
    points = points[~_same(points, tried)][:NEARBY]
    return None if len(points) == 0 else points[np.arange(NEARBY) % len(points)]


def pool(space: SearchSpace, *, seed: Sequence[int]) -> np.ndarray:
    """Return points spread over the space, `[POOL, dim]`; a function of the space and the seed."""
    return space.sample_unit(POOL, rng=np.random.default_rng(list(seed)))


def nearby(space: SearchSpace, centres: np.ndarray, *, seed: Sequence[int]) -> np.ndarray:
    """Return points around the first `NUM_CENTRES` centres, `[NEARBY, dim]`.

    Without centres, the points are spread over the space.
    """
    rng = np.random.default_rng(list(seed))
    if len(centres) == 0:
        return space.sample_unit(NEARBY, rng=rng)
    centres = centres[:NUM_CENTRES]
    chosen = centres[rng.integers(len(centres), size=NEARBY)]
    distances = np.asarray(DISTANCES)[rng.integers(len(DISTANCES), size=NEARBY)]
    steps = rng.normal(size=chosen.shape) * distances[:, None]
    # Half of the points move along a single coordinate. In many dimensions, a step in all coordinates leaves
    # the neighbourhood.
    alone = rng.integers(chosen.shape[1], size=NEARBY)
    along = rng.uniform(size=NEARBY) < 0.5
    steps[along] = np.where(np.arange(chosen.shape[1]) == alone[along, None], steps[along], 0)
    moved = chosen + steps
    # Reflect at the edges. Clipping would put half of the points onto an edge that the best point is near.
    moved = np.abs(moved)
    moved = 1 - np.abs(1 - moved)
    return space.snap(np.clip(moved, 0, 1))


def left_to_try(
    candidates: np.ndarray, tried: np.ndarray, failed: np.ndarray, scored: np.ndarray
) -> np.ndarray:
    """Return the mask of the candidates to consider: untried, and not near a failure.

    A candidate within a radius of a failure is left out, unless a scored trial is nearer by the factor
    `MARGIN`. The radius grows with the number of failures. A single failure may be an accident. After
    several, the model may still expect high scores in a region where every trial fails, and has to be kept
    away from it.

    If no candidate passes, the quarter of the untried candidates farthest from all failures is kept. If all
    candidates were tried, those that did not fail are kept, or all if every one failed.
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
    """Return whether a point was tried, up to round-off."""
    return bool((np.abs(tried - point) < SAME).all(axis=1).any())


def _same(candidates: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the mask of the candidates that equal one of the points, up to round-off."""
    if len(points) > MANY_POINTS:
        distances, _ = _tree(points).query(candidates, p=np.inf, distance_upper_bound=SAME)
        return np.isfinite(distances)
    same: np.ndarray = np.ones((len(candidates), len(points)), bool)
    for own, others in zip(candidates.T, points.T, strict=True):  # few coordinates, large arrays
        same &= np.abs(own[:, None] - others) < SAME
    return np.any(same, axis=1)


def _distance(candidates: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the distance of each candidate to its nearest point; there is at least one point."""
    if len(points) > MANY_POINTS:
        return _tree(points).query(candidates)[0]
    squares = np.zeros((len(candidates), len(points)))
    for own, others in zip(candidates.T, points.T, strict=True):
        squares += (own[:, None] - others) ** 2
    return np.sqrt(squares.min(1))


def _tree(points: np.ndarray) -> Any:
    # scipy is a dependency of jax. It is imported here because few tasks have so many trials.
    from scipy.spatial import KDTree

    # Split at midpoints: discrete parameters have many equal coordinates, which medians do not separate.
    return KDTree(points, balanced_tree=False, compact_nodes=False)
