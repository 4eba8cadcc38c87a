"""A small search with scikit-learn, for the tests of LifelongSearchCV.

All spaces have one or two parameters and a dictionary of one cosine each, so that the tests share compiled
programs.
"""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV

import jlibo
from jlibo.integrations.sklearn import LifelongSearchCV

SMALL = {"sizes": {"num_basis": 1, "interactions": False}}
SPACE = jlibo.SearchSpace(alpha=jlibo.Float(1e-2, 1e2, log=True))
X, Y = make_classification(60, 4, n_informative=3, n_redundant=0, random_state=0)
GROUPS = np.arange(60) % 6


def make_search(estimator=None, space=SPACE, **options) -> LifelongSearchCV:
    """Return a search of four trials on three folds."""
    options = {"budget": 4, "cv": 3, "random_state": 0, "tuner_options": SMALL} | options
    return LifelongSearchCV(RidgeClassifier() if estimator is None else estimator, space, **options)


def grid_of(search: LifelongSearchCV, **options) -> GridSearchCV:
    """Return scikit-learn's search over the configurations that a search has tried, not fitted."""
    grid = [{name: [value] for name, value in params.items()} for params in search.cv_results_["params"]]
    options = {"scoring": search.scoring, "cv": search.cv, "refit": search.refit} | options
    options |= {"error_score": search.error_score, "return_train_score": search.return_train_score}
    return GridSearchCV(search.estimator, grid, **options)


def check_same_results(search: LifelongSearchCV, grid: GridSearchCV) -> None:
    """Check that two searches have the same keys and, times aside, the same values."""
    ours, theirs = search.cv_results_, grid.cv_results_
    assert set(ours) == {*theirs, "n_folds"}
    assert ours["params"] == theirs["params"]
    for key, values in theirs.items():
        if key != "params" and "_time" not in key:
            assert ours[key].dtype == values.dtype, key
            if key.startswith("param_"):
                assert ours[key].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(ours[key], values, rtol=1e-12, err_msg=key)
    assert search.n_splits_ == grid.n_splits_ and search.multimetric_ == grid.multimetric_
    for name in ("best_index_", "best_params_", "best_score_"):
        assert hasattr(search, name) == hasattr(grid, name)
        assert getattr(search, name, None) == getattr(grid, name, None), name


class Recorder(ClassifierMixin, BaseEstimator):
    """A classifier of one class whose score is a function of its parameters, and that records its fits."""

    fits: list = []  # noqa: RUF012  (shared by all clones)

    def __init__(self, alpha=1.0, beta=None, fails=False):
        self.alpha = alpha
        self.beta = beta
        self.fails = fails

    def fit(self, X, y, sample_weight=None):
        self.fits.append({"alpha": self.alpha, "beta": self.beta, "X": X, "weights": sample_weight})
        if self.fails is True or (callable(self.fails) and self.fails(self.alpha)):
            raise RuntimeError(f"cannot fit alpha = {self.alpha:.1e}")
        self.classes_ = np.unique(y)
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])

    def score(self, X, y, sample_weight=None):
        """Return a score with its maximum at alpha = 1, and a small effect of the fold."""
        weight = 1.0 if sample_weight is None else float(np.mean(sample_weight))
        return weight * (1 - (np.log10(self.alpha) / 4) ** 2 + 1e-3 * float(X[0, 0]))
