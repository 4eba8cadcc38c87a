"""Checks that folders and files can be written only by the user."""

import os
import stat
from pathlib import Path

import pytest

from jlibo.private_files import (
    NotPrivate,
    check_private_file,
    check_private_folder,
    make_private_folder,
    read_private_file,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of POSIX")
as_root = pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    path.chmod(0o600)
    return path


def test_new_folders_have_mode_0700_for_any_umask(tmp_path):
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "root" / "a" / "b", below=tmp_path / "root")
    finally:
        os.umask(before)
    for path in ("root", "root/a", "root/a/b"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o770])
@pytest.mark.parametrize("place", ["a", "a/b"])
def test_folder_writable_by_others_is_refused(tmp_path, mode, place):
    make_private_folder(tmp_path / "a" / "b", below=tmp_path)
    (tmp_path / place).chmod(mode)
    with pytest.raises(NotPrivate, match=f"{place}' can be written by others .mode {mode:04o}"):
        make_private_folder(tmp_path / "a" / "b", below=tmp_path)


def test_mode_of_a_readable_folder_is_set_to_0700(tmp_path):
    make_private_folder(tmp_path / "a", below=tmp_path)
    (tmp_path / "a").chmod(0o755)
    make_private_folder(tmp_path / "a", below=tmp_path)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_parent_writable_by_others_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(NotPrivate, match="root' can be written by others"):
        make_private_folder(root / "a", below=root)
    assert list(root.iterdir()) == []
    root.chmod(0o1777)  # sticky, as /tmp: others cannot rename this user's files
    make_private_folder(root / "a", below=root)


@pytest.mark.parametrize("place", ["a", "a/b"])
def test_symbolic_links_and_files_are_refused_as_folders(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.write_text("a file")
    with pytest.raises(NotPrivate, match="is not a folder"):
        make_private_folder(tmp_path / "a" / "b", below=tmp_path)
    path.unlink()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivate, match="is a symbolic link"):
        make_private_folder(tmp_path / "a" / "b", below=tmp_path)


def test_root_may_be_reached_by_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make_private_folder(tmp_path / "link" / "a", below=tmp_path / "link")


def test_private_files_are_checked(file, tmp_path):
    assert read_private_file(file) == b"content"
    for mode in (0o620, 0o602, 0o666):
        file.chmod(mode)
        with pytest.raises(NotPrivate, match="can be written by others"):
            read_private_file(file)
    file.chmod(0o644)
    assert read_private_file(file) == b"content"
    link = tmp_path / "link"
    link.symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((link, "is a symbolic link"), (tmp_path / "pipe", "is not a regular file")):
        for check in (check_private_file, read_private_file):
            with pytest.raises(NotPrivate, match=reason):
                check(path)
    with pytest.raises(FileNotFoundError):
        read_private_file(tmp_path / "missing")


@as_root
def test_other_owners_are_refused(file, tmp_path):
    os.chown(file, 65534, -1)
    with pytest.raises(NotPrivate, match=r"belongs to another user .uid 65534"):
        read_private_file(file)
    (tmp_path / "a").mkdir(mode=0o700)
    os.chown(tmp_path / "a", 65534, -1)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        check_private_folder(tmp_path / "a")
    with pytest.raises(NotPrivate, match="belongs to another user"):
        make_private_folder(tmp_path / "a" / "b", below=tmp_path / "a")
