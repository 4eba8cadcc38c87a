"""Meta-KGL: one group lasso over all past tasks, thresholded to a kernel (paper, section 3, eq. 1).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `lam`           | lambda                                                                           |
| `omega`         | omega; j is kept when its group norm over s tasks exceeds omega sqrt(s)          |
| `data`          | D^exp_{1:s} ("exploration") or D_{1:s} ("all", the variant of the appendix)      |
| `lam_scaling`   | "constant", or "sqrt": lam / sqrt(s), as the consistency theorem asks            |
| the prior       | k_hat_s = (1/|J_hat|) sum_{j in J_hat} k_j                                       |
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import fail
from jlibo.fields import hyper_parameter
from jlibo.meta.base import AbstractMetaLearner, RunSizes, TaskData, info_of, no_support, selected_prior
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.past import PastTasks, no_past, penalised, remember
from jlibo.meta.rows import check_data_choice
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
    """The group lasso of eq. (1) on all past tasks, started from `init`, if given.

    Rows that stand for many observations, or for none, make the number of rows differ from the N of the
    loss; as only the ratio of loss to penalty matters, lam takes the difference.
    """
    features, targets = penalised(past, sizes)
    ratio = past.num_observations.sum() / targets.size
    solution = group_lasso(
        features, targets, lam * ratio, groups=sizes.groups, init=init, tol=tol, max_steps=max_steps
    )
    return eqx.tree_at(lambda s: s.gap, solution, solution.gap / jnp.maximum(ratio, 1e-30))


def no_coef(sizes: RunSizes) -> Float[Array, "tasks features"]:
    """Where the first solve of a run starts from."""
    return jnp.zeros((sizes.num_tasks, sizes.num_features), sizes.dtype)


class MetaKGLState(eqx.Module):
    past: PastTasks
    num_done: Int[Array, ""]
    coef: Float[Array, "tasks features"]
    """The last solution, from which the next solve starts."""
    support: Bool[Array, " groups"]


class MetaKGL(AbstractMetaLearner):
    """LiBO's meta-learner: every past task counts, their data stay together."""

    lam: Float[Array, ""] = hyper_parameter("lam", at_least=0)
    omega: Float[Array, ""] = hyper_parameter("omega", at_least=0)
    data: str = eqx.field(static=True, default="exploration", converter=check_data_choice)
    lam_scaling: str = eqx.field(static=True, default="constant")
    exploration: AbstractExploration = DecreasingExploration()
    tol: float = 1e-6
    max_steps: int = 10_000

    def __check_init__(self):
        if self.lam_scaling not in ("constant", "sqrt"):
            fail("lam_scaling", "'constant' or 'sqrt'", repr(self.lam_scaling))

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
        lam = self.lam / root if self.lam_scaling == "sqrt" else self.lam
        solution = solve_past(past, lam, sizes, init=init, tol=self.tol, max_steps=self.max_steps)
        support = solution.group_norms > self.omega * root
        # A solve that failed must not become the start of the next one.
        coef = jnp.nan_to_num(solution.coef)
        return MetaKGLState(past, num_done, coef, support), info_of(support, solution, sizes)
