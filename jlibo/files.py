"""Atomic writes of files, and errors that name the file."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_DRAFT = ".draft-"


def write_atomically(path: Path, write_fn: Callable[[IO[bytes]], Any], *, mode: int | None = None) -> None:
    """Write a file atomically: to a draft that is synced to disk and then renamed to `path`.

    A process that is killed leaves its draft behind; `is_draft` recognises it.

    **Arguments:**

    - `path`: the file to write or replace.
    - `write_fn`: called with the open file.
    - `mode`: permissions of the file. By default those of the file that is replaced, or else the system's
      default for new files.

    **Raises:** `OSError`, with the name of the file.
    """
    draft = path.with_name(f"{_DRAFT}{path.name[:100]}-{secrets.token_hex(6)}")
    with naming(path):
        if mode is None:
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.stat().st_mode)
        # The system applies the umask. Reading the umask would change it for a moment, in all threads.
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
    """Return whether `path` is a draft, which `write_atomically` leaves behind if its process is killed."""
    return path.name.startswith(_DRAFT)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, on systems that can open a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Set the file name of an `OSError` from the block that has none, such as the one for a full disk."""
    try:
        yield
    except OSError as error:
        # An OSError without an errno has no `filename` either, but would not print it: leave it unchanged.
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise
