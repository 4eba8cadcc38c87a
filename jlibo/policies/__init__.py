"""Base bandits: one file per policy, one interface."""

from jlibo.policies.acting import choose_action
from jlibo.policies.base import AbstractPolicy, choose
from jlibo.policies.box import BoxMaximum, maximise
from jlibo.policies.expected_improvement import ExpectedImprovement
from jlibo.policies.gp_ts import GPTS
from jlibo.policies.gp_ucb import GPUCB, TheoreticalNu
from jlibo.policies.greedy import Greedy
from jlibo.policies.log_expected_improvement import LogExpectedImprovement
from jlibo.policies.oful import OFUL
from jlibo.policies.uniform import Uniform

__all__ = [
    "GPTS",
    "GPUCB",
    "OFUL",
    "AbstractPolicy",
    "BoxMaximum",
    "ExpectedImprovement",
    "Greedy",
    "LogExpectedImprovement",
    "TheoreticalNu",
    "Uniform",
    "choose",
    "choose_action",
    "maximise",
]
