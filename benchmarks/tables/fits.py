"""Scores of the elastic net on one data set over the grid of (alpha, ln lambda), by the real glmnet core.

glmnet minimises  -(1/N) log likelihood + lambda * ((1 - alpha) / 2 * ||b||_2^2 + alpha * ||b||_1)  over
features that it standardises itself (mean 0, variance 1 over the training rows, 1/N), with an intercept
that is not penalised. One fit gives the solutions for a whole decreasing path of lambda, so a data set
costs alphas x folds fits.

Rules of the table, each of them recorded in the provenance file:

- 10-fold stratified cross-validation; the folds depend on the labels and the seed, never on the
  configuration.
- Imputation (median, or the most frequent value) and one-hot coding are fitted on the training fold. A
  category that is not in the training fold is encoded as zeros.
- A metric is the mean over the folds of its value on the held-out fold.
- glmnet may end a path early (a saturated fit, or its limit of passes over the data). The cells below the
  last lambda it fitted get the last fitted solution, as in glmnet's own `predict` below the end of its
  path; `filled` counts the folds, 0 to 10, in which a cell was filled in this way.

| name | meaning |
|---|---|
| alpha | the mix, 0 = ridge, 1 = lasso |
| log_lambda | natural logarithm of the penalty's weight |
| logit | ln p / (1 - p) of the positive class |
"""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import rankdata
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from benchmarks.tables.datasets import Loaded, categorical_columns

if TYPE_CHECKING:
    import pandas as pd

SEED = 20240229
FOLDS = 10
MAX_ROWS = 5000
DECIMALS = 5
ALPHAS = np.round(np.linspace(0.0, 1.0, 21), 2)
LOG_LAMBDAS = np.linspace(-9.0, 9.0, 37)
PARAM_NAMES = ("alpha", "ln lambda")
METRICS = ("auc", "accuracy", "logloss")

PathSolver = Callable[[np.ndarray, np.ndarray, float, np.ndarray], tuple[np.ndarray, np.ndarray]]


def grid(alphas: np.ndarray = ALPHAS, log_lambdas: np.ndarray = LOG_LAMBDAS) -> np.ndarray:
    """Return all configurations, params[g, 2]: alpha is the slow axis, ln lambda the fast one, ascending."""
    return np.stack(np.meshgrid(alphas, log_lambdas, indexing="ij"), axis=-1).reshape(-1, 2)


def preprocessor(features: "pd.DataFrame") -> ColumnTransformer:
    """Return imputation and one-hot coding, to be fitted on a training fold. Two categories: one column."""
    categorical = categorical_columns(features)
    numeric = [name for name in features.columns if name not in categorical]
    encode = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore", drop="if_binary", sparse_output=False),
    )
    return ColumnTransformer(
        [("numbers", SimpleImputer(strategy="median"), numeric), ("text", encode, categorical)]
    )


def folds(
    data: Loaded, *, seed: int = SEED, num_folds: int = FOLDS
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Return the encoded folds of a data set: training design and labels, held-out design and labels."""
    splitter = StratifiedKFold(num_folds, shuffle=True, random_state=seed)
    for train, test in splitter.split(np.zeros((data.labels.size, 1)), data.labels):
        encoder = preprocessor(data.features)
        with warnings.catch_warnings():  # a category unseen in training: all zeros, as documented
            warnings.filterwarnings("ignore", message="Found unknown categories", category=UserWarning)
            design = encoder.fit_transform(data.features.iloc[train])
            held_out = encoder.transform(data.features.iloc[test])
        yield design, data.labels[train], held_out, data.labels[test]


def glmnet_path(
    design: np.ndarray, labels: np.ndarray, alpha: float, lambdas: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return glmnet's solutions for decreasing lambdas: coefficients [features, fitted], intercepts [fitted].

    `fitted` is less than `lambdas.size` when glmnet ends the path early. It has its default settings
    (tolerance 1e-7, at most 100,000 passes over the data for a path).
    """
    from glmnet import LogitNet

    model = LogitNet(
        alpha=alpha, lambda_path=lambdas, n_splits=0, standardize=True, tol=1e-7, max_iter=100_000
    )
    with warnings.catch_warnings():  # an early end is counted by the caller
        warnings.simplefilter("ignore", RuntimeWarning)
        model.fit(design, labels)
    return model.coef_path_[0], model.intercept_path_[0]


def auc(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return the area under the ROC curve of each column of logits[rows, k]; a tie counts one half.

    Logits are rounded to 12 decimals first, so that two equal rows tie for any order of summation.
    """
    ranks = rankdata(np.round(logits, 12), axis=0)
    positive = labels == 1
    wins = ranks[positive].sum(axis=0) - positive.sum() * (positive.sum() + 1) / 2
    return wins / (positive.sum() * (~positive).sum())


def score(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return the metrics [metric, k] of logits[rows, k], as in `METRICS`. Probability 1/2 is class 0."""
    truth = labels[:, None].astype(np.float64)
    accuracy = np.mean((logits > 0) == (truth == 1), axis=0)
    logloss = np.mean(np.logaddexp(0.0, logits) - truth * logits, axis=0)
    return np.stack([auc(labels, logits), accuracy, logloss])


def evaluate(
    data: Loaded,
    *,
    alphas: np.ndarray = ALPHAS,
    log_lambdas: np.ndarray = LOG_LAMBDAS,
    seed: int = SEED,
    solver: PathSolver = glmnet_path,
) -> dict[str, np.ndarray]:
    """Return the metrics of all configurations, each [g], rounded; and `filled` [g], see the module."""
    lambdas = np.exp(log_lambdas)[::-1]  # glmnet starts at the largest penalty
    total = np.zeros((len(METRICS), alphas.size, lambdas.size))
    filled = np.zeros((alphas.size, lambdas.size), np.uint8)
    for design, labels, held_out, truth in folds(data, seed=seed):
        for row, alpha in enumerate(alphas):
            coef, intercept = solver(design, labels, float(alpha), lambdas)
            fitted = intercept.size
            if not 0 < fitted <= lambdas.size:
                raise RuntimeError(
                    f"{data.spec.name}: glmnet fitted {fitted} of {lambdas.size} lambdas, alpha={alpha}"
                )
            last = np.minimum(np.arange(lambdas.size), fitted - 1)
            total[:, row] += score(truth, held_out @ coef + intercept)[:, last]
            filled[row, fitted:] += 1
    means = np.round(total[:, :, ::-1] / FOLDS, DECIMALS).astype(np.float32).reshape(len(METRICS), -1)
    if not np.isfinite(means).all():
        raise RuntimeError(f"{data.spec.name}: a metric is not finite")
    return {**dict(zip(METRICS, means, strict=True)), "filled": filled[:, ::-1].reshape(-1)}


def describe(data: Loaded) -> dict:
    """Return the entry of a data set in the provenance file."""
    spec = data.spec
    encoded = preprocessor(data.features).fit_transform(data.features).shape[1]
    negative, positive = np.bincount(data.labels, minlength=2).tolist()
    return {
        "name": spec.name,
        "source": spec.source,
        "group": spec.group,
        "target": spec.target,
        "positive": list(spec.positive),
        "dropped_columns": list(spec.drop),
        "rows": int(data.labels.size),
        "rows_available": int(data.rows_available),
        "subsampled": bool(data.labels.size < data.rows_available),
        "columns": int(data.features.shape[1]),
        "categorical_columns": len(categorical_columns(data.features)),
        "features_encoded": int(encoded),
        "missing_values": int(data.features.isna().sum().sum()),
        "classes": 2,
        "class_counts": {"negative": negative, "positive": positive},
        "note": spec.note,
    }
