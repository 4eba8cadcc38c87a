"""The command line as a user meets it: its output, its files, and one line for each mistake."""

import json
import os
import subprocess
import sys

import pytest

from jlibo import cli

SMALL = ["num_features=8", "support_size=2", "num_tasks=4", "horizon=16"]


def small(*arguments):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    return ["reproduce", "lifelong-cosine", "--seeds", "2", *settings, *arguments]


def test_list_shows_every_experiment(capsys):
    from jlibo.experiments import REGISTRY

    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in REGISTRY:
        assert name in shown


def test_reproduce_writes_a_folder_and_prints_a_table(tmp_path):
    """In a process of its own, twice: with a compilation cache that fills up, and without one."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "COLUMNS": "120"}

    def run(*more):
        command = [sys.executable, "-m", "jlibo.cli", *small("--out", str(out), *more)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    shown = run("--no-cache")
    assert not (cache / "jlibo").exists()
    for word in ("oracle", "full", "libo", "flibo", "lifelong regret", "±", "compile", str(out)):
        assert word in shown
    first = json.loads((out / "lifelong-cosine" / "summary.json").read_text())
    assert {"import_s", "compile_s", "run_s"} == set(first["timing"])
    assert first["settings"]["num_tasks"] == 4

    run("--set", "lam=0.3")
    assert any((cache / "jlibo" / "compiled").iterdir())
    second = json.loads((out / "lifelong-cosine" / "summary.json").read_text())
    assert second["settings"]["lam"] == 0.3
    assert second["agents"]["oracle"]["lifelong_regret"] == first["agents"]["oracle"]["lifelong_regret"]


def test_who_does_not_know_the_truth_is_told_the_best_so_far(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
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
    shown = capsys.readouterr().out
    for word in ("random", "best after 10", "best in the end", "simple regret", "lifelong regret"):
        assert word in shown
    assert "recovery" not in shown and "oracle" not in shown
    summary = json.loads((tmp_path / "lifelong-glmnet" / "summary.json").read_text())
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


def test_an_unwritable_folder_is_found_before_the_work(tmp_path, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    assert cli.main(small("--no-cache", "--out", str(blocker / "out"))) == 2
    captured = capsys.readouterr()
    assert "cannot write to" in captured.err
    assert captured.err.count("\n") == 1
    assert blocker.read_text() == "in the way"
