"""The result of the group-lasso solver: a solution, its error bound and its status."""

import enum
from typing import final

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from jlibo.checks import ArrayLike


@final
class Status(enum.IntEnum):
    """Status of a solve, or of a task of a run. `words` describes it.

    ```python
    import jlibo

    print(jlibo.Status(1).words)  # step limit: max_steps was reached before the tolerance; see the gap
    ```
    """

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
        """One line that describes the status."""
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
    Status.NON_FINITE_REWARDS: "non-finite rewards: no candidate had a finite value; the steps were ignored",
}


def count_statuses(statuses: Int[ArrayLike, "*batch"]) -> dict[Status, int]:
    """Return how often each status occurs, in the order of `Status`, without those that do not."""
    statuses = np.asarray(statuses)
    counts = {status: int((statuses == status).sum()) for status in Status}
    return {status: count for status, count in counts.items() if count}


@final
class Solution(eqx.Module):
    """Result of `group_lasso`: the coefficients and how accurate they are.

    If `status` is neither `CONVERGED` nor `STEP_LIMIT`, there is no solution: `coef`, `group_norms` and `gap`
    are NaN.

    ```python
    import jax
    import jlibo

    design = jax.random.normal(jax.random.key(0), (3, 40, 5))
    solution = jlibo.group_lasso(design, design[:, :, 1], 0.5)
    print(jlibo.Status(int(solution.status)).words)
    print(float(solution.gap), solution.coef.shape)
    ```
    """

    coef: Float[Array, "tasks features"]
    """The coefficients of each task."""
    group_norms: Float[Array, " groups"]
    """The norm of each group over all tasks."""
    gap: Float[Array, ""]
    """Duality gap: the objective at `coef` exceeds the minimum by at most this absolute amount.

    If the dtype cannot represent the gap, it is rounded up to the smallest normal number or to infinity. The
    status does not depend on this rounding.
    """
    num_steps: Int[Array, ""]
    """Proximal-gradient steps taken; a Newton step counts as 10."""
    status: Int[Array, ""]
    """A `Status`, as a number."""

    def describe(self) -> str:
        """Return one sentence on the status.

        For a batch, the sentence has the range of steps and gaps over the problems that have a solution.
        """
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
