"""Sufficiently informative data (Assumption 3.2): bounds on kappa for a design, and for uniform exploration.

| here                     | paper                                                                         |
|--------------------------|-------------------------------------------------------------------------------|
| `support_size`           | s* = |J*|                                                                     |
| `gram_constants`         | c_d and c_od of the assumption in App. E, for groups of any size              |
| `kappa_from_gram`        | the lemma in App. E, kappa >= sqrt(c_d / s* - 5 c_od), with its constant mended |
| `kappa_from_eigenvalue`  | "if the minimum eigenvalue is positive, the assumption is fulfilled"          |
| `exploration_constants`  | Prop. 4.3 with App. E: c_d and c_od of n uniform rows                         |
| `exploration_kappa`      | the corollary of App. E                                                       |
| `population_kappa`       | the limit n to infinity for orthogonal features, sqrt(z / s*)                 |

**Readings.** In "proved", the default, a formula is what the proof supports; in "printed" it is the text of
the paper. The lemma prints 5 c_od. A design with c_d = 1, c_od = 0.05 and s* = 1 has kappa^2 = 0.7225, below
the 0.75 of the lemma: the cross term has the factor 2 * 3 = 6, and the proof writes 4. The proof supports
`kappa^2 >= (c_d + c_od) / s* - 7 c_od`. The corollary adds two square roots under one root, and has s* where
its square belongs.
"""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.checks import ArrayLike, fail
from jlibo.features import AbstractFeatures, box_midpoints
from jlibo.front_door import front_door
from jlibo.theory import blocks

Reading = Literal["proved", "printed"]
"""Which form of a formula: what the proof supports, or the text of the paper."""

Real = Float[ArrayLike, "*any"]
"""A number or an array; the functions of this package broadcast their arguments."""


def as_real(number: Real) -> Float[Array, "*any"]:
    """Return a count as an array of floats: a whole number above 2^31 is out of the range of int32."""
    return jnp.asarray(float(number) if isinstance(number, int) else number)


def check_reading(reading: str) -> None:
    """Raise a `ValueError` for a reading other than "proved" and "printed"."""
    if reading not in ("proved", "printed"):
        fail("reading", "'proved' or 'printed'", repr(reading))


# --- a given design -----------------------------------------------------------------------------------------


@front_door
def gram_constants(
    design: Float[Array, "tasks rows features"],
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return c_d and c_od of a design.

    For groups of one feature, these are the smallest diagonal entry of (m / N) Phi^T Phi and the largest
    absolute off-diagonal entry within a task. For larger groups, c_d is the smallest eigenvalue of a diagonal
    block and c_od the largest Frobenius norm of an off-diagonal block, which the same proof covers.

    **Arguments:**

    - `design`: features of each task's rows, `[tasks, rows, features]`.
    - `groups`: group of each feature; by default every feature is a group.
    - `mask`: rows that are present; by default all.

    **Returns:** c_d and c_od.

    **Raises:** `ValueError` for a wrong shape or invalid groups.
    """
    return _gram_constants(blocks.gram(design, mask), ids=blocks.group_ids(design, groups))


# Functions of the Gram matrices, whose shape does not depend on the number of rows, are compiled: designs of
# different lengths share them.
@partial(jax.jit, static_argnames="ids")
def _gram_constants(
    grams: Float[Array, "tasks features features"], *, ids: tuple[int, ...]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    index = blocks.GroupIndex.of(ids)
    smallest, _ = blocks.extreme_eigenvalues(blocks.diagonal_blocks(grams, index), index)
    # Sums of squares by pairs of groups, through the matrix that maps features to groups.
    member = jnp.asarray(np.eye(max(ids) + 1)[:, list(ids)], grams.dtype)
    squares = jnp.einsum("if,sfg,jg->sij", member, grams**2, member)
    between = jnp.where(np.eye(max(ids) + 1, dtype=bool), 0, squares)
    return jnp.maximum(smallest.min(), 0), jnp.sqrt(between.max())


@front_door
def kappa_from_gram(
    c_d: Real, c_od: Real, support_size: Real, *, reading: Reading = "proved"
) -> Float[Array, "*any"]:
    """Return a lower bound on kappa from c_d and c_od; 0 if they give none.

    **Arguments:**

    - `c_d`, `c_od`: from `gram_constants` or `exploration_constants`.
    - `support_size`: s*.
    - `reading`: "proved" `sqrt((c_d + c_od) / s* - 7 c_od)`, or "printed" `sqrt(c_d / s* - 5 c_od)`.

    ```python
    from jlibo import theory

    print(theory.kappa_from_gram(0.5, 0.0, 5))  # 0.316, the square root of 0.1
    ```
    """
    check_reading(reading)
    c_d, c_od, size = jnp.asarray(c_d), jnp.asarray(c_od), as_real(support_size)
    square = (c_d + c_od) / size - 7 * c_od if reading == "proved" else c_d / size - 5 * c_od
    return jnp.sqrt(jnp.maximum(square, 0))


@front_door
def kappa_from_eigenvalue(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """Return the lower bound `sqrt(e / s*)` on kappa, e the smallest eigenvalue of (m / N) Phi^T Phi.

    It is 0 for a task with fewer rows than features.

    **Arguments:** as in `gram_constants`; `support_size` is s*.
    """
    check_size(design, support_size, groups)
    return _kappa_from_eigenvalue(blocks.gram(design, mask), support_size)


@jax.jit
def _kappa_from_eigenvalue(
    grams: Float[Array, "tasks features features"], support_size: int | Int[Array, ""]
) -> Float[Array, ""]:
    smallest = jnp.linalg.eigvalsh(grams)[:, 0].min()
    # The eigenvalue of a singular matrix is round-off: a bound must not be positive because of it.
    scale = jnp.trace(grams, axis1=-2, axis2=-1).max()
    slack = 4 * grams.shape[-1] * jnp.finfo(grams.dtype).eps * scale
    return jnp.sqrt(jnp.maximum(smallest - slack, 0) / support_size)


@front_door
def kappa_lower(
    design: Float[Array, "tasks rows features"],
    support_size: int,
    *,
    groups: blocks.Groups = None,
    mask: Bool[Array, "tasks rows"] | None = None,
) -> Float[Array, ""]:
    """Return the larger of the two lower bounds on kappa: from c_d and c_od, and from the eigenvalue.

    **Arguments:** as in `gram_constants`; `support_size` is s*.

    ```python
    import jax.numpy as jnp

    from jlibo import theory

    print(theory.kappa_lower(2 * jnp.eye(4)[None], support_size=2))  # 0.707
    ```
    """
    from_eigenvalue = kappa_from_eigenvalue(design, support_size, groups=groups, mask=mask)
    c_d, c_od = gram_constants(design, groups=groups, mask=mask)
    return jnp.maximum(from_eigenvalue, kappa_from_gram(c_d, c_od, support_size))


def check_size(design: Float[Array, "tasks rows features"], support_size: int, groups: blocks.Groups) -> None:
    """Raise a `ValueError` unless `support_size` is from 1 to the number of groups of the design."""
    blocks.check_support_size(support_size, max(blocks.group_ids(design, groups)) + 1)


# --- uniform exploration ------------------------------------------------------------------------------------


@front_door
def map_moments(
    features: AbstractFeatures, *, num_per_dim: int | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return z and the largest inner product of a feature map under the uniform distribution on its box.

    z is the smallest mean square of a feature. The paper divides by Vol(X) without the square; we read
    `||phi_i||^2 / Vol(X) >= z`. The inner product is the largest |E phi_i phi_j| over i != j, which is 0 for
    orthogonal features. Both are averages over the midpoints of an even grid.

    **Arguments:**

    - `features`: the map.
    - `num_per_dim`: number of midpoints per dimension; by default 10,000 in one dimension, 200 in two, 30
      in three.

    **Returns:** z and the largest inner product.

    **Raises:** `ValueError` if the map has more than three dimensions and `num_per_dim` is not given.
    """
    if num_per_dim is None:
        if features.dim > 3:
            fail("num_per_dim", f"given for features of {features.dim} dimensions", None)
        num_per_dim = {1: 10_000, 2: 200, 3: 30}[features.dim]
    values = np.asarray(features(box_midpoints(features, num_per_dim)), np.float64)
    second = values.T @ values / len(values)
    off = np.abs(second - np.diag(np.diag(second)))
    dtype = jnp.result_type(float)
    return jnp.asarray(np.diag(second).min(), dtype), jnp.asarray(off.max(), dtype)


@front_door
def exploration_constants(
    num_rows: Real,
    num_features: Real,
    mean_square: Real,
    delta: Real,
    *,
    inner: Real = 0.0,
    kernel_bound: Real = 1.0,
    num_designs: Real = 1.0,
) -> tuple[Float[Array, "*any"], Float[Array, "*any"]]:
    """Return c_d and c_od that n uniform rows have with probability at least 1 - delta (Prop. 4.3, App. E).

    **Arguments:**

    - `num_rows`: n, rows of a task.
    - `num_features`: d.
    - `mean_square`: z, from `map_moments`.
    - `delta`: probability that one of the two fails.
    - `inner`: largest |E phi_i phi_j|, from `map_moments`; 0 for orthogonal features.
    - `kernel_bound`: largest k_j(x, x); 1 in the paper.
    - `num_designs`: number of tasks with rows of their own. The paper repeats one set of rows in all tasks,
      which is 1.

    **Returns:** c_d, which can be negative, and c_od.

    ```python
    from jlibo import theory

    print(theory.exploration_constants(1000, 50, 0.5, 0.1))
    ```
    """
    rows, bound = as_real(num_rows), jnp.asarray(kernel_bound)
    failures = as_real(num_designs) / jnp.asarray(delta)
    log_features = jnp.log(as_real(num_features))
    diagonal = jnp.sqrt((jnp.log(4 * failures) + log_features) / (2 * rows))
    off_diagonal = jnp.sqrt(2 * (jnp.log(4 * failures) + 2 * log_features) / rows)
    return jnp.asarray(mean_square) - bound * diagonal, jnp.asarray(inner) + bound * off_diagonal


@front_door
def exploration_kappa(
    num_rows: Real,
    num_features: Real,
    support_size: Real,
    mean_square: Real,
    delta: Real,
    *,
    inner: Real = 0.0,
    kernel_bound: Real = 1.0,
    num_designs: Real = 1.0,
    reading: Reading = "proved",
) -> Float[Array, "*any"]:
    """Return a lower bound on kappa of n uniform rows, with probability at least 1 - delta; 0 if none.

    **Arguments:** as in `exploration_constants`; `support_size` is s*.

    - `reading`: "proved" is `kappa_from_gram` of `exploration_constants`; "printed" is the paper's corollary.

    ```python
    from jlibo import theory

    print(theory.exploration_kappa(1e6, 50, 5, 0.5, 0.1), theory.population_kappa(0.5, 5))
    ```
    """
    check_reading(reading)
    c_d, c_od = exploration_constants(
        num_rows,
        num_features,
        mean_square,
        delta,
        inner=inner,
        kernel_bound=kernel_bound,
        num_designs=num_designs,
    )
    if reading == "proved":
        return kappa_from_gram(c_d, c_od, support_size)
    z, size, rows = jnp.asarray(mean_square), as_real(support_size), as_real(num_rows)
    first = jnp.log(4 * as_real(num_features) / jnp.asarray(delta)) / (2 * size)
    second = 50 * (jnp.log(4 / jnp.asarray(delta)) + 2 * jnp.log(as_real(num_features)))
    return jnp.sqrt(jnp.maximum(z / size - jnp.sqrt((first + second) / rows), 0))


@front_door
def population_kappa(mean_square: Real, support_size: Real) -> Float[Array, "*any"]:
    """Return `sqrt(z / s*)`, the kappa of orthogonal features of mean square z on infinitely many rows.

    **Arguments:**

    - `mean_square`: z, the smallest mean square of a feature.
    - `support_size`: s*.
    """
    return jnp.sqrt(jnp.asarray(mean_square) / as_real(support_size))


@front_door
def exploration_slope(
    num_features: int, support_size: int, delta: float, *, kernel_bound: float = 1.0, num_designs: int = 1
) -> float:
    """Return a in `kappa^2 >= limit - a / sqrt(n)`, the dependence of `exploration_kappa` on the rows.

    **Arguments:** as in `exploration_kappa`.
    """
    log_term = math.log(4 * num_designs / delta)
    diagonal = math.sqrt((log_term + math.log(num_features)) / 2)
    off_diagonal = math.sqrt(2 * (log_term + 2 * math.log(num_features)))
    return kernel_bound * (diagonal / support_size + off_diagonal * (7 - 1 / support_size))


@front_door
def exploration_rows_needed(
    num_features: int,
    support_size: int,
    mean_square: float,
    delta: float,
    *,
    kappa: float = 0.0,
    inner: float = 0.0,
    kernel_bound: float = 1.0,
    num_designs: int = 1,
) -> float:
    """Return the number of uniform rows from which `exploration_kappa` exceeds `kappa`; infinite if never.

    **Arguments:** as in `exploration_kappa`; `kappa` is the value to exceed, by default 0.
    """
    slope = exploration_slope(
        num_features, support_size, delta, kernel_bound=kernel_bound, num_designs=num_designs
    )
    gap = (mean_square + inner) / support_size - 7 * inner - kappa**2
    return (slope / gap) ** 2 if gap > 0 else math.inf
