"""Specifications: a class or function, and its settings, to be called when an experiment runs.

An experiment is composed of specifications. They hold plain Python values, so an experiment can be listed,
checked, changed from the command line and written to JSON before jax starts.

| a setting is | if                                                                                          |
|--------------|---------------------------------------------------------------------------------------------|
| data         | its field is converted by `jlibo.fields.number`, or it is a float argument of a function    |
| static       | otherwise                                                                                   |

Fields declare their type and range (`jlibo.fields`); an argument of a function that is annotated as a
`Literal` is one of its values.

Data are arguments of the compiled program: experiments that differ in data alone share one program. Static
settings are part of the program.
"""

import dataclasses
import inspect
import math
import numbers
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import jax

from jlibo.checks import did_you_mean_or_known
from jlibo.fields import Declared, declared
from jlibo.front_door import front_door
from jlibo.printable import described, printable

SMALLEST, LARGEST = 1.1754944e-38, 3.4028235e38
"""The range of float32: a number above becomes infinite there, one below becomes 0."""
MAX_SIZE = 2**31 - 1
"""Arrays are indexed by int32."""

Value = bool | int | float | str
_KIND_WORDS = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}


class SettingError(ValueError):
    """A name or value that an experiment does not take; the message says what it takes."""


@final
class Spec:
    """A class or function, and the values of its arguments.

    **Arguments:**

    - `make_fn`: a class such as `jlibo.MetaKGL`, or a function.
    - `values`: its arguments by name: numbers, words, or other specifications. They are the settings of the
      experiment. A default of `make_fn` that is not given is not a setting.

    **Raises:** `SettingError` for a name that `make_fn` does not take, or for a value of another kind or out
    of the range that the field of a class declares.

    ```python
    import jlibo

    libo = jlibo.experiments.Spec(jlibo.MetaKGL, lam=0.5, omega=0.25)
    print(libo.settings())  # {'lam': 0.5, 'omega': 0.25}
    print(libo.changed({"lam": 0.3}).make())
    ```
    """

    @front_door
    def __init__(self, make_fn: Callable[..., Any], **values: Any):
        known = inspect.signature(make_fn).parameters
        for name in values:
            if name not in known:
                offer = did_you_mean_or_known(name, known)
                raise SettingError(f"'{printable(name)}' is no argument of {_name_of(make_fn)}.{offer}")
        self.make_fn = make_fn
        self._aliases: dict[str, str] = {}
        self._declared = {name: _declaration(make_fn, name, value) for name, value in values.items()}
        self.values: dict[str, Any] = {
            name: value if isinstance(value, Spec) else _checked(name, value, self._declared[name])
            for name, value in values.items()
        }

    @front_door
    def named(self, **aliases: str) -> "Spec":
        """Return the specification with arguments that have another name as settings.

        Specifications of an experiment that have a setting of the same name share its value.

        ```python
        import jlibo

        spec = jlibo.experiments.Spec(jlibo.FederatedMetaKGL, lam=0.2, omega=0.25, alpha=0.25)
        print(spec.named(lam="lam_federated").settings())  # lam_federated, omega, alpha
        ```
        """
        for name in aliases:
            if name not in self.values:
                raise SettingError(f"'{printable(name)}' is not given to {_name_of(self.make_fn)}.")
        return self._copy(self.values, {**self._aliases, **aliases})

    def make(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the class or function returns for the settings, after the given arguments."""
        values = {n: v.make() if isinstance(v, Spec) else v for n, v in self.values.items()}
        return self.make_fn(*args, **values, **kwargs)

    def settings(self) -> dict[str, Value]:
        """Return the settings by name, also those of nested specifications."""
        return {name: spec.values[argument] for name, spec, argument in self._leaves()}

    def data(self) -> dict[str, Value]:
        """Return the settings that are data to the compiled program."""
        return {
            name: spec.values[argument] for name, spec, argument in self._leaves() if spec.is_data(argument)
        }

    @front_door
    def is_data(self, argument: str) -> bool:
        """Return whether an argument is data to the compiled program."""
        return self._declared[argument].is_data

    @front_door
    def kind(self, name: str) -> type:
        """Return the type of the setting `name`: float, int, str or bool."""
        return next(spec._declared[argument].kind for n, spec, argument in self._leaves() if n == name)

    @front_door
    def changed(self, settings: Mapping[str, Any]) -> "Spec":
        """Return the specification with those of the given settings that it has, checked.

        Values may be traced arrays for settings that are data; these are not checked.
        """
        values = {}
        for argument, value in self.values.items():
            name = self._aliases.get(argument, argument)
            if isinstance(value, Spec):
                values[argument] = value.changed(settings)
            elif name not in settings:
                values[argument] = value
            else:
                values[argument] = _checked(name, settings[name], self._declared[argument])
        return self._copy(values, self._aliases)

    def description(self) -> str:
        """Return a text that is equal for specifications whose programs are equal: it leaves out data."""
        parts = []
        for argument, value in self.values.items():
            if isinstance(value, Spec):
                parts.append(f"{argument}={value.description()}")
            else:
                parts.append(argument if self.is_data(argument) else f"{argument}={value!r}")
        return f"{self.make_fn.__module__}.{_name_of(self.make_fn)}({', '.join(parts)})"

    def callables(self) -> Iterator[Callable[..., Any]]:
        """Yield the class or function of this specification and of nested ones."""
        yield self.make_fn
        for value in self.values.values():
            if isinstance(value, Spec):
                yield from value.callables()

    def _copy(self, values: dict[str, Any], aliases: dict[str, str]) -> "Spec":
        new = object.__new__(Spec)
        new.make_fn, new.values, new._aliases = self.make_fn, values, aliases
        new._declared = self._declared
        return new

    def _leaves(self) -> Iterator[tuple[str, "Spec", str]]:
        for argument, value in self.values.items():
            if isinstance(value, Spec):
                yield from value._leaves()
            else:
                yield self._aliases.get(argument, argument), self, argument

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self.description())

    def _parts(self) -> tuple[Any, ...]:
        return self.make_fn, self.values, self._aliases

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"Spec({_name_of(self.make_fn)}, {values})"


def parsed(name: str, text: str, kind: type) -> Value:
    """Return the value of type `kind` that `text` stands for."""
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SettingError(f"'{name}' should be true or false, but got '{_short(text)}'.")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise SettingError(f"'{name}' should be {_KIND_WORDS[kind]}, but got '{_short(text)}'.") from None


def _name_of(make_fn: Callable[..., Any]) -> str:
    return getattr(make_fn, "__qualname__", None) or type(make_fn).__qualname__  # a `partial` has none


def _declaration(make_fn: Callable[..., Any], name: str, value: Any) -> Declared:
    """Return what the field of a class declares, or what the value of a function's argument implies."""
    found = declared(make_fn, name) if isinstance(make_fn, type) else _literal(make_fn, name)
    kind = found.kind if found is not None and found.kind is not None else _kind_of(name, value)
    if found is None:
        # An argument of a function, or a field without declaration. A class decides itself what is data.
        return Declared(kind=kind, is_data=kind is float and not isinstance(make_fn, type))
    return dataclasses.replace(found, kind=kind)


def _literal(make_fn: Callable[..., Any], name: str) -> Declared | None:
    hint = typing.get_type_hints(make_fn).get(name)
    if typing.get_origin(hint) is not typing.Literal:
        return None
    return Declared(kind=None, choices=typing.get_args(hint))


def _kind_of(name: str, value: Any) -> type:
    if isinstance(value, Spec):
        return Spec
    for kind, accepted in ((bool, bool), (int, numbers.Integral), (float, numbers.Real), (str, str)):
        if isinstance(value, accepted):
            return kind
    raise SettingError(
        f"'{printable(name)}' should be a number, a word or a Spec, but got {described(value)}."
    )


def _checked(name: str, value: Any, about: Declared) -> Any:
    """Return the value as its declared type. Any real number will do for a float."""
    if about.is_data and isinstance(value, jax.Array):
        return value
    kind = about.kind
    accepted = {float: numbers.Real, int: numbers.Integral, str: str, bool: bool}[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise SettingError(f"'{name}' should be {_KIND_WORDS[kind]}, but got {described(value)}.")
    try:
        value = kind(value)
    except OverflowError:
        raise SettingError(f"'{name}' should be at most {LARGEST:.6g}, the largest float32.") from None
    _check_representable(name, value)
    if about.choices and value not in about.choices:
        choices = ", ".join(map(str, about.choices))
        raise SettingError(f"'{name}' should be one of {choices}, but got '{_short(value)}'.")
    _check_bounds(name, value, about.bounds)
    return value


def _check_bounds(name: str, value: Any, bounds: Mapping[str, float]) -> None:
    if not isinstance(value, float | int) or isinstance(value, bool):
        return
    signs = {"at_least": ">=", "above": ">", "at_most": "<=", "below": "<"}
    holds = {
        "at_least": lambda bound: value >= bound,
        "above": lambda bound: value > bound,
        "at_most": lambda bound: value <= bound,
        "below": lambda bound: value < bound,
    }
    if not math.isfinite(value) or not all(holds[side](bound) for side, bound in bounds.items()):
        words = " and ".join(f"{signs[side]} {bound:g}" for side, bound in bounds.items())
        raise SettingError(f"'{name}' should be a number {words or 'that is finite'}, but got {value}.")


def _check_representable(name: str, value: Any) -> None:
    """Raise an error for a number that the compiled program cannot take as it is, in either precision."""
    if isinstance(value, int) and not abs(value) <= MAX_SIZE:
        # Python does not print whole numbers of thousands of digits.
        got = value if abs(value) < 2**64 else f"one of {value.bit_length()} bits"
        raise SettingError(f"'{name}' should be a whole number up to {MAX_SIZE}, but got {got}.")
    if isinstance(value, float) and math.isfinite(value) and value != 0:
        if abs(value) > LARGEST:
            raise SettingError(
                f"'{name}' should be at most {LARGEST:.6g}, the largest float32: {value:g} would be infinite."
            )
        if abs(value) < SMALLEST:
            raise SettingError(
                f"'{name}' should be 0 or at least {SMALLEST:.6g}, the smallest float32: "
                f"{value:g} would be 0."
            )


def _short(text: object) -> str:
    return printable(text, max_length=60)
