"""Merging memories: all tasks and trials of one are added to another. Internal; see `Memory.merge`.

| here          | what it is                                                                             |
|---------------|----------------------------------------------------------------------------------------|
| `merge_into`  | add memories to another one, in one transaction                                        |
| `MergeReport` | what was added; public                                                                 |

Two tasks of one name are the same task if they were created at the same moment: then one memory is a copy of
the other, and both have gone on. They are always joined. A trial of a joined task is there already if the
task has a trial with the same configuration, state and score; each of these stands for one. A trial that is
pending here and finished there, from the time before the copy, gets its score, unless a process is working on
it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, final, get_args

from jlibo.checks import fail
from jlibo.federated.messages import Vote
from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.errors import MemoryMismatch
from jlibo.tune.memory.federation import copy_vote
from jlibo.tune.memory.owner import owner_is_dead
from jlibo.tune.memory.records import TaskRecord, TrialRecord, free_name, seconds_since
from jlibo.tune.memory.reports import Curve, write_curve
from jlibo.tune.memory.spaces import remember
from jlibo.tune.space.space import SearchSpace

if TYPE_CHECKING:
    from jlibo.tune.memory.memory import Memory

OnConflict = Literal["error", "join", "rename", "skip"]


@final
@dataclass(frozen=True)
class MergeReport:
    """What `Memory.merge` added.

    - `num_tasks`, `num_trials`: the numbers of new tasks, and of trials that are new or have their score now.
    - `num_there`: the number of trials that were there already.
    - `joined`: the names of tasks whose trials were added to those of a task of the same name.
    - `renamed`: the new names of tasks, by their names in the other memory.
    - `skipped`: the names of tasks that were left out.
    """

    num_tasks: int = 0
    num_trials: int = 0
    num_there: int = 0
    joined: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


@final
class _Contents(NamedTuple):
    """All of a memory, as of one moment."""

    tasks: Sequence[TaskRecord]
    trials: Sequence[TrialRecord]
    curves: Mapping[int, Curve]
    spaces: Sequence[SearchSpace]
    votes: Mapping[int, tuple[Vote, int]]


def merge_into(memory: "Memory", others: Sequence["Memory"], *, on_conflict: OnConflict) -> list[MergeReport]:
    """Add all tasks and trials of the others to `memory`, all or none; see `Memory.merge`."""
    if on_conflict not in get_args(OnConflict):
        fail("on_conflict", "'error', 'join', 'rename' or 'skip'", repr(on_conflict))
    contents = []
    for other in others:
        if other.is_same_file(memory):
            fail("other", "another memory", "this one")
        tasks, trials = other.snapshot()
        # Reports and spaces are read later. There may be more of them by then, but not fewer.
        contents.append(_Contents(tasks, trials, other.curves(), other.spaces, other.votes()))
        _check_related(memory, contents[-1], other)
    with memory.writing() as database:
        return [_write(database, one, on_conflict) for one in contents]


def _write(database: rows.MemoryConnection, other: _Contents, on_conflict: OnConflict) -> MergeReport:
    known = {task.name: task for task in rows.read_tasks(database)}
    report = _plan(other.tasks, known, on_conflict)
    remember(database, other.spaces)
    by_task: dict[int, list[TrialRecord]] = {task.id: [] for task in other.tasks}
    for trial in other.trials:
        by_task[trial.task_id].append(trial)
    num_tasks = num_trials = num_there = 0
    for task in other.tasks:
        if task.name in report.skipped:
            continue
        own, is_joined = by_task[task.id], task.name in report.joined
        if is_joined:
            num_new = _join(database, known[task.name].id, own, other.curves)
        else:
            named = replace(task, name=report.renamed.get(task.name, task.name))
            num_new = _add(database, named, own, other.curves)
        merged = rows.find_task(database, report.renamed.get(task.name, task.name))
        if merged is not None:
            copy_vote(database, merged.id, other.votes.get(task.id))
        num_tasks += not is_joined
        num_trials += num_new
        num_there += len(own) - num_new
    return replace(report, num_tasks=num_tasks, num_trials=num_trials, num_there=num_there)


def _check_related(memory: "Memory", contents: _Contents, other: "Memory") -> None:
    places = f"'{printable(memory.path)}' and '{printable(other.path)}'"
    if memory.maximise != other.maximise:
        words = ("maximises", "minimises") if memory.maximise else ("minimises", "maximises")
        raise MemoryMismatch(f"{places} cannot be merged: the first {words[0]} and the second {words[1]}.")
    if contents.trials and not any(set(memory.space) & set(space) for space in contents.spaces):
        raise MemoryMismatch(f"{places} cannot be merged: their search spaces have no common parameter.")


def _plan(
    tasks: Sequence[TaskRecord], known: Mapping[str, TaskRecord], on_conflict: OnConflict
) -> MergeReport:
    """Return which tasks are joined, renamed or skipped."""
    same = [task.name for task in tasks if task.name in known and known[task.name].created == task.created]
    others = [task.name for task in tasks if task.name in known and task.name not in same]
    if on_conflict == "join" or not others:
        return MergeReport(joined=(*same, *others))
    if on_conflict == "skip":
        return MergeReport(joined=tuple(same), skipped=tuple(others))
    if on_conflict == "rename":
        taken, renamed = {*known, *(task.name for task in tasks)}, {}
        for name in others:
            renamed[name] = free_name(name, taken)
            taken.add(renamed[name])
        return MergeReport(joined=tuple(same), renamed=renamed)
    names = ", ".join(f"'{printable(name)}'" for name in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    raise ValueError(
        f"both memories have a task {names}{more}: choose with `on_conflict` whether to 'join' such tasks, "
        "to 'rename' those of the other memory, or to 'skip' them. Nothing was merged."
    )


def _add(
    database: rows.MemoryConnection,
    task: TaskRecord,
    trials: Sequence[TrialRecord],
    curves: Mapping[int, Curve],
) -> int:
    """Add a task with its trials, which keep their numbers; return the number of trials."""
    task_id = rows.insert_task(database, task)
    for trial in trials:
        trial_id = rows.insert_trial(database, replace(trial, task_id=task_id, owner=None))
        write_curve(database, trial_id, curves.get(trial.id, {}))
    if any(trial.state != "pending" for trial in trials):
        rows.note_change(database, task_id)
    return len(trials)


def _join(
    database: rows.MemoryConnection,
    task_id: int,
    trials: Sequence[TrialRecord],
    curves: Mapping[int, Curve],
) -> int:
    """Add the trials that a task does not have, after its own; return their number."""
    own = rows.read_trials(database, "task_id = ?", task_id)
    there = Counter(map(_content, own))
    waiting = {_origin(trial): trial for trial in own if _is_waiting(trial)}
    origins = set(map(_origin, own))
    _, number = rows.count_trials(database, task_id)
    num_new = 0
    for trial in trials:
        if there[_content(trial)] > 0:
            there[_content(trial)] -= 1
        elif trial.state == "pending" and _origin(trial) in origins:
            continue  # it is finished here
        elif trial.finished is not None and _origin(trial) in waiting:
            own_id = waiting.pop(_origin(trial)).id
            rows.finish_trial(database, replace(trial, id=own_id, task_id=task_id), trial.finished)
            write_curve(database, own_id, curves.get(trial.id, {}))
            num_new += 1
        else:
            copied = replace(trial, task_id=task_id, number=number, owner=None)
            write_curve(database, rows.insert_trial(database, copied), curves.get(trial.id, {}))
            number += 1
            num_new += 1
    if num_new:
        rows.note_change(database, task_id)
    return num_new


def _content(trial: TrialRecord) -> tuple[str, str, float | None]:
    return rows.params_text(trial.as_written), trial.state, trial.score


def _origin(trial: TrialRecord) -> tuple[str, str]:
    """Return what a trial has in common with the one that it was, or that was, a copy of it."""
    return rows.params_text(trial.as_written), trial.created


def _is_waiting(trial: TrialRecord) -> bool:
    """Return whether a trial is pending and no process works on it."""
    if trial.state != "pending":
        return False
    return trial.owner is None or owner_is_dead(trial.owner, seconds_since(trial.created))
