"""The command line: its output, its files, and one line for each mistake."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jlibo import cli
from jlibo.experiments import find, folder, override, run_experiment, runner
from tests import forked

SMALL = ["num_features=8", "support_size=2", "num_tasks=4", "horizon=16"]


def small(*arguments):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    return ["reproduce", "lifelong-cosine", "--seeds", "2", *settings, *arguments]


SMALL_RUN = folder.run_name(override(find("lifelong-cosine"), dict(text.split("=") for text in SMALL)))


@pytest.fixture(scope="module")
def result():
    changes = dict(text.split("=") for text in SMALL)
    return run_experiment(override(find("lifelong-cosine"), changes), num_seeds=2)


@pytest.fixture
def quick(result, monkeypatch):
    """Replace `run_experiment`: every experiment returns the same small result at once."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(experiment, *, num_seeds, first_seed, **_):
        return dataclasses.replace(result, experiment=experiment, num_seeds=num_seeds, first_seed=first_seed)

    monkeypatch.setattr(runner, "run_experiment", run)


def test_list_shows_every_experiment(capsys):
    from jlibo.experiments import REGISTRY

    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in REGISTRY:
        assert name in shown


def test_reproduce_writes_a_folder_and_prints_a_table(tmp_path):
    """Runs twice, each in a separate process, the second with the compiled programs of the first."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    environment = os.environ | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(cache), "COLUMNS": "120"}

    def command(*more):
        return ["-m", "jlibo.cli", *small("--out", str(out), *more)]

    options = {"env": environment, "capture_output": True, "text": True, "check": True}
    shown = subprocess.run([sys.executable, *command()], **options).stdout
    for word in ("oracle", "full", "libo", "flibo", "lifelong regret", "±", "compile", str(out)):
        assert word in shown
    first = json.loads((out / SMALL_RUN / "summary.json").read_text())
    assert {"import_s", "compile_s", "run_s"} == set(first["timing"])
    assert first["settings"]["num_tasks"] == 4

    compiled = sorted((cache / "jlibo" / "compiled").iterdir())
    assert compiled
    forked.run(command("--set", "lam=0.3"), **options)
    assert sorted((cache / "jlibo" / "compiled").iterdir()) == compiled
    second = json.loads((out / f"{SMALL_RUN},lam=0.3" / "summary.json").read_text())
    assert second["settings"]["lam"] == 0.3
    assert sorted(os.listdir(out)) == [SMALL_RUN, f"{SMALL_RUN},lam=0.3"]
    assert json.loads((out / SMALL_RUN / "summary.json").read_text()) == first
    assert second["agents"]["oracle"]["lifelong_regret"] == first["agents"]["oracle"]["lifelong_regret"]


def test_table_without_ground_truth_shows_the_best_so_far(tmp_path, capsys, monkeypatch):
    """Runs without a compilation cache."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("JLIBO_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = [word for text in ("num_features=9", "num_tasks=2", "horizon=11") for word in ("--set", text)]
    command = [
        "reproduce",
        "lifelong-glmnet",
        "--seeds",
        "2",
        *settings,
        "--no-cache",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(command) == 0
    assert not (tmp_path / "cache").exists()
    shown = capsys.readouterr().out
    for word in ("random", "best after 10", "best in the end", "simple regret", "lifelong regret"):
        assert word in shown
    assert "recovery" not in shown and "oracle" not in shown
    summary = json.loads(next(tmp_path.glob("lifelong-glmnet,*/summary.json")).read_text())
    best = summary["agents"]["libo"]["simple_regret"]["last_half"]
    for step in ("10", "11"):
        assert f"{best[step]['mean']:.5f} ± {best[step]['se']:.5f}" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "lifelong-cosin"], "Did you mean 'lifelong-cosine'?"),
        (["reproduce", "lifelong-cosine", "--set", "lamb=1"], "Did you mean 'lam'?"),
        (["reproduce", "lifelong-cosine", "--set", "lam"], "--set should be NAME=VALUE"),
        (["reproduce", "lifelong-cosine", "--set", "alpha=2"], "'alpha' should be a number >= 0 and <= 1"),
        (["reproduce", "lifelong-cosine", "--seeds", "0"], "--seeds should be at least 1"),
        (["reproduce", "lifelong-cosine", "--seeds", "many"], "--seeds should be a whole number"),
        (["reproduce", "lifelong-cosine", "--first-seed", "-1"], "--first-seed should be at least 0"),
        (
            ["reproduce", "lifelong-cosine", "--seeds", "99999999999999"],
            "--seeds should be at most 2147483648",
        ),
        (["reproduce", "lifelong-cosine", "--seeds", "9" * 5000], "--seeds should be a whole number"),
        (
            ["reproduce", "lifelong-cosine", "--first-seed", "9" * 30],
            "--first-seed should be at most 2147483648",
        ),
        (
            ["reproduce", "lifelong-cosine", "--first-seed", "2147483640"],
            "--first-seed and --seeds should be at most 2147483648 together, but got 2147483640 and 20",
        ),
        (["reproduce", "lifelong-cosine", "--seeds", "100000000"], "fewer --seeds"),
        (["reproduce", "lifelong-cosine", "--set", "num_features=1000000"], "num_features=1000000"),
        (["reproduce", "lifelong-cosine", "--set", "lam=1e39"], "the largest float32"),
        (["reproduce", "lifelong-cosine", "--set", "a\nb=1"], r"There is no setting 'a\nb'"),
        (["reproduce"], "required: NAME. `jlibo reproduce --help`"),
        (["reproduce", "lifelong-cosine", "--frob"], "unrecognized arguments: --frob"),
        (["bogus"], "invalid choice: 'bogus'"),
        (["reproduce", "lifelong-glmnet", "--set", "num_tasks=50"], "'num_tasks' should be at most 49"),
        (
            ["reproduce", "lifelong-glmnet", "--set", "features=cosine"],
            "'features' of glmnet should be one of",
        ),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_rejected_before_the_run(tmp_path, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    assert cli.main(small("--no-cache", "--out", str(blocker / "out"))) == 2
    captured = capsys.readouterr()
    assert "cannot write to" in captured.err
    assert captured.err.count("\n") == 1
    assert blocker.read_text() == "in the way"


# --- existing files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["notes", "file", "link"])
def test_foreign_files_are_rejected_before_the_run(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runner, "run_experiment", lambda *_, **__: pytest.fail("the work began"))
    target = tmp_path / SMALL_RUN
    notes = tmp_path / "notes" if kind == "link" else target / "notes.txt" if kind == "notes" else target
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("mine")
    if kind == "link":
        target.symlink_to(tmp_path)
    before = sorted(os.listdir(tmp_path))
    assert cli.main(small("--no-cache", "--out", str(tmp_path))) == 2
    captured = capsys.readouterr()
    assert "is not replaced: move it away, or give another --out." in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert sorted(os.listdir(tmp_path)) == before and notes.read_text() == "mine"


def test_folder_name_lists_settings_that_differ_from_the_default(quick, tmp_path, capsys):
    out = str(tmp_path)
    for more in ([], ["--set", "lam=0.3"], ["--set", "lam=0.5"]):  # 0.5 is the default
        assert cli.main(["reproduce", "lifelong-cosine", "--no-cache", "--out", out, *more]) == 0
    assert sorted(os.listdir(out)) == ["lifelong-cosine", "lifelong-cosine,lam=0.3"]
    summary = json.loads((tmp_path / "lifelong-cosine" / "summary.json").read_text())
    assert {"mean", "se"} == set(summary["agents"]["libo"]["lifelong_regret"])
    assert summary["timing"]["run_s"] > 0
    assert capsys.readouterr().err == ""
    arguments = [
        "reproduce",
        "lifelong-cosine",
        "--no-cache",
        "--out",
        out,
        "--seeds",
        "3",
        "--first-seed",
        "5",
    ]
    assert cli.main(arguments) == 0
    assert "note: this replaced a run of 20 seeds from 0, float64 in" in capsys.readouterr().err
    summary = json.loads((tmp_path / "lifelong-cosine" / "summary.json").read_text())
    assert (summary["seeds"], summary["first_seed"]) == (3, 5)


# --- full disks ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_file_system(path, size):
    """Mount a file system of `size` bytes; skip the test if this process cannot mount."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("this process cannot mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount")
def test_full_disk_keeps_table_and_results(quick, tmp_path, capsys, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(folder.tempfile, "tempdir", str(tmp_path / "temporary"))
    with small_file_system(tmp_path / "full", 65536) as full:
        (full / "other").write_bytes(b"0" * 40_000)
        assert cli.main(small("--no-cache", "--out", str(full))) == 74
        assert os.listdir(full) == ["other"]
    captured = capsys.readouterr()
    assert "libo" in captured.out and "lifelong regret" in captured.out and "written to" not in captured.out
    assert captured.err.count("\n") == 1
    assert "the result could not be written" in captured.err and "No space left on device" in captured.err
    (kept,) = (tmp_path / "temporary").iterdir()
    assert str(kept) in captured.err
    assert sorted(os.listdir(kept)) == ["curves.npz", "figure.pdf", "figure.png", "summary.json"]
    assert json.loads((kept / "summary.json").read_text())["experiment"] == "lifelong-cosine"


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_summary_is_kept_if_nothing_else_fits(quick, tmp_path, capsys, monkeypatch):
    """RLIMIT_FSIZE is slightly larger than the summary, for all files of the process."""
    import resource

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(folder.tempfile, "tempdir", str(tmp_path / "temporary"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        code = cli.main(small("--no-cache", "--out", str(tmp_path / "out")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    captured = capsys.readouterr()
    assert code == 74 and captured.err.endswith("' has its summary.json.\n")
    assert captured.err.count("\n") == 1 and "lifelong regret" in captured.out
    assert os.listdir(tmp_path / "out") == []
    (kept,) = (tmp_path / "temporary").iterdir()
    assert os.listdir(kept) == ["summary.json"]


# --- signals ------------------------------------------------------------------------------------------------


def start(out, cache):
    command = [sys.executable, "-m", "jlibo.cli", *small("--out", str(out))]
    environment = os.environ | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_run_leaves_a_complete_result(number, tmp_path):
    out, cache = tmp_path / "out", tmp_path / "cache"
    begin = time.monotonic()
    first = start(out, cache)
    assert first.communicate()[1] == "" and first.returncode == 0
    seconds = time.monotonic() - begin
    target = out / SMALL_RUN
    regret = json.loads((target / "summary.json").read_text())["agents"]["libo"]["lifelong_regret"]
    (target / "notes.txt").write_text("mine")
    for step in range(12):
        process = start(out, cache)
        time.sleep(0.5 + seconds * step / 12)
        process.send_signal(number)
        complaint = process.communicate()[1]
        if number == signal.SIGINT:
            # Before and after Python handles signals, the system ends the process; a shell reports 130 too.
            ends = [(130, "jlibo: stopped.\n"), (-signal.SIGINT, ""), (0, "")]
            assert (process.returncode, complaint) in ends
        summary = json.loads((target / "summary.json").read_text())
        assert summary["agents"]["libo"]["lifelong_regret"] == regret
        assert (target / "notes.txt").read_text() == "mine"
    assert start(out, cache).wait() == 0
    assert os.listdir(out) == [SMALL_RUN]
