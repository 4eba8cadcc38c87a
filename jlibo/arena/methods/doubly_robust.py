"""The doubly robust group-lasso bandit (Cella & Pontil 2021), with the propensity that makes it unbiased.

| here             | paper                                                                              |
|------------------|------------------------------------------------------------------------------------|
| `first_steps`    | z_N, uniform actions at the beginning                                              |
| `explore_scale`  | lam_n = min(1, explore_scale sqrt((log n + log d) / n)), the chance of exploration |
| `penalty_scale`  | lam_{n,j} = penalty_scale sqrt((log n + log d) / n) of each group                  |
| `clip`           | pseudo-rewards are kept within -clip and clip                                      |

The rates and default scales are those of the code of Kim & Paik (2019), as the constants of the theory give
thousands of uniform actions. The regression is on the mean of the contexts of a step. With a fixed action set
it is constant and the design has rank one, so the method needs fresh contexts.
"""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.actions import FiniteActions
from jlibo.arena.estimators import TaskStatistics, group_lasso_of, propensity, pseudo_reward
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method
from jlibo.arena.methods.low_rank import growing_ticks
from jlibo.checks import fail
from jlibo.fields import number, size
from jlibo.front_door import check_fields

REFERENCE = "Cella & Pontil 2021"


@final
class DoublyRobustState(eqx.Module):
    """State of `DoublyRobustLasso`."""

    coef: Float[Array, "tasks features"]
    pseudo: TaskStatistics
    """Statistics of mean contexts and pseudo-rewards."""


@final
class DoublyRobustLasso(AbstractJointLearner):
    """Joint learner with a lasso on doubly robust pseudo-rewards of all actions.

    The penalty is on groups over tasks, or on each task alone. The learner needs a finite set of fresh
    actions at every step.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range, or for actions that are not a finite set.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import DoublyRobustLasso
    from jlibo.envs.linear import FreshArms, JointlySparseWeights, LinearEnv

    key = jax.random.key(0)
    weights = JointlySparseWeights.draw(num_features=6, support_size=2, key=key)
    env = LinearEnv(weights, FreshArms(5, 6), noise_std=0.1)
    result = run_rounds(env, DoublyRobustLasso(first_steps=4), Schedule.concurrent(4, 12), key=key)
    ```
    """

    first_steps: int = size("first_steps", 10)
    """Steps of each task with uniform actions."""
    explore_scale: Float[Array, ""] = eqx.field(converter=number("explore_scale", at_least=0), default=1.0)
    """Factor of the chance of exploration. At least 0."""
    penalty_scale: Float[Array, ""] = eqx.field(converter=number("penalty_scale", at_least=0), default=0.5)
    """Factor of the penalty. At least 0."""
    clip: Float[Array, ""] = eqx.field(converter=number("clip", above=0), default=3.0)
    """Largest size of a pseudo-reward. Above 0."""
    share_support: bool = eqx.field(static=True, default=True)
    """Whether a feature is selected for all tasks together (group lasso) or for each task (lasso)."""
    tol: float = 1e-3
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 200
    """Maximum number of steps of each solve."""

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        return growing_ticks(schedule.num_rounds)

    def init(self, sizes):
        empty = TaskStatistics.empty(sizes.num_tasks, sizes.num_features, sizes.dtype)
        return DoublyRobustState(empty.moment, empty)

    def refresh(self, state, statistics, number, sizes):
        rounds = jnp.maximum(state.pseudo.count.max(), 1)
        # The penalty of the paper is that of the halved loss; a group's norm grows with the root of m.
        num_together = sizes.num_tasks if self.share_support else 1
        penalty = 2 * self.penalty_scale * self._rate(rounds, sizes) * np.sqrt(num_together)

        def fit(pseudo, start):
            return group_lasso_of(
                pseudo,
                penalty.astype(sizes.dtype),
                groups=sizes.groups,
                num_rounds=rounds,
                start=start,
                tol=self.tol,
                max_steps=self.max_steps,
            ).coef

        batches = jax.tree.map(
            lambda leaf: leaf.reshape(-1, num_together, *leaf.shape[1:]), (state.pseudo, state.coef)
        )
        coef = jax.vmap(fit)(*batches).reshape(state.coef.shape)
        return DoublyRobustState(jnp.nan_to_num(coef), state.pseudo)

    def choose(self, state, statistics, turn, sizes):
        if not isinstance(turn.actions, FiniteActions):
            fail("actions", "a finite set, for the doubly robust lasso", type(turn.actions).__name__)
        count = turn.actions.features.shape[-2]

        def one(task, step, actions, explore, key):
            greedy = actions.best(state.coef[task])
            chance = jnp.minimum(1, self.explore_scale * self._rate(step + 1, sizes))
            chance = jnp.where(step < self.first_steps, 1, chance)
            is_forced = jax.random.uniform(key, dtype=sizes.dtype) < chance
            action = jax.tree.map(lambda a, b: jnp.where(is_forced, a, b), explore, greedy)
            probability = propensity(action.place == greedy.place, chance, count)
            return Choice(action, is_forced, (probability, actions.mean()))

        return jax.vmap(one)(turn.tasks, turn.steps, turn.actions, turn.exploration, turn.keys)

    def observe(self, state, turn, choice, rewards, sizes):
        probability, mean = choice.notes
        count = turn.actions.features.shape[-2]  # pyright: ignore[reportAttributeAccessIssue]
        coef = state.coef[turn.tasks]
        pseudo = pseudo_reward(rewards, choice.actions.features, mean, coef, probability, count)
        pseudo = jnp.clip(pseudo, -self.clip, self.clip)
        return DoublyRobustState(state.coef, state.pseudo.observe(turn.tasks, mean, pseudo, turn.present))

    def _rate(self, steps, sizes) -> Float[Array, ""]:
        steps = jnp.maximum(jnp.asarray(steps, sizes.dtype), 1)
        return jnp.sqrt((jnp.log(steps) + np.log(sizes.num_features)) / steps)


CARD = ("whole_action_set", "fresh_contexts")


def _method(name: str, summary: str, **settings: Any) -> Method:
    def make(facts, sizes):
        return DoublyRobustLasso(first_steps=min(10, sizes.horizon), **settings)

    return Method(name, summary, REFERENCE, CARD, make, setting="concurrent")


METHODS: tuple[Method, ...] = (
    _method(
        "dr-group-lasso",
        "Greedy actions from a group lasso over tasks on doubly robust pseudo-rewards.",
    ),
    _method(
        "dr-group-lasso-tuned",
        "The same with less exploration and a smaller penalty.",
        explore_scale=0.03,
        penalty_scale=0.1,
    ),
    _method(
        "dr-lasso",
        "Greedy actions from a lasso of each task on doubly robust pseudo-rewards.",
        share_support=False,
    ),
)
