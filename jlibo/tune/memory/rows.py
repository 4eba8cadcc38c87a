"""Statements that read and write the rows of a memory, inside the transaction of their caller. Internal."""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

from jlibo.printable import printable
from jlibo.tune.memory.records import (
    LARGEST,
    META_CONTENT,
    TASK_CONTENT,
    TRIAL_CONTENT,
    DamagedRow,
    Params,
    TaskRecord,
    TrialRecord,
    TrialStateError,
    is_time,
    meta_checksum,
    row_checksum,
    strict_json,
    task_name,
    whole,
)
from jlibo.tune.space.space import SearchSpace

LARGEST_REVISION = 2**62  # leaves room to increase the counter of any file

TASK = f"id, {', '.join(TASK_CONTENT)}, checksum"
TRIAL = f"id, {', '.join(TRIAL_CONTENT)}, checksum"

# The revision grows with every change to finished trials. Each task stores the revision of its last change,
# and `meta` that of the last deletion. The largest stored value, except that of one task, therefore shows
# whether anything changed in the other tasks.
_REVISION = """
    SELECT MAX(CAST(value AS INTEGER), COALESCE((SELECT MAX(changed) FROM tasks WHERE id IS NOT ?), 0))
    FROM meta WHERE key = 'deleted'
"""


def plain_params(text: str) -> Params:
    """Return the parameters in a row, not checked against a space."""
    params = strict_json(text)
    if not isinstance(params, dict):
        raise ValueError("its parameters are not a JSON object")
    return params


@final
class View(NamedTuple):
    """The parameters of a row in some search space; see the fields of `TrialRecord`."""

    params: Params
    fits: bool = True
    runnable: bool = True
    written: Params | None = None


def plain_view(text: str) -> View:
    """Return the parameters of a row as they are written."""
    return View(plain_params(text))


@final
class MemoryConnection(sqlite3.Connection):
    """A connection to a memory; `params_fn` parses and checks the parameters of its trials."""

    params_fn: Callable[[str], View] = staticmethod(plain_view)


def params_text(params: Params) -> str:
    """Return parameters as JSON, sorted so that equal parameters give equal texts; NaN is an error."""
    return json.dumps(params, allow_nan=False, sort_keys=True)


def read_meta(database: sqlite3.Connection) -> dict[str, str]:
    meta = dict(database.execute("SELECT key, value FROM meta LIMIT 100").fetchall())
    missing = [key for key in (*META_CONTENT[:-1], "deleted", "checksum") if key not in meta]
    if missing:
        raise DamagedRow(f"the entry '{missing[0]}' of its problem is missing")
    if meta["checksum"] != str(meta_checksum(meta)):
        raise DamagedRow("the checksum of its problem does not match")
    return meta


def meta_checksum_of(database: sqlite3.Connection) -> str | None:
    """Return the stored checksum of the problem, which changes with it; None if it is missing."""
    found = database.execute("SELECT value FROM meta WHERE key = 'checksum'").fetchone()
    return None if found is None else found[0]


def read_problem(meta: Mapping[str, str]) -> tuple[SearchSpace, bool]:
    """Return the search space of a memory and whether it maximises, or raise a `DamagedRow`."""
    try:
        return SearchSpace.from_spec(strict_json(meta["space"])), {"0": False, "1": True}[meta["maximise"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        words = printable(error, max_length=300)
        raise DamagedRow(f"its problem cannot be read, or not by this version of jlibo: {words}") from error


def revision(database: sqlite3.Connection, excluding: int | None = None) -> int:
    found = database.execute(_REVISION, (excluding,)).fetchone()
    if found is None or not 0 <= found[0] <= LARGEST_REVISION:
        raise DamagedRow("the counter of changes is missing or out of range")
    return found[0]


def note_change(database: sqlite3.Connection, task_id: int) -> None:
    """Record that the finished trials of a task changed."""
    after = revision(database) + 1
    database.execute("UPDATE tasks SET changed = ? WHERE id = ?", (after, task_id))


def read_tasks(database: sqlite3.Connection) -> list[TaskRecord]:
    return [checked_task(*row) for row in database.execute(f"SELECT {TASK} FROM tasks ORDER BY id")]


def find_task(database: sqlite3.Connection, name: str) -> TaskRecord | None:
    row = database.execute(f"SELECT {TASK} FROM tasks WHERE name = ?", (name,)).fetchone()
    return None if row is None else checked_task(*row)


def insert_task(database: sqlite3.Connection, task: TaskRecord) -> int:
    """Insert a new task and return its id, which the database assigns."""
    content = (task.name, task.budget, task.source, task.seed, task.created)
    return insert_row(database, "tasks", TASK_CONTENT, content)


def delete_task(database: sqlite3.Connection, task_id: int) -> None:
    after = revision(database) + 1
    database.execute("DELETE FROM tasks WHERE id = ?", (task_id,))  # ON DELETE CASCADE deletes its trials
    database.execute("UPDATE meta SET value = ? WHERE key = 'deleted'", (str(after),))


def count_trials(database: sqlite3.Connection, task_id: int) -> tuple[int, int]:
    """Return the count of a task's trials and the number of the next; they differ if an import left gaps."""
    if database.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).fetchone() is None:
        raise TrialStateError(f"there is no task with the id {task_id!r} in the memory; was it deleted?")
    question = "SELECT COUNT(*), COALESCE(MAX(number), -1) FROM trials WHERE task_id = ?"
    count, last = database.execute(question, (task_id,)).fetchone()
    if last >= LARGEST:
        raise TrialStateError(
            f"task {task_id!r} has a trial with the largest number there is, so none can follow."
        )
    return count, last + 1


def read_trials(database: MemoryConnection, where: str = "TRUE", *values: Any) -> list[TrialRecord]:
    """Return the trials that meet `where`, a condition in SQL, by task and number."""
    question = f"SELECT {TRIAL} FROM trials WHERE {where} ORDER BY task_id, number"
    return [checked_trial(database.params_fn, *row) for row in database.execute(question, values)]


def read_trial(database: MemoryConnection, trial_id: int) -> TrialRecord:
    for trial in read_trials(database, "id = ?", trial_id):
        return trial
    raise TrialStateError(f"there is no trial with the id {trial_id!r} in the memory; was its task deleted?")


def insert_trial(database: sqlite3.Connection, trial: TrialRecord) -> int:
    """Insert a new trial and return its id, which the database assigns. An owner counts as a first claim."""
    content = (
        *(trial.task_id, trial.number, params_text(trial.as_written), *_state_columns(trial)),
        *(int(trial.explored), trial.owner, trial.created if trial.owner else None, trial.created),
        *(trial.finished, int(trial.owner is not None), *_outcome_columns(trial)),
    )
    return insert_row(database, "trials", TRIAL_CONTENT, content)


def finish_trial(database: sqlite3.Connection, trial: TrialRecord, finished: str) -> None:
    """Write how a pending trial ended: `trial` has its final state, and its score, error or estimate."""
    state, score = _state_columns(trial)
    error, stopped, estimate = _outcome_columns(trial)
    changes = dict(state=state, score=score, error=error, stopped=stopped, estimate=estimate)
    _update_trial(database, trial.id, finished=finished, owner=None, claimed=None, **changes)
    note_change(database, trial.task_id)


def ended(trial: TrialRecord, score: float | None, *, error: str | None = None) -> TrialRecord:
    """Return a pending trial as a complete one, or as a failed one if there is no score."""
    if score is None:
        return replace(trial, state="failed", error=error)
    return replace(trial, state="complete", score=score)


def _state_columns(trial: TrialRecord) -> tuple[str, float | None]:
    state = "failed" if trial.state == "stopped" else trial.state
    return state, real(trial.score)


def _outcome_columns(trial: TrialRecord) -> tuple[str | None, int | None, float | None]:
    return trial.error, 1 if trial.state == "stopped" else None, real(trial.estimate)


def real(number: float | None) -> float | None:
    """Return a number as SQLite stores it: -0.0 as 0.0."""
    return None if number is None else number + 0.0


def claimable(
    database: sqlite3.Connection, task_id: int, owner: str, among: Sequence[int] | None = None
) -> list[tuple[int, str | None, str]]:
    """Return the pending trials that `owner` does not hold: id, current owner or None, and since when.

    `among` are the ids of all pending trials, if known; otherwise all trials of the task are searched.
    """
    question = (
        "SELECT number, id, owner, COALESCE(claimed, created) FROM trials "
        "WHERE {} AND state = 'pending' AND owner IS NOT ?"
    )
    if among is None:
        found = database.execute(question.format("task_id = ?"), (task_id, owner)).fetchall()
    else:
        found = [
            row
            for ids in portions(among)
            for row in database.execute(question.format(is_one_of(ids)), (*ids, owner))
        ]
    for _, trial_id, _, since in found:
        if not is_time(since):
            raise DamagedRow(f"trial {trial_id}: the time at which it was claimed cannot be read")
    return [row[1:] for row in sorted(found, key=lambda row: row[0])]


def portions(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in pieces that one statement can bind; SQLite's limit is 999 in old versions."""
    return (ids[start : start + 500] for start in range(0, len(ids), 500))


def is_one_of(ids: Sequence[int]) -> str:
    """Return the SQL condition that the id is one of `ids`, which are the values to bind."""
    return f"id IN ({', '.join('?' * len(ids))})"


def change_owner(database: MemoryConnection, trial_id: int, *, old: str | None, new: str, since: str) -> bool:
    """Move a pending trial from `old` to `new`; return False if it is no longer pending or held by `old`.

    False also if it is not a configuration of the search space. This counts as one more claim.
    """
    for trial in read_trials(database, "id = ? AND state = 'pending' AND owner IS ?", trial_id, old):
        if not trial.runnable:
            return False
        _update_trial(database, trial_id, owner=new, claimed=since, claims=trial.claims + 1)
        return True
    return False


def release(
    database: MemoryConnection, owner: str, among: Sequence[int] | None = None, *, counts: bool = False
) -> int:
    """Release the trials of `owner` (of these ids, if given) and return their number.

    `counts`: whether the claims count, as those of an owner that ended do.
    """
    held = [
        trial for trial in read_trials(database, "owner = ?", owner) if among is None or trial.id in among
    ]
    for trial in held:
        claims = trial.claims if counts else max(trial.claims - 1, 0)
        _update_trial(database, trial.id, owner=None, claimed=None, claims=claims)
    return len(held)


def checked_task(
    id: Any,
    name: Any,
    budget: Any,
    source: Any,
    seed: Any,
    created: Any,
    checksum: Any,
    *,
    verify: bool = True,
) -> TaskRecord:
    """Return the record of a row of `tasks`, or raise a `DamagedRow`; `verify=False` skips the checksum."""
    try:
        if verify and checksum != row_checksum((name, budget, source, seed, created)):
            raise ValueError("its checksum does not match")
        if budget is not None:
            whole("budget", budget, at_least=1)
        whole("seed", seed, at_least=0)
        if source not in ("tuner", "added"):
            raise ValueError("its source is not known")
        if not is_time(created):
            raise ValueError("a time cannot be read")
        return TaskRecord(id, task_name(name), budget, source, seed, created)
    except ValueError as error:
        raise DamagedRow(f"task {id}: {printable(error, max_length=200)}") from error


def checked_trial(
    params_fn: Callable[[str], View], id: Any, *columns: Any, verify: bool = True
) -> TrialRecord:
    """Return the record of a row of `trials`, or raise a `DamagedRow`; `params_fn` parses its parameters."""
    *content, checksum = columns
    task_id, number, params, state, score, explored, owner, claimed, created, finished, claims = content[:11]
    error, stopped, estimate = content[11:]
    try:
        if verify and checksum != row_checksum(content):
            raise ValueError("its checksum does not match")
        if type(number) is not int or type(claims) is not int or number < 0 or claims < 0:
            raise ValueError("its number or its number of claims is not a whole number from 0")
        if state not in ("pending", "complete", "failed") or explored not in (0, 1):
            raise ValueError("its state is not known")
        if (state == "complete") != (type(score) is float and math.isfinite(score)):
            raise ValueError(f"its score does not fit the state '{state}'")
        if type(error) not in (str, type(None)) or (state != "failed" and (error, stopped) != (None, None)):
            raise ValueError(f"its text or its mark of a failure does not fit the state '{state}'")
        if stopped not in (None, 1) or not (
            estimate is None or (stopped and type(estimate) is float and math.isfinite(estimate))
        ):
            raise ValueError("its estimate or its mark of a stopped trial is not valid")
        if type(owner) not in (str, type(None)) or (owner is not None and state != "pending"):
            raise ValueError("it has an owner that it cannot have")
        times = [
            created,
            *([] if state == "pending" else [finished]),
            *([] if claimed is None else [claimed]),
        ]
        if not all(map(is_time, times)) or (state == "pending" and finished is not None):
            raise ValueError("a time cannot be read")
        if type(params) is not str:
            raise ValueError("its parameters are not text")
        view = params_fn(params)
        return TrialRecord(
            id=id,
            task_id=task_id,
            number=number,
            params=view.params,
            state="stopped" if stopped else state,
            score=score,
            explored=bool(explored),
            owner=owner,
            created=created,
            finished=finished,
            claims=claims,
            error=error,
            estimate=estimate,
            fits=view.fits,
            runnable=view.runnable,
            written=view.written,
        )
    except (ValueError, RecursionError) as problem:
        raise DamagedRow(f"trial {id}: {printable(problem, max_length=200)}") from problem


def insert_row(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], content: tuple[Any, ...]
) -> int:
    """Insert a row with its checksum and return its id."""
    marks = ", ".join("?" * (len(columns) + 1))
    statement = f"INSERT INTO {table} ({', '.join(columns)}, checksum) VALUES ({marks})"
    cursor = database.execute(statement, (*content, row_checksum(content)))
    assert cursor.lastrowid is not None  # always set after an INSERT
    return cursor.lastrowid


def update_task(database: sqlite3.Connection, task_id: int, **changes: Any) -> None:
    """Change columns of a task that was read in this transaction, and update its checksum."""
    _update(database, "tasks", TASK_CONTENT, task_id, changes)


def _update_trial(database: sqlite3.Connection, trial_id: int, **changes: Any) -> None:
    _update(database, "trials", TRIAL_CONTENT, trial_id, changes)


def _update(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], row_id: int, changes: dict[str, Any]
) -> None:
    # Callers have read and checked the row in this transaction, so a damaged row never gets a valid checksum.
    row = database.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (row_id,)).fetchone()
    content = [changes.get(column, value) for column, value in zip(columns, row, strict=True)]
    assignments = ", ".join(f"{column} = ?" for column in changes)
    database.execute(
        f"UPDATE {table} SET {assignments}, checksum = ? WHERE id = ?",
        (*changes.values(), row_checksum(content), row_id),
    )
