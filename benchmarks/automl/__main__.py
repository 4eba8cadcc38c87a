"""Number of trials that a tuning task needs after other tasks, for jlibo and its peers, on many tables.

    python -m benchmarks.automl [--table FILE.npz ...] [--shipped] [--methods NAME ...] [--orders 20]
    python -m benchmarks.automl --csv FILE --log NAME --minimise

Tasks of a table of evaluations (by default the elastic net on 49 data sets) are tuned with 50 trials each and
no configuration tried twice. `make automl` runs it. There are two regimes, see `regimes`: in `own` a method
learns from its own trials on the tasks before; in `random` it is given random trials of half of the tasks.

| method                               | what it is                                                       |
|--------------------------------------|------------------------------------------------------------------|
| `random`                             | random search; its expectation is exact                          |
| `gp-ucb`, `gp-ei`                    | jlibo's two policies on the full kernel, without past tasks      |
| `paper`, `adaptive`                  | jlibo's two modes, as in `Tuner`: they learn from past tasks     |
| `portfolio`                          | the configurations that were best on past tasks, see `portfolio` |
| `portfolio-complete`                 | the same from complete tables of the past tasks: a reference     |
| `rgpe`                               | a ranking-weighted ensemble of Gaussian processes, see `rgpe`    |
| `empirical-gp`                       | mean and covariance learned by EM, see `empirical_gp`            |
| `optuna-tpe`, `optuna-gp`, `botorch` | the peers, see `peers`, without past tasks                       |

As a control, the same tasks are made unrelated (`problem.draw_unrelated`) and tuned by `gp-ei` and `adaptive`
in the regime `own`. The report is printed and written to `report.md` in the folder `--out`, with the figures.

All runs are stored in `--out`/runs and used again as long as everything that they depend on is the same
(`store`). After a change of jlibo's source only jlibo's part is computed.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))  # a smaller pool can deadlock jax on CPU

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import harness
from benchmarks.automl import agents, empirical_gp, portfolio, regimes, report, tables, workers
from benchmarks.automl.problem import Problem, draw_unrelated, random_regret, thin
from benchmarks.automl.regimes import Regime
from benchmarks.automl.store import Store, source_digest, source_of_jlibo
from benchmarks.automl.study import Study

PEERS = ("optuna-tpe", "optuna-gp", "botorch")
AGENTS = ("gp-ucb", "paper", "gp-ei", "adaptive")
LOCAL = {
    "portfolio": portfolio.Portfolio,
    "portfolio-complete": portfolio.CompletePortfolio,
    "empirical-gp": empirical_gp.EmpiricalGP,
}
"""Methods that run one task after another in this process, implemented in this folder."""
LOCAL_PACKAGES = ("numpy", "jax", "jaxlib", "optax")
SLOW = ("empirical-gp", "rgpe")
"""Methods that run on the first `--slow-orders` orders only."""
METHODS = ("random", *AGENTS, *LOCAL, "rgpe", *PEERS)
PACKAGES = ("jlibo", "jax", "jaxlib", "numpy", "optuna", "botorch", "gpytorch", "torch")


class Bench:
    """The benchmark on one table."""

    def __init__(self, problem: Problem, arguments: argparse.Namespace, methods: list[str]):
        self.problem, self.arguments, self.methods = problem, arguments, methods
        self.budget = min(arguments.budget, problem.num_configs)
        self.seed = arguments.seed
        self.seconds: dict[str, float] = {}
        self.workers = workers.Workers(
            problem,
            folder=arguments.out / "runs",
            budget=self.budget,
            seed=self.seed,
            num_workers=arguments.workers,
        )

    def run(self) -> list[Study]:
        """Return the studies of all regimes."""
        arguments, problem = self.arguments, self.problem
        title = f"{problem.name} ({problem.num_tasks} tasks x {problem.num_configs} configurations)"
        peers = self.workers.run_peers(
            [name for name in PEERS if name in self.methods], arguments.peer_repeats
        )
        self.seconds |= {name: seconds for name, (_, seconds) in peers.items()}
        studies = []
        for name in arguments.regimes:
            if name == "own":
                regime = regimes.draw_own(problem, arguments.orders, self.seed)
            else:
                regime = regimes.draw_random(problem, arguments.draws, self.budget, self.seed)
            study = Study(problem, regime, f"{title}: {report.REGIME_TITLES[name]}")
            if "random" in self.methods:
                study.add_expected("random", random_regret(problem, self.budget))
            self._add_agents(study)
            self._add_local(study)
            if "rgpe" in self.methods:
                for method, (runs, seconds) in self.workers.run_rgpe(self._few(regime, "rgpe")).items():
                    study.add_groups(method, runs)
                    self.seconds[f"{method}, {name}"] = seconds
            for method, (runs, _) in peers.items():
                study.add_repeats(method, runs)
            studies.append(study)
            if name == "own" and {"gp-ei", "adaptive"} <= set(self.methods) and not arguments.without_control:
                unrelated = dataclasses.replace(regime, name="unrelated")
                control = Study(problem, unrelated, f"{title}: {report.REGIME_TITLES['unrelated']}")
                self._add_agents(control, draw_unrelated(problem, arguments.orders, self.seed))
                studies.append(control)
        return [study for study in studies if study.regret]

    def _few(self, regime: Regime, method: str) -> Regime:
        is_slow = method in SLOW and regime.name == "own"
        return regime.head(self.arguments.slow_orders) if is_slow else regime

    def _add_agents(self, study: Study, points: np.ndarray | None = None) -> None:
        """Add jlibo's chosen agents; only those of the adaptive mode if `points` are given."""
        regime = study.regime
        for mode, without in agents.PAIRS.items():
            chosen = [name for name in (without, mode) if name in self.methods]
            if not chosen or (points is not None and mode != "adaptive"):
                continue
            stores = {name: self._store(name, regime, source_of_jlibo(), agents.PACKAGES) for name in chosen}
            if any(store.missing() for store in stores.values()):
                runs, seconds = self._play_agents(mode, chosen, regime, points)
                for name, store in stores.items():
                    for group in range(regime.num_groups):
                        store.put(group, runs[name][group], seconds / len(chosen) / regime.num_groups)
                    store.save()
            total = sum(float(store.seconds.sum()) for store in stores.values())
            self.seconds[f"{' and '.join(chosen)}, {regime.name}"] = total
            for name, store in stores.items():
                study.add_groups(name, store.runs)

    def _play_agents(
        self, mode: str, chosen: list[str], regime: Regime, points: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], float]:
        """Return the runs of agents that share a policy, by name, and the seconds of all of them."""
        settings = dict(chosen=chosen, budget=self.budget, seed=self.seed)
        total = regime.num_groups if regime.name == "random" else self.problem.num_tasks
        with _bar(f"{' and '.join(chosen)}, {regime.name}", total) as advance_to:
            start = time.perf_counter()
            if regime.name == "random":
                runs = agents.play_random(mode, self.problem, regime, progress_fn=advance_to, **settings)
            else:
                runs = agents.play_own(
                    mode, self.problem, regime, points=points, progress_fn=advance_to, **settings
                )
        return runs, time.perf_counter() - start

    def _store(self, method: str, regime: Regime, source: str, packages: Sequence[str]) -> Store:
        """Return the stored runs of a method on the groups of a regime."""
        shape = (*regime.tasks.shape, self.budget)
        identity = regime.identity() | self.workers.settings
        return Store(self.workers.folder, method, shape, packages=packages, source=source, **identity)

    def _add_local(self, study: Study) -> None:
        for name, make in LOCAL.items():
            if name not in self.methods:
                continue
            if name == "portfolio-complete" and not self.problem.shared:
                print(f"{name}: left out on {self.problem.name}, whose tasks have their own configurations")
                continue
            regime = self._few(study.regime, name)
            store = self._store(name, regime, source_digest([make.__module__]), LOCAL_PACKAGES)
            with _bar(f"{name}, {regime.name}", regime.num_groups) as advance_to:
                method = make(self.problem, self.budget)
                for group in store.missing():
                    start = time.perf_counter()
                    runs = regimes.play(method, regime, group, budget=self.budget, seed=self.seed)
                    store.put(group, runs, time.perf_counter() - start)
                    store.save()
                    advance_to(group + 1)
            self.seconds[f"{name}, {regime.name}"] = float(store.seconds.sum())
            study.add_groups(name, store.runs)


class _bar:
    """A progress bar as a context manager, which returns a function of the number done."""

    def __init__(self, words: str, total: int):
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns)
        self.bar = self.progress.add_task(words, total=total)

    def __enter__(self):
        self.progress.__enter__()
        return lambda done: self.progress.update(self.bar, completed=int(done))

    def __exit__(self, *error):
        return self.progress.__exit__(*error)


def read_problems(arguments: argparse.Namespace) -> list[Problem]:
    """Return the problems of the requested tables, thinned."""
    problems = [tables.read_npz(path) for path in arguments.table]
    if arguments.csv is not None:
        maximise = not arguments.minimise
        problems.append(
            tables.read_csv(arguments.csv, metric=arguments.metric, log=arguments.log, maximise=maximise)
        )
    if arguments.shipped or not problems:
        problems.append(tables.read_shipped(arguments.metric))
    names = [problem.name for problem in problems]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise tables.TableError(f"two tables have the name {twice[0]}; rename one of the files")
    sizes = dict(num_tasks=arguments.tasks, num_configs=arguments.configs, seed=arguments.seed)
    # A table of few tasks keeps half of them.
    return [
        thin(problem, skip_tasks=min(arguments.skip_tasks, problem.num_tasks // 2), **sizes)
        for problem in problems
    ]


def choose_methods(arguments: argparse.Namespace) -> list[str]:
    """Return the methods to run; print those whose packages are not installed."""
    wanted = [name for name in METHODS if name in (arguments.methods or METHODS)]
    if arguments.without_peers:
        wanted = [name for name in wanted if name not in workers.NEEDS]
    if arguments.peers_only:
        wanted = [name for name in wanted if name in ("random", *workers.NEEDS)]
    return workers.installed(wanted)


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.automl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--table", action="append", default=[], metavar="FILE", help="an .npz table; repeat it"
    )
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="also the table that comes with jlibo (without another table: always)",
    )
    parser.add_argument("--csv", metavar="FILE", help="a CSV table: columns task, parameters..., metric")
    parser.add_argument("--log", nargs="+", default=[], metavar="NAME", help="its parameters on a log scale")
    parser.add_argument("--metric", help="the metric, where there are several")
    parser.add_argument("--minimise", action="store_true", help="less of the CSV file's metric is better")
    parser.add_argument("--configs", type=int, default=400, help="configurations a table (%(default)s)")
    parser.add_argument("--tasks", type=int, help="tasks a table, drawn at random (all)")
    parser.add_argument(
        "--skip-tasks",
        type=int,
        default=0,
        metavar="N",
        help="leave out the first N tasks of that draw, on which settings were chosen, but at most half of "
        "the tasks of a table (%(default)s)",
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--regimes", nargs="+", choices=regimes.REGIMES, default=list(regimes.REGIMES))
    parser.add_argument("--orders", type=int, default=20, help="random orders of the tasks (%(default)s)")
    parser.add_argument("--slow-orders", type=int, default=4, help=f"of {', '.join(SLOW)} (%(default)s)")
    parser.add_argument("--draws", type=int, default=4, help="draws of past and new tasks (%(default)s)")
    parser.add_argument("--budget", type=int, default=50, help="trials a task (%(default)s)")
    parser.add_argument("--peer-repeats", type=int, default=2, help="runs a task and peer (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes for the peers (%(default)s)")
    parser.add_argument("--without-peers", action="store_true", help="without Optuna and BoTorch")
    parser.add_argument("--peers-only", action="store_true", help="Optuna, BoTorch and random search alone")
    parser.add_argument("--without-control", action="store_true", help="without the unrelated tasks")
    parser.add_argument("--out", type=Path, default=Path("out/automl"), help="folder (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    arguments = parser.parse_args(words)
    if arguments.csv is None and arguments.log:
        parser.error("--log goes with --csv")
    if arguments.without_peers and arguments.peers_only:
        parser.error("--without-peers and --peers-only leave nothing to run")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = read_arguments(words)
    methods = choose_methods(arguments)
    studies, seconds = [], {}
    for problem in read_problems(arguments):
        bench = Bench(problem, arguments, methods)
        print(
            f"{problem.name}: {problem.num_tasks} tasks, {problem.num_configs} configurations of "
            f"{', '.join(problem.space.names)}; {bench.budget} trials a task"
            + "".join(f"; {note}" for note in problem.notes)
        )
        studies += bench.run()
        seconds[problem.name] = bench.seconds
    machine = harness.describe_machine(PACKAGES)
    text = report.write_markdown(studies, seconds, machine)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "report.md"
    path.write_text(text)
    figures = report.plot_all(studies, arguments.out)
    print(f"Written: {', '.join(map(str, [path, *figures]))}")
    settings = ("budget", "orders", "slow_orders", "draws", "peer_repeats", "seed")
    result = dict(benchmark="automl", **{name: getattr(arguments, name) for name in settings})
    result |= dict(**report.as_json(studies), seconds=seconds, machine=machine)
    harness.emit(result, arguments.json)


if __name__ == "__main__":
    main()
