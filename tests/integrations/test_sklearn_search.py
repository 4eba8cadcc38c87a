"""LifelongSearchCV beside GridSearchCV: results, metrics, folds, weights, pipelines, failures, jobs."""

import warnings

import joblib
import numpy as np
import pandas
import pytest
import scipy.sparse
import sklearn
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import accuracy_score, get_scorer, make_scorer, recall_score
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline

import jlibo
from jlibo.integrations.sklearn import LifelongSearchCV
from jlibo.integrations.sklearn.search import NUM_FUTILE
from tests.integrations.searches import (
    GROUPS,
    SMALL,
    SPACE,
    Recorder,
    X,
    Y,
    check_same_results,
    grid_of,
    make_search,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_fits():
    Recorder.fits.clear()


# --- results and metrics ------------------------------------------------------------------------------------


def both(estimator, X, y):
    return {"acc": accuracy_score(y, estimator.predict(X)), "rec": recall_score(y, estimator.predict(X))}


def worst_recall(results):
    return int(results["mean_test_recall"].argmin())


@pytest.mark.parametrize(
    "options",
    [
        {"return_train_score": True},
        {"scoring": "roc_auc", "refit": False},
        {"scoring": make_scorer(recall_score), "cv": KFold(2, shuffle=True, random_state=1)},
        {"scoring": ["accuracy", "recall"], "refit": "recall", "return_train_score": True},
        {"scoring": {"a": "accuracy", "b": make_scorer(recall_score)}, "refit": False},
        {"scoring": ("accuracy", "recall"), "refit": worst_recall},
        {"scoring": both, "refit": "rec"},
    ],
    ids=["train", "name", "scorer", "list", "dict", "function", "callable"],
)
def test_results_are_those_of_grid_search(options):
    search = make_search(**options).fit(X, Y)
    grid = grid_of(search).fit(X, Y)
    check_same_results(search, grid)
    assert len(search.cv_results_["params"]) == 4
    assert search.cv_results_["n_folds"].tolist() == [search.n_splits_] * 4
    if search.refit:
        np.testing.assert_array_equal(search.predict(X), grid.predict(X))
        np.testing.assert_array_equal(search.classes_, grid.classes_)
    if isinstance(search.refit, str | bool) and search.refit:
        assert search.score(X, Y) == grid.score(X, Y)
    else:
        with pytest.raises((AttributeError, ValueError), match="refit"):
            search.score(X, Y)


def test_metric_that_refit_names_is_optimised():
    """The two metrics have opposite signs, so the search moves to opposite ends."""

    def size(estimator, X, y):
        return estimator.alpha

    def smallness(estimator, X, y):
        return -estimator.alpha

    found = {}
    for refit in ("size", "smallness"):
        scoring = {"size": size, "smallness": smallness}
        search = make_search(Recorder(), scoring=scoring, refit=refit, budget=8).fit(X, Y)
        found[refit] = search.cv_results_["param_alpha"][4:].mean()
    assert found["size"] > 10 * found["smallness"]


def test_refit_function_has_to_return_an_index():
    for wrong in (4, -1, "best"):
        with pytest.raises(
            ValueError, match=r"`refit` should be a function that returns an index from 0 to 3"
        ):
            make_search(refit=lambda results, wrong=wrong: wrong).fit(X, Y)


def test_other_kinds_of_data():
    frame = pandas.DataFrame(X, columns=list("abcd"))
    in_frame = make_search().fit(frame, Y)
    assert in_frame.feature_names_in_.tolist() == list("abcd") and in_frame.n_features_in_ == 4
    dense, sparse = make_search().fit(X, Y), make_search().fit(scipy.sparse.csr_array(X), list(Y))
    np.testing.assert_allclose(sparse.cv_results_["mean_test_score"], dense.cv_results_["mean_test_score"])
    clusters = make_search(KMeans(2, n_init=1, random_state=0), {"tol": jlibo.Float(1e-4, 1e-2)}).fit(X)
    assert clusters.predict(X).shape == (60,) and clusters.score(X) < 0


# --- folds, weights and routing -----------------------------------------------------------------------------


def test_groups_stay_together_and_weights_are_split():
    weights = np.linspace(0.5, 1.5, 60)
    search = make_search(Recorder(), cv=GroupKFold(3), budget=2)
    search.fit(X, Y, groups=GROUPS, sample_weight=weights)
    *folds, last = Recorder.fits
    assert len(folds) == 6
    for fold in folds:
        rows = [int(np.flatnonzero((row == X).all(1))[0]) for row in fold["X"]]
        np.testing.assert_array_equal(fold["weights"], weights[rows])
        assert not set(GROUPS[rows]) & set(GROUPS[np.setdiff1d(np.arange(60), rows)])
    np.testing.assert_array_equal(last["weights"], weights)
    with pytest.raises(ValueError, match="groups"):
        make_search(cv=GroupKFold(3)).fit(X, Y)


def test_metadata_is_routed_as_in_grid_search():
    weights = np.linspace(0.5, 1.5, 60)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = LogisticRegression().set_fit_request(sample_weight="importance")
        scorer = get_scorer("accuracy").set_score_request(sample_weight=True)
        params = {"importance": weights, "sample_weight": weights[::-1], "groups": GROUPS}
        search = make_search(estimator, {"C": jlibo.Float(1e-3, 10)}, scoring=scorer, cv=GroupKFold(3))
        search.fit(X, Y, **params)
        grid = grid_of(search).fit(X, Y, **params)
        check_same_results(search, grid)
        np.testing.assert_array_equal(search.best_estimator_.coef_, grid.best_estimator_.coef_)
        scored = search.score(X, Y, sample_weight=weights)
        assert scored == accuracy_score(Y, search.predict(X), sample_weight=weights)
        plain = make_search(estimator, {"C": jlibo.Float(1e-3, 10)}, scoring="accuracy", cv=GroupKFold(3))
        with pytest.raises((TypeError, ValueError), match="sample_weight"):  # depends on the version
            plain.fit(X, Y, **params)
    with pytest.raises(ValueError, match="`params` should be empty unless"):
        search.score(X, Y, sample_weight=weights)


def test_random_folds_are_the_same_for_all_trials():
    search = make_search(Recorder(), cv=ShuffleSplit(2, random_state=np.random.RandomState(0))).fit(X, Y)
    starts = {tuple(fit["X"][0]) for fit in Recorder.fits[:-1]}
    assert len(starts) == 2 and search.n_splits_ == 2


# --- pipelines ----------------------------------------------------------------------------------------------


def test_parameters_of_steps_and_parameters_that_are_off():
    pipeline = Pipeline([("reduce", PCA(2)), ("model", RidgeClassifier())])
    space = {
        "reduce": jlibo.Categorical(["passthrough", "pca"]),
        "model__alpha": jlibo.Float(1e-2, 1e2, log=True, when={"reduce": "passthrough"}),
    }
    search = make_search(pipeline, space, objects={"reduce": {"pca": PCA(3)}}, budget=8).fit(X, Y)
    for params, alpha in zip(
        search.cv_results_["params"], search.cv_results_["param_model__alpha"], strict=True
    ):
        is_off = params["reduce"] != "passthrough"
        assert ("model__alpha" not in params) == is_off == np.ma.is_masked(alpha)
        assert not is_off or (isinstance(params["reduce"], PCA) and params["reduce"].n_components == 3)
    assert {type(params["reduce"]) for params in search.cv_results_["params"]} == {PCA, str}
    check_same_results(search, grid_of(search).fit(X, Y))
    assert search.best_estimator_.named_steps["reduce"] is not search.best_params_["reduce"] or isinstance(
        search.best_params_["reduce"], str
    )


def test_choice_of_the_model():
    pipeline = Pipeline([("model", RidgeClassifier())])
    space = {
        "model": jlibo.Categorical(["ridge", "bayes"]),
        "model__alpha": jlibo.Float(1e-2, 1e2, log=True, when={"model": "ridge"}),
    }
    models = {"ridge": RidgeClassifier(), "bayes": GaussianNB()}
    search = make_search(pipeline, space, objects={"model": models}, budget=8).fit(X, Y)
    check_same_results(search, grid_of(search).fit(X, Y))
    assert {type(params["model"]) for params in search.cv_results_["params"]} == {RidgeClassifier, GaussianNB}


# --- failures -----------------------------------------------------------------------------------------------


def large_fails(alpha):
    return alpha > 1


def test_failed_fits_have_the_error_score():
    with pytest.warns(
        FitFailedWarning, match=r"(?s)\d+ of 24 fits failed; their score is nan.*cannot fit alpha"
    ):
        search = make_search(Recorder(fails=large_fails), budget=8).fit(X, Y)
    failed = search.cv_results_["param_alpha"].data > 1
    assert 0 < failed.sum() < 8
    np.testing.assert_array_equal(np.isnan(search.cv_results_["mean_test_score"]), failed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same_results(search, grid_of(search).fit(X, Y))
        low = make_search(Recorder(fails=large_fails), budget=8, error_score=-5.0).fit(X, Y)
        check_same_results(low, grid_of(low).fit(X, Y))
    assert low.cv_results_["mean_test_score"].min() == -5.0


def test_failure_is_raised_on_request():
    with pytest.raises(RuntimeError, match="cannot fit alpha"):
        make_search(Recorder(fails=True), error_score="raise").fit(X, Y)
    with pytest.raises(ZeroDivisionError):
        make_search(scoring=lambda *_: 1 / 0, error_score="raise").fit(X, Y)


@pytest.mark.parametrize("budget, num_fits", [(4, 12), (40, 3 * NUM_FUTILE)])
def test_search_without_any_score_gives_up(budget, num_fits):
    with pytest.raises(
        ValueError, match=rf"(?s)no trial has a score: {num_fits} of {num_fits} fits.*cannot fit"
    ):
        make_search(Recorder(fails=True), budget=budget).fit(X, Y)
    assert len(Recorder.fits) == num_fits


def test_one_of_several_metrics_fails():
    def broken(estimator, X, y):
        raise OSError("no such metric")

    with pytest.warns(UserWarning, match=r"(?s)Some metrics failed.*no such metric"):
        search = make_search(scoring={"good": "accuracy", "bad": broken}, refit="good").fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_bad"]).all()
    assert search.cv_results_["rank_test_bad"].tolist() == [1] * 4
    with pytest.raises(ValueError, match="no trial has a score: 0 of 12 fits failed"):
        make_search(scoring=broken).fit(X, Y)
    with pytest.raises(OSError, match="no such metric"):
        make_search(scoring={"good": "accuracy", "bad": broken}, refit="good", error_score="raise").fit(X, Y)


# --- parallel fits and output -------------------------------------------------------------------------------


def test_folds_in_parallel_give_the_same_search():
    one = make_search().fit(X, Y)
    with joblib.parallel_config("threading"):
        several = make_search(n_jobs=3).fit(X, Y)
        many = make_search(Recorder(), n_jobs=12, budget=10).fit(X, Y)
    check_same_results(several, grid_of(one).fit(X, Y))
    assert len(many.cv_results_["params"]) == 10
    assert len({params["alpha"] for params in many.cv_results_["params"]}) == 10


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [2, -1])
def test_processes_of_joblib_give_the_same_search(n_jobs):
    one, several = make_search().fit(X, Y), make_search(n_jobs=n_jobs).fit(X, Y)
    np.testing.assert_array_equal(one.cv_results_["mean_test_score"], several.cv_results_["mean_test_score"])
    bad = make_search(LogisticRegression(), {"C": jlibo.Float(-2, -1)}, n_jobs=n_jobs)
    with pytest.raises(
        ValueError, match=r"(?s)12 of 12 fits failed.*'C' parameter of LogisticRegression must"
    ):
        bad.fit(X, Y)
    with pytest.raises(ValueError, match="'C' parameter of LogisticRegression must"):
        bad.set_params(error_score="raise").fit(X, Y)


def test_verbose_prints_a_line_for_each_trial(capsys):
    search = make_search(verbose=1).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"[1/4] alpha={search.cv_results_['params'][0]['alpha']}: ")
    assert lines[-1].endswith(f"on 3 of 3 folds; best {search.best_score_:.6g}")
    make_search().fit(X, Y)
    assert capsys.readouterr().out == ""


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"space": [1]}, "`space` should be a SearchSpace, or a mapping"),
        (
            {"space": {"alfa": jlibo.Float(0, 1)}},
            r"`space` .* RidgeClassifier, .* 'alfa' \(did you mean 'alpha'",
        ),
        ({"memory": 3}, "`memory` should be None or the path"),
        ({"task": 3}, "`task` should be None or the name"),
        ({"budget": 0}, "`budget`"),
        ({"refit": 2}, "`refit` should be True, False, the name of a metric, or a callable"),
        ({"error_score": "ignore"}, "`error_score` should be 'raise' or a number"),
        ({"scoring": 3}, "`scoring` should be a name, a callable, or a list"),
        (
            {"scoring": ["accuracy", "recall"]},
            "`refit` should be one of 'accuracy', 'recall', a callable or False",
        ),
        ({"scoring": both}, "`refit` should be one of 'acc', 'rec'"),
        ({"scoring": ["recall"], "refit": "recal"}, "did you mean 'recall'"),
        ({"tuner_options": {"seed": 1}}, "`tuner_options` should be without"),
        ({"tuner_options": 3}, "`tuner_options` should be None or a mapping"),
        ({"objects": {"alpha": {1: 2}}}, "`objects` should be named by Categorical parameters"),
        ({"stop_when": "now"}, "`stop_when` should be None"),
        ({"stop_trials": "now"}, "`stop_trials` should be"),
        ({"cv": []}, "`cv` should be at least one split"),
        ({"estimator": "ridge"}, "`estimator` should be an estimator"),
    ],
)
def test_bad_arguments(options, message):
    plain = {"estimator": RidgeClassifier(), "space": SPACE, "cv": 3, "budget": 2, "tuner_options": SMALL}
    with pytest.raises(ValueError, match=message):
        LifelongSearchCV(**plain | options).fit(X, Y)


def test_objects_are_checked():
    pipeline, space = Pipeline([("model", RidgeClassifier())]), {"model": jlibo.Categorical(["a", "b"])}
    with pytest.raises(ValueError, match=r"`objects\['model'\]` should be keyed by the choices 'a', 'b'"):
        make_search(pipeline, space, objects={"model": {"c": GaussianNB()}}).fit(X, Y)
    with pytest.raises(ValueError, match=r"`objects\['model'\]` should be a mapping from choices to objects"):
        make_search(pipeline, space, objects={"model": [GaussianNB()]}).fit(X, Y)


def test_methods_before_fit_and_without_refit():
    with pytest.raises(NotFittedError):
        make_search().predict(X)
    search = make_search(refit=False).fit(X, Y)
    assert not hasattr(search, "predict") and not hasattr(search, "best_estimator_")
    assert search.best_params_ == search.cv_results_["params"][search.best_index_]
