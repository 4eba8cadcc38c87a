"""One configuration on one fold, by `sklearn.model_selection.cross_validate`. Internal.

The functions here run in joblib's workers. A failure is a value and not an exception, unless the user asks
for exceptions: the workers of the other folds go on.
"""

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from sklearn.model_selection import cross_validate
from sklearn.utils.metadata_routing import get_routing_for_object

Split = tuple[np.ndarray, np.ndarray]
"""Positions of the training and of the test samples."""


@final
@dataclasses.dataclass(frozen=True)
class Fold:
    """The scores of a configuration on one fold, by the name of the metric.

    - `test`, `train`: the scores; a metric that failed is missing. `train` is None if it was not asked for.
    - `errors`: the tracebacks of a failed fit, or of failed metrics; empty if all went well.
    - `is_fitted`: whether the fit succeeded.
    """

    test: dict[str, float]
    train: dict[str, float] | None
    fit_time: float
    score_time: float
    errors: tuple[str, ...] = ()
    is_fitted: bool = True


@final
class _NamedScores:
    """A scorer that returns a dictionary without the metrics that failed, and keeps their tracebacks."""

    def __init__(self, scorer: Callable[..., Any], *, raises: bool):
        self.scorer = scorer
        self.raises = raises
        self.errors: list[str] = []

    def __call__(self, estimator: Any, X: Any, y: Any = None, **params: Any) -> dict[str, float]:
        given = (X,) if y is None else (X, y)
        try:
            scores = self.scorer(estimator, *given, **params)
        except Exception:
            if self.raises:
                raise
            self.errors.append(traceback.format_exc())
            return {}
        named = scores if isinstance(scores, Mapping) else {"score": scores}
        # scikit-learn's scorer of several metrics returns the traceback of one that failed as its score.
        self.errors += [score for score in named.values() if isinstance(score, str)]
        return {name: score for name, score in named.items() if not isinstance(score, str)}

    def get_metadata_routing(self) -> Any:
        """Return the requests of the scorer."""
        return get_routing_for_object(self.scorer)


def evaluate_fold(
    estimator: Any,
    X: Any,
    y: Any,
    split: Split,
    *,
    scorer: Callable[..., Any],
    params: Mapping[str, Any],
    with_train: bool,
    raises: bool,
) -> Fold:
    """Return the scores of an estimator that is fitted on one fold.

    **Arguments:**

    - `estimator`: the estimator with its parameters set; it is cloned.
    - `X`, `y`: the data.
    - `split`: the fold.
    - `scorer`: a scorer of one metric or of several.
    - `params`: arguments of the estimator's `fit`; with metadata routing, also those of the scorer.
    - `with_train`: whether to score the training samples too.
    - `raises`: whether a failure raises its exception.
    """
    scores = _NamedScores(scorer, raises=raises)
    start = time.perf_counter()
    error_score: Any = "raise"  # scikit-learn's type is that of a number
    try:
        result = cross_validate(
            estimator,
            X,
            y,
            cv=[split],
            scoring=scores,
            params=dict(params),
            return_train_score=with_train,
            error_score=error_score,
        )
    except Exception as error:
        # If the estimator rejects a parameter, `cross_validate` puts its own name into the message.
        cause = error.__cause__
        cause = error if cause is None or type(cause) is not type(error) else cause
        if raises:
            raise cause from None
        duration = time.perf_counter() - start
        errors = ("".join(traceback.format_exception(cause)),)
        return Fold({}, {} if with_train else None, duration, 0.0, errors, is_fitted=False)
    return Fold(
        _part(result, "test_"),
        _part(result, "train_") if with_train else None,
        float(result["fit_time"][0]),
        float(result["score_time"][0]),
        tuple(scores.errors),
    )


def _part(result: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(values[0])
        for name, values in result.items()
        if name.startswith(prefix)
    }
