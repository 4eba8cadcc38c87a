"""Rows of a client of a federated run: its votes, and what the server published. Internal.

| here              | what it does                                                                         |
|-------------------|--------------------------------------------------------------------------------------|
| `finished_tasks`  | the tasks that have as many finished trials as their budget, and no vote yet         |
| `add_votes`       | store votes, each once; a task that has a vote keeps it                              |
| `waiting_votes`   | votes that the server has not confirmed                                              |
| `confirm`         | mark votes as confirmed                                                              |
| `write_published`, `read_published` | the last announcement                                              |
| `copy_vote`       | take over the vote of a task from another memory                                     |
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from jlibo.federated.messages import Announcement, MessageError, Vote
from jlibo.printable import printable
from jlibo.tune.memory import rows
from jlibo.tune.memory.records import DamagedRow, TaskRecord, row_checksum

_CONTENT = ("task_id", "public", "selected", "confirmed")
_ANNOUNCEMENT = "announcement"


def finished_tasks(database: rows.MemoryConnection, default_budget: int) -> list[TaskRecord]:
    """Return the finished tasks without a vote, in the order in which they were created.

    A task of results from elsewhere is finished.
    """
    question = "SELECT task_id, COUNT(*) FROM trials WHERE state <> 'pending' GROUP BY task_id"
    num_finished = dict(database.execute(question).fetchall())
    voted = {task_id for (task_id,) in database.execute("SELECT task_id FROM votes")}
    return [
        task
        for task in rows.read_tasks(database)
        if task.id not in voted
        and (task.source == "added" or num_finished.get(task.id, 0) >= (task.budget or default_budget))
    ]


def add_votes(database: rows.MemoryConnection, votes: Mapping[int, Vote]) -> None:
    """Store votes by id of the task. A task that has a vote keeps it, and one that was deleted has none."""
    tasks = {task.id for task in rows.read_tasks(database)}
    voted = {task_id for (task_id,) in database.execute("SELECT task_id FROM votes")}
    for task_id, vote in votes.items():
        if task_id in tasks - voted:
            _insert(database, task_id, vote, confirmed=0)


def _insert(database: sqlite3.Connection, task_id: int, vote: Vote, *, confirmed: int) -> None:
    content = (task_id, vote.task, json.dumps(vote.selected), confirmed)
    rows.insert_row(database, "votes", _CONTENT, content)


def waiting_votes(database: sqlite3.Connection, most: int) -> list[Vote]:
    """Return the first `most` votes that are not confirmed, oldest first."""
    return [vote for _, vote, _ in _read(database, "confirmed = 0 ORDER BY id LIMIT ?", most)]


def confirm(database: sqlite3.Connection, tasks: Iterable[str]) -> None:
    """Mark the votes with these public ids as confirmed; unknown ids are ignored."""
    for public in tasks:
        for task_id, vote, confirmed in _read(database, "public = ?", public):
            if not confirmed:
                content = (task_id, vote.task, json.dumps(vote.selected), 1)
                change = "UPDATE votes SET confirmed = 1, checksum = ? WHERE task_id = ?"
                database.execute(change, (row_checksum(content), task_id))


def votes_of(database: sqlite3.Connection) -> dict[int, tuple[Vote, int]]:
    """Return all votes by id of the task, each with whether it is confirmed."""
    return {task_id: (vote, confirmed) for task_id, vote, confirmed in _read(database, "TRUE")}


def copy_vote(database: sqlite3.Connection, task_id: int, vote: tuple[Vote, int] | None) -> None:
    """Give a task the vote of its copy in another memory, so that it does not vote a second time."""
    if vote is not None and not _read(database, "task_id = ?", task_id):
        _insert(database, task_id, vote[0], confirmed=vote[1])


def _read(database: sqlite3.Connection, where: str, *values: Any) -> list[tuple[int, Vote, int]]:
    question = f"SELECT {', '.join(_CONTENT)}, checksum FROM votes WHERE {where}"
    return [_checked(*row) for row in database.execute(question, values)]


def _checked(*columns: Any) -> tuple[int, Vote, int]:
    *content, checksum = columns
    task_id, public, selected, confirmed = content
    try:
        if checksum != row_checksum(content):
            raise ValueError("its checksum does not match")
        return task_id, Vote(public, tuple(json.loads(selected))), confirmed
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"the vote of task {task_id}: {printable(error)}") from error


def write_published(database: sqlite3.Connection, announcement: Announcement) -> None:
    """Store an announcement in place of the last one."""
    content = (_ANNOUNCEMENT, announcement.to_bytes().decode("ascii"))
    database.execute(
        "INSERT OR REPLACE INTO published (name, content, checksum) VALUES (?, ?, ?)",
        (*content, row_checksum(content)),
    )


def read_published(database: sqlite3.Connection) -> Announcement | None:
    """Return the last announcement; None before the first."""
    question = "SELECT name, content, checksum FROM published WHERE name = ?"
    row = database.execute(question, (_ANNOUNCEMENT,)).fetchone()
    if row is None:
        return None
    try:
        if row[2] != row_checksum(row[:2]):
            raise ValueError("its checksum does not match")
        return Announcement.from_bytes(row[1].encode("ascii"))
    except (UnicodeEncodeError, MessageError, ValueError) as error:
        raise DamagedRow(f"what the server published: {printable(error)}") from error
