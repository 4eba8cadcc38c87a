"""Callbacks for experiment trackers, with the real packages where they are installed, and without them."""

import subprocess
import sys
import time

import pytest

import jlibo
from jlibo.integrations.mlflow import MLflowCallback
from jlibo.integrations.wandb import WandbCallback
from jlibo.tune import MedianRule

ELSEWHERE = "`make test-trackers` makes an environment with it"
SPACE = jlibo.SearchSpace(rate=jlibo.Float(0, 1), kind=jlibo.Categorical(["a", "b"]))


def evaluate(rate, kind, trial):
    if trial.number == 6:
        raise ValueError("no convergence")
    for step in range(3):
        trial.report(step, rate + step)
        if trial.should_stop:
            return None
    return rate + 2


@pytest.fixture
def run():
    """Return a function that runs a loop with a callback: five complete trials, one stopped, one failed.

    All configurations are in the queue, so that no model is compiled.
    """

    def run(callback):
        tuner = jlibo.Tuner(SPACE)
        task = tuner.task("credit-g", budget=7, stop_trials=MedianRule(control_every=None))
        for rate in (0.9, 0.8, 0.7, 0.6, 0.5, 0.1, 0.3):
            task.enqueue({"rate": rate, "kind": "b"})
        task.optimise(evaluate, callbacks=callback)
        assert [trial.state for trial in task.trials] == ["complete"] * 5 + ["stopped", "failed"]

    return run


def test_mlflow_in_a_local_folder(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason=f"MLflow is not installed here: {ELSEWHERE}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    uri = (tmp_path / "runs").as_uri()
    active = mlflow.active_run()
    run(MLflowCallback("glmnet", tracking_uri=uri, metric="accuracy", tags={"team": "blue"}))
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("glmnet")
    runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == [f"credit-g/{number}" for number in range(7)]
    best = runs["credit-g/0"]
    assert best.info.status == "FINISHED" and best.data.params == {"rate": "0.9", "kind": "b"}
    assert best.data.metrics == {"accuracy": 2.9, "accuracy_reported": 2.9}
    assert best.data.tags["jlibo.task"] == "credit-g" and best.data.tags["team"] == "blue"
    history = client.get_metric_history(best.info.run_id, "accuracy_reported")
    assert [(one.step, one.value) for one in history] == [(0, 0.9), (1, 1.9), (2, 2.9)]
    stopped, failed = runs["credit-g/5"], runs["credit-g/6"]
    assert stopped.info.status == "KILLED" and stopped.data.metrics == {"accuracy_reported": 0.1}
    assert failed.info.status == "FAILED" and failed.data.metrics == {}
    assert failed.data.tags["jlibo.error"] == "ValueError: no convergence"
    run(MLflowCallback("glmnet", tracking_uri=uri))  # a second callback adds to the experiment
    assert len(client.search_runs([experiment.experiment_id])) == 14
    assert mlflow.active_run() == active
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_wandb_offline(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason=f"wandb is not installed here: {ELSEWHERE}")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    run(WandbCallback("glmnet", metric="accuracy", mode="offline", dir=str(tmp_path)))
    (folder,) = tmp_path.glob("wandb*")
    logs = sorted(folder.glob("offline-run-*/*.wandb"))
    assert len(logs) == 7
    contents, end = [b""], time.monotonic() + 60
    while not all(b"jlibo.state" in content for content in contents):  # wandb's service writes them soon
        assert time.monotonic() < end
        time.sleep(0.05)
        contents = [log.read_bytes() for log in logs]
    assert sum(b"credit-g/0" in content for content in contents) == 1
    assert all(b"rate" in content for content in contents)
    assert sum(b"no convergence" in content for content in contents) == 1
    assert sum(b"accuracy_reported" in content for content in contents) == 6


@pytest.mark.parametrize("make", [MLflowCallback, WandbCallback])
def test_arguments_are_checked(make):
    with pytest.raises(ValueError, match="a string that is not empty"):
        make("")
    with pytest.raises(ValueError, match="metric"):
        make("name", metric=None)
    with pytest.raises(ValueError, match="that the callback does not set"):
        WandbCallback(name="mine")


@pytest.mark.parametrize(
    "make, package, words",
    [(MLflowCallback, "mlflow", "pip install mlflow"), (WandbCallback, "wandb", "pip install wandb")],
)
def test_missing_package_is_named(make, package, words, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=words):
        make()


def test_neither_package_is_imported_before_use():
    pytest.importorskip("mlflow", reason=f"MLflow is not installed here: {ELSEWHERE}")
    code = (
        "import sys, jlibo.integrations.mlflow, jlibo.integrations.wandb; "
        "sys.exit('mlflow' in sys.modules or 'wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
