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
| stopped | stopped before its end, because its reports were worse than those of other trials |

`Memory` is in four modules: `reader` (reading trials), `writer` (adding and finishing trials), `tasks`
(creating, renaming and deleting tasks), and this one (opening a file, its search spaces).
"""

import json
import os
import sys
import warnings
from contextlib import AbstractContextManager, suppress
from typing import final

from jlibo.front_door import front_door
from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import spaces as spaces
from jlibo.tune.memory.errors import MemoryFileError as MemoryFileError
from jlibo.tune.memory.errors import MemoryMismatch as MemoryMismatch
from jlibo.tune.memory.file import MemoryFile, open_file
from jlibo.tune.memory.merge import MergeReport as MergeReport
from jlibo.tune.memory.merge import OnConflict, merge_into
from jlibo.tune.memory.owner import new_owner as new_owner
from jlibo.tune.memory.owner import owner_is_dead as owner_is_dead
from jlibo.tune.memory.records import TaskRecord as TaskRecord
from jlibo.tune.memory.records import TrialRecord as TrialRecord
from jlibo.tune.memory.records import TrialStateError as TrialStateError
from jlibo.tune.memory.spaces import KnownSpace, SpaceChange
from jlibo.tune.memory.spaces import SpaceChangedWarning as SpaceChangedWarning
from jlibo.tune.memory.tasks import AbstractMemoryTasks
from jlibo.tune.memory.writer import TrialGivenUpWarning as TrialGivenUpWarning
from jlibo.tune.space.fitting import fit
from jlibo.tune.space.space import SearchSpace
from jlibo.version import __version__


@final
class Memory(AbstractMemoryTasks):
    """Tasks and their trials in one SQLite file; made by `Memory.open` or `Memory.open_existing`.

    Each write is on the disk before its call returns. Several processes may use one file at once, and several
    threads one `Memory`. Any method may raise a `MemoryFileError` if the file is damaged, locked for more
    than 30 s, moved, not writable or closed.

    - `path`: the path of the file; None for a memory in RAM.
    - `space`: the search space. Trials that were written with another one are seen in this one, as far as
      they fit.
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
    _known_spaces: tuple[KnownSpace, ...]
    _current: SearchSpace
    """The space that was asked for last, in any process."""

    def __init__(self, file: MemoryFile, space: SearchSpace | None = None):
        self._file = file
        self._views: dict[str, rows.View] = {}
        self._own_space = space
        self._checksum = ""  # of the problem as it was last read
        self.path = file.path
        with self.reading():
            pass  # reads the problem

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

        An existing memory may have been used with another search space: with other ranges, scales, steps,
        choices or conditions, with further parameters or without some. Its trials stay in the file as they
        are. Those that fit into `space` teach: each parameter of `space` has its value there, or its
        `default` if the trial does not have it, and values of parameters that are not in `space` are ignored.
        A `SpaceChangedWarning` says once what changed.

        **Arguments:**

        - `path`: the path of the file; None or `":memory:"` for a memory in RAM.
        - `space`: the search space.
        - `maximise`: whether a higher score is better.
        - `file_mode`: the permissions of a new file. By default only the user may read and write it. An
          existing file keeps its permissions, so they can be changed with `chmod`. SQLite's journal has the
          permissions of the file.

        **Returns:**

        A `Memory`, which is also a context manager that closes the file.

        **Raises:**

        - `MemoryMismatch`: the memory has another direction; or trials with a score, but none with a
          parameter of `space`, or none that fits, because a new parameter has no `default`. The file is
          unchanged.
        - `MemoryFileError`: the file is not a memory, is damaged or cannot be written. It is unchanged.
        - `ValueError`: `file_mode` does not let the user read and write.
        """
        meta = {
            "space": json.dumps(space.spec(), allow_nan=False),
            "maximise": str(int(maximise)),
            "jlibo": __version__,
            "deleted": "0",
        }
        file = open_file(_full_path(path), new_meta=meta, file_mode=file_mode)
        try:
            return cls(file, space)._adopted(maximise=bool(maximise))
        except BaseException:
            file.close()
            raise

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
        file = open_file(_full_path(path), write=write)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    @front_door
    def with_space(self, space: SearchSpace, *, is_inferred: bool = False) -> "Memory":
        """Return this memory as it is seen in another search space, as `Memory.open` does for a path.

        Both share the file: closing one closes the other. The result keeps its space, whatever other
        processes ask for.

        **Arguments:**

        - `space`: the search space.
        - `is_inferred`: whether the space is not the user's own, but inferred from trials. It is then no
          error if nothing fits, only trials that do not fit are worth a warning, and the memory keeps the
          space that was asked for last.

        **Raises:**

        - `MemoryMismatch`: as in `Memory.open`.
        """
        if self._own_space == space:
            return self
        other = Memory(self._file, space)
        if self.space == space:
            return other
        return other._adopted(maximise=self.maximise, is_inferred=is_inferred)

    def tell_changes(self) -> None:
        """Warn with a `SpaceChangedWarning` if trials of other search spaces were added, once."""
        with self.reading():
            is_news = spaces.untold(self._known_spaces, self.space) != []
        if is_news:
            with self.writing() as database:
                change = spaces.adopt(database, self.space, self.path)
            self._tell(change, "has trials of another search space")

    def _adopted(self, *, maximise: bool, is_inferred: bool = False) -> "Memory":
        """Make `space` a space of the file, say what changed, and return this memory."""
        if maximise != self.maximise:
            (words,) = self.differences(space=self.space, maximise=maximise)
            raise MemoryMismatch(
                f"'{printable(self.path)}' remembers another problem; ask for that one, or give another "
                f"path: {words}."
            )
        if spaces.untold(self._known_spaces, self.space) == [] and self._current == self.space:
            return self
        with self.writing() as database:
            change = spaces.adopt(database, self.space, self.path, is_inferred=is_inferred)
        self._tell(change, "is used with another search space")
        return self

    def _tell(self, change: SpaceChange | None, words: str) -> None:
        """Warn about a change, and record it afterwards, so that a killed process tells it again."""
        if change is None:
            return
        warnings.warn(
            f"'{printable(self.path)}' {words}:\n{change}",
            SpaceChangedWarning,
            stacklevel=_users_level(),
        )
        with self.writing() as database:
            spaces.mark_told(database, self.space)

    @property
    def spaces(self) -> list[SearchSpace]:
        """All search spaces that the memory was used with, oldest first."""
        with self.reading():
            return [known.space for known in self._known_spaces]

    @front_door
    def is_same_file(self, other: "Memory") -> bool:
        """Return whether both memories are in the same file, or in RAM and share it."""
        if self._file is other._file or self.path is None or other.path is None:
            return self._file is other._file
        with suppress(OSError):  # a file was deleted
            return os.path.samefile(self.path, other.path)
        return False

    def close(self) -> None:
        """Close the file. The memory cannot be used afterwards; closing it again has no effect."""
        self._file.close()

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @front_door
    def merge(
        self, other: "str | os.PathLike[str] | Memory", *, on_conflict: OnConflict = "error"
    ) -> MergeReport:
        """Add all tasks and trials of another memory, in one transaction.

        The trials are written as they are there; those of other search spaces teach as far as they fit into
        this one. A pending trial has no owner here, so that any process may claim it. A task that both
        memories have from a common past, as copies of one file, is joined: trials that are in both are there
        once.

        **Arguments:**

        - `other`: the path of a memory, or an open one. It is not changed.
        - `on_conflict`: what to do with another task of the same name: "error"; "join" adds its trials to the
          task here; "rename" adds it as "name (2)"; "skip" leaves it out.

        **Returns:**

        A `MergeReport`: the numbers of new tasks and trials, and the names of tasks that were not added under
        their own.

        **Raises:**

        - `MemoryMismatch`: the other memory has another direction, or no parameter of this one.
        - `MemoryFileError`: the other file is not a memory or cannot be read.
        - `ValueError`: both memories have different tasks of one name and `on_conflict` is "error"; or
          `other` is this memory. Nothing is changed.

        ```python
        from jlibo.tune import Float, Memory, SearchSpace

        laptop = Memory.open(None, space=SearchSpace(x=Float(0, 1)))
        laptop.task("iris")
        server = Memory.open(None, space=SearchSpace(x=Float(0, 2)))
        server.add_finished(server.task("wine").id, [({"x": 0.5}, 1.0), ({"x": 1.5}, 2.0)])
        report = laptop.merge(server)
        assert (report.num_tasks, report.num_trials) == (1, 2)
        assert [trial.fits for trial in laptop.all_trials()] == [True, False]
        ```
        """
        if isinstance(other, Memory):
            (report,) = merge_into(self, [other], on_conflict=on_conflict)
            self.tell_changes()
            return report
        with Memory.open_existing(other, write=False) as opened:
            return self.merge(opened, on_conflict=on_conflict)

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
        """Replace the search space by one into which every trial that fits now still fits, without a loss.

        For example, by one with a wider range, a default, or further parameters that exist only for values
        that no trial has. Nothing is to be told then. Other processes that have asked for a space keep it.

        **Raises:**

        - `MemoryMismatch`: a trial does not fit, or has a parameter that `space` does not have. Nothing is
          changed.
        """
        with self.writing() as database:
            for trial in rows.read_trials(database):
                seen = fit(space, trial.params).params
                if trial.fits and (seen is None or not set(trial.params) <= set(seen)):
                    raise MemoryMismatch(
                        f"'{printable(self.path)}' cannot have the new search space, because trial "
                        f"{trial.number} of task {trial.task_id} is not in it: {printable(trial.params)}"
                    )
            spaces.make_current(database, space, is_told=True)
        self._own_space = None if self._own_space is None else space
        self._checksum = ""
        with self.reading():
            pass  # reads the space again

    def _prepare(self, database: rows.MemoryConnection) -> None:
        """Read rows in the space of this memory, and the problem again if another process has changed it."""
        database.params_fn = self._view
        if rows.meta_checksum_of(database) == self._checksum:
            return
        meta = rows.read_meta(database)
        self._known_spaces = spaces.read_spaces(meta)
        self._current, self.maximise = rows.read_problem(meta)
        # A memory that was opened without a space has the one that was asked for last.
        self.space = self._current if self._own_space is None else self._own_space
        self._checksum = meta["checksum"]
        self._views.clear()

    # --- transactions ---------------------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a read transaction over many rows, for use with `with`."""
        return self._file.reading(self._prepare)

    def writing(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a transaction over many rows, for the import of JSON lines."""
        return self._file.writing(self._prepare)

    def _view(self, text: str) -> rows.View:
        """Return the parameters of a row in the space of this memory. Checks are slow, so they are cached."""
        view = self._views.get(text)
        if view is None:
            view = spaces.view(self.space, self._known_spaces, rows.plain_params(text))
            if len(self._views) >= 2**16:
                self._views.clear()
            self._views[text] = view
        return view._replace(params=dict(view.params))


def _users_level() -> int:
    """Return the `stacklevel` with which the caller warns about the line of the user, outside of jlibo."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("jlibo."):
        level, frame = level + 1, frame.f_back
    return level


def _full_path(path: str | os.PathLike[str] | None) -> str | None:
    # Absolute, so that the same file is found after a change of the working directory or a fork.
    return None if path is None or path == ":memory:" else os.path.abspath(os.fsdecode(path))
