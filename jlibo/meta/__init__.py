"""Meta-learners: one file a learner, one small interface."""

from jlibo.meta.base import AbstractMetaLearner, MetaInfo, Setting, TaskData
from jlibo.meta.federated import FederatedMetaKGL, client_step, server_vote
from jlibo.meta.fixed import FixedPrior
from jlibo.meta.meta_kel import MetaKeL
from jlibo.meta.meta_kgl import MetaKGL
from jlibo.meta.rows import Rows, compress_rows

__all__ = [
    "AbstractMetaLearner",
    "FederatedMetaKGL",
    "FixedPrior",
    "MetaInfo",
    "MetaKGL",
    "MetaKeL",
    "Rows",
    "Setting",
    "TaskData",
    "client_step",
    "compress_rows",
    "server_vote",
]
