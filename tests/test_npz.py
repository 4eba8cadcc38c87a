"""Untrusted files: sizes are compared before unpacking, and every bad file raises `NpzError`."""

import io
import json
import os
import random
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from jlibo import Labelled, npz
from jlibo.sweeps import Variable, named_file
from jlibo.tables.table import read_npz as read_table

MIB = 2**20


def npy_header(shape, dtype="<f8", *, order=False) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": order, "shape": shape})
    return stream.getvalue()


def zipped(members: dict[str, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def bomb(num_bytes: int) -> bytes:
    """A valid `.npz` of zeros: about a thousand times smaller than what it unpacks to."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_header((num_bytes,), "|u1"))
        for _ in range(num_bytes // MIB):
            member.write(bytes(MIB))
    return stream.getvalue()


def peak_of(function) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def large_bomb():
    return bomb(384 * MIB)


def test_zip_bomb_is_refused_before_unpacking(large_bomb, tmp_path):
    assert len(large_bomb) < 4 * MIB
    path = tmp_path / "result.npz"
    path.write_bytes(large_bomb)

    def refused():
        with pytest.raises(named_file.NamedFileError, match=r"result\.npz' is too large: .*`max_bytes`"):
            Labelled.load(path)
        with pytest.raises(ValueError, match=r"table\.npz is not a table: its arrays take"):
            read_table(io.BytesIO(large_bomb), "table.npz")

    assert peak_of(refused) < 8 * MIB
    assert npz.read_npz(io.BytesIO(large_bomb), max_bytes=400 * MIB)["a"].nbytes == 384 * MIB


def test_size_limit_is_a_parameter(tmp_path):
    path = Labelled({"a": Variable(("x",), np.zeros(10 * MIB // 8))}).save(tmp_path / "result.npz")
    assert path.stat().st_size < MIB
    with pytest.raises(named_file.NamedFileError, match="above the limit of 1048576 bytes"):
        Labelled.load(path, max_bytes=MIB)
    assert Labelled.load(path, max_bytes=11 * MIB)["a"].nbytes == 10 * MIB
    assert Labelled.load(path)["a"].nbytes == 10 * MIB


def test_default_limit_depends_on_file_size_and_free_memory(monkeypatch):
    monkeypatch.setattr(npz, "free_host_memory", lambda: 100 * 2**30)
    assert npz.default_limit(1) == npz.ALWAYS_ALLOWED
    assert npz.default_limit(2**30) == 50 * 2**30
    assert npz.default_limit(10 * MIB) == npz.MAX_RATIO * 10 * MIB
    monkeypatch.setattr(npz, "free_host_memory", lambda: 4 * MIB)
    assert npz.default_limit(2**30) == 2 * MIB


def lying_directory() -> bytes:
    """The zip directory declares 16 bytes of an array of 2 GiB."""
    data = bytearray(zipped({"a": npy_header((2**28,)) + bytes(64)}))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 16)
    return bytes(data)


ROW = np.zeros(2).tobytes()
HOSTILE = {
    "no zip": b"not a zip at all",
    "empty": b"",
    "npy alone": npy_header((2,)) + ROW,
    "directory that lies": lying_directory(),
    "shape larger than the data": zipped({"a": npy_header((2**40,)) + ROW}),
    "shape smaller than the data": zipped({"a": npy_header((1,)) + ROW}),
    "negative shape": zipped({"a": npy_header((-1, -2)) + ROW}),
    "endless axis of nothing": zipped({"a": npy_header((2**62, 0))}),
    "endless text of no length": zipped({"a": npy_header((2**62,), "|S0")}),
    "objects": zipped({"a": npy_header((1,), "|O") + b"cos\nsystem\n"}),
    "records": zipped({"a": npy_header((1,), [("x", "<f8"), ("y", "|O")]) + bytes(16)}),
    "void": zipped({"a": npy_header((1,), "|V16") + bytes(16)}),
    "no header": zipped({"a": b"\x93NUMPY\x01\x00\xff\xff{"}),
    "deep header": zipped({"a": b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 8192}),
    "version 9": zipped({"a": b"\x93NUMPY\x09\x00" + bytes(100)}),
    "no array": zipped({"a": b"hello"}),
    "lzma": zipped({"a": npy_header((2,)) + ROW}, zipfile.ZIP_LZMA),
    "bzip2": zipped({"a": npy_header((2,)) + ROW}, zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_without_allocation(kind):
    def refused():
        with pytest.raises(npz.NpzError) as caught:
            npz.read_npz(io.BytesIO(HOSTILE[kind]))
        assert "\n" not in str(caught.value)

    assert peak_of(refused) < 8 * MIB


def test_duplicate_and_non_array_members_are_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", npy_header((2,)) + ROW)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy_header((2,)) + ROW)
    with pytest.raises(npz.NpzError, match="two members of one name"):
        npz.read_npz(stream)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("run.py", "")
    with pytest.raises(npz.NpzError, match="no array"):
        npz.read_npz(stream)


def result_with(header: object, **members: np.ndarray) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    stream = io.BytesIO()
    np.savez(
        stream, header=np.frombuffer(text, np.uint8), **{n.replace("__", "/"): v for n, v in members.items()}
    )
    return stream.getvalue()


GOOD = {
    "format": "jlibo-labelled",
    "format_version": 1,
    "arrays": [["a", ["x"]]],
    "coords": [],
    "attrs": {},
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (result_with(b"[" * 100_000), "header is not JSON"),
        (result_with([1]), "header is no JSON object"),
        (result_with(3), "header is no JSON object"),
        (result_with(b"\xff\xfe"), "header is not JSON"),
        (result_with({"format": "\x1b[2J", "format_version": []}), r"format '\\x1b\[2J' \[\]"),
        (result_with(GOOD), "has no array 'a'"),
        (result_with(GOOD | {"arrays": 7}, array__a=np.zeros(2)), "does not list its arrays"),
        (result_with(GOOD | {"arrays": [["a", "x"]]}, array__a=np.zeros(2)), "does not list its arrays"),
        (result_with(GOOD | {"arrays": [["a", [["x"]]]]}, array__a=np.zeros(2)), "does not list its arrays"),
        (result_with(GOOD | {"attrs": []}, array__a=np.zeros(2)), "attrs are no JSON object"),
        (result_with(GOOD, array__a=np.zeros((2, 2))), "do not fit each other"),
        (result_with(GOOD, array__a=np.zeros(2), array__b=np.zeros(2)), "'array/b' that is not listed"),
        (result_with({k: v for k, v in GOOD.items() if k != "coords"}, array__a=np.zeros(2)), "its coords"),
    ],
)
def test_error_of_invalid_result_is_one_line_with_the_path(content, message, tmp_path):
    path = tmp_path / "result.npz"
    path.write_bytes(content)
    with pytest.raises(named_file.NamedFileError, match=message) as caught:
        Labelled.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_folder_or_pipe_as_result_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(named_file.NamedFileError, match="it is no file"):
            Labelled.load(path)


def test_repr_escapes_control_characters_in_names():
    shown = repr(Labelled({"\x1b[31mred\n": Variable(("\x9bx",), np.zeros(2))}))
    assert "\\x1b[31mred\\n" in shown and "\x1b" not in shown and "\x9b" not in shown
    assert shown.count("\n") == 1


def mutations(seed: int, count: int):
    dice = random.Random(seed)
    rng = np.random.default_rng(seed)
    whole = io.BytesIO()
    named_file.write_arrays(whole, GOOD | {"arrays": [["a", ["x", "y"]]]}, {"array/a": rng.random((8, 8))})
    for _ in range(count):
        data = bytearray(whole.getvalue())
        for _ in range(dice.choice((1, 1, 2, 5))):
            kind, at = dice.randrange(4), dice.randrange(len(data))
            if kind == 0:
                data[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                data[at : at + 4] = dice.choice((b"\xff" * 4, bytes(4), struct.pack("<I", 2**31)))
            elif kind == 2:
                del data[at : at + dice.randrange(1, 40)]
            else:
                data[at:at] = data[dice.randrange(len(data)) :][:50]
        yield bytes(data)


def check_mutations(tmp_path, seed, count):
    path = tmp_path / "result.npz"
    refused = []
    for data in mutations(seed, count):
        path.write_bytes(data)
        try:
            Labelled.load(path)
        except named_file.NamedFileError as error:
            refused.append(str(error))
    assert all(str(path) in error and error.isprintable() for error in refused)
    assert count // 2 < len(refused) < count  # a flipped bit in a date is harmless


def test_damaged_files_raise_one_type_of_error(tmp_path):
    assert peak_of(lambda: check_mutations(tmp_path, seed=0, count=300)) < 64 * MIB


@pytest.mark.slow
def test_many_damaged_files_raise_one_type_of_error(tmp_path):
    for seed in range(1, 21):
        check_mutations(tmp_path, seed, 1000)
