"""Environments with linear rewards over any action set: a law of weights, a law of arms, and noise."""

from jlibo.envs.linear.arms import BallArms as BallArms
from jlibo.envs.linear.arms import BoxArms as BoxArms
from jlibo.envs.linear.arms import CandidateArms as CandidateArms
from jlibo.envs.linear.arms import EllipsoidArms as EllipsoidArms
from jlibo.envs.linear.arms import FreshArms as FreshArms
from jlibo.envs.linear.arms import TaskArms as TaskArms
from jlibo.envs.linear.base import AbstractArms as AbstractArms
from jlibo.envs.linear.base import AbstractWeights as AbstractWeights
from jlibo.envs.linear.base import LinearEnv as LinearEnv
from jlibo.envs.linear.base import LinearTask as LinearTask
from jlibo.envs.linear.facts import Facts as Facts
from jlibo.envs.linear.sparse import JointlySparseWeights as JointlySparseWeights
from jlibo.envs.linear.sparse import KernelWeights as KernelWeights
from jlibo.envs.linear.weights import GaussianWeights as GaussianWeights
from jlibo.envs.linear.weights import LowRankWeights as LowRankWeights
from jlibo.envs.linear.weights import ShiftedWeights as ShiftedWeights
