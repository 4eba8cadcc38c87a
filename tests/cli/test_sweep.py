"""`jlibo sweep`: its table and folder, resuming, and one line for each mistake that says what is valid."""

import csv
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from jlibo import Labelled, cli
from jlibo.experiments import find, override, run_experiment
from jlibo.experiments.config import DEFAULT_OUTPUTS, check_config, read_config
from jlibo.experiments.run import TRUE_SUPPORT, outputs_of
from jlibo.sweeps import BudgetError, SweepFolderError
from jlibo.sweeps.dask_engine import ClusterError, WorkerError
from tests import forked

SMALL = {"num_features": 8, "support_size": 2, "num_tasks": 3, "horizon": 12}
CONFIG = """
experiment = "lifelong-cosine"
seeds = 3
first_seed = 2
chunk = 2
outputs = ["recovery", "status", "actions", "regret"]
[set]
num_features = 8
support_size = 2
num_tasks = 3
horizon = 12
[grid]
lam = [0.1, 0.5]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the command once; return its folder and the completed process."""
    path = tmp_path_factory.mktemp("sweep")
    (path / "config.toml").write_text(CONFIG)
    command = ["-m", "jlibo.cli", "sweep", str(path / "config.toml"), "--out", str(path / "out"), "--x64"]
    environment = os.environ | {"COLUMNS": "120", "JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(path / "cache")}
    run = forked.run(command, env=environment, capture_output=True, text=True, check=True)
    return path / "out", run


def test_sweep_prints_a_table_and_writes_a_folder(finished):
    out, run = finished
    for words in (
        "lam",
        "oracle",
        "flibo",
        "lifelong regret",
        "±",
        "exact recovery",
        "3 seeds from 2",
        str(out),
    ):
        assert words in run.stdout
    assert run.stderr == ""  # no progress bar without a terminal
    result = Labelled.load(out / "result.npz")
    assert set(result.names) == {"task_regret", "support_size", "recovery", "status", "actions", "regret"}
    assert result.dims("actions") == ("lam", "seed", "agent", "task", "step")
    assert result.coord("agent").tolist() == ["oracle", "full", "libo", "flibo"]
    assert result.attrs["experiment"] == "lifelong-cosine" and result.attrs["settings"]["horizon"] == 12
    with open(out / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["lam"], row["agent"]) for row in rows[:2]] == [("0.1", "oracle"), ("0.1", "full")]
    total = result.sel(lam=0.5, agent="libo")["task_regret"].astype(np.float64).sum(-1)
    row = next(row for row in rows if (row["lam"], row["agent"]) == ("0.5", "libo"))
    assert float(row["regret"]) == pytest.approx(total.mean(), rel=1e-12)
    assert float(row["se"]) == pytest.approx(total.std(ddof=1) / 3**0.5, rel=1e-12)
    assert f"{total.mean():,.2f} ± {total.std(ddof=1) / 3**0.5:,.2f}" in run.stdout


@pytest.mark.slow
def test_sweep_equals_reproduce_for_the_same_seeds(finished):
    """Tasks, actions and regret equal those of `jlibo reproduce` with these settings at every step."""
    result = Labelled.load(finished[0] / "result.npz")
    settings = {name: str(value) for name, value in SMALL.items()}
    experiment = override(find("lifelong-cosine"), settings | {"lam": "0.1"})
    expected = run_experiment(experiment, num_seeds=3, first_seed=2)
    for agent, run in expected.results.items():
        ours = result.sel(lam=0.1, agent=agent)
        np.testing.assert_array_equal(ours["actions"], run.actions)
        np.testing.assert_allclose(ours["regret"], run.regret, rtol=1e-9, atol=1e-9)


def test_another_config_in_the_folder_gives_one_line(finished, tmp_path, capsys):
    changed = tmp_path / "config.toml"
    changed.write_text(CONFIG.replace("seeds = 3", "seeds = 4"))
    before = {file: file.read_bytes() for file in finished[0].rglob("*") if file.is_file()}
    assert cli.main(["sweep", str(changed), "--out", str(finished[0]), "--x64", "--no-cache"]) == 2
    captured = capsys.readouterr()
    assert "holds another sweep: num_seeds was 3 and is 4 now" in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert {file: file.read_bytes() for file in finished[0].rglob("*") if file.is_file()} == before


def test_interrupted_sweep_resumes(finished, tmp_path):
    """SIGINT comes after the first chunk; the same command then ends with the same files."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    out = tmp_path / "out"
    arguments = ["sweep", str(config), "--x64", "--out", str(out)]
    environment = os.environ | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(finished[0].parent / "cache")}
    # SIGINT is sent between two chunks. The handler is set, since an ignored SIGINT is inherited.
    script = (
        "import signal, sys; from jlibo import cli; from jlibo.sweeps import folder\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\n"
        "keep = folder.SweepFolder.write_chunk\n"
        "def pressed(self, *args): keep(self, *args); signal.raise_signal(signal.SIGINT)\n"
        "folder.SweepFolder.write_chunk = pressed\n"
        f"sys.exit(cli.main({arguments!r}))"
    )
    stopped = forked.run(["-c", script], env=environment, capture_output=True, text=True)
    said = stopped.stderr
    (chunk,) = (out / "chunks").iterdir()  # the first finished chunk
    assert stopped.returncode == 130, said
    assert said == f"jlibo: stopped. Finished chunks are in '{out}'; the same command resumes from there.\n"
    chunk.write_bytes(b"spoilt")
    command = ["-m", "jlibo.cli", *arguments]
    again = forked.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "jlibo: note: " in again.stderr and f"{chunk.name}' is corrupt" in again.stderr
    assert again.stderr.count("\n") == 1

    def files(path: Path):
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    assert files(out) == files(finished[0])


def test_full_disk_gives_one_line_and_exit_code_74(finished, tmp_path):
    """After the first chunk no file can exceed 100 bytes; the second run has no such limit."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    out = tmp_path / "out"
    arguments = ["sweep", str(config), "--x64", "--out", str(out)]
    environment = os.environ | {"JLIBO_CACHE": "1", "XDG_CACHE_HOME": str(finished[0].parent / "cache")}
    script = (
        "import resource, sys; from jlibo import cli; from jlibo.sweeps import folder\n"
        "keep = folder.SweepFolder.write_chunk\n"
        "def full(self, *args):\n"
        "    keep(self, *args)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "folder.SweepFolder.write_chunk = full\n"
        f"sys.exit(cli.main({arguments!r}))"
    )
    full = forked.run(["-c", script], env=environment, capture_output=True, text=True)
    assert full.returncode == 74, full.stderr
    assert re.search(rf"cannot write '{out}/chunks/0000\d.chunk': File too large", full.stderr)
    assert f"Finished chunks in '{out}' are kept" in full.stderr and "again to resume" in full.stderr
    assert full.stderr.count("\n") == 1 and full.stdout == ""
    kept = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    (chunk,) = kept - {".lock", "sweep.json"}  # the first finished chunk
    assert chunk.startswith("chunks/0000")
    forked.run(["-m", "jlibo.cli", *arguments], env=environment, capture_output=True, check=True)
    for file in finished[0].rglob("*"):
        if file.is_file():
            assert (out / file.relative_to(finished[0])).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("options", [["--distributed"], ["--devices", "257"]])
def test_options_that_cannot_be_met_give_one_line(options, tmp_path):
    """Runs in a separate process, in which jax has not started."""
    (tmp_path / "config.toml").write_text(CONFIG)
    command = ["-m", "jlibo.cli", "sweep", str(tmp_path / "config.toml"), "--no-cache", *options]
    names = ("SLURM", "OMPI", "PMI", "KUBERNETES", "JAX_COORD", "JAX_PROC", "JAX_NUM")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    run = forked.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith(f"jlibo: {options[0]} should be") and run.stderr.count("\n") == 1


# --- config file ---


def test_defaults_of_the_config():
    config = check_config({"experiment": "offline-cosine"})
    assert (config.num_seeds, config.first_seed, config.chunk, config.grid) == (20, 0, None, {})
    assert config.outputs == DEFAULT_OUTPUTS
    assert "recovery" not in check_config({"experiment": "lifelong-glmnet"}).outputs
    listed = check_config(
        {"experiment": "lifelong-cosine", "points": [{"lam": 1, "nu": 2.5}], "memory_gb": 0.5, "chunk": 7}
    )
    assert listed.grid == [{"lam": 1.0, "nu": 2.5}] and isinstance(listed.grid[0]["lam"], float)
    assert listed.memory_budget == 2**29 and listed.chunk == 7
    assert {*DEFAULT_OUTPUTS, TRUE_SUPPORT} <= set(outputs_of(find("lifelong-cosine")))
    assert TRUE_SUPPORT not in outputs_of(find("lifelong-glmnet"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": None}, "'experiment' should be a name"),
        ({"experiment": "lifelong-cosin"}, "Did you mean 'lifelong-cosine'?"),
        ({"sedes": 3}, "there is no key 'sedes'. Did you mean 'seeds'?"),
        ({"seeds": 0}, "'seeds' should be a whole number of at least 1, but got 0"),
        ({"seeds": "ten"}, "'seeds' should be a whole number of at least 1, but got 'ten'"),
        ({"first_seed": -1}, "'first_seed' should be a whole number of at least 0"),
        ({"chunk": 1.5}, "'chunk' should be a whole number of at least 1"),
        ({"memory_gb": -1}, "'memory_gb' should be a number above 0"),
        ({"set": {"lamb": 1}}, "Did you mean 'lam'?"),
        ({"set": {"lam": [1]}}, "'set.lam' should be a number or a word"),
        ({"set": {"alpha": 2}}, "'alpha' should be a number >= 0 and <= 1"),
        ({"set": 3}, "'set' should be a table"),
        ({"grid": {"lam": 0.1}}, "'grid.lam' should be a list of numbers, such as [0.1, 0.3], but got 0.1"),
        ({"grid": {"lam": ["a"]}}, "'grid.lam' should be numbers, but got 'a'"),
        ({"grid": {"lam": [0.1, 0.1]}}, "'grid.lam' should have each value once"),
        ({"grid": {"alpha": [0.5, 2]}}, "'grid': 'alpha' should be a number >= 0 and <= 1"),
        ({"points": [{"norm_bound": 1.2, "beta_min": 4.0}]}, "'points': 'beta_min' should be"),
        ({"first_seed": 2**31 - 1}, "'first_seed' should leave all seeds below 2**31, but got 2147483647"),
        ({"grid": {"horizon": [10, 20]}}, "'horizon' changes the program, so give it in [set]"),
        ({"grid": {"explore_scale": [0.5]}}, "'grid.explore_scale' should be one of norm_bound"),
        ({"grid": {"lamm": [0.5]}}, "'grid.lamm' is no setting. Did you mean 'lam'?"),
        ({"grid": {"lam": [0.5]}, "set": {"lam": 1}}, "'grid.lam' is in [set] too"),
        ({"grid": {"lam": [0.5]}, "points": [{"lam": 1}]}, "'grid' and 'points' exclude each other"),
        (
            {"points": [{"lam": 1}, {"nu": 1}]},
            "'points' should all have the settings lam, but number 2 has nu",
        ),
        ({"points": 3}, "'points' should be a list of tables"),
        ({"outputs": ["regre"]}, "'outputs' of lifelong-cosine should be among task_regret"),
        ({"outputs": []}, "'outputs' should be a list of names"),
        ({"experiment": "lifelong-glmnet", "outputs": ["recovery"]}, "'outputs' of lifelong-glmnet"),
    ],
)
def test_mistakes_name_the_key_and_valid_values(changes, message):
    entries = {"experiment": "lifelong-cosine"} | changes
    entries = {name: value for name, value in entries.items() if value is not None}
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is looked at below)
        check_config(entries)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, [], "cannot read"),
        ("experiment = ", [], "is not TOML"),
        ('experiment = "nothing"', [], "config.toml: There is no experiment 'nothing'"),
        (CONFIG, ["--devices", "0"], "--devices should be a whole number of at least 1"),
        (CONFIG, ["--devices", "many"], "--devices should be a whole number of at least 1, but got 'many'"),
        (CONFIG, ["--workers", "2"], "--workers goes with --dask local"),
        (CONFIG, ["--dask", "local", "--devices", "2"], "--devices and --dask exclude each other"),
        (CONFIG, ["--devices", "9"], "--devices should be at most 1 here, but got 9"),
        (CONFIG, ["--devices", "1000000"], "--devices should be at most 256"),
        (CONFIG, ["--devices", "9" * 5000], "--devices should be a whole number of at least 1, but got '999"),
        (CONFIG, ["--dask", "local", "--workers", "1000000"], "--workers should be at most"),
        (CONFIG, ["--dask", "\x1b[31mnowhere"], "there is no scheduler at '\\x1b[31mnowhere'"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(text, options, message, tmp_path, capsys):
    jax.devices()  # jax has started, so the number of devices is fixed
    config = tmp_path / "config.toml"
    if text is not None:
        config.write_text(text)
    assert cli.main(["sweep", str(config), "--no-cache", "--out", str(tmp_path / "out"), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "code"), [(BudgetError, 2), (SweepFolderError, 2), (WorkerError, 1), (ClusterError, 1)]
)
def test_errors_during_the_sweep_give_one_line(kind, code, tmp_path, capsys, monkeypatch):
    def fail(*_, **options):
        assert options["memory_budget"] == 107
        raise kind("in words")

    monkeypatch.setattr("jlibo.sweeps.sweep", fail)
    (tmp_path / "config.toml").write_text(CONFIG.replace("chunk = 2", "memory_gb = 1e-7"))
    assert cli.main(["sweep", str(tmp_path / "config.toml"), "--no-cache"]) == code
    assert capsys.readouterr().err == "jlibo: in words\n"


def test_example_of_the_guide_is_a_valid_config():
    example = Path(__file__).parents[2] / "docs" / "sweep-example.toml"
    config = read_config(example)
    assert config.experiment.name == "lifelong-cosine" and isinstance(config.grid, dict)
