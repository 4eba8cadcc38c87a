"""scikit-learn's own checks of estimators, and what its users do with any estimator."""

import io

import joblib
import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import jlibo
from tests.integrations.searches import SMALL, SPACE, X, Y, make_search

WIDE = jlibo.Float(0.1, 1.0)
pytestmark = pytest.mark.usefixtures("one_thread")


def checked(estimator, name):
    """Return a search with the settings of scikit-learn's tests of its own searches."""
    options = {"budget": 2, "cv": 2, "error_score": "raise"}
    return make_search(estimator, {name: WIDE}, **options)


def cases():
    pipeline = Pipeline([("pca", PCA()), ("model", LogisticRegression())])
    searches = {
        "classifier": checked(LogisticRegression(), "C"),
        "regressor": checked(Ridge(), "alpha"),
        "pipeline": checked(pipeline, "model__C"),
        "transformer": checked(FactorAnalysis(1), "tol"),
    }
    for kind, search in searches.items():
        checks = [(check, True) for _, check in estimator_checks_generator(search)]
        if kind == "classifier":  # those of the interface are quick
            names = {check.func for _, check in estimator_checks_generator(search, legacy=False)}
            checks = [(check, check.func not in names) for check, _ in checks]
        for check, is_slow in checks:
            marks = [pytest.mark.slow] if is_slow else []
            yield pytest.param(search, check, id=f"{kind}-{check.func.__name__}", marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("search, check", list(cases()))
def test_estimator_checks(search, check):
    """All of them pass; scikit-learn's own searches are excepted from two."""
    check(search)


def test_parameters_are_kept_by_clone_and_set():
    search = make_search(memory="past.db", task="iris", scoring=["accuracy"], refit="accuracy")
    copy = clone(search)
    assert copy.get_params(deep=False).keys() == search.get_params(deep=False).keys()
    assert copy.space == SPACE and copy.tuner_options == SMALL and copy.memory == "past.db"
    copy.set_params(budget=7, estimator__alpha=0.5)
    assert copy.budget == 7 and copy.estimator.alpha == 0.5 and search.estimator.alpha == 1.0
    assert "LifelongSearchCV(" in repr(search) and "task='iris'" in repr(search)


def test_kind_is_that_of_the_estimator():
    assert is_classifier(make_search()) and not is_classifier(make_search(Ridge()))
    assert is_regressor(make_search(Ridge()))
    assert not hasattr(make_search(Ridge()), "predict_proba")
    assert hasattr(make_search(LogisticRegression(), {"C": WIDE}), "predict_proba")
    assert not hasattr(make_search(), "n_features_in_")


def test_fitted_search_is_stored_by_joblib_and_shown_as_html(tmp_path):
    search = make_search(memory=tmp_path / "past.db").fit(X, Y)
    file = io.BytesIO()
    joblib.dump(search, file)
    file.seek(0)
    loaded = joblib.load(file)
    np.testing.assert_array_equal(loaded.predict(X), search.predict(X))
    assert loaded.best_params_ == search.best_params_ and loaded.task_ == search.task_
    loaded.fit(X, Y)
    assert "LifelongSearchCV" in search._repr_html_() and "RidgeClassifier" in search._repr_html_()


def test_search_is_a_step_of_a_pipeline_and_is_cross_validated():
    pipeline = make_pipeline(StandardScaler(), make_search())
    scores = cross_val_score(pipeline, X, Y, cv=3)
    assert scores.shape == (3,) and (scores > 0.5).all()
    assert pipeline.fit(X, Y).score(X, Y) == pipeline[-1].best_estimator_.score(pipeline[0].transform(X), Y)
