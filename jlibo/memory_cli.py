"""The command line of the tuner's memory: `jlibo memory show`, `jlibo memory export`, `jlibo memory import`.

What the user can put right is raised as a `MemoryFileError`, which `jlibo.cli` prints without a traceback.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jlibo.files import write_atomically
from jlibo.tune.memory import Memory, MemoryFileError, MemoryMismatch, TaskRecord, TrialRecord
from jlibo.tune.memory_lines import LineError, check_lines, export_lines, import_lines
from jlibo.tune.space import SearchSpace


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `memory` and its actions to the commands of `jlibo`."""
    memory = commands.add_parser(
        "memory", help="look at a tuner's memory, write it as text, read it from text"
    )
    actions = memory.add_subparsers(dest="action", metavar="ACTION", required=True)

    show = actions.add_parser("show", help="print the search space and the tasks")
    show.add_argument("file", metavar="FILE", help="a tuner's memory")
    show.set_defaults(run=_show)

    export = actions.add_parser("export", help="write the trials as JSON lines")
    export.add_argument("file", metavar="FILE", help="a tuner's memory")
    export.add_argument("--out", default="-", metavar="LINES", help="where to write (default: print)")
    export.add_argument("--space", action="store_true", help="write the search space instead of the trials")
    export.set_defaults(run=_export)

    importing = actions.add_parser("import", help="add trials from JSON lines, all of them or none")
    importing.add_argument("file", metavar="FILE", help="a tuner's memory, which is made if it is new")
    importing.add_argument("lines", metavar="LINES", help="what `jlibo memory export` wrote; - is the input")
    importing.add_argument(
        "--space",
        metavar="SPACE.json",
        help="what `jlibo memory export --space` wrote; a new memory needs it",
    )
    importing.add_argument("--minimise", action="store_true", help="low scores are good ones")
    importing.set_defaults(run=_import)


# --- show ---------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with Memory.open_existing(options.file, write=False) as memory:
        tasks, trials = memory.snapshot()
        kernels = _selected_kernels(memory)
    console = Console(highlight=False)
    direction = "maximise" if memory.maximise else "minimise"
    # Names come from users: as `Text` a bracket in them is a bracket, and not markup.
    heading = f"{options.file}: {len(tasks)} tasks, {len(trials)} trials, to {direction}"
    console.print(Text(heading), soft_wrap=True)
    for name, parameter in memory.space.items():
        console.print(Text(f"  {name}: {parameter!r}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("source")
    for heading in ("complete", "failed", "pending", "best score"):
        table.add_column(heading, justify="right")
    table.add_column("best parameters")
    by_task: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
    for trial in trials:
        by_task[trial.task_id].append(trial)
    for task in tasks:
        table.add_row(*(Text(cell) for cell in _cells(task, by_task[task.id], memory.maximise)))
    if tasks:
        console.print()
        console.print(table)
    if kernels is not None:
        console.print()
        console.print(Text(kernels), soft_wrap=True)
    return 0


def _cells(task: TaskRecord, trials: list[TrialRecord], maximise: bool) -> list[str]:
    counts = [sum(trial.state == state for trial in trials) for state in ("complete", "failed", "pending")]
    scored = [(trial.score, trial) for trial in trials if trial.score is not None]
    if not scored:
        return [task.name, task.source, *map(str, counts), "-", "-"]
    # The first of equals, in either direction.
    score, best = (max if maximise else min)(scored, key=lambda pair: pair[0])
    params = ", ".join(f"{name}={_short(value)}" for name, value in best.params.items())
    return [task.name, task.source, *map(str, counts), f"{score:.6g}", params]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _selected_kernels(memory: Memory) -> str | None:
    """What the tasks teach about the parameters, in words; None before there is a task with two scores."""
    from jlibo.tune.tuner import Tuner  # here: learning compiles, and the other commands should not wait

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
            _print_lines(lines)
        else:
            _write_file(options.out, lines, memory_path=options.file)
    return 0


def _print_lines(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has had enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_file(out: str, lines: Iterable[str], *, memory_path: str) -> None:
    """Write a whole file or none: a half-written export must not take the place of a good one."""
    path = Path(out)
    try:
        if path.exists() and path.samefile(memory_path):
            raise MemoryFileError(f"--out '{out}' is the memory itself: give another path.")
        if path.exists() and not path.is_file():  # a pipe or a device: there is nothing to replace
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            return
        write_atomically(path.resolve(), lambda file: file.writelines(f"{line}\n".encode() for line in lines))
    except OSError as error:
        raise MemoryFileError(
            f"cannot write '{out}' ({error.strerror or error}): give another --out."
        ) from None


# --- import -------------------------------------------------------------------------------------------------


def _import(options: argparse.Namespace) -> int:
    lines = _read_lines(options.lines)  # all of it first: the memory is not locked while someone types
    space = None if options.space is None else _read_space(options.space)
    path = Path(options.file)
    try:
        if path.exists() and path.stat().st_size > 0:
            memory = Memory.open_existing(path)
        elif space is None:
            raise MemoryFileError(f"there is no memory at '{path}': a new one needs --space SPACE.json.")
        else:
            maximise = not options.minimise
            check_lines(lines, space=space, maximise=maximise)  # a bad line should leave no new file behind
            memory = Memory.open(path, space=space, maximise=maximise)
        with memory:
            _check_same_problem(memory, space, minimise=options.minimise)
            report = import_lines(memory, lines)
    except LineError as error:
        raise LineError(f"{'the input' if options.lines == '-' else options.lines}, {error}") from None
    except OSError as error:
        raise MemoryFileError(f"cannot look at '{path}' ({error.strerror or error}).") from None
    print(
        f"{report.num_trials} trials and {report.num_tasks} tasks are new, "
        f"{report.num_skipped} trials were there already."
    )
    return 0


def _check_same_problem(memory: Memory, space: SearchSpace | None, *, minimise: bool) -> None:
    """What the command says about the problem has to fit the memory; what it leaves out, fits."""
    maximise = False if minimise else memory.maximise
    differences = memory.differences(space=space or memory.space, maximise=maximise)
    if differences:
        raise MemoryMismatch(
            f"'{memory.path}' remembers another problem than --space and --minimise say:\n"
            + "\n".join(f"  {line}" for line in differences)
        )


def _read_lines(name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # Split at the ends of lines alone: JSON may hold other characters that `str.splitlines` splits at.
        return data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise MemoryFileError(f"cannot read '{name}' ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise LineError(f"{name}, line {number}: this is not UTF-8; nothing was imported.") from None


def _read_space(name: str) -> SearchSpace:
    try:
        return SearchSpace.from_spec(json.loads(Path(name).read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise MemoryFileError(f"cannot read '{name}' ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise MemoryFileError(
            f"'{name}' is not a search space as `jlibo memory export --space` writes it: {error}"
        ) from None
