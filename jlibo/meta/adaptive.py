"""The adaptive meta-learner: Meta-KGL's support, then a mean and a covariance learned from all past tasks.

Meta-KGL learns *which* kernels matter and gives all of them mean zero and equal weight. Where tasks resemble
each other, they also teach *where* the good configurations lie. This learner keeps the support and learns on
it a mean and a covariance (`hierarchy`): the first trial of a new task goes where past tasks were best.

A task that is unlike the past ones must not be worse off for it. The prior is a mixture (`PriorMixture`):
beside the learned one stands the wide one, which is what an agent without a past would use. Every reward of
the new task is foretold by both, and whoever foretells better gets the say.

| here             | what it is                                                                        |
|------------------|-----------------------------------------------------------------------------------|
| `choose_support` | the support: lam and omega from the past tasks' own data, see `selection`         |
| `wide_weight`    | how likely a task unlike the past is, before its first reward                     |
"""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import Prior, mixture
from jlibo.fields import hyper_parameter
from jlibo.meta.base import AbstractMetaLearner, Setting, TaskData, info_of, selected_prior
from jlibo.meta.exploration import AbstractExploration, FirstTasksExploration
from jlibo.meta.hierarchy import fit_hierarchy
from jlibo.meta.past import PastTasks, no_past, remember
from jlibo.meta.selection import choose_support


class AdaptiveState(eqx.Module):
    past: PastTasks
    num_done: Int[Array, ""]
    support: Bool[Array, " groups"]
    learned: Prior


class AdaptiveMetaKGL(AbstractMetaLearner):
    """Learns support, mean and covariance from all data of past tasks; asks for hardly any exploration.

    Rewards should be standardised (`jlibo.Standardise`): the wide prior is for functions of size one.
    """

    noise_std: Float[Array, ""] = hyper_parameter("noise_std", above=0, default=0.1)
    wide_weight: Float[Array, ""] = hyper_parameter("wide_weight", above=0, at_most=1, default=0.1)
    covariance_tasks: Float[Array, ""] = hyper_parameter("covariance_tasks", above=0, default=5.0)
    mean_tasks: Float[Array, ""] = hyper_parameter("mean_tasks", above=0, default=1.0)
    unselected_weight: Float[Array, ""] = hyper_parameter(
        "unselected_weight", at_least=0, at_most=1, default=0.1
    )
    """What the kernels that were not selected keep: what is wrongly left out can still be learned."""
    select: bool = eqx.field(static=True, default=True)
    """Whether to select kernels at all; without, the hierarchy is learned on all of them."""
    num_lams: int = eqx.field(static=True, default=8)
    num_steps: int = eqx.field(static=True, default=10)
    """EM steps after each task, always from the wide prior: what is learned depends on the tasks alone."""
    exploration: AbstractExploration = FirstTasksExploration()
    tol: float = 1e-3
    max_steps: int = 300

    data: ClassVar[str] = "all"

    def init(self, setting):
        support = jnp.ones(setting.num_groups, bool)
        learned = self._matrix(selected_prior(support, setting), setting)
        return AdaptiveState(no_past(self.data, setting), jnp.zeros((), jnp.int32), support, learned)

    def prior(self, state, setting):
        wide = self._matrix(selected_prior(jnp.ones(setting.num_groups, bool), setting), setting)
        return mixture([state.learned, wide], jnp.stack([1 - self.wide_weight, self.wide_weight]))

    def update(self, state, data: TaskData, setting):
        past = remember(state.past, state.num_done, data, self.data, setting)
        return self.learn(past, state.num_done + 1, setting)

    def learn(self, past: PastTasks, num_done, setting):
        support, solution = jnp.ones(setting.num_groups, bool), None
        if self.select:
            noise_std = self.noise_std.astype(setting.dtype)
            support, solution = choose_support(
                past, noise_std, setting, num_lams=self.num_lams, tol=self.tol, max_steps=self.max_steps
            )
        chosen, every = selected_prior(support, setting), selected_prior(jnp.ones_like(support), setting)
        share = self.unselected_weight.astype(setting.dtype)
        wide = Prior(chosen.mean, (1 - share) * chosen.covariance + share * every.covariance)
        learned = fit_hierarchy(
            past,
            self._matrix(wide, setting),
            wide,
            num_steps=self.num_steps,
            covariance_tasks=self.covariance_tasks.astype(setting.dtype),
            mean_tasks=self.mean_tasks.astype(setting.dtype),
            noise_std=self.noise_std.astype(setting.dtype),
        )
        # Without any task there is no mean to be uncertain about: the state is that of `init`.
        first = self.init(setting)
        learned = jax.tree.map(partial(jnp.where, num_done > 0), learned, first.learned)
        new = AdaptiveState(past, num_done, support, learned)
        return new, info_of(support, solution, setting)

    def _matrix(self, prior: Prior, setting: Setting) -> Prior:
        return Prior(prior.mean, jnp.diag(prior.covariance), self.noise_std.astype(setting.dtype))
