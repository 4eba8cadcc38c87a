"""The command line: `jlibo list`, `reproduce`, `sweep`, `memory`, `theory`, `arena` and `federated`."""

import argparse
import functools
import sys
from typing import Any, NoReturn, final

from jlibo.cli import arena as arena_cli
from jlibo.cli import federated as federated_cli
from jlibo.cli import memory as memory_cli
from jlibo.cli import reproduce as reproduce_cli
from jlibo.cli import sweep as sweep_cli
from jlibo.cli import theory as theory_cli
from jlibo.cli.failures import UsageError as UsageError
from jlibo.cli.failures import run_safely
from jlibo.federated import BallotFileError
from jlibo.printable import printable
from jlibo.startup import finished, imported
from jlibo.tune.memory.memory import MemoryFileError
from jlibo.version import __version__

USAGE_ERRORS = (MemoryFileError, BallotFileError, *reproduce_cli.REPRODUCE_ERRORS, *sweep_cli.SWEEP_ERRORS)
"""Errors that the user can fix; the message says how."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code (see `failures`).

    **Arguments:**

    - `arguments`: the words after `jlibo`; by default those of the process.
    """
    words = sys.argv[1:] if arguments is None else arguments

    def run() -> int:
        imported()
        if any("\0" in word for word in words):  # invalid in file names, and shells cannot pass it
            raise UsageError("an argument has a null character.")
        parser = _parser()
        options = parser.parse_args(words)
        if options.command is None:
            parser.print_help()
            return 0
        return options.run(options)

    code = run_safely(run, known=USAGE_ERRORS, debug="--debug" in words)
    finished()
    return code


@final
class _Parser(argparse.ArgumentParser):
    """A parser with the option `--debug` that raises a one-line `UsageError` instead of exiting."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse ignores errors of a stream that cannot be written to. They must be reported.
        print(message, end="", file=file or sys.stdout)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{printable(message)}. `{self.prog} --help` shows what can be given.")


@functools.cache  # building it takes longer than a command that fails
def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jlibo",
        description="Lifelong Bayesian optimisation: reproduce the paper's experiments.",
        epilog="Exit codes: 0 success; 1 a bug in jlibo or not enough memory; 2 the command, a setting or a "
        "file that was given cannot be used; 74 reading or writing failed, for example on a full disk; "
        "130 interrupted; 141 the reader of the output closed the pipe.",
    )
    parser.add_argument("--version", action="version", version=f"jlibo {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND")
    reproduce_cli.add_parsers(commands)
    sweep_cli.add_parser(commands)
    memory_cli.add_parser(commands)
    theory_cli.add_parser(commands)
    arena_cli.add_parser(commands)
    federated_cli.add_parser(commands)
    return parser
