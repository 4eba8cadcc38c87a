"""Handling of Ctrl-C while the command line is importing: print one line and exit with code 130.

The package imports this module first. In a process that is not the command line it changes nothing.
"""

import os
import signal
import sys
import threading

INTERRUPTED = 130
_STOPPED = b"jlibo: stopped.\n"


def _is_command_line() -> bool:
    """Return whether this process is `jlibo ...` or `python -m jlibo.cli ...`."""
    words = sys.orig_argv[1:]
    for place, word in enumerate(words):
        if word == "-m":
            return words[place + 1 : place + 2] == ["jlibo.cli"]
        if not word.startswith("-"):
            break
    return os.path.basename(sys.argv[0]).removesuffix(".exe").removesuffix("-script.py") == "jlibo"


def _stop(*_) -> None:
    # Nothing needs cleaning up yet. An exception would pass through the modules being imported, some of which
    # catch it.
    try:
        os.write(2, _STOPPED)
    finally:
        os._exit(INTERRUPTED)


def imported() -> None:
    """Restore the default handler after the imports: Ctrl-C raises `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    and _is_command_line()
):
    signal.signal(signal.SIGINT, _stop)
