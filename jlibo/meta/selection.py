"""Selection of kernels without given lam and omega, by the likelihood of the past tasks' rewards.

The theory's lam and omega depend on c_1, B and the noise, which are unknown outside of a simulation. The
group-lasso path gives two selections for every lam, one of them with a threshold. `choose_support` returns
the selection whose kernel has the highest likelihood of the past rewards. The likelihood is a product over
rewards, each predicted from the earlier ones of its task, so every row is held out once.

| here                | paper                                                                      |
|---------------------|----------------------------------------------------------------------------|
| `choose_support`    | J_hat_s, with lambda and omega of eq. (1) chosen from a grid by the data   |
| `selection_path`    | its first part: beta_hat of eq. (1) for all lambda of the grid             |
| `support_on`        | its second part: the choice                                                |
| `SelfTunedMetaKGL`  | Meta-KGL with that choice after every task                                 |
"""

import abc
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import (
    AbstractMetaLearner,
    MetaInfo,
    RunSizes,
    TaskData,
    free_mask,
    group_array,
    info_of,
    no_support,
    selected_prior,
)
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.hierarchy import log_evidence
from jlibo.meta.past import PastTasks, in_order, latest, no_past, num_kept, penalised, remember, sample_tasks
from jlibo.meta.rows import DATA_CHOICES
from jlibo.solver.group_lasso import Solution, group_lasso_path, lam_grid, lambda_max

NUM_ERRORS = 2.0
"""Standard errors by which a guarded selection has to be more likely than the whole set."""
SELECTION_TASKS = 64
"""Most tasks that the selection uses. The support is shared by all tasks, and more change it little."""


class AbstractPathLearner(AbstractMetaLearner):
    """A meta-learner whose `learn` is `learn_on` of its `path`.

    The path may be computed in a program of its own: it takes long to compile and little time to run, and for
    the rest it is the other way round.
    """

    @abc.abstractmethod
    def path(self, past: PastTasks, sizes: RunSizes) -> Solution | None:
        """Return the group-lasso path from which the support is chosen; None if nothing is selected."""

    @abc.abstractmethod
    def learn_on(
        self, path: Solution | None, past: PastTasks, num_done: Int[Array, ""], sizes: RunSizes
    ) -> tuple[Any, MetaInfo]:
        """Return the result of `learn`, given the path."""


def choose_support(
    past: PastTasks,
    noise_std: Float[Array, ""],
    sizes: RunSizes,
    *,
    num_lams: int,
    tol: float,
    max_steps: int,
    guarded: bool = False,
) -> tuple[Bool[Array, " groups"], Solution]:
    """Return `support_on` the group-lasso path of the past: `selection_path` with the other arguments."""
    path = selection_path(past, sizes, num_lams=num_lams, tol=tol, max_steps=max_steps)
    return support_on(path, past, noise_std, sizes, guarded=guarded)


def selection_path(
    past: PastTasks, sizes: RunSizes, *, num_lams: int, tol: float, max_steps: int
) -> Solution:
    """Return the group lasso on the past for `num_lams` penalties from `lambda_max` downwards.

    It is computed on the features with a penalty; the others have zeros. Of more than `SELECTION_TASKS`
    tasks, evenly spaced ones are used. `tol` and `max_steps` are those of `group_lasso`.
    """
    past = sample_tasks(past, SELECTION_TASKS)
    features, targets = penalised(past, sizes)
    is_used, used_groups = _penalised_features(sizes)
    features, groups = features[..., is_used], np.searchsorted(used_groups, group_array(sizes)[is_used])
    largest = lambda_max(features, targets, groups=groups)
    lams = lam_grid(jnp.maximum(largest, jnp.finfo(sizes.dtype).tiny), num_lams=num_lams, smallest_ratio=1e-2)
    path = group_lasso_path(features, targets, lams, groups=groups, tol=tol, max_steps=max_steps)
    norms = jnp.zeros((num_lams, sizes.num_groups), sizes.dtype).at[:, used_groups].set(path.group_norms)
    coef = jnp.zeros((*path.coef.shape[:2], sizes.num_features), sizes.dtype)
    coef = coef.at[..., np.flatnonzero(is_used)].set(path.coef)
    return eqx.tree_at(lambda solution: (solution.coef, solution.group_norms), path, (coef, norms))


def support_on(
    path: Solution,
    past: PastTasks,
    noise_std: Float[Array, ""],
    sizes: RunSizes,
    *,
    guarded: bool = False,
) -> tuple[Bool[Array, " groups"], Solution]:
    """Return the selection on the group-lasso path with the highest likelihood of the past rewards.

    Candidates are the whole set and, for every lam of the path below `lambda_max`, the kernels with a
    non-zero norm and those with more than a tenth of the largest norm. This chooses both lam and omega. The
    whole set wins ties.

    **Arguments:**

    - `path`: the solutions, made by `selection_path`.
    - `past`: the finished tasks. Of more than `SELECTION_TASKS`, evenly spaced ones are used.
    - `noise_std`: noise of the rewards in the likelihood.
    - `sizes`: sizes of the run.
    - `guarded`: whether a smaller set than the whole needs evidence; see `SelfTunedMetaKGL.guarded`.

    **Returns:** the support without the free groups, and the solve that it came from, with status, gap and
    number of steps. The whole set comes with the solve at `lambda_max`, where the path starts: its solution
    is zero, and the kernel of an empty selection is that of the whole set.
    """
    past = sample_tasks(past, SELECTION_TASKS)
    num_lams = len(path.status)
    whole = jnp.ones((1, sizes.num_groups), bool)
    norms = path.group_norms[1:]
    candidates = jnp.concatenate([whole, norms > 0, norms > 0.1 * norms.max(1, keepdims=True)])
    solve_of = jnp.asarray(np.r_[0, 1:num_lams, 1:num_lams])

    def log_likelihoods(support):
        prior = selected_prior(support, sizes)
        return log_evidence(past, Prior(prior.mean, prior.covariance, noise_std))

    # Sequential: a batch would need the memory of all candidates at once and would not be faster.
    by_task = jax.lax.map(log_likelihoods, candidates)
    scores = by_task.sum(1)
    if guarded:
        scores = jnp.where(_is_supported(candidates, by_task, past, sizes), scores, -jnp.inf)
    best = jnp.argmax(scores)
    solution = jax.tree.map(lambda leaf: leaf[solve_of[best]], path)
    return candidates[best] & ~free_mask(sizes), solution


def _penalised_features(sizes: RunSizes) -> tuple[np.ndarray, np.ndarray]:
    """Return which features have a penalty, and their groups.

    The others are columns of zeros in the group lasso. A tuner's joint group has two thirds of the features,
    and a solver of few features has fewer loops to compile. Without any penalty, all features are returned.
    """
    groups = group_array(sizes)
    is_used = ~free_mask(sizes)[groups]
    is_used = is_used if is_used.any() else np.ones_like(is_used)
    return is_used, np.unique(groups[is_used])


def _is_supported(
    candidates: Bool[Array, "candidates groups"],
    by_task: Float[Array, "candidates tasks"],
    past: PastTasks,
    sizes: RunSizes,
) -> Bool[Array, " candidates"]:
    """Return which candidates the data support against the first, the whole set."""
    num_tasks = jnp.maximum(past.is_done.sum(), 1)
    num_rows = (past.num_observations * past.is_done).sum() / num_tasks
    num_features = (candidates | free_mask(sizes))[:, group_array(sizes)].sum(1)
    gains = by_task - by_task[0]
    mean = gains.sum(1) / num_tasks
    variance = (past.is_done * (gains - mean[:, None]) ** 2).sum(1) / jnp.maximum(num_tasks - 1, 1)
    is_better = (mean > NUM_ERRORS * jnp.sqrt(variance / num_tasks)) & (num_tasks > 1)
    return (is_better & (num_features <= num_rows)).at[0].set(True)


@final
class SelfTunedState(eqx.Module):
    """State of `SelfTunedMetaKGL`: the past tasks and the selection from them."""

    past: PastTasks
    num_done: Int[Array, ""]
    """Number of tasks in `past`, whose places are in order of time."""
    support: Bool[Array, " groups"]


@final
class SelfTunedMetaKGL(AbstractPathLearner):
    """Meta-KGL that chooses lam and omega from the past data after every task.

    As in Meta-KGL, the prior has mean zero and equal weights, and exploration is forced. Standardise the
    rewards (`jlibo.Standardise`): the likelihood assumes functions of magnitude one.

    **Arguments:** the fields below; all have defaults.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `data`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=1.0, noise_std=0.1), jlibo.SelfTunedMetaKGL()
    result = jlibo.run_lifelong(
        env, features, policy, learner, num_tasks=3, horizon=16, scaling=jlibo.Standardise(), key=key
    )
    print(result.support)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0), default=0.1)
    """Noise of the rewards in the likelihood. Above 0."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    num_lams: int = eqx.field(static=True, default=8)
    """Number of penalties on the group-lasso path."""
    guarded: bool = eqx.field(static=True, default=True)
    """Whether the kernel stays full unless the data support a smaller one. Two conditions are checked. A task
    needs as many rows as the selection has features: with fewer, its coefficients are not determined, and the
    theory's assumption of sufficiently informative data cannot hold. And the mean gain in log likelihood per
    task has to be more than two standard errors above zero."""
    exploration: AbstractExploration = DecreasingExploration()
    """Default schedule of forced exploration."""
    tol: float = 1e-3
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 300
    """Maximum number of steps of each solve."""
    max_past: int | None = size("max_past", None)
    """Most past tasks to keep and to learn from, the latest; None for all. It bounds time and memory of an
    update, and lets the learner follow tasks that change. In docs/theory.md, "Long runs" says how many."""

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        past = no_past(self.data, sizes, most=self.max_past)
        return SelfTunedState(past, jnp.zeros((), jnp.int32), no_support(sizes))

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        num_done = state.num_done + 1
        return self.learn(in_order(past, num_done, sizes), num_done, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        return self.learn_on(self.path(past, sizes), past, num_done, sizes)

    def path(self, past: PastTasks, sizes: RunSizes) -> Solution:
        past = latest(past, self.max_past)
        return selection_path(past, sizes, num_lams=self.num_lams, tol=self.tol, max_steps=self.max_steps)

    def learn_on(self, path, past: PastTasks, num_done, sizes):
        assert path is not None
        past = latest(past, self.max_past)
        noise_std = self.noise_std.astype(sizes.dtype)
        support, solution = support_on(path, past, noise_std, sizes, guarded=self.guarded)
        return SelfTunedState(past, num_kept(past, num_done), support), info_of(support, solution, sizes)
