"""The kinds of parameters, their unit coordinates, and their form in a JSON file.

This module uses only NumPy, in float64.

| parameter | unit coordinate, in [0, 1] |
|---|---|
| Float | linear in the value, or in its logarithm with `log`; the bounds are at 0 and 1 |
| Int | the centres of k equal cells for k values; with `log`, value v has the cell from v - 1/2 to v + 1/2 |
| Float or Int with `step` | (i + 0.5) / k for value i of k |
| Categorical | (i + 0.5) / k for choice i of k |
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jlibo.checks import fail
from jlibo.tune.space.categorical import Categorical as Categorical
from jlibo.tune.space.numeric import Float as Float
from jlibo.tune.space.numeric import Int as Int
from jlibo.tune.space.values import NO_DEFAULT as NO_DEFAULT
from jlibo.tune.space.values import Value as Value
from jlibo.tune.space.values import from_json, to_json
from jlibo.tune.space.when import When, when_from_json

Parameter = Float | Int | Categorical
KINDS: dict[str, type[Parameter]] = {"float": Float, "int": Int, "categorical": Categorical}
REQUIRED: dict[str, tuple[str, ...]] = {
    "float": ("low", "high", "log"),
    "int": ("low", "high", "log"),
    "categorical": ("choices",),
}
OPTIONAL: dict[str, tuple[str, ...]] = {
    "float": ("step", "when", "default"),
    "int": ("step", "when", "default"),
    "categorical": ("when", "default"),
}
"""Fields of later versions of a space's JSON. They are written only where they are set."""


def to_fields(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter as plain JSON values, for `from_fields`."""
    kind = next(key for key, cls in KINDS.items() if isinstance(parameter, cls))
    fields: dict[str, Any] = {"kind": kind}
    for name in REQUIRED[kind]:
        value = getattr(parameter, name)
        fields[name] = [to_json(one) for one in value] if name == "choices" else value
    for name in OPTIONAL[kind]:
        value = getattr(parameter, name)
        if name == "default" and parameter.has_default:
            fields[name] = to_json(value)
        elif value is not None:
            fields[name] = value.to_json() if isinstance(value, When) else value
    return fields


def version_of(fields: Mapping[str, Any]) -> int:
    """Return the first version of a space's JSON that can describe a parameter with these fields."""
    if "default" in fields:
        return 3
    has_new = any(name in fields for name in ("step", "when"))
    has_new = has_new or any(isinstance(one, list | dict) for one in fields.get("choices", ()))
    return 2 if has_new else 1


def from_fields(name: str, fields: Any, *, version: int) -> Parameter:
    """Return the parameter of `to_fields`, checked again."""
    argument = f"spec['parameters'][{name!r}]"
    kind = fields.get("kind") if isinstance(fields, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        fail(argument, f"a mapping whose 'kind' is one of {', '.join(map(repr, KINDS))}", repr(fields))
    required = REQUIRED[kind]
    optional = () if version == 1 else OPTIONAL[kind]
    optional = optional if version > 2 else tuple(key for key in optional if key != "default")
    if not {"kind", *required} <= set(fields) <= {"kind", *required, *optional}:
        words = f"a mapping with the keys 'kind', {', '.join(map(repr, required))}"
        words += f" and perhaps {', '.join(map(repr, optional))}" if optional else ""
        fail(argument, words, repr(fields))
    try:
        arguments = {key: fields[key] for key in (*required, *optional) if key in fields}
        if kind == "categorical" and version > 1:
            arguments["choices"] = from_json("choices", arguments["choices"])
        if "when" in arguments:
            arguments["when"] = when_from_json("when", arguments["when"])
        if "default" in arguments:
            arguments["default"] = from_json("default", arguments["default"])
        return KINDS[kind](**arguments)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{argument}` cannot be read: {error}") from error


def conditioned(parameter: Parameter, when: Mapping[str, Any] | None) -> Parameter:
    """Return the same parameter under another condition; None if it exists always."""
    if isinstance(parameter, Categorical):
        default = parameter.default if parameter.has_default else NO_DEFAULT
        return Categorical(parameter.choices, when=when, default=default)
    return dataclasses.replace(parameter, when=when)


def defaulted(parameter: Parameter, default: Any) -> Parameter:
    """Return the same parameter with another default; with none if it is `NO_DEFAULT`."""
    if isinstance(parameter, Categorical):
        return Categorical(parameter.choices, when=parameter.when, default=default)
    return dataclasses.replace(parameter, default=None if default is NO_DEFAULT else default)
