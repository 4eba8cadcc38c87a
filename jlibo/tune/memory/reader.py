"""The reading methods of `Memory`. Internal."""

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager

from jlibo.federated.messages import Announcement, Vote
from jlibo.tune.memory import changes as changes
from jlibo.tune.memory import federation as federation
from jlibo.tune.memory import reports as reports
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.records import DamagedRow, TaskRecord, TrialRecord


class AbstractMemoryReader(abc.ABC):
    """Read access to tasks and trials, by transactions that a subclass opens."""

    @abc.abstractmethod
    def reading(self) -> AbstractContextManager[rows.MemoryConnection]:
        """Return a read transaction: everything read inside is from one moment."""

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks, in the order in which they were created."""
        with self.reading() as database:
            return rows.read_tasks(database)

    def trials(self, task_id: int) -> list[TrialRecord]:
        """Return the trials of a task, ordered by number."""
        with self.reading() as database:
            return rows.read_trials(database, "task_id = ?", task_id)

    def trial(self, trial_id: int) -> TrialRecord:
        """Return the trial with this id.

        **Raises:**

        - `TrialStateError`: there is no trial with this id.
        """
        with self.reading() as database:
            return rows.read_trial(database, trial_id)

    def changed_trials(self, task_id: int, *, after: int, pending: Sequence[int]) -> list[TrialRecord] | None:
        """Return the trials of a task that are new or newly finished, by number.

        Apart from that, only the owner of a trial changes. The cost does not depend on the number of trials
        that the caller already knows.

        **Arguments:**

        - `task_id`: the id of the task.
        - `after`: the largest trial id that the caller knows. Trials with a larger id are returned.
        - `pending`: the ids of the trials that were pending at the last call. Those that have finished since
          are returned.

        **Returns:**

        A list of trials; None if there is no such task.
        """
        with self.reading() as database:
            return changes.changed_trials(database, task_id, after, pending)

    def score_counts(self, *, excluding: int | None = None) -> dict[int, int]:
        """Return the number of scores by task id, for the tasks that have any, except `excluding`."""
        with self.reading() as database:
            return changes.score_counts(database, excluding)

    def curve(self, trial_id: int) -> dict[int, float | None]:
        """Return the reports of a trial, by step; None for a score that was not finite."""
        with self.reading() as database:
            return reports.read_curves(database, "id = ?", trial_id).get(trial_id, {})

    def curves(self, task_id: int | None = None) -> dict[int, dict[int, float | None]]:
        """Return the reports by trial id, for the trials that have any: of a task, or of all tasks."""
        where, values = ("TRUE", ()) if task_id is None else ("task_id = ?", (task_id,))
        with self.reading() as database:
            return reports.read_curves(database, where, *values)

    def published(self) -> Announcement | None:
        """Return what the server of a federated run announced last; None before the first announcement."""
        with self.reading() as database:
            return federation.read_published(database)

    def votes(self) -> dict[int, tuple[Vote, int]]:
        """Return the votes of a federated run by id of the task, each with 1 if the server has it, else 0."""
        with self.reading() as database:
            return federation.votes_of(database)

    def all_trials(self) -> list[TrialRecord]:
        """Return the trials of all tasks, ordered by task and number."""
        with self.reading() as database:
            return rows.read_trials(database)

    def snapshot(self) -> tuple[list[TaskRecord], list[TrialRecord]]:
        """Return all tasks and all trials, read in one transaction."""
        with self.reading() as database:
            tasks, trials = rows.read_tasks(database), rows.read_trials(database)
            ids = {task.id for task in tasks}
            for trial in trials:
                if trial.task_id not in ids:  # another program may have written without foreign key checks
                    raise DamagedRow(f"trial {trial.id}: its task is missing")
            return tasks, trials

    def revision(self, *, excluding: int | None = None) -> int:
        """Return a counter that grows when a trial finishes or a task is deleted, and at no other time.

        A result learned from the trials stays valid while the counter is the same. Read the counter before
        the trials.

        **Arguments:**

        - `excluding`: the id of a task whose changes do not count, for results learned from the other tasks.
        """
        with self.reading() as database:
            return rows.revision(database, excluding)
