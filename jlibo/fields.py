"""Fields of modules: hyper-parameters, which are data to a compiled program, and static values.

A field declares its type and range. They are checked at construction, and `declared` returns them, so that
values can also be checked before a module is constructed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo.checks import check_count, check_finite, check_fits, check_range, fail

_DECLARED = "jlibo"


@final
@dataclasses.dataclass(frozen=True)
class Declared:
    """What a field declares: type, range or choices, and whether it is data to a compiled program."""

    kind: Any
    """float, int, str or bool; None if the value decides."""
    is_data: bool = False
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    choices: tuple[Any, ...] = ()


def declared(module: type, name: str) -> Declared | None:
    """Return what the field `name` of a class declares, or None if it declares nothing."""
    if not dataclasses.is_dataclass(module):
        return None
    metadata = {field.name: field.metadata for field in dataclasses.fields(module)}
    return metadata.get(name, {}).get(_DECLARED)


def as_hyper_parameter(name: str, value: Any, **bounds: float) -> Array:
    """Return `value` as an array; it is checked if it is concrete."""
    check_finite(name, value)
    check_range(name, value, **bounds)
    # A number, also a NumPy one, becomes weakly typed: it takes the precision of the data.
    value = float(value) if isinstance(value, int | float | np.number) else value
    dtype = jnp.result_type(getattr(value, "dtype", float))
    if jnp.issubdtype(dtype, jnp.floating):
        check_fits(name, value, dtype, may_vanish=True)
    return jnp.asarray(value)


def hyper_parameter(
    name: str, *, default: float | None = None, or_module: type[eqx.Module] | None = None, **bounds: float
) -> Any:
    """Return a module field that converts its value to an array and checks it if it is concrete.

    Instances of `or_module` are taken as they are.
    """

    def convert(value):
        if or_module is not None and isinstance(value, or_module):
            return value
        return as_hyper_parameter(name, value, **bounds)

    metadata = {_DECLARED: Declared(float, True, bounds)}
    if default is None:
        return eqx.field(converter=convert, metadata=metadata)
    return eqx.field(converter=convert, metadata=metadata, default=default)


def choice(name: str, choices: tuple[str, ...]) -> Any:
    """Return a static module field whose value is one of `choices`; the first is the default."""

    def check(value):
        if value not in choices:
            fail(name, " or ".join(map(repr, choices)), repr(value))
        return value

    metadata = {_DECLARED: Declared(str, False, choices=choices)}
    return eqx.field(static=True, converter=check, metadata=metadata, default=choices[0])


def size(name: str, default: int, *, at_least: int = 1) -> Any:
    """Return a static module field whose value is a whole number of at least `at_least`."""
    metadata = {_DECLARED: Declared(int, False, {"at_least": at_least})}

    def check(value):
        check_count(name, value, at_least=at_least)
        return int(value)

    return eqx.field(static=True, converter=check, metadata=metadata, default=default)


def static_number(name: str, default: float, **bounds: float) -> Any:
    """Return a static module field whose value is a finite Python float within `bounds`."""
    metadata = {_DECLARED: Declared(float, False, bounds)}

    def check(value):
        check_finite(name, value)
        check_range(name, value, **bounds)
        return float(value)

    return eqx.field(static=True, converter=check, metadata=metadata, default=default)
