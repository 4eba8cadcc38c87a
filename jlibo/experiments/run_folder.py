"""The folder of a run: which files jlibo wrote, and how a new run replaces an old one atomically.

| file             | what it is                                                                          |
|------------------|-------------------------------------------------------------------------------------|
| `manifest.json`  | which command wrote the folder, and a digest of every file it wrote                 |
| other `FILES`    | the result; see `folder`                                                            |

A folder without a manifest, and a file whose content differs from its digest, belong to the user. Such a
folder is not replaced. Other entries of a run's folder belong to the user too, and are kept when the run is
replaced.

A run is written to a hidden folder next to its target, and the two are then exchanged. A killed process
leaves its hidden folder behind. It held a lock on the folder, so a later run can detect that the process has
ended.
"""

import contextlib
import ctypes
import dataclasses
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from jlibo.files import naming, sync_folder
from jlibo.printable import printable

MANIFEST = "manifest.json"
FILES = (
    *("summary.json", "curves.npz", "figure.png", "figure.pdf", MANIFEST),
    *("regret.npz", "tables.md", "tasks.png", "tasks.pdf", "growth.png", "growth.pdf"),
)
"""The names of all files that jlibo writes to a run's folder."""

FORMAT_VERSION = 1
WRITTEN_BY = "jlibo reproduce"
COMMANDS = (WRITTEN_BY, "jlibo arena")
"""The commands that write such folders. None of them replaces a folder of another."""
_HIDDEN = re.compile(r"\.(?P<run>.+)\.jlibo-(?P<kind>new|old)-[0-9a-f]{12}")
_MAX_MANIFEST = 2**20


class RunFolderError(ValueError):
    """A run must not replace the folder; the message says why and what to do."""


@final
@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: facts about the run, and the SHA-256 of every file."""

    about: Mapping[str, Any]
    files: Mapping[str, str]
    written_by: str = WRITTEN_BY

    def to_bytes(self) -> bytes:
        head = {"written_by": self.written_by, "format_version": FORMAT_VERSION}
        return (json.dumps({**head, "about": self.about, "files": self.files}, indent=2) + "\n").encode()


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None if it has none that jlibo wrote."""
    path = folder / MANIFEST
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > _MAX_MANIFEST:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("written_by") not in COMMANDS:
        return None
    about, files = content.get("about"), content.get("files")
    # A manifest must not claim other files, which would then be removed.
    if not isinstance(about, dict) or not isinstance(files, dict) or not set(files) <= set(FILES):
        return None
    return Manifest(about, files, content["written_by"])


def check_replaceable(target: Path, written_by: str = WRITTEN_BY) -> Manifest | None:
    """Return the manifest of the run at `target`, or None if nothing or an empty folder is there.

    `written_by` is the command that would replace it.

    **Raises:** `RunFolderError` if `target` is not a run's folder, or one of the run's files was changed.
    """
    shown = printable(target)
    elsewhere = "move it away, or give another --out"
    try:
        kind = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(kind):
        what = "a symbolic link" if stat.S_ISLNK(kind) else "not a folder"
        raise RunFolderError(f"'{shown}' is {what} and is not replaced: {elsewhere}.")
    manifest = read_manifest(target)
    if manifest is None or manifest.written_by != written_by:
        first = min((entry.name for entry in target.iterdir()), default=None)
        if first is None:
            return None
        raise RunFolderError(
            f"'{shown}' is not a folder that `{written_by}` wrote (it has '{printable(first)}' and no "
            f"{MANIFEST} of its own) and is not replaced: {elsewhere}."
        )
    for name in manifest.files:
        if not _is_as_written(target / name, manifest):
            raise RunFolderError(
                f"'{printable(target / name)}' was changed after `{written_by}` wrote it "
                f"and is not replaced: {elsewhere}."
            )
    return manifest


def write_run(
    target: Path, files: Mapping[str, bytes], about: Mapping[str, Any], written_by: str = WRITTEN_BY
) -> Manifest | None:
    """Write a run's files to `target` atomically. Returns the manifest of the run that was replaced.

    If the process is killed at any moment, either the old run or the new one is complete.

    **Raises:** `RunFolderError` if something other than a run is at `target`; `OSError` if the files cannot
    be written. In both cases nothing has changed.
    """
    if not set(files) <= set(FILES):
        raise ValueError(f"`files` should be among {', '.join(FILES)}, but got {', '.join(files)}.")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = Manifest(about, digests, written_by)
    with _building(target) as new:
        for name, data in {**files, MANIFEST: manifest.to_bytes()}.items():
            with naming(target / name), open(new / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(new)
        with _lock(target.parent):
            old = check_replaceable(target, written_by)
            _put_in_place(new, target)
            sync_folder(target.parent)
    return old


def clear_leftovers(parent: Path) -> None:
    """Remove hidden folders of killed processes in `parent`, and restore a run that one of them had moved.

    Folders of running processes and files that jlibo did not write are kept.
    """
    with _lock(parent) as is_locked:
        if not is_locked:  # without locks, folders of running processes cannot be recognised
            return
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            found = _HIDDEN.fullmatch(entry.name)
            if found is None or not entry.is_dir(follow_symlinks=False):
                continue
            with _lock(Path(entry.path), wait=False) as is_abandoned, contextlib.suppress(OSError):
                if is_abandoned:
                    _clear(Path(entry.path), parent / found["run"], is_old=found["kind"] == "old")


# --- atomic replacement -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _building(target: Path) -> Iterator[Path]:
    """Yield a new locked hidden folder next to `target`; removed at the end if it is still there."""
    new = _hidden(target, "new")
    with contextlib.ExitStack() as stack:
        # The parent is locked so that no other process sees the folder without its lock, as if abandoned.
        with _lock(target.parent), naming(target):
            os.mkdir(new)
            stack.enter_context(_lock(new))
        number = new.stat().st_ino
        try:
            yield new
        finally:
            with contextlib.suppress(OSError):
                if new.stat().st_ino == number:
                    _remove_files(new, FILES)
                    new.rmdir()


def _put_in_place(new: Path, target: Path) -> None:
    """Move `new` to `target`, where there is nothing, an empty folder, or a run with its manifest."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(new, target)
        return
    os.chmod(new, stat.S_IMODE(target.stat().st_mode))
    if _exchange(new, target):
        _discard(new, target)
        return
    # Two steps if the system has no exchange. `clear_leftovers` repairs a kill between them.
    aside = _hidden(target, "old")
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except OSError:
        os.rename(aside, target)
        raise
    _discard(aside, target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two paths atomically. Returns False if the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), os.fspath(second))


def _discard(old: Path, target: Path) -> None:
    """Remove the files of an old run. The user's entries move to `target`, or stay if the name is taken."""
    manifest = read_manifest(old)
    if manifest is None:
        return
    ours = [name for name in manifest.files if _is_as_written(old / name, manifest)]
    if read_manifest(target) is not None:
        for entry in sorted(old.iterdir()):
            if entry.name not in (*ours, MANIFEST) and not os.path.lexists(target / entry.name):
                os.rename(entry, target / entry.name)
    # The manifest is removed last: it says which files jlibo wrote.
    _remove_files(old, ours)
    if [entry.name for entry in old.iterdir()] == [MANIFEST]:
        _remove_files(old, [MANIFEST])
        old.rmdir()


def _clear(hidden: Path, target: Path, *, is_old: bool) -> None:
    if is_old and not os.path.lexists(target):
        os.rename(hidden, target)
    elif read_manifest(hidden) is not None:
        _discard(hidden, target)
    elif {entry.name for entry in hidden.iterdir()} <= set(FILES):  # killed before the run was complete
        _remove_files(hidden, FILES)
        hidden.rmdir()


def _hidden(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.jlibo-{kind}-{secrets.token_hex(6)}")


def _remove_files(folder: Path, names) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)


def _is_as_written(path: Path, manifest: Manifest) -> bool:
    """Return whether the file matches its digest. A removed file counts as unchanged."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == manifest.files[path.name]
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _lock(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a folder until the end of the block or of the process. Yields whether it is locked."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW if not wait else os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
