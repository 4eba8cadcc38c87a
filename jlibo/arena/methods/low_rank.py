"""Concurrent tasks with a shared low-rank representation: MLinGreedy and MTLR-OFUL.

| here                | published as                                                                      |
|---------------------|-----------------------------------------------------------------------------------|
| `PhasedGreedy`      | MLinGreedy (Yang, Hu, Lee & Du 2021): greedy play, M = ceil(log2 log2 n) phases   |
| `JointOful`         | MTLR-OFUL (Hu, Chen, Jin, Li & Wang 2021), its bonus without the rank constraint  |

MLinGreedy learns from the data of the last phase only, whose ends are n^(1 - 2^-i). It relies on fresh
contexts for exploration; on fixed actions `explore_probability` adds uniform actions.
"""

import math
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.actions import FiniteActions, upper_confidence
from jlibo.arena.estimators import TaskStatistics, joint_choice, low_rank_least_squares, start_basis
from jlibo.arena.estimators.eigen import check_rank
from jlibo.arena.estimators.joint_bonus import confidence_radius
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method
from jlibo.belief.whitening import inverse_cholesky
from jlibo.fields import number, size
from jlibo.front_door import check_fields

YANG = "Yang, Hu, Lee & Du 2021"
HU = "Hu, Chen, Jin, Li & Wang 2021"
GROWTH = 1.2
"""Ratio of the rounds of successive refreshes."""


def phase_ends(horizon: int) -> np.ndarray:
    """Return the ends of the phases of MLinGreedy: n^(1 - 2^-i) for i = 1, ..., M - 1, rounded up, and n."""
    count = max(1, math.ceil(math.log2(max(math.log2(max(horizon, 3)), 1.0))))
    ends = [math.ceil(horizon ** (1 - 2.0**-i) - 1e-9) for i in range(1, count)]
    return np.unique([*ends, horizon])


def growing_ticks(num_rounds: int, growth: float = GROWTH) -> np.ndarray:
    """Return rounds that are spaced by a growing number of rounds, from the second on, as booleans."""
    ticks, place = np.zeros(num_rounds, bool), 1
    while place < num_rounds:
        ticks[place] = True
        place = max(place + 1, math.ceil(growth * place))
    return ticks


@final
class PhasedState(eqx.Module):
    """State of `PhasedGreedy`."""

    coef: Float[Array, "tasks features"]
    seen: TaskStatistics
    """Statistics at the beginning of the phase."""


@final
class PhasedGreedy(AbstractJointLearner):
    """Joint learner that plays greedily with the low-rank least squares of the last phase: MLinGreedy.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range, or a rank above the number of features.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import PhasedGreedy
    from jlibo.envs.linear import FreshArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    env = LinearEnv(LowRankWeights.draw(num_features=4, rank=2, key=key), FreshArms(5, 4), noise_std=1.0)
    result = run_rounds(env, PhasedGreedy(rank=2), Schedule.concurrent(6, 20), key=key)
    ```
    """

    rank: int = size("rank", 1)
    """r."""
    num_steps: int = size("num_steps", 30)
    """Alternating minimisations at the end of a phase."""
    explore_probability: Float[Array, ""] = eqx.field(
        converter=number("explore_probability", at_least=0, at_most=1), default=0.0
    )
    """Probability of a uniform action after the first phase. From 0 to 1."""

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        ends = phase_ends(schedule.horizon)[:-1]
        return (np.isin(schedule.step_of, ends) & schedule.present).any(1)

    def init(self, sizes):
        check_rank(self.rank, sizes.num_features)
        coef = jnp.zeros((sizes.num_tasks, sizes.num_features), sizes.dtype)
        return PhasedState(coef, TaskStatistics.empty(sizes.num_tasks, sizes.num_features, sizes.dtype))

    def refresh(self, state, statistics, number, sizes):
        phase = jax.tree.map(jnp.subtract, statistics, state.seen)
        fit = low_rank_least_squares(phase, self.rank, num_steps=self.num_steps)
        return PhasedState(fit.coef, statistics)

    def choose(self, state, statistics, turn, sizes):
        first_end = int(phase_ends(sizes.horizon)[0])

        def one(task, step, actions, explore, key):
            draw = jax.random.uniform(key, dtype=sizes.dtype) < self.explore_probability
            is_forced = draw | ((step < first_end) & (first_end < sizes.horizon))
            action = jax.tree.map(
                lambda a, b: jnp.where(is_forced, a, b), explore, actions.best(state.coef[task])
            )
            return Choice(action, is_forced)

        return jax.vmap(one)(turn.tasks, turn.steps, turn.actions, turn.exploration, turn.keys)

    def observe(self, state, turn, choice, rewards, sizes):
        return state


@final
class JointOfulState(eqx.Module):
    """State of `JointOful`."""

    coef: Float[Array, "tasks features"]
    basis: Float[Array, "features rank"]
    """The next alternating minimisations start from it."""


@final
class JointOful(AbstractJointLearner):
    """Joint learner with a low-rank estimate and a bonus that tasks share: a surrogate of MTLR-OFUL.

    On sets that are not finite, each task gets an equal share of the bonus, `sqrt(L / m)`.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range, or a rank above the number of features.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import JointOful
    from jlibo.envs.linear import FreshArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    env = LinearEnv(LowRankWeights.draw(num_features=4, rank=2, key=key), FreshArms(5, 4), noise_std=1.0)
    result = run_rounds(env, JointOful(noise_std=1.0, rank=2), Schedule.concurrent(6, 20), key=key)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    rank: int = size("rank", 1)
    """r."""
    radius_scale: Float[Array, ""] = eqx.field(converter=number("radius_scale", at_least=0), default=0.1)
    """c in L = c (m r + d r log(m n)) sigma^2. The paper's constants are larger. At least 0."""
    ridge: Float[Array, ""] = eqx.field(converter=number("ridge", above=0), default=1.0)
    """lam in V_s = lam I + X_s^T X_s. Above 0."""
    num_steps: int = size("num_steps", 3)
    """Alternating minimisations at a refresh, from the basis of the last one."""

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        return growing_ticks(schedule.num_rounds)

    def init(self, sizes):
        check_rank(self.rank, sizes.num_features)
        empty = TaskStatistics.empty(sizes.num_tasks, sizes.num_features, sizes.dtype)
        return JointOfulState(empty.moment, jnp.eye(sizes.num_features, dtype=sizes.dtype)[:, : self.rank])

    def refresh(self, state, statistics, number, sizes):
        start = jnp.where(number > sizes.num_features, state.basis, start_basis(statistics, self.rank))
        fit = low_rank_least_squares(
            statistics, self.rank, start=start, ridge=self.ridge, num_steps=self.num_steps
        )
        return JointOfulState(fit.coef, fit.basis)

    def choose(self, state, statistics, turn, sizes):
        eye = jnp.eye(sizes.num_features, dtype=sizes.dtype)
        gram = statistics.gram[turn.tasks] + self.ridge * eye
        roots = jax.vmap(inverse_cholesky)(gram)  # W with W^T W = V^-1
        radius = confidence_radius(
            self.radius_scale,
            sizes.num_tasks,
            sizes.num_features,
            self.rank,
            jnp.asarray(float(sizes.horizon), sizes.dtype),
            self.noise_std**2,
        )
        coef = state.coef[turn.tasks]
        if isinstance(turn.actions, FiniteActions):
            inverse = jnp.einsum("lki,lkj->lij", roots, roots, precision=jax.lax.Precision.HIGHEST)
            choice = joint_choice(turn.actions.features, coef, inverse, radius, present=turn.present)
            actions = jax.vmap(lambda one, place: one.at(place))(turn.actions, choice.actions)
        else:
            width = jnp.sqrt(radius / jnp.maximum(turn.present.sum(), 1))

            def one(actions, coef, root, key):
                return upper_confidence(actions, coef, root.T, width, key=key)

            actions = jax.vmap(one)(turn.actions, coef, roots, turn.keys)
        return Choice(actions, jnp.zeros_like(turn.present))

    def observe(self, state, turn, choice, rewards, sizes):
        return state


CONCURRENT_CARD = ("rank", "horizon", "num_tasks")


def _phased_greedy(facts, sizes):
    return PhasedGreedy(facts.rank)


def _joint_oful(facts, sizes):
    return JointOful(facts.noise_std, facts.rank)


METHODS: tuple[Method, ...] = (
    Method(
        "mlin-greedy",
        "Greedy actions from low-rank least squares of the last phase.",
        YANG,
        ("rank", "horizon", "fresh_contexts"),
        _phased_greedy,
        setting="concurrent",
    ),
    Method(
        "mtlr-oful",
        "Low-rank least squares, and a confidence bonus that tasks share.",
        HU,
        ("noise_std", *CONCURRENT_CARD, "whole_action_set"),
        _joint_oful,
        setting="concurrent",
    ),
)
