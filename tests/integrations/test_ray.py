"""The search algorithm for Ray Tune, with Ray itself. `make test-ray` makes an environment and runs it."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here: `make test-ray` makes an environment with it")

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter

import jlibo
from jlibo.integrations.ray import LiBOSearch

pytestmark = pytest.mark.slow
SMALL = {"sizes": {"num_basis": 1, "interactions": False}}
SPACE = {"model": {"rate": tune.loguniform(1e-4, 1)}, "depth": tune.randint(1, 9), "epochs": 3}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def _cluster():
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield
    ray.shutdown()


def train(config):
    if config["depth"] == 8:
        raise RuntimeError("too deep")
    for epoch in range(config["epochs"]):
        loss = abs(config["depth"] - 3) / 10 + config["model"]["rate"] + 1 / (epoch + 1)
        tune.report({"loss": loss})


def run(search, tmp_path, num_samples=6):
    config = tune.TuneConfig(search_alg=search, metric="loss", mode="min", num_samples=num_samples)
    run_config = tune.RunConfig(storage_path=str(tmp_path / "ray"), name="run", verbose=0)
    return tune.Tuner(train, param_space=SPACE, tune_config=config, run_config=run_config).fit()


def trials_in(path):
    with jlibo.tune.Memory.open_existing(path) as memory:
        return {task.name: memory.trials(task.id) for task in memory.tasks()}


def make(path=None, task="data", **options):
    return LiBOSearch(path, task=task, tuner_options=SMALL, **options)


@pytest.mark.usefixtures("_cluster")
def test_results_are_remembered(tmp_path):
    path = tmp_path / "past.db"
    first = [{"model": {"rate": 0.5}, "depth": 8}, {"model": {"rate": 0.01}, "depth": 3}]
    grid = run(ConcurrencyLimiter(make(path, "first", points_to_evaluate=first), 2), tmp_path)
    trials = trials_in(path)["first"]
    assert [trial.params for trial in trials[:2]] == [
        {"depth": 8, "model/rate": 0.5},
        {"depth": 3, "model/rate": 0.01},
    ]
    assert trials[0].state == "failed" and len(trials) == 6
    losses = sorted(result.metrics["loss"] for result in grid if result.error is None)
    assert sorted(trial.score for trial in trials if trial.state == "complete") == pytest.approx(losses)
    assert grid.get_best_result().config["epochs"] == 3
    with jlibo.tune.Memory.open_existing(path) as memory:
        assert sorted(memory.curve(trials[1].id)) == [1, 2, 3]
        assert memory.maximise is False
    run(make(path, "second"), tmp_path, num_samples=3)
    assert len(trials_in(path)["second"]) == 3


KILLED = """
import os, sys, time
from pathlib import Path
import ray
from ray import tune
from tests.integrations.test_ray import make, ROOT

def train(config):
    if config["x"] != 0.25 and not Path(config["folder"], "go").exists():
        time.sleep(600)
    tune.report({"score": config["x"]})

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    space = {"x": tune.uniform(0, 1), "folder": str(folder)}
    if (folder / "go").exists():
        tuner = tune.Tuner.restore(str(folder / "ray" / "run"), train, param_space=space)
    else:
        search = make(folder / "past.db", points_to_evaluate=[{"x": 0.25}])
        config = tune.TuneConfig(search_alg=search, metric="score", mode="max", num_samples=5)
        run_config = tune.RunConfig(storage_path=str(folder / "ray"), name="run", verbose=0)
        tuner = tune.Tuner(train, param_space=space, tune_config=config, run_config=run_config)
    tuner.fit()
    ray.shutdown()
"""


def test_killed_run_is_restored(tmp_path):
    """Trials that ran when the driver was killed end under their own names, and none is lost or repeated."""
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, str(script), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TUNE_GLOBAL_CHECKPOINT_S": "0"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        for _ in range(600):
            time.sleep(0.5)
            known = trials_in(tmp_path / "past.db").get("data", []) if (tmp_path / "past.db").exists() else []
            if len(known) >= 3 and known[0].state == "complete":
                break
        time.sleep(5)  # until Ray has written its checkpoint
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = trials_in(tmp_path / "past.db")["data"]
    assert {trial.state for trial in before[1:]} == {"pending"}
    (tmp_path / "go").touch()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    after = trials_in(tmp_path / "past.db")["data"]
    assert len(after) == 5 and {trial.state for trial in after} == {"complete"}
    assert [trial.params for trial in after[: len(before)]] == [trial.params for trial in before]
    assert all(trial.score == trial.params["x"] for trial in after)


@pytest.mark.usefixtures("_cluster")
def test_example_of_the_documentation(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "how-to" / "ray-and-hydra.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'```python title="needs ray"\n(.*?)```', page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert len(trials_in("trials.db")["credit-g"]) == 4


def test_spaces_of_ray():
    search = make()
    domains = {
        "a": tune.uniform(0, 2),
        "b": {"c": tune.loguniform(1e-3, 1), "d": tune.quniform(0, 1, 0.25)},
        "e": tune.randint(1, 9),
        "f": tune.lograndint(1, 100),
        "g": tune.qrandint(2, 8, 2),
        "h": tune.choice(["x", "y"]),
        "constant": 3,
    }
    assert search.set_search_properties("loss", "min", domains)
    expected = {
        "a": jlibo.Float(0, 2),
        "b/c": jlibo.Float(1e-3, 1, log=True),
        "b/d": jlibo.Float(0, 1, step=0.25),
        "e": jlibo.Int(1, 8),
        "f": jlibo.Int(1, 99, log=True),
        "g": jlibo.Int(2, 8, step=2),
        "h": jlibo.Categorical(["x", "y"]),
    }
    assert search._space == jlibo.SearchSpace(expected)
    assert not search.set_search_properties("loss", "min", domains)
    for bad in (tune.randn(), tune.sample_from(lambda _: 1), tune.grid_search([1, 2])):
        with pytest.raises(ValueError, match="param_space"):
            make().set_search_properties("loss", "min", {"a": bad})


def test_results_from_elsewhere_and_bad_arguments(tmp_path):
    space = jlibo.SearchSpace(x=jlibo.Float(0, 1))
    search = make(tmp_path / "past.db", space=space)
    with pytest.raises(ValueError, match="`space, metric and mode` should be given"):
        search.suggest("1")
    assert search.set_search_properties("score", "max", {"constant": 1})
    search.add_evaluated_point({"x": 0.5}, 2.0)
    search.add_evaluated_point({"x": 0.75}, 2.0, True)
    for trial_id, result in (("1", {"score": 1.0}), ("2", {}), ("3", {"score": float("nan")})):
        assert set(search.suggest(trial_id)) == {"x"}
        search.on_trial_complete(trial_id, result)
    search.on_trial_complete("unknown", {"score": 4.0, "config": {"x": 0.125, "constant": 1}})
    search.on_trial_complete("unknown", None, error=True)
    scores = [trial.score for trial in trials_in(tmp_path / "past.db")["data"]]
    assert scores == [2.0, None, 1.0, None, None, 4.0]
    with pytest.raises(ValueError, match="`memory` should be None or the path"):
        make(jlibo.tune.Memory.open(None, space=space))
