"""The command line of the tasks in a memory: `jlibo memory delete`, `rename` and `merge`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from jlibo.printable import printable
from jlibo.tune.memory.memory import Memory, MemoryFileError, MergeReport
from jlibo.tune.memory.merge import OnConflict
from jlibo.tune.memory.merged_file import merge_files


def add_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the actions of this module to those of `jlibo memory`."""
    delete = actions.add_parser("delete", help="delete tasks and their trials, all or none")
    delete.add_argument("file", metavar="FILE", help="a tuner's memory")
    delete.add_argument("tasks", metavar="TASK", nargs="+", help="the name of a task")
    delete.set_defaults(run=_delete)

    rename = actions.add_parser("rename", help="give a task another name")
    rename.add_argument("file", metavar="FILE", help="a tuner's memory")
    rename.add_argument("old", metavar="OLD", help="the name of the task")
    rename.add_argument("new", metavar="NEW", help="its new name")
    rename.set_defaults(run=_rename)

    merge = actions.add_parser("merge", help="add the tasks of memories to another, or to a new one")
    merge.add_argument("file", metavar="FILE", help="the memory to which the others are added")
    merge.add_argument("others", metavar="OTHER", nargs="+", help="a memory; it is not changed")
    merge.add_argument(
        "-o", "--out", metavar="NEW", help="write a new memory instead, which must not exist, and keep FILE"
    )
    merge.add_argument(
        "--on-conflict",
        choices=get_args(OnConflict),
        default="error",
        help="what to do if different tasks have one name: join them, rename or skip the later one",
    )
    merge.set_defaults(run=_merge)


def _delete(options: argparse.Namespace) -> int:
    with _one_line_errors(), Memory.open_existing(options.file) as memory:
        counts = memory.delete_tasks(options.tasks)
    for name, count in counts.items():
        print(f"the task '{printable(name)}' and its {count} trials are deleted.")
    return 0


def _rename(options: argparse.Namespace) -> int:
    with _one_line_errors(), Memory.open_existing(options.file) as memory:
        memory.rename_task(options.old, options.new)
    print(f"the task '{printable(options.old)}' is now called '{printable(options.new)}'.")
    return 0


def _merge(options: argparse.Namespace) -> int:
    target = options.file if options.out is None else options.out
    with _one_line_errors("--on-conflict"):
        reports = merge_files(options.file, options.others, options.out, on_conflict=options.on_conflict)
    for other, report in zip(options.others, reports, strict=True):
        for line in _report_lines(other, target, report):
            print(line)
    return 0


def _report_lines(other: str, target: str, report: MergeReport) -> Iterator[str]:
    yield (
        f"'{printable(other)}': {report.num_trials} trials and {report.num_tasks} tasks are new in "
        f"'{printable(target)}', {report.num_there} trials were there already."
    )
    for name in report.joined:
        yield f"joined: '{printable(name)}'"
    for old, new in report.renamed.items():
        yield f"renamed: '{printable(old)}' is '{printable(new)}'"
    for name in report.skipped:
        yield f"skipped: '{printable(name)}'"


@contextmanager
def _one_line_errors(option: str = "") -> Iterator[None]:
    """Raise errors about names, such as that of a task that does not exist, as ones that the user can fix."""
    try:
        yield
    except ValueError as error:
        words = str(error).replace("`on_conflict`", option)
        raise MemoryFileError(printable(words, max_length=1000)) from None
