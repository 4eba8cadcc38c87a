"""Tune three similar problems one after another: each study learns from the earlier ones."""

from __future__ import annotations

import optuna
import optunahub


def make_objective(best_depth: int) -> optuna.study.study.ObjectiveFuncType:
    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
        depth = trial.suggest_int("depth", 1, 8)
        return (depth - best_depth) ** 2 + rate

    return objective


if __name__ == "__main__":
    module = optunahub.load_module(package="samplers/libo")
    storage = optuna.storages.InMemoryStorage()
    for name, best_depth in [("first", 3), ("second", 4), ("third", 3)]:
        sampler = module.LiBOSampler(storage=storage, seed=0)
        study = optuna.create_study(storage=storage, study_name=name, sampler=sampler)
        study.optimize(make_objective(best_depth), n_trials=8)
        print(name, study.best_value, study.best_params)
