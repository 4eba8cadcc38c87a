"""Folders and files that nobody but the user could have written: what may be loaded and run.

A folder is private if the user owns it, nobody else may write to it, it is no symbolic link, and nobody else
can put another in its place. A file is private if the same holds for it. Where the system has no such owners
(Windows), everything counts as private.
"""

import os
import stat
from pathlib import Path

from jlibo.printable import printable


class NotPrivate(Exception):
    """A folder or file that others could have written; the message names it and says why."""


def make_private_folder(path: Path, *, below: Path) -> None:
    """Make the folders from `below` down to `path`, for the user alone, and check all that are there.

    `below` itself and what is above it belong to the system or the user's set-up: they may be links and
    readable by all, but others must not be able to replace what is in them.

    **Raises:** `NotPrivate`, or `OSError` if a folder cannot be made.
    """
    missing = [folder for folder in (below, *below.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    _check_above(below.resolve())
    names = path.relative_to(below).parts
    for end in range(1, len(names) + 1):
        folder = below.joinpath(*names[:end])
        if not os.path.lexists(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        check_private_folder(folder)


def check_private_folder(path: Path) -> None:
    """Raise `NotPrivate` unless `path` is a folder of the user that nobody else can write to.

    A folder that others can read is closed to them.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise NotPrivate(f"'{printable(path)}' is a symbolic link")
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate(f"'{printable(path)}' is not a folder")
    _check_owner_and_mode(path, found)
    if hasattr(os, "geteuid") and stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)


def check_private_file(path: Path) -> None:
    """Raise `NotPrivate` unless `path` is a regular file of the user that nobody else can write to."""
    _check_file(path, path.lstat())


def is_own_file(path: Path) -> bool:
    """Whether `path` is a regular file that the user owns, whoever may write to it."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())


def read_private_file(path: Path) -> bytes:
    """The content of a private file. What is checked is what is read, whatever happens to the name.

    **Raises:** `NotPrivate`, or `OSError` if it cannot be read.
    """
    # A link is not followed, and a pipe is not waited for.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    check_private_file(path)
    handle = os.open(path, flags)
    with open(handle, "rb") as file:
        _check_file(path, os.fstat(handle))
        return file.read()


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise NotPrivate(f"'{printable(path)}' is {what}")
    _check_owner_and_mode(path, found)


def _check_owner_and_mode(path: Path, found: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"'{printable(path)}' belongs to another user (uid {found.st_uid})")
    if stat.S_IMODE(found.st_mode) & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivate(f"'{printable(path)}' can be written by others (mode {mode:04o})")


def _check_above(folder: Path) -> None:
    """Nobody else may be able to rename what is in `folder` or above it."""
    if not hasattr(os, "geteuid"):
        return
    for place in (folder, *folder.parents):
        found = place.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise NotPrivate(f"'{printable(place)}' belongs to another user (uid {found.st_uid})")
        # In a folder with the sticky bit, as /tmp, one can rename one's own entries alone. A user's own group
        # is the user.
        writable = 0o002 if found.st_gid == os.getegid() else 0o022
        if stat.S_IMODE(found.st_mode) & writable and not found.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(found.st_mode)
            raise NotPrivate(f"'{printable(place)}' can be written by others (mode {mode:04o})")
