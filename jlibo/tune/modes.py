"""What the tuner's two modes are made of; the simulator takes the same parts.

| mode       | meta-learner                                            | policy                        |
|------------|---------------------------------------------------------|-------------------------------|
| `adaptive` | support, then mean and covariance learned from the past | log expected improvement      |
| `paper`    | support, mean zero, equal weights; forced exploration   | GP-UCB                        |

Scores are standardised by each task's own data in both.
"""

import jax.numpy as jnp

from jlibo.belief.scaling import Standardise
from jlibo.checks import fail
from jlibo.meta import AdaptiveMetaKGL, SelfTunedMetaKGL
from jlibo.policies import GPUCB, AbstractPolicy, LogExpectedImprovement

MODES = ("adaptive", "paper")
NOISE_STD = 0.1
"""Noise of a score to begin with, as a share of the scores' own spread."""
PAPER_NU = 2.0


def make_learner(mode: str) -> AdaptiveMetaKGL | SelfTunedMetaKGL:
    """The meta-learner of a mode."""
    if mode == "adaptive":
        return AdaptiveMetaKGL()
    if mode == "paper":
        return SelfTunedMetaKGL()
    fail("mode", " or ".join(map(repr, MODES)), repr(mode))


def make_policy(mode: str) -> AbstractPolicy:
    """The policy of a mode."""
    if mode == "adaptive":
        return LogExpectedImprovement(jnp.asarray(NOISE_STD))
    if mode == "paper":
        return GPUCB(jnp.asarray(PAPER_NU), jnp.asarray(NOISE_STD))
    fail("mode", " or ".join(map(repr, MODES)), repr(mode))


def make_scaling() -> Standardise:
    """The units of the scores."""
    return Standardise()
