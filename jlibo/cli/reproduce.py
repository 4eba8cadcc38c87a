"""The command line of the paper's experiments: `jlibo list`, `jlibo reproduce NAME`.

Errors that the user can fix are raised as one of `REPRODUCE_ERRORS` or as a `UsageError`, which `jlibo.cli`
prints as one line. The command is checked before any work that takes time.
"""

import argparse
import errno
import time
from pathlib import Path

import numpy as np

from jlibo.cli.failures import IO_ERROR, USAGE_ERROR, UsageError, explain_os_error, plus_minus, say
from jlibo.experiments.budget import check_fits
from jlibo.experiments.experiment import Experiment
from jlibo.experiments.registry import REGISTRY, find, load_experiments
from jlibo.experiments.run_folder import RunFolderError, check_replaceable, clear_leftovers
from jlibo.experiments.spec import SettingError
from jlibo.printable import printable
from jlibo.programs.traced import keep_programs

REPRODUCE_ERRORS = (SettingError, RunFolderError)
"""Errors that `jlibo.cli` prints as one line, with the exit code of usage errors."""

MAX_SEED = 2**31
BROKEN_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of the disk, not of the command; another command would get them too."""


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `list` and `reproduce` to the commands of `jlibo`."""
    listing = commands.add_parser("list", help="show the experiments")
    _add_experiments(listing)
    listing.set_defaults(run=_list)

    reproduce = commands.add_parser(
        "reproduce",
        help="run experiments, write tables and figures",
        description="Run experiments, print their tables, and write each run to a folder of its own: "
        "DIR/NAME, or with --set DIR/NAME,SETTING=VALUE. The same run again, also with other seeds or in "
        "another precision, replaces it. Files that this command did not write are never replaced.",
    )
    reproduce.add_argument("names", nargs="+", metavar="NAME", help="experiments, as `jlibo list` shows them")
    reproduce.add_argument("--seeds", default="20", help="how many random seeds (default 20)")
    reproduce.add_argument("--first-seed", default="0", help="number of the first seed (default 0)")
    reproduce.add_argument("--out", default="out", metavar="DIR", help="where to write (default out)")
    reproduce.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting, such as lam=0.3"
    )
    _add_experiments(reproduce)
    reproduce.add_argument("--x64", action="store_true", help="compute in double precision")
    reproduce.add_argument(
        "--no-cache", action="store_true", help="do not keep compiled programs in the user's cache folder"
    )
    reproduce.set_defaults(run=_reproduce)


def _add_experiments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--experiments",
        metavar="FILE.py",
        help="run this Python file first, which registers experiments of your own",
    )


def _list(options: argparse.Namespace) -> int:
    if options.experiments is not None:
        load_experiments(options.experiments)
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("experiment", "what it is", "agents", "tasks x steps"):
        table.add_column(heading, no_wrap=heading == "experiment")
    for experiment in REGISTRY.values():
        table.add_row(
            experiment.name,
            experiment.summary,
            ", ".join(experiment.agents),
            f"{experiment.make_protocol().num_tasks} x {experiment.make_protocol().horizon}",
        )
    Console().print(table)
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    num_seeds, first_seed = check_seeds(options.seeds, options.first_seed)
    experiments = _check_experiments(options, num_seeds)

    # jax is configured only after the command has been checked.
    import jax

    if options.x64:
        jax.config.update("jax_enable_x64", True)
    if options.no_cache:
        jax.config.update("jax_compilation_cache_dir", None)
    else:
        keep_programs()
    from jlibo.experiments.folder import NotWritten, run_name, write_result
    from jlibo.experiments.runner import run_experiment
    from jlibo.sweeps.progress import bar

    folder = Path(options.out)
    check_folder(folder)
    for experiment in experiments:
        check_replaceable(folder / run_name(experiment))
    # Until here the process has only started and imported, on one core, so CPU time is wall time.
    import_seconds = time.process_time()
    for experiment in experiments:
        with bar(experiment.name) as report:
            result = run_experiment(
                experiment, num_seeds=num_seeds, first_seed=first_seed, progress_fn=report
            )
        try:
            written = write_result(result, folder, extra_timing={"import_s": import_seconds})
        except NotWritten as problem:
            _print_table(result, None, import_seconds)
            return say_not_written(problem.error, problem.kept)
        _print_table(result, written.path, import_seconds)
        if written.replaced is not None:
            say(f"note: this replaced a run of {written.replaced} in '{printable(written.path)}'.")
    return 0


def check_seeds(seeds: str, first_seed: str) -> tuple[int, int]:
    """Return `--seeds` and `--first-seed` as whole numbers."""
    num, first = whole_number("--seeds", seeds, at_least=1), whole_number("--first-seed", first_seed)
    for name, number in (("--seeds", num), ("--first-seed", first)):
        if number > MAX_SEED:
            raise UsageError(f"{name} should be at most {MAX_SEED}, but got {_short(number)}.")
    if first + num > MAX_SEED:
        raise UsageError(
            f"--first-seed and --seeds should be at most {MAX_SEED} together, but got {first} and {num}."
        )
    return num, first


def _check_experiments(options: argparse.Namespace, num_seeds: int) -> list[Experiment]:
    if options.experiments is not None:
        load_experiments(options.experiments)
    changes = dict(_assignment(text) for text in options.set)
    experiments = [find(name).changed(changes) for name in dict.fromkeys(options.names)]
    for experiment in experiments:
        check_fits(
            experiment,
            num_seeds,
            seeds_at_once=experiment.make_protocol().seeds_at_once,
            itemsize=8 if options.x64 else 4,
        )
    return experiments


def check_folder(folder: Path) -> None:
    """Check before the run that results can be written, and remove leftovers of killed processes."""
    from jlibo.experiments.folder import check_writable

    try:
        check_writable(folder)
        clear_leftovers(folder)
    except OSError as error:
        if error.errno in BROKEN_DISK:
            raise
        reason = error.strerror or error
        raise UsageError(f"cannot write to '{printable(folder)}': {reason}. Give another --out.") from None
    except ValueError as error:  # an invalid file name
        raise UsageError(f"cannot write to '{printable(folder)}': {error}. Give another --out.") from None


def say_not_written(error: Exception, kept: Path | None) -> int:
    """Say that a result could not be written and what was kept, and return the exit code."""
    reason = explain_os_error(error) if isinstance(error, OSError) else str(error)
    rest = "nothing else could be kept"
    if kept is not None:
        names = ", ".join(sorted(file.name for file in kept.iterdir()))
        rest = f"'{printable(kept)}' has its {names}"
    say(f"the result could not be written: {reason.rstrip('.')}; {rest}.")
    return IO_ERROR if isinstance(error, OSError) else USAGE_ERROR


def _print_table(result, path: Path | None, import_seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from jlibo.experiments.folder import run_title
    from jlibo.experiments.summary import summarise
    from jlibo.lifelong.offline import OfflineResult
    from jlibo.solver.solution import Status, count_statuses

    sign = plus_minus()
    summary = summarise(result)
    protocol = result.experiment.make_protocol()
    offline = all(isinstance(run, OfflineResult) for run in result.results.values())
    heading = f"regret after {protocol.num_tasks} tasks" if offline else "lifelong regret"
    table = Table(title=f"{run_title(result.experiment)}, {result.num_seeds} seeds", title_justify="left")
    table.add_column("agent")
    # With a known true support, recovery is shown; without, as in tuning, the simple regret is.
    tuning = result.true_support is None
    early = min(10, protocol.horizon)
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
            best = [simple[str(step)] for step in (early, protocol.horizon)]
            cells = [kernels, *(f"{cell['mean']:.5f} {sign} {cell['se']:.5f}" for cell in best)]
        else:
            recovered = f"{agent['recovery_rate'][-1]:.0%}"
            cells = [f"{curve[0]:,.1f}", f"{curve[-1]:,.1f}", kernels, recovered]
        table.add_row(name, f"{total[0]:,.1f} {sign} {total[1]:,.1f}", *cells)
    console = Console()
    console.print(table)
    for name, agent in summary["agents"].items():
        if agent["empty_selections"]:
            console.print(
                f"note: {name} selected no kernel {agent['empty_selections']} times and used all of them "
                "instead; lam or omega may be too large."
            )
        if not np.isfinite(np.asarray(result.results[name].regret)).all():
            console.print(
                f"note: {name} has regret that is not finite: some setting is too large or too small for "
                "this precision; --x64 has a wider range."
            )
        for status, count in count_statuses(result.results[name].status).items():
            if status != Status.CONVERGED:
                what = "solves" if status.is_of_solve else "tasks"
                console.print(f"note: {name}: {count} {what} ended with {status.words}.")
    if tuning:
        console.print("best after ...: simple regret, a mean over the last half of the tasks.")
    timing = summary["timing"]
    words = f"import {import_seconds:.1f} s, compile {timing['compile_s']:.1f} s, run {timing['run_s']:.1f} s"
    if path is not None:
        words += f"; written to {printable(path, max_length=1000)}/"
    # In a `Text`, brackets in the path are not parsed as markup. Without wrapping, the path can be copied.
    console.print(Text(words), soft_wrap=True)
    console.file.flush()


def whole_number(name: str, text: str, *, at_least: int = 0) -> int:
    """Return the value of an option as a whole number."""
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{name} should be a whole number, but got '{_short(text)}'.") from None
    if number < at_least:
        raise UsageError(f"{name} should be at least {at_least}, but got {_short(text)}.")
    return number


def _short(value: object) -> str:
    return printable(value, max_length=60)


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise UsageError(f"--set should be NAME=VALUE, such as lam=0.3, but got '{_short(text)}'.")
    return name.strip(), value.strip()
