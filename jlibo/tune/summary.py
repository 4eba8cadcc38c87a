"""What is known of each task at a glance: counts and the best trial, as values, frames and HTML. Internal.

| here           | what it is                                                                          |
|----------------|-------------------------------------------------------------------------------------|
| `TaskSummary`  | counts and the best trial of a task; public                                         |
| `summaries`    | the same for all tasks of a memory                                                  |
| `to_dataframe` | trials as a pandas DataFrame, which `add` and `add_task` read                       |
| `tasks_html`, `trials_html` | HTML tables for notebooks                                              |
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, final

from jlibo.checks import fail
from jlibo.html_table import html_table
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.memory.tables import ERROR, EXPLORED, FITS, NUMBER, SCORE, STATE, TASK
from jlibo.tune.space.parameters import Float, Int
from jlibo.tune.space.space import SearchSpace

MOST_TASKS, MOST_TRIALS = 20, 10
"""Largest numbers of rows of an HTML table."""


@final
@dataclasses.dataclass(frozen=True)
class TaskSummary:
    """A task of the memory in numbers; an entry of `Tuner.tasks`.

    ```python
    import jlibo

    tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)))
    tuner.add_task("old", [{"x": 0.2, "score": 0.7}, {"x": 0.6, "score": None}])
    (summary,) = tuner.tasks
    assert (summary.name, summary.num_complete, summary.num_failed) == ("old", 1, 1)
    assert summary.best_score == 0.7 and summary.best_params == {"x": 0.2}
    ```
    """

    name: str
    source: str
    """"tuner", or "added" for results from elsewhere."""
    budget: int | None
    num_complete: int
    num_failed: int
    num_pending: int
    best_score: float | None
    """Of the trials that fit into the search space; None, as `best_params`, before the first score."""
    best_params: dict[str, Any] | None
    num_stopped: int = 0
    """Number of trials that were stopped early."""


def summaries(
    tasks: Sequence[TaskRecord], trials: Iterable[TrialRecord], *, maximise: bool
) -> list[TaskSummary]:
    """Return the tasks in numbers, in their order. The best is the first of equal scores."""
    by_task: dict[int, list[TrialRecord]] = {task.id: [] for task in tasks}
    for trial in trials:
        by_task[trial.task_id].append(trial)
    found = []
    for task in tasks:
        own = by_task[task.id]
        counts = [sum(trial.state == state for trial in own) for state in ("complete", "failed", "pending")]
        best = next(iter(best_first(own, maximise=maximise)), None)
        found.append(
            TaskSummary(
                task.name,
                task.source,
                task.budget,
                *counts,
                best_score=None if best is None else best.score,
                best_params=None if best is None else best.params,
                num_stopped=sum(trial.state == "stopped" for trial in own),
            )
        )
    return found


def best_first(trials: Iterable[TrialRecord], *, maximise: bool) -> list[TrialRecord]:
    """Return the complete trials that fit into the search space, best first; equal scores in their order."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None and trial.fits]
    sign = -1 if maximise else 1
    return [trial for _, trial in sorted(scored, key=lambda pair: sign * pair[0])]


# --- frames -------------------------------------------------------------------------------------------------


def to_dataframe(
    space: SearchSpace,
    trials: Sequence[TrialRecord],
    *,
    tasks: Sequence[TaskRecord] | None = None,
    score: str = SCORE,
) -> Any:
    """Return trials as a `pandas.DataFrame`, one row each.

    The columns are `task` (if `tasks` are given), `number`, the parameters, `score`, `state`, `explored` and
    `error`. A parameter that is off has no value (None, NaN or NA). If a parameter is called `number`,
    `state`, `explored`, `error` or `fits`, the column is that of the parameter. If some trials do not fit
    into the search space, which has changed, the column `fits` tells which; they have the values that they
    had.

    **Raises:**

    - `ImportError`: pandas is not installed.
    - `ValueError`: a parameter is called as the column of scores, or as that of tasks.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_dataframe needs pandas: pip install 'jlibo[pandas]'.") from None
    names = {} if tasks is None else {task.id: task.name for task in tasks}
    for name in (score, *([TASK] if names else [])):
        if not isinstance(name, str) or name in space:
            fail("score", "the name of a column that is not a parameter", repr(name))
    columns: dict[str, Any] = {}
    if tasks is not None:
        columns[TASK] = pandas.Series([names[trial.task_id] for trial in trials], dtype=object)
    columns[NUMBER] = pandas.Series([trial.number for trial in trials], dtype="int64")
    for name, parameter in space.items():
        values = [trial.params.get(name) for trial in trials]
        is_full = all(name in trial.params for trial in trials)
        kind: Any = object  # keeps tuples, booleans and None apart
        if isinstance(parameter, Float):
            kind = "float64"
        elif isinstance(parameter, Int):
            kind = "int64" if is_full else "Int64"
        try:
            columns[name] = pandas.Series(values, dtype=kind)
        except (TypeError, ValueError):  # a trial that does not fit, or is between the steps
            columns[name] = pandas.Series(values, dtype=object)
    columns[score] = pandas.Series([trial.score for trial in trials], dtype="float64")
    if STATE not in space:
        columns[STATE] = pandas.Series([trial.state for trial in trials], dtype=object)
    if EXPLORED not in space:
        columns[EXPLORED] = pandas.Series([trial.explored for trial in trials], dtype="bool")
    if ERROR not in space:
        columns[ERROR] = pandas.Series([trial.error for trial in trials], dtype=object)
    if FITS not in space and not all(trial.fits for trial in trials):
        columns[FITS] = pandas.Series([trial.fits for trial in trials], dtype="bool")
    return pandas.DataFrame(columns)


# --- notebooks ----------------------------------------------------------------------------------------------


def tasks_html(title: str, tasks: Sequence[TaskSummary]) -> str:
    """Return an HTML table of the latest tasks."""
    shown = tasks[-MOST_TASKS:]
    cells = [
        (
            *(task.name, task.num_complete, task.num_failed, task.num_stopped, task.num_pending),
            *("" if task.best_score is None else f"{task.best_score:.6g}", _words(task.best_params)),
        )
        for task in shown
    ]
    left_out = len(tasks) - len(shown)
    more = f"; {left_out} earlier tasks are not shown" if left_out else ""
    headings = ("task", "complete", "failed", "stopped", "pending", "best score", "best parameters")
    return html_table(title + more, headings, cells)


def trials_html(title: str, space: SearchSpace, trials: Sequence[TrialRecord], *, maximise: bool) -> str:
    """Return an HTML table of the best trials."""
    best = best_first(trials, maximise=maximise)
    shown = best[:MOST_TRIALS]
    cells = [
        (trial.number, f"{trial.score:.6g}", *(short(trial.params.get(name, "")) for name in space))
        for trial in shown
    ]
    more = f"; the best {len(shown)}" if len(best) > len(shown) else ""
    return html_table(title + more, ("trial", "score", *space), cells)


def short(value: Any) -> str:
    """Return a value as text, numbers with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _words(params: dict[str, Any] | None) -> str:
    return "" if params is None else ", ".join(f"{name}={short(value)}" for name, value in params.items())
