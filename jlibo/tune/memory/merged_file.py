"""Files merged into one of them, or into a new one, completely or not at all. Internal."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from jlibo.printable import printable
from jlibo.sqlite_file.place import make_file
from jlibo.tune.memory.draft import check_new, draft_folder, publish
from jlibo.tune.memory.errors import MemoryFileError
from jlibo.tune.memory.file import connect
from jlibo.tune.memory.memory import Memory, MergeReport
from jlibo.tune.memory.merge import OnConflict, merge_into
from jlibo.tune.memory.schema import FORMAT

PathLike = str | os.PathLike


def merge_files(
    file: PathLike, others: Sequence[PathLike], new: PathLike | None = None, *, on_conflict: OnConflict
) -> list[MergeReport]:
    """Merge memories into `file`, or into a new memory that begins as a copy of it.

    **Arguments:**

    - `file`: the path of a memory; it is changed only if `new` is None.
    - `others`: the paths of the other memories, which are not changed.
    - `new`: the path of a new memory; it must not exist.
    - `on_conflict`: see `Memory.merge`.

    **Returns:**

    What was added, for each of the others.

    **Raises:**

    - `MemoryFileError`: `new` exists or cannot be written, or a file is not a memory.
    - `ValueError`: see `Memory.merge`.
    """
    if new is None:
        return _merge(file, others, on_conflict, tell=True)
    target = Path(new)
    check_new(target)
    try:
        with draft_folder(target) as folder:
            draft = folder / "new.db"
            _copy(file, draft)
            reports = _merge(draft, others, on_conflict, tell=False)
            publish(draft, target)
    except OSError as error:
        raise MemoryFileError(
            f"cannot write '{printable(target)}' ({printable(error.strerror or error)}): nothing was written."
        ) from None
    with Memory.open_existing(target) as memory:
        memory.tell_changes()
    return reports


def _merge(
    file: PathLike, others: Sequence[PathLike], on_conflict: OnConflict, *, tell: bool
) -> list[MergeReport]:
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(Memory.open_existing(file))
        opened = [stack.enter_context(Memory.open_existing(other, write=False)) for other in others]
        reports = merge_into(memory, opened, on_conflict=on_conflict)
        if tell:
            memory.tell_changes()
    return reports


def _copy(file: PathLike, path: Path) -> None:
    """Write a copy of a memory as of one moment, in the newest format."""
    make_file(str(path), 0o600, FORMAT)
    with (
        Memory.open_existing(file, write=False) as memory,
        memory.reading() as database,
        contextlib.closing(connect(str(path.absolute()))) as copy,
    ):
        database.backup(copy)
