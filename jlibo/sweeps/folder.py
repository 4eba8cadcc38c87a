"""The folder of a sweep: every finished chunk is a file, so a killed sweep can be resumed.

| file                 | what it is                                                                      |
|----------------------|---------------------------------------------------------------------------------|
| `sweep.json`         | what is computed, and with which versions; a folder holds one sweep only        |
| `chunks/00000.chunk` | one chunk: a line with a checksum, then its arrays                              |
| `result.npz`         | the whole result, once all chunks are finished (`Labelled.load`)                |
| `.lock`              | locked by the process that writes                                               |

Files are written atomically. Their content does not depend on when, in which order or on how many devices it
was computed, so a resumed sweep ends with the same bytes as an uninterrupted one.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import io
import json
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from jlibo import files, npz
from jlibo.printable import described, printable
from jlibo.sweeps import named_file

FORMAT_VERSION = 1
_MAGIC = f"jlibo-chunk {FORMAT_VERSION}"
_KINDS = {
    ".lock": "file",
    "sweep.json": "file",
    "result.npz": "file",
    "summary.csv": "file",
    "chunks": "folder",
}
"""The entries of a sweep folder and their kinds, without the drafts of `files.write_atomically`."""
_OWN_DRAFT = re.compile(r"\.draft-(sweep\.json|result\.npz|summary\.csv|[0-9]{5,}\.chunk)-\w+")
_MAX_MANIFEST = 16 * 2**20
_USER_ERRORS = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""Errors on opening a folder that another path or other permissions would fix."""


class SweepFolderError(ValueError):
    """The folder cannot be used for this sweep; the message says why and what to do.

    For example, it holds another sweep or other files, is in use by another process, or cannot be written.


    """


class SweepStorageError(OSError):
    """A file of the sweep could not be written or read, for example because the disk is full.

    Finished chunks are kept. Once the cause is removed, the same call resumes the sweep.
    """

    @classmethod
    def of(cls, error: OSError, doing: str, folder: Path) -> "SweepStorageError":
        """Return the error to raise instead of `error`, with a message that says how to resume."""
        reason = error.strerror or error
        return cls(
            error.errno,
            f"cannot {doing}: {reason}. Finished chunks in '{printable(folder)}' are kept: put this right "
            "and run the same sweep again to resume",
        )

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class SweepWarning(UserWarning):
    """A problem that the sweep worked around.

    For example, a damaged chunk is computed again, or fewer devices are used than there are.
    """


@final
@dataclasses.dataclass(frozen=True)
class SweepFolder:
    """The folder at `path`, which holds the sweep described by `identity`."""

    path: Path
    identity: Mapping[str, Any]

    @property
    def result_path(self) -> Path:
        return self.path / "result.npz"

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(_as_json(self.identity).encode()).hexdigest()

    def chunk_path(self, number: int) -> Path:
        return self.path / "chunks" / f"{number:05d}.chunk"

    def write_chunk(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a finished chunk, atomically."""
        header = {"identity": self._digest, "chunk": number}
        payload = named_file.to_bytes(header, arrays)
        line = f"{_MAGIC} {hashlib.sha256(payload).hexdigest()}\n".encode()
        path = self.chunk_path(number)
        with storage_errors(f"write '{printable(path)}'", self.path):
            files.write_atomically(path, lambda file: file.write(line + payload))

    def read_chunk(self, number: int, expected: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays of a chunk by name.

        `expected` has the shape and dtype of each array. Raises an `NpzError` if the file is damaged or
        belongs to another sweep or chunk, and a `FileNotFoundError` if there is none.
        """
        path = self.chunk_path(number)
        _check_kind(path, "file")
        num_bytes = sum(spec.size * np.dtype(spec.dtype).itemsize for spec in expected.values())
        # Compression makes incompressible arrays slightly larger, and there are headers.
        most = num_bytes + num_bytes // 8 + 2**20
        with storage_errors(f"read '{printable(path)}'", self.path), open(path, "rb") as file:
            content = file.read(most + 1)
        line, _, payload = content.partition(b"\n")
        if line.decode("ascii", "replace") != f"{_MAGIC} {hashlib.sha256(payload).hexdigest()}":
            raise named_file.NamedFileError("its checksum does not fit")
        header, arrays = named_file.read_arrays(io.BytesIO(payload), max_bytes=most)
        if header != {"identity": self._digest, "chunk": number}:
            raise named_file.NamedFileError("it belongs to another sweep or place")
        found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if found != {name: (tuple(spec.shape), np.dtype(spec.dtype)) for name, spec in expected.items()}:
            raise named_file.NamedFileError("its arrays are not those of the sweep")
        return arrays

    def missing(self, expected: Iterable[tuple[int, Mapping[str, Any]]]) -> list[int]:
        """Return the numbers of those chunks in `expected` that have yet to be computed.

        A corrupt chunk is removed with a `SweepWarning`, and its number is returned.
        """
        answer = []
        for number, specs in expected:
            try:
                self.read_chunk(number, specs)
            except FileNotFoundError:
                answer.append(number)
            except npz.NpzError as error:
                path = self.chunk_path(number)
                warnings.warn(
                    f"'{printable(path)}' is corrupt: {error}. The chunk is computed anew.",
                    SweepWarning,
                    stacklevel=2,
                )
                with storage_errors(f"remove '{printable(path)}'", self.path):
                    path.unlink()
                answer.append(number)
        return answer


@contextlib.contextmanager
def storage_errors(doing: str, folder: Path) -> Iterator[None]:
    """Replace an `OSError` of the block by a `SweepStorageError`, except a `FileNotFoundError`."""
    try:
        yield
    except (FileNotFoundError, SweepStorageError):
        raise
    except OSError as error:
        raise SweepStorageError.of(error, doing, folder) from None


def stored_chunk(path: Path, identity: Mapping[str, Any]) -> int | None:
    """Return the stored chunk size, which is reused on resume, or None in a new folder."""
    found = _read_manifest(path, _manifest(identity))
    if found is None:
        return None
    chunk = found.get("chunk")
    if isinstance(chunk, bool) or not isinstance(chunk, int) or not 1 <= chunk < 2**31:
        raise SweepFolderError(
            f"'{printable(path / 'sweep.json')}' is not what a sweep wrote: 'chunk' should be a whole "
            f"number of at least 1, but got {described(chunk)}. Give another folder."
        )
    return chunk


def open_folder(path: Path, identity: Mapping[str, Any]) -> SweepFolder:
    """Return the folder of a new or resumed sweep, and write its `sweep.json`. The caller holds `locked`.

    Drafts of killed processes are removed. Raises a `SweepFolderError` if the folder holds another sweep.
    """
    text = _manifest(identity)
    identity = json.loads(text)
    found = _read_manifest(path, text)
    if found is not None and found != identity:
        differences = _differences(found, identity)
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise SweepFolderError(
            f"'{printable(path)}' holds another sweep: {'; '.join(differences[:8])}{more}. "
            "Give another folder, or remove this one to begin anew."
        )
    with storage_errors(f"write to '{printable(path)}'", path):
        (path / "chunks").mkdir(exist_ok=True)
        for folder in (path, path / "chunks"):
            for entry in os.scandir(folder):
                if _OWN_DRAFT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
        if found is None:
            files.write_atomically(path / "sweep.json", lambda file: file.write(text.encode()))
    return SweepFolder(path, identity)


def join_folder(path: Path, identity: Mapping[str, Any]) -> SweepFolder:
    """Return the folder that the first process of the same sweep has opened."""
    return SweepFolder(path, json.loads(_manifest(identity)))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create the folder and hold its lock until the end of the block or of this process.

    Raises a `SweepFolderError` if another process holds the lock, or if the folder has entries that no sweep
    wrote. These are checked first, and nothing in such a folder is changed.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        _check_entries(path)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        file = open(os.open(path / ".lock", flags, 0o666), "r+b")  # noqa: SIM115  (closed below, with the lock)
    except OSError as error:
        if error.errno not in _USER_ERRORS:
            raise SweepStorageError.of(error, f"write to '{printable(path)}'", path) from None
        raise SweepFolderError(f"cannot write to '{printable(path)}': {error.strerror or error}.") from None
    with file:
        try:
            import fcntl
        except ImportError:  # an operating system without these locks
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SweepFolderError(
                f"'{printable(path)}' is in use by another process: wait for its end."
            ) from None
        except OSError:  # a file system without these locks
            pass
        yield


def _check_entries(path: Path) -> None:
    """Raise a `SweepFolderError` if an entry was not written by a sweep or is of the wrong kind.

    Symbolic links are refused: writing to or removing one would affect files elsewhere.
    """
    entries = [entry.name for entry in os.scandir(path) if not _OWN_DRAFT.fullmatch(entry.name)]
    strangers = sorted(set(entries) - {".lock", "chunks"})
    if strangers and "sweep.json" not in entries:
        raise SweepFolderError(
            f"'{printable(path)}' is not the folder of a sweep and is not empty "
            f"(it has '{printable(strangers[0])}'): give another folder."
        )
    for name, kind in _KINDS.items():
        _check_kind(path / name, kind)


def _check_kind(path: Path, kind: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    is_kind = stat.S_ISDIR if kind == "folder" else stat.S_ISREG
    if not is_kind(mode):
        names = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a symbolic link"}
        found = names.get(stat.S_IFMT(mode), "a special file")
        raise SweepFolderError(
            f"'{printable(path)}' should be a {kind} that a sweep wrote, but is {found}: give another folder."
        )


def _manifest(identity: Mapping[str, Any]) -> str:
    whole = {"format_version": FORMAT_VERSION, **identity}
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _read_manifest(path: Path, own: str) -> dict[str, Any] | None:
    """Return the content of `sweep.json`, or None if there is none. `own` is the text of this sweep."""
    path = path / "sweep.json"
    max_bytes = max(_MAX_MANIFEST, 2 * len(own))
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError("it is too large")
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SweepFolderError(
            f"'{printable(path)}' cannot be read ({printable(error)}): give another folder, or remove it."
        ) from None
    return found


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Return one phrase per difference. The program is last, because most other changes change it too."""
    if isinstance(old, dict) and isinstance(new, dict):
        answer = []
        for key in sorted({*old, *new}, key=lambda key: (key == "program", key)):
            place = f"{name}.{printable(key)}" if name else printable(key)
            answer += _differences(old.get(key), new.get(key), place)
        return answer
    if old == new:
        return []
    if name == "program":
        return ["the function computes something else"]
    return [f"{name} was {_short(old)} and is {_short(new)} now"]


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        text = described(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
