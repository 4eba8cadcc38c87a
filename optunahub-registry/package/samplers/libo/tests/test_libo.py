from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase
from optuna.testing.pytest_samplers import RelativeSamplerTestCase
from optuna.testing.pytest_samplers import SingleOnlySamplerTestCase
import optunahub
import pytest


REGISTRY_ROOT = Path(__file__).parents[3]
LiBOSampler = optunahub.load_local_module(
    package="samplers/libo", registry_root=str(REGISTRY_ROOT)
).LiBOSampler


class TestLiBOSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        # A small model, so that the many search spaces of these tests are compiled quickly.
        return lambda: LiBOSampler(seed=0, sizes={"num_basis": 1, "interactions": False})


def test_second_study_learns_from_the_first() -> None:
    storage = optuna.storages.InMemoryStorage()

    def objective(trial: optuna.Trial) -> float:
        return (trial.suggest_float("x", 0, 1) - 0.7) ** 2

    first = optuna.create_study(
        storage=storage, study_name="first", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    first.optimize(objective, n_trials=20)
    second = optuna.create_study(
        storage=storage, study_name="second", sampler=LiBOSampler(storage=storage, seed=0)
    )
    second.optimize(objective, n_trials=2)
    assert second.best_value < 0.01
