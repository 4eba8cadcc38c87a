"""The benchmark of scikit-learn models: its scores, its measures, a small run, and the recorded grid."""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the models are scikit-learn's")
pytest.importorskip("pandas", reason="the data sets are data frames")
pytest.importorskip("optuna", reason="the small run has Optuna's TPESampler")

from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.automl_models import __main__ as command
from benchmarks.automl_models import data, evaluations, methods, record, report
from benchmarks.automl_models.evaluations import Evaluations
from benchmarks.automl_models.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
GRID = ROOT / "tests" / "data" / "svc_grid.npz"
SMALL = ["--models", "svc", "--data", "wine", "iris", "--budget", "4", "--workers", "1"]


@pytest.fixture
def stored(tmp_path):
    with Evaluations(tmp_path / "evaluations.db") as stored:
        yield stored


def count_scores(folder: Path) -> int:
    with Evaluations(folder / "evaluations.db") as stored:
        return stored._file.execute("SELECT count(*) FROM scores").fetchone()[0]


# --- models and scores ---


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_choice_has_its_parameters_and_can_be_fitted(model):
    parents = {name for parameter in model.space.values() for name in parameter.when or ()}
    middle = {
        name: parameter.value_of(float(parameter.unit_to_codes(np.array(0.5))))
        for name, parameter in model.space.items()
    }
    seen = set()
    for parent in parents or {None}:
        for choice in [None] if parent is None else model.space[parent].choices:
            params = model.relevant(middle if choice is None else {**middle, parent: choice})
            assert model.space.validate(params) == params
            assert evaluations.score(model.name, "iris", params) > 0.3
            seen |= set(params)
    assert seen == set(model.space)


def test_relevant_parameters_depend_on_the_choice():
    svc = MODELS["svc"]
    assert svc.relevant(dict(C=1.0, gamma=2.0, kernel="linear")) == dict(C=1.0, kernel="linear")
    assert set(svc.relevant(dict(C=1.0, gamma=2.0, kernel="rbf"))) == {"C", "gamma", "kernel"}
    assert MODELS["choice"].space.active_names({"algorithm": "logistic"}) == ("algorithm", "logistic_C")


def test_score_equals_a_pipeline_of_sklearn():
    features, labels = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SVC(C=0.5, gamma=0.2, kernel="sigmoid"))
    splitter = StratifiedKFold(data.FOLDS, shuffle=True, random_state=data.SEED)
    expected = cross_val_score(pipeline, features, labels, cv=splitter, scoring="balanced_accuracy").mean()
    found = evaluations.score("svc", "wine", dict(C=0.5, gamma=0.2, kernel="sigmoid"))
    assert found == pytest.approx(expected, abs=1e-12)


def test_large_data_sets_are_reduced():
    loaded = data.load("digits")
    assert len(loaded.labels) == len(loaded.features) == data.MAX_ROWS < loaded.rows_available
    assert sum(len(fold.truth) for fold in data.folds("digits")) == data.MAX_ROWS


def test_stored_scores_are_not_computed_again(stored, monkeypatch):
    first = stored.score("svc", "iris", dict(C=1.0, gamma=1.0, kernel="linear"))
    monkeypatch.setattr(evaluations, "score", lambda *_: math.nan)
    assert (
        stored.score("svc", "iris", dict(C=1.0, gamma=0.1, kernel="linear")) == first
    )  # gamma is irrelevant
    assert stored.best("svc", "iris") == first
    for _ in range(2):  # a failed configuration is stored too
        assert math.isnan(stored.score("svc", "iris", dict(C=2.0, gamma=0.1, kernel="linear")))
    monkeypatch.setattr(evaluations, "score", lambda *_: 1.0)
    assert math.isnan(stored.score("svc", "iris", dict(C=2.0, gamma=0.5, kernel="linear")))
    assert stored.score("svc", "iris", dict(C=2.0, gamma=0.5, kernel="rbf")) == 1.0
    with pytest.raises(ValueError, match="no score of model 'svc' on data set 'wine'"):
        stored.best("svc", "wine")


def test_a_configuration_that_cannot_be_fitted_is_nan():
    assert math.isnan(evaluations.score("svc", "iris", dict(C=-1.0, kernel="linear")))


# --- methods ---


def peers():
    return ("optuna-tpe", "optuna-gp") if methods.workers.available("optuna-gp") else ("optuna-tpe",)


@pytest.mark.parametrize("kind", peers())
def test_optuna_chooses_within_the_space_and_survives_failures(kind):
    model, tried = MODELS["choice"], []

    def score(params):
        tried.append(params)
        return math.nan if len(tried) == 2 else float(len(tried))

    run = methods.play_optuna(kind, model, score, 14, 0)
    assert len(run) == 14 and math.isnan(run[1])
    for params in tried:
        model.space.validate(model.relevant(params))
        # TPE is asked for the parameters that exist, the others for all of them.
        assert set(params) == set(model.relevant(params) if kind == "optuna-tpe" else model.space)


def test_random_search_depends_on_its_seed():
    model, tried = MODELS["boosting"], []
    for seed in (0, 0, 1):
        methods.play_random(model, lambda params: tried.append(params) or 0.0, 3, seed)
    assert tried[:3] == tried[3:6] != tried[6:]
    assert all(model.space.validate(params) == params for params in tried)


# --- measures ---


def test_regret_is_below_the_best_and_failures_count_as_zero():
    runs = {("a", 0): [math.nan, 0.5, 0.4], ("b", 0): [0.2, 0.9, 0.8]}
    best = dict(a=0.75, b=1.0)
    found = report.regrets(runs, best, [("b", 0), ("a", 0)])
    np.testing.assert_allclose(found, [[0.8, 0.1, 0.1], [0.75, 0.25, 0.25]])


def test_differences_are_paired():
    ours = {("a", 0): [0.5], ("b", 0): [0.9]}
    random = {("a", 0): [0.4], ("b", 0): [0.8]}
    summary = report.summarise(dict(jlibo=ours, random=random), dict(a=1.0, b=1.0), list(ours))
    assert summary["difference"]["random"]["1"] == [pytest.approx(-0.1), pytest.approx(0, abs=1e-12)]
    mean, error = summary["regret"]["random"]["1"]
    assert mean == pytest.approx(0.4) and error == pytest.approx(
        0.2
    )  # the data sets differ, the pairs do not
    first, second = report.tables("svc", summary)
    assert first["rows"] == [["jlibo", "300.0 ± 200.0"], ["random", "400.0 ± 200.0"]]
    assert second["rows"] == [["random", "-100.0 ± 0.0"]]


def test_pairs_are_the_last_half_of_each_order():
    assert report.late_pairs([["a", "b", "c"], ["c", "b", "a"]]) == [("b", 0), ("c", 0), ("b", 1), ("a", 1)]
    orders = command.draw_orders(data.TEN, 3)
    assert all(sorted(order) == sorted(data.TEN) for order in orders) and orders[0] != orders[1]
    assert command.draw_orders(data.TEN, 2) == orders[:2]


# --- the command ---


def check_output(text: str, file: Path, chosen: list[str]) -> dict:
    assert "| after trials | 1 | 3 |" in text
    result = json.loads(text.splitlines()[-1])
    assert result == json.loads(file.read_text())
    summary = result["models"]["svc"]
    assert list(summary["regret"]) == chosen and summary["pairs"] == result["seeds"]
    assert set(summary["difference"]) == set(chosen) - {"jlibo"}
    for numbers in summary["regret"].values():
        assert 0 <= numbers["3"][0] <= numbers["1"][0] <= 1
    return result


def test_small_run_is_repeatable_and_stores_its_evaluations(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "start_pool", lambda workers: ThreadPoolExecutor(workers))
    chosen = ["jlibo", "jlibo-alone", "optuna-tpe", "random"]
    words = [
        *SMALL,
        "--seeds",
        "2",
        "--out",
        str(tmp_path),
        "--json",
        str(tmp_path / "line.json"),
        "--methods",
    ]
    results = []
    for _ in range(2):
        command.main([*words, *chosen])
        results.append(check_output(capsys.readouterr().out, tmp_path / "line.json", chosen))
        results[-1]["evaluated"] = count_scores(tmp_path)
    assert results[0]["models"] == results[1]["models"]
    assert results[0]["evaluated"] == results[1]["evaluated"] > 20


@pytest.mark.slow
def test_command_runs_in_worker_processes(tmp_path):
    line = tmp_path / "line.json"
    words = [
        *SMALL,
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
        "--json",
        str(line),
        "--methods",
        "jlibo",
        "random",
    ]
    command_line = [sys.executable, "-m", "benchmarks.automl_models", *words]
    done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, line, ["jlibo", "random"])


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--data", "wein"], "no data set is called 'wein'"), (["--seeds", "0"], "--seeds must be 1 or more")],
)
def test_invalid_arguments_are_explained(words, message, capsys):
    with pytest.raises(SystemExit):
        command.read_arguments(words)
    assert message in capsys.readouterr().err


# --- the recorded grid ---


def test_recorder_writes_the_same_bytes_again(tmp_path):
    files = tmp_path / "first.npz", tmp_path / "second.npz"
    with ThreadPoolExecutor(1) as pool:
        for file in files:
            record.record(file, ["iris"], pool=pool, path=tmp_path / "evaluations.db", levels=2)
    assert files[0].read_bytes() == files[1].read_bytes()
    table, _ = read_grid(files[0])
    assert table["configs"].shape == (2 * 2 * 4, 3) and table["scores"].shape == (1, 16)
    params = dict(C=1e3, gamma=1e-4, kernel="poly")
    assert record.as_params(MODELS["svc"].space, table["configs"][10]) == params
    assert table["scores"][0, 10] == pytest.approx(evaluations.score("svc", "iris", params), abs=1e-6)


def read_grid(file: Path) -> tuple[dict[str, np.ndarray], dict]:
    with np.load(file, allow_pickle=False) as stored:
        table = dict(stored)
    return table, json.loads(str(table["meta"]))


def test_recorded_grid_is_complete():
    assert GRID.stat().st_size < 60_000
    table, meta = read_grid(GRID)
    assert meta["names"] == ["C", "gamma", "kernel"] and meta["kinds"] == ["float", "float", "cat"]
    assert meta["log"] == [True, True, False] and meta["choices"][2] == ["linear", "rbf", "poly", "sigmoid"]
    assert meta["tasks"] == list(data.SIX) and meta["maximise"] and meta["shared"]
    assert table["configs"].shape == (8 * 8 * 4, 3) and table["scores"].shape == (6, 8 * 8 * 4)
    assert len(np.unique(table["configs"], axis=0)) == 256
    assert np.isfinite(table["scores"]).all() and table["scores"].min() >= 0 and table["scores"].max() <= 1


def test_recorded_grid_has_a_good_plateau_below_the_best_kernel():
    """In one task a third of one kernel's configurations are equal, above the median, and not the best."""
    table, meta = read_grid(GRID)
    kernel = table["configs"][:, meta["names"].index("kernel")]
    plateaus = []
    for task, scores in zip(meta["tasks"], table["scores"], strict=True):
        for index, name in enumerate(meta["choices"][2]):
            values, counts = np.unique(scores[kernel == index], return_counts=True)
            level, size = values[counts.argmax()], counts.max()
            if size >= 20 and np.median(scores) < level < scores.max() - 0.02:
                plateaus.append((task, name))
    assert ("breast_cancer", "poly") in plateaus
    linear = table["scores"][:, kernel == 0].reshape(6, 8, 8)
    np.testing.assert_array_equal(linear, np.broadcast_to(linear[:, :, :1], linear.shape))  # gamma is unused


def test_recorded_grid_equals_new_evaluations():
    table, meta = read_grid(GRID)
    scores = table["scores"][meta["tasks"].index("wine")]
    for row in range(5, 256, 50):
        params = record.as_params(MODELS["svc"].space, table["configs"][row])
        found = evaluations.score("svc", "wine", MODELS["svc"].relevant(params))
        assert found == pytest.approx(
            scores[row], abs=0.02
        )  # another version of scikit-learn may differ a bit
