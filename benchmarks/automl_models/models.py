"""The tuned models: a search space each, and the estimator of a configuration.

| model      | parameters                                                                 | matters only if  |
|------------|----------------------------------------------------------------------------|------------------|
| `svc`      | C and gamma (log), kernel                                                  | gamma: nonlinear |
| `kernels`  | the same with degree and coef0                                             | given the kernel |
| `choice`   | SVC, random forest or logistic regression: two, three and one of their own | given the choice |
| `boosting` | number of trees and leaf size (log integers), depth, rate (log), subsample | always           |
| `mlp`      | hidden units (log integer), activation, weight decay and rate (log)        | always           |

A parameter that does not matter in a configuration is not part of its key in `evaluations`. jlibo, GPSampler
and random search choose all parameters of the space. Optuna's TPE chooses those that matter, by its
define-by-run interface.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from jlibo import Categorical, Float, Int, SearchSpace

SVM_STEPS = 20_000
"""Limit of the SVM solver's iterations: a large C with an unsuitable kernel may not converge."""
KERNELS = ("linear", "rbf", "poly", "sigmoid")
C = Float(1e-3, 1e3, log=True)
GAMMA = Float(1e-4, 1e1, log=True)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to tune.

    - `build`: returns the estimator, given the parameters that matter.
    - `decider`: the categorical parameter that decides which others matter; None if all matter.
    - `decided`: the parameters that matter for each choice of the decider. Parameters that are in no entry
      matter always.
    """

    name: str
    space: SearchSpace
    build: Callable[..., BaseEstimator]
    decider: str | None = None
    decided: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def names(self, choice: str | None) -> list[str]:
        """Return the names of the parameters that matter if the decider has the value `choice`."""
        conditional = {name for names in self.decided.values() for name in names}
        return [
            name
            for name in self.space
            if name not in conditional or name in self.decided.get(choice or "", ())
        ]

    def relevant(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that matter in a configuration."""
        choice = None if self.decider is None else params[self.decider]
        return {name: params[name] for name in self.names(choice)}


def _svc(**params: Any) -> SVC:
    return SVC(max_iter=SVM_STEPS, **params)


def _choice(algorithm: str, **params: Any) -> BaseEstimator:
    """Return the chosen estimator; the names of its parameters have the prefix of the algorithm."""
    own = {name.removeprefix(f"{algorithm}_"): value for name, value in params.items()}
    if algorithm == "svc":
        return _svc(**own)
    if algorithm == "forest":
        return RandomForestClassifier(20, random_state=0, **own)
    return LogisticRegression(max_iter=200, **own)


def _boosting(**params: Any) -> GradientBoostingClassifier:
    return GradientBoostingClassifier(random_state=0, **params)


def _mlp(hidden: int, **params: Any) -> MLPClassifier:
    return MLPClassifier((hidden,), max_iter=30, random_state=0, **params)


MODELS = {
    model.name: model
    for model in (
        Model(
            "svc",
            SearchSpace(C=C, gamma=GAMMA, kernel=Categorical(KERNELS)),
            _svc,
            "kernel",
            {kernel: ("gamma",) for kernel in KERNELS if kernel != "linear"},
        ),
        Model(
            "choice",
            SearchSpace(
                algorithm=Categorical(("svc", "forest", "logistic")),
                svc_C=C,
                svc_gamma=GAMMA,
                forest_max_depth=Int(1, 12),
                forest_min_samples_leaf=Int(1, 50, log=True),
                forest_max_features=Float(0.1, 1.0),
                logistic_C=Float(1e-4, 1e3, log=True),
            ),
            _choice,
            "algorithm",
            {
                "svc": ("svc_C", "svc_gamma"),
                "forest": ("forest_max_depth", "forest_min_samples_leaf", "forest_max_features"),
                "logistic": ("logistic_C",),
            },
        ),
        Model(
            "boosting",
            SearchSpace(
                n_estimators=Int(3, 40, log=True),
                learning_rate=Float(0.01, 1.0, log=True),
                max_depth=Int(1, 5),
                min_samples_leaf=Int(1, 50, log=True),
                subsample=Float(0.3, 1.0),
            ),
            _boosting,
        ),
        Model(
            "kernels",
            SearchSpace(
                C=C, gamma=GAMMA, kernel=Categorical(KERNELS), degree=Int(2, 5), coef0=Float(0.0, 2.0)
            ),
            _svc,
            "kernel",
            {
                "rbf": ("gamma",),
                "poly": ("gamma", "degree", "coef0"),
                "sigmoid": ("gamma", "coef0"),
            },
        ),
        Model(
            "mlp",
            SearchSpace(
                hidden=Int(2, 64, log=True),
                activation=Categorical(("relu", "tanh", "logistic")),
                alpha=Float(1e-5, 10.0, log=True),
                learning_rate_init=Float(1e-4, 0.3, log=True),
            ),
            _mlp,
        ),
    )
}
DEFAULT = ("svc", "choice", "boosting")
