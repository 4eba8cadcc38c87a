"""The sampler's link to a jlibo memory file: it learns from the tasks in it, and adds the study as one.

So `jlibo.Tuner` and Optuna share what they learn. A study is written under its name from its second score
on, each trial under its number. If the memory has a task of that name already that is not this study (an
earlier run, or a tuner's task), the study is written as "name (2)", and the other one teaches.
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.memory import Memory, MemoryMismatch
from jlibo.tune.memory.records import TaskRecord, TrialRecord, utc_now
from jlibo.tune.space.space import SearchSpace


@final
class MemoryLink:
    """A memory by its path or open. One that is only a path is opened when it is first needed."""

    def __init__(self, memory: str | os.PathLike | Memory):
        self._memory = memory if isinstance(memory, Memory) else None
        self.path = memory.path if isinstance(memory, Memory) else os.path.abspath(os.fsdecode(memory))
        self._is_ours = self._memory is None

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise TypeError("a LiBOSampler with a memory in RAM cannot be pickled; give the memory a path.")
        # An open database does not travel: whoever gets this opens the file again.
        return {**self.__dict__, "_memory": None, "_is_ours": True}

    def close(self) -> None:
        """Close the memory if it was opened here."""
        if self._memory is not None and self._is_ours:
            self._memory.close()
            self._memory = None

    def open(self) -> Memory | None:
        """The memory; None as long as there is no file, or an empty one."""
        if self._memory is None and self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.getsize(self.path) > 0:
                    self._memory = Memory.open_existing(self.path)
        return self._memory

    def check_direction(self, *, maximise: bool) -> None:
        """A memory of the other direction is an error: its scores cannot be set beside the study's."""
        memory = self.open()
        if memory is not None and memory.maximise != maximise:
            words = {True: "maximises", False: "minimises"}
            raise MemoryMismatch(
                f"the study {words[maximise]} but the memory '{self.path}' {words[not maximise]}: "
                "give the study that direction, or another `memory`."
            )

    def revision(self, own: int | None) -> int:
        """A number that changes when the tasks but `own` do."""
        memory = self.open()
        return -1 if memory is None else memory.revision(excluding=own)

    def past(self, own: int | None) -> tuple[list[TaskRecord], list[TrialRecord]]:
        """All tasks but `own` and their trials, with scores that are better when higher."""
        memory = self.open()
        if memory is None:
            return [], []
        tasks, trials = memory.snapshot()
        if not memory.maximise:
            trials = [
                trial if trial.score is None else dataclasses.replace(trial, score=-trial.score)
                for trial in trials
            ]
        return [task for task in tasks if task.id != own], trials

    def held(self) -> dict[str, tuple[TaskRecord, list[TrialRecord]]]:
        """All tasks by name, with their trials; read it *before* the study's own trials: see `own_task`."""
        memory = self.open()
        if memory is None:
            return {}
        tasks, trials = memory.snapshot()
        by_id: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
        for trial in trials:
            by_id[trial.task_id].append(trial)
        return {task.name: (task, by_id[task.id]) for task in tasks}

    def write(self, name: str, space: SearchSpace, new: Sequence[TrialRecord], *, maximise: bool) -> None:
        """Add finished trials to the task `name`, those that are not there yet.

        Scores come better when higher, and are written as the study has them.
        """
        memory = self.open()
        if memory is None:
            memory = self._memory = Memory.open(self.path, space=space, maximise=maximise)
        task = memory.task(name, source="added")
        sign, now = 1.0 if maximise else -1.0, utc_now()
        with memory.writing() as database:
            there = {trial.number for trial in rows.read_trials(database, "task_id = ?", task.id)}
            missing = [trial for trial in new if trial.number not in there]
            for trial in missing:
                score = None if trial.score is None else sign * trial.score
                rows.insert_trial(
                    database,
                    dataclasses.replace(trial, task_id=task.id, score=score, created=now, finished=now),
                )
            if missing:
                rows.note_change(database, task.id)


def own_task(
    name: str,
    held: Mapping[str, tuple[TaskRecord, list[TrialRecord]]],
    params: Mapping[int, Mapping[str, Any]],
) -> tuple[str, int | None]:
    """The name of a study's task in the memory, and its id if it is there.

    It is the study's if all its trials are: the same numbers with the same parameters. `params`, the study's
    by number, must have been read after `held`, or another worker's new trial would seem to be a stranger.
    """
    for attempt in itertools.count(1):
        title = name if attempt == 1 else f"{name} ({attempt})"
        if title not in held:
            return title, None
        task, trials = held[title]
        is_same = all(params.get(trial.number) == trial.params for trial in trials)
        if task.source == "added" and is_same:
            return title, task.id
    raise AssertionError("the numbers do not end")
