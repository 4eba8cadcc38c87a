"""The memory: all trials of all tasks, in one SQLite file that outlives the process.

Each write is on the disk before its call returns, so a process that is killed at any moment loses nothing
that was acknowledged. Several processes may use one file at once, and several threads one `Memory`. The
memory takes and returns plain values, not arrays.

A forked process opens its own connection and can read and write trials. A tuner cannot compute there, because
jax's threads are not forked: start processes with multiprocessing's "spawn" method.

| state of a trial | meaning |
|---|---|
| pending | added and not told; its owner is working on it, or has ended and the trial can be claimed |
| complete | told a finite score |
| failed | told no score, NaN or an infinite score, or `MAX_CLAIMS` owners ended while they held it |
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
"""A pending trial is marked as failed once this many owners ended without finishing or releasing it."""


class TrialGivenUpWarning(UserWarning):
    """A pending trial was marked as failed because 3 processes ended while they worked on it."""


class MemoryMismatch(MemoryFileError):
    """A memory has another search space or direction; the message lists the differences."""


@final
class Memory:
    """Tasks and their trials in one SQLite file; made by `Memory.open` or `Memory.open_existing`.

    Each write is on the disk before its call returns. Several processes may use one file at once, and several
    threads one `Memory`. Any method may raise a `MemoryFileError` if the file is damaged, locked for more
    than 30 s, moved, not writable or closed.

    - `path`: the path of the file; None for a memory in RAM.
    - `space`: the search space of all trials.
    - `maximise`: whether a higher score is better.

    ```python
    from jlibo.tune import Float, Memory, SearchSpace

    with Memory.open("memory.db", space=SearchSpace(alpha=Float(0, 1))) as memory:
        task = memory.task("iris")
        trial = memory.add_trial(task.id, {"alpha": 0.5}, explored=False, owner=None)
        memory.tell(trial.id, 0.9)
        assert [trial.score for trial in memory.trials(task.id)] == [0.9]
    ```
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
        """Open the memory at `path`, or create one if the file is missing or empty.

        **Arguments:**

        - `path`: the path of the file; None or `":memory:"` for a memory in RAM.
        - `space`: the search space of all trials.
        - `maximise`: whether a higher score is better.
        - `file_mode`: the permissions of a new file. By default only the user may read and write it. An
          existing file keeps its permissions, so they can be changed with `chmod`. SQLite's journal has the
          permissions of the file.

        **Returns:**

        A `Memory`, which is also a context manager that closes the file.

        **Raises:**

        - `MemoryMismatch`: the memory has another space or direction. The file is unchanged.
        - `MemoryFileError`: the file is not a memory, is damaged or cannot be written. It is unchanged.
        - `ValueError`: `file_mode` does not let the user read and write.
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
        """Open an existing memory with the space and the direction that it holds.

        **Arguments:**

        - `path`: the path of the file.
        - `write`: if False, the file need only be readable.

        **Raises:**

        - `MemoryFileError`: there is no file, or it is not a memory, is damaged, or cannot be written while
          `write` is True.
        """
        return cls(MemoryFile(_full_path(path), write=write))

    def close(self) -> None:
        """Close the file. The memory cannot be used afterwards; closing it again has no effect."""
        self._file.close()

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def differences(self, *, space: SearchSpace, maximise: bool) -> list[str]:
        """Return how a space and a direction differ from the stored ones, as sentences; empty if equal."""
        sentences = space.difference(self.space, here="asked for", there="in the memory")
        if bool(maximise) != self.maximise:
            asked, held = ("maximise", "minimise") if maximise else ("minimise", "maximise")
            sentences.append(f"'{asked}' is asked for, '{held}' is in the memory")
        return sentences

    # --- tasks ----------------------------------------------------------------------------------------------

    def task(
        self, name: str, *, budget: int | None = None, source: Source = "tuner", seed: int = 0
    ) -> TaskRecord:
        """Return the task with this name, which is created if it does not exist.

        **Arguments:**

        - `name`: the name of the task, not empty, at most 4096 characters.
        - `budget`: the number of trials; replaces the stored one. None keeps it.
        - `source`: `"tuner"`, or `"added"` for results from elsewhere. An existing task keeps its source.
        - `seed`: the seed of the task. An existing task keeps its seed.

        **Returns:**

        The `TaskRecord` of the task, with the fields `id`, `name`, `budget`, `source`, `seed` and `created`.

        **Raises:**

        - `ValueError`: an argument has the wrong type or is out of range.
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
            task = rows.find_task(database, name)  # again: another process may have created it meanwhile
            if task is None:
                return replace(new, id=rows.insert_task(database, new))
            rows.update_task(database, task.id, budget=budget or task.budget)
            return replace(task, budget=budget or task.budget)

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks, in the order in which they were created."""
        with self._file.reading() as database:
            return rows.read_tasks(database)

    def delete_task(self, name: str) -> None:
        """Delete a task and its trials.

        **Raises:**

        - `TrialStateError`: there is no task with this name.
        """
        with self._file.writing() as database:
            task = rows.find_task(database, name)
            if task is None:
                raise TrialStateError(f"there is no task {name!r} in the memory.")
            rows.delete_task(database, task.id)

    # --- reading trials -------------------------------------------------------------------------------------

    def trials(self, task_id: int) -> list[TrialRecord]:
        """Return the trials of a task, ordered by number."""
        with self._file.reading() as database:
            return rows.read_trials(database, "task_id = ?", task_id)

    def trial(self, trial_id: int) -> TrialRecord:
        """Return the trial with this id.

        **Raises:**

        - `TrialStateError`: there is no trial with this id.
        """
        with self._file.reading() as database:
            return rows.read_trial(database, trial_id)

    def changed_trials(self, task_id: int, *, after: int, pending: Sequence[int]) -> list[TrialRecord] | None:
        """Return the trials of a task that are new or newly finished, by number.

        Apart from that, only the owner of a trial changes. The cost does not depend on the number of trials
        that the caller already knows.

        **Arguments:**

        - `task_id`: the id of the task.
        - `after`: the largest trial id that the caller knows. Trials with a larger id are returned.
        - `pending`: the ids of the trials that were pending at the last call. Those that have finished since
          are returned.

        **Returns:**

        A list of trials; None if there is no such task.
        """
        with self._file.reading() as database:
            return changes.changed_trials(database, task_id, after, pending)

    def score_counts(self, *, excluding: int | None = None) -> dict[int, int]:
        """Return the number of scores by task id, for the tasks that have any, except `excluding`."""
        with self._file.reading() as database:
            return changes.score_counts(database, excluding)

    def all_trials(self) -> list[TrialRecord]:
        """Return the trials of all tasks, ordered by task and number."""
        with self._file.reading() as database:
            return rows.read_trials(database)

    def snapshot(self) -> tuple[list[TaskRecord], list[TrialRecord]]:
        """Return all tasks and all trials, read in one transaction."""
        with self._file.reading() as database:
            tasks, trials = rows.read_tasks(database), rows.read_trials(database)
            ids = {task.id for task in tasks}
            for trial in trials:
                if trial.task_id not in ids:  # another program may have written without foreign key checks
                    raise DamagedRow(f"trial {trial.id}: its task is missing")
            return tasks, trials

    def revision(self, *, excluding: int | None = None) -> int:
        """Return a counter that grows when a trial finishes or a task is deleted, and at no other time.

        A result learned from the trials stays valid while the counter is the same. Read the counter before
        the trials.

        **Arguments:**

        - `excluding`: the id of a task whose changes do not count, for results learned from the other tasks.
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
        """Add a pending trial, unless one of the given conditions does not hold.

        The conditions are checked in the transaction that adds the trial.

        **Arguments:**

        - `task_id`: the id of the task.
        - `params`: the configuration.
        - `explored`: whether this is a step of forced exploration.
        - `owner`: the owner token of the process that runs the trial; None if any process may claim it.
        - `expected_count`: condition: the task has exactly this many trials. A caller that chose `params`
          from the trials it read chooses again if other processes added trials meanwhile.
        - `most`: condition: the task has fewer trials than this.
        - `after`: condition: no trial of the task with a larger id has the same parameters.
        - `others`: alternatives to `params`; the first one that meets the condition `after` is used if
          `params` does not.

        **Returns:**

        The new trial; None if a condition does not hold, in which case nothing is added.

        **Raises:**

        - `ValueError`: `params` or one of `others` is not a configuration of the space.
        - `TrialStateError`: there is no such task.
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
        """Add finished trials: all of them, or none if there is an error.

        **Arguments:**

        - `task_id`: the id of the task.
        - `finished`: pairs of a configuration and its score, with scores as in `tell`.
        - `explored`: whether these are steps of forced exploration.

        **Returns:**

        The list of new trials.

        **Raises:**

        - `ValueError`: a configuration is not in the space, or a score is not a number.
        - `TrialStateError`: there is no such task.
        """
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
        """Claim the first pending trial that has no owner or whose owner is dead.

        A trial that `MAX_CLAIMS` (3) dead owners have held is not claimed again. It is marked as failed, with
        a `TrialGivenUpWarning`.

        **Arguments:**

        - `task_id`: the id of the task.
        - `owner`: the owner token of the process that claims the trial.
        - `is_dead_fn`: `is_dead_fn(owner, seconds)` returns whether an owner that has held the trial for this
          many seconds is dead.
        - `among`: the ids of the pending trials, if known, which saves a search over the task.

        **Returns:**

        The claimed trial; None if there is none.
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
        """Release all pending trials of `owner`, so that others can claim them; return their number."""
        with self._file.writing() as database:
            return rows.release(database, owner)

    def tell(self, trial_id: int, score: float | None) -> TrialRecord:
        """Finish a trial: as complete with a finite score, as failed with None, NaN or an infinite score.

        Telling a finished trial the same score again has no effect.

        **Arguments:**

        - `trial_id`: the id of the trial.
        - `score`: the score; None, NaN or infinite if the trial failed.

        **Returns:**

        The finished trial.

        **Raises:**

        - `TrialStateError`: there is no such trial, or it has finished with another result.
        - `ValueError`: `score` is not a number.
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
        """Finish a trial as failed; the same as `tell(trial_id, None)`."""
        return self.tell(trial_id, None)

    def writing(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a transaction over many rows, for the import of JSON lines."""
        return self._file.writing()

    def _read_params(self, text: str) -> dict[str, Any]:
        """Return the parameters of a row, checked against the space. Checks are slow, so they are cached."""
        params = self._known_params.get(text)
        if params is None:
            params = self.space.validate(rows.plain_params(text))
            if len(self._known_params) >= 2**16:
                self._known_params.clear()
            self._known_params[text] = params
        return dict(params)


def _full_path(path: str | os.PathLike | None) -> str | None:
    # Absolute, so that the same file is found after a change of the working directory or a fork.
    return None if path is None or path == ":memory:" else os.path.abspath(os.fsdecode(path))
