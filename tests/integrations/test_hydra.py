"""The sweeper for Hydra, run by Hydra itself."""

import os
import re
import shlex
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
RATE = "model.rate=interval(0,1)"


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
        seen.append((config.model.rate, config.kind))
        return -abs(config.model.rate - 0.3)

    words = ["hydra.sweeper.memory=past.db", "hydra.sweeper.batch_size=2", r"kind='it\'s b'"]
    run(monkeypatch, main, *words, RATE, "hydra.sweeper.task=first", "hydra.sweeper.budget=5")
    assert len(seen) == 5 and {kind for _, kind in seen} == {"it's b"}
    trials = trials_in()["first"]
    assert [trial.params for trial in trials] == [{"model.rate": rate} for rate, _ in seen]
    assert [trial.score for trial in trials] == [-abs(rate - 0.3) for rate, _ in seen]
    found = OmegaConf.load("sweep/optimization_results.yaml")
    best = max(trials, key=lambda trial: trial.score)
    assert found.best_evaluated_value == best.score and found.best_evaluated_params == best.params
    assert Path("sweep/multirun.yaml").exists() and Path("sweep/4").is_dir()
    # The same task goes on where it was. Sweeps may be in the configuration, too.
    in_config = '+hydra.sweeper.params={model.rate: "interval(0,1)"}'
    run(monkeypatch, main, *words, in_config, "hydra.sweeper.task=first", "hydra.sweeper.budget=6")
    assert len(seen) == 6
    run(monkeypatch, main, *words, RATE, "hydra.sweeper.task=second", "hydra.sweeper.budget=2")
    assert list(trials_in()) == ["first", "second"]


def test_failed_jobs_do_not_end_a_sweep(monkeypatch):
    def main(config):
        if len(seen) == 0:
            seen.append(config.model.rate)
            raise RuntimeError("the first")
        seen.append(config.model.rate)
        return {"loss": 1} if len(seen) == 2 else config.model.rate

    seen = []
    words = ["hydra.sweeper.memory=past.db", "hydra.sweeper.direction=minimize", "hydra.sweeper.budget=4"]
    run(monkeypatch, main, *words, RATE, "hydra.sweeper.task=data")
    first, second, *others = trials_in()["data"]
    assert first.score is None and "the first" in first.error
    assert second.score is None and "not a number" in second.error
    assert [trial.score for trial in others] == seen[2:]
    assert OmegaConf.load("sweep/optimization_results.yaml").best_evaluated_value == min(seen[2:])


def test_sweep_without_any_score_raises(monkeypatch):
    def broken(config):
        raise RuntimeError("broken")

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(RuntimeError, match="broken"):
        run(monkeypatch, broken, RATE, "hydra.sweeper.budget=2")
    with pytest.raises(ValueError, match="no job returned a number"):
        run(monkeypatch, lambda config: None, RATE, "hydra.sweeper.budget=2")


@pytest.mark.slow
def test_choices_are_written_as_they_were(monkeypatch):
    seen = set()

    def main(config):
        seen.add(str(config.kind))
        return 0.5

    run(monkeypatch, main, r"kind=choice(a,'it\'s b','1',[1,'c d'],true)", "hydra.sweeper.budget=5")
    assert seen == {"a", "it's b", "1", "[1, 'c d']", "True"}


@pytest.mark.slow
def test_command_of_the_documentation():
    page = (ROOT / "docs" / "how-to" / "ray-and-hydra.md").read_text(encoding="utf-8")
    (app,) = re.findall(r'```python title="app.py"\n(.*?)```', page, re.DOTALL)
    (command,) = re.findall(r"```sh\npython (app.py .*?)```", page, re.DOTALL)
    Path("app.py").write_text(app, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *shlex.split(command.replace("\\\n", ""))], check=True, env=environment)
    trials = trials_in("trials.db")["credit-g"]
    assert len(trials) == 6 and set(trials[0].params) == {"rate", "depth", "kind"}


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
