"""The statements that read and write the rows of a memory, each inside of its caller's transaction."""

import json
import sqlite3
from typing import Any

from jlibo.tune.memory_records import Params, TaskRecord, TrialRecord, TrialStateError

_TASK = "id, name, budget, source, seed, created"
_TRIAL = "id, task_id, number, params, state, score, explored, owner, created, finished"

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
    return [TaskRecord(*row) for row in database.execute(f"SELECT {_TASK} FROM tasks ORDER BY id")]


def find_task(database: sqlite3.Connection, name: str) -> TaskRecord | None:
    row = database.execute(f"SELECT {_TASK} FROM tasks WHERE name = ?", (name,)).fetchone()
    return None if row is None else TaskRecord(*row)


def insert_task(database: sqlite3.Connection, task: TaskRecord) -> int:
    """Write a new task; its id is given by the database, and returned."""
    cursor = database.execute(
        "INSERT INTO tasks (name, budget, source, seed, created) VALUES (?, ?, ?, ?, ?)",
        (task.name, task.budget, task.source, task.seed, task.created),
    )
    return _new_id(cursor)


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


def read_trial(database: sqlite3.Connection, trial_id: int) -> TrialRecord:
    for trial in read_trials(database, "id = ?", trial_id):
        return trial
    raise TrialStateError(f"there is no trial with the id {trial_id!r} in the memory; was its task deleted?")


def insert_trial(database: sqlite3.Connection, trial: TrialRecord) -> int:
    """Write a new trial; its id is given by the database, and returned."""
    cursor = database.execute(
        "INSERT INTO trials "
        "(task_id, number, params, state, score, explored, owner, claimed, created, finished) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            trial.task_id,
            trial.number,
            params_text(trial.params),
            trial.state,
            trial.score,
            int(trial.explored),
            trial.owner,
            trial.created if trial.owner else None,
            trial.created,
            trial.finished,
        ),
    )
    return _new_id(cursor)


def finish_trial(
    database: sqlite3.Connection, trial: TrialRecord, score: float | None, finished: str
) -> None:
    """Make a pending trial complete, or failed if there is no score."""
    state = "failed" if score is None else "complete"
    database.execute(
        "UPDATE trials SET state = ?, score = ?, finished = ?, owner = NULL, claimed = NULL WHERE id = ?",
        (state, score, finished, trial.id),
    )
    note_change(database, trial.task_id)


def claimable(database: sqlite3.Connection, task_id: int, owner: str) -> list[tuple[int, str | None, str]]:
    """The pending trials that are not `owner`'s: id, who has it (if anyone), and since when."""
    return database.execute(
        "SELECT id, owner, COALESCE(claimed, created) FROM trials "
        "WHERE task_id = ? AND state = 'pending' AND owner IS NOT ? ORDER BY number",
        (task_id, owner),
    ).fetchall()


def change_owner(
    database: sqlite3.Connection, trial_id: int, *, old: str | None, new: str, since: str
) -> bool:
    """Give a pending trial of `old` to `new`; False if by now it is not pending or not of `old`."""
    cursor = database.execute(
        "UPDATE trials SET owner = ?, claimed = ? WHERE id = ? AND state = 'pending' AND owner IS ?",
        (new, since, trial_id, old),
    )
    return cursor.rowcount > 0


def release(database: sqlite3.Connection, owner: str) -> int:
    return database.execute(
        "UPDATE trials SET owner = NULL, claimed = NULL WHERE owner = ?", (owner,)
    ).rowcount


def _trial(id, task_id, number, params, state, score, explored, owner, created, finished) -> TrialRecord:
    params, explored = json.loads(params), bool(explored)
    return TrialRecord(id, task_id, number, params, state, score, explored, owner, created, finished)


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # it is there after an INSERT
    return cursor.lastrowid
