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

`Memory` is in three modules: `reader` (reading trials), `writer` (adding and finishing trials), and this one
(opening a file, tasks).
"""

import json
import os
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, final

from jlibo.front_door import front_door
from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import schema as schema
from jlibo.tune.memory.errors import MemoryFileError as MemoryFileError
from jlibo.tune.memory.errors import damaged
from jlibo.tune.memory.file import MemoryFile
from jlibo.tune.memory.owner import new_owner as new_owner
from jlibo.tune.memory.owner import owner_is_dead as owner_is_dead
from jlibo.tune.memory.records import DamagedRow, Source, task_name, utc_now, whole
from jlibo.tune.memory.records import TaskRecord as TaskRecord
from jlibo.tune.memory.records import TrialRecord as TrialRecord
from jlibo.tune.memory.records import TrialStateError as TrialStateError
from jlibo.tune.memory.writer import AbstractMemoryWriter
from jlibo.tune.memory.writer import TrialGivenUpWarning as TrialGivenUpWarning
from jlibo.tune.space.space import SearchSpace
from jlibo.version import __version__


class MemoryMismatch(MemoryFileError):
    """A memory has another search space or direction; the message lists the differences."""


@final
class Memory(AbstractMemoryWriter):
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
            self._meta_checksum = meta["checksum"]
            file.set_params_fn(self._read_params)
            file.set_begin_fn(self._read_problem_again)
        except BaseException as error:
            file.close()
            if isinstance(error, DamagedRow):
                raise damaged(file.path, str(error)) from error
            raise

    @classmethod
    @front_door
    def open(
        cls,
        path: str | os.PathLike[str] | None,
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
    @front_door
    def open_existing(cls, path: str | os.PathLike[str], *, write: bool = True) -> "Memory":
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

    @front_door
    def differences(self, *, space: SearchSpace, maximise: bool) -> list[str]:
        """Return how a space and a direction differ from the stored ones, as sentences; empty if equal."""
        sentences = space.difference(self.space, here="asked for", there="in the memory")
        if bool(maximise) != self.maximise:
            asked, held = ("maximise", "minimise") if maximise else ("minimise", "maximise")
            sentences.append(f"'{asked}' is asked for, '{held}' is in the memory")
        return sentences

    @front_door
    def widen(self, space: SearchSpace) -> None:
        """Replace the search space by one in which every stored trial is a configuration too.

        For example, by one with further parameters that exist only for values that no trial has. Other
        processes that have the memory open see the new space from their next call on.

        **Raises:**

        - `MemoryMismatch`: a stored trial is not a configuration of `space`. Nothing is changed.
        """
        with self.writing() as database:
            for trial in rows.read_trials(database):
                try:
                    space.validate(trial.params)
                except ValueError as error:
                    raise MemoryMismatch(
                        f"'{printable(self.path)}' cannot have the new search space, because trial "
                        f"{trial.number} of task {trial.task_id} is not in it: {printable(error)}"
                    ) from error
            schema.replace_space(database, json.dumps(space.spec(), allow_nan=False))
        with self.reading():
            pass  # reads the space again

    def _read_problem_again(self, database: rows.MemoryConnection) -> None:
        """Read the search space again if another process has widened it."""
        if rows.meta_checksum_of(database) != self._meta_checksum:
            meta = rows.read_meta(database)
            self.space, self.maximise = rows.read_problem(meta)
            self._meta_checksum = meta["checksum"]
            self._known_params.clear()

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
        with self.reading() as database:
            task = rows.find_task(database, name)
        if task is not None and budget in (None, task.budget):
            return task
        with self.writing() as database:
            task = rows.find_task(database, name)  # again: another process may have created it meanwhile
            if task is None:
                return replace(new, id=rows.insert_task(database, new))
            rows.update_task(database, task.id, budget=budget or task.budget)
            return replace(task, budget=budget or task.budget)

    @front_door
    def delete_task(self, name: str) -> None:
        """Delete a task and its trials.

        **Raises:**

        - `TrialStateError`: there is no task with this name.
        """
        with self.writing() as database:
            task = rows.find_task(database, name)
            if task is None:
                raise TrialStateError(f"there is no task {name!r} in the memory.")
            rows.delete_task(database, task.id)

    # --- transactions ---------------------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a read transaction over many rows, for use with `with`."""
        return self._file.reading()

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


def _full_path(path: str | os.PathLike[str] | None) -> str | None:
    # Absolute, so that the same file is found after a change of the working directory or a fork.
    return None if path is None or path == ":memory:" else os.path.abspath(os.fsdecode(path))
