"""Doubly robust group lasso for contextual bandits (Cella & Pontil 2021; Kim & Paik 2019 for one task).

| here             | paper                                                                              |
|------------------|------------------------------------------------------------------------------------|
| `propensity`     | pi = lam / K + (1 - lam) 1{x is the greedy arm}                                    |
| `pseudo_reward`  | mean_k x_k^T w + (y - x^T w) / (K pi)                                              |
| `group_lasso_of` | argmin (1/n) sum_s ||y_s - X_s w_s||^2 + penalty sum_j ||w^(j)||_2                 |

The pseudo-reward has the expectation mean_k x_k^T theta for any w and any exploration, so the regression of
pseudo-rewards on mean contexts uses what is known about the arms that were not played. This needs the right
propensity. The printed one uses whether the step was drawn as exploration, 1{no exploration}, in place of
whether the greedy arm was played; it is too small when exploration draws the greedy arm, and the
pseudo-reward is then biased. The code of Kim & Paik (2019) has the propensity used here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jlibo.arena.estimators.eigen import symmetric_eigen
from jlibo.arena.estimators.gaussian import dot
from jlibo.arena.estimators.statistics import TaskStatistics
from jlibo.checks import check_shape
from jlibo.front_door import front_door
from jlibo.solver.group_lasso import Solution, group_lasso


@front_door
def propensity(
    is_greedy: Bool[Array, "*any"], explore_probability: Float[Array, "*any"], num_actions: int
) -> Float[Array, "*any"]:
    """Return the probability of the action that was played.

    With probability `explore_probability` the policy plays one of `num_actions` uniformly, else the greedy
    action.

    **Arguments:**

    - `is_greedy`: whether the played action is the greedy one, however it was drawn.
    - `explore_probability`: lam.
    - `num_actions`: K.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import propensity

    print(propensity(jnp.asarray([True, False]), 0.5, 4))  # [0.625 0.125]
    ```
    """
    explore = jnp.asarray(explore_probability)
    return explore / num_actions + (1 - explore) * jnp.asarray(is_greedy)


@front_door
def pseudo_reward(
    reward: Float[Array, "*any"],
    features: Float[Array, "*any features"],
    mean_features: Float[Array, "*any features"],
    coef: Float[Array, "*any features"],
    probability: Float[Array, "*any"],
    num_actions: int,
) -> Float[Array, "*any"]:
    """Return the doubly robust pseudo-reward of the mean action.

    **Arguments:**

    - `reward`, `features`: y and x of the action that was played.
    - `mean_features`: mean of the features of all actions of the step.
    - `coef`: w, an earlier estimate of the weights.
    - `probability`: that of the action, from `propensity`.
    - `num_actions`: K.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import pseudo_reward

    print(pseudo_reward(1.0, jnp.ones(2), jnp.zeros(2), jnp.zeros(2), 0.5, 2))  # 1.0
    ```
    """
    coef = jnp.asarray(coef)
    residual = jnp.asarray(reward) - (jnp.asarray(features) * coef).sum(-1)
    return (jnp.asarray(mean_features) * coef).sum(-1) + residual / (num_actions * jnp.asarray(probability))


@front_door
def rows_of_statistics(
    stats: TaskStatistics,
) -> tuple[Float[Array, "tasks features features"], Float[Array, "tasks features"]]:
    """Return as many rows and targets per task as there are features, with the same normal equations.

    With V = U diag(e) U^T the rows are diag(sqrt(e)) U^T and the targets diag(1 / sqrt(e)) U^T c.

    ```python
    import jax.numpy as jnp

    from jlibo.arena.estimators import rows_of_statistics, statistics_of

    rows, targets = rows_of_statistics(statistics_of(jnp.ones((1, 9, 2)), jnp.ones((1, 9))))
    print(rows.shape, targets.shape)  # (1, 2, 2) (1, 2)
    ```
    """

    def one(gram, moment):
        values, vectors = symmetric_eigen(gram)
        floor = len(values) * jnp.finfo(values.dtype).eps * jnp.maximum(values[0], 0)
        usable = values > floor
        roots = jnp.sqrt(jnp.where(usable, values, 1))
        rows = jnp.where(usable[:, None], roots[:, None] * vectors.T, 0)
        return rows, jnp.where(usable, dot(vectors.T, moment) / roots, 0)

    return jax.vmap(one)(stats.gram, stats.moment)


@front_door
def group_lasso_of(
    stats: TaskStatistics,
    penalty: Float[Array, ""],
    *,
    groups: tuple[int, ...] | None = None,
    num_rounds: Float[Array, ""] | None = None,
    start: Float[Array, "tasks features"] | None = None,
    tol: float = 1e-4,
    max_steps: int = 1000,
) -> Solution:
    """Return the minimiser of `(1/n) sum_s ||y_s - X_s w_s||^2 + penalty sum_j ||w^(j)||_2`.

    It is `jlibo.group_lasso` on rows with the same normal equations. The norm of a group is that over all
    tasks.

    **Arguments:**

    - `stats`: the statistics of all tasks.
    - `penalty`: factor of the sum of group norms.
    - `groups`: group of each feature; by default each feature is a group.
    - `num_rounds`: n; by default the largest number of observations of a task.
    - `start`, `tol`, `max_steps`: `init`, `tol` and `max_steps` of the solver.

    **Returns:** the solver's `Solution`.

    ```python
    import jax

    from jlibo.arena.estimators import group_lasso_of, statistics_of

    rows = jax.random.normal(jax.random.key(0), (20, 10, 3))
    solution = group_lasso_of(statistics_of(rows, rows[..., 0]), 0.5)
    print(solution.group_norms)  # only the first is not zero
    ```
    """
    rows, targets = rows_of_statistics(stats)
    if start is not None:
        check_shape("start", start, stats.moment.shape)
    rounds = jnp.maximum(stats.count.max() if num_rounds is None else jnp.asarray(num_rounds), 1)
    # The solver divides the loss by the number of rows, all tasks together.
    lam = jnp.asarray(penalty, stats.gram.dtype) * rounds / targets.size
    return group_lasso(rows, targets, lam, groups=groups, init=start, tol=tol, max_steps=max_steps)
