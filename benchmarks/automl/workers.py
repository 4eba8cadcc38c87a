"""Runs of slow methods in worker processes, stored in files (`store`)."""

import importlib
import importlib.util
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.automl import peers, regimes, rgpe
from benchmarks.automl.problem import Problem
from benchmarks.automl.regimes import Regime
from benchmarks.automl.store import Store, source_digest

NEEDS = {**peers.NEEDS, "rgpe": rgpe.NEEDS}
"""The packages of each method that runs in workers."""
SAVE_EVERY = 20.0  # seconds
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def installed(methods: Iterable[str]) -> list[str]:
    """Return the methods whose packages are installed; print the others with the packages they need."""
    chosen = []
    for method in methods:
        if method in NEEDS and not available(method):
            needs = ", ".join(NEEDS[method])
            print(f"{method}: left out, because it needs {needs} (`make tuners` installs them)")
        else:
            chosen.append(method)
    return chosen


def available(method: str) -> bool:
    """Return whether the packages of a method are installed."""
    return all(importlib.util.find_spec(package) is not None for package in NEEDS[method])


def seed_of(seed: int, task: int, repeat: int) -> int:
    """Return the seed of a run, which is the same for all peers."""
    return int(np.random.SeedSequence((seed, task, repeat)).generate_state(1)[0] % 2**31)


def run_task(peer: str, problem: Problem, task: int, budget: int, seed: int) -> tuple[np.ndarray, float]:
    """Return the run of a peer on one task, padded with -1, and the elapsed seconds. Runs in a worker."""
    points, values, rows = problem.of_task(task)
    chosen, seconds = peers.run_peer(peer, problem.space, points, values, budget, seed)
    run = np.full(budget, -1)
    run[: len(chosen)] = rows[chosen]
    return run, seconds


def run_group(problem: Problem, regime: Regime, budget: int, seed: int) -> tuple[np.ndarray, float]:
    """Return the runs [place, step] of `rgpe` in a regime of one group, and the seconds. Runs in a worker."""
    start = time.perf_counter()
    runs = regimes.play(rgpe.RGPE(problem, budget), regime, 0, budget=budget, seed=seed)
    return runs, time.perf_counter() - start


class Workers:
    """Runs methods on a problem in worker processes.

    Methods that are installed but cannot be imported are left out, with a message.
    """

    def __init__(self, problem: Problem, *, folder: Path, budget: int, seed: int, num_workers: int = 2):
        self.problem, self.folder, self.budget, self.seed = problem, folder, budget, seed
        self.num_workers = num_workers
        self.settings = dict(table=problem.digest(), budget=budget, seed=seed)

    def run_peers(self, names: list[str], repeats: int) -> dict[str, tuple[np.ndarray, float]]:
        """Return runs [task, repeat, step] and seconds per run of every peer, by name."""
        num_tasks = self.problem.num_tasks
        stores, jobs = {}, {}
        for peer in names:
            shape = repeats * num_tasks, self.budget
            stores[peer] = self._store(peer, shape)

            def job(number, peer=peer):
                repeat, task = divmod(number, num_tasks)
                return run_task, peer, self.problem, task, self.budget, seed_of(self.seed, task, repeat)

            jobs[peer] = job
        answer = {}
        for peer, store in self._finish(stores, jobs).items():
            runs = store.runs.reshape(repeats, num_tasks, self.budget).swapaxes(0, 1)
            answer[peer] = runs, float(store.seconds.mean())
        return answer

    def run_rgpe(self, regime: Regime) -> dict[str, tuple[np.ndarray, float]]:
        """Return runs [group, place, step] and seconds per task of `rgpe`; empty if it cannot be imported."""
        shape = (*regime.tasks.shape, self.budget)
        store = self._store("rgpe", shape, **regime.identity())

        def job(group):
            return run_group, self.problem, regime.only(group), self.budget, seed_of(self.seed, group, 0)

        finished = self._finish({"rgpe": store}, {"rgpe": job})
        per_task = store.seconds.mean() / regime.tasks.shape[1]
        return {name: (store.runs, float(per_task)) for name in finished}

    def _store(self, method: str, shape: tuple[int, ...], **settings: str) -> Store:
        source = source_digest([peers.__name__, *([rgpe.__name__] if method == "rgpe" else [])])
        settings |= self.settings
        return Store(self.folder, method, shape, packages=NEEDS[method], source=source, **settings)

    def _finish(self, stores: dict[str, Store], jobs: dict[str, Callable[[int], tuple]]) -> dict[str, Store]:
        """Compute the missing jobs of all stores; return the stores of methods that can be imported."""
        unfinished = [name for name, store in stores.items() if store.missing()]
        if not unfinished:
            return stores
        for name in THREADS:
            os.environ[name] = "1"  # for the workers, which have one thread each
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=quiet) as pool:
            for name in unfinished:
                error = pool.submit(import_error, name).result()
                if error:
                    print(f"{name}: left out, because it cannot be imported ({error})")
                    del stores[name]
            _compute(pool, {name: store for name, store in stores.items() if store.missing()}, jobs)
        return stores


def _compute(pool: ProcessPoolExecutor, stores: dict[str, Store], jobs: dict[str, Callable]) -> None:
    """Compute missing jobs, with a progress bar for each method, and save them regularly."""
    words = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*words) as progress:
        bars, waiting = {}, {}
        for name, store in stores.items():
            total, missing = len(store.seconds), store.missing()
            bars[name] = progress.add_task(name, total=total, completed=total - len(missing))
            waiting |= {pool.submit(*jobs[name](number)): (store, number) for number in missing}
        saved = time.monotonic()
        try:
            for future in as_completed(waiting):
                store, number = waiting[future]
                store.put(number, *future.result())
                progress.advance(bars[store.method])
                if time.monotonic() - saved > SAVE_EVERY:
                    store.save()
                    saved = time.monotonic()
        finally:
            for store in stores.values():
                store.save()
            pool.shutdown(cancel_futures=True)


def import_error(method: str) -> str | None:
    """Return the error of importing a method's packages, or None. Runs in a worker."""
    try:
        for package in NEEDS[method]:
            importlib.import_module(package)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def quiet() -> None:
    """Silence warnings and limit threads. Runs in a worker before its first run."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        import torch
    except Exception:  # absent or broken: reported by `import_error`
        return
    torch.set_num_threads(1)
