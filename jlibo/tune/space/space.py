"""The search space: named parameters, and the unit cube [0, 1]^dim on which the optimiser works.

This module uses only NumPy, in float64. The coordinates of the unit cube are the parameters in the order of
their *sorted names*, independent of the order in which they were written. Two spaces with the same parameters
are therefore equal and give a unit point the same meaning. The memory of past tasks relies on this.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Float64

from jlibo.checks import check_count, check_shape, did_you_mean, fail
from jlibo.front_door import front_door
from jlibo.html_table import html_table
from jlibo.tune.space.conditions import OFF, Conditions, Intervals, activity
from jlibo.tune.space.parameters import Categorical as Categorical
from jlibo.tune.space.parameters import Float as Float
from jlibo.tune.space.parameters import Int as Int
from jlibo.tune.space.parameters import Parameter, Value, from_fields, to_fields, version_of

if TYPE_CHECKING:
    from jlibo.tune.space.dictionary import SpaceFeatures

SPEC_VERSION = 3
"""The newest version of the JSON of a space. Version 2 has `step`, `when` and nested choices, version 3
`default`. A space is written in the first version that can describe it, for older versions of jlibo."""
UNIT_SLACK = 1e-6  # how far rounding to float32 may move a unit point outside the unit cube


@final
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class SearchSpace(Mapping[str, Parameter]):
    """A read-only mapping from names to parameters, sorted by name.

    The order in which the parameters were written does not matter: spaces with the same parameters are equal,
    and a unit point has the same meaning in each.

    A configuration has a value for each parameter that is on: those without a condition (`when`), and those
    whose condition holds. The unit coordinate of a parameter that is off is 0.5.

    **Arguments:**

    - `parameters`: a mapping from names to parameters, each a `Float`, an `Int` or a `Categorical`.
    - `more`: further parameters as keyword arguments.

    **Raises:**

    - `ValueError`: there is no parameter, a name is empty or given twice, or a value is not a parameter; a
      condition names an unknown parameter or value, depends on itself, or can never hold.

    ```python
    from jlibo import Float, Int, SearchSpace

    space = SearchSpace({"alpha": Float(0, 1)}, depth=Int(1, 3))
    assert space.names == ("alpha", "depth")
    assert space == SearchSpace(depth=Int(1, 3), alpha=Float(0, 1))
    assert space.from_unit(space.to_unit({"alpha": 0.5, "depth": 2})) == {"alpha": 0.5, "depth": 2}

    pipeline = SearchSpace(depth=Int(1, 3), rate=Float(0, 1, when={"depth": [2, 3]}))
    assert pipeline.validate({"depth": 1}) == {"depth": 1}
    ```
    """

    _parameters: dict[str, Parameter]
    _conditions: Conditions

    def __init__(self, parameters: Mapping[str, Parameter] | None = None, **more: Parameter):
        parameters = {} if parameters is None else parameters
        if not isinstance(parameters, Mapping):
            fail("parameters", "a mapping from names to parameters", repr(parameters))
        twice = sorted(set(parameters) & set(more))
        if twice:
            fail("parameters", "names given once", f"{twice[0]!r} in the mapping and as a keyword")
        together = {**parameters, **more}
        if not together:
            fail("parameters", "at least one parameter", "none")
        for name, parameter in together.items():
            if not isinstance(name, str) or not name.strip():
                fail("parameters", "named by strings that are not empty", f"the name {name!r}")
            if not isinstance(parameter, Parameter):
                got = f"{parameter!r} ({type(parameter).__name__})"
                fail(f"parameters[{name!r}]", "a Float, an Int or a Categorical", got)
        ordered = {str(name): together[name] for name in sorted(together)}
        object.__setattr__(self, "_parameters", ordered)
        object.__setattr__(self, "_conditions", Conditions.of(ordered))

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._parameters:
            raise KeyError(f"no parameter {name!r}{did_you_mean(name, self.names)}")
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchSpace) and self._parameters == other._parameters

    def __hash__(self) -> int:
        return hash(tuple(self._parameters.items()))

    def __repr__(self) -> str:
        lines = (f"    {name!r}: {parameter!r},\n" for name, parameter in self.items())
        return f"SearchSpace({{\n{''.join(lines)}}})"

    def _repr_html_(self) -> str:
        rows = [(name, repr(parameter)) for name, parameter in self.items()]
        return html_table(f"SearchSpace: {len(self)} parameters", ("parameter", "values"), rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The sorted names, in the order of the unit coordinates."""
        return tuple(self)

    @property
    def num_parameters(self) -> int:
        """The number of parameters, which is the dimension of the unit cube."""
        return len(self)

    @property
    def conditions(self) -> Conditions:
        """The conditions of all parameters, for the model."""
        return self._conditions

    @property
    def intervals(self) -> Intervals:
        """The conditions for unit coordinates; empty if no parameter has a condition."""
        return self._conditions.intervals

    @front_door
    def active_names(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the sorted names of the parameters that are on, given the values of their parents.

        A parent without a value in `params` counts as off. Other values are not used.

        **Raises:**

        - `ValueError`: the value of a parent is not in its range.
        """
        codes: list[float | None] = [None] * len(self)
        for place in self._conditions.order:
            name = self.names[place]
            if (
                name in params
                and place in self._conditions.parents
                and self._conditions.are_met(place, codes)
            ):
                codes[place] = self[name].code_of(f"params[{name!r}]", params[name])
        return tuple(name for place, name in enumerate(self) if self._conditions.are_met(place, codes))

    def validate(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """Return a configuration in plain Python values, as a JSON file holds them.

        An integer-valued float is accepted for an `Int`, and a value beyond a bound by round-off is moved
        onto the bound.

        **Arguments:**

        - `params`: a mapping with a value for each parameter that is on.

        **Raises:**

        - `ValueError`: a name is missing or unknown, a value is not in the range of its parameter, or there
          is a value for a parameter that is off.
        """
        pairs = zip(self, self._codes(params), strict=True)
        return {name: self[name].value_of(code) for name, code in pairs if code is not None}

    def to_unit(self, params: Mapping[str, Any]) -> Float64[np.ndarray, " dim"]:
        """Return the unit point of a configuration, which is checked as in `validate`.

        **Raises:**

        - `ValueError`: `params` is not a configuration of this space.
        """
        pairs = zip(self.values(), self._codes(params), strict=True)
        return np.array([OFF if code is None else p.codes_to_unit(np.array(code)) for p, code in pairs])

    def from_unit(self, point: Float64[np.ndarray, " dim"]) -> dict[str, Value]:
        """Return the configuration nearest to a unit point; it is always inside the space.

        **Raises:**

        - `ValueError`: `point` does not have one number in `[0, 1]` per parameter.
        """
        units = _unit_array("point", point, (len(self),))
        is_on = np.ones(len(self), bool)
        if self.intervals:
            is_on = activity(self._snap_all(units[None])[0], self.intervals, np)
        return {
            name: parameter.value_of(float(parameter.unit_to_codes(unit)))
            for (name, parameter), unit, on in zip(self.items(), units, is_on, strict=True)
            if on
        }

    def snap(self, points: Float64[np.ndarray, "points dim"]) -> Float64[np.ndarray, "points dim"]:
        """Return `to_unit(from_unit(point))` for every point: the coordinates of the nearest configuration.

        **Raises:**

        - `ValueError`: `points` is not an array `[points, dim]` of numbers in `[0, 1]`.
        """
        return self.with_off(self._snap_all(_unit_array("points", points, ("points", len(self)))))

    def with_off(self, points: Float64[np.ndarray, "points dim"]) -> Float64[np.ndarray, "points dim"]:
        """Return unit points with the coordinates of parameters that are off set to 0.5."""
        return np.where(activity(points, self.intervals, np), points, OFF) if self.intervals else points

    def _snap_all(self, points: Float64[np.ndarray, "points dim"]) -> Float64[np.ndarray, "points dim"]:
        columns = [p.codes_to_unit(p.unit_to_codes(u)) for p, u in zip(self.values(), points.T, strict=True)]
        return np.stack(columns, axis=1)

    def sample_unit(self, num: int, *, rng: np.random.Generator) -> Float64[np.ndarray, "points dim"]:
        """Return a random Latin hypercube of unit points, `[num, dim]`, snapped to configurations.

        Each coordinate has `num` equal strata with one point in each, so that even few points cover the range
        of every parameter. In many dimensions this is more even than a Kronecker sequence, whose coordinates
        then become correlated.

        **Arguments:**

        - `num`: the number of points.
        - `rng`: a NumPy generator, such as `np.random.default_rng(0)`.

        **Raises:**

        - `ValueError`: `num` is not a positive integer, or `rng` is not a generator.
        """
        return self.with_off(self.sample_all(num, rng=rng))

    def sample_all(self, num: int, *, rng: np.random.Generator) -> Float64[np.ndarray, "points dim"]:
        """Return `sample_unit` with a value of every parameter, also of those that are off."""
        check_count("num", num)
        if not isinstance(rng, np.random.Generator):
            fail("rng", "a NumPy generator, such as np.random.default_rng(0)", f"{rng!r}")
        strata = rng.permuted(np.tile(np.arange(num), (len(self), 1)), axis=1).T
        return self._snap_all((strata + rng.uniform(size=strata.shape)) / num)

    def features(self, **sizes: Any) -> "SpaceFeatures":
        """Return the feature map of this space; `sizes` are those of `jlibo.tune.space_features`."""
        from jlibo.tune.space.dictionary import space_features  # imported here: it needs jax

        return space_features(self, **sizes)

    def spec(self) -> dict[str, Any]:
        """Return the space as plain JSON values, for `from_spec`."""
        parameters = {name: to_fields(parameter) for name, parameter in self.items()}
        return {"version": max(map(version_of, parameters.values())), "parameters": parameters}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "SearchSpace":
        """Return the space described by the result of `spec`. Its parameters are checked again.

        **Raises:**

        - `ValueError`: `spec` has other keys, another version or an invalid parameter.
        """
        if not isinstance(spec, Mapping) or set(spec) != {"version", "parameters"}:
            fail("spec", "a mapping with the keys 'version' and 'parameters'", repr(spec))
        version = spec["version"]
        if type(version) is not int or not 1 <= version <= SPEC_VERSION:
            fail("spec['version']", f"1 to {SPEC_VERSION}, which this jlibo reads", repr(version))
        if not isinstance(spec["parameters"], Mapping):
            fail("spec['parameters']", "a mapping from names to parameters", repr(spec["parameters"]))
        return cls(
            {name: from_fields(name, fields, version=version) for name, fields in spec["parameters"].items()}
        )

    @front_door
    def difference(self, other: "SearchSpace", *, here: str = "here", there: str = "there") -> list[str]:
        """Return the differences to another space, one sentence per parameter; empty if they are equal.

        **Arguments:**

        - `other`: the space to compare with.
        - `here`, `there`: the words for this and the other space, such as `there="in the memory"`.

        **Raises:**

        - `ValueError`: `other` is not a `SearchSpace`.
        """
        if not isinstance(other, SearchSpace):
            fail("other", "a SearchSpace", f"{other!r} ({type(other).__name__})")
        sentences = []
        for name in sorted({*self, *other}):
            mine, theirs = self.get(name), other.get(name)
            if mine is None or theirs is None:
                where, parameter = (there, theirs) if mine is None else (here, mine)
                sentences.append(f"{name!r} is only {where}: {parameter!r}")
            elif mine != theirs:
                sentences.append(f"{name!r}: {mine!r} {here}, {theirs!r} {there}")
        return sentences

    def _codes(self, params: Mapping[str, Any]) -> list[float | None]:
        """Return the code of each parameter of a configuration; None for those that are off."""
        which = " that is on" if self.intervals else ""
        expected = f"a mapping with a value for each of {', '.join(map(repr, self))}{which}"
        if not isinstance(params, Mapping):
            fail("params", expected, f"{params!r} ({type(params).__name__})")
        # Check unknown names first: a misspelt name is also missing, and this message suggests the right one.
        for name in params:
            if name not in self._parameters:
                fail("params", expected, f"the unknown name {name!r}{did_you_mean(name, self.names)}")
        names = self.names
        codes: list[float | None] = [None] * len(self)
        for place in self._conditions.order:
            name, when = names[place], self[names[place]].when
            if self._conditions.are_met(place, codes):
                if name not in params:
                    fail(
                        "params", expected, f"none for {name!r}" + (f", which is on: {when}" if when else "")
                    )
                codes[place] = self[name].code_of(f"params[{name!r}]", params[name])
            elif name in params:
                fail("params", expected, f"one for {name!r}, which is off: it exists only if {when}")
        return codes


def _unit_array(
    argument: str, points: Any, shape: tuple[int | str, ...]
) -> Float64[np.ndarray, "*batch dim"]:
    try:
        array = np.asarray(points, np.float64)
    except (TypeError, ValueError):
        fail(argument, "numbers in [0, 1]", repr(points))
    check_shape(argument, array, shape)
    bad = ~((array >= -UNIT_SLACK) & (array <= 1 + UNIT_SLACK))  # negated, to catch NaN
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        fail(argument, "numbers in [0, 1]", f"{array[where].item()} at {list(where)}")
    return np.clip(array, 0.0, 1.0)
