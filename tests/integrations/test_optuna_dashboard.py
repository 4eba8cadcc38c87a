"""Optuna's dashboard shows studies of the sampler: its application, served here and asked over HTTP."""

import contextlib
import json
import math
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
import pytest

from jlibo.integrations.optuna import LiBOSampler

optuna_dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
SECONDS = 60  # the longest time that an answer may take


def objective(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["tree", "linear"])
    rate = trial.suggest_float("rate", 1e-4, 1, log=True)
    if trial.number == 1:
        return math.nan  # fails
    trial.report(rate, 0)
    if trial.number == 2:
        raise optuna.TrialPruned
    return rate + (trial.suggest_int("depth", 1, 8) if kind == "tree" else 9)


def is_too_fast(trial: optuna.trial.FrozenTrial) -> tuple[float]:
    return (trial.params["rate"] - 0.5,)


def ask(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        assert answer.status == 200
        return json.load(answer)


class Quiet(WSGIRequestHandler):
    """Writes no line for each request."""

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def dashboard(storage: str) -> Iterator[str]:
    """Serve the dashboard on a free port of this machine, and return its address."""
    app = optuna_dashboard.wsgi(storage)
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(timeout=SECONDS)


def test_dashboard_shows_studies_of_the_sampler(tmp_path):
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    sampler = LiBOSampler(storage=storage, seed=0, constraints_func=is_too_fast)
    study = optuna.create_study(storage=storage, study_name="<b>first</b>", sampler=sampler)
    study.set_user_attr("data", "credit-g")
    study.optimize(objective, n_trials=5)
    study.ask({"rate": optuna.distributions.FloatDistribution(1e-4, 1, log=True)})  # one is running

    with dashboard(storage) as address:
        (summary,) = ask(f"{address}/api/studies")["study_summaries"]
        assert (summary["study_name"], summary["directions"]) == (study.study_name, ["minimize"])
        found = ask(f"{address}/api/studies/{summary['study_id']}?after=0")
        with urllib.request.urlopen(f"{address}/dashboard/", timeout=SECONDS) as page:
            assert b"<html" in page.read().lower()

    states = ["Complete", "Fail", "Pruned", "Complete", "Complete", "Running"]
    assert [trial["state"] for trial in found["trials"]] == states
    for shown, own in zip(found["trials"], study.trials, strict=True):
        params = {param["name"]: param["param_external_value"] for param in shown["params"]}
        assert params == {name: str(value) for name, value in own.params.items()}
        if own.state == optuna.trial.TrialState.COMPLETE:
            assert shown["values"] == own.values
            assert shown["constraints"] == list(is_too_fast(own))
    assert found["user_attrs"] == [{"key": "data", "value": "credit-g"}]
