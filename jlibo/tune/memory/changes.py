"""Queries for what changed in a memory since the last read, without reading the rest. Internal."""

import sqlite3
from collections.abc import Sequence

from jlibo.tune.memory.records import TrialRecord
from jlibo.tune.memory.rows import MemoryConnection, is_one_of, portions, read_trials


def changed_trials(
    database: MemoryConnection, task_id: int, after: int, pending: Sequence[int]
) -> list[TrialRecord] | None:
    """See `Memory.changed_trials`."""
    if database.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).fetchone() is None:
        return None
    # The unary plus keeps SQLite from using its index on task_id, with which it would visit all trials of the
    # task.
    found = read_trials(database, "+task_id = ? AND id > ?", task_id, after)
    for ids in portions(pending):
        found += read_trials(database, f"{is_one_of(ids)} AND state <> 'pending'", *ids)
    return sorted(found, key=lambda trial: trial.number)


def params_after(database: sqlite3.Connection, task_id: int, after: int) -> set[str]:
    """Return the parameters, as text, of the task's trials with an id above `after`."""
    question = "SELECT params FROM trials WHERE +task_id = ? AND id > ?"
    return {params for (params,) in database.execute(question, (task_id, after))}


def score_counts(database: sqlite3.Connection, excluding: int | None) -> dict[int, int]:
    """Return the number of complete trials by task id, for the tasks that have any, except `excluding`."""
    question = (
        "SELECT task_id, COUNT(*) FROM trials WHERE state = 'complete' AND task_id IS NOT ? GROUP BY task_id"
    )
    return dict(database.execute(question, (excluding,)).fetchall())
