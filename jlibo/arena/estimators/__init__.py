"""Estimates of rivals of LiBO, as pure functions of the sufficient statistics of tasks."""

from jlibo.arena.estimators.doubly_robust import group_lasso_of, propensity, pseudo_reward, rows_of_statistics
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
from jlibo.arena.estimators.joint_bonus import JointChoice, confidence_radius, joint_choice
from jlibo.arena.estimators.low_rank import (
    LowRankFit,
    low_rank_least_squares,
    start_basis,
    task_least_squares,
)
from jlibo.arena.estimators.marginal_likelihood import (
    DiagonalPrior,
    HyperPrior,
    fit_diagonal_prior,
    objective_slope,
)
from jlibo.arena.estimators.prequential import (
    TaskRows,
    fit_predictive_prior,
    held_out_loss,
    one_step_losses,
    predictive_losses,
)
from jlibo.arena.estimators.statistics import TaskStatistics, statistics_of
from jlibo.arena.estimators.subspace import reward_moment, subspace_prior, weight_moment
from jlibo.arena.estimators.task_moments import TaskMoments, moment_belief, task_moments
from jlibo.arena.estimators.trace_norm import (
    TraceNormFit,
    practical_lam,
    shrink_singular_values,
    trace_norm_least_squares,
)

__all__ = [
    "DiagonalPrior",
    "Gaussian",
    "HyperPrior",
    "JointChoice",
    "LowRankFit",
    "MeanEvidence",
    "TaskMoments",
    "TaskRows",
    "TaskStatistics",
    "TraceNormFit",
    "condition",
    "confidence_radius",
    "evidence_on_mean",
    "fit_diagonal_prior",
    "fit_gaussian",
    "fit_low_rank",
    "fit_predictive_prior",
    "group_lasso_of",
    "held_out_loss",
    "hierarchical_beliefs",
    "hyper_posterior",
    "joint_choice",
    "leave_one_out_priors",
    "log_marginal",
    "low_rank_least_squares",
    "moment_belief",
    "objective_slope",
    "one_step_losses",
    "practical_lam",
    "predictive_losses",
    "propensity",
    "pseudo_reward",
    "reward_moment",
    "rows_of_statistics",
    "shrink_singular_values",
    "start_basis",
    "statistics_of",
    "subspace_prior",
    "symmetric_eigen",
    "task_least_squares",
    "task_moments",
    "top_subspace",
    "total_log_marginal",
    "trace_norm_least_squares",
    "weight_moment",
]
