"""The built-in feature maps: cosines, Legendre polynomials, Fourier pairs, monomials.

Each scales the point to [0, 1] or [-1, 1] in every coordinate and is bounded there: k_j(x, x) <= 1. In the
names of the groups, x1, x2, ... are these scaled coordinates.

| here | paper |
|---|---|
| Cosine(50) | phi_j(x) = cos(j pi x), the synthetic experiments; Cosine.grid(10, dim=2) the 2-d ones |
| Legendre(n) | phi_j(x) = P_j(x) |
| Fourier, Polynomial(group_by="variables") | base kernels with d_j > 1 |
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.checks import check_count, fail
from jlibo.features.base import AbstractFeatures, clip_keeping_gradient, make_box
from jlibo.features.indices import IndexVector, first_half_space, first_indices, monomial_powers
from jlibo.front_door import front_door

Bound = float | Sequence[float]


@final
class Cosine(AbstractFeatures):
    """Products of `cos(i_k pi u_k)`, where u is the point scaled to [0, 1]; one feature per group.

    Frequency vectors `(i_1, ..., i_dim)` are ordered by their sum, then lexicographically.

    **Arguments:**

    - `num_features`: number of features.
    - `dim`: number of coordinates of a point.
    - `lower`, `upper`: the box; a number, or one number per dimension.
    - `constant`: start frequencies at 0 instead of 1, which includes the constant and the main effects.
    - `max_frequency`: the largest entry of a frequency vector; unlimited by default.

    **Raises:** `ValueError` for an invalid argument, or if there are fewer than `num_features` frequency
    vectors up to `max_frequency`.

    ```python
    import jlibo

    features = jlibo.Cosine(50)
    print(features([[0.0], [0.5]]).shape)  # (2, 50)
    ```
    """

    free_groups: ClassVar[tuple[int, ...]] = ()
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    frequencies: tuple[IndexVector, ...] = eqx.field(static=True)

    @front_door
    def __init__(
        self,
        num_features: int = 50,
        *,
        dim: int = 1,
        lower: Bound = 0.0,
        upper: Bound = 1.0,
        constant: bool = False,
        max_frequency: int | None = None,
    ):
        check_count("num_features", num_features)
        check_count("dim", dim)
        if max_frequency is not None:
            check_count("max_frequency", max_frequency)
        self.lower, self.upper = make_box(lower, upper, dim)
        self.frequencies = first_indices(num_features, dim, least=0 if constant else 1, most=max_frequency)

    @classmethod
    @front_door
    def grid(
        cls,
        num_frequencies: int,
        *,
        dim: int = 2,
        lower: Bound = 0.0,
        upper: Bound = 1.0,
        constant: bool = False,
    ) -> "Cosine":
        """Return the map of all products of the frequencies 1 to `num_frequencies`, in the same order.

        **Arguments:**

        - `num_frequencies`: the largest frequency; `num_frequencies ** dim` features.
        - `dim`, `lower`, `upper`: as in `Cosine`.
        - `constant`: start frequencies at 0; `(num_frequencies + 1) ** dim` features.

        **Returns:** a `Cosine` map.

        **Raises:** `ValueError` for an invalid argument.

        ```python
        import jlibo

        print(jlibo.Cosine.grid(10, dim=2).num_features)  # 100
        ```
        """
        check_count("num_frequencies", num_frequencies)
        check_count("dim", dim)
        count = (num_frequencies + bool(constant)) ** dim
        return cls(count, dim=dim, lower=lower, upper=upper, constant=constant, max_frequency=num_frequencies)

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(range(len(self.frequencies)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            _product_name(f"cos({_times(i)}pi x{k})" if i else "" for k, i in enumerate(vector, 1))
            for vector in self.frequencies
        )

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        multiples = jnp.arange(_largest(self.frequencies) + 1, dtype=point.dtype)
        unit = _to_unit(point, self.lower, self.upper)
        return _products(jnp.cos(math.pi * (multiples[:, None] * unit[None, :])), self.frequencies)


@final
class Legendre(AbstractFeatures):
    """Products of Legendre polynomials P_i of the point scaled to [-1, 1]; one feature per group.

    The polynomials satisfy `|P_i| <= 1`. Degree vectors are ordered as the frequencies of `Cosine`.

    **Arguments:**

    - `num_features`: number of features.
    - `dim`: number of coordinates of a point.
    - `lower`, `upper`: the box; a number, or one number per dimension.
    - `constant`: start degrees at 0 instead of 1.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jlibo

    print(jlibo.Legendre(3)([1.0]))  # 1, 1, 1
    ```
    """

    free_groups: ClassVar[tuple[int, ...]] = ()
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    degrees: tuple[IndexVector, ...] = eqx.field(static=True)

    @front_door
    def __init__(
        self,
        num_features: int = 50,
        *,
        dim: int = 1,
        lower: Bound = -1.0,
        upper: Bound = 1.0,
        constant: bool = False,
    ):
        check_count("num_features", num_features)
        check_count("dim", dim)
        self.lower, self.upper = make_box(lower, upper, dim)
        self.degrees = first_indices(num_features, dim, least=0 if constant else 1)

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(range(len(self.degrees)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            _product_name(f"P{i}(x{k})" if i else "" for k, i in enumerate(vector, 1))
            for vector in self.degrees
        )

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        centred = _to_centred(point, self.lower, self.upper)
        table = _legendre_table(centred, _largest(self.degrees))
        return _products(table, self.degrees)


@final
class Fourier(AbstractFeatures):
    """Pairs `cos(2 pi k.u)`, `sin(2 pi k.u)`, where u is the point scaled to [0, 1].

    Each frequency vector k is a group of two features with `k_j(x, x) = 1`. Of k and -k only one is used. The
    order is by `sum |k_i|`, then lexicographic.

    **Arguments:**

    - `num_frequencies`: number of frequency vectors.
    - `dim`: number of coordinates of a point.
    - `lower`, `upper`: the box; a number, or one number per dimension.
    - `constant`: add the constant as first group, with one feature.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jlibo

    features = jlibo.Fourier(5, constant=True)
    print(features.group_sizes)  # (1, 2, 2, 2, 2, 2)
    ```
    """

    free_groups: ClassVar[tuple[int, ...]] = ()
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    frequencies: tuple[IndexVector, ...] = eqx.field(static=True)
    constant: bool = eqx.field(static=True)

    @front_door
    def __init__(
        self,
        num_frequencies: int,
        *,
        dim: int = 1,
        lower: Bound = 0.0,
        upper: Bound = 1.0,
        constant: bool = False,
    ):
        check_count("num_frequencies", num_frequencies)
        check_count("dim", dim)
        self.lower, self.upper = make_box(lower, upper, dim)
        self.frequencies = first_half_space(num_frequencies, dim)
        self.constant = bool(constant)

    @property
    def groups(self) -> tuple[int, ...]:
        first = int(self.constant)
        pairs = tuple(first + j for j in range(len(self.frequencies)) for _ in range(2))
        return (0,) * first + pairs

    @property
    def names(self) -> tuple[str, ...]:
        pairs = tuple(f"cos, sin(2 pi ({_linear_name(vector)}))" for vector in self.frequencies)
        return ("constant",) * self.constant + pairs

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        unit = _to_unit(point, self.lower, self.upper)
        # A sum instead of a matrix product: accelerators may compute products in reduced precision.
        turns = jnp.sum(jnp.asarray(self.frequencies, point.dtype) * unit[None, :], axis=-1)
        angles = 2 * math.pi * turns
        pairs = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1).reshape(-1)
        return jnp.concatenate([jnp.ones(int(self.constant), point.dtype), pairs])


@final
class Polynomial(AbstractFeatures):
    """Monomials of the coordinates scaled to [-1, 1], of total degree at most `degree`.

    **Arguments:**

    - `degree`: the largest total degree.
    - `dim`: number of coordinates of a point.
    - `lower`, `upper`: the box; a number, or one number per dimension.
    - `constant`: add the constant as first group.
    - `max_interaction`: maximum number of different variables in a monomial; unlimited by default.
    - `group_by`: with `"monomial"` each monomial is a base kernel. With `"variables"` all monomials in the
      same set of variables are one base kernel, scaled by `1 / sqrt(size)` to keep `k_j(x, x) <= 1`.
      Selecting kernels then selects interactions.

    **Raises:** `ValueError` for an invalid argument.

    ```python
    import jlibo

    features = jlibo.Polynomial(2, dim=2, group_by="variables")
    print(features.names)  # ('x1', 'x2', 'x1 x x2')
    ```
    """

    free_groups: ClassVar[tuple[int, ...]] = ()
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    powers: tuple[IndexVector, ...] = eqx.field(static=True)
    group_by: str = eqx.field(static=True)

    @front_door
    def __init__(
        self,
        degree: int,
        *,
        dim: int = 1,
        lower: Bound = -1.0,
        upper: Bound = 1.0,
        constant: bool = False,
        max_interaction: int | None = None,
        group_by: Literal["monomial", "variables"] = "monomial",
    ):
        check_count("degree", degree)
        check_count("dim", dim)
        if max_interaction is not None:
            check_count("max_interaction", max_interaction)
        if group_by not in ("monomial", "variables"):
            fail("group_by", "'monomial' or 'variables'", repr(group_by))
        self.lower, self.upper = make_box(lower, upper, dim)
        limit = dim if max_interaction is None else int(max_interaction)
        powers = monomial_powers(dim, degree, limit, by_variables=group_by == "variables")
        self.powers = ((0,) * dim,) * bool(constant) + tuple(powers)
        self.group_by = group_by

    @property
    def groups(self) -> tuple[int, ...]:
        if self.group_by == "monomial":
            return tuple(range(len(self.powers)))
        ids = {variables: j for j, variables in enumerate(dict.fromkeys(map(_variables, self.powers)))}
        return tuple(ids[_variables(power)] for power in self.powers)

    @property
    def names(self) -> tuple[str, ...]:
        if self.group_by == "monomial":
            return tuple(
                _product_name((f"x{k}^{i}" if i > 1 else f"x{k}" * i) for k, i in enumerate(power, 1))
                for power in self.powers
            )
        sets = dict.fromkeys(map(_variables, self.powers))
        return tuple(" x ".join(f"x{k}" for k in variables) or "constant" for variables in sets)

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        centred = _to_centred(point, self.lower, self.upper)
        # Repeated products instead of `**`: the gradient of a power with a traced exponent is NaN at zero.
        rows = [jnp.ones_like(centred)]
        for _ in range(_largest(self.powers)):
            rows.append(rows[-1] * centred)
        groups = np.asarray(self.groups)
        scales = 1 / np.sqrt(np.bincount(groups)[groups])
        return _products(jnp.stack(rows), self.powers) * jnp.asarray(scales, point.dtype)


def _to_unit(point: Array, lower: tuple[float, ...], upper: tuple[float, ...]) -> Array:
    """Map the box to [0, 1]. The width is computed in float64, so a box far from zero keeps it in float32."""
    low, width = np.asarray(lower), np.asarray(upper) - np.asarray(lower)
    scaled = (point - low.astype(point.dtype)) / width.astype(point.dtype)
    return clip_keeping_gradient(scaled, 0.0, 1.0)


def _to_centred(point: Array, lower: tuple[float, ...], upper: tuple[float, ...]) -> Array:
    """Map the box to [-1, 1] relative to its centre, which is exact for the box [-1, 1].

    The clip is necessary: P_200 evaluated one float32 step past 1 has an error of 2e-3 and exceeds its bound.
    """
    half = np.asarray(upper) / 2 - np.asarray(lower) / 2
    centre = np.asarray(lower) + half
    scaled = (point - centre.astype(point.dtype)) / half.astype(point.dtype)
    return clip_keeping_gradient(scaled, -1.0, 1.0)


def _products(
    table: Float[Array, "orders dim"], indices: tuple[IndexVector, ...]
) -> Float[Array, " features"]:
    """Return the features `prod_k table[indices[f][k], k]`; each 1-d function is computed once."""
    orders = np.asarray(indices, np.int32)
    result = table.at[orders[:, 0], 0].get(mode="promise_in_bounds")
    for k in range(1, orders.shape[1]):
        result = result * table.at[orders[:, k], k].get(mode="promise_in_bounds")
    return result


def _legendre_table(centred: Float[Array, " dim"], degree: int) -> Float[Array, "orders dim"]:
    """Return P_0..P_degree by (n + 1) P_{n+1} = (2n + 1) x P_n - n P_{n-1}, which is stable on [-1, 1].

    Uses a scan, so the traced program has the same size for any degree.
    """
    one = jnp.ones_like(centred)
    if degree == 0:
        return one[None]

    def step(carry, order):
        before, last = carry
        following = ((2 * order + 1) * centred * last - order * before) / (order + 1)
        return (last, following), following

    orders = jnp.arange(1, degree, dtype=centred.dtype)
    _, rest = jax.lax.scan(step, (one, centred), orders)
    return jnp.concatenate([one[None], centred[None], rest])


def _largest(indices: tuple[IndexVector, ...]) -> int:
    return max(max(vector) for vector in indices)


def _variables(power: IndexVector) -> tuple[int, ...]:
    return tuple(k for k, i in enumerate(power, 1) if i)


def _times(multiple: int) -> str:
    return "" if multiple == 1 else f"{multiple} "


def _product_name(factors) -> str:
    return " ".join(factor for factor in factors if factor) or "constant"


def _linear_name(vector: IndexVector) -> str:
    text = ""
    for k, i in enumerate(vector, 1):
        if i:
            sign = (" - " if i < 0 else " + ") if text else ""
            text += f"{sign}{_times(abs(i))}x{k}"
    return text
