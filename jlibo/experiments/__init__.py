"""The paper's experiments: settings as data, one runner, and a folder of results for each."""

from jlibo.experiments.runner import ExperimentResult, run_experiment, summarise
from jlibo.experiments.settings import REGISTRY, Experiment, SettingError, find, override
from jlibo.lifelong.offline import OfflineResult, run_offline

__all__ = [
    "REGISTRY",
    "Experiment",
    "ExperimentResult",
    "OfflineResult",
    "SettingError",
    "find",
    "override",
    "run_experiment",
    "run_offline",
    "summarise",
]
