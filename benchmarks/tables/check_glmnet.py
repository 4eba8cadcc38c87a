"""Compares the GLMNET table with a slow, independent computation by scikit-learn.

Three data sets, ten configurations each, the same folds: `LogisticRegression` with the elastic-net penalty,
fitted by the saga solver one configuration at a time, on features standardised by `StandardScaler`, scored
by scikit-learn's own metrics. scikit-learn minimises  C * sum of losses + (1 - alpha) / 2 * ||b||_2^2 +
alpha * ||b||_1,  so that glmnet's lambda on N rows is C = 1 / (N * lambda).

The values checked are those of the table file if it has the data set, and otherwise computed by `fits`. The
check fails when an AUC differs by more than 0.01 or a log loss by more than 0.01. Accuracy is printed but not
checked: a single row at probability 1/2 changes it.
"""

import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.preprocessing import StandardScaler

from benchmarks.tables import datasets, fits

SETS = ("heart", "crx", "TitanicSurvival")  # numbers alone; mixed; mixed with missing values
CONFIGURATIONS = (  # alpha, ln lambda
    (0.0, -9.0),
    (0.0, -3.0),
    (0.0, 3.0),
    (0.05, -6.0),
    (0.25, -4.5),
    (0.5, -7.0),
    (0.5, -3.0),
    (0.75, -2.0),
    (1.0, -5.0),
    (1.0, -2.5),
)
TOLERANCE = {"auc": 0.01, "logloss": 0.01}


def slow_scores(data: datasets.Loaded, alpha: float, log_lambda: float) -> dict[str, float]:
    """Return the metrics of one configuration by scikit-learn alone, as means over the folds."""
    rows = []
    for design, labels, held_out, truth in fits.folds(data):
        scaler = StandardScaler().fit(design)
        strength = 1.0 / (labels.size * np.exp(log_lambda))
        model = LogisticRegression(
            C=strength, l1_ratio=alpha, solver="saga", tol=1e-6, max_iter=20_000, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)  # such a fit is not a reference
            model.fit(scaler.transform(design), labels)
        probability = model.predict_proba(scaler.transform(held_out))[:, 1]
        rows.append(
            (
                roc_auc_score(truth, model.decision_function(scaler.transform(held_out))),
                accuracy_score(truth, probability > 0.5),
                log_loss(truth, probability, labels=[0, 1]),
            )
        )
    return dict(zip(fits.METRICS, np.mean(rows, axis=0), strict=True))


def table_scores(path: Path, name: str) -> dict[str, np.ndarray] | None:
    """Return the metrics [g] of one task of a finished table; None if the file or the task is missing."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as table:
        tasks = table["tasks"].tolist()
        params, expected = table["params"], fits.grid()
        if params.shape != expected.shape or not np.allclose(params, expected):
            raise ValueError(f"{path}: the configurations are not those of `fits.grid`, in its order")
        if name not in tasks:
            return None
        return {metric: table[metric][tasks.index(name)] for metric in fits.METRICS}


def position(alpha: float, log_lambda: float) -> int:
    """Return the index of a configuration in the grid."""
    distance = np.abs(fits.grid() - np.array([alpha, log_lambda])).max(axis=1)
    if distance.min() > 1e-9:
        raise ValueError(f"alpha={alpha}, ln lambda={log_lambda} is not a point of the grid")
    return int(distance.argmin())


def main(path: Path, names: tuple[str, ...] = SETS) -> int:
    """Print the comparison; return 0 if all values agree, else 1."""
    header = f"{'set':16s} {'alpha':>5s} {'ln lam':>6s}"
    print(header + "".join(f" {metric:>9s} {'sklearn':>9s}" for metric in fits.METRICS))
    failures = 0
    worst = dict.fromkeys(fits.METRICS, 0.0)
    for name in names:
        data = datasets.load(datasets.find(name), max_rows=fits.MAX_ROWS, seed=fits.SEED)
        stored = table_scores(path, name)
        origin = "table" if stored else "fresh"
        fast = stored or fits.evaluate(data)
        for alpha, log_lambda in CONFIGURATIONS:
            slow = slow_scores(data, alpha, log_lambda)
            cell = {metric: float(fast[metric][position(alpha, log_lambda)]) for metric in fits.METRICS}
            gaps = {metric: abs(cell[metric] - slow[metric]) for metric in fits.METRICS}
            worst = {metric: max(worst[metric], gaps[metric]) for metric in fits.METRICS}
            failed = not all(gaps[metric] <= limit for metric, limit in TOLERANCE.items())
            failures += failed
            pairs = "".join(f" {cell[metric]:9.5f} {slow[metric]:9.5f}" for metric in fits.METRICS)
            print(
                f"{name:16s} {alpha:5.2f} {log_lambda:6.1f}{pairs} {origin}{'  DIFFERS' if failed else ''}",
                flush=True,
            )
    print("largest differences: " + ", ".join(f"{metric} {gap:.5f}" for metric, gap in worst.items()))
    print(
        f"{failures} of {len(names) * len(CONFIGURATIONS)} configurations differ" if failures else "all agree"
    )
    return 1 if failures else 0
