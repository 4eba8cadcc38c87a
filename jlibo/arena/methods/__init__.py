"""The methods of the arena: one file a family. Each has a tuple `METHODS`."""

from jlibo.arena.methods.doubly_robust import DoublyRobustLasso
from jlibo.arena.methods.empirical_bayes import EmpiricalBayes
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner
from jlibo.arena.methods.hierarchical import HierarchicalPrior, JointHierarchy
from jlibo.arena.methods.learned_priors import LikelihoodPrior, PredictivePrior
from jlibo.arena.methods.low_rank import JointOful, PhasedGreedy
from jlibo.arena.methods.subspaces import ExploreThenCommit, stage_lengths
from jlibo.arena.methods.task_moments import TaskMomentsPrior
from jlibo.arena.methods.trace_norm import TraceNormGreedy, TraceNormPrior

__all__ = [
    "AbstractStatisticsLearner",
    "DoublyRobustLasso",
    "EmpiricalBayes",
    "ExploreThenCommit",
    "HierarchicalPrior",
    "JointHierarchy",
    "JointOful",
    "LikelihoodPrior",
    "PhasedGreedy",
    "PredictivePrior",
    "TaskMomentsPrior",
    "TraceNormGreedy",
    "TraceNormPrior",
    "stage_lengths",
]
