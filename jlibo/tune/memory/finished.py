"""Results from elsewhere and configurations to try first, written in one transaction each. Internal.

| here          | what it does                                                                             |
|---------------|------------------------------------------------------------------------------------------|
| `insert`      | add finished trials to a task, inside the transaction of the caller                      |
| `insert_new`  | the same for results that a user has; those that are there already are skipped           |
| `add_results` | `insert_new` in a transaction of its own                                                 |
| `add_task`    | add a new task with its trials                                                           |
| `enqueue`     | add a pending trial without an owner, which the next `ask` of any process claims         |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from jlibo.checks import fail
from jlibo.tune.memory import rows
from jlibo.tune.memory.records import Params, TaskRecord, TrialRecord, pending_trial, task_name, utc_now
from jlibo.tune.space.space import SearchSpace

Pair = tuple[Params, float | None]
"""A configuration that was checked, and its score; None if it failed."""


class Writable(Protocol):
    """What these functions use of a `Memory`."""

    space: SearchSpace

    def writing(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a write transaction."""
        ...


def insert(
    database: rows.MemoryConnection, task_id: int, pairs: Iterable[Pair], *, explored: bool = False
) -> list[TrialRecord]:
    """Add finished trials to a task and return them."""
    _, number = rows.count_trials(database, task_id)
    now, added = utc_now(), []
    for params, score in pairs:
        trial = TrialRecord(
            id=0,
            task_id=task_id,
            number=number + len(added),
            params=params,
            state="failed" if score is None else "complete",
            score=score,
            explored=bool(explored),
            owner=None,
            created=now,
            finished=now,
        )
        added.append(replace(trial, id=rows.insert_trial(database, trial)))
    if added:
        rows.note_change(database, task_id)
    return added


def insert_new(database: rows.MemoryConnection, task_id: int, pairs: Sequence[Pair]) -> int:
    """Add the results that a task does not have yet, and return their number.

    A result is there already if a finished trial has the same configuration and score. If `pairs` has it
    several times, the task will have it as often. A waiting trial of the configuration, one without an owner,
    gets the score instead of a new trial.
    """
    rows.count_trials(database, task_id)  # raises an error if the task was deleted
    there, waiting = Counter(), {}
    for trial in rows.read_trials(database, "task_id = ?", task_id):
        text = rows.params_text(trial.params)
        if trial.state != "pending":
            there[text, trial.score] += 1
        elif trial.owner is None and trial.written is None:
            waiting.setdefault(text, trial)
    new, num_told = [], 0
    for params, score in pairs:
        text = rows.params_text(params)
        if there[text, score] > 0:
            there[text, score] -= 1
        elif text in waiting:
            rows.finish_trial(database, rows.ended(waiting.pop(text), score), utc_now())
            num_told += 1
        else:
            new.append((params, score))
    return num_told + len(insert(database, task_id, new))


def add_results(memory: Writable, task_id: int, pairs: Sequence[Pair]) -> int:
    """Add results to a task, all or none, and return the number of new ones; see `insert_new`.

    **Raises:**

    - `TrialStateError`: there is no such task.
    """
    with memory.writing() as database:
        return insert_new(database, task_id, pairs)


def add_task(memory: Writable, name: str, pairs: Sequence[Pair]) -> None:
    """Add a task with its finished trials; if the process ends meanwhile, there is no task.

    **Raises:**

    - `ValueError`: the name is not valid, or the memory has a task of this name.
    """
    new = TaskRecord(0, task_name(name), None, "added", 0, utc_now())
    with memory.writing() as database:
        if rows.find_task(database, name) is not None:
            fail("name", "the name of a task that is not in the memory yet", repr(name))
        insert(database, rows.insert_task(database, new), pairs)


def enqueue(memory: Writable, task_id: int, params: Mapping[str, Any], *, repeat: bool = False) -> bool:
    """Add a pending trial without an owner; return False if the task has one of this configuration.

    **Arguments:**

    - `memory`: the memory.
    - `task_id`: the id of the task.
    - `params`: the configuration.
    - `repeat`: add it also if a finished trial has this configuration.

    **Raises:**

    - `ValueError`: `params` is not a configuration of the space.
    - `TrialStateError`: there is no such task.
    """
    checked = memory.space.validate(params)
    with memory.writing() as database:
        _, number = rows.count_trials(database, task_id)
        # All trials are read: a file may write equal parameters differently.
        for trial in rows.read_trials(database, "task_id = ?", task_id):
            is_in_the_way = trial.state == "pending" or not repeat
            if is_in_the_way and rows.params_text(trial.params) == rows.params_text(checked):
                return False
        trial = pending_trial(task_id, number, checked)
        rows.insert_trial(database, trial)
        return True
