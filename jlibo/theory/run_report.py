"""The report of a finished run: measured recovery and regret beside what the theorems say about its data.

| here                       | paper                                                                       |
|----------------------------|-----------------------------------------------------------------------------|
| `exploration_design`       | Phi of D^exp_{1:m}, from the actions of a run                               |
| `RunReport.kappa`          | a bracket of kappa(Phi)                                                     |
| `RunReport.worst_case`     | the bound of Theorem 3.3 after the last task                                |
| `RunReport.own_design`     | the bound of App. D for this Phi                                            |
| `RunReport.bound`          | the terms of Theorem 4.1                                                    |
"""

import dataclasses
import math
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.belief.prior import support_prior
from jlibo.checks import check_shape, fail
from jlibo.features import AbstractFeatures
from jlibo.front_door import front_door
from jlibo.lifelong import metrics
from jlibo.lifelong.play import LifelongResult
from jlibo.theory import oracle_regret, recovery, regret
from jlibo.theory.information_gain import information_gain_bound, played_information_gain
from jlibo.theory.kappa_search import kappa_bracket
from jlibo.theory.planner import count_in_words


@front_door
def exploration_design(
    result: LifelongResult, features: AbstractFeatures, candidates: Float[Array, "candidates dim"]
) -> tuple[Float[Array, "tasks rows features"], Bool[Array, "tasks rows"]]:
    """Return the features of the forced exploration steps of a run, and which rows are present.

    **Arguments:**

    - `result`: a run of one agent, without further axes.
    - `features`: the feature map of the run.
    - `candidates`: the candidates of the environment, `env.candidates`.

    **Raises:** `ValueError` if the result has further axes, or no exploration step.
    """
    check_shape("result.explored", result.explored, ("tasks", "horizon"))
    explored = np.asarray(result.explored)
    most = int(explored.sum(1).max())
    if most == 0:
        fail("result", "a run with forced exploration steps", "none")
    # Exploration comes first in every task, so the first `most` steps contain all of it.
    rows = features(candidates)[jnp.asarray(result.actions)[:, :most]]
    return rows, jnp.asarray(explored[:, :most])


@final
@dataclasses.dataclass(frozen=True)
class RunReport:
    """What the theorems say about a finished run; returned by `report_run`. `str(report)` is in words."""

    num_tasks: int
    horizon: int
    num_kernels: int
    mean_rows: float
    """Average exploration rows a task."""
    kappa: tuple[float, float]
    """Bracket of kappa."""
    lam_largest: float
    """The lam of Theorem 3.3 at the upper end of the bracket: no larger lam has a guarantee."""
    worst_case: float
    """Bound of Theorem 3.3 on the probability of a right support, at the lower end of the bracket."""
    own_design: float
    """The same with the traces of this design (App. D)."""
    best_case: tuple[float, float]
    """Both bounds at the upper end of the bracket."""
    least_rows: float
    """Rows a task above which Theorem 3.3 says anything, at the upper end of the bracket."""
    recovered_after: int | None
    """Task after which the support stayed right; None if it did not, or the truth is unknown."""
    regret: dict[str, float]
    """Measured regret: of exploration, of the policy, in total."""
    bound: dict[str, float]
    """Terms of the bound of Theorem 4.1, at the upper end of the bracket."""
    gain: tuple[float, float]
    """Information gain of a task: the mean that was played, and the paper's bound."""

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@front_door
def report_run(
    result: LifelongResult,
    features: AbstractFeatures,
    candidates: Float[Array, "candidates dim"],
    *,
    noise_std: float,
    norm: float,
    beta_min: float,
    support_size: int,
    omega: float | None = None,
    regulariser: float = 0.1,
    delta: float = 0.1,
    true_support: Bool[Array, " groups"] | None = None,
    key: PRNGKeyArray,
) -> RunReport:
    """Return measured recovery and regret of a run beside the bounds for its own exploration data.

    **Arguments:**

    - `result`: a run of one agent, without further axes.
    - `features`, `candidates`: the feature map and the candidates of the run.
    - `noise_std`: sigma.
    - `norm`: bound on ||beta_s||_2.
    - `beta_min`: c_1.
    - `support_size`: s*.
    - `omega`: threshold; by default c_1 / 2.
    - `regulariser`: lambda_ucb, the policy's `noise_std`.
    - `delta`: probability that a guarantee fails.
    - `true_support`: J*, if it is known.
    - `key`: random key of the search for kappa.

    **Raises:** `ValueError` if the result has further axes, or no exploration step.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features, key = jlibo.Cosine(8), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=25, key=key)
    assumed = dict(noise_std=0.1, norm=10.0, beta_min=0.5, support_size=2, true_support=env.support)
    print(theory.report_run(result, features, env.candidates, **assumed, key=key))
    ```
    """
    design, mask = exploration_design(result, features, candidates)
    num_tasks, horizon = np.shape(result.regret)
    omega = beta_min / 2 if omega is None else omega
    bracket = kappa_bracket(design, support_size, groups=features.groups, mask=mask, key=key)
    lower, upper = float(bracket.lower), float(bracket.upper)
    rows = float(mask.sum()) / num_tasks
    assumed: dict[str, Any] = dict(beta_min=beta_min, omega=omega, noise_std=noise_std)

    def probabilities(kappa: float) -> tuple[float, float]:
        # Theorem 3.3 has tasks of equal size; App. E the exponent N_s / (2 n_1) for others.
        failures = regret.failure_by_task(mask.sum(1), features.num_groups, kappa=kappa, **assumed)
        own = recovery.design_recovery_probability(
            design, kappa=kappa, groups=features.groups, mask=mask, **assumed
        )
        return 1 - float(failures[-1]), float(own)

    norm_bound = float(oracle_regret.kernel_norm(norm, support_size))
    dim = support_size * round(features.num_features / features.num_groups)
    task_regret = oracle_regret.gp_ucb_regret(
        horizon,
        dim,
        norm_bound=norm_bound,
        noise_std=noise_std,
        delta=delta / 2,
        regulariser=regulariser,
        num_tasks=num_tasks,
    )
    bound = regret.lifelong_regret_bound(
        mask.sum(1),
        horizon,
        features.num_groups,
        kappa=upper,
        norm_bound=norm_bound,
        delta=delta,
        task_regret=task_regret,
        method="sum",
        **assumed,
    )
    forced, chosen = metrics.exploration_regret(result)
    support = np.asarray(result.support)[-1] if true_support is None else np.asarray(true_support)
    prior = support_prior(jnp.asarray(support), features.groups, design.dtype)
    played = played_information_gain(result, features, candidates, regulariser, prior)
    worst, own = probabilities(lower)
    return RunReport(
        num_tasks=num_tasks,
        horizon=horizon,
        num_kernels=features.num_groups,
        mean_rows=rows,
        kappa=(lower, upper),
        lam_largest=float(recovery.theorem_lam(num_tasks, beta_min=beta_min, omega=omega, kappa=upper)),
        worst_case=worst,
        own_design=own,
        best_case=probabilities(upper),
        least_rows=float(recovery.least_rows(kappa=upper, **assumed)),
        recovered_after=None if true_support is None else _stays_right(result, true_support),
        regret={
            "exploration": float(forced.sum()),
            "policy": float(chosen.sum()),
            "total": float(forced.sum() + chosen.sum()),
        },
        bound=bound.as_dict(),
        gain=(float(played.mean()), float(information_gain_bound(horizon, dim, regulariser))),
    )


def _stays_right(result: LifelongResult, true_support: Bool[Array, " groups"]) -> int | None:
    """Return the first task, counted from 1, from which on every selection is right."""
    right = np.asarray(metrics.recovery(result, true_support))
    if not right[-1]:
        return None
    wrong = np.flatnonzero(~right)
    return 1 if wrong.size == 0 else int(wrong[-1]) + 2


def _lines(one: RunReport) -> list[str]:
    after = one.recovered_after
    found = "did not stay right" if after is None else f"right from task {after} on"
    least = "no number of rows suffices"
    if math.isfinite(one.least_rows):
        least = f"the theorem needs more than {count_in_words(one.least_rows)} rows a task"
    measured, bound = one.regret, one.bound
    return [
        f"{one.num_tasks} tasks of {one.horizon} steps, {one.num_kernels} kernels, {one.mean_rows:.3g} "
        "exploration rows a task",
        f"  support: {found}",
        f"  kappa of the exploration data is between {one.kappa[0]:.3g} and {one.kappa[1]:.3g}",
        f"  probability of a right support that is proved: {one.worst_case:.3g} for the worst design, "
        f"{one.own_design:.3g} for this one",
        f"  at the upper end of kappa: {one.best_case[0]:.3g} and {one.best_case[1]:.3g}; {least}, "
        f"and lam at most {one.lam_largest:.2g}",
        f"  regret: {measured['total']:,.0f} measured ({measured['exploration']:,.0f} exploration, "
        f"{measured['policy']:,.0f} policy)",
        f"  bound: {bound['total']:,.0f} ({bound['exploration']:,.0f} exploration, "
        f"{bound['mismatch']:,.0f} wrong kernels, {bound['oracle']:,.0f} GP-UCB); no policy can exceed "
        f"{bound['trivial']:,.0f}",
        f"  information gain of a task: {one.gain[0]:.3g} played, at most {one.gain[1]:.3g}",
    ]
