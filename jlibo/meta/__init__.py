"""Meta-learners: one file a learner, one small interface."""

from jlibo.meta.adaptive import AdaptiveMetaKGL
from jlibo.meta.base import AbstractMetaLearner, MetaInfo, RunSizes, TaskData
from jlibo.meta.federated import FederatedMetaKGL, client_step, server_vote
from jlibo.meta.fixed import FixedPrior
from jlibo.meta.hierarchy import fit_hierarchy
from jlibo.meta.meta_kel import MetaKeL
from jlibo.meta.meta_kgl import MetaKGL
from jlibo.meta.past import PastTasks, no_past, remember
from jlibo.meta.rows import Rows, compress_rows
from jlibo.meta.selection import SelfTunedMetaKGL, choose_support

__all__ = [
    "AbstractMetaLearner",
    "AdaptiveMetaKGL",
    "FederatedMetaKGL",
    "FixedPrior",
    "MetaInfo",
    "MetaKGL",
    "MetaKeL",
    "PastTasks",
    "Rows",
    "RunSizes",
    "SelfTunedMetaKGL",
    "TaskData",
    "choose_support",
    "client_step",
    "compress_rows",
    "fit_hierarchy",
    "no_past",
    "remember",
    "server_vote",
]
