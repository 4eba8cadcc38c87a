"""The command line of the tuner's memory: `jlibo memory show`, `export`, `import`, `salvage`.

`delete`, `rename` and `merge` are in `jlibo.cli.tasks`, `report` is in `jlibo.cli.report`.

Errors that the user can fix are raised as `MemoryFileError`, which `jlibo.cli` prints without a traceback.
Names and values in a memory may come from an untrusted source and are escaped before they are printed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from jlibo.cli import report as report_cli
from jlibo.cli import tasks as tasks_cli
from jlibo.cli.output import print_lines
from jlibo.files import write_atomically
from jlibo.printable import MAX_LENGTH, printable
from jlibo.tune.memory.lines import (
    ImportReport,
    LineError,
    check_lines,
    export_lines,
    import_lines,
    import_results,
)
from jlibo.tune.memory.memory import Memory, MemoryFileError, MemoryMismatch
from jlibo.tune.memory.records import strict_json
from jlibo.tune.memory.tables import SCORE, TASK, Result, read_results
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.summary import TaskSummary, short, summaries


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `memory` and its actions to the commands of `jlibo`."""
    memory = commands.add_parser("memory", help="show, report, export, import, merge or salvage a memory")
    actions = memory.add_subparsers(dest="action", metavar="ACTION", required=True)
    tasks_cli.add_actions(actions)
    report_cli.add_action(actions)

    show = actions.add_parser("show", help="print the search space and the tasks")
    show.add_argument("file", metavar="FILE", help="a tuner's memory")
    show.set_defaults(run=_show)

    export = actions.add_parser("export", help="write the trials as JSON lines")
    export.add_argument("file", metavar="FILE", help="a tuner's memory")
    export.add_argument("--out", default="-", metavar="LINES", help="where to write (default: print)")
    export.add_argument("--space", action="store_true", help="write the search space instead of the trials")
    export.set_defaults(run=_export)

    importing = actions.add_parser("import", help="add trials from JSON lines or a CSV, all or none")
    importing.add_argument("file", metavar="FILE", help="a tuner's memory; created if there is none")
    importing.add_argument(
        "lines",
        metavar="LINES",
        help="a file from `jlibo memory export` (- is stdin), or a CSV file, whose name ends in .csv",
    )
    importing.add_argument(
        "--score", default=SCORE, metavar="COLUMN", help="the column of scores of a CSV (default: score)"
    )
    importing.add_argument(
        "--space",
        metavar="SPACE.json",
        help="a file from `jlibo memory export --space`; required for a new memory",
    )
    importing.add_argument("--minimise", action="store_true", help="lower scores are better")
    importing.set_defaults(run=_import)

    salvaging = actions.add_parser("salvage", help="copy the readable part of a damaged memory to a new one")
    salvaging.add_argument("file", metavar="FILE", help="a damaged memory; it is not changed")
    salvaging.add_argument("new", metavar="NEW", help="path of the new memory; must not exist")
    salvaging.add_argument(
        "--space", metavar="SPACE.json", help="the search space, used if that of FILE cannot be read"
    )
    salvaging.add_argument(
        "--minimise", action="store_true", help="lower scores are better; used likewise if FILE does not say"
    )
    salvaging.add_argument(
        "--unverified",
        action="store_true",
        help="also keep rows whose checksum does not match if they are valid",
    )
    salvaging.set_defaults(run=_salvage)


# --- show ---------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with Memory.open_existing(options.file, write=False) as memory:
        tasks, trials = memory.snapshot()
        num_spaces = len(memory.spaces)
        kernels = _selected_kernels(memory)
    console = Console(highlight=False)
    direction = "maximise" if memory.maximise else "minimise"

    def show(line: str) -> None:
        # In a `Text`, brackets in names are not parsed as markup.
        console.print(Text(printable(line, max_length=None)), soft_wrap=True)

    console.begin_capture()  # printed at the end by `print_lines`: rich would handle a failed write itself
    show(f"{options.file}: {len(tasks)} tasks, {len(trials)} trials, to {direction}")
    for name, parameter in memory.space.items():
        show(f"  {printable(name)}: {printable(repr(parameter), max_length=10 * MAX_LENGTH)}")
    if num_spaces > 1:
        num_unfit = sum(not trial.fits for trial in trials)
        show(
            f"the last of {num_spaces} search spaces; {num_unfit} trials do not fit into it and do not teach"
        )
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("source")
    for heading in ("complete", "failed", "stopped", "pending", "best score"):
        table.add_column(heading, justify="right")
    table.add_column("best parameters")
    for summary in summaries(tasks, trials, maximise=memory.maximise):
        table.add_row(*(Text(printable(cell)) for cell in _cells(summary)))
    if tasks:
        console.print()
        console.print(table)
    if kernels is not None:
        console.print()
        show(kernels)
    print_lines(console.end_capture().splitlines())
    return 0


def _cells(task: TaskSummary) -> list[str]:
    counts = map(str, (task.num_complete, task.num_failed, task.num_stopped, task.num_pending))
    if task.best_score is None or task.best_params is None:
        return [task.name, task.source, *counts, "-", "-"]
    params = ", ".join(f"{name}={short(value)}" for name, value in task.best_params.items())
    return [task.name, task.source, *counts, f"{task.best_score:.6g}", params]


def _selected_kernels(memory: Memory) -> str | None:
    """Return a line about the importance of parameters, or None without a task that has two scores."""
    num_features = report_cli.num_features(memory.space)
    if num_features > report_cli.MOST_FEATURES:
        return f"what matters is not computed: the space has {num_features:,} features."
    from jlibo.tune.tuner import Tuner  # a slow import that other commands do not need

    importance = Tuner(memory.space, memory=memory).importance()
    if not importance:
        return None
    selected = [f"{name} {_percent(share)}" for name, share in importance.items() if share > 0]
    dropped = [name for name, share in importance.items() if share == 0]
    words = f"matters: {', '.join(selected)}"
    return f"{words}; not selected: {', '.join(dropped)}" if dropped else words


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.005 else "< 1 %"


# --- export -------------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    with Memory.open_existing(options.file, write=False) as memory:
        if options.space:
            lines = iter([json.dumps(memory.space.spec(), indent=2, allow_nan=False)])
        else:
            lines = export_lines(memory)
        if options.out == "-":
            print_lines(lines)
        else:
            _write_file(options.out, lines, memory_path=options.file)
    return 0


def _write_file(out: str, lines: Iterable[str], *, memory_path: str) -> None:
    """Write a file atomically: an incomplete export must not replace a complete one."""
    path = Path(out)
    try:
        if path.exists() and path.samefile(memory_path):
            raise MemoryFileError(f"--out '{printable(out)}' is the memory itself: give another path.")
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            return
        write_atomically(path.resolve(), lambda file: file.writelines(f"{line}\n".encode() for line in lines))
    except OSError as error:
        raise MemoryFileError(
            f"cannot write '{printable(out)}' ({error.strerror or error}): give another --out."
        ) from None


# --- import -------------------------------------------------------------------------------------------------


def _import(options: argparse.Namespace) -> int:
    is_csv = options.lines.lower().endswith(".csv")
    report = _import_csv(options) if is_csv else _import_lines(options)
    print_lines(
        [
            f"{report.num_trials} trials and {report.num_tasks} tasks are new, "
            f"{report.num_skipped} trials were there already."
        ]
    )
    return 0


def _import_lines(options: argparse.Namespace) -> ImportReport:
    lines = _read_lines(options.lines)  # before the memory is opened, so that it is not locked during input

    def check(space: SearchSpace, maximise: bool) -> None:
        check_lines(lines, space=space, maximise=maximise)

    try:
        with _open_to_import(options, check) as memory:
            return import_lines(memory, lines)
    except LineError as error:
        raise LineError(
            f"{'the input' if options.lines == '-' else printable(options.lines)}, {error}"
        ) from None


def _import_csv(options: argparse.Namespace) -> ImportReport:
    def read(space: SearchSpace, maximise: bool = True) -> list[Result]:
        try:
            return read_results(space, options.lines, score=options.score, task=TASK, argument=options.lines)
        except OSError as error:
            words = f"cannot read '{printable(options.lines)}' ({error.strerror or error})."
            raise MemoryFileError(words) from None
        except ValueError as error:
            words = printable(str(error).rstrip("."), max_length=500)
            raise LineError(f"{words}; nothing was imported.") from None

    with _open_to_import(options, read) as memory:
        return import_results(memory, read(memory.space))


def _open_to_import(options: argparse.Namespace, check: Callable[[SearchSpace, bool], object]) -> Memory:
    """Open the memory, or create it after `check(space, maximise)` has raised no error."""
    space = None if options.space is None else _read_space(options.space)
    path = Path(options.file)
    try:
        if path.exists() and path.stat().st_size > 0:
            memory = Memory.open_existing(path)
        elif space is None:
            raise MemoryFileError(
                f"there is no memory at '{printable(path)}': a new one needs --space SPACE.json."
            )
        else:
            check(space, not options.minimise)  # before a file is created
            memory = Memory.open(path, space=space, maximise=not options.minimise)
    except OSError as error:
        raise MemoryFileError(f"cannot look at '{printable(path)}' ({error.strerror or error}).") from None
    try:
        _check_same_problem(memory, space, minimise=options.minimise)
    except BaseException:
        memory.close()
        raise
    return memory


def _check_same_problem(memory: Memory, space: SearchSpace | None, *, minimise: bool) -> None:
    """Raise a `MemoryMismatch` if `--space` or `--minimise` was given and differs from the memory."""
    maximise = False if minimise else memory.maximise
    differences = memory.differences(space=space or memory.space, maximise=maximise)
    if differences:
        raise MemoryMismatch(
            f"'{printable(memory.path)}' holds another problem than --space and --minimise describe:\n"
            + "\n".join(f"  {line}" for line in differences)
        )


def _read_lines(name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # `str.splitlines` would also split at other characters that JSON strings may contain.
        return data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise MemoryFileError(f"cannot read '{printable(name)}' ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise LineError(
            f"{printable(name)}, line {number}: this is not UTF-8; nothing was imported."
        ) from None


def _read_space(name: str) -> SearchSpace:
    try:
        return SearchSpace.from_spec(strict_json(Path(name).read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise MemoryFileError(f"cannot read '{printable(name)}' ({error.strerror or error}).") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise MemoryFileError(
            f"'{printable(name)}' is not a search space as `jlibo memory export --space` writes it: "
            f"{printable(error, max_length=500)}"
        ) from None


# --- salvage ------------------------------------------------------------------------------------------------


def _salvage(options: argparse.Namespace) -> int:
    """Salvage a memory, and return 1 if anything was lost, else 0."""
    from jlibo.tune.memory.salvage import salvage

    report = salvage(
        options.file,
        options.new,
        space=None if options.space is None else _read_space(options.space),
        maximise=not options.minimise,
        verify=not options.unverified,
    )
    lines = [f"{report.num_tasks} tasks and {report.num_trials} trials are in '{printable(options.new)}'."]
    if report.complete:
        lines.append("nothing was lost.")
    lines += [f"lost: {count} x {reason}" for reason, count in sorted(report.lost.items())]
    lines += [f"note: {printable(note)}" for note in report.notes]
    print_lines(lines)
    return 0 if report.complete else 1
