"""From records to padded arrays: what the engine computes with.

Scores are turned so that higher is better, measured from their median in units of their spread (in float64,
so that any scale fits in float32), and those far below all others are raised to where they still count as bad
but no longer as the only thing to know. Paddings grow by doubling: a task or trial more seldom compiles anew.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jlibo.features import AbstractFeatures
from jlibo.tune.engine import OwnTrials, PastTrials
from jlibo.tune.memory_records import TaskRecord, TrialRecord
from jlibo.tune.space import SearchSpace

FARTHEST = 20.0
"""A score this many spreads below the median counts as that far and no farther."""
LEAST_TASKS, LEAST_TRIALS = 8, 32


def padded(count: int, least: int) -> int:
    """The least power of two times `least` that holds `count`."""
    size = least
    while size < count:
        size *= 2
    return size


def level(scores: Sequence[float], *, maximise: bool) -> tuple[np.ndarray, float]:
    """Scores of size one or so, higher is better, and the logarithm of what they were divided by."""
    values = np.asarray(scores, np.float64) * (1.0 if maximise else -1.0)
    if values.size == 0:
        return values, 0.0
    # Quarters, since the difference of two huge numbers may not be a number any more.
    values = values / 4
    values = values - np.median(values)
    quarters = np.percentile(values, [25, 75])
    spread = max(quarters[1] - quarters[0], values.max())
    if spread <= 0:
        spread = np.abs(values).max()
    if not spread > 0:
        return np.zeros_like(values), 0.0
    with np.errstate(over="ignore"):
        scaled = values / spread
    if values.size >= 5:
        scaled = np.maximum(scaled, -FARTHEST)
    return np.clip(scaled, -1e6, 1e6), float(np.log(spread) + np.log(4))


def unit_points(space: SearchSpace, trials: Sequence[TrialRecord]) -> Float[np.ndarray, "trials dim"]:
    """Where the trials' configurations sit in the unit box; `to_unit` of each, parameter by parameter."""
    columns = [
        parameter.codes_to_unit(np.array([parameter.code_of(name, trial.params[name]) for trial in trials]))
        for name, parameter in space.items()
    ]
    return np.stack(columns, axis=1)


def past_trials(
    space: SearchSpace,
    features: AbstractFeatures,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    *,
    maximise: bool,
) -> tuple[PastTrials, int] | None:
    """The finished tasks that can teach anything: at least two scores. None if there is no such task.

    In tasks from elsewhere nothing was forced exploration; there, all trials stand for it.
    """
    rows: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
    for trial in trials:
        if trial.state == "complete" and trial.task_id in rows:
            rows[trial.task_id].append(trial)
    kept = [task for task in tasks if len(rows[task.id]) >= 2]
    if not kept:
        return None
    num_tasks = padded(len(kept), LEAST_TASKS)
    num_trials = padded(max(len(rows[task.id]) for task in kept), LEAST_TRIALS)
    points = np.zeros((num_tasks, num_trials, space.num_parameters))
    scores = np.zeros((num_tasks, num_trials))
    explored = np.zeros((num_tasks, num_trials), bool)
    present = np.zeros((num_tasks, num_trials), bool)
    log_units = np.zeros(num_tasks)
    for place, task in enumerate(kept):
        own = rows[task.id]
        points[place, : len(own)] = unit_points(space, own)
        scores[place, : len(own)], log_units[place] = level(
            [trial.score for trial in own if trial.score is not None], maximise=maximise
        )
        explored[place, : len(own)] = [trial.explored or task.source == "added" for trial in own]
        present[place, : len(own)] = True
    arrays = PastTrials(
        features=features(jnp.asarray(points, jnp.result_type(float))),
        scores=jnp.asarray(scores, jnp.result_type(float)),
        explored=jnp.asarray(explored),
        present=jnp.asarray(present),
        log_units=jnp.asarray(log_units, jnp.result_type(float)),
    )
    return arrays, len(kept)


class OwnRows(eqx.Module):
    """The trials of the task at hand, padded, as unit points: `OwnTrials` but for the features."""

    points: Float[Any, "trials dim"]
    scores: Float[Any, " trials"]
    told: Bool[Any, " trials"]
    pending: Bool[Any, " trials"]

    def with_features(self, features: AbstractFeatures) -> OwnTrials:
        return OwnTrials(features(self.points), self.scores, self.told, self.pending)


def own_rows(
    points: np.ndarray, trials: Sequence[TrialRecord], *, maximise: bool, room: int = 0
) -> tuple[OwnRows, float]:
    """The trials of one task at `points`, and the logarithm of the unit of their scores.

    With `room` for the trials that are still to come, all of a task has one shape.
    """
    size = padded(max(len(trials), room), LEAST_TRIALS)
    told = np.zeros(size, bool)
    told[: len(trials)] = [trial.state == "complete" for trial in trials]
    pending = np.zeros(size, bool)
    pending[: len(trials)] = [trial.state == "pending" for trial in trials]
    scores = np.zeros(size)
    scores[told], log_unit = level(
        [trial.score for trial in trials if trial.score is not None], maximise=maximise
    )
    places = np.zeros((size, points.shape[-1]))
    places[: len(trials)] = points
    dtype = jnp.result_type(float)
    return OwnRows(places.astype(dtype), scores.astype(dtype), told, pending), log_unit


def own_trials(
    features: AbstractFeatures,
    points: np.ndarray,
    trials: Sequence[TrialRecord],
    *,
    maximise: bool,
    room: int = 0,
) -> tuple[OwnTrials, float]:
    """`own_rows` with the features of the points."""
    rows, log_unit = own_rows(points, trials, maximise=maximise, room=room)
    return rows.with_features(features), log_unit
