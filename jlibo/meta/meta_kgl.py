"""Meta-KGL: a kernel selected by one group lasso over all past tasks (paper, section 3, eq. 1).

| here            | paper                                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `lam`           | lambda                                                                           |
| `omega`         | omega; j is kept when its group norm over s tasks exceeds omega sqrt(s)          |
| `data`          | D^exp_{1:s} ("exploration") or D_{1:s} ("all", the variant of the appendix)      |
| `lam_scaling`   | "sqrt": lam / sqrt(s), as in Theorem 3.3; "noise": above the noise event of App. D |
| `omega_scaling` | "penalty": omega in units of the error that the penalty causes                   |
| the prior       | k_hat_s = (1/|J_hat|) sum_{j in J_hat} k_j                                       |
"""

from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import (
    AbstractMetaLearner,
    RunSizes,
    TaskData,
    info_of,
    no_support,
    selected_prior,
)
from jlibo.meta.exploration import AbstractExploration, DecreasingExploration
from jlibo.meta.noise import estimate_noise, mean_squares, noise_scale, reward_scale, spread_kappa
from jlibo.meta.past import PastTasks, latest, no_past, num_kept, penalised, put, remember
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


def no_coef(past: PastTasks) -> Float[Array, "tasks features"]:
    """Return the initial coefficients of the first solve on a history."""
    return jnp.zeros_like(past.features[:, 0])


@final
class MetaKGLState(eqx.Module):
    """State of `MetaKGL`: the past tasks and the fit to them."""

    past: PastTasks
    num_done: Int[Array, ""]
    """Number of tasks so far, without those that `learn` left out. The next one gets this place."""
    coef: Float[Array, "tasks features"]
    """The last solution; the next solve is warm-started from it."""
    support: Bool[Array, " groups"]


@final
class MetaKGL(AbstractMetaLearner):
    """Meta-learner of LiBO: one group lasso over the data of all past tasks.

    We recommend `MetaKGL(1 / 8, omega, lam_scaling="bracket")`: the lam of Theorem 3.3 with s* and kappa from
    the data. omega is half of the smallest coefficient that matters, such as 0.25 for standardised rewards.
    docs/theory.md has its regret beside that of a tuned lam. In tuning, where the best score found counts,
    `SelfTunedMetaKGL` is better.

    **Arguments:** the fields below; `lam` and `omega` are required.

    **Raises:** `ValueError` for a hyper-parameter out of range, or an unknown `data`, `lam_scaling`
    or `omega_scaling`.

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

    lam: Float[Array, ""] = eqx.field(converter=number("lam", at_least=0))
    """Penalty lambda of the group lasso; see `lam_scaling`. At least 0."""
    omega: Float[Array, ""] = eqx.field(converter=number("omega", at_least=0))
    """After s tasks, a kernel is selected if its group norm exceeds omega * sqrt(s); see `omega_scaling`. At
    least 0."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    lam_scaling: str = choice("lam_scaling", ("constant", "sqrt", "noise", "estimated", "bracket"))
    """Penalty after s tasks: lam ("constant"), lam / sqrt(s) ("sqrt"), or lam times a number from the data.
    With "noise", it is the size of noise of level one in the data (`jlibo.meta.noise.noise_scale`); the
    theory's lam is then four times the noise level. "estimated" also estimates that level
    (`jlibo.theory.estimate_noise`); the theory's lam is then 4. With "bracket", it is omega * kappa^2 /
    sqrt(s) at the upper end of kappa's bracket (`jlibo.theory.kappa_upper`), with omega in the units of the
    rewards; the theorem's lam is then 1/8."""
    omega_scaling: str = choice("omega_scaling", ("constant", "rewards", "penalty"))
    """Threshold of a group norm after s tasks: omega * sqrt(s) ("constant"); the same times the root mean
    square of the rewards ("rewards"); or omega * lam * s / z_j with the penalty lam and the mean square z_j
    of a feature of kernel j ("penalty"). With "penalty", omega = 3/4 is the error that penalty and noise
    cause if features are orthogonal (`jlibo.theory.penalty_omega`)."""
    exploration: AbstractExploration = DecreasingExploration()
    """Default schedule of forced exploration."""
    tol: float = 1e-6
    """Relative duality gap at which the group lasso stops."""
    max_steps: int = 10_000
    """Maximum number of steps of each solve."""
    max_past: int | None = size("max_past", None)
    """Most past tasks to keep and to learn from, the latest; None for all. It bounds time and memory of an
    update, and lets the learner follow tasks that change. In docs/theory.md, "Long runs" says how many."""

    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        past = no_past(self.data, sizes, most=self.max_past)
        return MetaKGLState(past, jnp.zeros((), jnp.int32), no_coef(past), no_support(sizes))

    def prior(self, state, sizes):
        return selected_prior(state.support, sizes)

    def update(self, state, data: TaskData, sizes):
        past = remember(state.past, state.num_done, data, self.data, sizes)
        init = put(state.coef, state.num_done, 0)
        return self._fit(past, state.num_done + 1, init, sizes)

    def learn(self, past: PastTasks, num_done, sizes):
        past = latest(past, self.max_past)
        return self._fit(past, num_kept(past, num_done), no_coef(past), sizes)

    def _fit(self, past: PastTasks, num_done: Int[Array, ""], init: Float[Array, "tasks features"], sizes):
        num_tasks = num_kept(past, num_done)
        lam = self._penalty(past, num_tasks, sizes)
        solution = solve_past(past, lam, sizes, init=init, tol=self.tol, max_steps=self.max_steps)
        support = solution.group_norms > self._threshold(past, lam, num_tasks, sizes)
        # A failed solve has NaN coefficients, which must not be the start of the next one.
        coef = jnp.nan_to_num(solution.coef)
        return MetaKGLState(past, num_done, coef, support), info_of(support, solution, sizes)

    def _penalty(self, past: PastTasks, num_tasks: Int[Array, ""], sizes: RunSizes) -> Float[Array, ""]:
        if self.lam_scaling == "constant":
            return self.lam
        root = jnp.sqrt(num_tasks.astype(sizes.dtype))
        if self.lam_scaling == "sqrt":
            return self.lam / root
        if self.lam_scaling == "noise":
            return self.lam * noise_scale(past, sizes)
        noise = estimate_noise(past, sizes)
        if self.lam_scaling == "estimated":
            return self.lam * noise.noise_std * noise_scale(past, sizes)
        size = jnp.maximum(noise.num_explained, 1)
        return self.lam * self._omega(past, sizes) * spread_kappa(mean_squares(past, sizes), size) ** 2 / root

    def _omega(self, past: PastTasks, sizes: RunSizes) -> Float[Array, ""]:
        """Return omega in the units of the rewards."""
        return self.omega * reward_scale(past, sizes) if self.omega_scaling == "rewards" else self.omega

    def _threshold(
        self, past: PastTasks, lam: Float[Array, ""], num_tasks: Int[Array, ""], sizes: RunSizes
    ) -> Float[Array, "*groups"]:
        count = num_tasks.astype(sizes.dtype)
        if self.omega_scaling != "penalty":
            return self._omega(past, sizes) * jnp.sqrt(count)
        squares = mean_squares(past, sizes)
        return self.omega * lam * count / jnp.where(squares > 0, squares, 1)
