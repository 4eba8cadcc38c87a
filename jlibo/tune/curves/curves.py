"""The curves of a task as arrays: standings at a step, and the final scores that go with them. Internal.

| here        | what it is                                                                                   |
|-------------|----------------------------------------------------------------------------------------------|
| a curve     | the scores that a trial reported, by step                                                    |
| standing    | the share of other trials that are better at a step, from 0 (the best) to 1; ties count half |
| final score | the score that a complete trial was told                                                     |

Scores of different tasks have different units. Standings do not, so tasks can be compared by them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from jaxtyping import Float, Int


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TaskCurves:
    """The complete trials of a task that reported scores. Higher is better in all arrays.

    `values` has the last report of a trial at or before each of `steps`: NaN before the first report, -inf
    where the reported score was not finite. A trial keeps its last value after its last step.
    """

    steps: Int[np.ndarray, " steps"]
    values: Float[np.ndarray, "trials steps"]
    finals: Float[np.ndarray, " trials"]

    @classmethod
    def of(
        cls, curves: Sequence[Mapping[int, float | None]], finals: Sequence[float], *, maximise: bool
    ) -> "TaskCurves":
        """Return the arrays of curves and final scores; a trial without a report has an empty curve."""
        sign = 1.0 if maximise else -1.0
        steps = np.array(sorted(set().union(*curves)), np.int64)
        values = np.full((len(curves), len(steps)), np.nan)
        for row, curve in enumerate(curves):
            own = sorted(curve)
            known = np.array([_signed(curve[step], sign) for step in own])
            last = np.searchsorted(own, steps, side="right") - 1
            values[row, last >= 0] = known[last[last >= 0]]
        return cls(steps, values, sign * np.asarray(finals, np.float64))

    def at(self, step: int) -> tuple[Float[np.ndarray, " reached"], Float[np.ndarray, " reached"]]:
        """Return the values at a step and the final scores of the trials that have a report by then."""
        place = int(np.searchsorted(self.steps, step, side="right")) - 1
        if place < 0:
            return np.zeros(0), np.zeros(0)
        reached = ~np.isnan(self.values[:, place])
        return self.values[reached, place], self.finals[reached]

    def is_last(self, step: int) -> bool:
        """Return whether no trial has a report after a step, so that nothing is saved by stopping there."""
        return len(self.steps) == 0 or step >= self.steps[-1]


def standing(value: float, others: Float[np.ndarray, " others"]) -> float:
    """Return the share of `others` that are better than `value`; there is at least one."""
    return float(((others > value).sum() + 0.5 * (others == value).sum()) / len(others))


def standings(values: Float[np.ndarray, " trials"]) -> Float[np.ndarray, " trials"]:
    """Return the standing of each value among the others; there are at least two."""
    ordered = np.sort(values)
    above = len(values) - np.searchsorted(ordered, values, side="right")
    ties = len(values) - np.searchsorted(ordered, values, side="left") - above - 1
    return (above + 0.5 * ties) / (len(values) - 1)


def estimated_final(
    step: int, score: float | None, curves: TaskCurves, finals: Sequence[float], *, maximise: bool
) -> float | None:
    """Return the final score that a trial that was stopped at a step would probably have had.

    It is the final score of the same standing: the quantile of the final scores of the trials that the
    stopped one was compared with, and never better than their median. The last reported score itself is not
    used, because it is not the score of a finished evaluation: curves rise or fall.

    **Arguments:**

    - `step`, `score`: the last report; None for a score that was not finite.
    - `curves`: the complete trials with reports.
    - `finals`: the final scores of all complete trials. Without any curve at this step, the result is the
      reported score, at most their median.
    - `maximise`: whether a higher score is better.

    **Returns:**

    The estimate in the units of the scores; None if nothing is known.
    """
    sign = 1.0 if maximise else -1.0
    value = _signed(score, sign)
    others, ends = curves.at(step)
    if len(others):
        share = min(1 - standing(value, others), 0.5)
        estimate = float(np.quantile(ends, share))
    else:
        median = float(np.median(sign * np.asarray(finals))) if len(finals) else np.inf
        estimate = min(value, median)
    return sign * estimate if np.isfinite(estimate) else None


def _signed(score: float | None, sign: float) -> float:
    return -np.inf if score is None else sign * score
