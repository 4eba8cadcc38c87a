"""Cross-validated scores of configurations, and runs of tuners without a past, stored in an SQLite file.

The score is the balanced accuracy, averaged over the fixed folds of `data`. An entry depends on the model,
the data set, the parameters that matter, and everything else that may change a score: the versions of the
packages and the settings of `data`. Worker processes share one file.
"""

import json
import os
import sqlite3
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import balanced_accuracy_score

from benchmarks import harness
from benchmarks.automl_models import data
from benchmarks.automl_models.models import MODELS

FORMAT = 1
PATIENCE = 60.0  # seconds to wait for another process that writes to the file


def settings() -> dict[str, Any]:
    """Return all that a score depends on besides model, data set and configuration."""
    packages = harness.versions(("scikit-learn", "numpy", "scipy"))
    return dict(format=FORMAT, rows=data.MAX_ROWS, folds=data.FOLDS, seed=data.SEED, **packages)


def score(model: str, data_set: str, params: Mapping[str, Any]) -> float:
    """Return the cross-validated balanced accuracy of a configuration; NaN if a fit raises `ValueError`."""
    scores = []
    with warnings.catch_warnings():  # a fit that ends at its limit of iterations has a score like any other
        warnings.simplefilter("ignore")
        for fold in data.folds(data_set):
            try:
                fitted = MODELS[model].build(**params).fit(fold.design, fold.labels)
            except ValueError:
                return float("nan")
            scores.append(balanced_accuracy_score(fold.truth, fitted.predict(fold.held_out)))
    return float(np.mean(scores))


class Evaluations:
    """The stored scores and runs: a context manager that closes the file."""

    def __init__(self, path: str | os.PathLike):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._settings = json.dumps(settings(), sort_keys=True)
        self._file = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS scores (settings TEXT, model TEXT, data TEXT, params TEXT, "
            "score REAL, PRIMARY KEY (settings, model, data, params)) WITHOUT ROWID"
        )
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS runs (settings TEXT, run TEXT, scores TEXT, "
            "PRIMARY KEY (settings, run)) WITHOUT ROWID"
        )

    def __enter__(self) -> "Evaluations":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def score(self, model: str, data_set: str, params: Mapping[str, Any]) -> float:
        """Return the score of a configuration, stored or computed now; NaN for a failed one."""
        relevant = MODELS[model].relevant(params)
        key = (self._settings, model, data_set, json.dumps(relevant, sort_keys=True))
        query = "SELECT score FROM scores WHERE settings = ? AND model = ? AND data = ? AND params = ?"
        row = self._file.execute(query, key).fetchone()
        if row is None:
            row = (score(model, data_set, relevant),)  # SQLite stores NaN as NULL
            self._file.execute("INSERT OR IGNORE INTO scores VALUES (?, ?, ?, ?, ?)", (*key, *row))
        return float("nan") if row[0] is None else row[0]

    def best(self, model: str, data_set: str) -> float:
        """Return the best score of a model on a data set that is stored, by whatever method it was found.

        **Raises:**

        - `ValueError`: no score is stored.
        """
        query = "SELECT max(score) FROM scores WHERE settings = ? AND model = ? AND data = ?"
        (found,) = self._file.execute(query, (self._settings, model, data_set)).fetchone()
        if found is None:
            raise ValueError(f"no score of model {model!r} on data set {data_set!r} is stored")
        return found

    def run(self, key: Mapping[str, Any]) -> list[float] | None:
        """Return the scores of a stored run; None if there is none."""
        query = "SELECT scores FROM runs WHERE settings = ? AND run = ?"
        row = self._file.execute(query, (self._settings, json.dumps(key, sort_keys=True))).fetchone()
        return None if row is None else json.loads(row[0])

    def add_run(self, key: Mapping[str, Any], scores: list[float]) -> None:
        """Store the scores of a run."""
        entry = (self._settings, json.dumps(key, sort_keys=True), json.dumps(scores))
        self._file.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", entry)
