"""The paper's assumptions, checked on an environment or on data, with findings in words.

| here                   | paper                                                                           |
|------------------------|---------------------------------------------------------------------------------|
| `pooled_beta_min`      | the largest c_1 of Assumption 3.1 that coefficients satisfy                     |
| `client_beta_min`      | the largest c_{1,f} of the federated assumption in App. F                       |
| `check_environment`    | Assumptions 3.1 and 3.2 and k_j(x, x) <= 1, with the true coefficients          |
| `check_data`           | the same from rows and rewards, with coefficients estimated by the group lasso  |
"""

import dataclasses
from collections.abc import Sequence
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.checks import ArrayLike, check_count, check_shape
from jlibo.envs import SyntheticEnv
from jlibo.features import AbstractFeatures, max_kernel_diagonal
from jlibo.front_door import front_door
from jlibo.lifelong.one_task import split_task_key
from jlibo.solver.group_lasso import group_lasso
from jlibo.theory import blocks
from jlibo.theory.kappa_search import kappa_bracket


@final
@dataclasses.dataclass(frozen=True)
class Finding:
    """Whether one assumption holds, and with which constant."""

    assumption: str
    """Name of the assumption."""
    holds: bool | None
    """Whether it holds; None if the data cannot tell."""
    value: float
    """The constant: c_1, the largest k_j(x, x), or the upper end of kappa's bracket."""
    words: str
    """One sentence."""

    def __str__(self) -> str:
        mark = {True: "holds", False: "does not hold", None: "unknown"}[self.holds]
        return f"{self.assumption}: {mark}. {self.words}"


@front_door
def group_norms(
    coef: Float[Array, "tasks features"], groups: blocks.Groups = None
) -> Float[Array, "tasks groups"]:
    """Return the norm of every task's coefficients in every group.

    **Arguments:**

    - `coef`: coefficients of each task.
    - `groups`: group of each feature; by default every feature is a group.
    """
    check_shape("coef", coef, ("tasks", "features"))
    ids = np.asarray(blocks.group_ids(coef[:, None], groups))
    squares = jax.ops.segment_sum((jnp.asarray(coef) ** 2).T, ids, num_segments=int(ids.max()) + 1)
    return jnp.sqrt(squares.T)


@front_door
def pooled_beta_min(
    coef: Float[Array, "tasks features"], support: Bool[ArrayLike, " groups"], groups: blocks.Groups = None
) -> Float[Array, ""]:
    """Return the largest c_1 with ||beta^(j)||_2 >= c_1 sqrt(m) for all j in the support.

    **Arguments:**

    - `coef`: true coefficients of each task.
    - `support`: J*; the result is infinite if it is empty.
    - `groups`: as in `group_norms`.
    """
    pooled = jnp.sqrt((group_norms(coef, groups) ** 2).mean(0))
    return jnp.where(jnp.asarray(support), pooled, jnp.inf).min()


@front_door
def client_beta_min(
    coef: Float[Array, "tasks features"], support: Bool[ArrayLike, " groups"], groups: blocks.Groups = None
) -> Float[Array, ""]:
    """Return the largest c_{1,f} with ||beta_s^(j)||_2 >= c_{1,f} for all tasks and all j in the support.

    **Arguments:** as in `pooled_beta_min`. It is never larger than that.
    """
    return jnp.where(jnp.asarray(support), group_norms(coef, groups), jnp.inf).min()


@front_door
def check_environment(
    env: SyntheticEnv, features: AbstractFeatures, *, num_tasks: int, num_rows: int, key: PRNGKeyArray
) -> list[Finding]:
    """Return findings on the assumptions, for tasks of an environment explored uniformly.

    **Arguments:**

    - `env`: the environment, whose coefficients are known.
    - `features`: its feature map.
    - `num_tasks`, `num_rows`: m, and the rows of each task.
    - `key`: random key of a run; the tasks are those of `jlibo.run_lifelong` with this key.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features, key = jlibo.Cosine(8), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    for finding in theory.check_environment(env, features, num_tasks=3, num_rows=20, key=key):
        print(finding)
    ```
    """
    check_count("num_tasks", num_tasks)
    check_count("num_rows", num_rows)

    def draw(index):
        keys = split_task_key(jax.random.fold_in(key, index))
        places = jax.random.randint(keys.exploration, (num_rows,), 0, env.candidates.shape[0])
        return env.coefficients(key=keys.task), env.candidate_features[places]

    coef, design = eqx.filter_jit(jax.vmap(draw))(jnp.arange(num_tasks))
    pooled = float(pooled_beta_min(coef, env.support, features.groups))
    alone = float(client_beta_min(coef, env.support, features.groups))
    kernel_key, search_key = jax.random.split(key)
    return [
        _beta_min(pooled, alone, "of the true coefficients"),
        _bounded(features, kernel_key),
        _informative(design, int(np.asarray(env.support).sum()), features.groups, None, search_key),
    ]


@front_door
def check_data(
    design: Float[Array, "tasks rows features"],
    targets: Float[Array, "tasks rows"],
    features: AbstractFeatures,
    *,
    lam: Float[ArrayLike, ""],
    omega: Float[ArrayLike, ""],
    mask: Bool[Array, "tasks rows"] | None = None,
    key: PRNGKeyArray,
) -> list[Finding]:
    """Return findings on the assumptions, from rows and rewards alone.

    The support and the coefficients are those of Meta-KGL with `lam` and `omega`, which shrinks: the true c_1
    is larger if the support is right.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `targets`: rewards of the rows.
    - `features`: the feature map.
    - `lam`, `omega`: as in `jlibo.MetaKGL`.
    - `mask`: rows that are present; by default all.
    - `key`: random key of the searches.
    """
    solution = group_lasso(design, targets, lam, groups=features.groups, mask=mask)
    support = np.asarray(solution.group_norms > jnp.asarray(omega) * design.shape[0] ** 0.5)
    kernel_key, search_key = jax.random.split(key)
    findings = [_bounded(features, kernel_key)]
    if not support.any():
        words = "Meta-KGL selects no kernel with these lam and omega, so neither c_1 nor s* can be estimated."
        return [Finding("beta-min", None, 0.0, words), *findings]
    pooled = float(pooled_beta_min(solution.coef, support, features.groups))
    alone = float(client_beta_min(solution.coef, support, features.groups))
    words = f"of the {int(support.sum())} kernels that Meta-KGL selects"
    return [
        _beta_min(pooled, alone, words),
        *findings,
        _informative(design, int(support.sum()), features.groups, mask, search_key),
    ]


def _beta_min(pooled: float, alone: float, whose: str) -> Finding:
    words = (
        f"c_1 = {pooled:.3g} {whose}, pooled over tasks; each task alone has c_1 = {alone:.3g}, which the "
        "federated theorem needs."
    )
    return Finding("beta-min", pooled > 0, pooled, words)


def _bounded(features: AbstractFeatures, key: PRNGKeyArray) -> Finding:
    diagonal = np.asarray(max_kernel_diagonal(features, key=key))
    largest, place = float(diagonal.max()), int(diagonal.argmax())
    name = features.names[place]
    if largest <= 1 + 1e-3:
        return Finding("k_j(x, x) <= 1", True, largest, f"The largest is {largest:.3g}, of {name}.")
    words = (
        f"The largest is {largest:.3g}, of {name}: scale the map with jlibo.normalise. The bounds for a "
        "given design need no scaling."
    )
    return Finding("k_j(x, x) <= 1", False, largest, words)


def _informative(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    groups: Sequence[int],
    mask: Bool[Array, "tasks rows"] | None,
    key: PRNGKeyArray,
) -> Finding:
    bracket = kappa_bracket(design, support_size, groups=groups, mask=mask, key=key)
    lower, upper = float(bracket.lower), float(bracket.upper)
    rows = design.shape[1] if mask is None else float(jnp.asarray(mask).sum(1).mean())
    words = f"kappa is between {lower:.3g} and {upper:.3g} with {rows:g} rows a task and s* = {support_size}."
    if lower > 0:
        return Finding("informative data", True, upper, words)
    if upper < 1e-3:
        words += " A direction with this ratio was found: the theorems say nothing about these data."
        return Finding("informative data", False, upper, words)
    words += " No lower bound is positive: the theorems cannot be applied, but the data may be informative."
    return Finding("informative data", None, upper, words)
