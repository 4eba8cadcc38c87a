"""Export and import of a memory as JSON lines, one trial per line. Internal; `jlibo memory` is its interface.

The lines serve inspection, migration and the import of old results:

    {"task": "iris", "number": 0, "params": {"alpha": 0.5}, "score": 0.9, "state": "complete", ...}

`task`, `number`, `params`, `score` (null unless complete) and `state` are required. The others are optional,
for lines written by hand; their defaults are in parentheses: `explored` (false), `source` ("added"), the
task's `seed` (0) and `budget` (none), and the times `created` (now) and `finished` (`created`), in ISO 8601.
The `error` of a failed trial, the `estimate` of a stopped one and the `reports`, pairs of a step and a score,
are there only if there are any. `space` is the search space of a trial that was written with another one than
the memory has now. `maximise`, if given, must agree with the memory, because a score has no meaning without
its direction. Tasks without trials are not exported.

A CSV file is read by `jlibo.tune.memory.tables` and written by `import_results`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, final

from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.finished import insert_new
from jlibo.tune.memory.memory import Memory, MemoryFileError, TaskRecord, TrialRecord
from jlibo.tune.memory.records import (
    Params,
    error_text,
    finite_score,
    strict_json,
    task_name,
    utc_now,
    utc_text,
    whole,
)
from jlibo.tune.memory.reports import Curve, write_curve
from jlibo.tune.memory.spaces import is_in, remember
from jlibo.tune.memory.tables import Result
from jlibo.tune.space.fitting import completed
from jlibo.tune.space.space import SearchSpace

REQUIRED = ("task", "number", "params", "score", "state")
OPTIONAL = (
    *("explored", "source", "seed", "budget", "created", "finished", "maximise"),
    *("error", "estimate", "reports", "space"),
)


class LineError(MemoryFileError):
    """A line cannot be imported; the message begins with its number. Nothing was imported."""


@final
@dataclass(frozen=True)
class ImportReport:
    """The numbers of trials and tasks that an import added, and of trials that already existed."""

    num_trials: int
    num_tasks: int
    num_skipped: int


@final
@dataclass(frozen=True)
class CheckedLine:
    """A line that is valid in the search space, or in `space` if it has one; its records have no ids yet."""

    number: int
    task: TaskRecord
    trial: TrialRecord
    curve: Curve
    space: SearchSpace | None


def export_lines(memory: Memory) -> Iterator[str]:
    """Yield the trials of a memory as JSON, one per line without line ending, by task and number."""
    tasks, trials = memory.snapshot()
    curves = memory.curves()
    by_id = {task.id: task for task in tasks}
    others = [space for space in reversed(memory.spaces) if space != memory.space]
    for trial in trials:
        task = by_id[trial.task_id]
        content: dict[str, Any] = {
            "task": task.name,
            "number": trial.number,
            "params": trial.as_written,
            "score": trial.score,
            "state": trial.state,
            "explored": trial.explored,
            "source": task.source,
            "seed": task.seed,
            "budget": task.budget,
            "created": trial.created,
            "finished": trial.finished,
            "maximise": memory.maximise,
        }
        rare = {"error": trial.error, "estimate": trial.estimate}
        content |= {key: value for key, value in rare.items() if value is not None}
        if trial.id in curves:
            content["reports"] = list(curves[trial.id].items())
        if trial.written is not None:
            content["space"] = next(space for space in others if is_in(space, trial.written)).spec()
        yield json.dumps(content, allow_nan=False)


def import_lines(memory: Memory, lines: Iterable[str]) -> ImportReport:
    """Import exported lines into a memory: all of them, or none and raise a `LineError`.

    A trial that already exists with the same content is skipped. A trial with the same task and number but
    different content is an error. Pending trials have no owner, so that any process may claim them.
    """
    report = _write(memory, check_lines(lines, space=memory.space, maximise=memory.maximise))
    memory.tell_changes()
    return report


def import_results(memory: Memory, results: Iterable[Result]) -> ImportReport:
    """Add the rows of a table with task names to a memory, all of them or none.

    The trials follow those of their task, which is created if it does not exist. A result that a task has
    already, with the same configuration and score, is skipped.
    """
    by_task: dict[str, list[tuple[Params, float | None]]] = {}
    for result in results:
        by_task.setdefault(task_name(result.task), []).append((result.params, result.score))
    num_trials = num_tasks = 0
    with memory.writing() as database:
        for name, pairs in by_task.items():
            task = rows.find_task(database, name)
            num_tasks += task is None
            new = TaskRecord(0, name, None, "added", 0, utc_now())
            task_id = rows.insert_task(database, new) if task is None else task.id
            num_trials += insert_new(database, task_id, pairs)
    num_rows = sum(map(len, by_task.values()))
    return ImportReport(num_trials, num_tasks, num_rows - num_trials)


def check_lines(lines: Iterable[str], *, space: SearchSpace, maximise: bool) -> list[CheckedLine]:
    """Return the parsed lines, without writing. Blank lines are skipped, repeated trials returned once."""
    found: dict[tuple[str, int], CheckedLine] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = CheckedLine(number, *_records(_json_object(text), space, maximise))
        except RecursionError:
            _reject(number, "the JSON is nested too deeply")
        except ValueError as error:
            _reject(number, printable(error, max_length=500))
        first = found.setdefault((line.task.name, line.trial.number), line)
        if _content(first.trial) != _content(line.trial):
            _reject(number, f"{_title(line)} was another one in line {first.number}")
    return list(found.values())


def _write(memory: Memory, lines: Sequence[CheckedLine]) -> ImportReport:
    """Write lines that were checked against this memory's space, in one transaction."""
    num_trials = num_skipped = 0
    known: dict[str, tuple[int, dict[int, TrialRecord]]] = {}
    new_tasks, changed = set(), set()
    with memory.writing() as database:
        remember(database, dict.fromkeys(line.space for line in lines if line.space is not None))
        for line in lines:
            name, number = line.task.name, line.trial.number
            if name not in known:
                task = rows.find_task(database, name)
                if task is None:
                    new_tasks.add(name)
                task_id = rows.insert_task(database, line.task) if task is None else task.id
                old = rows.read_trials(database, "task_id = ?", task_id)
                known[name] = task_id, {trial.number: trial for trial in old}
            task_id, there = known[name]
            if number not in there:
                trial_id = rows.insert_trial(database, replace(line.trial, task_id=task_id))
                write_curve(database, trial_id, line.curve)
                num_trials += 1
                if line.trial.state != "pending":
                    changed.add(task_id)
            elif _content(there[number]) == _content(line.trial):
                num_skipped += 1
            else:
                _reject(line.number, f"the memory has another {_title(line)}")
        for task_id in sorted(changed):
            rows.note_change(database, task_id)
    return ImportReport(num_trials, len(new_tasks), num_skipped)


def _content(trial: TrialRecord) -> tuple:
    # Compare text, in which true differs from 1. Times are left out: a result may have been recorded twice.
    return rows.params_text(trial.as_written), trial.state, trial.score, trial.explored


def _title(line: CheckedLine) -> str:
    return f"trial {line.trial.number} of task {line.task.name!r}"


def _reject(number: int, problem: str) -> NoReturn:
    raise LineError(f"line {number}: {problem.rstrip('.')}; nothing was imported.")


def _json_object(text: str) -> Params:
    content = strict_json(text)
    if not isinstance(content, dict):
        raise ValueError(f"a JSON object should stand here, but got {_short(content)}")
    return content


def _records(
    content: Params, space: SearchSpace, maximise: bool
) -> tuple[TaskRecord, TrialRecord, Curve, SearchSpace | None]:
    """Return task, trial, reports and space of one line, or raise a `ValueError` about its first mistake."""
    for key in REQUIRED:
        if key not in content:
            raise ValueError(f"the key {key!r} is missing")
    for key in content:
        if key not in REQUIRED + OPTIONAL:
            raise ValueError(f"the key {key!r} is not known; known are {', '.join(REQUIRED + OPTIONAL)}")
    _check_one_of(content, "maximise", (True, False), maximise)
    if content.get("maximise", maximise) != maximise:
        words = ("maximised", "minimised") if content["maximise"] else ("minimised", "maximised")
        raise ValueError(f"this score is to be {words[0]}, but those of the memory are to be {words[1]}")
    state = _check_one_of(content, "state", ("pending", "complete", "failed", "stopped"), None)
    created = _time(content, "created") or utc_now()
    finished = None if state == "pending" else _time(content, "finished") or created
    budget = content.get("budget")
    own = None if content.get("space") is None else SearchSpace.from_spec(content["space"])
    task = TaskRecord(
        id=0,
        name=task_name(content["task"]),
        budget=None if budget is None else whole("budget", budget, at_least=1),
        source=_check_one_of(content, "source", ("tuner", "added"), "added"),
        seed=whole("seed", content.get("seed", 0), at_least=0),
        created=created,
    )
    trial = TrialRecord(
        id=0,
        task_id=0,
        number=whole("number", content["number"], at_least=0),
        params=completed(space if own is None else own, content["params"]),
        state=state,
        score=_score(content["score"], state),
        explored=_check_one_of(content, "explored", (True, False), False),
        owner=None,
        created=created,
        finished=finished,
        error=_only_if(state == "failed", content, "error", error_text),
        estimate=_only_if(state == "stopped", content, "estimate", partial(_number, "estimate")),
    )
    return task, trial, _curve(content.get("reports")), own


def _only_if(is_possible: bool, content: Params, key: str, value_fn: Callable[[Any], Any]) -> Any:
    value = content.get(key)
    if value is not None and not is_possible:
        raise ValueError(f"{key!r} should be null for a {content['state']} trial, but got {_short(value)}")
    return value_fn(value)


def _number(key: str, value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f"{key!r} should be a number or null, but got {_short(value)}")
    return finite_score(value)  # an overflow such as 1e999 is infinite, hence not a score


def _curve(reports: Any) -> Curve:
    if not isinstance(reports, list | None):
        raise ValueError(f"'reports' should be pairs of a step and a score, but got {_short(reports)}")
    curve: Curve = {}
    for pair in reports or ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"'reports' should be pairs of a step and a score, but got {_short(pair)}")
        step = whole("step", pair[0], at_least=0)
        if step in curve:
            raise ValueError(f"'reports' should have each step once, but got {step} twice")
        curve[step] = _number("reports", pair[1])
    return curve


def _check_one_of(content: Params, key: str, choices: tuple, default: Any) -> Any:
    value = content.get(key, default)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        wanted = " or ".join(json.dumps(choice) for choice in choices)
        raise ValueError(f"{key!r} should be {wanted}, but got {_short(value)}")
    return value


def _score(value: Any, state: str) -> float | None:
    score = _number("score", value)
    if (score is None) == (state == "complete"):
        wanted = "a finite number" if state == "complete" else "null"
        raise ValueError(f"'score' of a {state} trial should be {wanted}, but got {_short(value)}")
    return score


def _time(content: Params, key: str) -> str | None:
    value = content.get(key)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        # A time without a zone is read as UTC, like all times here.
        return utc_text(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError):
        message = f"{key!r} should be a time in ISO 8601 such as {utc_now()}, but got {_short(value)}"
        raise ValueError(message) from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
