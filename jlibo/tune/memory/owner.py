"""Owners of pending trials, and whether their processes are still alive. Internal.

A trial that was asked for and not yet told belongs to the process that asked. When that process has ended,
the trial can be claimed again, so that a killed run resumes its unfinished trials. An owner is a token

    host : start time of the process : process id : random part

Any process on the same host can test whether the owner is alive. An owner on another host is considered dead
only after a long time.
"""

import os
import secrets
import socket

DAY_S = 24 * 3600.0


def new_owner() -> str:
    """Return a new owner token for this process; a forked process needs its own."""
    pid = os.getpid()
    return f"{_host()}:{_start_of(pid)}:{pid}:{secrets.token_hex(4)}"


def owner_is_dead(owner: str, age_s: float, *, max_age_s: float = DAY_S) -> bool:
    """Return whether `owner`, which has held a trial for `age_s` seconds, will never finish it.

    On this host, that is whether its process has ended. The state of an owner on another host is unknown; it
    counts as dead after `max_age_s` seconds. Containers that share a memory should have different host names.
    """
    parts = owner.split(":")
    if len(parts) == 4 and parts[0] == _host() and parts[2].isdecimal():
        gone = _is_gone(int(parts[2]), parts[1])
        if gone is not None:
            return gone
    return age_s > max_age_s


def _host() -> str:
    return socket.gethostname().replace(":", "-")


def _is_gone(pid: int, start: str) -> bool | None:
    """Return whether the process with `pid` that began at `start` has ended; None if this is unknown."""
    if os.name != "posix" or pid == 0:  # on Windows `os.kill` with signal 0 is not a harmless test
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it exists and belongs to another user
    now = _start_of(pid)
    # The same id with another start time is another process. If a start time is unknown, the id decides.
    return now == "ended" or bool(now and start and now != start)


def _start_of(pid: int) -> str:
    """Return the start of a process, as boot id and clock ticks; "ended" for a zombie, "" if unknown."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name may contain blanks and parentheses
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()[:8]
        return "ended" if fields[0] in "ZX" else f"{boot}-{fields[19]}"
    except (OSError, IndexError):
        return ""
