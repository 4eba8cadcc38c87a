"""`jlibo arena`: its output, its files, and one line for each mistake."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jlibo import cli
from jlibo.arena import ENVIRONMENTS, METHODS
from jlibo.arena import run as arena_run
from jlibo.arena.result import ArenaResult, Cell
from jlibo.sweeps import Labelled


@pytest.fixture
def quick(monkeypatch):
    """Replace `run_arena`: every method has regret 1 in every step, and the oracle one half."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(methods, environments, *, num_seeds, first_seed, out, progress_fn):
        progress_fn(1.0, "done")
        played = {method.name: method for method in (METHODS["oracle"], METHODS["oracle-ucb"], *methods)}
        cells = {}
        for one in environments:
            for name in played:
                size = 0.5 if name == "oracle" else 1.0
                cells[name, one.name] = Cell(
                    np.full((num_seeds, one.num_tasks, one.horizon), size), None, 0.1
                )
        return ArenaResult(tuple(played.values()), tuple(environments), num_seeds, first_seed, cells)

    import jlibo.arena

    monkeypatch.setattr(jlibo.arena, "run_arena", run)
    monkeypatch.setattr(arena_run, "run_arena", run)


def command(out, *more):
    return ["arena", "--methods", "libo", "--environments", "sparse-grid", "--out", str(out), *more]


def test_list_shows_methods_environments_and_cards(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["arena", "--list"]) == 0
    shown = capsys.readouterr().out
    for name in (*METHODS, *ENVIRONMENTS, "true prior"):
        assert name in shown


def test_it_writes_a_folder_and_prints_the_table(quick, tmp_path, capsys):
    assert cli.main(command(tmp_path, "--seeds", "3", "--tasks", "4", "--steps", "5")) == 0
    shown = capsys.readouterr().out
    assert "2.00" in shown
    assert "noise, norm of the weights, horizon" in shown
    folder = tmp_path / "arena"
    assert f"written to {folder}/" in shown.replace("\n", "")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["environments"]["sparse-grid"]["methods"]["libo"]["regret"]["mean"] == 5.0
    assert Labelled.load(folder / "regret.npz")["sparse-grid"].shape == (3, 3, 4)
    assert "| method | sparse-grid |" in (folder / "tables.md").read_text()


def test_the_same_again_replaces_it_and_other_files_are_kept(quick, tmp_path, capsys):
    small = ("--seeds", "2", "--tasks", "2", "--steps", "2")
    assert cli.main(command(tmp_path, *small)) == 0
    assert cli.main(command(tmp_path, *small)) == 0
    assert "replaced" not in capsys.readouterr().err
    assert cli.main(command(tmp_path, *small[:1], "3", *small[2:])) == 0
    assert "this replaced another arena" in capsys.readouterr().err
    (tmp_path / "arena" / "summary.json").write_text("mine")
    assert cli.main(command(tmp_path, *small)) == 2
    assert "was changed after `jlibo arena` wrote it" in capsys.readouterr().err


def test_a_folder_of_another_command_is_not_replaced(quick, tmp_path, capsys):
    from jlibo.experiments.run_folder import write_run

    write_run(tmp_path / "arena", {"summary.json": b"{}"}, {})
    assert cli.main(command(tmp_path)) == 2
    assert "is not a folder that `jlibo arena` wrote" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--methods", "lbo"], "--methods: there is no 'lbo'. Did you mean 'libo'?"),
        (
            ["--environments", "sparse-gird"],
            "--environments: there is no 'sparse-gird'. Did you mean 'sparse-grid'?",
        ),
        (["--methods", ","], "--methods should be names, separated by commas"),
        (["--seeds", "0"], "--seeds should be at least 1"),
        (["--tasks", "0"], "--tasks should be at least 1"),
        (["--steps", "x"], "--steps should be a whole number"),
    ],
)
def test_mistakes_get_one_line(words, message, capsys):
    assert cli.main(["arena", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_killed_arena_resumes(tmp_path):
    """SIGKILL after the first finished cell. The same command finishes, with the numbers of one run."""
    names, sizes = ["random", "independent"], {"num_tasks": 2, "horizon": 8}
    words = ["arena", "--methods", ",".join(names), "--environments", "gaussian-arms,one-parameter"]
    words += ["--seeds", "3", "--tasks", "2", "--steps", "8", "--out", str(tmp_path)]
    program = [sys.executable, "-c", "import sys; from jlibo.cli import main; sys.exit(main())", *words]
    unfinished, folder = tmp_path / "arena.unfinished", tmp_path / "arena"
    killed = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(unfinished.glob("*/*/result.npz")):
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.communicate()
    finished = [path.parent for path in unfinished.glob("*/*/result.npz")]
    assert 1 <= len(finished) < 6 and not folder.exists()
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    assert not unfinished.exists()
    environments = [ENVIRONMENTS[name].sized(**sizes) for name in ("gaussian-arms", "one-parameter")]
    whole = arena_run.run_arena([METHODS[name] for name in names], environments, num_seeds=3)
    again = Labelled.load(folder / "regret.npz")
    for name, variable in whole.labelled().arrays.items():
        np.testing.assert_allclose(again[name], variable.values, atol=1e-9)
