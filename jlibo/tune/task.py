"""A task of a tuner: `ask` returns the next trial, `tell` stores its score.

A trial is stored as pending before `ask` returns it, and its score before `tell` returns. If the process
ends in between, `ask` returns the pending trials again, before any new one.

A configuration is chosen given the trials that were read, and reserved in the transaction that adds its
trial. If another process has added the same configuration meanwhile, the next free one of the ranking is
reserved. Threads and processes that share a task therefore try a configuration twice only if no other is
left.
"""

import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, final, overload

import jax
import numpy as np

from jlibo.checks import check_count, fail
from jlibo.front_door import front_door
from jlibo.tune import keys
from jlibo.tune.ask import Candidates, NextConfig, next_config, prepare_next
from jlibo.tune.curves.reporting import Reporting
from jlibo.tune.curves.rule import MedianRule
from jlibo.tune.history import TaskHistory
from jlibo.tune.loop.task_loop import AbstractTaskLoop, LoopTask
from jlibo.tune.memory.errors import MemoryFileError
from jlibo.tune.memory.memory import new_owner
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.process import check_process
from jlibo.tune.stopping import ExpectedGainBelow
from jlibo.tune.summary import best_first
from jlibo.tune.task_outlook import AbstractTaskOutlook
from jlibo.tune.task_results import AbstractTaskResults
from jlibo.tune.trial import Trial, as_trial

if TYPE_CHECKING:
    from jlibo.tune.tuner import Tuner

MAX_RACES = 20
"""How often a suggestion is recomputed because other processes added trials meanwhile. After that, the best
configuration of the ranking that is still free is used, without conditioning on the new trials."""


class UntoldTrialsWarning(UserWarning):
    """A loop over a task ended while some of its trials had no score."""


@final
class TunerTask(AbstractTaskResults, AbstractTaskOutlook, AbstractTaskLoop):
    """A task of a tuner, created by `Tuner.task`: `optimise`, iterate over its trials, or `ask` and `tell`.

    Threads may share a task. As a context manager, it releases its pending trials at the end, so that `ask`
    returns them again later.

    - `name`: the name of the task.
    - `budget`: the number of trials after which iteration ends.
    - `stop_when`: the rule by which iteration ends earlier; None if there is none.
    - `stop_trials`: the rule by which trials are stopped early; None if there is none.

    ```python
    import jlibo

    tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)))
    with tuner.task("parabola", budget=5) as task:
        for trial in task:
            task.tell(trial, -((trial.params["x"] - 0.3) ** 2))
    assert len(task.trials) == 5
    print(task.best.params)
    ```
    """

    def __init__(
        self,
        tuner: "Tuner",
        record: TaskRecord,
        budget: int,
        stop_when: ExpectedGainBelow | None = None,
        stop_trials: MedianRule | None = None,
    ):
        self._tuner = tuner
        self._record = record
        self.name = record.name
        self.budget = budget
        self.stop_when = stop_when
        self.stop_trials = stop_trials
        self._owner = new_owner()
        self._own_ids: set[int] = set()
        self._number = [task.id for task in tuner.memory.tasks()].index(record.id)
        self._lock = threading.Lock()
        self._model = tuner.model
        self._history = TaskHistory(tuner.memory, record.id, tuner.space, self._model.features)
        self._candidates = Candidates(self._model, seed=(tuner.seed, self._number))
        self._policy_keys: np.ndarray | None = None
        self._reports = Reporting(tuner.memory, record.id, stop_trials)
        self._has_warned = False
        self._is_prepared = False

    def __enter__(self) -> "TunerTask":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        num_left = self._tuner.memory.release(self._owner)
        if kind is None and num_left == len(self._own_ids) > 1:
            self._warn_untold(num_left, num_left, "its `with` block ends")

    def __repr__(self) -> str:
        done, best = len(self.trials), self.best
        words = "no score yet" if best is None else f"best {best.score:.6g}"
        return f"TunerTask({self.name!r}, {done} of {self.budget} trials done, {words})"

    def __iter__(self) -> Iterator[Trial]:
        """Iterate over trials until the budget is spent or the stop rule is met.

        Trials that were left pending come first, whatever the rule says, and count towards the budget. Warns
        with `UntoldTrialsWarning` if any trial of this loop has no score when the loop ends; after a `break`,
        the last trial may have none.
        """
        check_process("iterating over a task")
        given: list[int] = []
        try:
            while isinstance(trial := self._next(self.budget), Trial):
                given.append(trial.id)
                yield trial
        except GeneratorExit:
            num_untold = self._num_untold(given[:-1])
            if num_untold:
                self._warn_untold(num_untold, len(given), "it was left")
            raise
        num_untold = self._num_untold(given)
        if num_untold:
            self._warn_untold(num_untold, len(given), trial)

    def next_trial(self) -> Trial | None:
        """Return the next trial of a loop, or None if the budget is spent or the stop rule is met.

        For loops that run several trials at once; otherwise iterate over the task. After None, a later call
        may return a trial again, if another process left one.

        **Raises:**

        - `ForkedProcessError`: jax was used in a parent process before the fork.
        """
        check_process("next_trial")
        trial = self._next(self.budget)
        return trial if isinstance(trial, Trial) else None

    def _next(self, most: int | None) -> Trial | str:
        """Return the next trial of a loop, or the reason why it ends. `most` is the number of trials."""
        trial = self._claim()
        if trial is not None:
            return trial
        spent = f"its budget of {most} trials is spent"
        with self._lock:
            history = self._trials()
            if most is not None and len(history) >= history.limit(most):
                return spent
        if self._is_rule_met():
            return "its stop rule is met"
        return self._suggest(most) or spent

    def _num_untold(self, given: list[int]) -> int:
        """Return how many of these trials are pending; 0 if that cannot be known now."""
        # A generator may be closed at any moment, even while this thread holds the lock.
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return len(self._trials().pending_ids.intersection(given))
        except MemoryFileError:  # the memory is closed
            return 0
        finally:
            self._lock.release()

    def _warn_untold(self, num_untold: int, num_given: int, why: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"the loop over task {self.name!r} ends because {why}, "
            f"but {num_untold} of its {num_given} trials were never told a score: call "
            "task.tell(trial, score), or task.fail(trial), for every trial.",
            UntoldTrialsWarning,
            stacklevel=3,
        )

    @overload
    def ask(self, n: None = None) -> Trial: ...

    @overload
    def ask(self, n: int) -> list[Trial]: ...

    def ask(self, n: int | None = None) -> Trial | list[Trial]:
        """Return the next trial, or a list of `n` different trials to be evaluated in parallel.

        Trials in the queue (`enqueue`), and those that an ended process left pending, come first, by number.
        The budget does not limit the number of calls.
        Once every configuration has been tried, those that did not fail are returned again.

        **Arguments:**

        - `n`: the number of trials; None for a single one.

        **Returns:**

        A `Trial`, or a list of `n` trials if `n` is given.

        **Raises:**

        - `ValueError`: `n` is not a positive whole number.
        - `ForkedProcessError`: jax was used in a parent process before the fork.
        """
        check_process("ask")
        if n is None:
            return self._ask_one()
        check_count("n", n)
        return [self._ask_one() for _ in range(n)]

    def tell(self, trial: Trial, score: float | None) -> None:
        """Store the score of a trial. It is on the disk when this returns.

        Telling the same score again has no effect.

        **Arguments:**

        - `trial`: a trial of this task.
        - `score`: its score; None, NaN or infinite if the trial failed.

        **Raises:**

        - `TrialStateError`: the trial has finished with another result.
        - `ValueError`: `trial` is not a trial of this task, or `score` is not a number.
        """
        self._check(trial)
        self._tuner.memory.tell(trial.id, score)

    @front_door
    def fail(self, trial: Trial, error: str | None = None) -> None:
        """Mark a trial as failed. It is stored and not repeated, but the model is not conditioned on it.

        **Arguments:**

        - `trial`: a trial of this task.
        - `error`: why it failed, for the user to read; at most 2,000 characters are kept.
        """
        self._check(trial)
        self._tuner.memory.fail(trial.id, error)

    def stop(self, trial: Trial) -> None:
        """Mark a trial as stopped early, given the scores that it reported.

        It has no score, is never `best` and is not repeated. The model is given an estimate of its final
        score: that of the complete trials with the same standing at its last step, at most their median.

        **Raises:**

        - `TrialStateError`: the trial is finished.
        - `ValueError`: `trial` is not a trial of this task.
        """
        self._check(trial)
        self._tuner.memory.stop(trial.id, self._reports.estimate(trial))

    def release(self, trial: Trial) -> None:
        """Put a trial back that `ask` returned and that has no score. The next `ask` returns it again."""
        self._check(trial)
        self._tuner.memory.release(self._owner, [trial.id])

    def curve(self, trial: Trial) -> dict[int, float | None]:
        """Return the scores that a trial reported, by step; None for one that was not finite."""
        self._check(trial)
        return self._tuner.memory.curve(trial.id)

    @property
    def trials(self) -> list[Trial]:
        """All finished trials by number; the score of one that failed or was stopped is None.

        A trial that does not fit into the search space of the tuner has the parameters that it had.
        """
        records = self._tuner.memory.trials(self._record.id)
        return [as_trial(record) for record in records if record.state != "pending"]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score of those that fit into the search space; None before the first."""
        records = self._tuner.memory.trials(self._record.id)
        first = next(iter(best_first(records, maximise=self._tuner.maximise)), None)
        return None if first is None else as_trial(first)

    def _loop_task(self) -> LoopTask:
        memory = self._tuner.memory
        parts = (self._record.id, self._tuner.space, memory, self._owner, self._reports, self._next)
        return LoopTask(self, *parts)

    # --- choosing a trial -----------------------------------------------------------------------------------

    def _ask_one(self) -> Trial:
        trial = self._claim() or self._suggest()
        assert trial is not None  # without a limit there is always one
        return trial

    def _suggest(self, most: int | None = None) -> Trial | None:
        """Add a new trial to the memory and return it; None if the task has `most` trials already."""
        with self._lock:
            for race in itertools.count():
                history = self._trials()
                limit = None if most is None else history.limit(most)
                if limit is not None and len(history) >= limit:
                    return None
                chosen = self._next_config(history)
                record = self._tuner.memory.add_trial(
                    self._record.id,
                    chosen.params,
                    explored=chosen.is_forced,
                    owner=self._owner,
                    expected_count=len(history) if race < MAX_RACES else None,
                    most=limit,
                    # Once every configuration was tried, two processes may repeat the same one.
                    after=None if chosen.is_repeat else history.last_id,
                    others=chosen.others,
                )
                if record is not None:
                    return self._own(record)
        raise AssertionError("unreachable")

    def _next_config(self, history: TaskHistory) -> NextConfig:
        if not self._is_prepared:
            self._is_prepared = True
            self._tuner._prepare(self._record.id)
            prepare_next(self._tuner.model, budget=self.budget, num_trials=len(history.trials))
        learned = self._tuner.knowledge(excluding=self._record.id)
        return next_config(
            self._tuner.model,  # read after `knowledge`, which takes over what a server announced
            learned,
            history,
            candidates=self._candidates,
            budget=self.budget,
            key=self._policy_key(len(history)),
        )

    def _claim(self) -> Trial | None:
        """Claim a pending trial whose owner has ended or released it; None if there is none."""
        with self._lock:
            pending = sorted(self._trials().pending_ids)
        if not pending:
            return None
        memory = self._tuner.memory
        record = memory.claim_pending(self._record.id, owner=self._owner, among=pending)
        return None if record is None else self._own(record)

    def _own(self, record: TrialRecord) -> Trial:
        """Return the trial, and note its id so that `tell` need not look it up in the file."""
        self._own_ids.add(record.id)
        return as_trial(record, self._reports)

    def _policy_key(self, number: int) -> jax.Array:
        """Return the policy's key for trial `number`; the keys of a task are split once."""
        if self._policy_keys is None or number >= len(self._policy_keys):
            self._policy_keys = keys.policy_keys(self._candidates.key, max(self.budget, 2 * number))
        return jax.random.wrap_key_data(self._policy_keys[number])

    def _trials(self) -> TaskHistory:
        self._history.refresh()
        return self._history

    def _check(self, trial: Trial) -> None:
        if not isinstance(trial, Trial):
            fail("trial", "a Trial that `ask` returned", f"{trial!r} ({type(trial).__name__})")
        if trial.id in self._own_ids:
            return
        # The trial may come from another `TunerTask` of the same task.
        if self._tuner.memory.trial(trial.id).task_id != self._record.id:
            fail("trial", f"a trial of the task {self.name!r}", f"trial {trial.number} of another task")
