"""Where the sampler's past tasks come from: nowhere, finished studies, or a memory.

| question          | answer                                                                        |
|-------------------|-------------------------------------------------------------------------------|
| `renew`           | forget what was read: a study begins                                          |
| `check_direction` | an error if the past cannot be set beside the study                           |
| `spaces`          | the search space of every past task, oldest first                             |
| `stamp`           | a pair: whose past it is, and what changes when this past does                |
| `read`            | the past tasks in a space and their trials, and what is wrong with the others |
| `add`             | a trial has finished; what is wrong if it cannot be kept. `explored`: the     |
|                   | numbers of the study's trials that were forced exploration                    |

Studies are read once for each study at hand, not at every trial: other studies that are still under way
teach what they had by then.
"""

import abc
import copy
import dataclasses
import os
from collections.abc import Collection, Sequence
from typing import Any, final

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from jlibo.integrations import optuna_trials as trials_of
from jlibo.integrations.optuna_memory import MemoryLink, own_task
from jlibo.integrations.optuna_space import coded_space, encode, plain_name
from jlibo.integrations.optuna_trials import PastTask
from jlibo.tune.memory import Memory
from jlibo.tune.memory_records import TaskRecord, TrialRecord
from jlibo.tune.space import SearchSpace

Read = tuple[Sequence[TaskRecord], Sequence[TrialRecord], str | None]


class AbstractPast(abc.ABC):
    """Past tasks. Scores are better when higher."""

    @abc.abstractmethod
    def renew(self, study: Study) -> None: ...

    @abc.abstractmethod
    def check_direction(self, *, maximise: bool) -> None: ...

    @abc.abstractmethod
    def spaces(self, study: Study) -> list[SearchSpace]: ...

    @abc.abstractmethod
    def stamp(self, study: Study) -> tuple[Any, Any]: ...

    @abc.abstractmethod
    def read(self, study: Study, space: SearchSpace) -> Read: ...

    @abc.abstractmethod
    def add(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
        *,
        explored: Collection[int],
    ) -> str | None: ...

    @abc.abstractmethod
    def close(self) -> None: ...


@final
class NoPast(AbstractPast):
    """Nothing to learn from."""

    def renew(self, study):
        pass

    def check_direction(self, *, maximise):
        pass

    def spaces(self, study):
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
    """Studies given as they are, by name, or all in a storage; never the study at hand, known by its name."""

    def __init__(self, past_studies: Sequence[Study | str] | None, storage: Any):
        self._given = past_studies
        # One storage for all reading: every URL handed to Optuna opens the database anew.
        self._storage = RDBStorage(storage) if isinstance(storage, str) else storage
        self._tasks: dict[str, list[PastTask]] = {}
        self._version = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tasks": {}}

    def renew(self, study):
        self._tasks.pop(study.study_name, None)

    def check_direction(self, *, maximise):
        pass

    def spaces(self, study):
        return [task.space for task in self._past(study)]

    def stamp(self, study):
        self._past(study)
        return (study.study_name, self._version), None

    def read(self, study, space):
        past = self._past(study)
        same = [task for task in past if task.space == space]
        others = [task for task in past if task.space != space]
        if self._given is None:
            # Nobody named these studies. One without a common parameter is another problem, and no news.
            own = set(map(plain_name, space))
            others = [task for task in others if not own.isdisjoint(map(plain_name, task.space))]
        tasks = [TaskRecord(task.records[0].task_id, task.name, None, "added", 0, "") for task in same]
        return tasks, [record for task in same for record in task.records], _others(others, space)

    def add(self, study, trial, state, values, *, explored):
        return None

    def close(self):
        pass

    def _past(self, study: Study) -> list[PastTask]:
        name = study.study_name
        if name not in self._tasks:
            studies = trials_of.load_studies(self._given, self._storage)
            made = [trials_of.past_task(one, n) for n, one in enumerate(studies) if one.study_name != name]
            self._tasks[name] = [task for task in made if task is not None]
            self._version += 1
        return self._tasks[name]


@final
class MemoryPast(AbstractPast):
    """A memory's tasks; the study at hand is written into it."""

    def __init__(self, memory: str | os.PathLike | Memory):
        self._link = MemoryLink(memory)
        self._own: dict[str, int] = {}

    def renew(self, study):
        self._own.pop(study.study_name, None)

    def check_direction(self, *, maximise):
        self._link.check_direction(maximise=maximise)

    def spaces(self, study):
        memory = self._link.open()
        return [] if memory is None else [memory.space]

    def stamp(self, study):
        own = self._own_id(study)
        return own, self._link.revision(own)

    def read(self, study, space):
        memory = self._link.open()
        if memory is None:
            return [], [], None
        if memory.space != space:
            return [], [], self._mismatch(memory, space)
        return *self._link.past(self._own_id(study)), None

    def add(self, study, trial, state, values, *, explored):
        if state not in trials_of.FINISHED:
            return None
        held = self._link.held()
        trials = [
            _finished(one, state, values) if one.number == trial.number else one
            for one in study.get_trials(deepcopy=False)
        ]
        space = coded_space(trials_of.common_distributions(trials))
        if space is None:
            return None
        sign = trials_of.sign_of(study)
        new = [record for record in trials_of.records(trials, space, sign) if record.state != "pending"]
        if sum(record.state == "complete" for record in new) < 2:
            return None
        memory = self._link.open()
        if memory is not None and memory.space != space:
            return self._mismatch(memory, space)
        title, _ = own_task(study.study_name, held, _params(trials, space))
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
            _, task_id = own_task(name, held, _params(trials, memory.space))
            if task_id is not None:
                self._own[name] = task_id
        return self._own.get(name)

    def _mismatch(self, memory: Memory, space: SearchSpace) -> str:
        differences = space.difference(memory.space, here="in the study", there="in the memory")
        return (
            f"the memory '{self._link.path}' is of another search space; nothing is learned from it or "
            f"written to it:\n" + "\n".join(f"  {line}" for line in differences)
        )


def _others(others: Sequence[PastTask], space: SearchSpace) -> str | None:
    """What to say about past studies that do not count."""
    if not others:
        return None
    names = ", ".join(repr(task.name) for task in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    differences = space.difference(others[-1].space, here="in this study", there="in that one")
    return (
        f"nothing is learned from {names}{more}, whose parameters are others. "
        f"{others[-1].name!r} differs so:\n" + "\n".join(f"  {line}" for line in differences)
    )


def _params(trials: Sequence[FrozenTrial], space: SearchSpace) -> dict[int, Any]:
    """The coded parameters of a study's trials, by number; None where they do not fit in the space."""
    coded = {trial.number: encode(trial.distributions, trial.params) for trial in trials}
    return {number: trials_of.fitting(space, params) for number, params in coded.items()}


def _finished(trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> FrozenTrial:
    """The trial as it will be: Optuna tells samplers of the end before it writes it down."""
    done = copy.copy(trial)
    done.values = values
    done.state = state
    return done
