"""Atomic writing of files: permissions, temporary files, and errors that name the file."""

import errno
import os
import subprocess
import sys

import pytest

from jlibo.files import is_draft, naming, write_atomically

posix = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077])
def test_new_file_follows_the_umask_and_replaced_file_keeps_its_mode(tmp_path, umask):
    code = (
        "import os, sys; from pathlib import Path; from jlibo.files import write_atomically\n"
        f"os.umask({umask}); path = Path(sys.argv[1]) / 'file'\n"
        "for _ in range(2):\n"
        "    write_atomically(path, lambda file: file.write(b'a'))\n"
        "    print(oct(path.stat().st_mode & 0o777)); path.chmod(0o604)\n"
        "write_atomically(path.with_name('own'), lambda file: file.write(b'a'), mode=0o600)\n"
        "print(oct(path.with_name('own').stat().st_mode & 0o777))\n"
    )
    # The child process imports only this module, without jax.
    stub = (
        "import sys, types\n"
        "package = sys.modules['jlibo'] = types.ModuleType('jlibo'); package.__path__ = [sys.argv[2]]\n"
    )
    package = os.path.dirname(sys.modules["jlibo"].__file__)
    command = [sys.executable, "-c", stub + code, str(tmp_path), package]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert shown == [oct(0o666 & ~umask), "0o604", "0o600"]


@posix
@pytest.mark.parametrize("write", [write_atomically])
def test_umask_is_not_changed(tmp_path, monkeypatch, write):
    """The umask is shared by all threads: changing it could make files of other threads readable by all."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
    for _ in range(2):
        write(tmp_path / "file", lambda file: file.write(b"a"))


def test_failed_write_keeps_the_old_file_and_names_it(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def fill_up(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, fill_up)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    assert is_draft(tmp_path / ".draft-file-0") and not is_draft(path)


def test_error_with_a_filename_keeps_it(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path):
        (tmp_path / "missing").read_bytes()
    assert caught.value.filename == str(tmp_path / "missing")
