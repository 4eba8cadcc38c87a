"""The command line of the arena: `jlibo arena`.

The command is checked before any work that takes time. Errors that the user can fix are raised as a
`UsageError`.
"""

import argparse
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jlibo.checks import did_you_mean_or_known
from jlibo.cli.failures import UsageError, say
from jlibo.cli.reproduce import check_folder, check_seeds, say_not_written, whole_number
from jlibo.experiments.run_folder import check_replaceable
from jlibo.printable import printable
from jlibo.programs.traced import keep_programs

if TYPE_CHECKING:
    from jlibo.arena import ArenaResult

One = TypeVar("One")
NAME = "arena"
"""Name of the folder in DIR."""
UNFINISHED = "arena.unfinished"
"""Name of the folder in DIR with the runs of an arena that is not finished."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `arena` to the commands of `jlibo`."""
    arena = commands.add_parser(
        "arena",
        help="run LiBO and its rivals side by side",
        description="Run methods on environments with the same draws, print their regret relative to the "
        f"oracle and what each is told, and write numbers, tables and figures to DIR/{NAME}. Runs that are "
        f"finished are kept in DIR/{UNFINISHED} until then, and the same command resumes after a crash. "
        "Later it starts again and replaces the result.",
    )
    arena.add_argument("--list", action="store_true", help="show methods and environments, and run nothing")
    arena.add_argument("--methods", metavar="NAME,...", help="methods (default all)")
    arena.add_argument("--environments", metavar="NAME,...", help="environments (default those of the arena)")
    arena.add_argument("--seeds", default="20", help="how many random seeds (default 20)")
    arena.add_argument("--first-seed", default="0", help="number of the first seed (default 0)")
    arena.add_argument("--tasks", metavar="M", help="number of tasks (default that of each environment)")
    arena.add_argument("--steps", metavar="N", help="steps of a task (default that of each environment)")
    arena.add_argument("--out", default="out", metavar="DIR", help="where to write (default out)")
    arena.add_argument(
        "--single",
        action="store_true",
        help="compute in single precision: faster, if the noise is not small",
    )
    arena.add_argument(
        "--no-cache", action="store_true", help="do not keep compiled programs in the user's cache folder"
    )
    arena.set_defaults(run=_arena)


def _arena(options: argparse.Namespace) -> int:
    num_seeds, first_seed = check_seeds(options.seeds, options.first_seed)
    tasks = None if options.tasks is None else whole_number("--tasks", options.tasks, at_least=1)
    steps = None if options.steps is None else whole_number("--steps", options.steps, at_least=1)
    import jax

    jax.config.update("jax_enable_x64", not options.single)
    from jlibo.arena import ENVIRONMENTS, METHODS

    methods = list(_named("--methods", options.methods, METHODS).values())
    environments = list(_named("--environments", options.environments, ENVIRONMENTS).values())
    if options.environments is None:
        environments = [one for one in environments if one.is_default or options.list]
    environments = [one.sized(num_tasks=tasks, horizon=steps) for one in environments]
    if options.list:
        return _list(methods, environments)
    if options.no_cache:
        jax.config.update("jax_compilation_cache_dir", None)
    else:
        keep_programs()
    from jlibo.arena import run_arena
    from jlibo.arena.folder import WRITTEN_BY, write_arena
    from jlibo.experiments.folder import NotWritten
    from jlibo.sweeps.progress import bar

    folder = Path(options.out)
    check_folder(folder)
    check_replaceable(folder / NAME, WRITTEN_BY)
    begin = time.perf_counter()
    with bar(NAME) as report:
        result = run_arena(
            methods,
            environments,
            num_seeds=num_seeds,
            first_seed=first_seed,
            out=folder / UNFINISHED,
            progress_fn=report,
        )
    seconds = time.perf_counter() - begin
    try:
        replaced = write_arena(result, folder / NAME, timing={"run_s": seconds})
    except NotWritten as problem:
        _print(result)
        return say_not_written(problem.error, problem.kept)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    _print(result)
    print(f"run {seconds:.0f} s; written to {printable(folder / NAME, max_length=1000)}/")
    if replaced is not None and replaced.about != result.about():
        say(f"note: this replaced another arena in '{printable(folder / NAME)}'.")
    return 0


def _named(option: str, text: str | None, known: Mapping[str, One]) -> dict[str, One]:
    if text is None:
        return dict(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} should be names, separated by commas, but got '{printable(text)}'.")
    for name in names:
        if name not in known:
            shown = printable(name, max_length=60)
            raise UsageError(f"{option}: there is no '{shown}'.{did_you_mean_or_known(name, known)}")
    return {name: known[name] for name in names}


def _list(methods, environments) -> int:
    from rich.console import Console
    from rich.table import Table

    from jlibo.arena import PRIVILEGES

    table = Table(box=None, pad_edge=False)
    for heading in ("method", "what it does", "tasks", "is told, or needs"):
        table.add_column(heading, no_wrap=heading == "method")
    for method in methods:
        told = ", ".join(PRIVILEGES[name] for name in method.card)
        table.add_row(method.name, method.summary, method.setting, told)
    Console().print(table)
    table = Table(box=None, pad_edge=False)
    for heading in ("environment", "what it is", "setting of", "tasks x steps"):
        table.add_column(heading, no_wrap=heading == "environment")
    for one in environments:
        table.add_row(one.name, one.summary, one.source, f"{one.num_tasks} x {one.horizon}")
    Console().print(table)
    return 0


def _print(result: "ArenaResult") -> None:
    from rich.console import Console
    from rich.table import Table

    from jlibo.arena import PRIVILEGES

    title = f"regret per task relative to the oracle, {result.num_seeds} seeds"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for one in result.environments:
        table.add_column(one.name, justify="right")
    table.add_column("is told, or needs")
    for method in result.methods:
        told = ", ".join(PRIVILEGES[name] for name in method.card)
        table.add_row(
            method.name, *(result.in_words(method.name, one.name) for one in result.environments), told
        )
    Console().print(table)
    Console().print("( ): regret per task, where the oracle has none.  -: the method does not run there.")
