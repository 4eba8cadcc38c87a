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
from jlibo.meta.base import AbstractMetaLearner, Setting, TaskData, info_of, no_support, selected_prior
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.rows import Rows, check_data_choice, num_rows, rows_of
from jlibo.solver.group_lasso import Solution, group_lasso


class History(eqx.Module):
    """The tasks so far, each as a fixed number of rows, and the solution to start the next solve from."""

    features: Float[Array, "tasks rows features"]
    targets: Float[Array, "tasks rows"]
    num_observations: Float[Array, " tasks"]
    coef: Float[Array, "tasks features"]
    num_done: Int[Array, ""]


def empty_history(rows_per_task: int, setting: Setting) -> History:
    shape = (setting.num_tasks, rows_per_task)
    return History(
        features=jnp.zeros((*shape, setting.num_features), setting.dtype),
        targets=jnp.zeros(shape, setting.dtype),
        num_observations=jnp.zeros(setting.num_tasks, setting.dtype),
        coef=jnp.zeros((setting.num_tasks, setting.num_features), setting.dtype),
        num_done=jnp.zeros((), jnp.int32),
    )


def append(history: History, rows: Rows) -> History:
    """The history with one more task; its coefficients start from zero."""
    at = history.num_done
    return History(
        features=history.features.at[at].set(rows.features),
        targets=history.targets.at[at].set(rows.targets),
        num_observations=history.num_observations.at[at].set(rows.num_observations),
        coef=history.coef,
        num_done=at + 1,
    )


def solve_history(
    history: History, lam: Float[Array, ""], setting: Setting, *, tol: float, max_steps: int
) -> Solution:
    """The group lasso of eq. (1) on the history, started from the previous task's solution.

    Rows that stand for many observations, or for none, make the number of rows differ from the N of the
    loss; as only the ratio of loss to penalty matters, lam takes the difference.
    """
    ratio = history.num_observations.sum() / history.targets.size
    solution = group_lasso(
        history.features,
        history.targets,
        lam * ratio,
        groups=setting.groups,
        init=history.coef,
        tol=tol,
        max_steps=max_steps,
    )
    return eqx.tree_at(lambda s: s.gap, solution, solution.gap / jnp.maximum(ratio, 1e-30))


class MetaKGLState(eqx.Module):
    history: History
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

    def init(self, setting):
        return MetaKGLState(empty_history(num_rows(self.data, setting), setting), no_support(setting))

    def prior(self, state, setting):
        return selected_prior(state.support, setting)

    def update(self, state, data: TaskData, setting):
        history = append(state.history, rows_of(data, self.data, setting))
        root = jnp.sqrt(history.num_done.astype(setting.dtype))
        lam = self.lam / root if self.lam_scaling == "sqrt" else self.lam
        solution = solve_history(history, lam, setting, tol=self.tol, max_steps=self.max_steps)
        support = solution.group_norms > self.omega * root
        # A solve that failed must not become the start of the next one.
        coef = jnp.nan_to_num(solution.coef)
        history = eqx.tree_at(lambda h: h.coef, history, coef)
        return MetaKGLState(history, support), info_of(support, solution, setting)
