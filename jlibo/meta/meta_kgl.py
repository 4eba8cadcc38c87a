"""Meta-KGL: a kernel selected by one group lasso over all past tasks (paper, section 3, eq. 1).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `lam`           | lambda                                                                           |
| `omega`         | omega; j is kept when its group norm over s tasks exceeds omega sqrt(s)          |
| `data`          | D^exp_{1:s} ("exploration") or D_{1:s} ("all", the variant of the appendix)      |
| `lam_scaling`   | "constant", or "sqrt": lam / sqrt(s), as in the consistency theorem              |
| `noise_scale`   | lambda / (4 sigma) at which the noise event of App. D has probability 1 - delta  |
| the prior       | k_hat_s = (1/|J_hat|) sum_{j in J_hat} k_j                                       |
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.fields import choice, hyper_parameter
from jlibo.meta.base import (
    AbstractMetaLearner,
    RunSizes,
    TaskData,
    group_array,
    info_of,
    no_support,
    selected_prior,
)
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.past import PastTasks, no_past, penalised, remember
from jlibo.meta.rows import DATA_CHOICES
from jlibo.solver.group_lasso import Solution, group_lasso


def solve_past(
    past: PastTasks,
    lam: Float[Array, ""],
    sizes: RunSizes,
    *,
    init: Float[Array, "tasks features"] | None = None,
    tol: float,
    max_steps: int,
) -> Solution:
    """Return the solution of the group lasso of eq. (1) on all past tasks, warm-started from `init`.

    The number of rows differs from the N of the loss, because compressed rows represent more than one
    observation and padding represents none. Only the ratio of loss to penalty matters, so lam is scaled
    instead. The gap is that of eq. (1).
    """
    features, targets = penalised(past, sizes)
    ratio = past.num_observations.sum() / targets.size
    solution = group_lasso(
        features, targets, lam * ratio, groups=sizes.groups, init=init, tol=tol, max_steps=max_steps
    )
    return eqx.tree_at(lambda s: s.gap, solution, solution.gap / jnp.maximum(ratio, 1e-30))


NOISE_DELTA = 0.1
"""Probability that the noise exceeds the penalty of `lam_scaling="noise"` for some kernel."""


def noise_scale(past: PastTasks, sizes: RunSizes) -> Float[Array, ""]:
    """Return the smallest lam / (4 sigma) at which App. D bounds noise of level sigma below the penalty.

    That is `max_j (sqrt(T_j) + sqrt(2 t_j log(p / delta))) / N`, where T_j is the trace of the features of
    kernel j over all tasks and t_j the largest trace of a task, which bounds the spectral norm. It needs
    neither c_1 nor kappa. It is 0 without data.
    """
    features, _ = penalised(past, sizes)
    by_feature = (features**2).sum(1)
    traces = jax.ops.segment_sum(by_feature.T, group_array(sizes), num_segments=sizes.num_groups)
    log_term = np.log(sizes.num_groups / NOISE_DELTA)
    spread = jnp.sqrt(traces.sum(1)) + jnp.sqrt(2 * log_term * traces.max(1))
    return spread.max() / jnp.maximum(past.num_observations.sum(), 1)


def no_coef(sizes: RunSizes) -> Float[Array, "tasks features"]:
    """Return the initial coefficients of the first solve of a run."""
    return jnp.zeros((sizes.num_tasks, sizes.num_features), sizes.dtype)


@final
class MetaKGLState(eqx.Module):
    """State of `MetaKGL`: the past tasks and the fit to them."""

    past: PastTasks
    num_done: Int[Array, ""]
    coef: Float[Array, "tasks features"]
    """The last solution; the next solve is warm-started from it."""
    support: Bool[Array, " groups"]


@final
class MetaKGL(AbstractMetaLearner):
    """Meta-learner of LiBO: one group lasso over the data of all past tasks.

    **Arguments:** the fields below; `lam` and `omega` are required.

    **Raises:** `ValueError` for a hyper-parameter out of range, or an unknown `data` or `lam_scaling`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.support)
    ```
    """

    lam: Float[Array, ""] = hyper_parameter("lam", at_least=0)
    """Penalty lambda of the group lasso, at least 0."""
    omega: Float[Array, ""] = hyper_parameter("omega", at_least=0)
    """After s tasks, a kernel is selected if its group norm exceeds omega * sqrt(s). At least 0."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    lam_scaling: str = choice("lam_scaling", ("constant", "sqrt", "noise"))
    """Penalty after s tasks: lam ("constant"), lam / sqrt(s) ("sqrt"), or lam times the size that noise of
    level one has in the data ("noise", see `jlibo.meta.meta_kgl.noise_scale`). With "noise", the theorem's
    lam is four times the noise level."""
    exploration: AbstractExploration = DecreasingExploration()
    """Default schedule of forced exploration."""
    tol: float = 1e-6
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 10_000
    """Maximum number of steps of each solve."""

    noise_std: ClassVar[None] = None

    def init(self, sizes):
        past = no_past(self.data, sizes)
        return MetaKGLState(past, jnp.zeros((), jnp.int32), no_coef(sizes), no_support(sizes))

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        return self._fit(past, state.num_done + 1, state.coef, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        return self._fit(past, num_done, no_coef(sizes), sizes)

    def _fit(self, past: PastTasks, num_done: Int[Array, ""], init: Float[Array, "tasks features"], sizes):
        root = jnp.sqrt(num_done.astype(sizes.dtype))
        lam = self.lam
        if self.lam_scaling == "sqrt":
            lam = lam / root
        elif self.lam_scaling == "noise":
            lam = lam * noise_scale(past, sizes)
        solution = solve_past(past, lam, sizes, init=init, tol=self.tol, max_steps=self.max_steps)
        support = solution.group_norms > self.omega * root
        # A failed solve has NaN coefficients, which must not be the start of the next one.
        coef = jnp.nan_to_num(solution.coef)
        return MetaKGLState(past, num_done, coef, support), info_of(support, solution, sizes)
