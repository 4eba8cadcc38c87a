"""Error handling of the command line: a one-line message and an exit code, without a traceback.

| exit code | when                                                                                         |
|-----------|----------------------------------------------------------------------------------------------|
| 0         | success                                                                                      |
| 1         | a bug in jlibo (the message names a file with the traceback), or not enough memory           |
| 2         | the command, a setting or a file that was given cannot be used                               |
| 74        | reading or writing failed, for example on a full disk                                        |
| 130       | interrupted (Ctrl-C)                                                                         |
| 141       | the reader of the output, such as `head`, closed the pipe                                    |
"""

import _thread
import contextlib
import os
import re
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from jlibo.printable import printable
from jlibo.startup import INTERRUPTED

FAULT, USAGE_ERROR, IO_ERROR, BROKEN_PIPE = 1, 2, 74, 141
MAX_LINE = 1000


class UsageError(Exception):
    """An error that the user can fix; the message is one line."""


def run_safely(run: Callable[[], int], *, known: tuple[type[Exception], ...], debug: bool = False) -> int:
    """Call `run` and return its exit code; an exception is printed as one line.

    **Arguments:**

    - `run`: the command.
    - `known`: exceptions whose message says what the user can fix.
    - `debug`: print the traceback too.

    **Returns:** the exit code, see the table of this module.
    """
    _make_printable(sys.stdout)
    _make_printable(sys.stderr)
    try:
        with _one_line_warnings(), _no_lost_interrupt():
            try:
                code = run()
            except SystemExit as stop:  # `--help` and `--version`
                code = _exit_code(stop)
            if sys.stdout is not None:
                # Flush here, where a full device can still be reported, and not at interpreter exit.
                sys.stdout.flush()
    except KeyboardInterrupt:
        say("stopped.")
        code = INTERRUPTED
    except BrokenPipeError:
        code = BROKEN_PIPE
    except Exception as error:
        if debug:
            _write_stderr(traceback.format_exc())
        code = _explain(error, known, debug=debug)
    _flush_or_forget()
    return code


@contextlib.contextmanager
def _no_lost_interrupt() -> Iterator[None]:
    """Repeat a `KeyboardInterrupt` that Python could not raise, such as one in a callback of the collector.

    Python prints such an exception and ignores it, and the command would go on.
    """
    before = sys.unraisablehook

    def hook(problem: Any) -> None:
        if issubclass(problem.exc_type, KeyboardInterrupt):
            # Later, when the main thread has left this hook, where it would be ignored again.
            timer = threading.Timer(0.05, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
        else:
            before(problem)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def say(line: str) -> None:
    """Print a line to the standard error, and ignore errors if that is closed or full."""
    # Some messages list differences on indented lines. All other line breaks and control characters are
    # escaped, because a name in a message may contain them.
    lines = [printable(part, max_length=MAX_LINE) for part in line.split("\n  ")]
    _write_stderr("jlibo: " + "\n  ".join(lines) + "\n")


def explain_os_error(error: OSError) -> str:
    """Return one line about an `OSError`: the file, if known, and the reason."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"'{printable(error.filename)}': {reason}" if error.filename is not None else reason


def _explain(error: Exception, known: tuple[type[Exception], ...], *, debug: bool) -> int:
    if isinstance(error, (UsageError, *known)):
        say(str(error))
        return USAGE_ERROR
    if isinstance(error, OSError):
        say(f"reading or writing failed: {explain_os_error(error)}.")
        return IO_ERROR
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        say("there is not enough memory: take fewer seeds or smaller settings.")
        return FAULT
    what = printable(f"{type(error).__name__}: {error}")
    if debug:
        say(f"this is a fault of jlibo ({what}).")
        return FAULT
    path = _write_traceback()
    where = f"the traceback is in '{path}', and --debug shows it" if path else "--debug shows the traceback"
    say(f"this is a fault of jlibo ({what}); {where}.")
    return FAULT


def _write_traceback() -> str | None:
    """Write the traceback to a new file that only the user can read, and return its path."""
    try:
        handle, path = tempfile.mkstemp(prefix="jlibo-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.version}\n{sys.argv}\n{traceback.format_exc()}")
    except OSError:
        return None
    return path


def _exit_code(stop: SystemExit) -> int:
    if isinstance(stop.__context__, BrokenPipeError):  # rich raises SystemExit for a broken pipe
        return BROKEN_PIPE
    return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else FAULT


def _write_stderr(text: str) -> None:
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _make_printable(stream) -> None:
    """Make a stream replace characters that its encoding lacks, as on an ASCII terminal."""
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors="backslashreplace" if _is_unicode(stream) else "replace")


def _is_unicode(stream) -> bool:
    return str(getattr(stream, "encoding", "")).lower().replace("-", "").startswith("utf")


def plus_minus(stream=None) -> str:
    """Return the plus-minus sign, or `+-` if the stream (by default stdout) cannot print it."""
    return "±" if _is_unicode(sys.stdout if stream is None else stream) else "+-"


def _flush_or_forget() -> None:
    """Flush the output, and drop what cannot be written. Python would report it at exit otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print warnings as notes: the first line, and indented lines that follow it."""
    with warnings.catch_warnings():

        def show(message, *_, **__):
            words = re.split(r"[\r\n]+(?!  )", str(message))[0]
            say(f"note: {words or type(message).__name__}")

        warnings.showwarning = show
        yield
