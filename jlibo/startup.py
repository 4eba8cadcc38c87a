"""What the command line needs while it is importing; the package imports this module first.

Ctrl-C prints one line and exits with code 130. And Python's garbage collector is paused: imports make half a
million objects that live as long as the process, and it visits all of them several times, at the end of the
process too. After the imports they are frozen, so that it never does. Both together take 0.4 seconds.

In a process that is not the command line this module changes nothing.
"""

import gc
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
    """After the imports, restore the default handler of Ctrl-C and start the garbage collector again."""
    if _IS_COMMAND_LINE:
        gc.freeze()
        gc.enable()
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def finished() -> None:
    """At the end of a command, free no object that the end of the process frees anyway."""
    if _IS_COMMAND_LINE:
        gc.freeze()


_IS_COMMAND_LINE = _is_command_line()
if _IS_COMMAND_LINE:
    gc.disable()
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    and _IS_COMMAND_LINE
):
    signal.signal(signal.SIGINT, _stop)
