"""A plan from stated assumptions: what the guarantees say at your numbers, and what settings they suggest.

| here                     | paper                                                                        |
|--------------------------|------------------------------------------------------------------------------|
| `num_tasks`, `horizon`   | m, n                                                                         |
| `norm`                   | a bound on ||beta_s||_2; B = sqrt(s*) times it (see `kernel_norm`)           |
| `mean_square`            | z of Prop. 4.3, 1/2 for cosines                                              |
| `Plan.kappa_limit`       | sqrt(z / s*), which no number of uniform rows exceeds                        |
| `Plan.least_rows`        | the n of Theorem 3.3 above which it says anything, at `kappa_limit`          |
| `Plan.bound`             | the terms of Theorem 4.1                                                     |

The plan is computed at `kappa_limit`, the most favourable kappa, unless it says otherwise. What fails there
fails everywhere. `Plan.rows_proved` combines Theorem 3.3 with the kappa that Prop. 4.3 proves.
"""

import dataclasses
import math
from typing import Any, final

import numpy as np

from jlibo.checks import check_count, check_finite, check_range, fail
from jlibo.front_door import front_door
from jlibo.meta.exploration import DecreasingExploration
from jlibo.theory import compatibility, oracle_regret, recovery, regret
from jlibo.theory.federated import signal_needed_by_clients

MAX_TASKS = 10_000_000
"""Largest number of tasks of a plan: a schedule has one entry for each."""


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """What the theory says about given numbers; returned by `plan`. `str(plan)` is a report in words."""

    num_tasks: int
    horizon: int
    noise_std: float
    norm: float
    beta_min: float
    num_kernels: int
    support_size: int
    mean_square: float
    omega: float
    alpha: float
    delta: float

    kappa_limit: float
    """The kappa of infinitely many uniform rows, sqrt(z / s*)."""
    kappa_rows: float
    """Uniform rows from which Prop. 4.3 proves a kappa above 0 in all tasks, at the level delta / 4."""
    lam: float
    """The lam of Theorem 3.3 after all tasks. After s tasks it is `lam * sqrt(num_tasks / s)`."""
    lam_federated: float
    """The lam of a client."""
    lam_noise: float
    """The smallest lam that exceeds the noise of the exploration data with probability 1 - delta."""
    least_rows: float
    """Rows a task above which Theorem 3.3 says anything, for the worst design."""
    least_rows_own: float
    """The same for a design with the mean squares of the map, whose traces are z N instead of N."""
    rows_proved: float
    """Uniform rows a task from which Prop. 4.3 and Theorem 3.3 together prove anything."""
    rows_needed: float
    """Rows a task for a right support with probability 1 - delta, at this number of tasks."""
    mean_rows: float
    """Average exploration rows a task of the paper's decreasing schedule, N_m / m."""
    explore_scale: float
    """Factor on the schedule at which the guarantee of Theorem 4.1 begins; 1 if the paper's suffices."""
    least_horizon: float
    """Horizon from which the paper's schedule has `rows_proved` on average."""
    least_horizon_federated: float
    """Horizon from which sqrt(n) rows a client provably let the vote converge."""
    bound: dict[str, float]
    """The regret bound by term: exploration, mismatch, oracle, total and trivial."""
    wrong_tasks: int
    """m_0; the number of tasks if the guarantee never begins."""
    reached: bool
    """Whether the guarantee begins within the tasks."""
    full_kernel: float
    """The bound for the average of all kernels, without any learning."""

    @property
    def binds(self) -> list[str]:
        """The assumptions that fail at these numbers, the hardest first."""
        found = []
        if self.mean_rows <= self.least_rows:
            found.append(
                f"rows a task: {self.mean_rows:.3g} against more than {count_in_words(self.least_rows)}"
            )
        if self.mean_rows < self.rows_proved:
            found.append(
                f"informative data: {self.mean_rows:.3g} uniform rows a task; that their kappa suffices is "
                f"proved from {count_in_words(self.rows_proved)} on"
            )
        if self.reached and self.bound["total"] >= self.bound["trivial"]:
            found.append("horizon and tasks: the bound is not below the trivial one")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON."""
        return {**dataclasses.asdict(self), "binds": self.binds}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@front_door
def plan(
    *,
    num_tasks: int,
    horizon: int,
    noise_std: float,
    norm: float,
    beta_min: float,
    num_kernels: int,
    support_size: int,
    mean_square: float = 0.5,
    omega: float | None = None,
    alpha: float = 0.25,
    delta: float = 0.1,
) -> Plan:
    """Return what the theorems say about numbers that are assumed, and the settings that they suggest.

    **Arguments:**

    - `num_tasks`, `horizon`: m and n.
    - `noise_std`: sigma.
    - `norm`: bound on ||beta_s||_2, the radius of the ball of `jlibo.SyntheticEnv`.
    - `beta_min`: c_1.
    - `num_kernels`, `support_size`: p and s*.
    - `mean_square`: z, the smallest mean square of a feature with k_j(x, x) <= 1: 1/2 for cosines. See
      `map_moments`.
    - `omega`: threshold; by default c_1 / 2, the best.
    - `alpha`: share of votes that a kernel needs, for the federated numbers.
    - `delta`: probability that a guarantee fails.

    **Raises:** `ValueError` for a number out of range.

    ```python
    from jlibo import theory

    print(
        theory.plan(
            num_tasks=30, horizon=100, noise_std=0.1, norm=10.0, beta_min=0.5, num_kernels=50, support_size=5
        )
    )
    ```
    """
    omega = beta_min / 2 if omega is None else omega
    _check(locals())
    kappa = math.sqrt(mean_square / support_size)
    numbers: dict[str, Any] = dict(beta_min=beta_min, omega=omega, kappa=kappa, noise_std=noise_std)
    rates = DecreasingExploration().rates(num_tasks, horizon)
    counts = DecreasingExploration().counts(num_tasks, horizon)
    mean_rows = float(counts.mean())
    least = float(recovery.least_rows(**numbers))
    slope = compatibility.exploration_slope(num_kernels, support_size, delta / 4, num_designs=num_tasks)

    def proved(signal: float) -> float:
        # kappa^2 sqrt(n) = limit sqrt(n) - slope has to exceed 32 sigma signal / omega-bar.
        return ((slope + math.sqrt(least) * signal * kappa**2) / kappa**2) ** 2

    by_client = float(signal_needed_by_clients(num_kernels, alpha))
    bound_norm = float(oracle_regret.kernel_norm(norm, support_size))
    rest: dict[str, Any] = dict(noise_std=noise_std, delta=delta / 2, num_tasks=num_tasks)
    oracle = oracle_regret.gp_ucb_regret(horizon, support_size, norm_bound=bound_norm, **rest)
    full = oracle_regret.full_kernel_regret(
        horizon,
        num_kernels,
        num_kernels=num_kernels,
        support_size=support_size,
        norm_bound=bound_norm,
        **rest,
    )
    bound = regret.lifelong_regret_bound(
        counts.astype(float),
        horizon,
        num_kernels,
        **numbers,
        norm_bound=bound_norm,
        delta=delta,
        task_regret=oracle,
        method="sum",
    )
    share = float(np.mean(np.arange(1, num_tasks + 1) ** -0.25))
    return Plan(
        num_tasks,
        horizon,
        noise_std,
        norm,
        beta_min,
        num_kernels,
        support_size,
        mean_square,
        omega,
        alpha,
        delta,
        kappa_limit=kappa,
        kappa_rows=compatibility.exploration_rows_needed(
            num_kernels, support_size, mean_square, delta / 4, num_designs=num_tasks
        ),
        lam=float(recovery.theorem_lam(num_tasks, beta_min=beta_min, omega=omega, kappa=kappa)),
        lam_federated=float(recovery.theorem_lam(1, beta_min=beta_min, omega=omega, kappa=kappa)),
        lam_noise=float(
            recovery.noise_lam(max(mean_rows, 1.0), num_tasks, num_kernels, noise_std=noise_std, delta=delta)
        ),
        least_rows=least,
        least_rows_own=mean_square * least,
        rows_proved=proved(1.0),
        rows_needed=float(recovery.rows_needed(delta, num_tasks, num_kernels, **numbers)),
        mean_rows=mean_rows,
        explore_scale=max(1.0, least / float(rates.mean())),
        least_horizon=(proved(1.0) / share) ** 2,
        least_horizon_federated=proved(by_client) ** 2,
        bound=bound.as_dict(),
        wrong_tasks=int(bound.wrong_tasks),
        reached=bool(bound.reached),
        full_kernel=num_tasks * float(full),
    )


def _check(given: dict[str, Any]) -> None:
    for name in ("num_tasks", "horizon", "num_kernels", "support_size"):
        check_count(name, given[name])
    if given["num_tasks"] > MAX_TASKS:
        fail("num_tasks", f"at most {MAX_TASKS:,}", given["num_tasks"])
    if given["support_size"] > given["num_kernels"]:
        fail("support_size", f"at most the {given['num_kernels']} kernels", given["support_size"])
    for name in ("noise_std", "norm", "beta_min", "mean_square", "omega", "alpha", "delta"):
        check_finite(name, given[name])
    for name in ("noise_std", "norm", "beta_min", "omega"):
        check_range(name, given[name], above=0)
    check_range("mean_square", given["mean_square"], above=0, at_most=1)
    check_range("alpha", given["alpha"], above=0, at_most=1)
    check_range("delta", given["delta"], above=0, at_most=1)
    if given["omega"] >= given["beta_min"]:
        fail("omega", f"below beta_min = {given['beta_min']}", given["omega"])
    if given["beta_min"] * given["support_size"] ** 0.5 > given["norm"]:
        expected = "at most norm / sqrt(support_size), so that every kernel can matter"
        fail("beta_min", expected, given["beta_min"])


def _lines(one: Plan) -> list[str]:
    """Return the report of a plan in words."""
    lines = [
        f"Plan for {one.num_tasks:,} tasks of {one.horizon:,} steps, {one.num_kernels:,} kernels of which "
        f"{one.support_size:,} matter,",
        f"noise {one.noise_std:g}, c_1 = {one.beta_min:g}, ||beta|| <= {one.norm:g} "
        f"(B = {one.norm * math.sqrt(one.support_size):.3g})",
        "",
        "Assumptions",
        f"  informative data: kappa^2 is at most z / s* = {one.kappa_limit**2:.3g} with any number of "
        "uniform rows.",
        f"    Prop. 4.3 proves a kappa above 0 from {count_in_words(one.kappa_rows)} rows a task on.",
        f"  beta-min: omega = {one.omega:g} leaves a margin of "
        f"{min(one.omega, one.beta_min - one.omega):g} on both sides.",
        "",
        "Recovery of the kernels (Theorem 3.3)",
        *(f"  {words}" for words in _recovery(one)),
        "",
        "Settings that the theorems suggest",
        f"  lam = {one.lam:.2g} after {one.num_tasks:,} tasks, that is "
        f"{one.lam * math.sqrt(one.num_tasks):.2g} / sqrt(s) after s (lam_scaling='sqrt')",
        f"  lam = {one.lam_federated:.2g} for a client of the federated setting",
        f"  omega = {one.omega:g}",
        f"  exploration: {_exploration(one)}",
        "",
        f"Lifelong regret with probability {1 - one.delta:.3g} (Theorem 4.1, GP-UCB, at the largest kappa)",
    ]
    never = "" if one.reached else " (all tasks: the guarantee never begins)"
    terms = {
        "exploration": "forced exploration, 2 B N_m",
        "mismatch": f"wrong kernels, 2 B n m_0 with m_0 = {one.wrong_tasks:,}{never}",
        "oracle": "GP-UCB with the true kernels",
        "total": "in total",
        "trivial": "no policy can exceed 2 B m n",
    }
    lines += [f"  {one.bound[name]:>15,.0f}  {words}" for name, words in terms.items()]
    lines += [f"  {one.full_kernel:>15,.0f}  GP-UCB with all kernels, without learning", ""]
    if not one.binds:
        return [*lines, "No assumption fails: the guarantee holds at these numbers."]
    return [
        *lines,
        "What binds",
        *(f"  {words}" for words in one.binds),
        f"  The guarantee of LiBO begins at a horizon of {count_in_words(one.least_horizon)}, that of F-LiBO "
        f"at {count_in_words(one.least_horizon_federated)}.",
        "  Below that the theorems neither promise recovery nor exclude it. A lam just above the noise "
        "of the",
        f"  exploration data, {one.lam_noise:.2g}, needs none of the constants: "
        f"MetaKGL(lam={4 * one.noise_std:g}, lam_scaling='noise').",
        f"  We recommend s* and kappa from the data: MetaKGL(1 / 8, {one.omega:g}, lam_scaling='bracket').",
    ]


def _recovery(one: Plan) -> list[str]:
    root = math.sqrt(one.least_rows)
    short = one.least_rows / one.mean_rows if one.mean_rows > 0 else math.inf
    few = f", {_times(short)} too few." if short >= 1 else "."
    return [
        f"At the largest kappa it says something only for sqrt(n) > {root:.4g}, that is for more than "
        f"{count_in_words(one.least_rows)} rows a task;",
        f"  {one.num_tasks:,} tasks need {count_in_words(one.rows_needed)} rows each for a probability of "
        f"{1 - one.delta:.3g}.",
        "With the traces of uniform rows instead of the worst case: more than "
        f"{count_in_words(one.least_rows_own)} rows a task.",
        f"With the kappa that Prop. 4.3 proves: more than {count_in_words(one.rows_proved)} rows a task.",
        f"The paper's exploration, sqrt(n) / s^(1/4), has {one.mean_rows:.3g} rows a task{few}",
    ]


def _exploration(one: Plan) -> str:
    if one.explore_scale <= 1:
        return "the paper's schedule, sqrt(n) / s^(1/4)"
    factor = f"{_times(one.explore_scale)} the paper's schedule"
    if one.explore_scale * math.sqrt(one.horizon) > one.horizon:
        return f"{factor} would be needed, more steps than a task has; no schedule gives the guarantee"
    return f"{factor} (explore_scale)"


def count_in_words(number: float) -> str:
    """Return a number of rows or steps as text: rounded, with two digits if it is very large or small."""
    if not math.isfinite(number):
        return "infinitely many"
    if number < 10:
        return f"{number:.2g}"
    return f"{number:,.0f}" if number < 1e9 else f"{number:.2g}"


def _times(factor: float) -> str:
    return f"{count_in_words(factor)} times"
