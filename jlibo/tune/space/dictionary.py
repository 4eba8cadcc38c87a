"""The dictionary of a search space: the constant, a named group per parameter and per pair, a joint group.

A function of the parameters is decomposed into a constant, main effects and interactions of two parameters.
Each term is a group, so that a selection of base kernels is a selection of named parameters and pairs.

| here | paper |
|---|---|
| group 0, "1" | the constant; not penalised, see `free_groups` |
| group "alpha" | phi_j of one parameter: cosines cos(i pi u), or contrasts of the choices |
| group "alpha x log beta" | phi_j of a pair: all products of the first functions of the two |
| group "joint" | functions of all parameters together, for the rest; see `rest_groups` |
| each group's sum of squares <= 1 | k_j(x, x) <= 1 |

The functions of a parameter that is off are 0, and so are its products with others: its values say nothing.
"""

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.checks import check_count, did_you_mean, fail
from jlibo.features.base import AbstractFeatures
from jlibo.tune.space.conditions import Intervals, activity
from jlibo.tune.space.joint import JointFeatures, joint_features
from jlibo.tune.space.parameters import Categorical, Parameter
from jlibo.tune.space.space import SearchSpace

MANY_FEATURES = 300

Function = tuple[int, int]
"""A function of one parameter: the index of the parameter, and the index of its function, from 1."""


class LargeDictionaryWarning(UserWarning):
    """A dictionary has more than 300 features, which makes every step slow.

    Issued by `space_features`. The message lists ways to reduce the number of features.
    """


@final
class SpaceFeatures(AbstractFeatures):
    """The feature map of a search space on unit points; made by `space_features`.

    Every feature is a product of two entries of one table, which holds the constant 1, then all cosines, then
    all contrasts: feature f is `scales[f] * table[factors[f][0]] * table[factors[f][1]]`.

    **Arguments:**

    - `space`: the search space.
    - `lower`, `upper`: the bounds of the unit cube, zeros and ones.
    - `groups`: the group of each feature.
    - `names`: the name of each group.
    - `free_groups`: the groups without a penalty: group 0, the constant.
    - `rest_groups`: the joint group, if there is one.
    - `cosines`, `contrasts`: the functions in the table, as pairs of indices.
    - `factors`, `scales`: the two table entries and the weight of each feature but those of the joint group.
    - `joint`: the features of the joint group, or None.
    - `conditions`: when each parameter is on; empty if no parameter has a condition.

    ```python
    import jax.numpy as jnp
    from jlibo.tune import Categorical, Float, SearchSpace, SpaceFeatures, space_features

    space = SearchSpace(rate=Float(1e-4, 1.0, log=True), kernel=Categorical(["rbf", "linear"]))
    features = space_features(space)
    assert isinstance(features, SpaceFeatures)
    point = space.to_unit({"rate": 0.01, "kernel": "rbf"})
    assert features.evaluate(jnp.asarray(point)).shape == (features.num_features,)
    ```
    """

    space: SearchSpace = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    groups: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    free_groups: tuple[int, ...] = eqx.field(static=True)
    cosines: tuple[Function, ...] = eqx.field(static=True)
    contrasts: tuple[Function, ...] = eqx.field(static=True)
    factors: tuple[tuple[int, int], ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)
    joint: JointFeatures | None
    conditions: Intervals = eqx.field(static=True, default=())

    def evaluate(self, point: Float[Array, " dim"]) -> Float[Array, " features"]:
        parts = [jnp.ones(1, point.dtype)]
        if self.cosines:
            parts.append(_cosines(point, self.cosines))
        if self.contrasts:
            counts = np.array([parameter.num_values or 0 for parameter in self.space.values()])
            parts.append(_contrasts(point, self.contrasts, counts))
        table = jnp.concatenate(parts)
        if self.conditions:
            owners = np.array([parameter for parameter, _ in self.cosines + self.contrasts], np.int32)
            is_on = activity(point, self.conditions, jnp)[owners]
            table = table * jnp.concatenate([jnp.ones(1, point.dtype), is_on.astype(point.dtype)])
        left, right = np.asarray(self.factors, np.int32).T
        products = _take(table, left) * _take(table, right)
        products = products * jnp.asarray(self.scales, point.dtype)
        return products if self.joint is None else jnp.concatenate([products, self.joint(point)])


def space_features(
    space: SearchSpace,
    *,
    num_basis: int = 6,
    num_pair_basis: int = 3,
    interactions: bool | Iterable[tuple[str, str]] = True,
    num_joint: int = 0,
) -> SpaceFeatures:
    """Return the feature map of `space`: the constant, a group per parameter and a group per pair.

    A `Float` or `Int` has `num_basis` functions, the cosines cos(i pi u) with weights proportional to 1 / i.
    An `Int` with k values has at most k - 1, which with the constant span all functions of it. A
    `Categorical` with k choices has k - 1 orthonormal contrasts, which are constant on each choice, so that
    all choices are equally far apart. A pair has all products of the functions of its two parameters; pairs
    that are never on together are left out. With
    `num_joint`, a last group has the features of a Matern-5/2 kernel of all parameters. Each group is scaled
    to k_j(x, x) <= 1.

    **Arguments:**

    - `space`: the search space.
    - `num_basis`: the number of functions of a `Float` or `Int`.
    - `num_pair_basis`: how many functions of a `Float` or `Int` enter the products of a pair, at most
      `num_basis`. All functions of a `Categorical` do.
    - `interactions`: True for all pairs that can be on together, False for none, or a list of the pairs of
      names to keep.
    - `num_joint`: the number of inducing points of the joint group; 0 for no joint group. The group is not
      selected or dropped; see `AbstractFeatures.rest_groups`.

    **Returns:**

    A `SpaceFeatures`, a feature map on the unit cube. More than 300 features give a
    `LargeDictionaryWarning`.

    **Raises:**

    - `ValueError`: an argument has the wrong type or is out of range, or `interactions` has an unknown name.

    ```python
    from jlibo.tune import Float, Int, SearchSpace, space_features

    space = SearchSpace(rate=Float(1e-4, 1.0, log=True), depth=Int(1, 8))
    features = space_features(space, num_basis=4)
    assert features.names == ("1", "depth", "log rate", "depth x log rate")
    ```
    """
    if not isinstance(space, SearchSpace):
        fail("space", "a SearchSpace", f"{space!r} ({type(space).__name__})")
    check_count("num_basis", num_basis)
    check_count("num_pair_basis", num_pair_basis)
    check_count("num_joint", num_joint, at_least=0)
    pairs = _choose_pairs(space, interactions)
    parameters = tuple(space.values())
    in_pairs = min(num_basis, num_pair_basis)

    functions = [(p, i) for p, one in enumerate(parameters) for i in range(1, _count(one, num_basis) + 1)]
    contrasts = tuple((p, i) for p, i in functions if isinstance(parameters[p], Categorical))
    cosines = tuple((p, i) for p, i in functions if not isinstance(parameters[p], Categorical))
    place = {function: position for position, function in enumerate(cosines + contrasts, 1)}

    def weighted(p: int, most: int) -> list[tuple[int, float]]:
        weights = _weights(parameters[p], most)
        return [(place[p, i], weight) for i, weight in enumerate(weights, 1)]

    blocks = [[((0, 0), 1.0)]]
    blocks += [[((i, 0), v) for i, v in weighted(p, num_basis)] for p in range(len(parameters))]
    for a, b in pairs:
        products = itertools.product(weighted(a, in_pairs), weighted(b, in_pairs))
        blocks.append([((i, j), v * w) for (i, v), (j, w) in products])

    num_features = sum(map(len, blocks))
    if num_features > MANY_FEATURES:
        warnings.warn(_advice(parameters, num_basis, in_pairs, pairs), LargeDictionaryWarning, stacklevel=2)
    joint = None
    if num_joint > 0:
        counts = [one.num_values if isinstance(one, Categorical) else 0 for one in parameters]
        joint = joint_features(tuple(counts), num_joint, space.intervals)
    num_groups = len(blocks)
    groups = [group for group, block in enumerate(blocks) for _ in block]
    return SpaceFeatures(
        space=space,
        lower=(0.0,) * len(space),
        upper=(1.0,) * len(space),
        groups=(*groups, *(num_groups for _ in range(joint.num_features if joint else 0))),
        names=_group_names(space, pairs, has_joint=joint is not None),
        # The constant: a penalty on it would shrink the mean of the scores.
        free_groups=(0,) if joint is None else (0, num_groups),
        rest_groups=() if joint is None else (num_groups,),
        cosines=cosines,
        contrasts=contrasts,
        factors=tuple(factors for block in blocks for factors, _ in block),
        scales=tuple(scale for block in blocks for _, scale in block),
        joint=joint,
        conditions=space.intervals,
    )


def _cosines(point: Float[Array, " dim"], functions: Sequence[Function]) -> Float[Array, " cosines"]:
    parameter, frequency = np.asarray(functions, np.int32).T
    return jnp.cos(jnp.asarray(math.pi * frequency, point.dtype) * _take(point, parameter))


def _contrasts(
    point: Float[Array, " dim"], functions: Sequence[Function], counts: np.ndarray
) -> Float[Array, " contrasts"]:
    """Return Helmert contrasts: the i-th compares choice i with the mean of the choices 0 to i - 1."""
    parameter, order = np.asarray(functions, np.int32).T
    count = counts[parameter]
    choice = jnp.floor(_take(point, parameter) * jnp.asarray(count, point.dtype))
    choice = jnp.minimum(choice, jnp.asarray(count - 1, point.dtype))  # the edge 1 belongs to the last choice
    length = np.sqrt(order * (order + 1.0))
    before, itself = jnp.asarray(1 / length, point.dtype), jnp.asarray(-order / length, point.dtype)
    compared = jnp.asarray(order, point.dtype)
    # Integer-valued floats compare exactly. A conversion to integers would be undefined for NaN.
    return jnp.where(choice < compared, before, jnp.where(choice == compared, itself, jnp.zeros_like(itself)))


def _take(values: Float[Array, " n"], positions: np.ndarray) -> Float[Array, " m"]:
    return values.at[positions].get(mode="promise_in_bounds")


def _count(parameter: Parameter, most: int) -> int:
    """Return the number of functions of a parameter; at most `most` for a `Float` or `Int`."""
    if isinstance(parameter, Categorical):
        return parameter.num_values - 1
    return most if parameter.num_values is None else min(most, parameter.num_values - 1)


def _weights(parameter: Parameter, most: int) -> list[float]:
    """Return the weight of each function, such that the weighted squares sum to at most 1 everywhere."""
    count = _count(parameter, most)
    if isinstance(parameter, Categorical):
        # The squares of k - 1 orthonormal contrasts sum to 1 - 1/k at every choice.
        return [math.sqrt(parameter.num_values / count)] * count
    decay = 1 / np.arange(1, count + 1)
    return (decay / np.linalg.norm(decay)).tolist()


def _group_names(space: SearchSpace, pairs: Sequence[tuple[int, int]], *, has_joint: bool) -> tuple[str, ...]:
    plain = [f"log {name}" if space[name].log else name for name in space]
    # A parameter may itself be named "1", "log a" or "a x b". Quotes then make the group names unique.
    quoted = [f"log {name!r}" if space[name].log else repr(name) for name in space]
    last = ("joint",) if has_joint else ()
    answers = [
        ("1", *mains, *(f"{mains[a]} x {mains[b]}" for a, b in pairs), *last) for mains in (plain, quoted)
    ]
    return next((names for names in answers if len(set(names)) == len(names)), answers[-1])


def _choose_pairs(space: SearchSpace, interactions: object) -> tuple[tuple[int, int], ...]:
    """Return the pairs of coordinates to keep, unique and ordered, so that equal choices give equal maps."""
    every = itertools.combinations(range(len(space)), 2)
    everything = tuple(pair for pair in every if space.conditions.can_meet(*pair))
    if isinstance(interactions, bool | np.bool_):
        return everything if interactions else ()
    expected = "True, False, or a list of pairs of names such as [('a', 'b')]"
    if isinstance(interactions, str) or not isinstance(interactions, Iterable):
        fail("interactions", expected, f"{interactions!r} ({type(interactions).__name__})")
    kept = set()
    for pair in interactions:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2 or pair[0] == pair[1]:
            fail("interactions", f"{expected}, each of two different names", f"the entry {pair!r}")
        for name in pair:
            if name not in space.names:
                known = ", ".join(map(repr, space))
                hint = did_you_mean(name, space.names)
                fail("interactions", f"pairs of {known}", f"the unknown name {name!r}{hint}")
        places = tuple(sorted(space.names.index(name) for name in pair))
        if places not in everything:
            got = f"{pair!r}, of which one is off, or has a single value, whenever the other is on"
            fail("interactions", "pairs of parameters that vary together", got)
        kept.add(places)
    return tuple(pair for pair in everything if pair in kept)


def _advice(
    parameters: Sequence[Parameter], num_basis: int, in_pairs: int, pairs: Sequence[tuple[int, int]]
) -> str:
    def size(most: int) -> int:
        return sum(_count(parameters[a], most) * _count(parameters[b], most) for a, b in pairs)

    mains = 1 + sum(_count(parameter, num_basis) for parameter in parameters)
    ways = ["a smaller `num_basis`", "fewer choices of a categorical"]
    if pairs:
        ways = [
            f"interactions=False ({mains} features)",
            "interactions=[('a', 'b'), ...] with the pairs to keep",
        ]
        if in_pairs > 1 and size(in_pairs - 1) < size(in_pairs):
            ways.insert(0, f"num_pair_basis={in_pairs - 1} ({mains + size(in_pairs - 1)} features)")
    return (
        f"The dictionary has {mains + size(in_pairs)} features in {1 + len(parameters) + len(pairs)} groups "
        f"({len(parameters)} main effects, {len(pairs)} interactions and the constant); more than "
        f"{MANY_FEATURES} make every step slow. To have fewer: {', or '.join(ways)}."
    )
