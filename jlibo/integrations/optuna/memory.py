"""Access of the sampler to a memory: it learns from its tasks and adds the study as a task. Internal.

`jlibo.Tuner` and Optuna can thus share one memory, which is seen in the search space of the study
(`Memory.with_space`). A study is written under its name from its second score on, each trial under its
number. If the memory already has a task of that name that is not this study (an earlier run, or a task of a
tuner), the study is written as "name (2)" and learns from the other one.
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.memory import Memory, MemoryMismatch
from jlibo.tune.memory.records import TaskRecord, TrialRecord, negated, utc_now
from jlibo.tune.memory.spaces import make_current
from jlibo.tune.space.space import SearchSpace


@final
class MemoryLink:
    """A memory, given as a path or open. A path is opened on first use."""

    def __init__(self, memory: str | os.PathLike[str] | Memory):
        self._memory = memory if isinstance(memory, Memory) else None
        self.path = memory.path if isinstance(memory, Memory) else os.path.abspath(os.fsdecode(memory))
        self._is_ours = self._memory is None
        self._seen: dict[SearchSpace, Memory] = {}

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise TypeError("a LiBOSampler with a memory in RAM cannot be pickled; give the memory a path.")
        # A database connection cannot be pickled. The unpickled object opens the file again.
        return {**self.__dict__, "_memory": None, "_is_ours": True, "_seen": {}}

    def close(self) -> None:
        """Close the memory if it was opened by this object."""
        if self._memory is not None and self._is_ours:
            self._memory.close()
            self._memory = None
            self._seen = {}

    def open(self) -> Memory | None:
        """Return the memory; None while the file is missing or empty."""
        if self._memory is None and self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.getsize(self.path) > 0:
                    self._memory = Memory.open_existing(self.path)
        return self._memory

    def check_direction(self, *, maximise: bool) -> None:
        """Raise `MemoryMismatch` if the memory has the other direction: its scores are not comparable."""
        memory = self.open()
        if memory is not None and memory.maximise != maximise:
            words = {True: "maximises", False: "minimises"}
            raise MemoryMismatch(
                f"the study {words[maximise]} but the memory '{self.path}' {words[not maximise]}: "
                "give the study that direction, or another `memory`."
            )

    def revision(self, own: int | None) -> int:
        """Return a number that changes when the trials of any task but `own` change."""
        memory = self.open()
        return -1 if memory is None else memory.revision(excluding=own)

    def seen_in(self, space: SearchSpace) -> Memory | None:
        """Return the memory as it is seen in a space; None if it is of another problem.

        The memory exists. It warns if trials do not fit, once.
        """
        memory = self.open()
        assert memory is not None
        if space not in self._seen:
            is_related = any(set(space) & set(other) for other in memory.spaces)
            if not is_related and memory.score_counts():
                return None
            self._seen[space] = memory.with_space(space, is_inferred=True)
        return self._seen[space]

    def past(
        self, own: int | None, space: SearchSpace | None = None
    ) -> tuple[list[TaskRecord], list[TrialRecord]]:
        """Return all tasks but `own` and all trials, with scores signed so that higher is better.

        With a `space`, they are seen in it; there are none if the memory is of another problem.
        """
        memory = self.open()
        if memory is not None and space is not None:
            memory = self.seen_in(space)
        if memory is None:
            return [], []
        tasks, trials = memory.snapshot()
        if not memory.maximise:
            trials = [negated(trial) for trial in trials]
        return [task for task in tasks if task.id != own], trials

    def held(self) -> dict[str, tuple[TaskRecord, list[TrialRecord]]]:
        """Return all tasks by name, with their trials. Call this before reading the study: see `own_task`."""
        memory = self.open()
        if memory is None:
            return {}
        tasks, trials = memory.snapshot()
        by_id: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
        for trial in trials:
            by_id[trial.task_id].append(trial)
        return {task.name: (task, by_id[task.id]) for task in tasks}

    def write(self, name: str, space: SearchSpace, new: Sequence[TrialRecord], *, maximise: bool) -> None:
        """Add those finished trials to the task `name` that it does not have yet; the memory is of `space`.

        In `new`, higher scores are better; they are written with the sign of the study's values.
        """
        if self.open() is None:
            self._memory = Memory.open(self.path, space=space, maximise=maximise)
        memory = self.seen_in(space)
        assert memory is not None
        task = memory.task(name, source="added")
        now = utc_now()
        with memory.writing() as database:
            make_current(database, space, is_told=True)
            there = {trial.number for trial in rows.read_trials(database, "task_id = ?", task.id)}
            missing = [trial for trial in new if trial.number not in there]
            for trial in missing:
                signed = trial if maximise else negated(trial)
                rows.insert_trial(
                    database, dataclasses.replace(signed, task_id=task.id, created=now, finished=now)
                )
            if missing:
                rows.note_change(database, task.id)


def own_task(
    name: str,
    held: Mapping[str, tuple[TaskRecord, list[TrialRecord]]],
    params: Mapping[int, Mapping[str, Any]],
) -> tuple[str, int | None]:
    """Return the name of a study's task in the memory, and its id; None if the task does not exist yet.

    A task belongs to the study if the study has all its trials: the same numbers with the same parameters,
    perhaps without some that are not in the model. `params` are the parameters of the study's trials by
    number. They must be read after `held`. Otherwise a trial that another worker adds in between is missing
    from `params`, and the task is taken for a different one.
    """
    for attempt in itertools.count(1):
        title = name if attempt == 1 else f"{name} ({attempt})"
        if title not in held:
            return title, None
        task, trials = held[title]
        is_same = all(trial.as_written.items() <= params.get(trial.number, {}).items() for trial in trials)
        if task.source == "added" and is_same:
            return title, task.id
    raise AssertionError("unreachable")
