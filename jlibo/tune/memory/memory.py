"""The memory: every trial of every task, in one SQLite file that outlives the process.

Each write is on the disk before its call returns, so a process that is killed at any moment loses nothing
that was acknowledged. Several processes may use one file at once, and several threads one `Memory`. No arrays
here: plain values go in and come out.

A forked process gets a connection of its own and can read and write trials. A tuner cannot compute there,
because jax's threads are not forked: start processes with multiprocessing's "spawn" method.

| state of a trial | how it comes about |
|---|---|
| pending | it was added; its owner is at work on it, or is gone and the trial can be claimed |
| complete | it was told a finite score |
| failed | it was told no score, NaN or an infinite one, or `MAX_CLAIMS` owners ended while they had it |
"""

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, final

from jlibo.printable import printable
from jlibo.tune.memory import changes as changes
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.errors import MemoryFileError as MemoryFileError
from jlibo.tune.memory.errors import damaged
from jlibo.tune.memory.file import MemoryFile
from jlibo.tune.memory.owner import new_owner as new_owner
from jlibo.tune.memory.owner import owner_is_dead as owner_is_dead
from jlibo.tune.memory.records import (
    DamagedRow,
    Source,
    finite_score,
    seconds_since,
    task_name,
    utc_now,
    whole,
)
from jlibo.tune.memory.records import TaskRecord as TaskRecord
from jlibo.tune.memory.records import TrialRecord as TrialRecord
from jlibo.tune.memory.records import TrialStateError as TrialStateError
from jlibo.tune.space.space import SearchSpace
from jlibo.version import __version__

MAX_CLAIMS = 3
"""A pending trial is failed when so many owners ended without finishing it or giving it back."""


class TrialGivenUpWarning(UserWarning):
    """A pending trial was failed, because every process that worked on it ended."""


class MemoryMismatch(MemoryFileError):
    """A memory of another search space or another direction; the message lists the differences."""


@final
class Memory:
    """Tasks and their trials in one file; made by `Memory.open` or `Memory.open_existing`.

    `path` is where the file is (`None`: in RAM), `space` the search space of all its trials, and `maximise`
    whether a higher score is a better one.
    """

    path: str | None
    space: SearchSpace
    maximise: bool

    def __init__(self, file: MemoryFile):
        self._file = file
        self._known_params: dict[str, dict[str, Any]] = {}
        self.path = file.path
        try:
            with file.reading() as database:
                meta = rows.read_meta(database)
            self.space, self.maximise = rows.read_problem(meta)
            file.set_params_fn(self._read_params)
        except BaseException as error:
            file.close()
            if isinstance(error, DamagedRow):
                raise damaged(file.path, str(error)) from error
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike | None,
        *,
        space: SearchSpace,
        maximise: bool = True,
        file_mode: int = 0o600,
    ) -> "Memory":
        """Open the memory at `path`, or begin one if there is no file or an empty one; `None`: in RAM alone.

        `file_mode` is the permissions of a file that is made: by default only the user may read and write
        it. A file that is there keeps its own, so `chmod` works too, and SQLite's journal gets the same.

        A memory of another space or direction is a `MemoryMismatch`, a file that is no memory or cannot be
        written a `MemoryFileError`; either way the file is unchanged.
        """
        meta = {
            "space": json.dumps(space.spec(), allow_nan=False),
            "maximise": str(int(maximise)),
            "jlibo": __version__,
            "deleted": "0",
        }
        memory = cls(MemoryFile(_full_path(path), new_meta=meta, file_mode=file_mode))
        differences = memory.differences(space=space, maximise=maximise)
        if differences:
            memory.close()
            raise MemoryMismatch(
                f"'{printable(memory.path)}' remembers another problem; ask for that one, or give another "
                "path:\n" + "\n".join(f"  {line}" for line in differences)
            )
        return memory

    @classmethod
    def open_existing(cls, path: str | os.PathLike, *, write: bool = True) -> "Memory":
        """Open a memory with the space it holds; with `write=False`, one that can only be read will do."""
        return cls(MemoryFile(_full_path(path), write=write))

    def close(self) -> None:
        """Close the file; the memory cannot be used afterwards. Closing twice is fine."""
        self._file.close()

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def differences(self, *, space: SearchSpace, maximise: bool) -> list[str]:
        """How a problem differs from the one remembered, a sentence each; empty if it is the same."""
        sentences = space.difference(self.space, here="asked for", there="in the memory")
        if bool(maximise) != self.maximise:
            asked, held = ("maximise", "minimise") if maximise else ("minimise", "maximise")
            sentences.append(f"'{asked}' is asked for, '{held}' is in the memory")
        return sentences

    # --- tasks ----------------------------------------------------------------------------------------------

    def task(
        self, name: str, *, budget: int | None = None, source: Source = "tuner", seed: int = 0
    ) -> TaskRecord:
        """The task of this name, which is made if it is new.

        A budget replaces the one it had; the source and the seed of a task that is there already stay.
        """
        budget = None if budget is None else whole("budget", budget, at_least=1)
        if source not in ("tuner", "added"):
            raise ValueError(f"`source` should be 'tuner' or 'added', but got {source!r}.")
        new = TaskRecord(0, task_name(name), budget, source, whole("seed", seed, at_least=0), utc_now())
        with self._file.reading() as database:
            task = rows.find_task(database, name)
        if task is not None and budget in (None, task.budget):
            return task
        with self._file.writing() as database:
            task = rows.find_task(database, name)  # again: another process may have been faster
            if task is None:
                return replace(new, id=rows.insert_task(database, new))
            rows.update_task(database, task.id, budget=budget or task.budget)
            return replace(task, budget=budget or task.budget)

    def tasks(self) -> list[TaskRecord]:
        """All tasks, in the order in which they were made."""
        with self._file.reading() as database:
            return rows.read_tasks(database)

    def delete_task(self, name: str) -> None:
        """Forget a task and its trials."""
        with self._file.writing() as database:
            task = rows.find_task(database, name)
            if task is None:
                raise TrialStateError(f"there is no task {name!r} in the memory.")
            rows.delete_task(database, task.id)

    # --- reading trials -------------------------------------------------------------------------------------

    def trials(self, task_id: int) -> list[TrialRecord]:
        """A task's trials, by number."""
        with self._file.reading() as database:
            return rows.read_trials(database, "task_id = ?", task_id)

    def trial(self, trial_id: int) -> TrialRecord:
        """The trial with this id; a `TrialStateError` if there is none."""
        with self._file.reading() as database:
            return rows.read_trial(database, trial_id)

    def changed_trials(self, task_id: int, *, after: int, pending: Sequence[int]) -> list[TrialRecord] | None:
        """The trials of a task that a reader does not know yet, by number; None if there is no such task.

        These are the trials with an id above `after`, the largest that the reader knows, and those of
        `pending`, the ids that were pending when it last looked, that are finished by now. Nothing else about
        a trial changes but its owner. The cost does not depend on the number of trials known.
        """
        with self._file.reading() as database:
            return changes.changed_trials(database, task_id, after, pending)

    def score_counts(self, *, excluding: int | None = None) -> dict[int, int]:
        """How many scores each task has, by id, for all tasks but `excluding` that have any."""
        with self._file.reading() as database:
            return changes.score_counts(database, excluding)

    def all_trials(self) -> list[TrialRecord]:
        """The trials of all tasks, by task and number."""
        with self._file.reading() as database:
            return rows.read_trials(database)

    def snapshot(self) -> tuple[list[TaskRecord], list[TrialRecord]]:
        """All tasks and all trials, as they are at one moment."""
        with self._file.reading() as database:
            tasks, trials = rows.read_tasks(database), rows.read_trials(database)
            ids = {task.id for task in tasks}
            for trial in trials:
                if trial.task_id not in ids:  # other programs need not check foreign keys
                    raise DamagedRow(f"trial {trial.id}: its task is missing")
            return tasks, trials

    def revision(self, *, excluding: int | None = None) -> int:
        """A number that grows whenever a trial finishes or a task is deleted, and stays otherwise.

        With `excluding`, the id of a task, what happens in that task does not count: whoever learns from the
        other tasks may keep what was learned as long as the number stays. Ask for it before reading them.
        """
        with self._file.reading() as database:
            return rows.revision(database, excluding)

    # --- writing trials -------------------------------------------------------------------------------------

    def add_trial(
        self,
        task_id: int,
        params: Mapping[str, Any],
        *,
        explored: bool,
        owner: str | None,
        expected_count: int | None = None,
        most: int | None = None,
        after: int | None = None,
        others: Iterable[Mapping[str, Any]] = (),
    ) -> TrialRecord | None:
        """Add a pending trial; None, with nothing added, if a condition does not hold by now.

        **Arguments:**

        - `expected_count`: the task must have exactly so many trials. A caller that chose `params` from the
          trials it saw chooses again when others were faster.
        - `most`: the task must have fewer trials than this.
        - `after`: no trial of the task with an id above this one may have the same parameters. If `params`
          are taken, the first of `others` that is free is used instead.

        The conditions are checked in the transaction that adds the trial.
        """
        first = self.space.validate(params)
        with self._file.writing() as database:
            count, number = rows.count_trials(database, task_id)
            if expected_count not in (None, count) or (most is not None and count >= most):
                return None
            taken = set() if after is None else changes.params_after(database, task_id, after)
            choices = itertools.chain([first], map(self.space.validate, others))
            checked = next((one for one in choices if rows.params_text(one) not in taken), None)
            if checked is None:
                return None
            trial = TrialRecord(
                0, task_id, number, checked, "pending", None, bool(explored), owner, utc_now(), None
            )
            return replace(trial, id=rows.insert_trial(database, trial), claims=int(owner is not None))

    def add_finished(
        self,
        task_id: int,
        finished: Iterable[tuple[Mapping[str, Any], float | None]],
        *,
        explored: bool = False,
    ) -> list[TrialRecord]:
        """Add finished trials, pairs of parameters and score as `tell` takes it: all of them, or none."""
        pairs = [(self.space.validate(params), finite_score(score)) for params, score in finished]
        with self._file.writing() as database:
            _, number = rows.count_trials(database, task_id)
            now, added = utc_now(), []
            for params, score in pairs:
                state = "failed" if score is None else "complete"
                trial = TrialRecord(
                    0, task_id, number + len(added), params, state, score, bool(explored), None, now, now
                )
                added.append(replace(trial, id=rows.insert_trial(database, trial)))
            if added:
                rows.note_change(database, task_id)
            return added

    def claim_pending(
        self,
        task_id: int,
        *,
        owner: str,
        is_dead_fn: Callable[[str, float], bool] = owner_is_dead,
        among: Sequence[int] | None = None,
    ) -> TrialRecord | None:
        """Take over the first pending trial that nobody works on: one without an owner, or with a dead one.

        `is_dead_fn(owner, seconds)` says whether an owner that has had the trial for so many seconds is dead.
        `among` are the ids of the pending trials, if the caller knows them, which saves looking for them.
        A trial on which `MAX_CLAIMS` owners died is not offered again. It is failed, with a
        `TrialGivenUpWarning`.
        """
        with self._file.reading() as database:
            candidates = rows.claimable(database, task_id, owner, among)
        for trial_id, holder, since in candidates:
            if holder is not None and not is_dead_fn(holder, seconds_since(since)):
                continue
            with self._file.writing() as database:
                if not rows.change_owner(database, trial_id, old=holder, new=owner, since=utc_now()):
                    continue
                trial = rows.read_trial(database, trial_id)
                if trial.claims <= MAX_CLAIMS:
                    return trial
                rows.finish_trial(database, trial, None, utc_now())
                (task,) = (task for task in rows.read_tasks(database) if task.id == task_id)
            warnings.warn(
                f"trial {trial.number} of task {task.name!r} is given up and marked as failed: "
                f"{MAX_CLAIMS} processes ended while they worked on it. Its parameters: {trial.params}.",
                TrialGivenUpWarning,
                stacklevel=2,
            )
        return None

    def release(self, owner: str) -> int:
        """Let go of all pending trials of `owner`, for others to claim; returns how many they were."""
        with self._file.writing() as database:
            return rows.release(database, owner)

    def tell(self, trial_id: int, score: float | None) -> TrialRecord:
        """Finish a trial: complete with a finite score, failed with `None`, NaN or an infinite one.

        Telling a finished trial the same again is fine, telling it anything else is a `TrialStateError`.
        """
        score = finite_score(score)
        with self._file.writing() as database:
            trial = rows.read_trial(database, trial_id)
            if trial.state == "pending":
                rows.finish_trial(database, trial, score, utc_now())
                return rows.read_trial(database, trial_id)
        if trial.score != score:
            had = "has failed" if trial.score is None else f"has the score {trial.score!r}"
            told = "that it failed" if score is None else f"the score {score!r}"
            raise TrialStateError(
                f"trial {trial.number} (id {trial.id}) {had} already, so it cannot be told {told}."
            )
        return trial

    def fail(self, trial_id: int) -> TrialRecord:
        """Finish a trial that gave no score."""
        return self.tell(trial_id, None)

    def writing(self) -> AbstractContextManager[rows.MemoryConnection]:
        """One transaction over many rows, for the import of JSON lines."""
        return self._file.writing()

    def _read_params(self, text: str) -> dict[str, Any]:
        """The parameters of a row, checked against the space. The check is the cost, so it is done once."""
        params = self._known_params.get(text)
        if params is None:
            params = self.space.validate(rows.plain_params(text))
            if len(self._known_params) >= 2**16:
                self._known_params.clear()
            self._known_params[text] = params
        return dict(params)


def _full_path(path: str | os.PathLike | None) -> str | None:
    # Made absolute now, so that a later change of the working folder, or a fork, still finds the same file.
    return None if path is None or path == ":memory:" else os.path.abspath(os.fsdecode(path))
