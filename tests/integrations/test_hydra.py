"""The sweeper for Hydra, run by Hydra itself."""

import subprocess
import sys
import textwrap
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

import jlibo
from hydra_plugins.jlibo_sweeper import _parameter

ROOT = Path(__file__).parents[2]
CONFIG = {"model": {"rate": 0.1}, "kind": "a", "shift": 0}


def run(monkeypatch, main, *words):
    """Run an application in this process, as its command line would."""
    ConfigStore.instance().store(name="jlibo_test", node=OmegaConf.create(CONFIG))
    small = "+hydra.sweeper.tuner_options={sizes:{num_basis:1,interactions:false}}"
    command = ["app.py", "--multirun", "hydra/sweeper=jlibo", "hydra.sweep.dir=sweep", small, *words]
    monkeypatch.setattr(sys, "argv", command)
    try:
        hydra.main(version_base="1.3", config_name="jlibo_test", config_path=None)(main)()
    finally:
        GlobalHydra.instance().clear()


def trials_in(path="past.db"):
    with jlibo.tune.Memory.open_existing(path) as memory:
        return {task.name: memory.trials(task.id) for task in memory.tasks()}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_hydra_finds_the_sweeper():
    assert "JliboSweeper" in {sweeper.__name__ for sweeper in Plugins.instance().discover(Sweeper)}


def test_sweeps_are_remembered(monkeypatch):
    seen = []

    def main(config):
        seen.append((config.model.rate, config.kind, config.shift))
        return (config.kind == "it's b") - abs(config.model.rate - 0.3)

    words = ["hydra.sweeper.memory=past.db", "hydra.sweeper.batch_size=2", "shift=3"]
    sweeps = ["model.rate=interval(0,1)", r"kind=choice(a,'it\'s b')"]
    run(monkeypatch, main, *words, *sweeps, "hydra.sweeper.task=first", "hydra.sweeper.budget=5")
    assert len(seen) == 5 and {shift for _, _, shift in seen} == {3}
    trials = trials_in()["first"]
    assert [trial.score for trial in trials] == pytest.approx(
        [(kind != "a") - abs(rate - 0.3) for rate, kind, _ in seen]
    )
    found = OmegaConf.load("sweep/optimization_results.yaml")
    best = max(trials, key=lambda trial: trial.score)
    assert found.best_evaluated_value == best.score and found.best_evaluated_params == best.params
    assert Path("sweep/multirun.yaml").exists() and Path("sweep/4").is_dir()
    # The same task goes on where it was. Sweeps may be in the configuration, too.
    words.append('+hydra.sweeper.params={model.rate: "interval(0,1)"}')
    run(monkeypatch, main, *words, sweeps[1], "hydra.sweeper.task=first", "hydra.sweeper.budget=6")
    assert len(seen) == 6
    run(monkeypatch, main, *words, *sweeps, "hydra.sweeper.task=second", "hydra.sweeper.budget=2")
    assert list(trials_in()) == ["first", "second"]


def test_failed_jobs_do_not_end_a_sweep(monkeypatch):
    def main(config):
        if config.shift == 0:
            raise RuntimeError("shift is 0")
        return {"loss": 1} if config.shift == 1 else config.shift

    words = ["hydra.sweeper.memory=past.db", "hydra.sweeper.direction=minimize", "hydra.sweeper.budget=4"]
    run(monkeypatch, main, *words, "shift=range(4)", "hydra.sweeper.task=data")
    trials = {trial.params["shift"]: trial for trial in trials_in()["data"]}
    assert {shift: trial.score for shift, trial in trials.items()} == {0: None, 1: None, 2: 2.0, 3: 3.0}
    assert "shift is 0" in trials[0].error and "not a number" in trials[1].error
    assert OmegaConf.load("sweep/optimization_results.yaml").best_evaluated_value == 2.0


def test_sweep_without_any_score_raises(monkeypatch):
    def broken(config):
        raise RuntimeError("broken")

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    words = ["shift=range(4)", "hydra.sweeper.budget=2"]
    with pytest.raises(RuntimeError, match="broken"):
        run(monkeypatch, broken, *words)
    with pytest.raises(ValueError, match="no job returned a number"):
        run(monkeypatch, lambda config: None, *words)


@pytest.mark.parametrize(
    "word, parameter",
    [
        ("x=interval(0,1)", jlibo.Float(0, 1)),
        ("x=tag(log,interval(1e-4,1))", jlibo.Float(1e-4, 1, log=True)),
        ("x=int(interval(1,8))", jlibo.Int(1, 8)),
        ("x=tag(log,int(interval(1,8)))", jlibo.Int(1, 8, log=True)),
        ("x=range(1,9)", jlibo.Int(1, 8, step=1)),
        ("x=range(9,0,-3)", jlibo.Int(3, 9, step=3)),
        ("x=range(0,1,0.25)", jlibo.Float(0, 0.75, step=0.25)),
        ("x=a,b", jlibo.Categorical(["a", "b"])),
        ("x=choice(1,[2,3],'c d','1',a-b)", jlibo.Categorical(["1", "[2,3]", "'c d'", "'1'", "a-b"])),
    ],
)
def test_sweeps_of_hydra(word, parameter):
    assert _parameter(OverridesParser.create().parse_override(word)) == parameter


def test_hydra_starts_without_jax():
    """Hydra imports all its plugins at every start of an application."""
    code = """
        import sys, hydra.core.plugins, hydra.plugins.sweeper
        found = hydra.core.plugins.Plugins.instance().discover(hydra.plugins.sweeper.Sweeper)
        assert "JliboSweeper" in {one.__name__ for one in found}
        assert "jax" not in sys.modules and "jlibo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)
