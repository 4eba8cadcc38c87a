"""The search space: named parameters, and the unit box [0, 1]^dim on which the optimiser works.

NumPy alone is used here, in float64. The coordinates of the box are the parameters in the order of their
*sorted names*, whichever order they were written in. So two spaces with the same parameters are equal and
mean the same by a unit point, which a memory of past tasks relies on.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Float64

from jlibo.checks import check_count, check_shape, did_you_mean, fail
from jlibo.tune.parameters import KINDS, Parameter, Value
from jlibo.tune.parameters import Categorical as Categorical
from jlibo.tune.parameters import Float as Float
from jlibo.tune.parameters import Int as Int

if TYPE_CHECKING:
    from jlibo.tune.dictionary import SpaceFeatures

SPEC_VERSION = 1
UNIT_SLACK = 1e-6  # how far rounding to float32 may move a unit point past an edge


@final
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class SearchSpace(Mapping[str, Parameter]):
    """Named parameters: `SearchSpace({"alpha": Float(0, 1)})` or `SearchSpace(alpha=Float(0, 1))`.

    It is a read-only mapping from names to parameters, sorted by name. The order in which they were written
    is forgotten: spaces with the same parameters are equal, and a unit point means the same in each.
    """

    _parameters: dict[str, Parameter]

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

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted: the order of the unit coordinates."""
        return tuple(self)

    @property
    def num_parameters(self) -> int:
        return len(self)

    def validate(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """A configuration in plain Python values, as a JSON file holds them, or an error about what is wrong.

        A whole float is an int where an int is asked for, and round-off past an end is moved onto the end.
        """
        codes = self._codes(params)
        return {name: self[name].value_of(code) for name, code in zip(self, codes, strict=True)}

    def to_unit(self, params: Mapping[str, Any]) -> Float64[np.ndarray, " dim"]:
        """The unit point of a configuration, which is checked as by `validate`."""
        codes = np.array(self._codes(params))
        return np.array([p.codes_to_unit(code) for p, code in zip(self.values(), codes, strict=True)])

    def from_unit(self, point: Float64[np.ndarray, " dim"]) -> dict[str, Value]:
        """The configuration at a unit point, or nearest to it; always inside of the space."""
        units = _unit_array("point", point, (len(self),))
        return {
            name: parameter.value_of(float(parameter.unit_to_codes(unit)))
            for (name, parameter), unit in zip(self.items(), units, strict=True)
        }

    def snap(self, points: Float64[np.ndarray, "points dim"]) -> Float64[np.ndarray, "points dim"]:
        """Where the configurations at unit points really sit: `to_unit(from_unit(.))` of every point."""
        points = _unit_array("points", points, ("points", len(self)))
        columns = [p.codes_to_unit(p.unit_to_codes(u)) for p, u in zip(self.values(), points.T, strict=True)]
        return np.stack(columns, axis=1)

    def sample_unit(self, num: int, *, rng: np.random.Generator) -> Float64[np.ndarray, "points dim"]:
        """A random Latin hypercube of unit points, snapped: `num` equal strata a coordinate, a point in each.

        So even few points try every part of every parameter. In many dimensions this is evener than a
        Kronecker sequence, whose coordinates then follow each other.
        """
        check_count("num", num)
        if not isinstance(rng, np.random.Generator):
            fail("rng", "a NumPy generator, such as np.random.default_rng(0)", f"{rng!r}")
        strata = rng.permuted(np.tile(np.arange(num), (len(self), 1)), axis=1).T
        return self.snap((strata + rng.uniform(size=strata.shape)) / num)

    def features(self, **sizes: Any) -> "SpaceFeatures":
        """The dictionary of named groups on this space: see `jlibo.tune.space_features` for the sizes."""
        from jlibo.tune.dictionary import space_features  # not above: this module is without jax

        return space_features(self, **sizes)

    def spec(self) -> dict[str, Any]:
        """The space in plain JSON values, for `from_spec`."""
        parameters = {}
        for name, parameter in self.items():
            kind = next(key for key, cls in KINDS.items() if isinstance(parameter, cls))
            fields = dataclasses.asdict(parameter)
            parameters[name] = {"kind": kind} | {
                key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
            }
        return {"version": SPEC_VERSION, "parameters": parameters}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "SearchSpace":
        """The space that `spec()` wrote down, its parameters checked anew."""
        if not isinstance(spec, Mapping) or set(spec) != {"version", "parameters"}:
            fail("spec", "a mapping with the keys 'version' and 'parameters'", repr(spec))
        if type(spec["version"]) is not int or spec["version"] != SPEC_VERSION:
            fail("spec['version']", f"{SPEC_VERSION}, the one this jlibo reads", repr(spec["version"]))
        if not isinstance(spec["parameters"], Mapping):
            fail("spec['parameters']", "a mapping from names to parameters", repr(spec["parameters"]))
        return cls({name: _from_fields(name, fields) for name, fields in spec["parameters"].items()})

    def difference(self, other: "SearchSpace", *, here: str = "here", there: str = "there") -> list[str]:
        """How another space differs, a sentence a parameter; empty if they are equal.

        `here` and `there` are the words for this and the other space, say there="in the memory".
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

    def _codes(self, params: Mapping[str, Any]) -> list[float]:
        expected = f"a mapping with a value for each of {', '.join(map(repr, self))}"
        if not isinstance(params, Mapping):
            fail("params", expected, f"{params!r} ({type(params).__name__})")
        # Unknown names first: a misspelt name is missing too, and here the message can say what was meant.
        for name in params:
            if name not in self._parameters:
                fail("params", expected, f"the unknown name {name!r}{did_you_mean(name, self.names)}")
        for name in self:
            if name not in params:
                fail("params", expected, f"none for {name!r}")
        return [parameter.code_of(f"params[{name!r}]", params[name]) for name, parameter in self.items()]


def _from_fields(name: str, fields: Any) -> Parameter:
    argument = f"spec['parameters'][{name!r}]"
    kind = fields.get("kind") if isinstance(fields, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        fail(argument, f"a mapping whose 'kind' is one of {', '.join(map(repr, KINDS))}", repr(fields))
    keys = [field.name for field in dataclasses.fields(KINDS[kind])]
    if set(fields) != {"kind", *keys}:
        fail(argument, f"a mapping with the keys 'kind', {', '.join(map(repr, keys))}", repr(fields))
    try:
        return KINDS[kind](**{key: fields[key] for key in keys})
    except ValueError as error:
        raise ValueError(f"`{argument}` cannot be read: {error}") from error


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
