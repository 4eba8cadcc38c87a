"""Experiments on federated runs: private votes, and clients that collude.

| experiment          | question                                                                          |
|---------------------|-----------------------------------------------------------------------------------|
| `federated-private` | what privacy costs: recovery and regret against epsilon and number of clients     |
| `federated-attack`  | what colluding clients can elect, against their share and alpha                   |

The agents of both play 20 tasks, as in `lifelong-cosine`. `federated_numbers` computes what needs more
clients.
"""

import dataclasses
from typing import Any

from jlibo.experiments import federated_numbers
from jlibo.experiments.experiment import Analysis, Experiment
from jlibo.experiments.federated_numbers import ALPHAS, DELTA, MOST_SELECTED
from jlibo.experiments.paper import EXPERIMENTS as EXPERIMENTS_OF_THE_PAPER
from jlibo.experiments.spec import Spec
from jlibo.meta import FederatedMetaKGL
from jlibo.privacy.mechanisms import GNMaxNoise, RandomisedResponse, ToeplitzNoise

_BASE = EXPERIMENTS_OF_THE_PAPER["lifelong-cosine"]


def _analysis(numbers: Any, figure: str) -> Analysis:
    def draw(values: dict[str, Any], title: str) -> Any:
        from jlibo.plot import federated as figures  # matplotlib is imported only to draw

        return getattr(figures, figure)(values, title)

    return Analysis(numbers, draw)


def _flibo(**values: Any) -> Spec:
    own = _BASE.agents["flibo"].values
    names = {"lam": "lam_federated", "omega": "omega_federated"}
    return Spec(FederatedMetaKGL, **{**own, **values}).named(**names)


_PRIVACY: dict[str, Any] = dict(epsilon=4.0, delta=DELTA, max_selected=MOST_SELECTED)
_LOCAL = {name: value for name, value in _PRIVACY.items() if name != "delta"}
_OTHERS = {name: spec for name, spec in _BASE.agents.items() if name in ("oracle", "full")}

_PRIVATE = dataclasses.replace(
    _BASE,
    name="federated-private",
    summary="what privacy costs: recovery and regret against epsilon and number of clients",
    agents={
        **_OTHERS,
        "exact": _flibo(),
        "toeplitz": _flibo(mechanism=Spec(ToeplitzNoise, **_PRIVACY)),
        "gnmax": _flibo(mechanism=Spec(GNMaxNoise, **_PRIVACY)),
        "local": _flibo(mechanism=Spec(RandomisedResponse, **_LOCAL)),
    },
    analysis=_analysis(federated_numbers.private, "figure_private"),
)

_ATTACK = dataclasses.replace(
    _BASE,
    name="federated-attack",
    summary="what colluding clients can elect, against their share and alpha",
    agents={
        **_OTHERS,
        **{
            f"alpha={alpha:g}": _flibo(alpha=alpha).named(alpha=f"alpha_{round(100 * alpha)}")
            for alpha in ALPHAS
        },
    },
    analysis=_analysis(federated_numbers.attack, "figure_attack"),
)

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (_PRIVATE, _ATTACK)}
"""The experiments by name."""
