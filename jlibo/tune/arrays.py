"""Conversion of records to the padded arrays of the engine. Internal.

Scores are signed so that higher is better, centred at their median and divided by their spread (in float64,
so that any scale fits in float32). Scores far below all others are clipped: they stay bad, but do not
dominate the fit. Padded sizes grow geometrically, so that new tasks and trials seldom cause a compilation.

Sizes are bounded, so that neither time nor memory grows with the number of trials:

| what                      | bound                                                                         |
|---------------------------|-------------------------------------------------------------------------------|
| trials of the running task| up to `most_rows` one row each; more are compressed to equivalent rows        |
| trials of a past task     | `MOST_TRIALS`, spread evenly over its length                                  |
| past tasks                | `MOST_TASKS`, the latest                                                      |
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jlibo.belief.moments import Moments, divisor, unit_of
from jlibo.features import AbstractFeatures
from jlibo.tune.engine import Compressed, OwnTrials, PastTrials
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.space.conditions import OFF
from jlibo.tune.space.space import SearchSpace

FARTHEST = 3.0
"""Scores are clipped at this many spreads below the median. How bad a bad configuration is does not matter,
and the model would spend its flexibility on the difference."""
LEAST_TASKS, LEAST_TRIALS = 8, 32
LEAST_OWN = 128
"""Smallest padded number of trials of the running task: more than most tasks have, so that they compile once,
whatever was said about their budget."""
MOST_TASKS, MOST_TRIALS = 512, 256
"""Largest numbers of past tasks, and of trials of one past task, that are used."""
NUM_RECENT = 64
"""Largest number of told trials of a long task that have a row each, beside the compressed rows."""
TASKS_GROWTH, FEW_TASKS = 4, 128
"""Padded numbers of tasks are 8, 32, 128, 256 and 512: learning from few tasks takes far longer to compile
than to run."""


def padded(count: int, least: int, growth: int = 2) -> int:
    """Return the smallest `least * growth**k` that is at least `count`."""
    size = least
    while size < count:
        size *= growth
    return size


def level(scores: Sequence[float] | np.ndarray, *, maximise: bool) -> tuple[np.ndarray, float]:
    """Return scores of magnitude about one, higher is better, and the logarithm of their divisor."""
    values = _signed_quarters(scores, maximise=maximise)
    if values.size == 0:
        return values, 0.0
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


@final
@dataclasses.dataclass(frozen=True)
class Level:
    """The inverse of `level`: converts its numbers to the units of the scores."""

    centre: float
    """Signed score that `level` maps to zero."""
    log_unit: float
    maximise: bool

    @classmethod
    def of(cls, scores: Sequence[float] | np.ndarray, *, maximise: bool) -> "Level":
        """Return the conversion for these scores; there is at least one."""
        _, log_unit = level(scores, maximise=maximise)
        return cls(float(np.median(_signed_quarters(scores, maximise=maximise))) * 4, log_unit, maximise)

    def score(self, value: float) -> float:
        """Return the score that is mapped to `value`."""
        signed = self.centre + self.size(value)
        return signed if self.maximise else -signed

    def size(self, difference: float) -> float:
        """Return a difference of levelled scores in the units of the scores."""
        with np.errstate(over="ignore"):
            return float(difference * np.exp(self.log_unit))


def _signed_quarters(scores: Sequence[float] | np.ndarray, *, maximise: bool) -> np.ndarray:
    # Divided by 4, because the difference of two huge numbers may overflow.
    return np.asarray(scores, np.float64) * (1.0 if maximise else -1.0) / 4


def unit_points(space: SearchSpace, trials: Sequence[TrialRecord]) -> Float[np.ndarray, "trials dim"]:
    """Return the trials' configurations as points of the unit box: `to_unit`, one parameter at a time."""
    points = np.full((len(trials), space.num_parameters), OFF)
    for place, (name, parameter) in enumerate(space.items()):
        on = [row for row, trial in enumerate(trials) if name in trial.params]
        codes = parameter.codes_near(name, [trials[row].params[name] for row in on])
        points[on, place] = parameter.codes_to_unit(codes)
    return points


@final
class PastRows(eqx.Module):
    """Finished trials of all past tasks, padded: `PastTrials` with unit points in place of features."""

    points: Float[Any, "tasks trials dim"]
    scores: Float[Any, "tasks trials"]
    explored: Bool[Any, "tasks trials"]
    present: Bool[Any, "tasks trials"]
    log_units: Float[Any, " tasks"]

    def with_features(self, features: AbstractFeatures) -> PastTrials:
        rest = (jnp.asarray(leaf) for leaf in (self.scores, self.explored, self.present, self.log_units))
        return PastTrials(features(jnp.asarray(self.points)), *rest)


def past_trials(
    space: SearchSpace,
    features: AbstractFeatures,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    *,
    maximise: bool,
) -> tuple[PastTrials, int] | None:
    """Return `past_rows` with features in place of points."""
    found = past_rows(space, tasks, trials, maximise=maximise)
    return None if found is None else (found[0].with_features(features), found[1])


def past_rows(
    space: SearchSpace, tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord], *, maximise: bool
) -> tuple[PastRows, int] | None:
    """Return the tasks that have at least two scores, and their number; None if there is no such task.

    A stopped trial has its estimate as a score. Added tasks contain no forced exploration, so all their
    trials are marked as explored.
    """
    rows = scored_trials(tasks, trials)
    if not rows:
        return None
    kept = [task for task in tasks if task.id in rows][-MOST_TASKS:]
    own = [thinned(rows[task.id], maximise=maximise) for task in kept]
    num_tasks, num_trials = past_sizes(len(kept), max(map(len, own)))
    points = np.zeros((num_tasks, num_trials, space.num_parameters))
    scores = np.zeros((num_tasks, num_trials))
    explored = np.zeros((num_tasks, num_trials), bool)
    present = np.zeros((num_tasks, num_trials), bool)
    log_units = np.zeros(num_tasks)
    together = unit_points(space, [trial for some in own for trial in some])
    ends = np.cumsum([len(some) for some in own])
    for place, (task, some, end) in enumerate(zip(kept, own, ends, strict=True)):
        points[place, : len(some)] = together[end - len(some) : end]
        scores[place, : len(some)], log_units[place] = level(
            [trial.model_score for trial in some if trial.model_score is not None], maximise=maximise
        )
        explored[place, : len(some)] = [trial.explored or task.source == "added" for trial in some]
        present[place, : len(some)] = True
    dtype = jnp.result_type(float)  # converted by NumPy: by jax, each shape is a program
    arrays = PastRows(points.astype(dtype), scores.astype(dtype), explored, present, log_units.astype(dtype))
    return arrays, len(rows)


def past_sizes(num_tasks: int, most_trials: int) -> tuple[int, int]:
    """Return the padded numbers of past tasks and of trials of each."""
    num_tasks, most_trials = min(num_tasks, MOST_TASKS), min(most_trials, MOST_TRIALS)
    few = num_tasks <= FEW_TASKS
    size = padded(num_tasks, LEAST_TASKS, TASKS_GROWTH) if few else padded(num_tasks, FEW_TASKS)
    return size, padded(most_trials, LEAST_TRIALS)


def past_shapes(space: SearchSpace, num_tasks: int, num_trials: int) -> PastRows:
    """Return the shapes of the result of `past_rows`, given its padded sizes."""
    numbers = partial(jax.ShapeDtypeStruct, dtype=jnp.result_type(float))
    flags = jax.ShapeDtypeStruct((num_tasks, num_trials), bool)
    points = numbers((num_tasks, num_trials, space.num_parameters))
    return PastRows(points, numbers((num_tasks, num_trials)), flags, flags, numbers((num_tasks,)))


def scored_trials(tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord]) -> dict[int, list[TrialRecord]]:
    """Return the trials that the model learns from, by id of the task, in their order.

    These are the complete trials of tasks that have at least two, and their stopped trials with an estimate.
    Trials that do not fit into the search space are left out.
    """
    rows: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
    for trial in trials:
        if trial.model_score is not None and trial.fits and trial.task_id in rows:
            rows[trial.task_id].append(trial)
    complete = {task: sum(trial.state == "complete" for trial in some) for task, some in rows.items()}
    return {task: some for task, some in rows.items() if complete[task] >= 2}


def thinned(trials: Sequence[TrialRecord], *, maximise: bool) -> list[TrialRecord]:
    """Return at most `MOST_TRIALS` of the scored trials of a past task, in order.

    The best trial is kept. Up to half are forced exploration, since a learner may use only those. The rest
    are spaced evenly over the task.
    """
    if len(trials) <= MOST_TRIALS:
        return list(trials)
    sign = 1.0 if maximise else -1.0
    best = max(range(len(trials)), key=lambda place: sign * (trials[place].model_score or 0.0))
    forced = [place for place, trial in enumerate(trials) if trial.explored and place != best]
    chosen = {best, *_spread_evenly(forced, MOST_TRIALS // 2)}
    others = [place for place in range(len(trials)) if place not in chosen]
    chosen.update(_spread_evenly(others, MOST_TRIALS - len(chosen)))
    return [trials[place] for place in sorted(chosen)]


def _spread_evenly(places: Sequence[int], most: int) -> list[int]:
    if len(places) <= most:
        return list(places)
    return [places[int(at)] for at in np.linspace(0, len(places) - 1, most)]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TrialArrays:
    """The trials of one task, by number. `scores` are as told, and valid only where `is_told`.

    A stopped trial with an estimate is told, and its score is the estimate; without one it is neither told
    nor failed.
    """

    points: Float[np.ndarray, "trials dim"]
    scores: Float[np.ndarray, " trials"]
    is_told: Bool[np.ndarray, " trials"]
    is_pending: Bool[np.ndarray, " trials"]
    explored: Bool[np.ndarray, " trials"]
    is_stopped: Bool[np.ndarray, " trials"]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def is_failed(self) -> Bool[np.ndarray, " trials"]:
        return ~(self.is_told | self.is_pending | self.is_stopped)

    @property
    def is_complete(self) -> Bool[np.ndarray, " trials"]:
        return self.is_told & ~self.is_stopped

    def only(self, which: Bool[np.ndarray, " trials"]) -> "TrialArrays":
        """Return the trials where `which` is true."""
        return TrialArrays(
            self.points[which],
            self.scores[which],
            self.is_told[which],
            self.is_pending[which],
            self.explored[which],
            self.is_stopped[which],
        )

    def best_first(self, most: int, *, maximise: bool) -> np.ndarray:
        """Return the indices of the best `most` complete trials, best first; ties by their number."""
        (told,) = np.nonzero(self.is_complete)
        values = self.scores[told] * (-1.0 if maximise else 1.0)
        if len(values) > most:  # a partition is cheaper than sorting all values
            good = values <= np.partition(values, most - 1)[most - 1]
            told, values = told[good], values[good]
        return told[np.argsort(values, kind="stable")[:most]]


def trial_arrays(points: np.ndarray, trials: Sequence[TrialRecord]) -> TrialArrays:
    """Return the records of one task, with configurations at `points`, as arrays."""
    return TrialArrays(
        points,
        np.asarray([trial.model_score or 0.0 for trial in trials], np.float64),
        *np.asarray([flags_of(trial) for trial in trials], bool).reshape(-1, 4).T,
    )


def flags_of(trial: TrialRecord) -> tuple[bool, bool, bool, bool]:
    """Return whether a trial is told, pending, explored and stopped, the flags of `TrialArrays`."""
    is_told = trial.model_score is not None
    return is_told, trial.state == "pending", trial.explored, trial.state == "stopped"


def most_rows(num_features: int) -> int:
    """Return the number of trials above which a task is compressed to fewer rows."""
    return padded(2 * num_features + NUM_RECENT, MOST_TRIALS)


@final
class OwnRows(eqx.Module):
    """The trials of the running task, padded: `OwnTrials` with unit points in place of features."""

    points: Float[Any, "trials dim"]
    scores: Float[Any, " trials"]
    told: Bool[Any, " trials"]
    pending: Bool[Any, " trials"]

    def with_features(self, features: AbstractFeatures) -> OwnTrials:
        return OwnTrials(features(self.points), self.scores, self.told, self.pending)


def own_rows(trials: TrialArrays, *, maximise: bool, room: int = 0) -> tuple[OwnRows, float]:
    """Return the trials of one task, one row each, and the logarithm of the unit of their scores.

    `room` is the expected number of trials; padding to it gives the whole task one shape.
    """
    count, size = len(trials), padded(max(len(trials), room), LEAST_OWN)
    told, pending = np.zeros((2, size), bool)
    told[:count], pending[:count] = trials.is_told, trials.is_pending
    scores = np.zeros(size)
    scores[told], log_unit = level(trials.scores[trials.is_told], maximise=maximise)
    places = np.zeros((size, trials.points.shape[-1]))
    places[:count] = trials.points
    dtype = jnp.result_type(float)
    return OwnRows(places.astype(dtype), scores.astype(dtype), told, pending), log_unit


def compressed_trials(
    features: Float[np.ndarray, "trials features"],
    base: "Factor",
    in_base: Bool[np.ndarray, " trials"],
    trials: TrialArrays,
    *,
    maximise: bool,
) -> tuple[OwnTrials, float]:
    """Return the trials as 2 * features + `NUM_RECENT` rows, and the logarithm of the scores' unit.

    The rows are equivalent to the trials, without approximation. The posterior, and the likelihood of the
    scores in any units, depend on n told trials only through the products of the columns
    `[features, scores, 1]`. An orthogonal transform of the n rows that leaves zeros below the first d keeps
    these products. Pending trials reduce the covariance, which depends only on the products of their
    features.

    **Arguments:**

    - `features`: the features of the trials; arbitrary where a trial failed.
    - `base`: the factor of the told trials `in_base`. At most `NUM_RECENT` told trials are outside of it and
      get a row each, so that the factor need not be recomputed for every trial.
    """
    size, num_recent = features.shape[1], NUM_RECENT
    levelled, log_unit = level(trials.scores[trials.is_told], maximise=maximise)
    columns = np.zeros((len(trials), 2))  # the scores, and ones
    columns[trials.is_told, 0], columns[trials.is_told, 1] = levelled, 1.0
    rows, targets = np.zeros((2 * size + num_recent, size)), np.zeros((2 * size + num_recent, 2))
    told, pending = np.zeros((2, len(rows)), bool)

    based = np.where(in_base[:, None], columns, 0.0)
    rows[:size], targets[:size] = base.rows, base.transform(features.T @ based)
    lost = based.T @ based - targets[:size].T @ targets[:size]
    np.fill_diagonal(lost, np.maximum(np.diagonal(lost), 0))  # may be negative by round-off

    (recent,) = np.nonzero(trials.is_told & ~in_base)
    rows[size : size + len(recent)], targets[size : size + len(recent)] = features[recent], columns[recent]
    told[: size + len(recent)] = True

    waiting = features[trials.is_pending]
    waiting = Factor.of(waiting.T @ waiting).rows if len(waiting) > size else waiting
    rows[size + num_recent :][: len(waiting)] = waiting
    pending[size + num_recent :][: len(waiting)] = True

    count = len(levelled)
    mean = levelled.mean() if count else 0.0
    dtype = jnp.result_type(float)
    unit = unit_of(jnp.asarray(np.abs(levelled).max(initial=0.0), dtype))
    squares = ((levelled - mean) ** 2).sum() / float(divisor(unit)) ** 2
    compressed = Compressed(
        targets[:, 1].astype(dtype),
        lost.astype(dtype),
        np.asarray(in_base.sum() - size, dtype),
        Moments(jnp.asarray(count, dtype), jnp.asarray(mean, dtype), jnp.asarray(squares, dtype), unit),
        np.asarray(levelled.max() if count else -np.inf, dtype),
        np.asarray(count - 1 - np.argmax(levelled) if count else 0, np.int32),
    )
    return OwnTrials(rows.astype(dtype), targets[:, 0].astype(dtype), told, pending, compressed), log_unit


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """d rows R with R^T R = `gram`, the products of d features over any number of trials.

    Computed from the eigendecomposition, because `gram` is often singular. Eigenvalues at round-off level,
    relative to the largest, are set to zero.
    """

    rows: Float[np.ndarray, "features features"]
    _inverse: Float[np.ndarray, "features features"]

    @classmethod
    def of(cls, gram: Float[np.ndarray, "features features"]) -> "Factor":
        """Return the factor of a Gram matrix."""
        if not gram.any():
            return cls(gram, gram)
        squares, vectors = np.linalg.eigh(gram)
        floor = len(gram) * 10 * np.finfo(np.float64).eps * max(squares[-1], 0.0)
        kept = squares > floor
        sizes = np.sqrt(np.where(kept, squares, 0.0))
        rows = sizes[:, None] * vectors.T
        return cls(rows, np.where(kept, 1 / np.where(kept, sizes, 1.0), 0.0)[:, None] * vectors.T)

    def transform(self, cross: Float[np.ndarray, "features columns"]) -> Float[np.ndarray, "rows columns"]:
        """Return columns in the coordinates of these rows, given their products with the features."""
        return self._inverse @ cross


def feature_values(features: AbstractFeatures, points: np.ndarray) -> Float[np.ndarray, "points features"]:
    """Return the features of any number of points in float64, padded so that few shapes are compiled."""
    count = len(points)
    places = np.zeros((padded(count, LEAST_TRIALS), points.shape[-1]))
    places[:count] = points
    return np.asarray(features(jnp.asarray(places, jnp.result_type(float))), np.float64)[:count]
