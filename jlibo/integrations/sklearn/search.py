"""A search over hyper-parameters for scikit-learn that remembers past data sets.

    search = LifelongSearchCV(SVC(), space, memory="svc.db", budget=30)
    search.fit(X, y)
    search.best_params_

| scikit-learn              | here                                                                         |
|---------------------------|------------------------------------------------------------------------------|
| `fit` of a search         | a task of the memory; other data sets are past tasks                         |
| a candidate               | a trial; its score is the mean over the folds                                |
| a parameter `step__param` | a parameter of the space with this name; one that is off is not set          |
| `n_iter`                  | `budget`, the number of trials in total, those of an earlier `fit` included  |

It uses only public functions of scikit-learn. The folds are evaluated by `cross_validate`, one at a time.
"""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel

from jlibo.checks import fail
from jlibo.integrations.sklearn import arguments
from jlibo.integrations.sklearn.fitted import AbstractFittedSearch, is_routing
from jlibo.integrations.sklearn.problem import Problem
from jlibo.integrations.sklearn.results import Row, cv_results, failure_summary, remembered_row
from jlibo.integrations.sklearn.rounds import Running, run_rounds
from jlibo.tune import SearchSpace, Tuner, TunerTask
from jlibo.tune.tuner import DEFAULT_BUDGET

NUM_FUTILE = 10
"""Number of failed trials after which a search that has no score yet gives up."""


@final
class LifelongSearchCV(AbstractFittedSearch):
    """Search over the hyper-parameters of an estimator by cross-validation that learns from past data sets.

    It is used as `sklearn.model_selection.RandomizedSearchCV`. In addition, every trial is stored in a
    memory, and the trials on other data sets in the same memory tell which parameters matter and where good
    values lie. The memory can be opened by `jlibo.Tuner` too, and by `jlibo memory` on the command line.

    **Arguments:**

    - `estimator`: the estimator, or a pipeline.
    - `space`: a `SearchSpace`, or a mapping from names to parameters. Names are those of
      `estimator.get_params()`, such as "svc__C". A parameter that is off (`when=`) is not set.
    - `memory`: the path of the memory file; with None, nothing is remembered. A memory should have the data
      sets of one estimator and one metric, since other scores have little to teach.
    - `task`: the name of the data set in the memory. With None, it is derived from the data, the estimator,
      `scoring` and the folds: if all of these are the same, the task is resumed, otherwise it is a new one.
    - `budget`: the number of trials in total. Trials of the same task from an earlier `fit` count.
    - `scoring`: a metric as in `cross_validate`, or several: a list, a dictionary, or a callable that returns
      a dictionary. Of several, the one that `refit` names is optimised, otherwise the first.
    - `n_jobs`: the number of fits that joblib runs in parallel; -1 for all processors.
    - `refit`: whether to fit the best configuration to all data; the name of the metric by which it is the
      best; or a function from `cv_results_` to the index of the best.
    - `cv`: the folds, as in `cross_validate`. They are drawn once and shared by all trials.
    - `verbose`: whether to print a line for each trial.
    - `error_score`: the score of a fit that failed, or "raise". With NaN, the trial has failed, and its
      neighbourhood is avoided.
    - `return_train_score`: whether `cv_results_` has the scores of the training samples.
    - `stop_trials`: whether to stop a trial after any fold on which it is hopeless, given the other trials
      and past data sets: True, or a `jlibo.tune.MedianRule`. A stopped trial has no mean score.
    - `stop_when`: end before the budget is spent; see `Tuner.task`.
    - `objects`: for parameters that are objects, a mapping from the choices of the `Categorical` to them:
      `{"model": {"svc": SVC(), "forest": RandomForestClassifier()}}`. Other choices stand for themselves.
    - `tuner_options`: further arguments of `jlibo.Tuner`, such as `dict(mode="paper", constraint=...)`.
    - `random_state`: the seed of the suggestions: an integer, a `RandomState`, or None.

    After `fit` it has the attributes of `RandomizedSearchCV` (`cv_results_`, `best_estimator_`,
    `best_params_`, `best_score_`, `best_index_`, `n_splits_`, `scorer_`, `multimetric_`, `refit_time_`) and
    `task_`, the name of the task. `cv_results_` has the key `n_folds` too, the number of folds evaluated.

    ```python
    from sklearn.datasets import load_iris
    from sklearn.svm import SVC

    import jlibo
    from jlibo.integrations.sklearn import LifelongSearchCV

    space = jlibo.SearchSpace(C=jlibo.Float(1e-2, 1e3, log=True), gamma=jlibo.Float(1e-4, 1, log=True))
    search = LifelongSearchCV(SVC(), space, memory="svc.db", budget=8, cv=3, random_state=0)
    search.fit(*load_iris(return_X_y=True))
    print(search.best_params_, search.best_score_)
    ```
    """

    def __init__(
        self,
        estimator: Any,
        space: Any,
        *,
        memory: str | os.PathLike[str] | None = None,
        task: str | None = None,
        budget: int = DEFAULT_BUDGET,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        stop_trials: Any = False,
        stop_when: Any = None,
        objects: Mapping[str, Mapping[Any, Any]] | None = None,
        tuner_options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ):
        # Arguments are stored as they are: `clone` compares them. They are checked in `fit`.
        self.estimator = estimator
        self.space = space
        self.memory = memory
        self.task = task
        self.budget = budget
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.refit = refit
        self.cv = cv
        self.verbose = verbose
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.stop_trials = stop_trials
        self.stop_when = stop_when
        self.objects = objects
        self.tuner_options = tuner_options
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, **params: Any) -> "LifelongSearchCV":
        """Search, and fit the best configuration to all data unless `refit=False`.

        **Arguments:**

        - `X`, `y`: the data.
        - `params`: arguments of the estimator's `fit`, such as `sample_weight`, which is split as the data
          are, and `groups` for the folds. With metadata routing, those of the estimator, the scorer and `cv`.

        **Returns:**

        The search itself.

        **Raises:**

        - `ValueError`: an argument is invalid, or no trial has a score.
        - `MemoryMismatch`: the memory is for other searches, for instance for scores that are minimised.
        """
        space = arguments.space_of(self.space)
        problem = self._problem(X, y, params)
        arguments.check_names(self.estimator, space, problem.objects)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        name = self.task
        if name is None:
            name = "search" if self.memory is None else problem.task_name()
        tuner = Tuner(space, self.memory, maximise=True, seed=seed, **(self.tuner_options or {}))
        with tuner:
            asked = tuner.task(name, self.budget, stop_when=self.stop_when, stop_trials=self.stop_trials)
            with asked as task:
                rows = self._run(task, space, problem)
        self.task_ = name
        self.n_splits_ = len(problem.splits)
        self._take_results(problem, rows)
        if self.refit:
            self._refit(problem, params)
        return self

    def get_metadata_routing(self) -> Any:
        """Return which arguments of `fit` and `score` go to the estimator, the scorer and the splitter."""
        return self._router(with_splitter=True)

    # --- what is evaluated ----------------------------------------------------------------------------------

    def _problem(self, X: Any, y: Any, params: Mapping[str, Any]) -> Problem:
        """Return what is to be evaluated; arguments are checked on the way."""
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "get_params"):
            fail("estimator", "an estimator of scikit-learn", repr(self.estimator))
        arguments.check_plain(
            memory=self.memory,
            task=self.task,
            budget=self.budget,
            refit=self.refit,
            error_score=self.error_score,
            tuner_options=self.tuner_options,
        )
        metrics = self._metrics()
        if y is None and get_tags(self).target_tags.required:
            raise ValueError(
                "This search requires y to be passed, but the target y is None: "
                f"{type(self.estimator).__name__} needs targets."
            )
        X, y = indexable(X, y)
        for_splits, for_folds, _ = self._routed(params)
        cv: Any = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(cv.split(X, y, **for_splits))
        if not splits:
            fail("cv", "at least one split", "none")
        return Problem(
            estimator=self.estimator,
            X=X,
            y=y,
            splits=splits,
            metrics=metrics,
            refit=self.refit,
            params=for_folds,
            given=params,
            objects=self.objects or {},
            error_score=arguments.error_value(self.error_score),
            raises=isinstance(self.error_score, str),
            with_train=bool(self.return_train_score),
        )

    def _metrics(self) -> arguments.Metrics:
        return arguments.metrics_of(self.estimator, self.scoring, self.refit, self.error_score)

    def _routed(self, params: Mapping[str, Any]) -> tuple[dict, dict, dict]:
        """Return the arguments of `fit` for the splitter, for `cross_validate` and for the estimator."""
        if not is_routing():
            rest = {name: value for name, value in params.items() if name != "groups"}
            return {"groups": params.get("groups")}, rest, rest
        routed = process_routing(self, "fit", **params)
        used = self._router(with_splitter=False).consumes("fit", params)  # under the names of the caller
        folds = {name: value for name, value in params.items() if name in used}
        return dict(routed.splitter.split), folds, dict(routed.estimator.fit)

    def _router(self, *, with_splitter: bool) -> MetadataRouter:
        fit, score = (MethodMapping().add(caller="fit", callee=callee) for callee in ("fit", "score"))
        router = MetadataRouter(owner=type(self).__name__)
        router.add(estimator=self.estimator, method_mapping=fit)
        router.add(scorer=self._metrics().scorer, method_mapping=score.add(caller="score", callee="score"))
        if with_splitter:
            split = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=self.cv, method_mapping=split)
        return router

    # --- the search -----------------------------------------------------------------------------------------

    def _run(self, task: TunerTask, space: SearchSpace, problem: Problem) -> list[Row]:
        """Return all finished trials of the task that are in the space, after the budget is spent."""
        new: dict[int, Row] = {}
        with Parallel(n_jobs=self.n_jobs) as parallel:
            for one in run_rounds(task, problem, parallel=parallel, may_stop=bool(self.stop_trials)):
                new[one.trial.number] = Row(one.params, tuple(one.folds))
                self._say(task, problem, one)
                if len(new) >= NUM_FUTILE and task.best is None:
                    break
        if task.best is None and not new:
            raise ValueError(
                f"no trial of task {task.name!r} has a score: all {len(task.trials)} failed in an earlier "
                "fit. Give a larger `budget`, or another `task`."
            )
        _report_failures(list(new.values()), self.error_score, has_score=task.best is not None)
        objective = problem.objective([fold for row in new.values() for fold in row.folds])
        rows = []
        for trial in task.trials:
            if trial.number in new:
                rows.append(new[trial.number])
            elif arguments.is_in(space, trial.params):  # the space may have been another one
                params, curve = problem.set_on_estimator(trial.params), task.curve(trial)
                rows.append(remembered_row(params, trial.score, curve, objective))
        return rows

    def _say(self, task: TunerTask, problem: Problem, one: Running) -> None:
        if self.verbose:
            words = ", ".join(f"{name}={value}" for name, value in one.params.items())
            ended = f"{problem.score(one.folds):.6g} on {len(one.folds)} of {len(problem.splits)} folds"
            best = "none" if task.best is None else f"{task.best.score:.6g}"
            print(f"[{one.trial.number + 1}/{task.budget}] {words}: {ended}; best {best}")

    def _take_results(self, problem: Problem, rows: Sequence[Row]) -> None:
        """Set the attributes that describe the trials and the best of them."""
        folds = [fold for row in rows for fold in row.folds]
        names, objective = problem.names(folds), problem.objective(folds)
        self.multimetric_ = names != ["score"]
        self.scorer_ = problem.metrics.by_name or problem.metrics.scorer
        self.cv_results_ = cv_results(
            rows,
            names,
            len(problem.splits),
            objective=objective,
            error_score=problem.error_score,
            with_train=problem.with_train,
        )
        if callable(self.refit):
            self.best_index_ = self.refit(self.cv_results_)
            if not isinstance(self.best_index_, int | np.integer) or not 0 <= self.best_index_ < len(rows):
                fail("refit", f"a function that returns an index from 0 to {len(rows) - 1}", self.best_index_)
        elif self.refit or not self.multimetric_:
            self.best_index_ = int(self.cv_results_[f"rank_test_{objective}"].argmin())
            self.best_score_ = float(self.cv_results_[f"mean_test_{objective}"][self.best_index_])
        else:
            return
        self.best_params_ = self.cv_results_["params"][self.best_index_]

    def _refit(self, problem: Problem, params: Mapping[str, Any]) -> None:
        """Fit the best configuration to all data."""
        self.best_estimator_ = problem.with_params(self.best_params_)
        data = (problem.X,) if problem.y is None else (problem.X, problem.y)
        start = time.perf_counter()
        self.best_estimator_.fit(*data, **self._routed(params)[2])
        self.refit_time_ = time.perf_counter() - start
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_


def _report_failures(rows: Sequence[Row], error_score: Any, *, has_score: bool) -> None:
    """Warn about fits and metrics that failed, or raise an error if no trial has a score."""
    num_failed, num_fits, words = failure_summary(rows)
    if not has_score:
        raise ValueError(
            f"no trial has a score: {num_failed} of {num_fits} fits failed. Set error_score='raise' to see "
            f"where.\n{words}"
        )
    if num_failed:
        message = f"{num_failed} of {num_fits} fits failed; their score is {error_score}.\n{words}"
        warnings.warn(message, FitFailedWarning, stacklevel=4)
    elif words:
        message = f"Some metrics failed; their score is {error_score}.\n{words}"
        warnings.warn(message, UserWarning, stacklevel=4)
