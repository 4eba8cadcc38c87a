"""Experiments that put the paper's theorems beside measurements.

| experiment             | question                                                                       |
|------------------------|--------------------------------------------------------------------------------|
| `theory-recovery`      | how often J_hat = J* against rows and tasks, beside the bounds of Theorem 3.3  |
| `theory-regret`        | lifelong regret and its parts, beside the terms of Theorem 4.1                 |
| `theory-exploration`   | forced exploration times 0, 1/8, ..., 2: how much is needed                    |
| `theory-kernels`       | tasks until J_hat = J* against p = 50, ..., 3,200: the claim log p             |
| `theory-coverage`      | how often f leaves the confidence bands, for every meta-learner                |

`theory-exploration-ts` and `theory-exploration-logei` are the third with Thompson sampling and with the
logarithm of expected improvement instead of GP-UCB. `theory_numbers` and `coverage_numbers` compute what they
report. `theory_lam` has the experiments on the choice of lam and omega.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jlibo.envs import AbstractEnv, SyntheticEnv
from jlibo.experiments import coverage_numbers, theory_numbers
from jlibo.experiments.experiment import Analysis, Experiment
from jlibo.experiments.paper import EXPERIMENTS as EXPERIMENTS_OF_THE_PAPER
from jlibo.experiments.parts import base_kernels, check_base_kernels, check_synthetic, oracle, synthetic
from jlibo.experiments.protocols import Lifelong
from jlibo.experiments.recovery import Recovery, Sized
from jlibo.experiments.spec import Spec
from jlibo.features import AbstractFeatures, sample_box
from jlibo.meta import (
    AdaptiveMetaKGL,
    FederatedMetaKGL,
    FixedPrior,
    MetaKeL,
    MetaKGL,
    SelfTunedMetaKGL,
)
from jlibo.meta.exploration import DecreasingExploration
from jlibo.policies import GPTS, GPUCB, LogExpectedImprovement

SCALES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Factors on the forced exploration in `theory-exploration`."""
ROWS = (2, 4, 8, 64, 256, 512)
"""Rows of a task in `theory-recovery`."""
KERNELS = (50, 200, 800, 3200)
"""Numbers of base kernels in `theory-kernels`."""


# --- parts --------------------------------------------------------------------------------------------------


def sized_meta_kgl(
    env: AbstractEnv,
    features: AbstractFeatures,
    *,
    lam: float,
    omega: float,
    lam_scaling: Literal["constant", "sqrt"],
    rows: int,
    kernels: int,
    tol: float = 1e-5,
) -> Sized:
    """Return Meta-KGL on the first `rows` rows of a task and the first `kernels` base kernels (0: all)."""
    learner = MetaKGL(lam=jnp.asarray(lam), omega=jnp.asarray(omega), lam_scaling=lam_scaling, tol=tol)
    return Sized(learner, rows, kernels or None)


def distractors(
    features: AbstractFeatures,
    *,
    support_size: int,
    among: int,
    norm_bound: float,
    beta_min: float,
    noise_std: float,
    num_candidates: int,
    key: PRNGKeyArray,
) -> SyntheticEnv:
    """Return an environment whose support is among the first kernels, at random candidates.

    An even grid of 1,000 points cannot tell cos(j pi x) from cos((1998 - j) pi x); random points can.
    """
    points = sample_box(features, num_candidates, key=jax.random.fold_in(key, 1))
    env = SyntheticEnv.draw(
        features,
        support_size=support_size,
        norm_bound=norm_bound,
        beta_min=beta_min,
        noise_std=noise_std,
        candidates=points,
        key=key,
    )
    scores = jax.random.uniform(key, (features.num_groups,))
    scores = jnp.where(jnp.arange(features.num_groups) < among, scores, -1)
    support = jnp.zeros(features.num_groups, bool).at[jax.lax.top_k(scores, support_size)[1]].set(True)
    return dataclasses.replace(env, support=support)


# --- experiments --------------------------------------------------------------------------------------------

_SYNTHETIC = Spec(synthetic, support_size=2, norm_bound=10.0, beta_min=0.5, noise_std=0.02)
_POLICY = Spec(GPUCB, nu=10.0, noise_std=0.1).named(noise_std="regulariser")
_CHECKS = (check_base_kernels, check_synthetic)


def _analysis(numbers: Any, figure: str) -> Analysis:
    def draw(values: dict[str, Any], title: str) -> Any:
        from jlibo.plot import theory as figures  # matplotlib is imported only to draw

        return getattr(figures, figure)(values, title)

    return Analysis(numbers, draw)


def _sized(number: int, *, rows: int, kernels: int, scaling: str, lam: float) -> Spec:
    spec = Spec(
        sized_meta_kgl, lam=lam, omega=0.25, lam_scaling=scaling, rows=rows, kernels=kernels, tol=1e-5
    )
    return spec.named(rows=f"rows_{number}", kernels=f"kernels_{number}")


def _explored(scale: float) -> Spec:
    schedule = Spec(DecreasingExploration, scale=scale).named(scale=f"explore_scale_{scale:g}")
    return Spec(
        MetaKGL, lam=0.05, omega=0.25, data="all", lam_scaling="constant", exploration=schedule, tol=1e-5
    )


_RECOVERY = Experiment(
    "theory-recovery",
    "Theorem 3.3: measured recovery against rows and tasks, with both bounds",
    environment=_SYNTHETIC,
    features=Spec(base_kernels, features="cosine", num_features=20),
    policy=_POLICY,
    # The lam of the theorem at the largest kappa, omega-bar z / (8 s*), over the root of the number of tasks.
    agents={
        f"n={rows}": _sized(number, rows=rows, kernels=0, scaling="sqrt", lam=0.25 * 0.5 / 2 / 8)
        for number, rows in enumerate(ROWS, 1)
    },
    protocol=Spec(Recovery, num_tasks=10, offline_rows=max(ROWS)),
    checks=_CHECKS,
    analysis=_analysis(theory_numbers.recovery, "figure_recovery"),
)

_REGRET = dataclasses.replace(
    EXPERIMENTS_OF_THE_PAPER["lifelong-cosine"],
    name="theory-regret",
    summary="Theorem 4.1: measured lifelong regret, its parts, and the bound",
    analysis=_analysis(theory_numbers.regret, "figure_regret"),
).changed({"num_features": 20, "support_size": 3, "num_tasks": 40, "horizon": 64})

_EXPLORATION = Experiment(
    "theory-exploration",
    "how much forced exploration: times 0, 1/8, ..., 2, learning from all data, GP-UCB",
    environment=_SYNTHETIC.changed({"support_size": 3, "noise_std": 0.1}),
    features=Spec(base_kernels, features="cosine", num_features=20),
    policy=_POLICY,
    agents={f"x {scale:g}": _explored(scale) for scale in SCALES},
    protocol=Spec(Lifelong, num_tasks=20, horizon=64),
    checks=_CHECKS,
    analysis=_analysis(theory_numbers.exploration, "figure_exploration"),
)

_KERNELS = Experiment(
    "theory-kernels",
    "the claim log p: tasks until the kernels are found, among 50 to 3,200",
    environment=Spec(
        distractors,
        support_size=3,
        among=50,
        norm_bound=10.0,
        beta_min=0.5,
        noise_std=0.1,
        num_candidates=1000,
    ),
    features=Spec(base_kernels, features="cosine", num_features=max(KERNELS)),
    policy=_POLICY,
    agents={
        f"p={kernels}": _sized(number, rows=10, kernels=kernels, scaling="constant", lam=0.25).named(
            rows="rows"
        )
        for number, kernels in enumerate(KERNELS, 1)
    },
    protocol=Spec(Recovery, num_tasks=15, offline_rows=10),
    checks=_CHECKS,
    analysis=_analysis(theory_numbers.kernels, "figure_kernels"),
)


_ALL_DATA: dict[str, Any] = dict(data="all", tol=1e-5)
_COVERAGE = Experiment(
    "theory-coverage",
    "how often f leaves the confidence bands, for every meta-learner",
    environment=_SYNTHETIC.changed(
        {"support_size": 3, "norm_bound": 1.0, "beta_min": 0.05, "noise_std": 0.1}
    ),
    features=Spec(base_kernels, features="cosine", num_features=20),
    policy=Spec(GPUCB, nu=2.0, noise_std=0.1).named(noise_std="regulariser"),
    agents={
        "oracle": Spec(oracle),
        "full": Spec(FixedPrior),
        "libo": Spec(MetaKGL, lam=0.05, omega=0.025, **_ALL_DATA),
        "flibo": Spec(FederatedMetaKGL, lam=0.02, omega=0.025, alpha=0.25, **_ALL_DATA).named(
            lam="lam_federated"
        ),
        "bracket": Spec(MetaKGL, lam=1 / 8, omega=0.025, lam_scaling="bracket", **_ALL_DATA).named(
            lam="lam_bracket"
        ),
        "meta-kel": Spec(MetaKeL, lam=0.05, **_ALL_DATA),
        "self-tuned": Spec(SelfTunedMetaKGL, noise_std=0.1, data="all").named(noise_std="likelihood_noise"),
        "adaptive": Spec(AdaptiveMetaKGL, noise_std=0.1).named(noise_std="likelihood_noise"),
    },
    protocol=Spec(Lifelong, num_tasks=10, horizon=50),
    checks=_CHECKS,
    analysis=_analysis(coverage_numbers.coverage, "figure_coverage"),
)


_ALL = (
    _RECOVERY,
    _REGRET,
    _EXPLORATION,
    dataclasses.replace(
        _EXPLORATION,
        name="theory-exploration-ts",
        summary="the same with Thompson sampling",
        policy=Spec(GPTS, noise_std=0.1).named(noise_std="regulariser"),
    ),
    dataclasses.replace(
        _EXPLORATION,
        name="theory-exploration-logei",
        summary="the same with the logarithm of expected improvement",
        policy=Spec(LogExpectedImprovement, noise_std=0.1).named(noise_std="regulariser"),
    ),
    _KERNELS,
    _COVERAGE,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""The experiments by name."""
