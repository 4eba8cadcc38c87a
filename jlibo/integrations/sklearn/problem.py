"""What a search evaluates: an estimator, data, folds and metrics. Internal."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from jlibo.integrations.sklearn.arguments import Metrics, objective_of
from jlibo.integrations.sklearn.fingerprint import derived_name
from jlibo.integrations.sklearn.folds import Fold, Split, evaluate_fold
from jlibo.integrations.sklearn.results import metric_names, scores_of

Job = tuple[dict[str, Any], int]
"""The parameters of an estimator and the position of a fold."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """All on which the score of a configuration depends.

    - `estimator`: the estimator whose parameters are searched.
    - `X`, `y`, `splits`: the data and the folds, the same for all trials.
    - `metrics`, `refit`: the metrics, and the one that is optimised.
    - `params`: arguments of `cross_validate` for the estimator and the scorer; `given` are all arguments of
      `fit`, those of the splitter included.
    - `objects`: the object that a choice of a parameter stands for.
    - `error_score`: the score of a failed fit; `raises` if it raises its exception instead.
    - `with_train`: whether training scores are computed.
    """

    estimator: Any
    X: Any
    y: Any
    splits: list[Split]
    metrics: Metrics
    refit: Any
    params: Mapping[str, Any]
    given: Mapping[str, Any]
    objects: Mapping[str, Mapping[Any, Any]]
    error_score: float
    raises: bool
    with_train: bool

    def task_name(self) -> str:
        """Return a name that is the same for the same problem, and different for another one."""
        named = self.refit if isinstance(self.refit, str) else None
        data = (self.X, self.y, self.splits, self.given)
        return derived_name(*data, self.estimator, self.objects, self.metrics.given, named)

    def set_on_estimator(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a configuration as the estimator takes them."""
        none: Mapping[Any, Any] = {}
        return {
            name: self.objects.get(name, none)[value] if _has(self.objects.get(name, none), value) else value
            for name, value in params.items()
        }

    def with_params(self, params: Mapping[str, Any]) -> Any:
        """Return a new estimator that has these parameters; objects among them are cloned too."""
        own = {name: clone(value, safe=False) for name, value in params.items()}
        estimator: Any = clone(self.estimator)
        return estimator.set_params(**own)

    def evaluate(self, jobs: Sequence[Job], parallel: Parallel) -> list[Fold]:
        """Return the scores of some parameters on one fold each."""
        found: Any = parallel(
            delayed(evaluate_fold)(
                self.with_params(params),
                self.X,
                self.y,
                self.splits[place],
                scorer=self.metrics.scorer,
                params=self.params,
                with_train=self.with_train,
                raises=self.raises,
            )
            for params, place in jobs
        )
        return list(found)

    def names(self, folds: Sequence[Fold]) -> list[str]:
        """Return the names of the metrics, as far as these folds show them; "score" for a single one."""
        is_named = callable(self.metrics.given) and isinstance(self.refit, str)
        return list(self.metrics.by_name or metric_names(folds) or [self.refit if is_named else "score"])

    def objective(self, folds: Sequence[Fold]) -> str:
        """Return the metric that is optimised."""
        names = self.names(folds)
        return objective_of(names, self.refit, several=names != ["score"])

    def score(self, folds: Sequence[Fold]) -> float:
        """Return the mean of the metric that is optimised over these folds; NaN if it failed."""
        return float(np.mean(scores_of(folds, self.objective(folds), self.error_score)))


def _has(values: Mapping[Any, Any], value: Any) -> bool:
    try:
        return value in values
    except TypeError:  # a list is not a key
        return False
