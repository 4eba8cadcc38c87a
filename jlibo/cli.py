"""The command line: `jlibo list`, `jlibo reproduce`, `jlibo sweep`, `jlibo memory`."""

import argparse
import os
import sys
import time
from pathlib import Path

import jlibo
from jlibo import memory_cli, sweep_cli
from jlibo.tune.memory import MemoryFileError

USAGE_ERROR = 2


class UsageError(Exception):
    """Something the user can put right, said in one line."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except (UsageError, MemoryFileError, *sweep_cli.SWEEP_ERRORS) as error:
        print(f"jlibo: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("jlibo: stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jlibo", description="Lifelong Bayesian optimisation: reproduce the paper's experiments."
    )
    parser.add_argument("--version", action="version", version=f"jlibo {jlibo.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    listing = commands.add_parser("list", help="show the experiments")
    listing.set_defaults(run=_list)

    reproduce = commands.add_parser("reproduce", help="run experiments, write tables and figures")
    reproduce.add_argument("names", nargs="+", metavar="NAME", help="experiments, as `jlibo list` shows them")
    reproduce.add_argument("--seeds", default="20", help="how many random seeds (default 20)")
    reproduce.add_argument("--first-seed", default="0", help="number of the first seed (default 0)")
    reproduce.add_argument("--out", default="out", metavar="DIR", help="where to write (default out)")
    reproduce.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting, such as lam=0.3"
    )
    reproduce.add_argument("--x64", action="store_true", help="compute in double precision")
    reproduce.add_argument(
        "--no-cache", action="store_true", help="do not keep compiled programs in the user's cache folder"
    )
    reproduce.set_defaults(run=_reproduce)

    sweep_cli.add_parser(commands)
    memory_cli.add_parser(commands)
    return parser


def _list(options) -> int:
    from rich.console import Console
    from rich.table import Table

    from jlibo.experiments.settings import REGISTRY

    table = Table(box=None, pad_edge=False)
    for heading in ("experiment", "what it is", "lam", "lam (federated)", "tasks x steps"):
        table.add_column(heading, no_wrap=heading == "experiment")
    for experiment in REGISTRY.values():
        table.add_row(
            experiment.name,
            experiment.summary,
            f"{experiment.lam:g}",
            f"{experiment.lam_federated:g}",
            f"{experiment.num_tasks} x {experiment.horizon}",
        )
    Console().print(table)
    return 0


def _reproduce(options) -> int:
    from jlibo.experiments.settings import SettingError, find, override
    from jlibo.experiments.worlds import check_num_tasks

    num_seeds = _whole_number("--seeds", options.seeds, at_least=1)
    first_seed = _whole_number("--first-seed", options.first_seed, at_least=0)
    if first_seed + num_seeds > 2**31:
        raise UsageError(f"--first-seed should leave all seeds below 2**31, but got {first_seed}.")
    changes = dict(_assignment(text) for text in options.set)
    try:
        experiments = [override(find(name), changes) for name in options.names]
        for experiment in experiments:
            check_num_tasks(experiment)
    except SettingError as error:
        raise UsageError(str(error)) from None

    # jax is set up here, after everything that can be wrong about the command has been looked at.
    import jax

    if options.x64:
        jax.config.update("jax_enable_x64", True)
    if not options.no_cache:
        keep_compiled_programs(jax)
    from jlibo.experiments.folder import check_writable, write_result
    from jlibo.experiments.runner import run_experiment

    folder = Path(options.out)
    try:
        check_writable(folder)
    except OSError as error:
        raise UsageError(f"cannot write to '{folder}': {error.strerror or error}. Say --out DIR.") from None
    # All that the process did so far was to start and to import, and it did it on one core.
    import_seconds = time.process_time()
    for experiment in experiments:
        with _progress(experiment.name) as report:
            result = run_experiment(
                experiment, num_seeds=num_seeds, first_seed=first_seed, progress_fn=report
            )
        path = write_result(result, folder, extra_timing={"import_s": import_seconds})
        _print_table(result, path, import_seconds)
    return 0


def keep_compiled_programs(jax) -> None:
    """In the user's cache folder, for the next time."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(root) / "jlibo" / "compiled"))
    # By default jax keeps only what took long to compile; here all of it adds up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class _progress:
    """A bar with an estimate of the time left; on a terminal that can draw one, else silent."""

    def __init__(self, name: str):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.fields[name]} [dim]{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=1.0, name=name)

    def __enter__(self):
        self._bar.start()

        def report(share: float, words: str) -> None:
            self._bar.update(self._task, completed=share, description=words)

        return report

    def __exit__(self, *_):
        self._bar.stop()


def _print_table(result, path: Path, import_seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from jlibo.experiments.runner import summarise

    summary = summarise(result)
    offline = result.experiment.kind == "offline"
    heading = f"regret after {result.experiment.num_tasks} tasks" if offline else "lifelong regret"
    table = Table(title=f"{result.experiment.name}, {result.num_seeds} seeds", title_justify="left")
    table.add_column("agent")
    # Whoever knows the true kernels asks whether they were found; a tuner asks how good the best is so far.
    tuning = result.true_support is None
    early = min(10, result.experiment.horizon)
    if tuning:
        columns = ("kernels at the end", f"best after {early}", "best in the end")
    else:
        columns = ("first task", "last task", "kernels at the end", "exact recovery")
    for column in (heading, *columns):
        table.add_column(column, justify="right")
    for name, agent in summary["agents"].items():
        if offline:
            curve = agent["regret"]["mean"]
            total = (curve[-1], agent["regret"]["se"][-1])
        else:
            curve = agent["task_regret"]
            total = (agent["lifelong_regret"]["mean"], agent["lifelong_regret"]["se"])
        kernels = f"{agent['support_size'][-1]:.1f}"
        if tuning:
            simple = agent["simple_regret"]["last_half"]
            best = [simple[str(step)] for step in (early, result.experiment.horizon)]
            cells = [kernels, *(f"{cell['mean']:.5f} ± {cell['se']:.5f}" for cell in best)]
        else:
            recovered = f"{agent['recovery_rate'][-1]:.0%}"
            cells = [f"{curve[0]:,.1f}", f"{curve[-1]:,.1f}", kernels, recovered]
        table.add_row(name, f"{total[0]:,.1f} ± {total[1]:,.1f}", *cells)
    console = Console()
    console.print(table)
    for name, agent in summary["agents"].items():
        if agent["empty_selections"]:
            console.print(
                f"note: {name} selected no kernel {agent['empty_selections']} times and used all of them "
                "instead; lam or omega may be too large."
            )
        if agent["unconverged_solves"]:
            console.print(f"note: {name}: {agent['unconverged_solves']} solves stopped at the step limit.")
    if tuning:
        console.print("best after ...: simple regret, a mean over the last half of the tasks.")
    timing = summary["timing"]
    console.print(
        f"import {import_seconds:.1f} s, compile {timing['compile_s']:.1f} s, run {timing['run_s']:.1f} s; "
        f"written to {path}/",
        highlight=False,
    )


def _whole_number(name: str, text: str, *, at_least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{name} should be a whole number, but got '{text}'.") from None
    if number < at_least:
        raise UsageError(f"{name} should be at least {at_least}, but got {number}.")
    return number


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--set should be NAME=VALUE, such as lam=0.3, but got '{text}'.")
    return name.strip(), value.strip()


if __name__ == "__main__":
    sys.exit(main())
