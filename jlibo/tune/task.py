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
from jlibo.lifelong.one_task import split_task_key
from jlibo.tune.ask import Candidates, NextConfig, next_config
from jlibo.tune.explain import NUM_AHEAD, Forecast, Setting, explain_task, forecast, past_of
from jlibo.tune.explanation import Explanation, Recommendation
from jlibo.tune.history import TaskHistory
from jlibo.tune.memory.memory import new_owner
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.process import check_process
from jlibo.tune.stopping import ExpectedGainBelow
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
class TunerTask(AbstractTaskResults):
    """A task of a tuner, created by `Tuner.task`: iterate over its trials, or call `ask` and `tell`.

    Threads may share a task. As a context manager, it releases its pending trials at the end, so that `ask`
    returns them again later.

    - `name`: the name of the task.
    - `budget`: the number of trials after which iteration ends.
    - `stop_when`: the rule by which iteration ends earlier; None if there is none.

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
    ):
        self._tuner = tuner
        self._record = record
        self.name = record.name
        self.budget = budget
        self.stop_when = stop_when
        self._owner = new_owner()
        self._own_ids: set[int] = set()
        self._number = [task.id for task in tuner.memory.tasks()].index(record.id)
        self._lock = threading.Lock()
        self._model = tuner.model
        self._history = TaskHistory(tuner.memory, record.id, tuner.space, self._model.features)
        self._candidates = Candidates(self._model, seed=(tuner.seed, self._number))
        self._policy_keys: np.ndarray | None = None

    def __enter__(self) -> "TunerTask":
        return self

    def __exit__(self, *_: object) -> None:
        self._tuner.memory.release(self._owner)

    def __repr__(self) -> str:
        done, best = len(self.trials), self.best
        words = "no score yet" if best is None else f"best {best.score:.6g}"
        return f"TunerTask({self.name!r}, {done} of {self.budget} trials done, {words})"

    def __iter__(self) -> Iterator[Trial]:
        """Iterate over trials until the budget is spent or the stop rule is met.

        Trials that were left pending come first, whatever the rule says, and count towards the budget. Warns
        with `UntoldTrialsWarning` if any trial of this loop has no score when the loop ends.
        """
        check_process("iterating over a task")
        given = set()
        why = f"its budget of {self.budget} trials is spent"
        while True:
            trial = self._claim()
            if trial is None and self._is_rule_met():
                why = "its stop rule is met"
                break
            trial = trial or self._suggest(self.budget)
            if trial is None:
                break
            given.add(trial.id)
            yield trial
        untold = given & self._history.pending_ids
        if untold:
            warnings.warn(
                f"the loop over task {self.name!r} ends because {why}, "
                f"but {len(untold)} of its {len(given)} trials were never told a score: call "
                "task.tell(trial, score), or task.fail(trial), for every trial.",
                UntoldTrialsWarning,
                stacklevel=2,
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
            return self._next()
        check_count("n", n)
        return [self._next() for _ in range(n)]

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

    def fail(self, trial: Trial) -> None:
        """Mark a trial as failed. It is stored and not repeated, but the model is not conditioned on it."""
        self._check(trial)
        self._tuner.memory.fail(trial.id)

    @property
    def trials(self) -> list[Trial]:
        """All finished trials by number; the score of a failed one is None."""
        records = self._tuner.memory.trials(self._record.id)
        return [as_trial(record) for record in records if record.state != "pending"]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; None before the first score."""
        scored = [trial for trial in self.trials if trial.score is not None]
        sign = 1 if self._tuner.maximise else -1
        return max(scored, key=lambda trial: sign * (trial.score or 0.0), default=None)

    # --- what the model expects -----------------------------------------------------------------------------

    @property
    def recommended(self) -> Recommendation | None:
        """The trial that the model expects to be the best, and its expected score; None before any score.

        With noisy scores of a smooth function it is a better choice than `best`, on average. Without noise,
        use `best`.
        """
        with self._lock:
            now = self._forecast()
            if now is None:
                return None
            return Recommendation(self._trial_at(now.place), now.expected_score, now.std)

    @property
    def expected_gain(self) -> float | None:
        """The expected gain of one more trial, in the units of the scores.

        This is how much better than the recommended trial x* the most promising configuration x is expected
        to be: E[max(f(x) - f(x*), 0)], with f the score without noise. None before the first score, and
        without a past also until two scores differ, because the scale of the scores is then unknown.
        """
        with self._lock:
            now = self._forecast()
        return None if now is None else now.gain

    @property
    def should_stop(self) -> bool:
        """Whether a loop over the task would end now: the budget is spent or the stop rule is met.

        It does not limit `ask`.
        """
        with self._lock:
            is_spent = len(self._trials()) >= self.budget
        return is_spent or self._is_rule_met()

    def explain(self, num_trials: int = NUM_AHEAD) -> Explanation:
        """Return what the model thinks of the task by now; print it for a summary.

        It says how much the past is trusted, which past tasks are similar, which parameters matter here, and
        how much the next trials are expected to gain. Nothing is computed unless this is called.

        **Arguments:**

        - `num_trials`: the largest number of further trials whose gain is estimated.

        **Returns:**

        An `Explanation`.

        **Raises:**

        - `ValueError`: `num_trials` is not a positive whole number.
        - `ForkedProcessError`: jax was used in a parent process before the fork.
        """
        check_count("num_trials", num_trials)
        check_process("explain")
        tuner, own = self._tuner, self._record.id
        with self._lock:
            setting = self._setting()
            tasks, trials = tuner.memory.snapshot()
            others = [task for task in tasks if task.id != own]
            return explain_task(
                setting,
                past_of(self._model, others, trials, maximise=tuner.maximise),
                name=self.name,
                num_trials=num_trials,
                trial_at=self._trial_at,
            )

    def _is_rule_met(self) -> bool:
        rule = self.stop_when
        if rule is None:
            return False
        with self._lock:
            if self._trials().trials.is_told.sum() < rule.min_trials:
                return False
            now = self._forecast()
        if now is None or now.gain is None or now.scale is None:
            return False
        return rule.is_met(now.gain, now.scale)

    def _forecast(self) -> Forecast | None:
        check_process("recommended, expected_gain or should_stop")
        return forecast(self._setting())

    def _setting(self) -> Setting:
        return Setting(
            self._model,
            self._tuner.knowledge(excluding=self._record.id),
            self._trials(),
            self._candidates,
            self.budget,
        )

    def _trial_at(self, place: int) -> Trial:
        return as_trial(self._tuner.memory.trial(int(self._history.ids[place])))

    # --- choosing a trial -----------------------------------------------------------------------------------

    def _next(self) -> Trial:
        trial = self._claim() or self._suggest()
        assert trial is not None  # without a limit there is always one
        return trial

    def _suggest(self, most: int | None = None) -> Trial | None:
        """Add a new trial to the memory and return it; None if the task has `most` trials already."""
        with self._lock:
            for race in itertools.count():
                history = self._trials()
                if most is not None and len(history) >= most:
                    return None
                chosen = self._next_config(history)
                record = self._tuner.memory.add_trial(
                    self._record.id,
                    chosen.params,
                    explored=chosen.is_forced,
                    owner=self._owner,
                    expected_count=len(history) if race < MAX_RACES else None,
                    most=most,
                    # Once every configuration was tried, two processes may repeat the same one.
                    after=None if chosen.is_repeat else history.last_id,
                    others=chosen.others,
                )
                if record is not None:
                    return self._own(record)
        raise AssertionError("unreachable")

    def _next_config(self, history: TaskHistory) -> NextConfig:
        return next_config(
            self._model,
            self._tuner.knowledge(excluding=self._record.id),
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
        return as_trial(record)

    def _policy_key(self, number: int) -> jax.Array:
        """Return the policy's key for trial `number`; the keys of a task are split once."""
        if self._policy_keys is None or number >= len(self._policy_keys):
            key = self._candidates.key
            keys = jax.random.split(split_task_key(key).policy, max(self.budget, 2 * number))
            self._policy_keys = np.asarray(jax.random.key_data(keys))
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
