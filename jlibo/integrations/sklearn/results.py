"""`cv_results_` with scikit-learn's keys, from the folds of all trials. Internal.

| scikit-learn                     | here                                                                    |
|----------------------------------|-------------------------------------------------------------------------|
| a candidate                      | a `Row`: a trial, its parameters and its folds                          |
| `split0_test_score`              | NaN for a fold that was not evaluated                                   |
| `mean_test_score`                | NaN unless every fold was evaluated: other means cannot be compared     |
| `rank_test_score`                | NaN shares the last rank                                                |

A trial of an earlier process has only what the memory holds: its score, and its score on each fold. Other
metrics and times are NaN.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from scipy.stats import rankdata

from jlibo.integrations.sklearn.folds import Fold

MOST_MESSAGES = 5


@final
@dataclasses.dataclass(frozen=True)
class Row:
    """A trial in `cv_results_`.

    - `params`: the parameters that were set on the estimator.
    - `folds`: one entry per fold, in their order; those that were not evaluated are left out at the end.
    - `is_remembered`: whether it was evaluated by an earlier `fit`, or in another process.
    - `score`: the score of a remembered trial; None if it has none.
    """

    params: dict[str, Any]
    folds: tuple[Fold, ...]
    is_remembered: bool = False
    score: float | None = None


def remembered_row(
    params: dict[str, Any], score: float | None, curve: Mapping[int, float | None], objective: str
) -> Row:
    """Return a trial that is known from the memory, whose reports are the means over the first folds."""
    folds: list[Fold] = []
    before = 0.0
    for place in range(len(curve)):
        mean = curve.get(place)
        if mean is None:
            break
        fold_score = (place + 1) * mean - before
        before = (place + 1) * mean
        folds.append(Fold({objective: fold_score}, None, np.nan, np.nan))
    return Row(params, tuple(folds), is_remembered=True, score=score)


def metric_names(folds: Iterable[Fold]) -> list[str]:
    """Return the names of all metrics in the order in which the scorer returned them."""
    return list(dict.fromkeys(name for fold in folds for name in fold.test))


def scores_of(folds: Sequence[Fold], name: str, error_score: float, *, part: str = "test") -> np.ndarray:
    """Return the scores of one metric on some folds; a failed one has the score `error_score`."""
    parts = [fold.test if part == "test" else fold.train or {} for fold in folds]
    return np.array([scores.get(name, error_score) for scores in parts], float)


def cv_results(
    rows: Sequence[Row],
    names: Sequence[str],
    num_splits: int,
    *,
    objective: str,
    error_score: float,
    with_train: bool,
) -> dict[str, Any]:
    """Return the results of all trials as arrays, with scikit-learn's keys.

    **Arguments:**

    - `rows`: the trials.
    - `names`: the names of the metrics, or only "score".
    - `num_splits`: the number of folds.
    - `objective`: the metric that was optimised.
    - `error_score`: the score of a metric that failed.
    - `with_train`: whether there are training scores.
    """
    results: dict[str, Any] = {}
    for key in ("fit_time", "score_time"):
        times = np.full((len(rows), num_splits), np.nan)
        for place, row in enumerate(rows):
            values = [getattr(fold, key) for fold in row.folds[:num_splits]]
            times[place, : len(values)] = values
        results[f"mean_{key}"], results[f"std_{key}"] = _mean_and_std(times, of_some=True)
    results |= _param_columns([row.params for row in rows])
    results["params"] = [row.params for row in rows]
    results["n_folds"] = np.array([len(row.folds) for row in rows])
    for name in names:
        for part in ("test", "train") if with_train else ("test",):
            table = np.full((len(rows), num_splits), np.nan)
            for place, row in enumerate(rows):
                missing = np.nan if row.is_remembered else error_score
                values = scores_of(row.folds, name, missing, part=part)
                table[place, : len(values)] = values[:num_splits]
            mean, std = _mean_and_std(table)
            if part == "test" and name == objective:
                remembered = np.array([row.score is not None for row in rows])
                mean = np.where(remembered, [row.score or 0.0 for row in rows], mean)
            for split in range(num_splits):
                results[f"split{split}_{part}_{name}"] = table[:, split]
            results[f"mean_{part}_{name}"], results[f"std_{part}_{name}"] = mean, std
            if part == "test":
                results[f"rank_test_{name}"] = _ranks(mean)
    return results


def failure_summary(rows: Sequence[Row]) -> tuple[int, int, str]:
    """Return the number of failed fits, of all fits, and the failures in words; empty if there are none.

    Failures with the same message are counted together, and only the most frequent ones are listed.
    """
    folds = [fold for row in rows for fold in row.folds]
    errors = [error for fold in folds for error in fold.errors]
    counts = Counter(map(message_of, errors)).most_common()
    words = [f"- {count} times: {message}" for message, count in counts[:MOST_MESSAGES]]
    if len(counts) > MOST_MESSAGES:
        words.append(f"- {len(counts) - MOST_MESSAGES} other messages")
    if errors:
        words += ["The first one:", errors[0]]
    return sum(not fold.is_fitted for fold in folds), len(folds), "\n".join(words)


def message_of(error: str) -> str:
    """Return the last line of a traceback, which has the exception."""
    return error.rstrip().rpartition("\n")[2]


def _mean_and_std(table: np.ndarray, *, of_some: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each row; with `of_some`, of the entries that are not NaN."""
    if not of_some:
        return table.mean(axis=1), table.std(axis=1)
    is_there = ~np.isnan(table)
    count = is_there.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_there, table, 0.0).sum(axis=1) / count
        square = np.where(is_there, (table - mean[:, None]) ** 2, 0.0).sum(axis=1) / count
    return mean, np.sqrt(square)


def _ranks(mean: np.ndarray) -> np.ndarray:
    """Return ranks from 1, the highest mean first; equal means share a rank, and NaN shares the last."""
    lowest = np.nanmin(mean) - 1 if not np.isnan(mean).all() else 0.0
    return rankdata(-np.where(np.isnan(mean), lowest, mean), method="min").astype(np.int32)


def _param_columns(params: Sequence[Mapping[str, Any]]) -> dict[str, np.ma.MaskedArray]:
    """Return an array of values for each parameter, masked where the parameter is off."""
    names = dict.fromkeys(name for one in params for name in one)
    columns = {}
    for name in names:
        is_off = [name not in one for one in params]
        kinds = {type(one[name]) for one in params if name in one}
        kind = kinds.pop() if len(kinds) == 1 and kinds <= {bool, int, float} else object
        data = np.zeros(len(params), kind)
        for place, one in enumerate(params):
            if name in one:
                data[place] = one[name]
        columns[f"param_{name}"] = np.ma.MaskedArray(data, mask=is_off)
    return columns
