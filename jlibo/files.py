"""Files and folders that are written whole or not at all, and errors that name them."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_DRAFT = ".draft-"


def write_atomically(path: Path, write_fn: Callable[[IO[bytes]], Any], *, mode: int | None = None) -> None:
    """Write a whole file or none: under another name first, and on the disk before it gets its own.

    A process that is killed leaves its draft behind; `is_draft` recognises it.

    **Arguments:**

    - `write_fn`: called with the open file.
    - `mode`: permissions of the file. By default those of the file that is replaced, or else those that the
      system gives to a new file.

    **Raises:** `OSError`, with the name of the file.
    """
    draft = path.with_name(f"{_DRAFT}{path.name[:100]}-{secrets.token_hex(6)}")
    with naming(path):
        if mode is None:
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.stat().st_mode)
        # The system applies the umask. To ask for it would set it for a moment, for all threads.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(draft, flags, 0o666 if mode is None else mode & 0o600)
        try:
            with open(handle, "wb") as file:
                write_fn(file)
                file.flush()
                if mode is not None:
                    os.chmod(draft, mode)
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        sync_folder(path.parent)


def is_draft(path: Path) -> bool:
    """Whether this is what `write_atomically` leaves behind when its process is killed."""
    return path.name.startswith(_DRAFT)


def sync_folder(folder: Path) -> None:
    """Put a folder's new names on the disk, where the system can open a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give the name `path` to an `OSError` of the block that has none, as a full disk's when writing."""
    try:
        yield
    except OSError as error:
        # `filename` of an OSError made without an errno is None too, but is not printed: such errors stay.
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise
