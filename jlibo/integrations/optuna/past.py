"""Sources of the sampler's past tasks: none, finished studies, or a memory. Internal.

| class         | past tasks                                                                    |
|---------------|-------------------------------------------------------------------------------|
| `NoPast`      | none                                                                          |
| `StudiesPast` | Optuna studies, given as objects, by name, or all studies of a storage        |
| `MemoryPast`  | the tasks of a jlibo memory; the running study is added to it                 |

Past studies are read once per running study and not at every trial. A past study that is still running
contributes the trials that it had at that time.
"""

import abc
import contextlib
import copy
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jlibo.integrations.optuna import trials as trials_of
from jlibo.integrations.optuna.branches import choose_space
from jlibo.integrations.optuna.memory import MemoryLink, own_task
from jlibo.integrations.optuna.space import encode, plain_name, with_defaults
from jlibo.integrations.optuna.trials import PastTask
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.memory.spaces import is_in
from jlibo.tune.space.fitting import fit
from jlibo.tune.space.parameters import NO_DEFAULT, conditioned, defaulted
from jlibo.tune.space.space import SearchSpace

Read = tuple[Sequence[TaskRecord], Sequence[TrialRecord], str | None]


class AbstractPast(abc.ABC):
    """Source of past tasks. Scores are signed so that higher is better."""

    @abc.abstractmethod
    def renew(self, study: Study) -> None:
        """Discard what was read for `study`, because it starts."""

    @abc.abstractmethod
    def check_direction(self, *, maximise: bool) -> None:
        """Raise an error if the past scores are not comparable with a study of this direction."""

    @abc.abstractmethod
    def tasks(self, study: Study) -> Sequence[PastTask]:
        """Return the past tasks, oldest first."""

    @abc.abstractmethod
    def stamp(self, study: Study) -> tuple[Any, Any]:
        """Return a pair that identifies the past tasks of `study`, and their current version."""

    @abc.abstractmethod
    def read(self, study: Study, space: SearchSpace) -> Read:
        """Return the past tasks in this space, their trials, and a message about the others if any."""

    @abc.abstractmethod
    def add(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
        *,
        explored: Collection[int],
    ) -> str | None:
        """Add a finished trial to the source; return a message if it cannot be added.

        `explored` are the numbers of the study's trials that were forced exploration.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the resources that this object opened."""


@final
class NoPast(AbstractPast):
    """No past tasks."""

    def renew(self, study):
        pass

    def check_direction(self, *, maximise):
        pass

    def tasks(self, study):
        return []

    def stamp(self, study):
        return None, None

    def read(self, study, space):
        return [], [], None

    def add(self, study, trial, state, values, *, explored):
        return None

    def close(self):
        pass


@final
class StudiesPast(AbstractPast):
    """Studies given as objects, by name, or all of a storage, except the study with the same name."""

    def __init__(self, past_studies: Sequence[Study | str] | None, storage: Any, defaults: Mapping[str, Any]):
        self._given = past_studies
        self._defaults = defaults
        # One storage object for all reads, because Optuna opens the database again for every URL.
        self._storage = RDBStorage(storage) if isinstance(storage, str) else storage
        self._tasks: dict[str, list[PastTask]] = {}
        self._version = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tasks": {}}

    def renew(self, study):
        self._tasks.pop(study.study_name, None)

    def check_direction(self, *, maximise):
        pass

    def tasks(self, study):
        name = study.study_name
        if name not in self._tasks:
            studies = trials_of.load_studies(self._given, self._storage)
            made = [trials_of.past_task(one, n) for n, one in enumerate(studies) if one.study_name != name]
            self._tasks[name] = [task for task in made if task is not None]
            self._version += 1
        return self._tasks[name]

    def stamp(self, study):
        self.tasks(study)
        return (study.study_name, self._version), None

    def read(self, study, space):
        past = self.tasks(study)
        space = with_defaults(space, self._defaults)
        trials = [_seen_in(space, one) for task in past for one in task.records]
        used = {trial.task_id for trial in trials if trial.fits}
        tasks = [TaskRecord(task.task_id, task.name, None, "added", 0, "") for task in past]
        unused = {trial.task_id for trial in trials if not trial.fits and trial.state == "complete"}
        others = [task for task in past if task.task_id in unused]
        if self._given is None:
            # The user did not name these studies. One without a common parameter is unrelated: no warning.
            own = set(map(plain_name, space))
            others = [task for task in others if not own.isdisjoint(map(plain_name, task.space))]
        return [task for task in tasks if task.id in used], trials, _others(others, space, used)

    def add(self, study, trial, state, values, *, explored):
        return None

    def close(self):
        pass


@final
class MemoryPast(AbstractPast):
    """The tasks of a memory; the running study is written to it."""

    def __init__(self, memory: str | os.PathLike[str] | Memory, defaults: Mapping[str, Any]):
        self._link = MemoryLink(memory)
        self._defaults = defaults
        self._own: dict[str, int] = {}
        self._held: tuple[Any, list[PastTask]] | None = None

    def renew(self, study):
        self._own.pop(study.study_name, None)

    def check_direction(self, *, maximise):
        self._link.check_direction(maximise=maximise)

    def tasks(self, study):
        memory = self._link.open()
        if memory is None:
            return []
        others = [space for space in memory.spaces if space != memory.space]
        spaces = (*others, memory.space)  # the one that was asked for last comes last
        stamp = (*self.stamp(study), spaces)
        if self._held is None or self._held[0] != stamp:
            self._held = stamp, _memory_tasks(spaces, *self._link.past(self._own_id(study)))
        return self._held[1]

    def stamp(self, study):
        own = self._own_id(study)
        return own, self._link.revision(own)

    def read(self, study, space):
        memory = self._link.open()
        if memory is None:
            return [], [], None
        space = self._with_defaults(memory, space)
        if self._link.seen_in(space) is None:
            return [], [], self._mismatch(memory, space)
        return *self._link.past(self._own_id(study), space), None

    def add(self, study, trial, state, values, *, explored):
        if state not in trials_of.FINISHED:
            return None
        held = self._link.held()
        trials = [
            _finished(one, state, values) if one.number == trial.number else one
            for one in study.get_trials(deepcopy=False)
        ]
        past = self.tasks(study)
        space = choose_space(trials_of.configs_of(trials), [(task.space, task.configs) for task in past])
        if space is None:
            return None
        sign = trials_of.sign_of(study)
        new = [record for record in trials_of.records(trials, space, sign) if record.state != "pending"]
        if sum(record.state == "complete" for record in new) < 2:
            return None
        memory = self._link.open()
        space = self._with_defaults(memory, space)
        if memory is not None and self._link.seen_in(space) is None:
            return self._mismatch(memory, space)
        title, _ = own_task(study.study_name, held, _params(trials))
        new = [dataclasses.replace(record, explored=record.number in explored) for record in new]
        self._link.write(title, space, new, maximise=sign > 0)
        return None

    def close(self):
        self._link.close()

    def _own_id(self, study: Study) -> int | None:
        name, memory = study.study_name, self._link.open()
        if name not in self._own and memory is not None:
            held = self._link.held()
            trials = trials_of.whole_study(study).get_trials(deepcopy=False)
            _, task_id = own_task(name, held, _params(trials))
            if task_id is not None:
                self._own[name] = task_id
        return self._own.get(name)

    def _with_defaults(self, memory: Memory | None, space: SearchSpace) -> SearchSpace:
        """Return a space with the defaults of this sampler, and those that a tuner gave the memory."""
        found = dict(with_defaults(space, self._defaults))
        for held in () if memory is None else memory.spaces:  # the newest default is the last
            for name in set(held) & set(found):
                if held[name].has_default and plain_name(name) not in self._defaults:
                    with contextlib.suppress(ValueError):  # it is not in the range of the study
                        found[name] = defaulted(found[name], held[name].default)
        return SearchSpace(found)

    def _mismatch(self, memory: Memory, space: SearchSpace) -> str:
        differences = space.difference(memory.space, here="in the study", there="in the memory")
        return (
            f"the memory '{self._link.path}' has no parameter of the study; nothing is learned from it or "
            f"written to it:\n" + "\n".join(f"  {line}" for line in differences)
        )


def _memory_tasks(
    spaces: Sequence[SearchSpace], tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord]
) -> list[PastTask]:
    """Return the tasks of a memory, one for each space in which trials of a task were written.

    One without a trial stands for the space of a memory without tasks.
    """
    # Optuna's distributions have no defaults.
    bare = {space: _without_defaults(space) for space in spaces}
    kinds = {space: {name: conditioned(one, None) for name, one in bare[space].items()} for space in spaces}
    names = {task.id: task.name for task in tasks}
    own: dict[tuple[SearchSpace, int], list[TrialRecord]] = {}
    for trial in trials:
        if trial.task_id in names:
            space = next((space for space in reversed(spaces) if is_in(space, trial.as_written)), None)
            if space is not None:  # another process may have added a space since these were read
                own.setdefault((space, trial.task_id), []).append(trial)
    found = []
    for (space, task_id), some in sorted(own.items(), key=lambda item: spaces.index(item[0][0])):
        complete = [trial.as_written for trial in some if trial.state == "complete"]
        configs = [
            {name: (kinds[space][name], value) for name, value in params.items()} for params in complete
        ]
        found.append(PastTask(task_id, names[task_id], bare[space], tuple(configs), tuple(some)))
    return found or [PastTask(0, "", bare[spaces[-1]], (), ())]


def _without_defaults(space: SearchSpace) -> SearchSpace:
    return SearchSpace({name: defaulted(parameter, NO_DEFAULT) for name, parameter in space.items()})


def _seen_in(space: SearchSpace, trial: TrialRecord) -> TrialRecord:
    """Return a trial of another study as it is seen in a space."""
    params = fit(space, trial.params).params
    return dataclasses.replace(trial, fits=params is not None, params=params or trial.params)


def _others(others: Sequence[PastTask], space: SearchSpace, used: Collection[int]) -> str | None:
    """Return a message about past studies of which not all trials are used; None if there are none."""
    if not others:
        return None
    names = ", ".join(repr(task.name) for task in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    what = "only what fits" if any(task.task_id in used for task in others) else "nothing"
    differences = space.difference(others[-1].space, here="in this study", there="in that one")
    return (
        f"{what} is learned from {names}{more}, because their parameters differ. "
        f"Differences to {others[-1].name!r}:\n" + "\n".join(f"  {line}" for line in differences)
    )


def _params(trials: Sequence[FrozenTrial]) -> dict[int, Any]:
    """Return the coded parameters of a study's trials by number."""
    return {trial.number: encode(trial.distributions, trial.params) for trial in trials}


def _finished(trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> FrozenTrial:
    """Return the trial in its final state: Optuna calls `after_trial` before it stores that state."""
    done = copy.copy(trial)
    done.values = values
    done.state = state
    return done
