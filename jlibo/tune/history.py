"""The trials of the running task as arrays, updated at a cost in proportion to the changes. Internal.

A task may have thousands of trials. They are read from the memory once. Afterwards only new trials are read,
and those that were pending and have finished since. The products of features from which the compressed rows
of a long task are computed (`arrays.compressed_trials`) are updated in the same way.
"""

import abc
from typing import final

import numpy as np

from jlibo.features import AbstractFeatures
from jlibo.tune import arrays
from jlibo.tune.arrays import Factor, OwnRows, TrialArrays
from jlibo.tune.engine import OwnTrials
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.owner import owner_is_dead
from jlibo.tune.memory.records import TrialRecord, seconds_since
from jlibo.tune.space.space import SearchSpace


class AbstractHistory(abc.ABC):
    """The trials of the running task, as input of `jlibo.tune.ask`."""

    maximise: bool
    _features: AbstractFeatures

    @property
    @abc.abstractmethod
    def trials(self) -> TrialArrays:
        """The trials, by number."""

    @abc.abstractmethod
    def compressed(self) -> tuple[OwnTrials, float]:
        """`arrays.compressed_trials` of these trials."""

    def rows(self, *, room: int = 0) -> tuple[OwnRows | OwnTrials, float]:
        """Return the trials as input of the engine, and the logarithm of the unit of their scores.

        One row each, padded to `room` (the expected number of trials), or compressed if there are many.
        """
        most = arrays.most_rows(self._features.num_features)
        if len(self.trials) > most:
            return self.compressed()
        return arrays.own_rows(self.trials, maximise=self.maximise, room=min(room, most))


@final
class GivenHistory(AbstractHistory):
    """Trials that are all known at once."""

    def __init__(self, trials: TrialArrays, features: AbstractFeatures, *, maximise: bool):
        self._trials = trials
        self._features = features
        self.maximise = maximise

    @property
    def trials(self) -> TrialArrays:
        return self._trials

    def compressed(self) -> tuple[OwnTrials, float]:
        trials = self._trials
        values = arrays.feature_values(self._features, trials.points)
        base = Factor.of(values[trials.is_told].T @ values[trials.is_told])
        return arrays.compressed_trials(values, base, trials.is_told, trials, maximise=self.maximise)


@final
class TaskHistory(AbstractHistory):
    """The trials of a task in a memory. It is not safe to `refresh` it in two threads at once.

    Trials that do not fit into the search space are counted, but not in `trials`.
    """

    def __init__(self, memory: Memory, task_id: int, space: SearchSpace, features: AbstractFeatures):
        self.maximise = memory.maximise
        self._memory = memory
        self._task_id = task_id
        self._space = space
        self._features = features
        self._forget()

    def _forget(self) -> None:
        self.last_id = 0
        self._last_number = -1
        self._count = 0
        self._num_unfit = 0
        self._foreign: dict[int, TrialRecord] = {}  # pending trials that this process cannot evaluate, by id
        self._place: dict[int, int] = {}  # row of each pending trial, by id
        self._points = np.zeros((arrays.LEAST_TRIALS, self._space.num_parameters))
        self._scores = np.zeros(arrays.LEAST_TRIALS)
        self._ids = np.zeros(arrays.LEAST_TRIALS, np.int64)
        self._flags = np.zeros((arrays.LEAST_TRIALS, 4), bool)  # those of `arrays.flags_of`
        self._num_values = 0
        self._values = np.zeros((0, self._features.num_features))
        self._gram = np.zeros((self._features.num_features,) * 2)
        self._in_base = np.zeros(0, bool)
        self._base: Factor | None = None

    def __len__(self) -> int:
        """The number of trials of the task, those that do not fit included."""
        return self._count + self._num_unfit

    def limit(self, budget: int) -> int:
        """Return the number of trials at which a budget is spent.

        Trials that were left pending and are not configurations of the search space do not count: no process
        with this space can finish them.
        """
        return budget + sum(
            trial.owner is None or owner_is_dead(trial.owner, seconds_since(trial.created))
            for trial in self._foreign.values()
        )

    @property
    def trials(self) -> TrialArrays:
        """The trials that fit, as of the last `refresh`."""
        flags = self._flags[: self._count].T
        return TrialArrays(self._points[: self._count], self._scores[: self._count], *flags)

    @property
    def ids(self) -> np.ndarray:
        """The ids of `trials`."""
        return self._ids[: self._count]

    @property
    def pending_ids(self) -> set[int]:
        """The ids of the trials of this search space that were pending as of the last `refresh`."""
        return set(self._place) - set(self._foreign)

    def refresh(self) -> None:
        """Read new and newly finished trials from the memory."""
        pending = list({*self._place, *self._foreign})
        found = self._memory.changed_trials(self._task_id, after=self.last_id, pending=pending)
        new = [trial for trial in found or () if trial.id > self.last_id]
        # Read everything again if the task was deleted (it is then empty) or if an import added a trial whose
        # number lies between known ones.
        if found is None or (new and new[0].number <= self._last_number):
            self._forget()
            new = found = self._memory.changed_trials(self._task_id, after=0, pending=()) or []
        for trial in found:
            if trial.id <= self.last_id:
                self._foreign.pop(trial.id, None)
                if trial.id in self._place:
                    self._set_state(self._place.pop(trial.id), trial)
        if new:
            self.last_id = max(trial.id for trial in new)
            self._last_number = new[-1].number
        self._num_unfit += sum(not trial.fits for trial in new)
        self._foreign |= {trial.id: trial for trial in new if trial.state == "pending" and not trial.runnable}
        self._append([trial for trial in new if trial.fits])

    def _append(self, trials: list[TrialRecord]) -> None:
        if not trials:
            return
        start, self._count = self._count, self._count + len(trials)
        size = arrays.padded(self._count, len(self._scores))
        if size > len(self._scores):
            more = size - len(self._scores)
            self._points = np.pad(self._points, ((0, more), (0, 0)))
            self._scores = np.pad(self._scores, (0, more))
            self._ids = np.pad(self._ids, (0, more))
            self._flags = np.pad(self._flags, ((0, more), (0, 0)))
        self._points[start : self._count] = arrays.unit_points(self._space, trials)
        self._ids[start : self._count] = [trial.id for trial in trials]
        for place, trial in enumerate(trials, start):
            self._set_state(place, trial)
            if trial.state == "pending":
                self._place[trial.id] = place

    def _set_state(self, place: int, trial: TrialRecord) -> None:
        self._flags[place] = arrays.flags_of(trial)
        self._scores[place] = trial.model_score or 0.0

    def compressed(self) -> tuple[OwnTrials, float]:
        trials, known = self.trials, self._num_values
        if known < self._count:
            size = arrays.padded(self._count, arrays.LEAST_TRIALS)
            if size > len(self._values):
                more = size - len(self._values)
                self._values = np.pad(self._values, ((0, more), (0, 0)))
                self._in_base = np.pad(self._in_base, (0, more))
            new = arrays.feature_values(self._features, trials.points[known:])
            self._values[known : self._count], self._num_values = new, self._count
        values, in_base = self._values[: self._count], self._in_base[: self._count]
        recent = trials.is_told & ~in_base
        if recent.sum() > arrays.NUM_RECENT or self._base is None:
            self._gram += values[recent].T @ values[recent]
            in_base |= recent
            self._base = Factor.of(self._gram)
        return arrays.compressed_trials(values, self._base, in_base, trials, maximise=self.maximise)
