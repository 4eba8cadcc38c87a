"""Meta-KeL: a weighted sum of base kernels, its weights sparse (Kassraie, Rothfuss & Krause 2022).

| here           | Meta-KeL                                                                          |
|----------------|-----------------------------------------------------------------------------------|
| `lam`          | lambda                                                                            |
| the weights    | eta_j >= 0 of k_hat = sum_j eta_j k_j                                             |

Our reading. Meta-KeL minimises over eta >= 0 the sum over tasks of a ridge fit in the kernel
k_eta = sum_j eta_j k_j plus an l1 penalty on eta,

    (1/N) sum_s min_{f_s} [ ||y_s - f_s||^2 + (lam N / 2) ||f_s||^2_{k_eta} ] + (lam / 2) ||eta||_1 .

With f_s = sum_j phi_j . b_s^(j) and ||f_s||^2 = sum_j ||b_s^(j)||^2 / eta_j, the best eta for given
coefficients is eta_j = ||b^(j)||_2 over all tasks, and what remains is the group lasso of eq. (1) of the
LiBO paper. So the fit is the same; what differs is what becomes of it: Meta-KeL keeps every kernel with a
non-zero weight, and its weights, where Meta-KGL thresholds and averages. That is why it can only promise
that the true kernels are among those kept. The weights are scaled to sum to one, so that k(x, x) <= 1.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jlibo.belief.prior import Prior
from jlibo.fields import hyper_parameter
from jlibo.meta.base import AbstractMetaLearner, TaskData, free_mask, group_array, info_of
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.meta_kgl import no_coef, solve_past
from jlibo.meta.past import PastTasks, no_past, remember
from jlibo.meta.rows import check_data_choice


class MetaKeLState(eqx.Module):
    past: PastTasks
    num_done: Int[Array, ""]
    coef: Float[Array, "tasks features"]
    """The last solution, from which the next solve starts."""
    weights: Float[Array, " groups"]


class MetaKeL(AbstractMetaLearner):
    """The predecessor that the paper compares with: weights instead of a selection."""

    lam: Float[Array, ""] = hyper_parameter("lam", at_least=0)
    data: str = eqx.field(static=True, default="exploration", converter=check_data_choice)
    exploration: AbstractExploration = DecreasingExploration()
    tol: float = 1e-6
    max_steps: int = 10_000

    def init(self, sizes):
        even = _even(jnp.zeros(sizes.num_groups, sizes.dtype), sizes)
        past = no_past(self.data, sizes)
        return MetaKeLState(past, jnp.zeros((), jnp.int32), no_coef(sizes), even)

    def prior(self, state, sizes):
        weights = jnp.where(free_mask(sizes), 1, state.weights)[group_array(sizes)]
        return Prior(jnp.zeros_like(weights), weights)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        return self._fit(past, state.num_done + 1, state.coef, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        return self._fit(past, num_done, no_coef(sizes), sizes)

    def _fit(self, past: PastTasks, num_done: Int[Array, ""], init: Float[Array, "tasks features"], sizes):
        solution = solve_past(past, self.lam, sizes, init=init, tol=self.tol, max_steps=self.max_steps)
        norms = jnp.nan_to_num(solution.group_norms)
        state = MetaKeLState(past, num_done, jnp.nan_to_num(solution.coef), _even(norms, sizes))
        return state, info_of(norms > 0, solution, sizes)


def _even(norms, sizes):
    """Weights that sum to one: in proportion to the norms, or equal when all are zero."""
    norms = jnp.where(norms.sum() > 0, norms, ~free_mask(sizes))
    return norms / norms.sum()
