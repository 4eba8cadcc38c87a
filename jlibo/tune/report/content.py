"""Everything that the page of a report shows, as plain JSON values. Internal.

Names and values may come from an untrusted file: they are short printable texts here, and text in the page.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, final

from jlibo.printable import printable
from jlibo.tune.importance import parameter_names
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.portfolio import Defaults
from jlibo.tune.report.curves import Curve, Curves, curves
from jlibo.tune.space.parameters import Categorical, Parameter
from jlibo.tune.space.space import SearchSpace
from jlibo.tune.summary import TaskSummary, short, summaries
from jlibo.version import __version__

if TYPE_CHECKING:
    from jlibo.tune.tuner_results import AbstractTunerResults

MOST_TRIALS = 30_000
"""Largest number of trials that are drawn: those of the latest tasks."""
MOST_SHOWN = 12
"""Largest number of parameters with a plot each: those that matter most."""
MOST_CURVES = 100
"""Largest number of tasks with curves of the model: the latest."""
DIGITS = 9
"""Significant digits of numbers in the page."""


@final
class Content(NamedTuple):
    """What the page shows: the values of its plots, and the parts that are written without a script."""

    plots: dict[str, Any]
    tasks: list[TaskSummary]
    defaults: Defaults
    notes: list[str]


@final
class Believed(NamedTuple):
    """What the model says about all tasks together."""

    importance: dict[str, float]
    """Share of each parameter by its name in the space; empty if nothing was learned."""
    defaults: Defaults
    curves: Curves | None


def content_of(
    memory: Memory,
    tuner: "AbstractTunerResults | None",
    *,
    num_defaults: int,
    no_model: str | None = None,
) -> Content:
    """Return what the report of a memory shows. Without a tuner, nothing of the model."""
    tasks, trials = memory.snapshot()
    model = None if tuner is None else believed(tuner, tasks, trials, num_defaults=num_defaults)
    return content(memory.space, tasks, trials, model, maximise=memory.maximise, no_model=no_model)


def content(
    space: SearchSpace,
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    model: Believed | None,
    *,
    maximise: bool,
    no_model: str | None = None,
) -> Content:
    """Return what a report shows of records.

    **Arguments:**

    - `space`: the search space.
    - `tasks`, `trials`: the records of the memory.
    - `model`: what the model says about them; None if it is left out, for the reason `no_model`.
    - `maximise`: whether a higher score is better.
    """
    notes = [] if no_model is None else [no_model]
    model = Believed({}, Defaults(), None) if model is None else model
    fitting = [trial for trial in trials if trial.fits]
    if len(fitting) < len(trials):
        left_out = len(trials) - len(fitting)
        notes.append(f"Trials that do not fit into the search space are not drawn: {left_out:,}.")
    drawn = _drawn(tasks, fitting)
    if len(drawn) < len(fitting):
        notes.append(f"{len(drawn):,} of {len(fitting):,} trials are drawn: those of the latest tasks.")
    importance = model.importance
    ranked = sorted(range(len(space)), key=lambda place: -importance.get(space.names[place], 0.0))
    shown = ranked[:MOST_SHOWN]
    if len(shown) < len(ranked):
        notes.append(f"{len(shown)} of {len(ranked)} parameters have plots: those that matter most.")
    rows = summaries(tasks, trials, maximise=maximise)
    places = {task.id: place for place, task in enumerate(tasks)}
    states = list(dict.fromkeys(["complete", *(trial.state for trial in drawn)]))
    plots = {
        "format": 1,
        "jlibo": __version__,
        "maximise": maximise,
        "parameters": [_parameter(name, one, importance.get(name)) for name, one in space.items()],
        "shown": shown,
        "states": states,
        "tasks": [_task(row) for row in rows],
        "trials": {
            "task": [places[trial.task_id] for trial in drawn],
            "number": [trial.number for trial in drawn],
            "state": [states.index(trial.state) for trial in drawn],
            "score": [_rounded(trial.score) for trial in drawn],
            "values": [_values(name, one, drawn) for name, one in space.items()],
        },
        "curves": None if model.curves is None else _curves(space, places, model.curves),
        "no_model": no_model or "Nothing is learned yet: it takes a task with two scores.",
    }
    return Content(plots, rows, model.defaults, notes)


def counts_of(tasks: Sequence[TaskSummary]) -> dict[str, int]:
    """Return the numbers at the top of the page."""
    total = Counter(tasks=len(tasks), trials=0, failed=0)
    for task in tasks:
        total["trials"] += task.num_complete + task.num_failed + task.num_stopped + task.num_pending
        total["failed"] += task.num_failed
    return dict(total)


def time_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def believed(
    tuner: "AbstractTunerResults",
    tasks: Sequence[TaskRecord],
    trials: Sequence[TrialRecord],
    *,
    num_defaults: int,
) -> Believed:
    """Return what the model of a tuner says about its tasks."""
    shares = tuner.importance()
    model = tuner.model
    if not shares:
        return Believed({}, Defaults(), None)
    by_name = {
        name: shares[words] for name, words in zip(tuner.space.names, parameter_names(model), strict=True)
    }
    defaults = tuner.defaults(num_defaults)
    knowledge, _ = tuner.knowledge(at_once=True)
    found = curves(model, knowledge, tasks, trials, defaults, maximise=tuner.maximise, most=MOST_CURVES)
    return Believed(by_name, defaults, found)


def _drawn(tasks: Sequence[TaskRecord], trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials of the latest tasks, as many as are drawn, by task and number."""
    counts = Counter(trial.task_id for trial in trials)
    kept, total = set(), 0
    for task in reversed(tasks):
        total += counts[task.id]
        if total > MOST_TRIALS and kept:
            break
        kept.add(task.id)
    return [trial for trial in trials if trial.task_id in kept][-MOST_TRIALS:]


def _parameter(name: str, parameter: Parameter, importance: float | None) -> dict[str, Any]:
    common = {
        "name": printable(name),
        "key": _literal(name),
        "importance": _rounded(importance),
        "choices": None,
    }
    if isinstance(parameter, Categorical):
        texts = [printable(short(choice), max_length=60) for choice in parameter.choices]
        return {**common, "choices": texts, "python": list(map(_literal, parameter.choices))}
    ends = {"low": _rounded(parameter.low), "high": _rounded(parameter.high)}
    return {**common, **ends, "log": parameter.log}


def _literal(value: Any) -> str:
    """Return a value as Python code, however long it is."""
    return printable(repr(value), max_length=None)


def _task(task: TaskSummary) -> dict[str, Any]:
    best = task.best_params
    words = None if best is None else ", ".join(f"{name}={short(value)}" for name, value in best.items())
    return {
        "name": printable(task.name),
        "complete": task.num_complete,
        "failed": task.num_failed,
        "stopped": task.num_stopped,
        "pending": task.num_pending,
        "best_score": _rounded(task.best_score),
        "best_params": None if words is None else printable(words),
    }


def _values(name: str, parameter: Parameter, trials: Sequence[TrialRecord]) -> list[Any]:
    """Return the value of a parameter in each trial; the place of a choice, and None where it is off."""
    return [_value(name, parameter, trial.params) for trial in trials]


def _value(name: str, parameter: Parameter, params: Mapping[str, Any]) -> Any:
    if name not in params:
        return None
    value = params[name]
    return int(parameter.code_near(name, value)) if isinstance(parameter, Categorical) else _rounded(value)


def _curves(space: SearchSpace, places: Mapping[int, int], found: Curves) -> dict[str, Any]:
    def one(own: Sequence[Curve | None]) -> list[Any]:
        return [
            None
            if curve is None
            else {
                "mean": [_rounded(value, 5) for value in curve.mean],
                "std": [_rounded(value, 3) for value in curve.std],
                "at": _value(name, space[name], {name: curve.at}),
            }
            for name, curve in zip(space.names, own, strict=True)
        ]

    points = zip(space.names, found.points, strict=True)
    return {
        "points": [[_value(name, space[name], {name: value}) for value in values] for name, values in points],
        "tasks": {places[task]: one(own) for task, own in found.tasks.items()},
        "new": one(found.new),
    }


def _rounded(number: float | None, digits: int = DIGITS) -> float | int | None:
    """Return a number with few digits; None for none, and for what JSON cannot hold."""
    if number is None or isinstance(number, int):
        return number
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None
