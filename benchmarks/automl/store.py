"""Runs of all methods, stored in files.

A file belongs to one method and to everything that its runs depend on: the table (by digest), the settings,
the versions of the packages that the method uses, and the source of the method: of its modules in this
folder, or of the whole package for jlibo's agents. A killed benchmark is resumed, and after a change of
jlibo only jlibo's part is computed.

| job     | methods                        | what it computes                                         |
|---------|--------------------------------|----------------------------------------------------------|
| a task  | the peers                      | one run of a task, from a seed, which serves every group |
| a group | all others but `random`        | all runs of one order or draw, one task after another    |
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import jlibo
from benchmarks import harness

FORMAT = 2


class Store:
    """The finished jobs of one method: runs [job, ..., step], and seconds [job], NaN for missing jobs.

    `packages` are those whose versions the runs depend on, and `settings` everything else.
    """

    def __init__(
        self, folder: Path, method: str, shape: tuple[int, ...], *, packages: Iterable[str], **settings: Any
    ):
        self.method = method
        key = dict(format=FORMAT, method=method, versions=harness.versions(packages), **settings)
        self.key = json.dumps(key, sort_keys=True)
        self.path = folder / f"{method}-{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.npz"
        self.runs, self.seconds = np.full(shape, -1, np.int32), np.full(shape[0], np.nan)
        self._more = self.runs[:0], self.seconds[:0]
        if self.path.exists():
            with np.load(self.path, allow_pickle=False) as stored:
                known = min(shape[0], len(stored["seconds"]))
                self.runs[:known], self.seconds[:known] = stored["runs"][:known], stored["seconds"][:known]
                # Jobs in the file that exceed the requested number are kept.
                self._more = stored["runs"][shape[0] :], stored["seconds"][shape[0] :]

    def missing(self) -> list[int]:
        return np.flatnonzero(np.isnan(self.seconds)).tolist()

    def put(self, job: int, runs: np.ndarray, seconds: float) -> None:
        self.runs[job], self.seconds[job] = runs, seconds

    def save(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as stream:
            np.savez_compressed(
                stream,
                runs=np.concatenate([self.runs, self._more[0]]),
                seconds=np.concatenate([self.seconds, self._more[1]]),
                key=np.array(self.key),
            )
        part.replace(self.path)


def source_of_jlibo() -> str:
    """Return a hash of the source of jlibo and of its agents in this benchmark."""
    folder = Path(jlibo.__file__).parent
    files = [*sorted(folder.rglob("*.py")), Path(__file__).with_name("agents.py")]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(file.parents[1])).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def source_digest(modules: Iterable[str]) -> str:
    """Return a hash of the source of modules, given by their full names."""
    digest = hashlib.sha256()
    for module in modules:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, module
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:16]
