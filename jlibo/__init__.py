"""jlibo: lifelong Bayesian optimisation as pure functions of arrays and a key."""

from typing import TYPE_CHECKING

from jlibo import startup as _startup  # noqa: F401  (first: all other imports take time)

# isort: split
import logging as _logging

from jlibo.programs.collector import collector_paused as _collector_paused

with _collector_paused():  # these import nearly everything else, jax included
    from jlibo import federated as federated
    from jlibo import privacy as privacy
    from jlibo import sweeps as sweeps
    from jlibo import tune as tune
from jlibo.belief import posterior as posterior
from jlibo.belief.posterior import Belief as Belief
from jlibo.belief.posterior import Posterior as Posterior
from jlibo.belief.prior import Prior as Prior
from jlibo.belief.prior import PriorMixture as PriorMixture
from jlibo.belief.prior import full_prior as full_prior
from jlibo.belief.prior import mixture as mixture
from jlibo.belief.prior import support_prior as support_prior
from jlibo.belief.scaling import AbstractScaling as AbstractScaling
from jlibo.belief.scaling import RawRewards as RawRewards
from jlibo.belief.scaling import Standardise as Standardise
from jlibo.envs import AbstractEnv as AbstractEnv
from jlibo.envs import FunctionEnv as FunctionEnv
from jlibo.envs import SyntheticEnv as SyntheticEnv
from jlibo.envs import TableEnv as TableEnv
from jlibo.envs import Task as Task
from jlibo.features import AbstractFeatures as AbstractFeatures
from jlibo.features import Concatenate as Concatenate
from jlibo.features import Cosine as Cosine
from jlibo.features import Fourier as Fourier
from jlibo.features import FunctionFeatures as FunctionFeatures
from jlibo.features import Legendre as Legendre
from jlibo.features import Polynomial as Polynomial
from jlibo.features import Scaled as Scaled
from jlibo.features import Unpenalised as Unpenalised
from jlibo.features import box_grid as box_grid
from jlibo.features import box_midpoints as box_midpoints
from jlibo.features import check_bounded as check_bounded
from jlibo.features import max_kernel_diagonal as max_kernel_diagonal
from jlibo.features import normalise as normalise
from jlibo.features import sample_box as sample_box
from jlibo.lifelong import metrics as metrics
from jlibo.lifelong.loop import run_agents as run_agents
from jlibo.lifelong.loop import run_lifelong as run_lifelong
from jlibo.lifelong.one_task import TaskResult as TaskResult
from jlibo.lifelong.one_task import draw_task as draw_task
from jlibo.lifelong.one_task import run_task as run_task
from jlibo.lifelong.play import LifelongResult as LifelongResult
from jlibo.meta import AbstractMetaLearner as AbstractMetaLearner
from jlibo.meta import AdaptiveMetaKGL as AdaptiveMetaKGL
from jlibo.meta import FederatedMetaKGL as FederatedMetaKGL
from jlibo.meta import FixedPrior as FixedPrior
from jlibo.meta import MetaInfo as MetaInfo
from jlibo.meta import MetaKeL as MetaKeL
from jlibo.meta import MetaKGL as MetaKGL
from jlibo.meta import PastTasks as PastTasks
from jlibo.meta import RunSizes as RunSizes
from jlibo.meta import SelfTunedMetaKGL as SelfTunedMetaKGL
from jlibo.meta import TaskData as TaskData
from jlibo.meta.exploration import AbstractExploration as AbstractExploration
from jlibo.meta.exploration import ConstantExploration as ConstantExploration
from jlibo.meta.exploration import CustomExploration as CustomExploration
from jlibo.meta.exploration import DecreasingExploration as DecreasingExploration
from jlibo.meta.exploration import FirstTasksExploration as FirstTasksExploration
from jlibo.meta.exploration import NoExploration as NoExploration
from jlibo.policies import GPTS as GPTS
from jlibo.policies import GPUCB as GPUCB
from jlibo.policies import OFUL as OFUL
from jlibo.policies import AbstractPolicy as AbstractPolicy
from jlibo.policies import BoxMaximum as BoxMaximum
from jlibo.policies import ExpectedImprovement as ExpectedImprovement
from jlibo.policies import Greedy as Greedy
from jlibo.policies import LogExpectedImprovement as LogExpectedImprovement
from jlibo.policies import TheoreticalNu as TheoreticalNu
from jlibo.policies import Uniform as Uniform
from jlibo.policies import choose as choose
from jlibo.policies import maximise as maximise
from jlibo.solver.group_lasso import Solution as Solution
from jlibo.solver.group_lasso import Status as Status
from jlibo.solver.group_lasso import group_lasso as group_lasso
from jlibo.solver.group_lasso import group_lasso_path as group_lasso_path
from jlibo.solver.group_lasso import lam_grid as lam_grid
from jlibo.solver.group_lasso import lambda_max as lambda_max
from jlibo.sweeps import Labelled as Labelled
from jlibo.sweeps import sweep as sweep
from jlibo.tables import Table as Table
from jlibo.tables import load_table as load_table
from jlibo.tables import read_csv as read_csv
from jlibo.tables import read_hpob as read_hpob
from jlibo.tables import read_random_bot as read_random_bot
from jlibo.tune import Categorical as Categorical
from jlibo.tune import Float as Float
from jlibo.tune import Int as Int
from jlibo.tune import SearchSpace as SearchSpace
from jlibo.tune import Trial as Trial
from jlibo.tune import Tuner as Tuner
from jlibo.version import __version__ as __version__

# Messages of the logger "jlibo" are shown only if the program configures logging.
_logging.getLogger("jlibo").addHandler(_logging.NullHandler())

if TYPE_CHECKING:
    from jlibo import plot as plot


def __getattr__(name: str):
    # Drawing needs matplotlib, which takes half as long to import as all the rest: only who draws waits.
    if name == "plot":
        import importlib

        return importlib.import_module("jlibo.plot")
    raise AttributeError(f"module 'jlibo' has no attribute '{name}'")
