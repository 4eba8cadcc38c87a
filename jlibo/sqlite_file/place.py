"""Checks of a path before SQLite opens it. Internal.

A file of another kind must stay unchanged, byte for byte, and SQLite may change a file by opening it.
"""

import os
import sqlite3
import stat
from pathlib import Path

from jlibo.printable import printable
from jlibo.sqlite_file.errors import SQLITE_ERRORS, primary_code
from jlibo.sqlite_file.format import FileFormat


def make_file(path: str, mode: int, form: FileFormat) -> None:
    """Create an empty file, unless another process did so first. Its permissions never exceed `mode`.

    The umask is neither read nor changed, because it is shared by all threads of the process.
    """
    try:
        handle = os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise form.words.not_writable(path, error.strerror or str(error)) from None
    try:
        if mode != 0o600:
            os.chmod(handle if os.chmod in os.supports_fd else path, mode)
    finally:
        os.close(handle)


def check_place(path: str, form: FileFormat, *, create: bool) -> bool:
    """Check what is at `path`, without a lock and without changing it; return False if there is no file."""
    words, place = form.words, form.words.place_of(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise words.error(f"there is no {words.noun} at {place}: give the path of one.") from None
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise words.error(
                f"cannot make {place}, there is no folder '{printable(folder)}': make it, or give another "
                "path."
            ) from None
        return False
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise words.error(f"cannot look at {place} ({why}): give another path.") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file on a disk"
        raise words.error(f"{place} is {kind}: give the path of a file.")
    if status.st_size == 1:  # SQLite treats it as an empty file and would overwrite it
        raise words.not_ours(path, "it is not an SQLite file")
    # An open or interrupted transaction has a journal. The header may then be partly written, and only a
    # reader with a lock sees a consistent state. The size was read before, so that this order is safe.
    if status.st_size > 0 and not os.path.exists(os.path.realpath(path) + "-journal"):
        _look_at_header(path, form)
    return True


def _look_at_header(path: str, form: FileFormat) -> None:
    """Raise for another program's file before SQLite opens it normally, which could remove its log.

    The file is read through SQLite and not with `open`, because closing any file handle drops all POSIX locks
    that the process holds on the file, including those of its SQLite connections.
    """
    try:
        database = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        return  # the regular connection raises the error
    try:
        (application_id,) = database.execute("PRAGMA application_id").fetchone()
    except SQLITE_ERRORS as error:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise form.words.not_ours(path, "it is not an SQLite file") from error
        return  # without a lock, a file that is being written looks damaged
    finally:
        database.close()
    if application_id != form.application_id:
        raise form.words.not_ours(path, "it is an SQLite file of another program")
