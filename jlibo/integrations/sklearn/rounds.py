"""The trials of a task, several at a time and fold by fold. Internal.

Each round evaluates the next folds of all running trials in parallel. Trials that are done, stopped or
failed are told, and new ones take their places. A trial that may be stopped is evaluated one fold per round;
otherwise all its folds are evaluated in one round. What is chosen therefore depends on the scores and on the
number of jobs, but not on the time that a fit takes.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, final

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel

from jlibo.integrations.sklearn.folds import Fold
from jlibo.integrations.sklearn.problem import Problem
from jlibo.integrations.sklearn.results import message_of
from jlibo.tune import Trial, TunerTask


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """A trial and its folds so far, in their order."""

    trial: Trial
    params: dict[str, Any]
    folds: list[Fold] = dataclasses.field(default_factory=list)


def run_rounds(
    task: TunerTask,
    problem: Problem,
    *,
    parallel: Parallel,
    may_stop: bool,
) -> Iterator[Running]:
    """Evaluate trials until the task ends, and yield each one once its result is stored.

    **Arguments:**

    - `task`: the task that is asked and told.
    - `problem`: what is evaluated.
    - `parallel`: runs the fits.
    - `may_stop`: whether a trial may be stopped before its last fold.
    """
    num_folds = len(problem.splits)
    num_together = 1 if may_stop else num_folds
    most = math.ceil(effective_n_jobs(parallel.n_jobs) / num_together)
    running: list[Running] = []
    while True:
        while len(running) < most and (trial := task.next_trial()) is not None:
            running.append(Running(trial, problem.set_on_estimator(trial.params)))
        if not running:
            return
        places = [range(len(one.folds), len(one.folds) + num_together) for one in running]
        jobs = [(one.params, place) for one, some in zip(running, places, strict=True) for place in some]
        found = iter(problem.evaluate(jobs, parallel))
        for one, some in zip(running, places, strict=True):
            for place in some:
                one.folds.append(next(found))
                one.trial.report(place, problem.score(one.folds))
        done = [one for one in running if _is_done(task, one, problem.score(one.folds), num_folds)]
        running = [one for one in running if one not in done]
        yield from done


def _is_done(task: TunerTask, one: Running, score: float, num_folds: int) -> bool:
    """Tell the result of a trial that has ended, and return whether it has."""
    if math.isnan(score):  # further folds cannot change the mean
        errors = [error for fold in one.folds for error in fold.errors]
        task.fail(one.trial, message_of(errors[0]) if errors else None)
        return True
    if len(one.folds) == num_folds:
        task.tell(one.trial, score)
        return True
    if one.trial.should_stop:
        task.stop(one.trial)
        return True
    return False
