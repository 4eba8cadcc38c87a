"""Fields of modules: hyper-parameters, which are data to a compiled program, and static values.

A field declares its type and range by its converter. They are checked at construction, and `declared` returns
them, so that values can also be checked before a module is constructed.

| here                                   | what it is                                                        |
|----------------------------------------|-------------------------------------------------------------------|
| `number`                               | the converter of a hyper-parameter: `eqx.field(converter=...)`    |
| `choice`, `size`, `static_number`      | static fields with a default                                      |
| `AbstractField`                        | an attribute that subclasses define, for type checkers            |
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo.checks import check_count, check_finite, check_fits, check_range, fail
from jlibo.front_door import got, is_numeric

ScalarLike = float | np.number | np.ndarray | Array
"""A number, or an array of shape [], which may be traced."""

Value = TypeVar("Value", covariant=True)
Module = TypeVar("Module", bound=eqx.Module)


@final
class AbstractField(Generic[Value]):
    """An attribute that the subclasses of an abstract module define, as type checkers see it.

    At run time it is an `eqx.AbstractVar`, which type checkers would take for an argument of the constructor.
    A subclass may define it by a field, a class variable or a property.
    """

    def __get__(self, instance: Any, owner: Any) -> Value:
        raise AttributeError("a subclass defines it")


@final
@dataclasses.dataclass(frozen=True)
class Declared:
    """What a field declares: type, range or choices, and whether it is data to a compiled program."""

    kind: Any
    """float, int, str or bool; None if the value decides."""
    is_data: bool = False
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    choices: tuple[Any, ...] = ()


class AbstractConverter(abc.ABC):
    """Converts and checks the value of a field, and declares what it accepts.

    Type checkers read the arguments of a constructor from the converters of its fields.
    """

    declared: Declared


@final
@dataclasses.dataclass(frozen=True)
class Number(AbstractConverter):
    """The converter of a hyper-parameter, made by `number`."""

    name: str
    declared: Declared

    def __call__(self, value: ScalarLike) -> Array:
        return as_hyper_parameter(self.name, value, **self.declared.bounds)


@final
@dataclasses.dataclass(frozen=True)
class NumberOr(AbstractConverter, Generic[Module]):
    """The converter of a hyper-parameter that may also be a module, made by `number_or`."""

    name: str
    kind: type[Module]
    declared: Declared

    def __call__(self, value: ScalarLike | Module) -> Array | Module:
        if isinstance(value, self.kind):
            return value
        return as_hyper_parameter(self.name, value, **self.declared.bounds)


@final
@dataclasses.dataclass(frozen=True)
class Checked(AbstractConverter):
    """The converter of a static field: a function that checks the value and returns it."""

    check_fn: Callable[[Any], Any]
    declared: Declared

    def __call__(self, value: Any) -> Any:
        return self.check_fn(value)


def declared(module: type, name: str) -> Declared | None:
    """Return what the field `name` of a class declares, or None if it declares nothing."""
    if not dataclasses.is_dataclass(module):
        return None
    metadata = {field.name: field.metadata for field in dataclasses.fields(module)}
    converter = metadata.get(name, {}).get("converter")
    return converter.declared if isinstance(converter, AbstractConverter) else None


def as_hyper_parameter(name: str, value: Any, **bounds: float) -> Array:
    """Return `value` as an array; it is checked if it is concrete."""
    if not is_numeric(value):
        fail(name, "a number", got(value))
    check_finite(name, value)
    check_range(name, value, **bounds)
    # A number, also a NumPy one, becomes weakly typed: it takes the precision of the data.
    value = float(value) if isinstance(value, int | float | np.number) else value
    dtype = jnp.result_type(getattr(value, "dtype", float))
    if jnp.issubdtype(dtype, jnp.floating):
        check_fits(name, value, dtype, may_vanish=True)
    return jnp.asarray(value)


def number(name: str, **bounds: float) -> Number:
    """Return the converter of a hyper-parameter: a number within `bounds`, which becomes an array.

    It is the argument of a field, `eqx.field(converter=number("lam", at_least=0))`.
    """
    return Number(name, Declared(float, True, bounds))


def number_or(name: str, kind: type[Module], **bounds: float) -> NumberOr[Module]:
    """Return the converter of a hyper-parameter that may also be a module of type `kind`."""
    return NumberOr(name, kind, Declared(float, True, bounds))


def choice(name: str, choices: tuple[str, ...]) -> Any:
    """Return a static module field whose value is one of `choices`; the first is the default."""

    def check(value: str) -> str:
        if value not in choices:
            fail(name, " or ".join(map(repr, choices)), repr(value))
        return value

    converter = Checked(check, Declared(str, False, choices=choices))
    return eqx.field(static=True, converter=converter, default=choices[0])


def size(name: str, default: int | None, *, at_least: int = 1) -> Any:
    """Return a static module field whose value is a whole number of at least `at_least`.

    With the default None, it may also be None.
    """

    def check(value: int | None) -> int | None:
        if value is None and default is None:
            return None
        check_count(name, value, at_least=at_least)
        return int(value)  # pyright: ignore[reportArgumentType]

    converter = Checked(check, Declared(int, False, {"at_least": at_least}))
    return eqx.field(static=True, converter=converter, default=default)


def static_number(name: str, default: float, **bounds: float) -> Any:
    """Return a static module field whose value is a finite Python float within `bounds`."""

    def check(value: float) -> float:
        if not is_numeric(value):
            fail(name, "a number", got(value))
        check_finite(name, value)
        check_range(name, value, **bounds)
        return float(value)

    converter = Checked(check, Declared(float, False, bounds))
    return eqx.field(static=True, converter=converter, default=default)
