"""Experiments: specifications, a registry with the paper's experiments, a runner, and folders of results."""

from jlibo.experiments.experiment import Analysis, Experiment
from jlibo.experiments.parts import oracle, random_search
from jlibo.experiments.protocols import Lifelong, Offline
from jlibo.experiments.recovery import Recovery, Sized
from jlibo.experiments.registry import REGISTRY, find, load_experiments, override, register
from jlibo.experiments.runner import ExperimentResult, run_experiment
from jlibo.experiments.spec import SettingError, Spec
from jlibo.experiments.summary import summarise
from jlibo.lifelong.offline import OfflineResult, run_offline

__all__ = [
    "REGISTRY",
    "Analysis",
    "Experiment",
    "ExperimentResult",
    "Lifelong",
    "Offline",
    "OfflineResult",
    "Recovery",
    "SettingError",
    "Sized",
    "Spec",
    "find",
    "load_experiments",
    "oracle",
    "override",
    "random_search",
    "register",
    "run_experiment",
    "run_offline",
    "summarise",
]
