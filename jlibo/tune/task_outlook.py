"""The methods of `TunerTask` for what the model expects: recommended trial, gains, explanation. Internal."""

import abc
import threading
from typing import TYPE_CHECKING

from jlibo.checks import check_count
from jlibo.tune.ask import Candidates
from jlibo.tune.explain import NUM_AHEAD, Forecast, Setting, explain_task, forecast, past_of
from jlibo.tune.explanation import Explanation, Recommendation
from jlibo.tune.history import TaskHistory
from jlibo.tune.memory.records import TaskRecord
from jlibo.tune.model import Model
from jlibo.tune.process import check_process
from jlibo.tune.stopping import ExpectedGainBelow
from jlibo.tune.trial import Trial, as_trial

if TYPE_CHECKING:
    from jlibo.tune.tuner import Tuner


class AbstractTaskOutlook(abc.ABC):
    """A task with a model of its scores."""

    _tuner: "Tuner"
    _record: TaskRecord
    _model: Model
    _history: TaskHistory
    _candidates: Candidates
    _lock: threading.Lock
    name: str
    budget: int
    stop_when: ExpectedGainBelow | None

    @abc.abstractmethod
    def _trials(self) -> TaskHistory:
        """Return the trials as of now. The caller holds the lock."""

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
            history = self._trials()
            is_spent = len(history) >= history.limit(self.budget)
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
            if self._trials().trials.is_complete.sum() < rule.min_trials:
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
