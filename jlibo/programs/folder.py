"""The folder of stored programs: where it is, whether it is used, who can write to it, and its size.

A stored program is code: a user who can write to the folder can change what jlibo computes, or run anything.
Folders are therefore created with mode 0700 and files with mode 0600. Files that other users own or could
have written are not used, with a warning (`jlibo.private_files`).

| system  | folder                                                  |
|---------|---------------------------------------------------------|
| any     | `$XDG_CACHE_HOME/jlibo`, if the variable is set         |
| macOS   | `~/Library/Caches/jlibo`                                |
| Windows | `%LOCALAPPDATA%\\jlibo`                                  |
| others  | `~/.cache/jlibo`                                        |

The environment variable `JLIBO_CACHE=0` turns all of it off.
"""

import contextlib
import os
import sys
import time
import warnings
from pathlib import Path

from jlibo.files import is_draft
from jlibo.private_files import make_private_folder

SWITCH = "JLIBO_CACHE"
_OFF = ("0", "off", "no", "false")
OLD_DRAFT = 3600.0
"""Seconds after which a draft belongs to a process that was killed."""


class ProgramCacheWarning(UserWarning):
    """Stored programs are not used; the message says why."""


def is_wanted() -> bool:
    """Return whether programs may be stored at all; the environment variable `JLIBO_CACHE=0` forbids it."""
    return os.environ.get(SWITCH, "").strip().lower() not in _OFF


def cache_root() -> Path:
    """Return the folder of the user for the caches of all programs; it may not exist.

    **Raises:** `RuntimeError`: there is no home folder.
    """
    # The XDG specification requires an absolute path and says to ignore others.
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    local = os.environ.get("LOCALAPPDATA", "")
    if sys.platform == "win32" and os.path.isabs(local):
        return Path(local)
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def private_folder(name: str) -> Path:
    """Return the folder `jlibo/name` in the user's cache folder, created and checked.

    **Raises:** `NotPrivate`, or `OSError` or `RuntimeError` if it cannot be created.
    """
    root = cache_root()
    folder = root / "jlibo" / name
    make_private_folder(folder, below=root)
    return folder


def warn_unused(problem: object) -> None:
    """Warn that stored programs are not used."""
    warnings.warn(f"compiled programs on disk are not used: {problem}.", ProgramCacheWarning, stacklevel=3)


def shrink(folder: Path, most_bytes: int) -> None:
    """Remove the files that were not used for the longest time, until a quarter of the limit is free.

    Nothing is removed below the limit, except drafts of processes that were killed. Another process may do
    the same at the same time.
    """
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if is_draft(Path(entry.path)) and time.time() - found.st_mtime > OLD_DRAFT:
                os.unlink(entry.path)
            else:
                files.append((found.st_mtime_ns, found.st_size, entry.path))
    left = sum(size for _, size, _ in files)
    if left <= most_bytes:
        return
    for _, size, path in sorted(files):
        if left <= most_bytes * 3 // 4:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            left -= size
