"""The tuned models: a search space each, and the estimator of a configuration.

| model      | parameters                                                                 | exists           |
|------------|----------------------------------------------------------------------------|------------------|
| `svc`      | C and gamma (log), kernel                                                  | gamma: nonlinear |
| `kernels`  | the same with degree and coef0                                             | given the kernel |
| `choice`   | SVC, random forest or logistic regression: two, three and one of their own | given the choice |
| `boosting` | number of trees and leaf size (log integers), depth, rate (log), subsample | always           |
| `mlp`      | hidden units (log integer), activation, weight decay and rate (log)        | always           |

The conditions are part of the search spaces (`when`), so jlibo and random search choose the parameters that
exist, and so does Optuna's TPE by its define-by-run interface. GPSampler chooses all parameters; those that
do not exist in a configuration are left out before it is evaluated.
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


def gamma(**when: Any) -> Float:
    """Return the parameter gamma, which exists under a condition."""
    return Float(1e-4, 1e1, log=True, when=when)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to tune.

    - `build`: returns the estimator of a configuration.
    """

    name: str
    space: SearchSpace
    build: Callable[..., BaseEstimator]

    def relevant(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that exist, given values of all parameters or of those that exist."""
        return {name: params[name] for name in self.space.active_names(params)}


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
            SearchSpace(C=C, gamma=gamma(kernel=KERNELS[1:]), kernel=Categorical(KERNELS)),
            _svc,
        ),
        Model(
            "choice",
            SearchSpace(
                algorithm=Categorical(("svc", "forest", "logistic")),
                svc_C=Float(1e-3, 1e3, log=True, when={"algorithm": "svc"}),
                svc_gamma=gamma(algorithm="svc"),
                forest_max_depth=Int(1, 12, when={"algorithm": "forest"}),
                forest_min_samples_leaf=Int(1, 50, log=True, when={"algorithm": "forest"}),
                forest_max_features=Float(0.1, 1.0, when={"algorithm": "forest"}),
                logistic_C=Float(1e-4, 1e3, log=True, when={"algorithm": "logistic"}),
            ),
            _choice,
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
                C=C,
                gamma=gamma(kernel=KERNELS[1:]),
                kernel=Categorical(KERNELS),
                degree=Int(2, 5, when={"kernel": "poly"}),
                coef0=Float(0.0, 2.0, when={"kernel": ["poly", "sigmoid"]}),
            ),
            _svc,
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
