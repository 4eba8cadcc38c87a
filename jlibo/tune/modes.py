"""The meta-learner, policy and scaling of the tuner's modes; the simulator accepts the same. Internal.

| mode       | meta-learner                                            | policy                        |
|------------|---------------------------------------------------------|-------------------------------|
| `adaptive` | support, then mean and covariance learned from the past | log expected improvement      |
| `paper`    | support, mean zero, equal weights; forced exploration   | GP-UCB                        |
| `federated`| the support that the server of a federated run elected  | GP-UCB                        |

All modes standardise the scores of each task by its own data. The paper's mode learns from all trials of
past tasks: the few trials of forced exploration do not determine the coefficients of a parameter's functions.
Its kernel stays full until the data support a smaller one (`SelfTunedMetaKGL.guarded`), so that it is not
worse than GP-UCB on the full kernel by more than its forced exploration.

The federated mode learns nothing from the past but its units: the support and the number of exploration steps
come from the server (`model.following`). Before the first announcement it has the full kernel.
"""

import jax.numpy as jnp

from jlibo.belief.scaling import Standardise
from jlibo.checks import fail
from jlibo.meta import AdaptiveMetaKGL, FixedPrior, SelfTunedMetaKGL
from jlibo.meta.exploration import ConstantExploration
from jlibo.policies import GPUCB, AbstractPolicy, LogExpectedImprovement

MODES = ("adaptive", "paper", "federated")
NOISE_STD = 0.1
"""Initial standard deviation of the noise, relative to the spread of the scores."""
PAPER_NU = 2.0
PATIENCE = 4
"""Trials without a new best score after which every second trial of the adaptive mode is a random one, or one
that a tuner without a past would choose."""


def make_learner(mode: str) -> AdaptiveMetaKGL | SelfTunedMetaKGL | FixedPrior:
    """Return the meta-learner of a mode."""
    if mode == "adaptive":
        return AdaptiveMetaKGL()
    if mode == "paper":
        return SelfTunedMetaKGL(data="all")
    if mode == "federated":
        return FixedPrior(exploration=ConstantExploration())
    fail("mode", " or ".join(map(repr, MODES)), repr(mode))


def make_policy(mode: str) -> AbstractPolicy:
    """Return the policy of a mode."""
    if mode == "adaptive":
        return LogExpectedImprovement(jnp.asarray(NOISE_STD), patience=PATIENCE)
    if mode in ("paper", "federated"):
        return GPUCB(jnp.asarray(PAPER_NU), jnp.asarray(NOISE_STD))
    fail("mode", " or ".join(map(repr, MODES)), repr(mode))


def make_scaling() -> Standardise:
    """Return the scaling of the scores."""
    return Standardise()
