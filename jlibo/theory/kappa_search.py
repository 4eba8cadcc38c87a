"""An upper bound on kappa (Assumption 3.2) by search over supports and directions.

| here                    | paper                                                                          |
|-------------------------|--------------------------------------------------------------------------------|
| `Direction.coef`        | b, one column of R^{md}; the assumption prints R^d, but Phi is block-diagonal   |
| `Direction.support`     | J, |J| <= s*                                                                   |
| `Direction.ratio`       | sqrt(m / N) ||Phi b||_2 / sum_{j in J} ||b^(j)||_2, at least kappa              |
| `KappaBracket`          | an interval that contains kappa(Phi)                                           |

For a given b, the best J has the s* largest groups: it has the largest denominator and the weakest
constraint. So kappa is the infimum of ||Phi b|| / D(b), where D(b), the sum of the s* largest norms, is
convex. The search replaces D by its tangent at the current b, which is a lower bound, and solves the convex
problem that remains: a quadratic over a hyperplane for the groups in J, and over a ball of radius 3 in the
group norm for the others. Every b that it meets satisfies the constraint, so the smallest ratio is an upper
bound on kappa, and any b with a small ratio proves that the data are not informative.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jlibo.checks import check_count
from jlibo.front_door import front_door
from jlibo.theory import blocks
from jlibo.theory.compatibility import check_size, kappa_lower

_CONE = 3.0  # the constant of the constraint sum_{j not in J} <= 3 sum_{j in J}


@final
class Direction(eqx.Module):
    """A direction b that satisfies the constraint of Assumption 3.2, and its ratio."""

    coef: Float[Array, "tasks features"]
    """The direction, scaled to a denominator of 1."""
    support: Bool[Array, " groups"]
    """J, the groups of the denominator."""
    ratio: Float[Array, ""]
    """The ratio of the direction, an upper bound on kappa."""


@final
class KappaBracket(eqx.Module):
    """An interval that contains kappa, and the direction that proves its upper end."""

    lower: Float[Array, ""]
    upper: Float[Array, ""]
    direction: Direction


@front_door
def kappa_bracket(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
    num_starts: int = 32,
    num_rounds: int = 8,
    num_steps: int = 100,
    key: PRNGKeyArray,
) -> KappaBracket:
    """Return an interval that contains kappa of a design.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `support_size`: s*.
    - `groups`: group of each feature; by default every feature is a group.
    - `mask`: rows that are present; by default all.
    - `num_starts`: number of random starts of the search.
    - `num_rounds`: number of tangents for each start.
    - `num_steps`: number of gradient steps for each tangent.
    - `key`: random key of the starts.

    **Returns:** a `KappaBracket`. Its upper end is the result of a search: kappa can be much smaller.

    **Raises:** `ValueError` for a wrong shape, invalid groups, or an invalid number.

    ```python
    import jax

    import jlibo
    from jlibo import theory

    features = jlibo.Cosine(10)
    design = features(jlibo.sample_box(features, 200, key=jax.random.key(0)))[None]
    bracket = theory.kappa_bracket(design, 2, key=jax.random.key(1))
    print(bracket.lower, bracket.upper)
    ```
    """
    direction = kappa_search(
        design,
        support_size,
        groups=groups,
        mask=mask,
        num_starts=num_starts,
        num_rounds=num_rounds,
        num_steps=num_steps,
        key=key,
    )
    lower = kappa_lower(design, support_size, groups=groups, mask=mask)
    # Both ends are exact up to round-off; they may cross by that much where they coincide.
    return KappaBracket(jnp.minimum(lower, direction.ratio), direction.ratio, direction)


def kappa_search(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
    num_starts: int = 32,
    num_rounds: int = 8,
    num_steps: int = 100,
    key: PRNGKeyArray,
) -> Direction:
    """Return the direction with the smallest ratio that a search finds; arguments as in `kappa_bracket`."""
    check_size(design, support_size, groups)
    for name, value in (("num_starts", num_starts), ("num_rounds", num_rounds), ("num_steps", num_steps)):
        check_count(name, value)
    ids = blocks.group_ids(design, groups)
    grams = blocks.gram(design, mask)
    return _search(grams, key, ids, support_size, (num_starts, num_rounds, num_steps))


@eqx.filter_jit
def _search(grams, key, ids: tuple[int, ...], support_size: int, sizes: tuple[int, int, int]):
    # A function of the Gram matrices: their shape does not depend on the number of rows, so that designs of
    # different lengths share one compiled program.
    num_starts, num_rounds, num_steps = sizes
    member = jnp.asarray(np.eye(max(ids) + 1)[:, list(ids)], grams.dtype)  # [groups, features]
    # A step of 1 / (largest eigenvalue); the largest sum of a row bounds it.
    step = 1 / jnp.maximum(jnp.abs(grams).sum(-1).max(), jnp.finfo(grams.dtype).tiny)

    def norms(coef):
        return jnp.sqrt(member @ (coef**2).sum(0))

    def gradient(coef):
        return jnp.einsum("sfg,sg->sf", grams, coef, precision=lax.Precision.HIGHEST)

    def improve(coef, _):
        support = _largest(norms(coef), support_size)
        tangent = jnp.where(support, 1 / jnp.maximum(norms(coef), jnp.finfo(coef.dtype).tiny), 0)
        tangent = coef * (tangent @ member)[None]

        def project(point):
            inside = point * (support.astype(point.dtype) @ member)[None]
            product = (tangent * inside).sum()
            inside = inside + tangent * (1 - product) / jnp.maximum((tangent**2).sum(), 1e-30)
            outside = point - point * (support.astype(point.dtype) @ member)[None]
            sizes = norms(outside)
            shrunk = _project_to_ball(sizes, _CONE)
            factor = jnp.where(sizes > 0, shrunk / jnp.where(sizes > 0, sizes, 1), 0)
            return inside + outside * (factor @ member)[None]

        def accelerated(carry, _):
            now, ahead, t = carry
            new = project(ahead - step * gradient(ahead))
            t_new = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
            return (new, new + (t - 1) / t_new * (new - now), t_new), None

        start = project(coef / jnp.maximum(_denominator(norms(coef), support_size), 1e-30))
        carry = (start, start, jnp.ones((), coef.dtype))
        (found, _, _), _ = lax.scan(accelerated, carry, None, length=num_steps)
        return found, found

    def ratio(coef):
        sizes = norms(coef)
        top = _denominator(sizes, support_size)
        rest = sizes.sum() - top
        # The constraint holds up to round-off; a direction that breaks it by more is not counted.
        slack = 100 * jnp.finfo(coef.dtype).eps
        feasible = (rest <= _CONE * top * (1 + slack)) & (top > 0)
        value = jnp.sqrt(jnp.maximum((coef * gradient(coef)).sum(), 0)) / jnp.where(top > 0, top, 1)
        return jnp.where(feasible, value, jnp.inf)

    def one_start(start):
        _, found = lax.scan(improve, start, None, length=num_rounds)
        every = jnp.concatenate([start[None], found])
        ratios = jax.vmap(ratio)(every)
        best = jnp.argmin(ratios)
        return every[best], ratios[best]

    coefs, ratios = jax.vmap(one_start)(_starts(grams, member, support_size, num_starts, key))
    best = jnp.argmin(ratios)
    coef = coefs[best] / _denominator(norms(coefs[best]), support_size)
    return Direction(coef, _largest(norms(coef), support_size), ratios[best])


def _starts(grams, member, support_size: int, num_starts: int, key):
    """Return random directions, in one task each or in all of them alternately, on supports of three kinds.

    Of every four supports, one has the groups most correlated with the others, one those of smallest norm,
    and two are random. The first two kinds are perturbed.
    """
    num_tasks, num_features = grams.shape[:2]
    value_key, support_key, task_key = jax.random.split(key, 3)
    values = jax.random.normal(value_key, (num_starts, num_tasks, num_features), grams.dtype)
    noise = jax.random.uniform(support_key, (num_starts, member.shape[0]), grams.dtype)
    diagonal = jnp.diagonal(grams, axis1=-2, axis2=-1).mean(0)
    correlated = member @ (jnp.abs(grams).mean(0).sum(-1) - diagonal)
    kinds = jnp.stack([correlated / correlated.max().clip(1e-30), -(member @ diagonal) / diagonal.sum()])
    weight = 0.3 * (jnp.arange(num_starts) // 4 / max(num_starts // 4, 1))[:, None].astype(grams.dtype)
    guided = kinds[jnp.arange(num_starts) % 2] + weight * noise
    scores = jnp.where((jnp.arange(num_starts) % 4 < 2)[:, None], guided, noise)
    supports = jax.vmap(lambda score: _largest(score, support_size))(scores)
    tasks = jax.random.randint(task_key, (num_starts,), 0, num_tasks)
    one_task = jax.nn.one_hot(tasks, num_tasks, dtype=grams.dtype)
    alone = (jnp.arange(num_starts) // 4 % 2 == 0)[:, None]
    weights = jnp.where(alone, one_task, 1.0)
    used = supports.astype(grams.dtype) @ member
    return values * weights[:, :, None] * used[:, None, :]


def _largest(sizes: Float[Array, " groups"], count: int) -> Bool[Array, " groups"]:
    """Return which `count` entries are the largest; of equal ones the first."""
    _, places = lax.top_k(sizes, count)
    return jnp.zeros(sizes.shape, bool).at[places].set(True)


def _denominator(sizes: Float[Array, " groups"], count: int) -> Float[Array, ""]:
    return lax.top_k(sizes, count)[0].sum()


def _project_to_ball(sizes: Float[Array, " groups"], radius: float) -> Float[Array, " groups"]:
    """Return the projection of non-negative numbers to those whose sum is at most `radius`."""
    ordered = -jnp.sort(-sizes)
    excess = (jnp.cumsum(ordered) - radius) / jnp.arange(1, sizes.shape[0] + 1, dtype=sizes.dtype)
    # The threshold is the excess at the last position where it is below the entry.
    threshold = jnp.where(ordered > excess, excess, -jnp.inf).max()
    return jnp.maximum(sizes - jnp.maximum(threshold, 0), 0)
