"""The tuners that are compared. A run is the list of scores of its trials, NaN for a failed one.

| method        | what it is                                                                 |
|---------------|----------------------------------------------------------------------------|
| `jlibo`       | one `jlibo.Tuner`, default settings, on all data sets: it has its own past |
| `jlibo-alone` | a new tuner for every data set: no past                                    |
| `optuna-tpe`  | Optuna's TPESampler, default settings, define-by-run                       |
| `optuna-gp`   | Optuna's GPSampler, default settings                                       |
| `random`      | random search                                                              |
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import jlibo
from benchmarks import harness
from benchmarks.automl import workers
from benchmarks.automl_models.evaluations import Evaluations
from benchmarks.automl_models.models import MODELS, Model
from benchmarks.tables.make_glmnet import _end_with_parent

OURS = "jlibo"
ALONE = "jlibo-alone"
PEERS = ("optuna-tpe", "optuna-gp")
METHODS = (OURS, ALONE, *PEERS, "random")

Score = Callable[[Mapping[str, Any]], float]


def play_jlibo(model: Model, tasks: Mapping[str, Score], budget: int, seed: int) -> dict[str, list[float]]:
    """Tune one task after another with one tuner; return the run of each."""
    runs = {}
    with jlibo.Tuner(model.space, seed=seed) as tuner:
        for name, score in tasks.items():
            runs[name] = []
            with tuner.task(name, budget=budget) as task:
                for trial in task:
                    runs[name].append(score(trial.params))
                    task.tell(trial, runs[name][-1])
    return runs


def play_random(model: Model, score: Score, budget: int, seed: int) -> list[float]:
    """Return the run of random search."""
    points = np.random.default_rng(seed).random((budget, model.space.num_parameters))
    return [score(model.space.from_unit(point)) for point in points]


def play_optuna(kind: str, model: Model, score: Score, budget: int, seed: int) -> list[float]:
    """Return the run of an Optuna sampler in a new study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    by_run = kind == "optuna-tpe"
    sampler = optuna.samplers.TPESampler if kind == "optuna-tpe" else optuna.samplers.GPSampler
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=seed))
    run = []
    for _ in range(budget):
        trial = study.ask()
        params = {}
        for place in model.space.conditions.order:  # parents first
            name = model.space.names[place]
            if not by_run or name in model.space.active_names(params):
                params[name] = suggest(trial, model, name)
        run.append(score(params))
        failed = np.isnan(run[-1])
        study.tell(
            trial,
            None if failed else run[-1],
            state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
        )
    return run


def suggest(trial: Any, model: Model, name: str) -> Any:
    """Return Optuna's value for a parameter of the model."""
    parameter = model.space[name]
    if isinstance(parameter, jlibo.Categorical):
        return trial.suggest_categorical(name, parameter.choices)
    ask = trial.suggest_int if isinstance(parameter, jlibo.Int) else trial.suggest_float
    return ask(name, parameter.low, parameter.high, log=parameter.log)


# ------------------------------------------------------------------------------------------------ in a worker


def start_worker() -> None:
    """Prepare a worker: no warnings, one thread, and an end when its parent ends."""
    _end_with_parent()
    workers.quiet()


def scorer(stored: Evaluations, model: str, data_set: str) -> Score:
    """Return the objective function of a task."""
    return lambda params: stored.score(model, data_set, params)


def run_key(method: str, model: str, data_set: str, budget: int, seed: int) -> dict[str, Any]:
    """Return the key of a stored run of a method that has no past and is not jlibo."""
    packages = harness.versions(workers.NEEDS.get(method, ()))
    space = MODELS[model].space.spec()
    return dict(
        method=method, model=model, space=space, data=data_set, budget=budget, seed=seed, versions=packages
    )


def play(
    method: str, model: str, data_sets: Sequence[str], budget: int, seed: int, path: str
) -> dict[str, list[float]]:
    """Return the runs of a method on data sets, in this order; `path` is the file of evaluations."""
    with Evaluations(path) as stored:
        if method == OURS:
            tasks = {name: scorer(stored, model, name) for name in data_sets}
            return play_jlibo(MODELS[model], tasks, budget, seed)
        return {name: play_alone(method, model, name, budget, seed, stored) for name in data_sets}


def play_alone(
    method: str, model: str, data_set: str, budget: int, seed: int, stored: Evaluations
) -> list[float]:
    """Return the run of a method that has no past, read from the file if it is there.

    Runs of jlibo are not stored, because its source may change without its version.
    """
    own_seed = workers.seed_of(seed, zlib.crc32(data_set.encode()), 0)
    score = scorer(stored, model, data_set)
    if method == ALONE:
        return play_jlibo(MODELS[model], {data_set: score}, budget, own_seed)[data_set]
    key = run_key(method, model, data_set, budget, seed)
    run = stored.run(key)
    if run is None:
        if method == "random":
            run = play_random(MODELS[model], score, budget, own_seed)
        else:
            run = play_optuna(method, MODELS[model], score, budget, own_seed)
        stored.add_run(key, run)
    return run


def timed_play(*arguments: Any) -> tuple[dict[str, list[float]], float]:
    """Return the runs of `play` and the elapsed seconds, evaluations and compilation included."""
    start = time.perf_counter()
    return play(*arguments), time.perf_counter() - start
