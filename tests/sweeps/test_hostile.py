"""Damaged, foreign or full folders: one readable error, and the user's files are not touched."""

import copy
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import jlibo
from jlibo.sweeps import BudgetError, SweepFolderError, SweepStorageError, folder
from tests import forked
from tests.sweeps.sweep_jobs import run_quick
from tests.sweeps.test_folder import JOBS, contents

CHUNK = 9


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "sweep"
    run_quick(out=path, chunk=CHUNK)
    return path


@pytest.fixture
def copied(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "sweep"))


def snapshot(path: Path) -> dict:
    """Every entry below a folder: kind, bytes of files, targets of links. Links are not followed."""
    answer = {}
    for where, folders, files in os.walk(path):
        for name in [*folders, *files]:
            entry = Path(where, name)
            kind = os.lstat(entry).st_mode
            answer[str(entry)] = (
                kind,
                (
                    os.readlink(entry)
                    if entry.is_symlink()
                    else entry.read_bytes()
                    if entry.is_file()
                    else None
                ),
            )
    return answer


def refused(path: Path, match: str, **options) -> None:
    """Assert that the sweep raises one printable line and changes nothing below `path`'s parent."""
    before = snapshot(path.parent)
    with pytest.raises(SweepFolderError, match=match) as caught:
        run_quick(out=path, **options)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 2000
    assert snapshot(path.parent) == before


# --- sweep.json ---


MANIFESTS = {
    "list": ("[1, 2]", "no JSON object"),
    "number": ("3", "no JSON object"),
    "null": ("null", "no JSON object"),
    "deep list": ("[" * 100_000, "cannot be read"),
    "deep object": ('{"chunk":' * 50_000 + "1" + "}" * 50_000, "cannot be read"),
    "digits": ('{"chunk": ' + "9" * 5000 + "}", "cannot be read"),
    "no UTF-8": (b"\xff\xfe{", "cannot be read"),
    "empty": ("", "cannot be read"),
    "no chunk": ("{}", "'chunk' should be a whole number of at least 1, but got nothing"),
    "chunk 0": ('{"chunk": 0}', "but got 0"),
    "chunk below": ('{"chunk": -3}', "but got -3"),
    "chunk text": ('{"chunk": "\\u001b[2J"}', r"but got '\\x1b\[2J'"),
    "chunk true": ('{"chunk": true}', "but got True"),
    "chunk fraction": ('{"chunk": 9.0}', "but got 9.0"),
    "chunk huge": ('{"chunk": 1e400}', "but got inf"),
    "chunk long": ('{"chunk": 1' + "0" * 40 + "}", "but got 1000000"),
    "chunk list": ('{"chunk": ' + "[" * 200 + "]" * 200 + "}", "but got"),
    "other fields": (
        '{"chunk": 9, "\\u001b]0;title\\u0007": 1}',
        r"holds another sweep: \\x1b\]0;title\\x07 was",
    ),
    "many fields": (json.dumps({"chunk": 9} | {f"k{i}": i for i in range(5000)}), "and [0-9]+ more"),
    "deep field": ('{"chunk": 9, "a": ' + "[" * 400 + "]" * 400 + "}", "holds another sweep: a was"),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_invalid_manifest_raises_one_line_and_is_kept(kind, copied):
    content, message = MANIFESTS[kind]
    (copied / "sweep.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(copied, message)


def test_too_large_manifest_is_not_parsed(copied, monkeypatch):
    monkeypatch.setattr(folder, "_MAX_MANIFEST", 1000)
    manifest = copied / "sweep.json"
    manifest.write_text(manifest.read_text() + " " * 10_000)
    refused(copied, "it is too large")


def test_huge_chunk_in_a_manifest_raises_before_compilation(copied, monkeypatch):
    manifest = json.loads((copied / "sweep.json").read_text())
    (copied / "sweep.json").write_text(json.dumps(manifest | {"chunk": 2**31 - 1}))
    monkeypatch.setattr("jlibo.sweeps.run.CompiledChunks", None)
    monkeypatch.setattr("jlibo.sweeps.budget.free_host_memory", lambda: 2**34)
    before = snapshot(copied)
    with pytest.raises(BudgetError, match=r"a chunk of 2,147,483,647 runs needs at least .* GiB of memory"):
        run_quick(out=copied)
    assert snapshot(copied) == before


def mutated(text: str, dice: random.Random) -> bytes:
    """`sweep.json` with some of its values, keys or bytes replaced."""
    nasty = [None, True, -1, 0, 1e308, 2**70, "", "\x1b[31m\n", [], {}, [[[]]], {"chunk": 9}, "9" * 300]
    tree = json.loads(text)
    for _ in range(dice.choice((1, 1, 2, 4))):
        node = tree
        while isinstance(node, dict) and node:
            key = dice.choice(sorted(node))
            if isinstance(node[key], dict) and node[key] and dice.random() < 0.6:
                node = node[key]
                continue
            action = dice.random()
            if action < 0.6:
                node[key] = copy.deepcopy(dice.choice(nasty))
            elif action < 0.8:
                del node[key]
            else:
                node[dice.choice(["\x00", "\u202e", "x" * 999])] = node.pop(key)
            break
    data = bytearray(json.dumps(tree).encode())
    if dice.random() < 0.5:
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    if dice.random() < 0.1:
        del data[dice.randrange(len(data)) :]
    return bytes(data)


def check_mutated_manifests(path: Path, seed: int, count: int) -> None:
    """Test the folder functions, which read the manifest."""
    text = (path / "sweep.json").read_text()
    identity = {name: value for name, value in json.loads(text).items() if name != "format_version"}
    dice, seen = random.Random(seed), []
    for _ in range(count):
        content = mutated(text, dice)
        (path / "sweep.json").write_bytes(content)
        before = snapshot(path)
        try:
            with folder.locked(path):
                assert isinstance(folder.stored_chunk(path, identity), int)
                folder.open_folder(path, identity)
        except SweepFolderError as error:
            seen.append(str(error))
        assert snapshot(path) == before
    assert all(error.isprintable() and len(error) < 2000 for error in seen)
    assert len(seen) > count // 2


def test_damaged_manifests_raise_printable_errors(copied):
    check_mutated_manifests(copied, seed=0, count=200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_damaged_manifests_raise_printable_errors(copied, seed):
    check_mutated_manifests(copied, seed, count=3000)


# --- entries of another kind ---


def replace_by(path: Path, kind: str, elsewhere: Path) -> None:
    """Replace a file or folder of the sweep by an entry of another kind."""
    if path.is_dir():
        shutil.move(path, elsewhere)
    elif path.exists():
        path.rename(elsewhere)
    if kind == "folder":
        path.mkdir()
        (path / "mine.txt").write_text("mine")
    elif kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "dangling link":
        path.symlink_to(elsewhere.with_name("nowhere"))
    else:
        os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chunks", "file"),
        ("chunks", "link"),
        ("chunks", "dangling link"),
        ("chunks", "pipe"),
        ("chunks/00002.chunk", "folder"),
        ("chunks/00002.chunk", "link"),
        ("chunks/00002.chunk", "dangling link"),
        ("chunks/00002.chunk", "pipe"),
        ("result.npz", "folder"),
        ("result.npz", "link"),
        ("result.npz", "pipe"),
        ("summary.csv", "folder"),
        ("summary.csv", "link"),
        ("sweep.json", "folder"),
        ("sweep.json", "link"),
        ("sweep.json", "pipe"),
        (".lock", "folder"),
        (".lock", "link"),
        (".lock", "dangling link"),
        (".lock", "pipe"),
    ],
)
def test_entry_of_another_kind_raises_and_is_kept(name, kind, copied, tmp_path):
    replace_by(copied / name, kind, tmp_path / "elsewhere")
    refused(copied, rf"{name.split('/')[-1]}' should be a (file|folder) that a sweep wrote, but is a")


def test_foreign_folder_is_not_locked(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "\x1b[31mthesis\n.tex").write_text("mine")
    refused(tmp_path / "home", r"is not empty \(it has '\\x1b\[31mthesis\\n\.tex'\)")


def test_foreign_draft_is_kept(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".draft-letter-abc").write_text("mine")
    refused(tmp_path / "home", "is not empty")


def test_folder_named_like_a_draft_is_kept(copied):
    (copied / "chunks" / ".draft-00001.chunk-abc").mkdir()
    run_quick(out=copied, chunk=CHUNK)
    assert (copied / "chunks" / ".draft-00001.chunk-abc").is_dir()


def test_chunk_with_other_arrays_is_recomputed(whole, copied):
    """Its checksum and identity are valid but its arrays are not: it was not written by a sweep."""
    manifest = json.loads((copied / "sweep.json").read_text())
    forged = folder.SweepFolder(copied, manifest)
    forged.write_chunk(3, {"best": np.zeros(2), "curve": np.zeros((1, 1))})
    with pytest.warns(jlibo.sweeps.SweepWarning, match="its arrays are not those of the sweep"):
        run_quick(out=copied, chunk=CHUNK)
    assert contents(copied) == contents(whole)


def test_chunk_larger_than_the_sweep_is_not_unpacked(whole, copied):
    manifest = json.loads((copied / "sweep.json").read_text())
    forged = folder.SweepFolder(copied, manifest)
    forged.write_chunk(3, {"best": np.zeros(CHUNK, np.int64), "curve": np.zeros((CHUNK, 5 * 2**20))})
    assert forged.chunk_path(3).stat().st_size < 2**20
    with pytest.warns(jlibo.sweeps.SweepWarning, match="above the limit"):
        run_quick(out=copied, chunk=CHUNK)
    assert contents(copied) == contents(whole)


# --- a full disk ---


@pytest.mark.parametrize(("num_chunks", "num_bytes"), [(0, 0), (1, 10), (3, 900), (8, 1500)])
def test_full_disk_keeps_chunks_and_resume_gives_the_same_bytes(whole, tmp_path, num_chunks, num_bytes):
    """`RLIMIT_FSIZE` in a separate process: at the start, in the middle, and when the result is written."""
    path = tmp_path / "sweep"
    command = [str(JOBS), "full", str(path), str(num_chunks), str(num_bytes)]
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    job = forked.run(command, env=environment, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    expected = contents(whole)
    kept = contents(path)
    chunks = [name for name in kept if name.startswith("chunks/")]
    assert len(chunks) == num_chunks and "result.npz" not in kept
    assert all(kept[name] == expected[name] for name in kept), "there is a file that is not whole"
    times = {name: (path / name).stat().st_mtime_ns for name in chunks}
    run_quick(out=path, chunk=CHUNK)
    assert contents(path) == expected
    assert all((path / name).stat().st_mtime_ns == when for name, when in times.items())


def test_disk_error_says_that_finished_chunks_are_kept(copied, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (copied / "result.npz").unlink()
    monkeypatch.setattr("jlibo.files.os.fsync", full)
    with pytest.raises(SweepStorageError) as caught:
        run_quick(out=copied, chunk=CHUNK)
    assert str(caught.value) == (
        f"cannot write '{copied}/result.npz': No space left on device. Finished chunks in '{copied}' are kept"
        ": put this right and run the same sweep again to resume"
    )
    assert not list(copied.glob(".draft*"))


def test_result_larger_than_memory_raises_before_the_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("jlibo.sweeps.budget.free_host_memory", lambda: 2**30)
    with pytest.raises(
        BudgetError, match=r"the result, of 600,000,000 runs, needs at least .* and 1.0 GiB are"
    ):
        run_quick(out=tmp_path / "sweep", num_seeds=100_000_000)
    assert not (tmp_path / "sweep").exists()


def test_run_larger_than_memory_raises_before_compilation(monkeypatch):
    import jax
    import jax.numpy as jnp

    def large(key):
        return jax.lax.fori_loop(0, 3, lambda _, m: m + 1.0, jnp.zeros((2**20, 2**20)))[0, 0]

    monkeypatch.setattr("jlibo.sweeps.run.CompiledChunks", None)
    with pytest.raises(BudgetError, match="bytes that one run needs"):
        jlibo.sweep(large, num_seeds=2, key=jax.random.key(0))
