"""What the group-lasso solver returns: a solution, its error bound, and in words how the solve ended."""

import enum

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from jlibo.checks import ArrayLike


class Status(enum.IntEnum):
    """How a solve ended, or a task of a run. `Status(int(solution.status)).words` says it to a person."""

    CONVERGED = 0
    STEP_LIMIT = 1
    NON_FINITE_INPUT = 2
    NEGATIVE_LAM = 3
    NO_ROWS = 4
    OUT_OF_RANGE = 5
    NON_FINITE_VALUES = 6
    NON_FINITE_REWARDS = 7

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def label(self) -> str:
        """The status in a word or two, such as "step limit"."""
        return self.words.split(":")[0]

    @property
    def is_of_solve(self) -> bool:
        """Whether a solve ended so; the other statuses are about the values or rewards of a task."""
        return self not in (Status.NON_FINITE_VALUES, Status.NON_FINITE_REWARDS)


_WORDS = {
    Status.CONVERGED: "converged: the duality gap is within the tolerance",
    Status.STEP_LIMIT: "step limit: max_steps was reached before the tolerance; see the gap",
    Status.NON_FINITE_INPUT: "non-finite input: NaN or infinite design or targets, or a NaN lam",
    Status.NEGATIVE_LAM: "negative lam: lam should be >= 0",
    Status.NO_ROWS: "no rows: the mask leaves no row to fit",
    Status.OUT_OF_RANGE: (
        "out of range: coefficients too large or too small for their dtype, or columns of very unlike size; "
        "rescale design or targets, or use float64"
    ),
    Status.NON_FINITE_VALUES: "non-finite values: candidates with NaN or infinite values were never played",
    Status.NON_FINITE_REWARDS: "non-finite rewards: nothing finite to play; the steps were not learned from",
}


def count_statuses(statuses: Int[ArrayLike, "*batch"]) -> dict[Status, int]:
    """Return how often each status occurs, in the order of `Status`, without those that do not."""
    statuses = np.asarray(statuses)
    counts = {status: int((statuses == status).sum()) for status in Status}
    return {status: count for status, count in counts.items() if count}


class Solution(eqx.Module):
    """What the solver found, and how good it is.

    Where `status` is neither CONVERGED nor STEP_LIMIT there is no answer: `coef`, `group_norms` and `gap` are
    NaN.
    """

    coef: Float[Array, "tasks features"]
    group_norms: Float[Array, " groups"]
    gap: Float[Array, ""]
    """Duality gap: the objective at `coef` exceeds the minimum by at most this much. Absolute.

    Rounded up where the dtype cannot hold it: to its smallest normal number, or to infinity. The status does
    not depend on that.
    """
    num_steps: Int[Array, ""]
    status: Int[Array, ""]
    """A `Status`, as a number."""

    def describe(self) -> str:
        """One sentence; for a batch, one with the spread of steps and gaps over all that have an answer."""
        statuses = np.ravel(self.status)
        answered = np.isin(statuses, [Status.CONVERGED, Status.STEP_LIMIT])
        steps, gaps = np.ravel(self.num_steps)[answered], np.ravel(self.gap)[answered]
        if statuses.size == 1:
            figures = f" (gap {gaps[0]:.2e}, {steps[0]} steps)" if answered.all() else ""
            return Status(int(statuses[0])).words + figures
        counts = ", ".join(f"{count} {status.label}" for status, count in count_statuses(statuses).items())
        if not answered.any():
            return f"{statuses.size} problems: {counts}; none has an answer"
        low, middle, high = np.percentile(steps, [0, 50, 100]).astype(int)
        missing = "" if answered.all() else f"; {int((~answered).sum())} without an answer"
        return (
            f"{statuses.size} problems: {counts}; steps {low} to {high}, median {middle}; "
            f"largest gap {gaps.max():.2e}{missing}"
        )
