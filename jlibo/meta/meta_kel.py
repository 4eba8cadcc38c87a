"""Meta-KeL: a sum of base kernels with sparse weights (Kassraie, Rothfuss & Krause 2022).

| here           | Meta-KeL                                                                          |
|----------------|-----------------------------------------------------------------------------------|
| `lam`          | lambda                                                                            |
| the weights    | eta_j >= 0 of k_hat = sum_j eta_j k_j                                             |
| `beta_min`     | c_1, the smallest group norm of a kernel in use                                   |

Our reading of the method: Meta-KeL minimises over eta >= 0 the sum over tasks of a ridge fit in the kernel
k_eta = sum_j eta_j k_j plus an l1 penalty on eta,

    (1/N) sum_s min_{f_s} [ ||y_s - f_s||^2 + (lam N / 2) ||f_s||^2_{k_eta} ] + (lam / 2) ||eta||_1 .

With f_s = sum_j phi_j . b_s^(j) and ||f_s||^2 = sum_j ||b_s^(j)||^2 / eta_j, the best eta for given
coefficients is eta_j = ||b^(j)||_2 over all tasks, and the remaining problem is the group lasso of eq. (1) of
the LiBO paper. So the fit is the same as that of Meta-KGL; its use differs. Meta-KeL keeps every kernel with
a non-zero weight, with this weight; Meta-KGL applies a threshold and averages. Meta-KeL therefore guarantees
only that the true kernels are among those kept. In our reading the weights are scaled to sum to one, so that
k(x, x) <= 1 ("normalised"). The paper has k_hat = sum_j (eta_j / c_1) k_j ("printed"), whose scale grows with
the root of the number of tasks.
"""

from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner, TaskData, free_mask, group_array, info_of
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.meta_kgl import no_coef, solve_past
from jlibo.meta.past import PastTasks, latest, no_past, num_kept, put, remember
from jlibo.meta.rows import DATA_CHOICES


@final
class MetaKeLState(eqx.Module):
    """State of `MetaKeL`: the past tasks and the fit to them."""

    past: PastTasks
    num_done: Int[Array, ""]
    """Number of tasks so far, without those that `learn` left out. The next one gets this place."""
    coef: Float[Array, "tasks features"]
    """The last solution; the next solve is warm-started from it."""
    weights: Float[Array, " groups"]
    """Weight of each kernel."""


@final
class MetaKeL(AbstractMetaLearner):
    """Meta-learner with kernel weights instead of a selection, with which the paper compares.

    **Arguments:** the fields below; `lam` is required.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `data`.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKeL(lam=0.1)
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=3, horizon=16, key=key)
    print(result.support)
    ```
    """

    lam: Float[Array, ""] = eqx.field(converter=number("lam", at_least=0))
    """Penalty lambda of the group lasso, at least 0."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    exploration: AbstractExploration = DecreasingExploration()
    """Default schedule of forced exploration."""
    tol: float = 1e-6
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 10_000
    """Maximum number of steps of each solve."""
    scaling: str = choice("scaling", ("normalised", "printed"))
    """Scale of the weights: they sum to one ("normalised"), or are eta_j / `beta_min` ("printed")."""
    beta_min: Float[Array, ""] = eqx.field(converter=number("beta_min", above=0), default=1.0)
    """c_1, of the printed scaling. Above 0."""
    max_past: int | None = size("max_past", None)
    """Most past tasks to keep and to learn from, the latest; None for all. It bounds time and memory of an
    update, and lets the learner follow tasks that change. In docs/theory.md, "Long runs" says how many."""

    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        even = _even(jnp.zeros(sizes.num_groups, sizes.dtype), sizes)
        past = no_past(self.data, sizes, most=self.max_past)
        return MetaKeLState(past, jnp.zeros((), jnp.int32), no_coef(past), even)

    def prior(self, state, sizes):
        weights = jnp.where(free_mask(sizes), 1, state.weights)[group_array(sizes)]
        return Prior(jnp.zeros_like(weights), weights)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        init = put(state.coef, state.num_done, 0)
        return self._fit(past, state.num_done + 1, init, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        past = latest(past, self.max_past)
        return self._fit(past, num_kept(past, num_done), no_coef(past), sizes)

    def _fit(self, past: PastTasks, num_done: Int[Array, ""], init: Float[Array, "tasks features"], sizes):
        solution = solve_past(past, self.lam, sizes, init=init, tol=self.tol, max_steps=self.max_steps)
        norms = jnp.nan_to_num(solution.group_norms)
        weights = _even(norms, sizes)
        if self.scaling == "printed":
            # Without a kernel in use, all have the weights of the first prior.
            weights = jnp.where(norms.any(), norms / self.beta_min, weights).astype(weights.dtype)
        state = MetaKeLState(past, num_done, jnp.nan_to_num(solution.coef), weights)
        return state, info_of(norms > 0, solution, sizes)


def _even(norms, sizes):
    """Return weights that sum to one, proportional to the norms; equal if all norms are zero."""
    norms = jnp.where(norms.sum() > 0, norms, ~free_mask(sizes))
    return norms / norms.sum()
