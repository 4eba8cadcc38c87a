"""Candidates: the whole space, or a pool over it and points around the best trials. Internal.

If a space has few configurations, all of them are candidates. Otherwise the candidates are a pool, drawn once
per task, and points near the best trials so far, drawn again at every ask. The latter lie at several
distances, so that the search can approach an optimum between the points of the pool.

All points are configurations with the coordinates of parameters that are off at their one value, so that no
configuration is two candidates. Those that a constraint (`Allowed`) excludes are drawn again.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jlibo.checks import fail
from jlibo.tune.space.conditions import activity
from jlibo.tune.space.space import SearchSpace

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
MANY_BRANCHES = 10_000
"""Configurations are counted only if the parents of conditional parameters have at most this many values."""
MOST_DRAWS = 64
"""Number of times that points are drawn again until enough satisfy a constraint."""

Allowed = Callable[[np.ndarray], np.ndarray]
"""The mask of the points `[points, dim]` that satisfy a constraint."""


def num_configurations(space: SearchSpace) -> int | None:
    """Return the number of configurations of a space.

    None if a parameter is continuous, or if there are too many combinations of the parents' values to count.
    """
    branches = _branches(space)
    return None if branches is None else sum(count for _, count in branches)


def whole_space(space: SearchSpace, most: int = POOL + NEARBY) -> np.ndarray | None:
    """Return all configurations of a space as unit points; None if there are more than `most`."""
    count = num_configurations(space)
    return None if count is None or count > most else _configurations(space, np.arange(count))


@lru_cache(maxsize=64)
def _branches(space: SearchSpace) -> tuple[tuple[np.ndarray, int], ...] | None:
    """Return the branches of a space: the parents' unit coordinates, and the number of configurations.

    A branch has one value of each parent that is on. A space without conditions is a single branch. None if
    the configurations cannot be counted.
    """
    kinds, parents = list(space.values()), space.conditions.parents
    counts = [kinds[parent].num_values or 1 for parent in parents]
    if math.prod(counts) > MANY_BRANCHES:
        return None
    points = np.full((math.prod(counts), len(space)), 0.5)
    places = np.arange(len(points))
    for parent, count in zip(reversed(parents), reversed(counts), strict=True):
        places, digits = np.divmod(places, count)
        points[:, parent] = kinds[parent].codes_to_unit(kinds[parent].first_code + digits.astype(float))
    points = np.unique(space.with_off(points), axis=0)
    branches = []
    for point in points:
        sizes = [kinds[place].num_values for place in _free(space, point)]
        if None in sizes:
            return None
        branches.append((point, math.prod(size for size in sizes if size is not None)))
    return tuple(branches)


def _free(space: SearchSpace, point: np.ndarray) -> list[int]:
    """Return the positions of the parameters that are on in a branch and are no parents."""
    is_on = activity(point, space.intervals, np) if space.intervals else np.ones(len(space), bool)
    return [place for place in range(len(space)) if is_on[place] and place not in space.conditions.parents]


def _configurations(space: SearchSpace, places: np.ndarray) -> np.ndarray:
    """Return the unit points of the configurations with these indices; the last parameter varies fastest."""
    kinds, branches = list(space.values()), _branches(space)
    assert branches is not None
    ends = np.cumsum([count for _, count in branches])
    which = np.searchsorted(ends, places, side="right")
    points = np.stack([point for point, _ in branches])[which]
    for branch in np.unique(which):
        rows, (point, count) = np.nonzero(which == branch)[0], branches[branch]
        left = places[rows] - (ends[branch] - count)
        for place in reversed(_free(space, point)):
            left, digits = np.divmod(left, kinds[place].num_values or 1)
            codes = kinds[place].first_code + digits.astype(float)
            points[rows, place] = kinds[place].codes_to_unit(codes)
    return points


def untried(
    space: SearchSpace, tried: np.ndarray, *, seed: Sequence[int], allowed: Allowed | None = None
) -> np.ndarray | None:
    """Return untried points of the space, `[NEARBY, dim]`; None if every configuration was tried.

    Used when all points of a pool were tried although the space has more.
    """
    rng = np.random.default_rng(list(seed))
    count = num_configurations(space)
    if count is None or count >= 2**53:  # far more than can be tried, so nearly every point is new
        points = _drawn(space, NEARBY, rng, allowed)
    else:
        # At least one of any len(tried) + 1 distinct configurations is new. A step that is coprime to `count`
        # gives equally spaced indices that do not repeat.
        step = int(rng.integers(1, count)) if count > 1 else 1
        while math.gcd(step, count) > 1:
            step = step % count + 1
        num_drawn = min(len(tried) + NEARBY, count)
        first = int(rng.integers(count))
        points = _configurations(space, np.asarray([(first + step * k) % count for k in range(num_drawn)]))
    points = points[~_same(points, tried)]
    points = points[:NEARBY] if allowed is None else points[allowed(points)][:NEARBY]
    return None if len(points) == 0 else points[np.arange(NEARBY) % len(points)]


def pool(space: SearchSpace, *, seed: Sequence[int], allowed: Allowed | None = None) -> np.ndarray:
    """Return points spread over the space, `[POOL, dim]`; a function of the space and the seed.

    **Raises:**

    - `ValueError`: no point that was drawn is allowed.
    """
    return _drawn(space, POOL, np.random.default_rng(list(seed)), allowed)


def _drawn(space: SearchSpace, num: int, rng: np.random.Generator, allowed: Allowed | None) -> np.ndarray:
    """Return `num` points spread over the space. Those that are not allowed are drawn again."""
    points = space.sample_unit(num, rng=rng)
    if allowed is None:
        return points
    found = points[allowed(points)]
    num_draws = 1
    while len(found) < num and num_draws < MOST_DRAWS:
        points = space.sample_unit(num, rng=rng)
        found = np.concatenate([found, points[allowed(points)]])
        num_draws += 1
    if len(found) == 0:
        fail(
            "constraint",
            "satisfied by at least one configuration in some thousands (or pass those that satisfy it as "
            "`candidates`)",
            f"none of {num_draws * num:,} drawn from the space",
        )
    return found[np.arange(num) % len(found)]


def nearby(
    space: SearchSpace, centres: np.ndarray, *, seed: Sequence[int], allowed: Allowed | None = None
) -> np.ndarray:
    """Return points around the first `NUM_CENTRES` centres, `[NEARBY, dim]`.

    Without centres, or if no point around them is allowed, the points are spread over the space.
    """
    rng = np.random.default_rng(list(seed))
    if len(centres) == 0:
        return _drawn(space, NEARBY, rng, allowed)
    points = _around(space, centres[:NUM_CENTRES], rng)
    if allowed is None:
        return points
    found = points[allowed(points)]
    if len(found) < NEARBY:  # once more, for a constraint that holds on one side of the best trials
        points = _around(space, centres[:NUM_CENTRES], rng)
        found = np.concatenate([found, points[allowed(points)]])
    return found[np.arange(NEARBY) % len(found)] if len(found) else _drawn(space, NEARBY, rng, allowed)


def _around(space: SearchSpace, centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    chosen = centres[rng.integers(len(centres), size=NEARBY)]
    distances = np.asarray(DISTANCES)[rng.integers(len(DISTANCES), size=NEARBY)]
    steps = rng.normal(size=chosen.shape) * distances[:, None]
    # Half of the points move along a single coordinate. In many dimensions, a step in all coordinates leaves
    # the neighbourhood.
    alone = rng.integers(chosen.shape[1], size=NEARBY)
    along = rng.uniform(size=NEARBY) < 0.5
    if space.intervals:
        # A step along a coordinate that is off is no step. A parameter that a step of its parent turns on can
        # have any value.
        is_on = activity(chosen, space.intervals, np)
        alone = np.where(is_on, rng.uniform(size=chosen.shape), -1).argmax(1)
        chosen = np.where(is_on, chosen, rng.uniform(size=chosen.shape))
    steps[along] = np.where(np.arange(chosen.shape[1]) == alone[along, None], steps[along], 0)
    moved = chosen + steps
    # Reflect at the edges. Clipping would put half of the points onto an edge that the best point is near.
    moved = np.abs(moved)
    moved = 1 - np.abs(1 - moved)
    return space.snap(np.clip(moved, 0, 1))


def left_to_try(
    candidates: np.ndarray,
    tried: np.ndarray,
    failed: np.ndarray,
    scored: np.ndarray,
    stopped: np.ndarray | None = None,
) -> np.ndarray:
    """Return the mask of the candidates to consider: untried, and not near a failure.

    A candidate within a radius of a failure is left out, unless a scored trial is nearer by the factor
    `MARGIN`. The radius grows with the number of failures. A single failure may be an accident. After
    several, the model may still expect high scores in a region where every trial fails, and has to be kept
    away from it.

    If no candidate passes, the quarter of the untried candidates farthest from all failures is kept. If all
    candidates were tried, those that neither failed nor were stopped are kept, or all if there are none.
    """
    new = ~_same(candidates, tried)
    if not new.any():
        sound = ~_same(candidates, failed if stopped is None else np.concatenate([failed, stopped]))
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
