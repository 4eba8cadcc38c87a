"""What a search offers once it is fitted: the methods of its best estimator. Internal.

Each method exists only if the estimator has it, as in scikit-learn's own searches.
"""

import abc
import copy
from collections.abc import Callable
from typing import Any

import sklearn
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from jlibo.checks import fail


def is_routing() -> bool:
    """Return whether scikit-learn's metadata routing is enabled."""
    return bool(sklearn.get_config()["enable_metadata_routing"])


def _best_has(name: str) -> Callable[[Any], bool]:
    """Return a check that the best estimator has an attribute; before `fit`, that the given one has."""

    def check(search: "AbstractFittedSearch") -> bool:
        search._check_refit(name)
        getattr(vars(search).get("best_estimator_", search.estimator), name)  # raises an AttributeError
        return True

    return check


class AbstractFittedSearch(MetaEstimatorMixin, BaseEstimator, abc.ABC):
    """A search whose best estimator predicts, transforms and scores."""

    estimator: Any
    refit: Any
    best_estimator_: Any
    scorer_: Any
    multimetric_: bool

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = copy.deepcopy(inner.classifier_tags)
        tags.regressor_tags = copy.deepcopy(inner.regressor_tags)
        tags.transformer_tags = copy.deepcopy(inner.transformer_tags)
        tags.target_tags = copy.deepcopy(inner.target_tags)
        tags.input_tags.pairwise = inner.input_tags.pairwise
        tags.input_tags.sparse = inner.input_tags.sparse
        return tags

    @abc.abstractmethod
    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Search, and return the search itself."""

    def _check_refit(self, name: str) -> None:
        if not self.refit:
            raise AttributeError(
                f"{name} needs an estimator that is fitted on all data, but refit=False was given: pass "
                "refit=True, or fit an estimator with `best_params_`."
            )

    @property
    def n_features_in_(self) -> int:
        """The number of features seen during `fit`."""
        try:
            check_is_fitted(self)
        except NotFittedError as error:
            raise AttributeError("n_features_in_ exists only after `fit`.") from error
        return self.best_estimator_.n_features_in_

    @property
    def classes_(self) -> Any:
        """The class labels, if the estimator is a classifier."""
        _best_has("classes_")(self)
        return self.best_estimator_.classes_

    @available_if(_best_has("predict"))
    def predict(self, X: Any) -> Any:
        """Return `best_estimator_.predict(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @available_if(_best_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Return `best_estimator_.predict_proba(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @available_if(_best_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Any:
        """Return `best_estimator_.predict_log_proba(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.predict_log_proba(X)

    @available_if(_best_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Return `best_estimator_.decision_function(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    @available_if(_best_has("score_samples"))
    def score_samples(self, X: Any) -> Any:
        """Return `best_estimator_.score_samples(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.score_samples(X)

    @available_if(_best_has("transform"))
    def transform(self, X: Any) -> Any:
        """Return `best_estimator_.transform(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.transform(X)

    @available_if(_best_has("transform"))
    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Return `fit(X, y, **params).transform(X)`."""
        return self.fit(X, y, **params).transform(X)

    @available_if(_best_has("inverse_transform"))
    def inverse_transform(self, X: Any) -> Any:
        """Return `best_estimator_.inverse_transform(X)`."""
        check_is_fitted(self)
        return self.best_estimator_.inverse_transform(X)

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Return the score of the best estimator on other data, by `scoring`.

        **Arguments:**

        - `X`, `y`: the data.
        - `params`: arguments of the scorer, such as `sample_weight`, if metadata routing is enabled.

        With several metrics, it is the one that `refit` names.

        **Raises:**

        - `AttributeError`: there is no best estimator, since `refit=False`.
        - `ValueError`: `params` are given without metadata routing, or `refit` does not name a metric.
        """
        self._check_refit("score")
        check_is_fitted(self)
        if params and not is_routing():
            expected = "empty unless sklearn.set_config(enable_metadata_routing=True) was called"
            fail("params", expected, ", ".join(params))
        routed = process_routing(self, "score", **params).scorer["score"] if params else {}
        if self.multimetric_ and not isinstance(self.refit, str):
            fail("refit", "the name of a metric, since there are several to score by", repr(self.refit))
        scorer = self.scorer_[self.refit] if isinstance(self.scorer_, dict) else self.scorer_
        found = scorer(self.best_estimator_, X, y, **routed)
        return found[self.refit] if self.multimetric_ and not isinstance(self.scorer_, dict) else found
