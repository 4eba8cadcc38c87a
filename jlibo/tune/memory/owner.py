"""Who is working on a trial, and whether that process is still there.

A trial that was asked for and not yet told belongs to the process that asked. When the process is gone the
trial is free again, so that a killed run takes up what it left. An owner is a token

    host : when the process began : process id : a random part

and can be judged by any process on the same host; one on another host is given up only after a long time.
"""

import os
import secrets
import socket

DAY_S = 24 * 3600.0


def new_owner() -> str:
    """A token for an owner of trials in this process; a forked process needs one of its own."""
    pid = os.getpid()
    return f"{_host()}:{_start_of(pid)}:{pid}:{secrets.token_hex(4)}"


def owner_is_dead(owner: str, age_s: float, *, max_age_s: float = DAY_S) -> bool:
    """Whether `owner`, who has had a trial for `age_s` seconds, will never finish it.

    On this host: whether its process is gone. About an owner elsewhere nothing is known, and it is given up
    after `max_age_s` seconds. Containers that share a memory should differ in their host names.
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
    """Whether the process that had `pid` and began at `start` has ended; `None` if there is no telling."""
    if os.name != "posix" or pid == 0:  # on Windows `os.kill` is no harmless question
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # it is there, and someone else's
    now = _start_of(pid)
    # The same number with another start is another process. Where no start is known, the number decides.
    return now == "ended" or bool(now and start and now != start)


def _start_of(pid: int) -> str:
    """When a process began: the boot and the clock ticks since; "ended" for a zombie, "" if not known."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before it may hold blanks and brackets
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()[:8]
        return "ended" if fields[0] in "ZX" else f"{boot}-{fields[19]}"
    except (OSError, IndexError):
        return ""
