"""`run`: `subprocess.run` for Python processes that start with jlibo imported.

Importing jlibo and jax takes longer than what most processes of the tests do. A server process imports them
once, computes nothing with jax, and forks for every call of `run`. The fork has its own streams, environment,
directory and arguments, runs the code as `__main__`, and ends as the interpreter does.

Use `subprocess` instead for what happens at the start of the interpreter or during the import, for signals
from outside, and for settings that jax reads on import (`JAX_*`, but for `JAX_ENABLE_X64`).
"""

import atexit
import contextlib
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from typing import Any


def run(
    arguments: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    capture_output: bool = False,
    text: bool = False,
    timeout: float = 250,
    check: bool = False,
) -> subprocess.CompletedProcess:
    """Run Python with these arguments: `-c CODE ...`, `-m MODULE ...` or `FILE ...`; see `subprocess.run`.

    The file `FILE` is run by its path. `-W ACTION` may come first.
    """
    if not hasattr(os, "fork"):
        streams = {"capture_output": True} if capture_output else {"stdout": stdout, "stderr": stderr}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=env, cwd=cwd, text=text, timeout=timeout, check=check, **streams)
    if capture_output:
        stdout = stderr = subprocess.PIPE
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_server())
        readers, given = {}, []
        with open(os.devnull) as nothing:
            for name, stream in (("stdout", stdout), ("stderr", stderr)):
                if stream == subprocess.PIPE:
                    end, number = os.pipe()
                    readers[name] = _Reader(end)
                else:
                    number = os.dup(stream if isinstance(stream, int) else (stream or nothing).fileno())
                given.append(number)
            request = {
                "arguments": arguments,
                "env": dict(os.environ if env is None else env),
                "cwd": os.fspath(cwd or os.getcwd()),
            }
            message = json.dumps(request).encode()
            socket.send_fds(connection, [len(message).to_bytes(4, "big")], [nothing.fileno(), *given])
            connection.sendall(message)
        for number in given:
            os.close(number)
        with connection.makefile() as answers:
            pid = int(answers.readline())
            connection.settimeout(timeout)
            try:
                code = int(answers.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout) from None
    out, err = (readers[name].result(text) if name in readers else None for name in ("stdout", "stderr"))
    done = subprocess.CompletedProcess(arguments, code, out, err)
    if check:
        done.check_returncode()
    return done


class _Reader:
    """Reads a pipe to its end in a thread, so that the process that writes to it never waits."""

    def __init__(self, number: int):
        self._data = b""
        self._thread = threading.Thread(target=self._read, args=(number,), daemon=True)
        self._thread.start()

    def _read(self, number: int) -> None:
        with open(number, "rb") as pipe:
            self._data = pipe.read()

    def result(self, text: bool) -> str | bytes:
        self._thread.join()
        return self._data.decode() if text else self._data


@functools.cache
def _server() -> str:
    """Start the server of this process and return the path of its socket."""
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "socket")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, path],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    assert process.stdout.readline() == b"ready\n"

    def stop():
        process.stdin.close()  # upon which it ends
        process.wait()
        process.stdout.close()
        folder.cleanup()

    atexit.register(stop)
    return path


# --- the server ---------------------------------------------------------------------------------------------


def _serve(path: str) -> dict[str, Any]:
    """Fork for every request until the standard input is closed; return the request in the new process."""
    import jlibo.cli  # noqa: F401  (what the processes need)

    filters = warnings.filters[:]
    warnings.simplefilter("ignore")  # jax and Python warn of forks in processes that have threads
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([0, listener], [], [])
            _reap()
            if 0 in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    request = _supervised(connection)
    warnings.filters[:] = filters
    return request


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _supervised(connection: socket.socket) -> dict[str, Any]:
    """Fork once more; return the request in the new process, with its standard streams set.

    The process between it and the server sends its id and its exit code, and ends.
    """
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as file:
        request = json.loads(file.read(int.from_bytes(size, "big")))
    if (pid := os.fork()) > 0:
        for number in streams:
            os.close(number)
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody waits after a timeout
            connection.sendall(f"{code}\n".encode())
        os._exit(0)
    connection.close()
    for place, number in enumerate(streams):
        os.dup2(number, place)
        os.close(number)
    return request


def _begin(request: dict[str, Any]) -> None:
    """Set what a new interpreter gets from its environment and its arguments, and run the code."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    errors = errors or "strict"
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, errors=errors)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace")
    sys.modules["jax"].config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64") == "1")
    arguments = request["arguments"]
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _begin(_serve(sys.argv[1]))
