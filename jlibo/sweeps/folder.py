"""A sweep on disk: every finished chunk is a file, so that a killed sweep goes on where it was.

| file                 | what it is                                                                      |
|----------------------|---------------------------------------------------------------------------------|
| `sweep.json`         | what is being computed, by which versions: a folder takes one sweep and no other |
| `chunks/00000.chunk` | one chunk: a line with a checksum, then its arrays                              |
| `result.npz`         | the whole, once it is there (`Labelled.load`)                                   |
| `.lock`              | held by the process that writes                                                 |

Files are written whole or not at all. Nothing in them depends on when, in which order or on how many devices
they were computed, so that a sweep that was interrupted ends with the bytes of one that was not.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jlibo.sweeps import named_file

FORMAT_VERSION = 1
_MAGIC = f"jlibo-chunk {FORMAT_VERSION}"


class SweepFolderError(ValueError):
    """The folder cannot take this sweep; the message says why, and what would do."""


class SweepWarning(UserWarning):
    """Something was wrong and has been put right."""


@dataclasses.dataclass(frozen=True)
class SweepFolder:
    """A folder that holds a sweep of this identity."""

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

    def write_chunk(self, number: int, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
        """Keep a finished chunk."""
        header = {"identity": self._digest, "chunk": number}
        payload = named_file.to_bytes(header, dict(zip(names, arrays, strict=True)))
        line = f"{_MAGIC} {hashlib.sha256(payload).hexdigest()}\n".encode()
        named_file.write_atomically(self.chunk_path(number), lambda file: file.write(line + payload))

    def read_chunk(self, number: int, names: Sequence[str]) -> list[np.ndarray]:
        """A chunk's arrays; raises `NamedFileError` if the file is not what was written."""
        line, _, payload = self.chunk_path(number).read_bytes().partition(b"\n")
        if line.decode("ascii", "replace") != f"{_MAGIC} {hashlib.sha256(payload).hexdigest()}":
            raise named_file.NamedFileError("its checksum does not fit")
        header, arrays = named_file.read_arrays(io.BytesIO(payload))
        if header != {"identity": self._digest, "chunk": number} or set(arrays) != set(names):
            raise named_file.NamedFileError("it belongs to another sweep or place")
        return [arrays[name] for name in names]

    def missing(self, numbers: Iterable[int], names: Sequence[str]) -> list[int]:
        """Which chunks are still to be computed. Whatever is corrupt is told, removed, and one of them."""
        answer = []
        for number in numbers:
            try:
                self.read_chunk(number, names)
            except FileNotFoundError:
                answer.append(number)
            except named_file.NamedFileError as error:
                warnings.warn(
                    f"'{self.chunk_path(number)}' is corrupt: {error}. The chunk is computed anew.",
                    SweepWarning,
                    stacklevel=2,
                )
                self.chunk_path(number).unlink()
                answer.append(number)
        return answer


def stored_chunk(path: Path) -> int | None:
    """The chunk of the sweep in the folder, if there is one: who goes on takes the same."""
    found = _read_manifest(path)
    return None if found is None else found.get("chunk")


def open_folder(path: Path, identity: Mapping[str, Any]) -> SweepFolder:
    """Begin a sweep in a new folder, or go on with the same one. For one process at a time; see `locked`."""
    found = _read_manifest(path)
    identity = json.loads(_as_json({"format_version": FORMAT_VERSION, **identity}))
    if found is None:
        strangers = sorted(
            entry.name for entry in path.iterdir() if entry.name != ".lock" and not named_file.is_draft(entry)
        )
        if strangers and strangers != ["chunks"]:
            raise SweepFolderError(
                f"'{path}' is no sweep's folder and is not empty (it has '{strangers[0]}'): give another."
            )
    elif found != identity:
        raise SweepFolderError(
            f"'{path}' holds another sweep: {'; '.join(_differences(found, identity))}. "
            "Give another folder, or remove this one to begin anew."
        )
    (path / "chunks").mkdir(exist_ok=True)
    for folder in (path, path / "chunks"):
        for entry in folder.iterdir():
            if named_file.is_draft(entry):
                entry.unlink()
    if found is None:
        text = json.dumps(identity, indent=1, sort_keys=True) + "\n"
        named_file.write_atomically(path / "sweep.json", lambda file: file.write(text.encode()))
    return SweepFolder(path, identity)


def join_folder(path: Path, identity: Mapping[str, Any]) -> SweepFolder:
    """The folder that another process of the same sweep has opened."""
    return SweepFolder(path, json.loads(_as_json({"format_version": FORMAT_VERSION, **identity})))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the folder, and keep other processes out of it until the end of the block, or of this process."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / ".lock", "a")  # noqa: SIM115  (closed below, with the lock)
    except OSError as error:
        raise SweepFolderError(f"cannot write to '{path}': {error.strerror or error}.") from None
    with file:
        try:
            import fcntl
        except ImportError:  # a system without such locks
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SweepFolderError(f"'{path}' is in use by another process: wait for its end.") from None
        except OSError:  # a file system without such locks
            pass
        yield


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / "sweep.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SweepFolderError(
            f"'{path / 'sweep.json'}' cannot be read ({error}): give another folder, or remove this one."
        ) from None


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    """What is not the same, in words, the program last: it changes with everything else."""
    if isinstance(old, dict) and isinstance(new, dict):
        answer = []
        for key in sorted({*old, *new}, key=lambda key: (key == "program", key)):
            answer += _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
        return answer
    if old == new:
        return []
    if name == "program":
        return ["the function computes something else"]
    return [f"{name} was {_short(old)} and is {_short(new)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
