"""The reports of the running trials of a task: stored in the memory, and judged by the rule. Internal.

The curves of the task's complete trials are read again when a trial has finished. Those of past tasks are
read once, when the first trial is judged.
"""

import threading
from functools import cached_property
from typing import final

import numpy as np

from jlibo.tune.curves.curves import TaskCurves, estimated_final
from jlibo.tune.curves.rule import MedianRule
from jlibo.tune.memory.memory import Memory
from jlibo.tune.memory.records import TrialRecord, finite_score
from jlibo.tune.trial import Trial

MOST_TASKS = 64
"""Largest number of past tasks with reports whose curves are used, the latest ones."""


@final
class Reporting:
    """Stores reports of the trials of a task and says which trials should stop. Threads may share it.

    **Arguments:**

    - `memory`: the memory.
    - `task_id`: the id of the task.
    - `rule`: the rule; None if no trial is to be stopped.
    """

    def __init__(self, memory: Memory, task_id: int, rule: MedianRule | None):
        self._memory = memory
        self._task_id = task_id
        self._rule = rule
        self._lock = threading.Lock()
        self._last: dict[int, tuple[int, float | None]] = {}
        self._verdicts: dict[int, bool] = {}  # of the last report, if it was asked for
        self._revision: int | None = None
        self._own = TaskCurves.of([], [], maximise=memory.maximise)
        self._finals: list[float] = []

    def report(self, trial: Trial, step: int, score: float) -> None:
        """Store a report. It is on the disk when this returns."""
        self._memory.report(trial.id, step, score)
        with self._lock:
            self._last[trial.id] = int(step), finite_score(score)
            self._verdicts.pop(trial.id, None)

    def should_stop(self, trial: Trial) -> bool:
        """Return whether a trial should stop, given its last report; False before its first."""
        with self._lock:
            if self._rule is None or trial.id not in self._last:
                return False
            if trial.id not in self._verdicts:
                step, score = self._last[trial.id]
                value = self._signed(score)
                self._refresh()
                verdict = self._rule.says_stop(trial.number, step, value, self._own, self._past)
                self._verdicts[trial.id] = verdict
            return self._verdicts[trial.id]

    def was_told_to_stop(self, trial: Trial) -> bool:
        """Return whether `should_stop` was true for the last report of a trial."""
        with self._lock:
            return self._verdicts.get(trial.id, False)

    def estimate(self, trial: Trial) -> float | None:
        """Return the score that a trial would probably have had, given its last report."""
        with self._lock:
            last = self._last.get(trial.id)
            if last is None:  # reported by another object or process
                curve = self._memory.curve(trial.id)
                if not curve:
                    return None
                last = max(curve), curve[max(curve)]
            self._refresh()
            return estimated_final(*last, self._own, self._finals, maximise=self._memory.maximise)

    def _refresh(self) -> None:
        revision = self._memory.revision()  # read before the trials, so that no change is missed
        if revision != self._revision:
            self._own, self._finals = self._curves_of(self._task_id)
            self._revision = revision

    @cached_property
    def _past(self) -> list[TaskCurves]:
        found = []
        for task in reversed(self._memory.tasks()):
            if task.id != self._task_id and len(found) < MOST_TASKS:
                curves, _ = self._curves_of(task.id)
                if len(curves.steps):
                    found.append(curves)
        return found

    def _curves_of(self, task_id: int) -> tuple[TaskCurves, list[float]]:
        """Return the curves of the complete trials of a task, and the scores of all complete trials."""
        maximise = self._memory.maximise
        curves = self._memory.curves(task_id)
        if not curves and task_id != self._task_id:
            return TaskCurves.of([], [], maximise=maximise), []
        complete = [trial for trial in self._memory.trials(task_id) if trial.score is not None]
        with_curve: list[TrialRecord] = [trial for trial in complete if trial.id in curves]
        finals = [trial.score for trial in with_curve if trial.score is not None]
        own = TaskCurves.of([curves[trial.id] for trial in with_curve], finals, maximise=maximise)
        return own, [trial.score for trial in complete if trial.score is not None]

    def _signed(self, score: float | None) -> float:
        return -np.inf if score is None else score if self._memory.maximise else -score
