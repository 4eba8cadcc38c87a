"""The adaptive meta-learner: Meta-KGL's support, with a mean and a covariance learned from past tasks.

Meta-KGL learns which kernels are relevant and gives all of them mean zero and equal weight. If tasks are
similar, past tasks also show where rewards are high. This learner keeps the support and learns a mean and a
covariance on it (`jlibo.meta.hierarchy`), so the first step of a new task is played where past tasks were
best.

The prior is a mixture (`PriorMixture`), so that a task unlike the past ones loses little. One component is
the learned prior plus a share of the wide prior, for what is new in the task. The other is the wide prior,
that of an agent without past tasks. Components are reweighted by their predictive likelihood of the new
task's rewards.

| here             | meaning                                                                           |
|------------------|-----------------------------------------------------------------------------------|
| `support_on`     | the support, with lam and omega chosen from the past data; see `selection`        |
| `wide_weight`    | probability that a task is unlike the past ones, before its first reward          |
"""

from functools import partial
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import Prior, mixture
from jlibo.fields import number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import RunSizes, TaskData, info_of, selected_prior
from jlibo.meta.exploration import AbstractExploration, FirstTasksExploration
from jlibo.meta.hierarchy import fit_hierarchy
from jlibo.meta.past import PastTasks, in_order, latest, no_past, num_kept, remember
from jlibo.meta.selection import AbstractPathLearner, selection_path, support_on


@final
class AdaptiveState(eqx.Module):
    """State of `AdaptiveMetaKGL`: the past tasks, and the support and prior learned from them."""

    past: PastTasks
    num_done: Int[Array, ""]
    """Number of tasks in `past`, whose places are in order of time."""
    support: Bool[Array, " groups"]
    learned: Prior


@final
class AdaptiveMetaKGL(AbstractPathLearner):
    """Meta-learner of support, mean and covariance from all data of past tasks, with little exploration.

    Standardise the rewards (`jlibo.Standardise`): the wide prior assumes functions of magnitude one.

    **Arguments:** the fields below; all have defaults.

    **Raises:** `ValueError` for a hyper-parameter out of range.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=1.0, noise_std=0.1), jlibo.AdaptiveMetaKGL()
    result = jlibo.run_lifelong(
        env, features, policy, learner, num_tasks=3, horizon=16, scaling=jlibo.Standardise(), key=key
    )
    print(result.regret.sum(axis=1))
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0), default=0.1)
    """Noise of the rewards in the selection, and initial value of the noise that is learned. Above 0."""
    wide_weight: Float[Array, ""] = eqx.field(
        converter=number("wide_weight", above=0, at_most=1), default=0.1
    )
    """Weight of the wide prior in the mixture before a task's first reward. Above 0, at most 1."""
    residual_weight: Float[Array, ""] = eqx.field(
        converter=number("residual_weight", at_least=0, at_most=1), default=0.1
    )
    """Share of the wide covariance that is added to the learned one. From 0 to 1."""
    covariance_tasks: Float[Array, ""] = eqx.field(converter=number("covariance_tasks", above=0), default=5.0)
    """Strength of the prior on the covariance, in tasks; see `jlibo.meta.hierarchy`. Above 0."""
    mean_tasks: Float[Array, ""] = eqx.field(converter=number("mean_tasks", above=0), default=1.0)
    """Strength of the prior on the mean, in tasks of mean zero. Above 0."""
    unselected_weight: Float[Array, ""] = eqx.field(
        converter=number("unselected_weight", at_least=0, at_most=1), default=0.1
    )
    """Share of the prior variance that is spread over all kernels, so that a kernel that was wrongly left out
    can still be learned. From 0 to 1."""
    select: bool = eqx.field(static=True, default=True)
    """Whether to select kernels; if False, the hierarchy is learned on all of them."""
    num_lams: int = eqx.field(static=True, default=8)
    """Number of penalties on the group-lasso path."""
    num_steps: int = eqx.field(static=True, default=10)
    """Number of EM steps after each task. They always start from the wide prior, so the result depends on the
    tasks only."""
    exploration: AbstractExploration = FirstTasksExploration(num_steps=5)
    """Default schedule of forced exploration."""
    tol: float = 1e-3
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 300
    """Maximum number of steps of each solve."""
    max_past: int | None = size("max_past", None)
    """Most past tasks to keep and to learn from, the latest; None for all. It bounds time and memory of an
    update, and lets the learner follow tasks that change. In docs/theory.md, "Long runs" says how many."""

    data: ClassVar[str] = "all"

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        support = jnp.ones(sizes.num_groups, bool)
        learned = self._matrix(selected_prior(support, sizes), sizes)
        past = no_past(self.data, sizes, most=self.max_past)
        return AdaptiveState(past, jnp.zeros((), jnp.int32), support, learned)

    def prior(self, state, sizes):
        wide = self._matrix(selected_prior(jnp.ones(sizes.num_groups, bool), sizes), sizes)
        residual = self.residual_weight * wide.covariance
        learned = eqx.tree_at(lambda p: p.covariance, state.learned, state.learned.covariance + residual)
        # Without any task the prior is the wide one.
        weight = jnp.where(state.num_done > 0, self.wide_weight, 1)
        return mixture([learned, wide], jnp.stack([1 - weight, weight]))

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        num_done = state.num_done + 1
        return self.learn(in_order(past, num_done, sizes), num_done, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        return self.learn_on(self.path(past, sizes), past, num_done, sizes)

    def path(self, past: PastTasks, sizes: RunSizes):
        if not self.select:
            return None
        past = latest(past, self.max_past)
        return selection_path(past, sizes, num_lams=self.num_lams, tol=self.tol, max_steps=self.max_steps)

    def learn_on(self, path, past: PastTasks, num_done, sizes):
        past = latest(past, self.max_past)
        support, solution = jnp.ones(sizes.num_groups, bool), None
        if path is not None:
            support, solution = support_on(path, past, self.noise_std.astype(sizes.dtype), sizes)
        chosen, every = selected_prior(support, sizes), selected_prior(jnp.ones_like(support), sizes)
        share = self.unselected_weight.astype(sizes.dtype)
        wide = Prior(chosen.mean, (1 - share) * chosen.covariance + share * every.covariance)
        learned = fit_hierarchy(
            past,
            self._matrix(wide, sizes),
            wide,
            num_steps=self.num_steps,
            covariance_tasks=self.covariance_tasks.astype(sizes.dtype),
            mean_tasks=self.mean_tasks.astype(sizes.dtype),
            noise_std=self.noise_std.astype(sizes.dtype),
        )
        # Without any task there is no mean to be uncertain about: the state is that of `init`.
        first = self.init(sizes)
        learned = jax.tree.map(partial(jnp.where, num_done > 0), learned, first.learned)
        new = AdaptiveState(past, num_kept(past, num_done), support, learned)
        return new, info_of(support, solution, sizes)

    def _matrix(self, prior: Prior, sizes: RunSizes) -> Prior:
        """Return a diagonal prior with a full covariance matrix and a noise, the shape of a learned prior."""
        return Prior(prior.mean, jnp.diag(prior.covariance), self.noise_std.astype(sizes.dtype))
