"""Sweep folders: resumed, refused or repaired, with the same bytes as an uninterrupted sweep."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jlibo
from jlibo.sweeps import Labelled, SweepFolderError, SweepWarning, folder
from tests import forked
from tests.sweeps.sweep_jobs import GRID, quick, run_quick

JOBS = Path(__file__).with_name("sweep_jobs.py")
CHUNK = 9


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "sweep"
    return path, run_quick(out=path)


def copy_of(whole: Path, path: Path) -> Path:
    for name, data in contents(whole).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_folder_has_chunks_and_a_loadable_result(whole):
    path, result = whole
    chunks = [f"chunks/{number:05d}.chunk" for number in range(8)]
    assert sorted(contents(path)) == sorted([".lock", "result.npz", "sweep.json", *chunks])
    loaded = Labelled.load(path / "result.npz")
    in_memory = run_quick()
    for name in result.names:
        np.testing.assert_array_equal(result[name], loaded[name])
        np.testing.assert_array_equal(result[name], in_memory[name])
    assert json.loads((path / "sweep.json").read_text())["chunk"] == CHUNK == result.attrs["chunk"]


def test_finished_folder_is_loaded_without_computation(whole, tmp_path, monkeypatch):
    path = copy_of(whole[0], tmp_path / "copy")
    monkeypatch.setattr("jlibo.sweeps.run.CompiledChunks", None)  # compiling raises an error
    again = run_quick(out=path)
    assert contents(path) == contents(whole[0])
    np.testing.assert_array_equal(again["curve"], whole[1]["curve"])


def test_missing_chunks_are_computed_and_drafts_removed(whole, tmp_path):
    path = copy_of(whole[0], tmp_path / "copy")
    for name in ("result.npz", "chunks/00000.chunk", "chunks/00003.chunk", "chunks/00007.chunk"):
        (path / name).unlink()
    (path / "chunks" / ".draft-00003.chunk-abc").write_bytes(b"half")
    (path / ".draft-result.npz-abc").write_bytes(b"half")
    run_quick(out=path)
    assert contents(path) == contents(whole[0])


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "swap", "foreign"])
def test_corrupt_chunk_warns_and_is_recomputed(whole, tmp_path, harm):
    path = copy_of(whole[0], tmp_path / "copy")
    victim = path / "chunks" / "00002.chunk"
    data = victim.read_bytes()
    if harm == "flip":
        data = data[:200] + bytes([data[200] ^ 1]) + data[201:]
    elif harm == "cut":
        data = data[:-10]
    elif harm == "empty":
        data = b""
    elif harm == "swap":  # valid, but of another place
        data = (path / "chunks" / "00001.chunk").read_bytes()
    else:  # of another sweep
        other = folder.SweepFolder(tmp_path / "other", {"another": "sweep"})
        (tmp_path / "other" / "chunks").mkdir(parents=True)
        other.write_chunk(2, {"best": np.zeros(CHUNK, np.int64), "curve": np.zeros((CHUNK, 5))})
        data = other.chunk_path(2).read_bytes()
    victim.write_bytes(data)
    with pytest.warns(SweepWarning, match=r"00002.chunk' is corrupt: .* computed anew"):
        run_quick(out=path)
    assert contents(path) == contents(whole[0])


def test_another_sweep_raises_and_names_the_difference(whole, tmp_path, monkeypatch):
    path = copy_of(whole[0], tmp_path / "copy")
    before = contents(path)

    def refused(match, run_fn=quick, grid=GRID, **options):
        options = {"num_seeds": 11, "dims": {"curve": ("step",)}, "key": jax.random.key(3)} | options
        with pytest.raises(SweepFolderError, match=match):
            jlibo.sweep(run_fn, grid, out=path, chunk=CHUNK, **options)
        assert contents(path) == before

    refused("num_seeds was 11 and is 12 now", num_seeds=12)
    refused("first_seed was 0 and is 1 now", first_seed=1)
    refused("key was .* and is .* now", key=jax.random.key(4))
    refused("points.lam was", grid={"lam": [0.1, 0.5, 0.8], "omega": [0.0, 1.0]})
    refused("config.note was null and is 1 now", attrs={"note": 1})
    with jax.enable_x64(False):
        refused("x64 was true and is false now")
    with pytest.raises(SweepFolderError, match=r"chunk was 9 and is 3 now.*Give another folder"):
        run_quick(out=path, chunk=3)

    def other(key, lam, omega):
        answer = quick(key, lam, omega)
        return answer | {"curve": answer["curve"] * 2}

    refused("the function computes something else", run_fn=other)
    monkeypatch.setattr("jlibo.sweeps.program.__version__", "99.0")
    refused(r'versions.jlibo was "[0-9.]+" and is "99.0" now')


def test_constants_of_the_function_are_part_of_the_identity(tmp_path):
    """Large constants are not in the text of a program, but are part of a folder's identity."""

    def with_table(table):
        return lambda key: (jax.random.uniform(key, (50,)) * table).sum()

    jlibo.sweep(with_table(np.arange(50.0)), num_seeds=2, out=tmp_path / "a", key=jax.random.key(0))
    jlibo.sweep(with_table(np.arange(50.0)), num_seeds=2, out=tmp_path / "a", key=jax.random.key(0))
    changed = np.arange(50.0)
    changed[20] += 1e-9
    with pytest.raises(SweepFolderError, match="computes something else"):
        jlibo.sweep(with_table(changed), num_seeds=2, out=tmp_path / "a", key=jax.random.key(0))


def test_unusable_folders_raise(tmp_path, whole):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(SweepFolderError, match=r"is not empty \(it has 'thesis.tex'\)"):
        run_quick(out=tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    with pytest.raises(SweepFolderError, match="cannot write to"):
        run_quick(out=tmp_path / "full" / "thesis.tex")
    path = copy_of(whole[0], tmp_path / "copy")
    (path / "sweep.json").write_text("{")
    with pytest.raises(SweepFolderError, match="cannot be read"):
        run_quick(out=path)
    with folder.locked(tmp_path / "busy"), pytest.raises(SweepFolderError, match="in use by another process"):
        run_quick(out=tmp_path / "busy")


def test_resume_after_sigkill_gives_the_same_bytes(tmp_path):
    """Separate processes, one of which gets SIGKILL in the middle."""
    environment = os.environ | {"PYTHONHASHSEED": "random"}

    def start(path, pause):
        command = [sys.executable, str(JOBS), "folder", str(path), pause]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    alone = start(tmp_path / "alone", "0")
    killed = start(tmp_path / "killed", "0.05")
    chunks = tmp_path / "killed" / "chunks"
    while not (chunks.is_dir() and len(list(chunks.glob("*.chunk"))) >= 3):
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    num_done = len(list(chunks.glob("*.chunk")))
    assert 3 <= num_done < 66 and not (tmp_path / "killed" / "result.npz").exists()
    times = {file.name: file.stat().st_mtime_ns for file in chunks.glob("*.chunk")}
    again = start(tmp_path / "killed", "0")
    for process in (alone, again):
        assert process.wait() == 0, process.communicate()[1]
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")
    # Finished chunks were kept and not recomputed.
    assert all((chunks / name).stat().st_mtime_ns == when for name, when in times.items())


CONFIG = """
experiment = "lifelong-cosine"
seeds = 30
chunk = 1
[set]
num_features = 8
support_size = 2
num_tasks = 3
horizon = 30
[grid]
lam = [0.1, 0.5]
"""
NUM_KILLS = 20


def check_kills(whole, path, moments):
    """Kill a sweep at two of the calls that change the disk, one after the other; then let it finish."""
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    for first, second in moments:
        out = path / f"killed-{first}-{second}"
        for moment in (first, second):
            command = [str(JOBS), "killed", str(out), str(moment)]
            killed = forked.run(command, env=environment, capture_output=True, text=True)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        run_quick(out=out, chunk=CHUNK)
        assert contents(out) == contents(whole), (first, second)


def test_resume_after_kills_at_calls_that_change_the_disk(whole, tmp_path):
    check_kills(whole[0], tmp_path, [(17, 4)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_resume_after_kills_at_many_calls_that_change_the_disk(whole, tmp_path, seed):
    dice = random.Random(seed)
    check_kills(whole[0], tmp_path, [(dice.randrange(1, 40), dice.randrange(1, 6)) for _ in range(10)])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_resume_after_twenty_kills_at_random_times(tmp_path, seed):
    """`jlibo sweep` under SIGKILL: resuming gives the same bytes as an uninterrupted run."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    environment = os.environ | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def start(out):
        command = [sys.executable, "-m", "jlibo.cli", "sweep", str(config), "--out", str(out)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finish(out):
        begin = time.monotonic()
        process = start(out)
        assert process.wait() == 0, process.communicate()[1].decode()
        return time.monotonic() - begin

    finish(tmp_path / "compiles")
    seconds = finish(tmp_path / "alone")
    expected = contents(tmp_path / "alone")
    assert len(expected) == 64
    dice = random.Random(seed)
    kills, within, rounds = 0, 0, 0
    while kills < NUM_KILLS:
        out = tmp_path / f"killed-{rounds}"
        rounds += 1
        # Two or three kills in each folder, then a run to the end.
        for _ in range(dice.choice((2, 3))):
            before = len(list(out.glob("chunks/*.chunk")))
            process = start(out)
            if dice.random() < 0.4:  # at any time
                time.sleep(dice.uniform(0, seconds))
            else:  # while it writes chunks
                while len(list(out.glob("chunks/*.chunk"))) == before and process.poll() is None:
                    time.sleep(0.001)
                time.sleep(dice.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                kills += 1
                within += before < len(list(out.glob("chunks/*.chunk"))) < 60
            process.communicate()
        finish(out)
        assert contents(out) == expected
    assert within >= 5, "the kills came too early or too late to say anything"


def test_clean_runs_do_not_warn(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_quick(out=tmp_path / "clean", num_seeds=1)
        run_quick(out=tmp_path / "clean", num_seeds=1)
