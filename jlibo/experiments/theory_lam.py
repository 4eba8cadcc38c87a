"""Experiments on the choice of lam and omega: each lifelong experiment with one agent for each way.

| agent             | lam                                          | omega               | needs to know    |
|-------------------|----------------------------------------------|---------------------|------------------|
| `printed`         | as in the paper                              | c_1 / 2             |                  |
| `tuned`           | lowest regret on other seeds or data sets    | c_1 / 2, or tuned   | regrets          |
| `theorem`         | Theorem 3.3, kappa of infinitely many rows   | c_1 / 2             | c_1, s*, the map |
| `bracket`         | Theorem 3.3, upper kappa of the data         | c_1 / 2             | c_1              |
| `bracket-omega`   | the same                                     | share of the rewards | nothing         |
| `noise`           | above the noise, as in App. D                | c_1 / 2             | c_1, sigma       |
| `noise-omega`     | the same                                     | the penalty's error | sigma            |
| `estimated`       | above the estimated noise                    | c_1 / 2             | c_1              |
| `estimated-omega` | the same                                     | the penalty's error | nothing          |
| `self-tuned`      | likelihood of past rewards                   | the same            | nothing          |

The experiments `theory-lam...` have the tasks of `lifelong-...`. docs/theory.md has the names and results.
On real data c_1, s* and sigma do not exist: `theorem`, `noise` and `noise-omega` are left out there.
"""

import dataclasses
from typing import Any

from jlibo.experiments.experiment import Experiment
from jlibo.experiments.paper import EXPERIMENTS as EXPERIMENTS_OF_THE_PAPER
from jlibo.experiments.spec import Spec
from jlibo.meta import MetaKGL, SelfTunedMetaKGL
from jlibo.meta.exploration import DecreasingExploration

LAM, OMEGA_SHARE = 1 / 8, 0.04
"""The factor of Theorem 3.3, and the share of the rewards' root mean square that a kernel has to exceed. The
share is the best of 0.02, 0.04 and 0.08, by the sum over the synthetic experiments on seeds 100 to 109."""
NOISE_LAM, PENALTY_OMEGA = 4.0, 0.75
"""The theory's lam and omega in units of the noise and of the penalty's error."""


def _meta_kgl(way: str, lam: float, omega: float, lam_scaling: str, omega_scaling: str, **rest: Any) -> Spec:
    spec = Spec(MetaKGL, lam=lam, omega=omega, lam_scaling=lam_scaling, omega_scaling=omega_scaling, **rest)
    ending = way.replace("-", "_")
    names = ("lam", "omega", "lam_scaling", "omega_scaling")
    return spec.named(**{name: f"{name}_{ending}" for name in names})


def _by_lam(
    name: str, of: str, *, tuned: tuple[float, float], mean_square: float | None = None
) -> Experiment:
    """Return the lifelong experiment `of` with one agent for each way to choose lam and omega.

    **Arguments:**

    - `name`, `of`: names of the new and of the lifelong experiment.
    - `tuned`: lam and omega of lowest regret on seeds 100 to 109, or on the other half of the data sets.
    - `mean_square`: z of the base kernels; None on real data.
    """
    base = EXPERIMENTS_OF_THE_PAPER[of]
    numbers: dict[str, Any] = base.settings()
    printed = 0.5 if mean_square is not None else 0.015
    omega = 0.25
    # Rows that the policy concentrates on few points of a real table make a small lam slow to solve for.
    tol = 1e-5 if mean_square is not None else 1e-3
    ways = {"printed": (printed, omega, "constant", "constant"), "tuned": (*tuned, "constant", "constant")}
    if mean_square is not None:
        noise = NOISE_LAM * numbers["noise_std"]
        limit = omega * mean_square / numbers["support_size"] / 8
        ways["theorem"] = (limit, omega, "sqrt", "constant")
        ways["noise"] = (noise, omega, "noise", "constant")
        ways["noise-omega"] = (noise, PENALTY_OMEGA, "noise", "penalty")
    ways["bracket"] = (LAM, omega, "bracket", "constant")
    ways["bracket-omega"] = (LAM, OMEGA_SHARE, "bracket", "rewards")
    ways["estimated"] = (NOISE_LAM, omega, "estimated", "constant")
    ways["estimated-omega"] = (NOISE_LAM, PENALTY_OMEGA, "estimated", "penalty")
    schedule = Spec(DecreasingExploration, scale=numbers["explore_scale"]).named(scale="explore_scale")
    rest: dict[str, Any] = dict(data=numbers["data"], exploration=schedule)
    self_tuned = Spec(SelfTunedMetaKGL, noise_std=0.1, **rest).named(noise_std="likelihood_noise")
    return dataclasses.replace(
        base,
        name=name,
        summary=f"ways to choose lam and omega on {of}",
        agents={
            **{agent: spec for agent, spec in base.agents.items() if agent in ("oracle", "random", "full")},
            **{way: _meta_kgl(way, *values, **rest, tol=tol) for way, values in ways.items()},
            "self-tuned": self_tuned,
        },
    )


_ORTHONORMAL = "lifelong-legendre-orthonormal"
_ALL = (
    _by_lam("theory-lam", "lifelong-cosine", mean_square=0.5, tuned=(0.05, 0.25)),
    _by_lam("theory-lam-all", "lifelong-cosine-all", mean_square=0.5, tuned=(0.01, 0.25)),
    _by_lam("theory-lam-legendre", _ORTHONORMAL, mean_square=1.0, tuned=(0.8, 0.25)),
    _by_lam("theory-lam-legendre-all", f"{_ORTHONORMAL}-all", mean_square=1.0, tuned=(0.01, 0.25)),
    _by_lam("theory-lam-legendre-printed", "lifelong-legendre", mean_square=1 / 101, tuned=(0.0001, 0.25)),
    _by_lam(
        "theory-lam-legendre-printed-all", "lifelong-legendre-all", mean_square=1 / 101, tuned=(0.0005, 0.25)
    ),
    _by_lam("theory-lam-glmnet", "lifelong-glmnet-practitioner", tuned=(0.005, 0.01)),
    # On the half of the data sets on which nothing was chosen.
    _by_lam("theory-lam-glmnet-printed", "lifelong-glmnet", tuned=(0.05, 0.1)).changed(
        {"half": "second", "num_tasks": 23}
    ),
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""The experiments by name."""
