"""Salvage: writes the readable part of a damaged memory to a new memory. Internal.

The damaged file is copied first and never changed. The new file gets its name when it is complete and on the
disk.
"""

import contextlib
import os
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.draft import check_new, draft_folder, publish
from jlibo.tune.memory.errors import SQLITE_ERRORS, MemoryFileError
from jlibo.tune.memory.file import LOCK, connect
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TaskRecord, free_name, utc_now
from jlibo.tune.memory.remains import Remains, read_remains
from jlibo.tune.memory.reports import write_curve
from jlibo.tune.memory.spaces import write_spaces
from jlibo.tune.space.space import SearchSpace


@final
@dataclass(frozen=True)
class SalvageReport:
    """What `salvage` wrote, and what it could not write.

    `lost` counts by reason the tasks and trials that are not in the new memory. `notes` lists all other
    differences.
    """

    num_tasks: int
    num_trials: int
    lost: dict[str, int]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing was lost, as far as can be known."""
        return not self.lost and not self.notes


def salvage(
    path: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    space: SearchSpace | None = None,
    maximise: bool | None = None,
    verify: bool = True,
) -> SalvageReport:
    """Write the readable part of the memory at `path` to a new memory at `new`.

    `new` is written completely or not at all, and never replaces a file. The file at `path` is not changed.

    **Arguments:**

    - `path`: a memory, damaged or not.
    - `new`: the path of the new memory; it must not exist.
    - `space`, `maximise`: the search space and direction, used only if those in the file cannot be read.
    - `verify`: leave out rows whose checksum does not match. If False, they are kept if they are valid
      otherwise, as in a file that was edited by hand.

    **Returns:**

    A `SalvageReport`.

    **Raises:**

    - `MemoryFileError`: there is no file at `path`, `new` exists, nothing can be read, or a file cannot be
      copied or written.
    """
    source, target = Path(path), Path(new)
    if not source.is_file():
        raise MemoryFileError(f"there is no file at '{printable(source)}': give the path of a memory.")
    check_new(target)
    try:
        with draft_folder(target) as folder:
            copy = folder / "copy.db"
            _copy(source, copy)
            found = read_remains(copy, space, maximise, verify=verify)
            if found.space is None:
                raise MemoryFileError(
                    f"the search space in '{printable(source)}' cannot be read: give it with --space "
                    "SPACE.json, and --minimise if low scores are good ones."
                )
            draft = folder / "new.db"
            report = _write(draft, found)
            publish(draft, target)
    except OSError as error:
        raise MemoryFileError(
            f"cannot write '{printable(target)}' or read '{printable(source)}' "
            f"({printable(error.strerror or error)}): nothing was written."
        ) from None
    return report


# --- files --------------------------------------------------------------------------------------------------


def _copy(source: Path, copy: Path) -> None:
    """Copy a file and its journal, under a lock that keeps writers out if SQLite can lock the file.

    No transaction of this process may be open, because closing any handle of a file drops the locks that the
    process holds on it.
    """
    with LOCK, contextlib.ExitStack() as stack:
        with contextlib.suppress(*SQLITE_ERRORS):
            database = stack.enter_context(contextlib.closing(connect(str(source.absolute()), mode="ro")))
            database.execute("BEGIN")
            database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        shutil.copyfile(source, copy)
        for end in ("-journal", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{os.path.realpath(source)}{end}", f"{copy}{end}")


# --- writing ------------------------------------------------------------------------------------------------


def _write(draft: Path, found: Remains) -> SalvageReport:
    """Write the remains to a new memory, without owners, so that pending trials can be claimed."""
    assert found.space is not None
    lost, notes, tasks = Counter(found.lost), list(found.notes), dict(found.tasks)
    for trial in found.trials:
        if trial.task_id not in tasks:
            name = f"salvaged task {trial.task_id}"
            tasks[trial.task_id] = TaskRecord(trial.task_id, name, None, "added", 0, utc_now())
            notes.append(f"a task is lost and its trials are in '{name}'")
    num_trials = 0
    with (
        Memory.open(draft, space=found.space, maximise=found.maximise) as memory,
        memory.writing() as database,
    ):
        if len(found.spaces) > 1:
            write_spaces(database, found.spaces, found.space)
        ids: dict[int, int] = {}
        names: set[str] = set()
        for task in sorted(tasks.values(), key=lambda task: task.id):
            name = free_name(task.name, names)
            names.add(name)
            ids[task.id] = rows.insert_task(database, replace(task, name=name))
        seen: set[tuple[int, int]] = set()
        changed: set[int] = set()
        for trial in sorted(found.trials, key=lambda trial: trial.id):
            if (trial.task_id, trial.number) in seen:
                lost["trial: another one has its number"] += 1
                continue
            seen.add((trial.task_id, trial.number))
            trial_id = rows.insert_trial(database, replace(trial, task_id=ids[trial.task_id], owner=None))
            write_curve(database, trial_id, found.curves.get(trial.id, {}))
            num_trials += 1
            if trial.state != "pending":
                changed.add(ids[trial.task_id])
        for task_id in sorted(changed):
            rows.note_change(database, task_id)
    return SalvageReport(len(tasks), num_trials, dict(lost), tuple(notes))
