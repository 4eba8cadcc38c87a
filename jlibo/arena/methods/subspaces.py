"""Explore, explore, commit in a shared subspace: E2TC and the least-squares estimator of 2022.

| here             | Yang, Hu, Lee & Du (2021), Yang, Lei, Lee & Du (2022)                              |
|------------------|-----------------------------------------------------------------------------------|
| `first_steps`    | N1: a step of the task is a uniform draw from an inscribed sphere                  |
| `second_steps`   | N2: the columns of B_hat in turn                                                   |
| `estimator`      | B_hat from the sum of y^2 x x^T ("moment") or of theta theta^T ("least-squares")   |
| the rest         | commit to the best action for theta_hat = B_hat w_hat                              |

The 2022 paper has its rate for concurrent tasks and for tasks in sequence; its algorithm is reconstructed from
the abstract (rate d sqrt(r m n) + r m sqrt(n)). For tasks in sequence, task s explores d sqrt(r n / s) steps.
"""

import math
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.arena.estimators import TaskStatistics, task_least_squares, top_subspace, weight_moment
from jlibo.arena.estimators.low_rank import weights_in
from jlibo.arena.estimators.subspace import reward_moment
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method
from jlibo.arena.estimators.gaussian import dot
from jlibo.checks import check_shape, fail
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields

YANG_2021 = "Yang, Hu, Lee & Du 2021"
YANG_2022 = "Yang, Lei, Lee & Du 2022"
RATES = ("sequence", "concurrent", "concurrent, moment")


@final
class SubspaceState(eqx.Module):
    """State of `ExploreThenCommit`."""

    basis: Float[Array, "features rank"]
    """B_hat."""
    first: TaskStatistics
    """Statistics of the first stage."""
    second: TaskStatistics
    """Statistics of the second stage."""
    moment: Float[Array, "features features"]
    """Sum of y^2 x x^T over the first stage of all tasks."""


def first_steps(
    num_features: int, rank: int, num_tasks: int, horizon: int, *, rate: str, scale: float = 1.0
) -> np.ndarray:
    """Return N1 of each task, on the host: at least 2 d steps, at most half of the horizon.

    **Arguments:**

    - `rate`: "sequence": d sqrt(r n / s) for task s; "concurrent": d sqrt(r n / m); "concurrent, moment":
      d^1.5 r sqrt(n / m).
    - `scale`: factor of the rate.
    """
    if rate not in RATES:
        fail("rate", " or ".join(map(repr, RATES)), repr(rate))
    if rate == "sequence":
        steps = num_features * np.sqrt(rank * horizon / np.arange(1, num_tasks + 1))
    elif rate == "concurrent":
        steps = np.full(num_tasks, num_features * math.sqrt(rank * horizon / num_tasks))
    else:
        steps = np.full(num_tasks, num_features**1.5 * rank * math.sqrt(horizon / num_tasks))
    least = min(2 * num_features, horizon // 2)
    return np.clip(np.ceil(scale * steps - 1e-9), least, horizon // 2).astype(int)


@final
class ExploreThenCommit(AbstractJointLearner):
    """Joint learner that explores twice and commits: E2TC, and least squares with an SVD.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range, an unknown `estimator` or `rate`, or a rank
    above the number of features.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import ExploreThenCommit
    from jlibo.envs.linear import BallArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    env = LinearEnv(LowRankWeights.draw(num_features=4, rank=2, key=key), BallArms(1.0, 4), noise_std=1.0)
    result = run_rounds(env, ExploreThenCommit(rank=2), Schedule.sequential(3, 40), key=key)
    ```
    """

    rank: int = size("rank", 1)
    """r."""
    estimator: str = choice("estimator", ("least-squares", "moment"))
    """How B_hat is estimated."""
    rate: str = choice("rate", RATES)
    """The length of the first stage; see `first_steps`."""
    first_scale: float = eqx.field(static=True, default=1.0)
    """Factor of the length of the first stage."""
    second_scale: float = eqx.field(static=True, default=1.0)
    """The second stage has `second_scale` * r sqrt(n) steps."""

    def __check_init__(self):
        check_fields(self)

    def stages(self, num_features: int, num_tasks: int, horizon: int) -> tuple[np.ndarray, int]:
        """Return the lengths of the first stage of each task, and that of the second stage."""
        first = first_steps(
            num_features, self.rank, num_tasks, horizon, rate=self.rate, scale=self.first_scale
        )
        return first, max(self.rank, math.ceil(self.second_scale * self.rank * math.sqrt(horizon) - 1e-9))

    def ticks(self, schedule):
        # The length of the first stage depends on the number of features, which is not known here. Within a
        # first stage there is nothing to refresh, so the tick is decided in `choose` by whether it ended.
        return np.ones(schedule.num_rounds, bool)
'''
