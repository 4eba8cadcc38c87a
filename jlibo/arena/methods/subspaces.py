"""Explore, explore, commit in a shared subspace: E2TC and the least-squares estimator of 2022.

| here             | Yang, Hu, Lee & Du (2021), Yang, Lei, Lee & Du (2022)                              |
|------------------|-----------------------------------------------------------------------------------|
| `first_steps`    | N1 of each task: uniform draws from an inscribed sphere                            |
| `second_steps`   | N2: the columns of B_hat in turn                                                   |
| `estimator`      | B_hat from the sum of y^2 x x^T ("moment") or of theta theta^T ("least-squares")   |
| the rest         | commit to the best action for theta_hat = B_hat w_hat                              |

The 2022 paper has its rate for concurrent tasks and for tasks in sequence; its algorithm is reconstructed
from the abstract (rate d sqrt(r m n) + r m sqrt(n)). For tasks in sequence, task s explores
d sqrt(r n / s) steps.
"""

import math
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.arena.estimators import TaskStatistics, task_least_squares, top_subspace, weight_moment
from jlibo.arena.estimators.eigen import check_rank
from jlibo.arena.estimators.gaussian import dot
from jlibo.arena.estimators.low_rank import weights_in
from jlibo.arena.estimators.subspace import reward_moment
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method
from jlibo.checks import check_count, fail
from jlibo.fields import choice, size
from jlibo.front_door import check_fields, front_door

YANG_2021 = "Yang, Hu, Lee & Du 2021"
YANG_2022 = "Yang, Lei, Lee & Du 2022"
RATES = ("sequence", "concurrent", "moment")


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


@front_door
def stage_lengths(
    num_features: int, rank: int, num_tasks: int, horizon: int, *, rate: str, scale: float = 1.0
) -> tuple[tuple[int, ...], int]:
    """Return N1 of each task and N2, with the constants of the rates equal to `scale`.

    N1 is at least 2 d, at most half of the horizon. N2 is r sqrt(n).

    **Arguments:**

    - `num_features`, `rank`, `num_tasks`, `horizon`: d, r, m and n.
    - `rate`: "sequence": N1 is d sqrt(r n / s) for task s; "concurrent": d sqrt(r n / m); "moment":
      d^1.5 r sqrt(n / m).
    - `scale`: factor of both lengths.

    **Raises:** `ValueError` for an unknown rate.

    ```python
    from jlibo.arena.methods import stage_lengths

    print(stage_lengths(10, 3, num_tasks=100, horizon=2000, rate="concurrent")[1])  # 135
    ```
    """
    if rate == "sequence":
        steps = num_features * np.sqrt(rank * horizon / np.arange(1, num_tasks + 1))
    elif rate == "concurrent":
        steps = np.full(num_tasks, num_features * math.sqrt(rank * horizon / num_tasks))
    elif rate == "moment":
        steps = np.full(num_tasks, num_features**1.5 * rank * math.sqrt(horizon / num_tasks))
    else:
        fail("rate", " or ".join(map(repr, RATES)), repr(rate))
    half = max(horizon // 2, 1)
    first = np.clip(np.ceil(scale * steps - 1e-9), min(2 * num_features, half), half)
    return tuple(first.astype(int).tolist()), math.ceil(scale * rank * math.sqrt(horizon) - 1e-9)


@final
class ExploreThenCommit(AbstractJointLearner):
    """Joint learner that explores twice and commits: E2TC, and least squares with an SVD.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a rank or lengths out of range, or an unknown `estimator`.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import ExploreThenCommit
    from jlibo.envs.linear import BallArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    env = LinearEnv(LowRankWeights.draw(num_features=4, rank=2, key=key), BallArms(1.0, 4), noise_std=1.0)
    learner = ExploreThenCommit(first_steps=(16, 12, 10), second_steps=6, rank=2)
    result = run_rounds(env, learner, Schedule.sequential(3, 40), key=key)
    print(result.regret.sum())
    ```
    """

    first_steps: tuple[int, ...] = eqx.field(static=True)
    """N1 of each task; see `stage_lengths`."""
    second_steps: int = eqx.field(static=True)
    """N2."""
    rank: int = size("rank", 1)
    """r."""
    estimator: str = choice("estimator", ("least-squares", "moment"))
    """How B_hat is estimated."""

    def __check_init__(self):
        check_fields(self)
        for place, steps in enumerate(self.first_steps):
            check_count(f"first_steps[{place}]", steps)
        check_count("second_steps", self.second_steps)

    def ticks(self, schedule):
        if len(self.first_steps) != schedule.num_tasks:
            fail("first_steps", f"of {schedule.num_tasks} tasks", f"of {len(self.first_steps)}")
        first = np.asarray(self.first_steps)
        return ((schedule.step_of == first[schedule.task_of]) & schedule.present).any(1)

    def init(self, sizes):
        check_rank(self.rank, sizes.num_features)
        empty = TaskStatistics.empty(sizes.num_tasks, sizes.num_features, sizes.dtype)
        moment = jnp.zeros((sizes.num_features, sizes.num_features), sizes.dtype)
        basis = jnp.eye(sizes.num_features, dtype=sizes.dtype)[:, : self.rank]
        return SubspaceState(basis, empty, empty, moment)

    def refresh(self, state, statistics, number, sizes):
        if self.estimator == "moment":
            moment = state.moment
        else:
            explored = state.first.count >= jnp.asarray(self.first_steps)
            moment = weight_moment(task_least_squares(state.first), explored)
        return eqx.tree_at(lambda s: s.basis, state, top_subspace(moment, self.rank))

    def choose(self, state, statistics, turn, sizes):
        weights = weights_in(state.basis, state.second, jnp.zeros((), sizes.dtype))
        coef = dot(weights, state.basis.T)
        first = jnp.asarray(self.first_steps)

        def one(task, step, actions, key):
            later = step - first[task]
            design = actions.design(state.basis, later)
            commit = actions.best(coef[task])
            is_second = later < self.second_steps
            action = jax.tree.map(lambda a, b: jnp.where(is_second, a, b), design, commit)
            explore = actions.isotropic(key=key)
            action = jax.tree.map(lambda a, b: jnp.where(later < 0, a, b), explore, action)
            return Choice(action, is_second)

        return jax.vmap(one)(turn.tasks, turn.steps, turn.actions, turn.keys)

    def observe(self, state, turn, choice, rewards, sizes):
        later = turn.steps - jnp.asarray(self.first_steps)[turn.tasks]
        is_first = turn.present & (later < 0)
        is_second = turn.present & (later >= 0) & (later < self.second_steps)
        features = choice.actions.features
        return SubspaceState(
            state.basis,
            state.first.observe(turn.tasks, features, rewards, is_first),
            state.second.observe(turn.tasks, features, rewards, is_second),
            state.moment + reward_moment(features, rewards, is_first),
        )


CARD = ("rank", "horizon", "num_tasks")


def _make(rate: str, estimator: str = "least-squares"):
    def make(facts, sizes):
        lengths = stage_lengths(sizes.num_features, facts.rank, sizes.num_tasks, sizes.horizon, rate=rate)
        return ExploreThenCommit(*lengths, facts.rank, estimator)

    return make


METHODS: tuple[Method, ...] = (
    Method(
        "ols-svd",
        "Explore, explore in the subspace of earlier tasks' least squares, commit.",
        YANG_2022,
        ("rank", "horizon"),
        _make("sequence"),
    ),
    Method(
        "ols-svd-concurrent",
        "Explore, explore in the subspace of all tasks' least squares, commit.",
        YANG_2022,
        CARD,
        _make("concurrent"),
        setting="concurrent",
    ),
    Method(
        "e2tc",
        "Explore, explore in the subspace of a moment of all rewards, commit.",
        YANG_2021,
        CARD,
        _make("moment", "moment"),
        setting="concurrent",
    ),
)
