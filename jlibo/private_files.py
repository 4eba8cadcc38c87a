"""Private folders and files: only the user can have written them, so their content may be loaded and run.

A folder is private if the user owns it, nobody else may write to it, it is not a symbolic link, and nobody
else can replace it. The same definition holds for files. On systems without such owners (Windows), everything
counts as private.
"""

import os
import stat
from pathlib import Path

from jlibo.printable import printable


class NotPrivate(Exception):
    """Others could have written the folder or file. The message names it and the reason."""


def make_private_folder(path: Path, *, below: Path) -> None:
    """Create the folders from `below` down to `path` with access for the user only, and check existing ones.

    `below` and the folders above it belong to the system or to the user's configuration. They may be links
    and readable by all, but others must not be able to replace their entries.

    **Raises:** `NotPrivate`, or `OSError` if a folder cannot be created.
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

    If others can read the folder, their access is removed.
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
    """Return whether `path` is a regular file that the user owns, regardless of its permissions."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())


def read_private_file(path: Path) -> bytes:
    """Return the content of a private file.

    The open file is checked again, so replacing the name in between has no effect.

    **Raises:** `NotPrivate`, or `OSError` if it cannot be read.
    """
    # Do not follow a link, and do not block on a pipe.
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
    """Raise `NotPrivate` if others can rename entries of `folder` or of a folder above it."""
    if not hasattr(os, "geteuid"):
        return
    for place in (folder, *folder.parents):
        found = place.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise NotPrivate(f"'{printable(place)}' belongs to another user (uid {found.st_uid})")
        # In a folder with the sticky bit, such as /tmp, users can rename only their own entries. The user's
        # own group counts as the user.
        writable = 0o002 if found.st_gid == os.getegid() else 0o022
        if stat.S_IMODE(found.st_mode) & writable and not found.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(found.st_mode)
            raise NotPrivate(f"'{printable(place)}' can be written by others (mode {mode:04o})")
