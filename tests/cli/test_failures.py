"""Failures of the command line give one line and an exit code: streams, signals, faults, full disks."""

import errno
import gc
import io
import os
import re
import signal
import stat
import subprocess
import sys
import time

import pytest

from jlibo.cli import failures
from jlibo.cli.failures import UsageError, run_safely
from tests import forked

posix = pytest.mark.skipif(os.name != "posix", reason="signals and devices of POSIX")
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("give another."), 2, "jlibo: give another."),
        (LookupError("known to the caller"), 2, "jlibo: known to the caller"),
        (KeyboardInterrupt(), 130, "jlibo: stopped."),
        (BrokenPipeError(), 141, None),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "failed: No space left on device."),
        (OSError(errno.ENOSPC, "No space", "a\x1b[2J\nb"), 74, r"failed: 'a\x1b[2J\nb': No space."),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 74, "failed: 'x': Permission denied."),
        (OSError(), 74, "failed: OSError."),
        (MemoryError(), 1, "not enough memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"), 1, "not enough memory"),
        (
            RuntimeError("line\nbreak"),
            1,
            r"a fault of jlibo (RuntimeError: line\nbreak); the traceback is in '",
        ),
        (RecursionError("maximum recursion depth exceeded"), 1, "a fault of jlibo (RecursionError"),
        (UnicodeEncodeError("ascii", "±", 0, 1, "why"), 1, "a fault of jlibo (UnicodeEncodeError"),
        (SystemExit(0), 0, None),
        (SystemExit(None), 0, None),
        (SystemExit("words"), 1, None),
    ],
)
def test_error_gives_one_line_and_an_exit_code(error, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(failures.tempfile, "tempdir", str(tmp_path))
    assert run_safely(raising(error), known=(LookupError,)) == code
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    assert shown.err.count("\n") == (message is not None)
    assert (message or "") in shown.err


def test_traceback_is_in_a_private_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(failures.tempfile, "tempdir", str(tmp_path))
    assert run_safely(raising(ZeroDivisionError("by zero")), known=()) == 1
    path = re.search("traceback is in '(.*)', and --debug", capsys.readouterr().err)[1]
    with open(path) as file:
        text = file.read()
    assert "Traceback" in text and "by zero" in text and __file__ in text
    if os.name == "posix":
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    monkeypatch.setattr(failures.tempfile, "tempdir", str(tmp_path / "missing"))
    assert run_safely(raising(ZeroDivisionError("by zero")), known=()) == 1
    assert "--debug shows the traceback." in capsys.readouterr().err


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), UsageError("by hand"), OSError(28, "full")])
def test_debug_shows_the_traceback(error, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(failures.tempfile, "tempdir", str(tmp_path))
    run_safely(raising(error), known=(), debug=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_warnings_are_notes_of_one_line(capsys):
    def run():
        import warnings

        warnings.warn("first line\nsecond line", UserWarning, stacklevel=1)
        return 0

    assert run_safely(run, known=()) == 0
    assert capsys.readouterr().err == "jlibo: note: first line\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
def test_output_works_in_any_encoding(encoding, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))

    def run():
        print(f"1 {failures.plus_minus()} 2 ├ \udcff")
        return 0

    assert run_safely(run, known=()) == 0
    sign = "±" if encoding == "utf-8" else "+-"
    assert raw.getvalue().decode(encoding).startswith(f"1 {sign} 2")


# --- processes ----------------------------------------------------------------------------------------------


def run(*words, **kwargs):
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **kwargs}
    return forked.run(["-m", "jlibo.cli", *words], **kwargs)


@needs_full
@pytest.mark.parametrize("words", [["list"], ["--help"], ["--version"]])
def test_output_to_a_full_device(words):
    with open("/dev/full", "w") as full:
        done = run(*words, stdout=full)
    assert (done.returncode, done.stderr) == (
        74,
        "jlibo: reading or writing failed: No space left on device.\n",
    )


@needs_full
def test_errors_to_a_full_device():
    with open("/dev/full", "w") as full:
        done = run("no-such-command", stderr=full)
    assert (done.returncode, done.stdout) == (2, "")


@posix
def test_closed_pipe_and_ascii_terminal():
    read, write = os.pipe()
    os.close(read)
    done = run("list", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    done = run("list", env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0 and "lifelong-cosine" in done.stdout and done.stdout.isascii()


@posix
@pytest.mark.parametrize("seconds", [0.15, 0.5])
def test_interrupt_during_import_gives_one_line(seconds):
    # The child prints a line after Python has started and before it imports the package.
    code = (
        "import sys; print('python', flush=True); sys.argv[0] = 'jlibo'; import jlibo.cli; jlibo.cli.main()"
    )
    command = [sys.executable, "-c", code, "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "python\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate(timeout=60)
    assert (process.returncode, shown, complaint) == (130, "", "jlibo: stopped.\n")


@posix
def test_importing_the_library_keeps_signal_handlers():
    code = "import signal, jlibo; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_importing_the_package_leaves_the_garbage_collector_alone():
    """Only the command line freezes what it has imported."""
    program = "import gc, jlibo; print(gc.isenabled(), gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"]


def test_interrupt_in_a_gc_callback_is_not_lost(capfd):
    """Python ignores exceptions in gc callbacks, and jax registers one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def callback(phase, info):
        gc.callbacks.remove(callback)
        signal.raise_signal(signal.SIGINT)

    def run():
        gc.callbacks.append(callback)
        gc.collect()
        for _ in range(1000):
            time.sleep(0.001)
        pytest.fail("the interrupt was lost")

    before = sys.unraisablehook
    assert run_safely(run, known=()) == 130
    assert capfd.readouterr().err == "jlibo: stopped.\n"
    assert sys.unraisablehook is before
