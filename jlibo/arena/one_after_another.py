"""A meta-learner with a policy as a joint learner: it learns from every task that has ended."""

import dataclasses
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.belief import posterior as gp
from jlibo.belief.posterior import Posterior
from jlibo.belief.prior import Prior
from jlibo.checks import fail
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, TaskData
from jlibo.meta.exploration import AbstractExploration
from jlibo.policies.acting import choose_action
from jlibo.policies.base import AbstractPolicy


@final
class TasksInPlay(eqx.Module):
    """State of `OneAfterAnother`: what is known of every task, and of the meta-learner."""

    learned: Any
    """State of the meta-learner."""
    posteriors: Posterior
    """Posterior of each task; that of the first prior before the task begins."""
    features: Float[Array, "tasks horizon features"]
    rewards: Float[Array, "tasks horizon"]
    explored: Bool[Array, "tasks horizon"]


@final
class OneAfterAnother(AbstractJointLearner):
    """Joint learner that plays every task with the prior that a meta-learner has when the task begins.

    On a sequential schedule it does what `jlibo.run_lifelong` does, on any other the same at the beginning
    and at the end of every task. The meta-learner must return a `Prior`, not a mixture.

    **Arguments:**

    - `meta_learner`: learns the prior.
    - `policy`: chooses the actions after forced exploration.
    - `exploration`: schedule of forced exploration; by default that of the meta-learner.

    ```python
    import jlibo
    from jlibo.arena import OneAfterAnother

    learner = OneAfterAnother(jlibo.FixedPrior(), jlibo.GPTS(noise_std=1.0))
    ```
    """

    meta_learner: AbstractMetaLearner
    policy: AbstractPolicy
    exploration: AbstractExploration | None = None

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        if (schedule.plays != schedule.horizon).any():
            fail("schedule", f"one that plays every task {schedule.horizon} times", schedule.plays.tolist())
        return np.zeros(schedule.num_rounds, bool)

    def init(self, sizes):
        sizes, _ = self._sized(sizes)
        learned = self.meta_learner.init(sizes)
        posterior = self._begin(learned, sizes)
        shape = sizes.num_tasks, sizes.horizon
        return TasksInPlay(
            learned,
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (sizes.num_tasks, *leaf.shape)), posterior),
            jnp.zeros((*shape, sizes.num_features), sizes.dtype),
            jnp.zeros(shape, sizes.dtype),
            jnp.zeros(shape, bool),
        )

    def refresh(self, state, statistics, number, sizes):
        return state

    def choose(self, state, statistics, turn, sizes):
        sizes, counts = self._sized(sizes)
        first = self._begin(state.learned, sizes)

        def one(task, step, actions, explore, key):
            own = jax.tree.map(lambda leaf: leaf[task], state.posteriors)
            own = jax.tree.map(lambda new, old: jnp.where(step == 0, new, old), first, own)
            chosen = choose_action(self.policy, own, actions, key=key)
            is_forced = step < counts[task]
            action = jax.tree.map(lambda one, other: jnp.where(is_forced, one, other), explore, chosen)
            return Choice(action, is_forced, own)

        return jax.vmap(one)(turn.tasks, turn.steps, turn.actions, turn.exploration, turn.keys)

    def observe(self, state, turn, choice, rewards, sizes):
        sizes, _ = self._sized(sizes)
        posteriors = jax.vmap(gp.update)(choice.notes, choice.actions.features, rewards)
        # An empty lane writes outside of the arrays, which has no effect.
        tasks = jnp.where(turn.present, turn.tasks, sizes.num_tasks)
        place = tasks, turn.steps
        state = TasksInPlay(
            state.learned,
            jax.tree.map(lambda all, new: all.at[tasks].set(new), state.posteriors, posteriors),
            state.features.at[place].set(choice.actions.features.astype(sizes.dtype)),
            state.rewards.at[place].set(rewards.astype(sizes.dtype)),
            state.explored.at[place].set(choice.explored),
        )

        def end(learned, lane):
            task, is_last = lane
            data = TaskData(state.features[task], state.rewards[task], state.explored[task])

            def learn(learned):
                return self.meta_learner.update(learned, data, sizes)[0]

            return jax.lax.cond(is_last, learn, lambda learned: learned, learned), None

        ended = turn.present & (turn.steps == sizes.horizon - 1)
        learned, _ = jax.lax.scan(end, state.learned, (turn.tasks, ended))
        return TasksInPlay(learned, state.posteriors, state.features, state.rewards, state.explored)

    def _begin(self, learned, sizes) -> Posterior:
        prior = self.meta_learner.prior(learned, sizes)
        if not isinstance(prior, Prior):
            fail("meta_learner", "one that returns a Prior", f"{type(prior).__name__}")
        return gp.init(prior, self.policy.noise_std if prior.noise_std is None else prior.noise_std)

    def _sized(self, sizes):
        """Return the sizes with the largest number of exploration steps, and their number in each task."""
        schedule = self.meta_learner.exploration if self.exploration is None else self.exploration
        counts = schedule.counts(sizes.num_tasks, sizes.horizon)
        sizes = dataclasses.replace(sizes, max_explore=int(counts.max(initial=0)))
        return sizes, jnp.asarray(counts, jnp.int32)
