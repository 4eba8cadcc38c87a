"""Processes that are ended with everything that they started, and processes that are started again."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

_GROUP = "JLIBO_PROCESSES"
_PROC = Path("/proc")


@final
class Processes:
    """Processes by name. Leaving the context ends them and all processes that they started.

    Flower's processes start others, some in sessions of their own. All inherit an environment variable by
    which they are found, on systems with `/proc`. On others, the processes of a session are ended, and
    Flower's end by themselves when the process that started them is gone.

    **Arguments:**

    - `logs`: the folder for one log a name. A process that is started again continues the log.
    """

    def __init__(self, logs: Path):
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._group = secrets.token_hex(8)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a process whose output goes to its log, and return it."""
        marked = {**environment, _GROUP: f"{self._group}/{name}"}
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the path of the log of a process."""
        return self._logs / f"{name}.log"

    def running(self, name: str | None = None) -> dict[int, str]:
        """Return the processes of a name, or of all: the number of each, and its command."""
        found = {}
        for folder in _PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._marks(name) & set((folder / "environ").read_bytes().split(b"\0")):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command
        return found

    def kill(self, name: str, program: str = "") -> int:
        """Kill the processes of a name at once (SIGKILL), and return their number.

        **Arguments:**

        - `name`: as in `start`.
        - `program`: kill only processes whose command has this text.
        """
        killed = 0
        for number, command in self.running(name).items():
            if program in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                    killed += 1
        if not program and name in self._started:
            self._kill_session(name)
        return killed

    def end(self, *, timeout: float = 15.0) -> None:
        """Ask all processes to end, and kill those that are left after `timeout` seconds."""
        for number in self.running().keys() | {
            one.pid for one in self._started.values() if one.poll() is None
        }:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        end = time.monotonic() + timeout
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        while self.running() and time.monotonic() < end:
            time.sleep(0.1)
        for name in self._started:
            while self.kill(name):
                time.sleep(0.05)
            self._kill_session(name)

    def _kill_session(self, name: str) -> None:
        process = self._started[name]
        if process.poll() is None or not _PROC.is_dir():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _marks(self, name: str | None) -> set[bytes]:
        names = self._started if name is None else [name]
        return {f"{_GROUP}={self._group}/{one}".encode() for one in names}


def keep_running(
    command: Sequence[str], environment: Mapping[str, str], *, hint: str = "", pause: float = 3.0
) -> None:
    """Run a command, and again whenever it ends, until this process is asked to end (SIGTERM or SIGINT).

    A process of `Processes` ends as well when the one that started it was killed.

    **Arguments:**

    - `command`, `environment`: of the process.
    - `hint`: what to check, if the command failed.
    - `pause`: seconds between the end of the command and its next start.
    """
    ending, process = threading.Event(), None
    parent = os.getppid() if _GROUP in os.environ else None

    def end(*_: object) -> None:
        ending.set()
        if process is not None and process.poll() is None:
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while not ending.is_set():
        process = subprocess.Popen(command, env=environment)
        if ending.is_set():  # asked while the process was being started
            process.terminate()
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if parent not in (None, os.getppid()):  # the process with the `Processes` was killed
                end()
        if not ending.is_set():
            program, code = Path(command[0]).name, process.returncode
            print(f"{program} ended with code {code}. It is started again in {pause:g} seconds.", flush=True)
            if code and hint:
                print(hint, flush=True)
            ending.wait(pause)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[Any]", *, timeout: float = 60.0) -> None:
    """Wait until something listens on a port of 127.0.0.1.

    **Raises:** `RuntimeError` if `process`, which should listen, ended, or after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    state = "is running" if process.poll() is None else f"ended with code {process.returncode}"
    raise RuntimeError(f"nothing listens on port {port} of 127.0.0.1; the process {state}")
