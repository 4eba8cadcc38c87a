"""Environments: sequences of bandit tasks over finite candidate sets."""

from jlibo.envs.base import AbstractEnv, Task
from jlibo.envs.function import FunctionEnv
from jlibo.envs.synthetic import SyntheticEnv
from jlibo.envs.table import TableEnv

__all__ = ["AbstractEnv", "FunctionEnv", "SyntheticEnv", "TableEnv", "Task"]
