"""The peers of the AutoML benchmark: Optuna's TPE and Gaussian-process samplers, and BoTorch.

None of them learns from other tasks, so a run depends only on its task and its seed. Each (task, repeat) is
run once, by worker processes, and stored in a file. All peers try configurations of the table, none twice:

| peer         | use of the table                                                                         |
|--------------|------------------------------------------------------------------------------------------|
| `optuna-tpe` | suggests in the unit box; the nearest configuration not tried yet is tried and told      |
| `optuna-gp`  | the same                                                                                 |
| `botorch`    | 3 random ones, then the largest log expected improvement among the untried ones          |

All have their default settings; Optuna begins with 10 random trials.
"""

import hashlib
import importlib
import importlib.util
import json
import logging
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import harness
from benchmarks.automl_table import Problem

NEEDS = {
    "optuna-tpe": ("optuna",),
    "optuna-gp": ("optuna", "torch", "scipy"),
    "botorch": ("botorch", "gpytorch", "torch"),
}
FORMAT = 1
BOTORCH_RANDOM = 3
SAVE_EVERY = 20.0  # seconds
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def available(peer: str) -> bool:
    """Return whether the packages of a peer are installed."""
    return all(importlib.util.find_spec(package) is not None for package in NEEDS[peer])


def snap(point: np.ndarray, points: np.ndarray, tried: np.ndarray) -> int:
    """Return the row of the untried configuration nearest to `point`."""
    distance = np.sum((points - point) ** 2, axis=1)
    return int(np.argmin(np.where(tried, np.inf, distance)))


# ----------------------------------------------------------------------------------------- one run of a peer


def run_optuna(kind: str, points: np.ndarray, values: np.ndarray, budget: int, seed: int) -> list[int]:
    """Run a new study. The suggested trial is closed as failed, which samplers ignore, and the nearest
    configuration of the table is added as a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {"optuna-tpe": optuna.samplers.TPESampler, "optuna-gp": optuna.samplers.GPSampler}
    study = optuna.create_study(direction="maximize", sampler=samplers[kind](seed=seed))
    space = {f"x{i}": optuna.distributions.FloatDistribution(0.0, 1.0) for i in range(points.shape[1])}
    tried, run = np.zeros(len(points), bool), []
    for _ in range(min(budget, len(points))):
        trial = study.ask(space)
        row = snap(np.array([trial.params[name] for name in space]), points, tried)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        params = dict(zip(space, map(float, points[row]), strict=True))
        made = optuna.trial.create_trial(params=params, distributions=space, value=float(values[row]))
        study.add_trial(made)
        tried[row] = True
        run.append(row)
    return run


def run_botorch(points: np.ndarray, values: np.ndarray, budget: int, seed: int) -> list[int]:
    """Run a Gaussian process with BoTorch's default priors on standardised values, refitted at every step."""
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.exceptions import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    pool, scores = torch.as_tensor(points), torch.as_tensor(values)[:, None]
    budget = min(budget, len(points))
    run = np.random.default_rng(seed).permutation(len(points))[: min(BOTORCH_RANDOM, budget)].tolist()
    while len(run) < budget:
        model = SingleTaskGP(pool[run], scores[run], outcome_transform=Standardize(m=1))
        try:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        except ModelFittingError:
            model.eval()  # with the initial hyper-parameters
        with torch.no_grad():
            gain = LogExpectedImprovement(model, best_f=scores[run].max())(pool[:, None, :])
        gain[run] = -torch.inf
        run.append(int(gain.argmax()))
    return run


def run_peer(
    peer: str, points: np.ndarray, values: np.ndarray, budget: int, seed: int
) -> tuple[list[int], float]:
    """Return the rows that a peer tries on one task, in order, and the elapsed seconds."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play = run_botorch if peer == "botorch" else lambda *args: run_optuna(peer, *args)
        run = play(points, values, budget, seed)
    return run, time.perf_counter() - start


# ----------------------------------------------------------------------------------------- all runs, in files


class Runs:
    """The runs of a peer on a problem, stored in a file, so that a killed benchmark can be resumed.

    `actions` are [task, repeat, step], -1 where nothing was tried; `seconds` are [task, repeat], NaN for
    missing runs.
    """

    def __init__(self, folder: Path, peer: str, problem: Problem, budget: int, repeats: int, seed: int):
        self.peer, self.repeats = peer, repeats
        self.versions = harness.versions(NEEDS[peer])
        settings = dict(budget=budget, seed=seed, random=BOTORCH_RANDOM if peer == "botorch" else None)
        key = dict(format=FORMAT, peer=peer, table=problem.digest(), versions=self.versions, **settings)
        self.key = json.dumps(key, sort_keys=True)
        self.path = folder / f"{peer}-{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.npz"
        self.actions = np.full((problem.num_tasks, repeats, budget), -1, np.int32)
        self.seconds = np.full((problem.num_tasks, repeats), np.nan)
        if self.path.exists():
            with np.load(self.path, allow_pickle=False) as stored:
                # Keep repeats in the file that exceed the requested number.
                more = max(repeats, stored["seconds"].shape[1]) - repeats
                self.actions = np.pad(self.actions, ((0, 0), (0, more), (0, 0)), constant_values=-1)
                self.seconds = np.pad(self.seconds, ((0, 0), (0, more)), constant_values=np.nan)
                known = stored["seconds"].shape[1]
                self.actions[:, :known], self.seconds[:, :known] = stored["actions"], stored["seconds"]

    def missing(self) -> list[tuple[int, int]]:
        """Return the missing (task, repeat) pairs, ordered by repeat."""
        todo = np.argwhere(np.isnan(self.seconds[:, : self.repeats].T))
        return [(int(task), int(repeat)) for repeat, task in todo]

    def put(self, task: int, repeat: int, rows: np.ndarray, seconds: float) -> None:
        self.actions[task, repeat, : len(rows)] = rows
        self.seconds[task, repeat] = seconds

    def save(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as stream:
            np.savez_compressed(stream, actions=self.actions, seconds=self.seconds, key=np.array(self.key))
        part.replace(self.path)


def seed_of(seed: int, task: int, repeat: int) -> int:
    """Return the seed of a run, which is the same for all peers."""
    return int(np.random.SeedSequence((seed, task, repeat)).generate_state(1)[0] % 2**31)


def run_peers(
    peers: list[str],
    problem: Problem,
    *,
    folder: Path,
    budget: int,
    repeats: int,
    seed: int,
    workers: int = 2,
) -> dict[str, Runs]:
    """Run every peer on every task, `repeats` times, except for the runs that are stored in files.

    A peer that is installed but cannot be imported is left out, with a message.
    """
    everything = {peer: Runs(folder, peer, problem, budget, repeats, seed) for peer in peers}
    unfinished = [peer for peer, runs in everything.items() if runs.missing()]
    if not unfinished:
        return everything
    for name in THREADS:
        os.environ[name] = "1"  # for the workers, which have one thread each
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet)
    with pool:
        for peer in unfinished:
            error = pool.submit(import_error, peer).result()
            if error:
                print(f"{peer}: left out, because it cannot be imported ({error})")
                del everything[peer]
        _finish(pool, {peer: everything[peer] for peer in unfinished if peer in everything}, problem, seed)
    return everything


def _finish(pool: ProcessPoolExecutor, unfinished: dict[str, Runs], problem: Problem, seed: int) -> None:
    """Compute the missing runs, with a progress bar for each peer, and save them regularly."""
    words = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*words) as progress:
        bars, jobs = {}, {}
        for peer, runs in unfinished.items():
            total, missing = problem.num_tasks * runs.repeats, runs.missing()
            bars[peer] = progress.add_task(peer, total=total, completed=total - len(missing))
            for task, repeat in missing:
                points, values, rows = problem.of_task(task)
                budget = runs.actions.shape[-1]
                job = pool.submit(run_peer, peer, points, values, budget, seed_of(seed, task, repeat))
                jobs[job] = runs, task, repeat, rows
        saved = time.monotonic()
        try:
            for job in as_completed(jobs):
                runs, task, repeat, rows = jobs[job]
                run, seconds = job.result()
                runs.put(task, repeat, rows[run], seconds)
                progress.advance(bars[runs.peer])
                if time.monotonic() - saved > SAVE_EVERY:
                    runs.save()
                    saved = time.monotonic()
        finally:
            for runs in unfinished.values():
                runs.save()
            pool.shutdown(cancel_futures=True)


def import_error(peer: str) -> str | None:
    """Return the error of importing a peer's packages, or None. Runs in a worker."""
    try:
        for package in NEEDS[peer]:
            importlib.import_module(package)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _quiet() -> None:
    """Silence warnings and limit threads. Runs in a worker before its first run."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        import torch
    except Exception:  # absent or broken: reported by `import_error`
        return
    torch.set_num_threads(1)
