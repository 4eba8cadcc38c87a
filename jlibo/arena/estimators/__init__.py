"""Estimates of rivals of LiBO, as pure functions of the sufficient statistics of tasks."""

from jlibo.arena.estimators.eigen import symmetric_eigen, top_subspace
from jlibo.arena.estimators.empirical_bayes import fit_gaussian, fit_low_rank, total_log_marginal
from jlibo.arena.estimators.gaussian import Gaussian, condition, log_marginal
from jlibo.arena.estimators.hierarchical import (
    MeanEvidence,
    evidence_on_mean,
    hierarchical_beliefs,
    hyper_posterior,
    leave_one_out_priors,
)
from jlibo.arena.estimators.low_rank import (
    LowRankFit,
    low_rank_least_squares,
    start_basis,
    task_least_squares,
)
from jlibo.arena.estimators.statistics import TaskStatistics, statistics_of

__all__ = [
    "Gaussian",
    "LowRankFit",
    "MeanEvidence",
    "TaskStatistics",
    "condition",
    "evidence_on_mean",
    "fit_gaussian",
    "fit_low_rank",
    "hierarchical_beliefs",
    "hyper_posterior",
    "leave_one_out_priors",
    "log_marginal",
    "low_rank_least_squares",
    "start_basis",
    "statistics_of",
    "symmetric_eigen",
    "task_least_squares",
    "top_subspace",
    "total_log_marginal",
]
