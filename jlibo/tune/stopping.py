"""Stop rules: when the next trial of a task is no longer worth its cost."""

import dataclasses
import sys
from typing import Any, final

import numpy as np

from jlibo.checks import check_count, fail


@final
@dataclasses.dataclass(frozen=True)
class ExpectedGainBelow:
    """Stop rule: end the loop over a task when the expected gain of one more trial is below a threshold.

    The expected gain is `TunerTask.expected_gain`: how much better than the recommended trial the most
    promising untried configuration is expected to be, E[max(f(x) - f(x*), 0)]. It is the rule to use when a
    trial costs as much as a gain of `threshold` is worth.

    **Arguments:**

    - `threshold`: the smallest gain that is worth a trial, above 0; in the units of the scores.
    - `relative`: whether `threshold` is in multiples of the standard deviation of the scores over the search
      space instead, as the model estimates it (`Explanation.scale`).
    - `min_trials`: the number of scores below which the rule does not apply, at least 1.

    **Raises:**

    - `ValueError`: an argument is out of range.

    ```python
    import jlibo

    tuner = jlibo.Tuner(jlibo.SearchSpace(x=jlibo.Float(0, 1)))
    rule = jlibo.tune.ExpectedGainBelow(0.01, relative=True, min_trials=6)
    task = tuner.task("parabola", budget=30, stop_when=rule)
    for trial in task:
        task.tell(trial, -((trial.params["x"] - 0.3) ** 2))
    print(len(task.trials), task.expected_gain)
    ```
    """

    threshold: float
    relative: bool = False
    min_trials: int = 5

    def __post_init__(self):
        if not _is_threshold(self.threshold):
            fail("threshold", "a finite number above 0", repr(self.threshold))
        if not isinstance(self.relative, bool):
            fail("relative", "True or False", repr(self.relative))
        check_count("min_trials", self.min_trials)

    def is_met(self, gain: float, scale: float) -> bool:
        """Return whether to stop, given the expected gain and the standard deviation of the scores."""
        return gain < float(self.threshold) * (scale if self.relative else 1.0)


def stop_rule(stop_when: Any) -> ExpectedGainBelow | None:
    """Return the rule that the argument `stop_when` of `Tuner.task` stands for."""
    if stop_when is None or isinstance(stop_when, ExpectedGainBelow):
        return stop_when
    if _is_threshold(stop_when):
        return ExpectedGainBelow(float(stop_when))
    fail(
        "stop_when",
        "None, a gain above 0 in the units of the scores, or a rule such as "
        "jlibo.tune.ExpectedGainBelow(0.01, relative=True)",
        f"{stop_when!r} ({type(stop_when).__name__})",
    )


def _is_threshold(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return bool(is_number and 0 < value <= sys.float_info.max)
