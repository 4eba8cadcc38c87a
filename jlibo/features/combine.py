"""Feature maps built from other maps or from a user's function.

| here | paper |
|---|---|
| Concatenate(a, b) | the base kernels of a and of b, p = p_a + p_b |
| Unpenalised(features, names) | kernels known to be in J*, such as a constant |
| Scaled(features, scales) | scales[j]^2 k_j, e.g. to keep k_j(x, x) <= 1 |
| FunctionFeatures(fn, groups=...) | phi as given by the user |
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.checks import check_finite, check_shape, fail
from jlibo.features.base import AbstractFeatures, make_box
from jlibo.front_door import front_door
from jlibo.groups import validate_groups


@final
class Concatenate(AbstractFeatures):
    """The features of several maps on one box, concatenated. Group ids continue from map to map.

    **Arguments:**

    - `maps`: one or more feature maps with the same box.

    **Raises:** `ValueError` if there is no map, or if the boxes differ.

    ```python
    import jlibo

    features = jlibo.Concatenate(jlibo.Cosine(10), jlibo.Fourier(5))
    print(features.num_groups, features.num_features)  # 15 20
    ```
    """

    maps: tuple[AbstractFeatures, ...]

    @front_door
    def __init__(self, *maps: AbstractFeatures):
        if not maps:
            fail("maps", "at least one feature map", "none")
        for one in maps:
            if (one.lower, one.upper) != (maps[0].lower, maps[0].upper):
                fail(
                    "maps",
                    f"on the same box {maps[0].lower} to {maps[0].upper}",
                    f"a map on {one.lower} to {one.upper}",
                )
        self.maps = maps

    @property
    def lower(self) -> tuple[float, ...]:
        return self.maps[0].lower

    @property
    def upper(self) -> tuple[float, ...]:
        return self.maps[0].upper

    @property
    def groups(self) -> tuple[int, ...]:
        result, offset = [], 0
        for one in self.maps:
            result += [offset + group for group in one.groups]
            offset += one.num_groups
        return tuple(result)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for one in self.maps for name in one.names)

    @property
    def free_groups(self) -> tuple[int, ...]:
        result, offset = [], 0
        for one in self.maps:
            result += [offset + group for group in one.free_groups]
            offset += one.num_groups
        return tuple(result)

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        return jnp.concatenate([one.evaluate(point) for one in self.maps])


@final
class Scaled(AbstractFeatures):
    """The features of a map, with those of group j multiplied by `scales[j]`.

    **Arguments:**

    - `features`: the map.
    - `scales`: one finite number per group.

    **Raises:** `ValueError` if `scales` has the wrong shape or is not finite.

    ```python
    import jlibo

    features = jlibo.Scaled(jlibo.Cosine(3), [1.0, 0.5, 0.25])
    print(features([0.0]))  # 1, 0.5, 0.25
    ```
    """

    features: AbstractFeatures
    scales: Float[Array, " groups"]

    @front_door
    def __init__(self, features: AbstractFeatures, scales: Float[Array, " groups"]):
        check_shape("scales", scales, (features.num_groups,))
        check_finite("scales", scales)
        self.features = features
        self.scales = jnp.asarray(scales)

    @property
    def lower(self) -> tuple[float, ...]:
        return self.features.lower

    @property
    def upper(self) -> tuple[float, ...]:
        return self.features.upper

    @property
    def groups(self) -> tuple[int, ...]:
        return self.features.groups

    @property
    def names(self) -> tuple[str, ...]:
        return self.features.names

    @property
    def free_groups(self) -> tuple[int, ...]:
        return self.features.free_groups

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        values = self.features.evaluate(point)
        return values * self.scales.astype(values.dtype)[np.asarray(self.groups)]


@final
class Unpenalised(AbstractFeatures):
    """The features of a map, with some groups always in the support, such as a constant.

    The group lasso does not shrink these groups and no threshold drops them. Priors give each the weight one.

    **Arguments:**

    - `features`: the map.
    - `names`: names of the groups, a list or a single name. At least one group must stay penalised.

    **Raises:** `ValueError` for an unknown name, or if no group is left to select from.

    ```python
    import jlibo

    features = jlibo.Unpenalised(jlibo.Fourier(5, constant=True), ["constant"])
    print(features.free_groups)  # (0,)
    ```
    """

    features: AbstractFeatures
    free_groups: tuple[int, ...] = eqx.field(static=True)

    @front_door
    def __init__(self, features: AbstractFeatures, names: str | Sequence[str]):
        if isinstance(names, str):
            names = [names]
        unknown = [name for name in names if name not in features.names]
        if unknown:
            fail("names", f"names of groups among {list(features.names)}", unknown)
        chosen = {group for group, name in enumerate(features.names) if name in names}
        free = {*features.free_groups, *chosen}
        if len(free) == features.num_groups:
            fail("names", "some of the groups", "all of them, which leaves nothing to select")
        self.features = features
        self.free_groups = tuple(sorted(free))

    @property
    def lower(self) -> tuple[float, ...]:
        return self.features.lower

    @property
    def upper(self) -> tuple[float, ...]:
        return self.features.upper

    @property
    def groups(self) -> tuple[int, ...]:
        return self.features.groups

    @property
    def names(self) -> tuple[str, ...]:
        return self.features.names

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        return self.features.evaluate(point)


@final
class FunctionFeatures(AbstractFeatures):
    """A feature map given by a jittable function of one point, with the group of each feature.

    The map does not bound the features: check them with `check_bounded`, or scale them with `normalise`.

    **Arguments:**

    - `fn`: maps a point `[dim]` to an array `[features]`. A plain function, or a callable pytree such as an
      `eqx.Module`. The arrays of a pytree are arrays of the map: they can be trained, and changing them does
      not recompile.
    - `groups`: the group of each feature, 0 to p - 1 without gaps.
    - `lower`, `upper`: the box; a number, or one number per dimension.
    - `names`: one name per group; by default "group 0", "group 1", ...

    **Raises:** `ValueError` if an argument is invalid, if the output of `fn` does not have one feature per
    entry of `groups`, or if `fn` is not hashable.

    ```python
    import jax.numpy as jnp
    import jlibo

    features = jlibo.FunctionFeatures(
        lambda x: jnp.stack([x[0], x[1], x[0] * x[1]]),
        groups=[0, 0, 1],
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        names=["linear", "interaction"],
    )
    print(features([0.5, 0.5]))  # 0.5, 0.5, 0.25
    ```
    """

    free_groups: ClassVar[tuple[int, ...]] = ()
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    groups: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    arrays: tuple[Any, ...]
    static: tuple[Any, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @front_door
    def __init__(
        self,
        fn: Callable[[Float[Array, " dim"]], Float[Array, " features"]],
        *,
        groups: Sequence[int],
        lower: float | Sequence[float],
        upper: float | Sequence[float],
        names: Sequence[str] | None = None,
    ):
        if not callable(fn):
            fail("fn", "a function of one point", f"{fn!r}")
        self.lower, self.upper = make_box(lower, upper, None)
        self.groups = validate_groups("groups", groups)
        num_groups = max(self.groups) + 1
        names = [f"group {j}" for j in range(num_groups)] if names is None else names
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            fail("names", "a list of strings, one per group", repr(names))
        if len(names) != num_groups:
            fail("names", f"one name for each of the {num_groups} groups", f"{len(names)} names")
        self.names = tuple(names)
        _check_output(fn, len(self.lower), len(self.groups))
        # Split into arrays and static leaves: a function is not a valid `jit` argument, and arrays have no
        # hash.
        leaves, self.structure = jax.tree.flatten(fn)
        is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        self.arrays = tuple(leaf if yes else None for leaf, yes in zip(leaves, is_array, strict=True))
        self.static = tuple(None if yes else leaf for leaf, yes in zip(leaves, is_array, strict=True))
        try:
            hash((self.static, self.structure))
        except TypeError as error:
            fail("fn", "hashable, to be static under jit", f"{type(fn).__name__} ({error})")

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        leaves = [b if a is None else a for a, b in zip(self.arrays, self.static, strict=True)]
        fn = jax.tree.unflatten(self.structure, leaves)
        return jnp.asarray(fn(point)).astype(point.dtype)


def _check_output(fn: Callable, dim: int, num_features: int) -> None:
    output = jax.eval_shape(lambda point: fn(point), jax.ShapeDtypeStruct((dim,), jnp.result_type(float)))
    expected = f"a function of one point [{dim}] that returns an array [{num_features}], as `groups` has it"
    if not isinstance(output, jax.ShapeDtypeStruct):
        fail("fn", expected, f"one that returns a {type(output).__name__}")
    if output.shape != (num_features,):
        fail("fn", expected, f"one that returns shape {list(output.shape)}")
