"""The statements that read and write the rows of a memory, each inside of its caller's transaction."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from jlibo.tune.memory_records import (
    TASK_CONTENT,
    TRIAL_CONTENT,
    Params,
    TaskRecord,
    TrialRecord,
    TrialStateError,
    row_checksum,
)

_TASK = f"id, {', '.join(TASK_CONTENT)}, checksum"
_TRIAL = f"id, {', '.join(TRIAL_CONTENT)}, checksum"

_MOST_VALUES = 500  # in one statement; SQLite's own limit is 999 in old versions

# A revision grows with every change to finished trials. Each task notes it at its last change and `meta` at
# the last deletion, so the largest note but that of one task tells whether anything changed in the others.
_REVISION = """
    SELECT MAX(CAST(value AS INTEGER), COALESCE((SELECT MAX(changed) FROM tasks WHERE id IS NOT ?), 0))
    FROM meta WHERE key = 'deleted'
"""


def params_text(params: Params) -> str:
    """Parameters as JSON: sorted, so that equal ones are equal texts, and never NaN."""
    return json.dumps(params, allow_nan=False, sort_keys=True)


def read_meta(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT key, value FROM meta").fetchall())


def revision(database: sqlite3.Connection, excluding: int | None = None) -> int:
    return database.execute(_REVISION, (excluding,)).fetchone()[0]


def note_change(database: sqlite3.Connection, task_id: int) -> None:
    """Say that finished trials of the task are not what they were."""
    after = revision(database) + 1
    database.execute("UPDATE tasks SET changed = ? WHERE id = ?", (after, task_id))


def read_tasks(database: sqlite3.Connection) -> list[TaskRecord]:
    return [_task(*row) for row in database.execute(f"SELECT {_TASK} FROM tasks ORDER BY id")]


def find_task(database: sqlite3.Connection, name: str) -> TaskRecord | None:
    row = database.execute(f"SELECT {_TASK} FROM tasks WHERE name = ?", (name,)).fetchone()
    return None if row is None else _task(*row)


def insert_task(database: sqlite3.Connection, task: TaskRecord) -> int:
    """Write a new task; its id is given by the database, and returned."""
    content = (task.name, task.budget, task.source, task.seed, task.created)
    return _insert(database, "tasks", TASK_CONTENT, content)


def delete_task(database: sqlite3.Connection, task_id: int) -> None:
    after = revision(database) + 1
    database.execute("DELETE FROM tasks WHERE id = ?", (task_id,))  # its trials go with it
    database.execute("UPDATE meta SET value = ? WHERE key = 'deleted'", (str(after),))


def count_trials(database: sqlite3.Connection, task_id: int) -> tuple[int, int]:
    """How many trials a task has, and the number of its next one; these differ if an import left gaps."""
    if database.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).fetchone() is None:
        raise TrialStateError(f"there is no task with the id {task_id!r} in the memory; was it deleted?")
    question = "SELECT COUNT(*), COALESCE(MAX(number) + 1, 0) FROM trials WHERE task_id = ?"
    return database.execute(question, (task_id,)).fetchone()


def read_trials(database: sqlite3.Connection, where: str = "TRUE", *values: Any) -> list[TrialRecord]:
    """The trials of which `where`, a condition in SQL, is true; by task and number."""
    question = f"SELECT {_TRIAL} FROM trials WHERE {where} ORDER BY task_id, number"
    return [_trial(*row) for row in database.execute(question, values)]


def changed_trials(
    database: sqlite3.Connection, task_id: int, after: int, pending: Sequence[int]
) -> list[TrialRecord] | None:
    """See `Memory.changed_trials`."""
    if database.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).fetchone() is None:
        return None
    # The sign keeps SQLite from its index on task_id, by which it would visit all trials of the task.
    found = read_trials(database, "+task_id = ? AND id > ?", task_id, after)
    for ids in _portions(pending):
        found += read_trials(database, f"{_is_one_of(ids)} AND state <> 'pending'", *ids)
    return sorted(found, key=lambda trial: trial.number)


def _portions(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + _MOST_VALUES] for start in range(0, len(ids), _MOST_VALUES))


def _is_one_of(ids: Sequence[int]) -> str:
    return f"id IN ({', '.join('?' * len(ids))})"


def params_after(database: sqlite3.Connection, task_id: int, after: int) -> set[str]:
    """The parameters, as text, of the task's trials with an id above `after`."""
    question = "SELECT params FROM trials WHERE +task_id = ? AND id > ?"
    return {params for (params,) in database.execute(question, (task_id, after))}


def score_counts(database: sqlite3.Connection, excluding: int | None) -> dict[int, int]:
    """The number of complete trials of each task that has any, but for `excluding`."""
    question = (
        "SELECT task_id, COUNT(*) FROM trials WHERE state = 'complete' AND task_id IS NOT ? GROUP BY task_id"
    )
    return dict(database.execute(question, (excluding,)).fetchall())


def read_trial(database: sqlite3.Connection, trial_id: int) -> TrialRecord:
    for trial in read_trials(database, "id = ?", trial_id):
        return trial
    raise TrialStateError(f"there is no trial with the id {trial_id!r} in the memory; was its task deleted?")


def insert_trial(database: sqlite3.Connection, trial: TrialRecord) -> int:
    """Write a new trial; its id is given by the database, and returned. To have an owner is a first claim."""
    score = None if trial.score is None else trial.score + 0.0  # SQLite keeps -0.0 as 0.0
    content = (
        *(trial.task_id, trial.number, params_text(trial.params), trial.state, score),
        *(int(trial.explored), trial.owner, trial.created if trial.owner else None, trial.created),
        *(trial.finished, int(trial.owner is not None)),
    )
    return _insert(database, "trials", TRIAL_CONTENT, content)


def finish_trial(
    database: sqlite3.Connection, trial: TrialRecord, score: float | None, finished: str
) -> None:
    """Make a pending trial complete, or failed if there is no score."""
    state = "failed" if score is None else "complete"
    _update_trial(database, trial.id, state=state, score=score, finished=finished, owner=None, claimed=None)
    note_change(database, trial.task_id)


def claimable(
    database: sqlite3.Connection, task_id: int, owner: str, among: Sequence[int] | None = None
) -> list[tuple[int, str | None, str]]:
    """The pending trials that are not `owner`'s: id, who has it (if anyone), and since when.

    `among`: the ids of all pending trials, if they are known; otherwise all trials of the task are looked at.
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
            for ids in _portions(among)
            for row in database.execute(question.format(_is_one_of(ids)), (*ids, owner))
        ]
    return [row[1:] for row in sorted(found)]


def change_owner(
    database: sqlite3.Connection, trial_id: int, *, old: str | None, new: str, since: str
) -> bool:
    """Give a pending trial of `old` to `new`; False if by now it is not pending or not of `old`.

    It counts as one more claim.
    """
    for trial in read_trials(database, "id = ? AND state = 'pending' AND owner IS ?", trial_id, old):
        _update_trial(database, trial_id, owner=new, claimed=since, claims=trial.claims + 1)
        return True
    return False


def release(database: sqlite3.Connection, owner: str) -> int:
    """Take all trials from `owner`. A claim that was given back does not count."""
    held = read_trials(database, "owner = ?", owner)
    for trial in held:
        _update_trial(database, trial.id, owner=None, claimed=None, claims=max(trial.claims - 1, 0))
    return len(held)


def _task(id, name, budget, source, seed, created, checksum) -> TaskRecord:
    return TaskRecord(id, name, budget, source, seed, created)


def _trial(id, *content) -> TrialRecord:
    *content, _ = content
    task_id, number, params, state, score, explored, owner, _, created, finished, claims = content
    params, explored = json.loads(params), bool(explored)
    return TrialRecord(id, task_id, number, params, state, score, explored, owner, created, finished, claims)


def _insert(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], content: tuple[Any, ...]
) -> int:
    marks = ", ".join("?" * (len(columns) + 1))
    statement = f"INSERT INTO {table} ({', '.join(columns)}, checksum) VALUES ({marks})"
    cursor = database.execute(statement, (*content, row_checksum(content)))
    assert cursor.lastrowid is not None  # it is there after an INSERT
    return cursor.lastrowid


def update_task(database: sqlite3.Connection, task_id: int, **changes: Any) -> None:
    """Change columns of a task that was just read, and its checksum with them."""
    _update(database, "tasks", TASK_CONTENT, task_id, changes)


def _update_trial(database: sqlite3.Connection, trial_id: int, **changes: Any) -> None:
    _update(database, "trials", TRIAL_CONTENT, trial_id, changes)


def _update(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], row_id: int, changes: dict[str, Any]
) -> None:
    # Callers have read the row in this transaction: a damaged row never gets a checksum that fits.
    row = database.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (row_id,)).fetchone()
    content = [changes.get(column, value) for column, value in zip(columns, row, strict=True)]
    assignments = ", ".join(f"{column} = ?" for column in changes)
    database.execute(
        f"UPDATE {table} SET {assignments}, checksum = ? WHERE id = ?",
        (*changes.values(), row_checksum(content), row_id),
    )
