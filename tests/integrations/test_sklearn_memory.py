"""LifelongSearchCV and its memory: names of tasks, resuming, transfer between data sets, stopped trials."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import jlibo
from jlibo.integrations.sklearn.fingerprint import derived_name
from jlibo.tune import MedianRule
from tests.integrations.searches import Recorder, X, Y, make_search

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_fits():
    Recorder.fits.clear()


def tasks_in(path):
    with jlibo.tune.Memory.open_existing(path) as memory:
        return [task.name for task in memory.tasks()]


# --- names of tasks -----------------------------------------------------------------------------------------


def test_name_depends_on_all_that_determines_the_scores(tmp_path):
    path = tmp_path / "past.db"
    cases = [
        {},
        {"estimator": RidgeClassifier(fit_intercept=False)},
        {"cv": 2},
        {"cv": KFold(3, shuffle=True, random_state=0)},
        {"scoring": "recall"},
        {"scoring": make_scorer(accuracy_score)},
        {"scoring": lambda estimator, X, y: 0.1},
        {"scoring": lambda estimator, X, y: 0.2},
    ]
    names = [make_search(memory=path, budget=1, **case).fit(X, Y).task_ for case in cases]
    names.append(make_search(memory=path, budget=1).fit(X, 1 - Y).task_)
    names.append(make_search(memory=path, budget=1).fit(X + 1, Y).task_)
    names.append(make_search(memory=path, budget=1).fit(X, Y, sample_weight=np.linspace(1, 2, 60)).task_)
    assert len(set(names)) == len(names) == len(tasks_in(path))
    assert all(name.startswith("60x4 ") for name in names)
    same = [
        {"estimator": RidgeClassifier()},
        {"n_jobs": 1},
        {"random_state": 7},
        {"verbose": 0, "return_train_score": True},
        {"budget": 1},
    ]
    assert {make_search(memory=path, **{"budget": 1} | case).fit(X, Y).task_ for case in same} == {names[0]}
    assert make_search(memory=path, task="mine", budget=1).fit(X, Y).task_ == "mine"
    assert make_search(budget=1).fit(X, Y).task_ == "search"


def test_name_is_the_same_in_every_process():
    """These names are in the memories of users."""
    assert derived_name(np.arange(6.0).reshape(3, 2), ["a", None, 1.5]) == "3x2 e02c79ffa50d3420"
    values = [Recorder(alpha=2), {"b": 1, "a": (True, b"x")}, {3, 1}, RidgeClassifier]
    assert derived_name(np.array([["a"], ["bc"]], object), values) == "2x1 7521b87bfe279f59"


def test_name_is_that_of_the_values():
    dense = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert derived_name(dense) == derived_name(np.asfortranarray(dense)) == derived_name(dense[::-1][::-1])
    assert derived_name(dense) != derived_name(dense.astype(np.float32)) != derived_name(dense.T[::-1])
    rows, columns = scipy.sparse.csr_array(dense), scipy.sparse.csc_matrix(dense)
    assert derived_name(rows) == derived_name(columns) != derived_name(2 * rows)
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
    assert derived_name(frame) == derived_name(frame.copy()[["a", "b"]])
    assert derived_name(frame) != derived_name(frame[["b", "a"]])
    assert derived_name(frame) != derived_name(frame.rename(columns={"a": "c"}))
    assert derived_name(dense, ["ab", "c"]) != derived_name(dense, ["a", "bc"])
    assert derived_name(dense, object()) == derived_name(dense, object())


# --- resuming -----------------------------------------------------------------------------------------------


def test_same_data_resumes_and_other_data_is_a_new_task(tmp_path):
    path = tmp_path / "past.db"
    first = make_search(Recorder(), memory=path).fit(X, Y)
    assert len(Recorder.fits) == 4 * 3 + 1
    Recorder.fits.clear()
    again = make_search(Recorder(), memory=path, random_state=1).fit(X, Y)
    assert len(Recorder.fits) == 1  # the refit
    assert again.best_params_ == first.best_params_ and again.best_score_ == first.best_score_
    for key, values in first.cv_results_.items():
        if key == "params" or key.startswith("param_") or "_time" in key:
            continue
        np.testing.assert_allclose(again.cv_results_[key], values, atol=1e-12, err_msg=key)
    assert np.isnan(again.cv_results_["mean_fit_time"]).all()
    Recorder.fits.clear()
    more = make_search(Recorder(), memory=path, budget=6).fit(X, Y)
    assert len(Recorder.fits) == 2 * 3 + 1
    assert more.cv_results_["params"][:4] == first.cv_results_["params"]
    assert np.isnan(more.cv_results_["mean_fit_time"]).tolist() == [True] * 4 + [False] * 2
    make_search(Recorder(), memory=path).fit(X[::-1], Y[::-1])
    assert len(tasks_in(path)) == 2


def test_remembered_trials_have_only_the_metric_that_was_optimised(tmp_path):
    options = {"memory": tmp_path / "past.db", "scoring": ["accuracy", "recall"], "refit": "recall"}
    first = make_search(**options, error_score=-1.0).fit(X, Y)
    again = make_search(**options, error_score=-1.0, return_train_score=True).fit(X, Y)
    np.testing.assert_allclose(
        again.cv_results_["split1_test_recall"], first.cv_results_["split1_test_recall"], atol=1e-12
    )
    assert np.isnan(again.cv_results_["mean_test_accuracy"]).all()
    assert np.isnan(again.cv_results_["split0_train_recall"]).all()
    assert again.best_score_ == first.best_score_


def test_resumed_search_with_a_callable_of_several_metrics(tmp_path):
    def both(estimator, X, y):
        return {"first": estimator.alpha, "second": -estimator.alpha}

    for _ in range(2):
        search = make_search(Recorder(), memory=tmp_path / "past.db", scoring=both, refit="second").fit(X, Y)
        assert (
            search.multimetric_ and search.score(X, Y) == search.best_score_ == -search.best_params_["alpha"]
        )


def test_task_whose_trials_all_failed(tmp_path):
    search = make_search(Recorder(fails=True), memory=tmp_path / "past.db", task="data")
    with pytest.raises(ValueError, match="no trial has a score: 12 of 12 fits failed"):
        search.fit(X, Y)
    with pytest.raises(
        ValueError, match="no trial of task 'data' has a score: all 4 failed in an earlier fit"
    ):
        search.fit(X, Y)
    with jlibo.tune.Memory.open_existing(tmp_path / "past.db") as memory:
        assert all("cannot fit alpha" in trial.error for trial in memory.all_trials())
    found = search.set_params(estimator__fails=False, budget=5).fit(X, Y).cv_results_
    assert found["n_folds"].tolist() == [0, 0, 0, 0, 3] and search.best_index_ == 4


KILLED = """
import os, signal, sys
from tests.integrations.searches import Recorder, X, Y, make_search

fit = Recorder.fit

def deadly_fit(self, X, y):
    if len(self.fits) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return fit(self, X, y)

Recorder.fit = deadly_fit
make_search(Recorder(), memory=sys.argv[1]).fit(X, Y)
"""


@pytest.mark.slow
def test_killed_search_is_resumed(tmp_path):
    path = tmp_path / "past.db"
    root = Path(__file__).parents[2]
    code = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    ).returncode
    assert code == -signal.SIGKILL
    search = make_search(Recorder(), memory=path).fit(X, Y)
    assert len(tasks_in(path)) == 1
    # Two trials of three folds were told; the third, which was killed, is evaluated anew.
    assert len(Recorder.fits) == 2 * 3 + 1
    assert search.cv_results_["n_folds"].tolist() == [3] * 4


def test_interrupted_search_keeps_its_trials(tmp_path):
    def interrupt(alpha):
        if len(Recorder.fits) == 5:
            raise KeyboardInterrupt
        return False

    search = make_search(Recorder(fails=interrupt), memory=tmp_path / "past.db", task="data")
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, Y)
    Recorder.fits.clear()
    search.set_params(estimator__fails=False).fit(X, Y)
    assert len(Recorder.fits) == 3 * 3 + 1


# --- transfer -----------------------------------------------------------------------------------------------


@pytest.mark.slow  # the page docs/how-to/scikit-learn.md, which is quick, checks it for one seed
def test_past_data_sets_improve_the_next_search(tmp_path):
    """The memory of two data sets makes the first trial on a third one good."""
    model = make_pipeline(StandardScaler(), SVC())
    space = jlibo.SearchSpace(
        {"svc__C": jlibo.Float(1e-3, 1e3, log=True), "svc__gamma": jlibo.Float(1e-6, 1e2, log=True)}
    )
    options = {"cv": 3, "tuner_options": None}
    path = tmp_path / "svc.db"
    for load in (load_iris, load_wine):
        make_search(model, space, memory=path, budget=15, **options).fit(*load(return_X_y=True))
    data = load_breast_cancer(return_X_y=True)
    alone = [
        make_search(model, space, budget=3, **options | {"random_state": seed}).fit(*data).cv_results_
        for seed in range(3)
    ]
    taught = make_search(model, space, memory=path, budget=3, **options).fit(*data).cv_results_
    assert taught["mean_test_score"].max() > 0.96
    assert taught["mean_test_score"][0] > np.mean([one["mean_test_score"][0] for one in alone]) + 0.1


# --- stopped trials -----------------------------------------------------------------------------------------


def test_hopeless_trials_are_stopped_after_a_fold(tmp_path):
    rule = MedianRule(min_trials=2, control_every=1000)
    search = make_search(Recorder(), memory=tmp_path / "past.db", budget=12, stop_trials=rule).fit(X, Y)
    num_folds, means = search.cv_results_["n_folds"], search.cv_results_["mean_test_score"]
    stopped = num_folds < 3
    assert 0 < stopped.sum() < 10 and len(Recorder.fits) == num_folds.sum() + 1
    np.testing.assert_array_equal(np.isnan(means), stopped)
    assert np.isnan(search.cv_results_["split2_test_score"][stopped]).all()
    assert np.isfinite(search.cv_results_["split0_test_score"]).all()
    assert not stopped[search.best_index_] and search.best_score_ == np.nanmax(means)
    assert (search.cv_results_["rank_test_score"][stopped] == (~stopped).sum() + 1).all()
    again = make_search(Recorder(), memory=tmp_path / "past.db", budget=12, stop_trials=rule).fit(X, Y)
    np.testing.assert_array_equal(again.cv_results_["n_folds"], num_folds)
    np.testing.assert_array_equal(again.cv_results_["rank_test_score"], search.cv_results_["rank_test_score"])


def test_failed_fold_ends_a_trial_that_may_be_stopped():
    search = make_search(Recorder(fails=lambda alpha: alpha > 1), budget=8, stop_trials=True)
    with pytest.warns(Warning, match="fits failed"):
        search.fit(X, Y)
    failed = search.cv_results_["param_alpha"].data > 1
    assert set(search.cv_results_["n_folds"][failed]) == {1}


@pytest.mark.slow
def test_stop_rule_ends_the_search_early():
    search = make_search(Recorder(), budget=40, stop_when=10.0).fit(X, Y)
    assert len(search.cv_results_["params"]) < 40


def test_space_may_change(tmp_path):
    """Trials outside of a narrower space are not results of the search, but stay in the memory."""
    path = tmp_path / "past.db"
    wide = make_search(Recorder(), memory=path, task="data", budget=8).fit(X, Y)
    narrow = {"alpha": jlibo.Float(1e-1, 1e1, log=True)}
    with pytest.warns(jlibo.tune.SpaceChangedWarning):
        search = make_search(Recorder(), narrow, memory=path, task="data", budget=10).fit(X, Y)
    old = [params for params in wide.cv_results_["params"] if 0.1 <= params["alpha"] <= 10]
    assert 0 < len(old) < 8
    assert search.cv_results_["params"][:-2] == old
    assert all(0.1 <= params["alpha"] <= 10 for params in search.cv_results_["params"])
    with jlibo.tune.Memory.open_existing(path) as memory:
        assert len(memory.all_trials()) == 10
