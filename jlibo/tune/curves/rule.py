"""The rule that stops a trial early, given its standing and what past curves say about such standings.

A trial is compared with the complete trials of its task at the same step. If it is worse than their median,
it is stopped, provided that this is safe: among the trials of the past tasks, and of this one, whose standing
at that step was as bad, few ended among the best of their task. How predictive a step is depends on the model
that is tuned: the first epochs of some say nothing, those of others everything.

| here       | what it is                                                                                    |
|------------|-----------------------------------------------------------------------------------------------|
| standing   | share of the task's complete trials that are better at the step                               |
| `risks_at` | probability that a trial whose standing is worse than a cut ends among the best               |
| the best   | the best tenth of a task's complete trials, at least one                                      |
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from jlibo.checks import check_count, fail
from jlibo.tune.curves.curves import TaskCurves, standing, standings
from jlibo.tune.memory.records import whole

BEST_SHARE = 0.1
CUTS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""A trial is stopped if the trials whose standing was worse than one of these cuts, as is its own, say so."""
PRIOR_TRIALS = 8.0
"""Weight of the prior of the probability to end among the best, in trials. Its mean for the first cut is half
of the accepted risk, so that without past curves the median decides; that of each further cut is the estimate
for the cut before."""


@final
@dataclasses.dataclass(frozen=True)
class MedianRule:
    """Rule by which a trial is stopped early: worse than the median, where past curves say that this is safe.

    The scores that trials report (`Trial.report`) are compared at the same step, by their order only, so that
    tasks with scores in different units teach each other. Without past curves it is the plain median rule.

    **Arguments:**

    - `min_trials`: the number of complete trials of the task with a report by that step, before which no
      trial is stopped.
    - `min_step`: the step before which no trial is stopped.
    - `risk`: the largest accepted probability that a stopped trial would have ended among the best tenth of
      its task; above 0, below 0.1. It is estimated from the complete trials of past tasks and of this task.
    - `control_every`: one in this many trials is never stopped, so that the risk can be estimated: otherwise
      no trial with a bad start would be known to have ended well. None for no such trials.

    **Raises:**

    - `ValueError`: an argument is out of range.

    ```python
    import jlibo

    tuner = jlibo.Tuner(jlibo.SearchSpace(rate=jlibo.Float(0, 1)))
    task = tuner.task("first", budget=20, stop_trials=jlibo.tune.MedianRule(min_step=2))
    for trial in task:
        for epoch in range(10):
            score = trial.params["rate"] * epoch
            trial.report(epoch, score)
            if trial.should_stop:
                task.stop(trial)
                break
        else:
            task.tell(trial, score)
    print([trial.state for trial in task.trials])
    ```
    """

    min_trials: int = 5
    min_step: int = 0
    risk: float = 0.025
    control_every: int | None = 8

    def __post_init__(self):
        check_count("min_trials", self.min_trials)
        whole("min_step", self.min_step, at_least=0)
        is_number = isinstance(self.risk, int | float | np.number) and not isinstance(self.risk, bool)
        if not is_number or not 0 < self.risk < BEST_SHARE:
            fail("risk", f"a number above 0 and below {BEST_SHARE}", repr(self.risk))
        if self.control_every is not None:
            check_count("control_every", self.control_every)

    def says_stop(
        self, number: int, step: int, value: float, own: TaskCurves, past: Sequence[TaskCurves]
    ) -> bool:
        """Return whether to stop a trial.

        **Arguments:**

        - `number`: the number of the trial in its task.
        - `step`, `value`: its last report; higher is better, -inf if the score was not finite.
        - `own`: the complete trials of its task.
        - `past`: those of the past tasks.
        """
        if step < self.min_step or own.is_last(step) or self.is_control(number):
            return False
        others, _ = own.at(step)
        if len(others) < self.min_trials:
            return False
        at = standing(value, others)
        cuts = [cut for cut in CUTS if at > cut]
        if not cuts:
            return False
        risks = risks_at(step, [*past, own], prior_risk=self.risk / 2)
        # The trial is worse than each of these cuts. What is safe for a group is safe for its worse part.
        return any(risks[cut] <= self.risk for cut in cuts)

    def is_control(self, number: int) -> bool:
        """Return whether the trial with this number is never stopped."""
        return self.control_every is not None and number % self.control_every == self.control_every - 1


def stop_trials_rule(stop_trials: Any) -> MedianRule | None:
    """Return the rule that the argument `stop_trials` stands for."""
    if isinstance(stop_trials, MedianRule):
        return stop_trials
    if isinstance(stop_trials, bool):
        return MedianRule() if stop_trials else None
    fail(
        "stop_trials",
        "True, False, or a jlibo.tune.MedianRule",
        f"{stop_trials!r} ({type(stop_trials).__name__})",
    )


def risks_at(step: int, tasks: Sequence[TaskCurves], *, prior_risk: float) -> dict[float, float]:
    """Return, for each of `CUTS`, the probability that a trial with a worse standing ends among the best."""
    at, ends_well = [np.zeros(0)], [np.zeros(0)]
    for task in tasks:
        values, finals = task.at(step)
        # A task whose trials all ended alike says nothing, nor do those that reached the step at their end.
        if len(values) >= 3 and finals.max() > finals.min() and not task.is_last(step):
            at.append(standings(values))
            ends_well.append(among_best(finals))
    places, weights = np.concatenate(at), np.concatenate(ends_well)
    risks, mean = {}, prior_risk
    for cut in CUTS:
        worse = places > cut
        mean = float((weights[worse].sum() + PRIOR_TRIALS * mean) / (worse.sum() + PRIOR_TRIALS))
        risks[cut] = mean
    return risks


def among_best(finals: Float[np.ndarray, " trials"]) -> Float[np.ndarray, " trials"]:
    """Return which trials ended among the best tenth, at least one; those that tie for a place share it."""
    num_best = max(1, int(BEST_SHARE * len(finals)))
    least = np.sort(finals)[-num_best]
    above, ties = finals > least, finals == least
    return above + ties * (num_best - above.sum()) / ties.sum()
