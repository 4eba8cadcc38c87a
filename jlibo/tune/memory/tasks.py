"""The methods of `Memory` that create, rename and delete tasks. Internal."""

from collections.abc import Iterable
from dataclasses import replace

from jlibo.checks import did_you_mean, fail
from jlibo.front_door import front_door
from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.records import Source, TaskRecord, TrialStateError, task_name, utc_now, whole
from jlibo.tune.memory.writer import AbstractMemoryWriter


class AbstractMemoryTasks(AbstractMemoryWriter):
    """Write access to tasks, by transactions that a subclass opens."""

    def task(
        self, name: str, *, budget: int | None = None, source: Source = "tuner", seed: int = 0
    ) -> TaskRecord:
        """Return the task with this name, which is created if it does not exist.

        **Arguments:**

        - `name`: the name of the task, not empty, at most 4096 characters.
        - `budget`: the number of trials; replaces the stored one. None keeps it.
        - `source`: `"tuner"`, or `"added"` for results from elsewhere. An existing task keeps its source.
        - `seed`: the seed of the task. An existing task keeps its seed.

        **Returns:**

        The `TaskRecord` of the task, with the fields `id`, `name`, `budget`, `source`, `seed` and `created`.

        **Raises:**

        - `ValueError`: an argument has the wrong type or is out of range.
        """
        budget = None if budget is None else whole("budget", budget, at_least=1)
        if source not in ("tuner", "added"):
            raise ValueError(f"`source` should be 'tuner' or 'added', but got {source!r}.")
        new = TaskRecord(0, task_name(name), budget, source, whole("seed", seed, at_least=0), utc_now())
        with self.reading() as database:
            task = rows.find_task(database, name)
        if task is not None and budget in (None, task.budget):
            return task
        with self.writing() as database:
            task = rows.find_task(database, name)  # again: another process may have created it meanwhile
            if task is None:
                return replace(new, id=rows.insert_task(database, new))
            rows.update_task(database, task.id, budget=budget or task.budget)
            return replace(task, budget=budget or task.budget)

    @front_door
    def delete_task(self, name: str) -> None:
        """Delete a task and its trials. A process that still works on it gets an error at its next `tell`.

        **Raises:**

        - `TrialStateError`: there is no task with this name.
        """
        self.delete_tasks([name])

    @front_door
    def delete_tasks(self, names: Iterable[str]) -> dict[str, int]:
        """Delete tasks and their trials, all or none, and return the numbers of trials by name.

        **Raises:**

        - `TrialStateError`: there is no task with one of the names. Nothing is deleted.
        """
        counts = {}
        with self.writing() as database:
            for name in dict.fromkeys(names):
                task = _existing(database, name)
                counts[name], _ = rows.count_trials(database, task.id)
                rows.delete_task(database, task.id)
        return counts

    @front_door
    def rename_task(self, old: str, new: str) -> None:
        """Give a task another name. Its trials, and what is learned from them, stay the same.

        **Raises:**

        - `TrialStateError`: there is no task `old`.
        - `ValueError`: `new` is not a valid name, or the name of another task.
        """
        name = task_name(new)
        with self.writing() as database:
            task = _existing(database, old)
            if old != name and rows.find_task(database, name) is not None:
                fail("new", "a name that no other task has", repr(printable(name)))
            rows.update_task(database, task.id, name=name)


def _existing(database: rows.MemoryConnection, name: str) -> TaskRecord:
    task = rows.find_task(database, name)
    if task is None:
        hint = did_you_mean(name, [one.name for one in rows.read_tasks(database)])
        raise TrialStateError(f"there is no task '{printable(name)}' in the memory{printable(hint)}.")
    return task
