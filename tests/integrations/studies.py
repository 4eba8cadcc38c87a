"""An objective of three parameters, and studies and samplers for it, for the tests of LiBOSampler."""

import math

import optuna
from optuna.distributions import FloatDistribution, IntDistribution

from jlibo.integrations.optuna import trials as optuna_trials
from jlibo.integrations.optuna.sampler import LiBOSampler
from jlibo.tune import Float, Int, SearchSpace

DISTRIBUTIONS = {
    "x": FloatDistribution(0, 1),
    "rate": FloatDistribution(1e-4, 1, log=True),
    "depth": IntDistribution(1, 9),
}
SPACE = SearchSpace(x=Float(0, 1), rate=Float(1e-4, 1, log=True), depth=Int(1, 9))
LEVEL = 0.05
SIZES = {"interactions": False, "num_basis": 4, "num_joint": 32}
"""The groups of the default dictionary with fewer features, so that learning takes little time."""


def small_sampler(*args, **options) -> LiBOSampler:
    """Return a sampler with the small dictionary."""
    return LiBOSampler(*args, sizes=SIZES, **options)


def loss(x: float, rate: float, depth: int, shift: float = 0.0) -> float:
    """Return a loss with minimum 0, at x = 0.7, a rate of about 2e-3 and depth 3 if `shift` is 0."""
    place = math.log10(rate) / 4 + 1
    return 4 * (x - 0.7 - shift) ** 2 + 3 * (place - 0.3 - shift) ** 2 + 0.02 * (depth - 3) ** 2


def objective(shift: float = 0.0, sign: float = 1.0):
    def evaluate(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        rate = trial.suggest_float("rate", 1e-4, 1, log=True)
        return sign * loss(x, rate, trial.suggest_int("depth", 1, 9), shift)

    return evaluate


def random_study(num_trials: int = 20, *, seed: int = 0, direction: str = "minimize") -> optuna.Study:
    """Return a finished study of another sampler, in memory."""
    sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=sampler, direction=direction, study_name=f"random {seed}")
    study.optimize(objective(sign=1.0 if direction == "minimize" else -1.0), n_trials=num_trials)
    return study


def trials_needed(study: optuna.Study, level: float) -> int:
    reached = [trial.number for trial in study.trials if trial.value is not None and trial.value <= level]
    return min(reached, default=len(study.trials)) + 1


def all_params(study: optuna.Study) -> list[dict]:
    return [trial.params for trial in study.trials]


def watch_trials(monkeypatch) -> list:
    """Collect the records of the study that each choice is made from."""
    seen = []
    records = optuna_trials.with_explored
    monkeypatch.setattr(optuna_trials, "with_explored", lambda *args: seen.append(records(*args)) or seen[-1])
    return seen


class LiBOSamplerAt:
    """Context manager for a sampler with a memory."""

    def __init__(self, path):
        self.sampler = small_sampler(path, seed=0)

    def __enter__(self) -> LiBOSampler:
        return self.sampler

    def __exit__(self, *_: object) -> None:
        self.sampler.close()
