"""The kinds of parameters and their unit coordinates.

This module uses only NumPy, in float64.

| parameter | unit coordinate, in [0, 1] |
|---|---|
| Float | linear in the value, or in its logarithm with `log`; the bounds are at 0 and 1 |
| Int | the centres of k equal cells for k values; with `log`, value v has the cell from v - 1/2 to v + 1/2 |
| Categorical | (i + 0.5) / k for choice i of k |
"""

import abc
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from jlibo.checks import did_you_mean, fail

Value = str | int | float | bool | None
Codes = Float64[np.ndarray, "*batch"]

LARGEST_INT = 2**40  # up to here the round trip through [0, 1] is exact, also on a log scale
SLACK = 1e-12  # relative round-off beyond a bound that is accepted: np.logspace misses its own bounds


class AbstractParameter(abc.ABC):
    """A parameter: its values, their numeric codes, and the unit coordinates of the codes.

    The code of a number is the number itself. The code of a choice is its index. Codes may be arrays, to
    convert many points at once.
    """

    log: bool = False

    @property
    @abc.abstractmethod
    def num_values(self) -> int | None:
        """The number of values; None if the parameter is continuous."""

    @abc.abstractmethod
    def code_of(self, argument: str, value: Any) -> float:
        """Return the code of a value; the error for an invalid value calls it `argument`."""

    @abc.abstractmethod
    def value_of(self, code: float) -> Value:
        """Return the value of a code, as a plain Python value."""

    @abc.abstractmethod
    def codes_to_unit(self, codes: Codes) -> Codes:
        """Return the unit coordinates of codes."""

    @abc.abstractmethod
    def unit_to_codes(self, unit: Codes) -> Codes:
        """Return the codes nearest to unit coordinates, always inside the range."""


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Float(AbstractParameter):
    """A real parameter from `low` to `high`, both included.

    **Arguments:**

    - `low`, `high`: the bounds, finite, `low` below `high`.
    - `log`: use a log scale, on which equal ratios are equal distances. `low` must then be positive.

    **Raises:**

    - `ValueError`: the bounds are not finite numbers in increasing order, or not positive on a log scale.

    ```python
    from jlibo import Float, SearchSpace

    space = SearchSpace(momentum=Float(0.0, 0.99), rate=Float(1e-4, 1.0, log=True))
    assert space.from_unit([0.0, 1.0]) == {"momentum": 0.0, "rate": 1.0}
    ```
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self):
        for end in ("low", "high"):
            object.__setattr__(self, end, _real(end, getattr(self, end)))
        _check_ends(self)
        if not math.isfinite(self.high - self.low):
            fail("high", f"a finite distance above `low` {_short(self.low)}", _short(self.high))
        if self.log and not math.log(self.low) < math.log(self.high):
            fail("high", f"far enough above `low` {self.low!r} to differ on a log scale", repr(self.high))

    def __repr__(self) -> str:
        return f"Float({_ends(self)})"

    @property
    def num_values(self) -> None:
        return None

    def code_of(self, argument: str, value: Any) -> float:
        number = _real(argument, value)
        scale = max(abs(self.low), abs(self.high))
        least = self.low - SLACK * (self.low if self.log else scale)
        most = self.high + SLACK * (self.high if self.log else scale)
        if not least <= number <= most:
            fail(argument, f"a number from {_short(self.low)} to {_short(self.high)}", _short(number))
        return min(max(number, self.low), self.high)

    def value_of(self, code: float) -> float:
        return float(code)

    def codes_to_unit(self, codes: Codes) -> Codes:
        low, high = self._scale(self.low), self._scale(self.high)
        return np.clip((self._scale(codes) - low) / (high - low), 0.0, 1.0)

    def unit_to_codes(self, unit: Codes) -> Codes:
        low, high = self._scale(self.low), self._scale(self.high)
        inner = low + unit * (high - low)
        codes = np.clip(np.exp(inner) if self.log else inner, self.low, self.high)
        # Return the bounds exactly: the sum and the exponential miss them by round-off.
        return np.where(unit <= 0, self.low, np.where(unit >= 1, self.high, codes))

    def _scale(self, numbers: Any) -> Any:
        return np.log(numbers) if self.log else numbers


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Int(AbstractParameter):
    """An integer parameter from `low` to `high`, both included.

    **Arguments:**

    - `low`, `high`: the bounds, `low` below `high`, both between `-2**40` and `2**40`.
    - `log`: use a log scale, on which equal ratios are equal distances. `low` must then be positive.

    **Raises:**

    - `ValueError`: the bounds are not integers in increasing order, exceed `2**40` in absolute value, or are
      not positive on a log scale.

    ```python
    from jlibo import Int, SearchSpace

    space = SearchSpace(depth=Int(1, 10), units=Int(16, 1024, log=True))
    assert space.from_unit([0.0, 1.0]) == {"depth": 1, "units": 1024}
    ```
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self):
        for end in ("low", "high"):
            object.__setattr__(self, end, _whole(end, getattr(self, end)))
            if abs(getattr(self, end)) > LARGEST_INT:
                fail(end, f"between -2**40 and 2**40, {LARGEST_INT:,}", getattr(self, end))
        _check_ends(self)

    def __repr__(self) -> str:
        return f"Int({_ends(self)})"

    @property
    def num_values(self) -> int:
        return self.high - self.low + 1

    def code_of(self, argument: str, value: Any) -> float:
        number = _whole(argument, value)
        if not self.low <= number <= self.high:
            fail(argument, f"a whole number from {self.low} to {self.high}", number)
        return float(number)

    def value_of(self, code: float) -> int:
        return int(code)

    def codes_to_unit(self, codes: Codes) -> Codes:
        if self.log:
            least, most = np.log(self.low - 0.5), np.log(self.high + 0.5)
            return (np.log(codes) - least) / (most - least)
        return (codes - self.low + 0.5) / self.num_values

    def unit_to_codes(self, unit: Codes) -> Codes:
        if self.log:
            least, most = np.log(self.low - 0.5), np.log(self.high + 0.5)
            codes = np.rint(np.exp(least + unit * (most - least)))
        else:
            codes = self.low + np.floor(unit * self.num_values)
        return np.clip(codes, self.low, self.high)


@final
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Categorical(AbstractParameter):
    """A parameter with unordered choices: strings, numbers, booleans or None.

    Choices of different types are different choices: True is not 1, and 1 is not 1.0. A value is first looked
    up with its type. If there is none, an int matches an equal float and a float an equal int, but a boolean
    never matches a number. The order of the list is part of the parameter, because it determines the unit
    coordinate of each choice.

    **Arguments:**

    - `choices`: at least two distinct choices in a fixed order. Numbers must be finite.

    **Raises:**

    - `ValueError`: the choices are not a list of at least two distinct values that JSON can hold.

    ```python
    from jlibo import Categorical, SearchSpace

    space = SearchSpace(kernel=Categorical(["rbf", "linear"]), depth=Categorical([3, 5, None]))
    assert space.validate({"kernel": "rbf", "depth": 5.0}) == {"kernel": "rbf", "depth": 5}
    ```
    """

    choices: tuple[Value, ...]

    def __init__(self, choices: Iterable[Value]):
        if isinstance(choices, str | Mapping | set | frozenset) or not isinstance(choices, Iterable):
            fail("choices", "a list of choices in a fixed order", f"{choices!r} ({type(choices).__name__})")
        object.__setattr__(self, "choices", tuple(_plain(choice) for choice in choices))
        seen = set()
        for choice in self.choices:
            if type(choice) not in (str, int, float, bool, type(None)):
                got = f"{choice!r} ({type(choice).__name__})"
                fail("choices", "strings, numbers, booleans or None, which a JSON file can hold", got)
            if isinstance(choice, float) and not math.isfinite(choice):
                fail("choices", "finite, as numbers in a JSON file are", choice)
            if _typed(choice) in seen:
                fail("choices", "distinct", f"{choice!r} twice")
            seen.add(_typed(choice))
        if len(seen) < 2:
            fail("choices", "at least 2 distinct choices", list(self.choices))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Categorical) and self._typed_choices() == other._typed_choices()

    def __hash__(self) -> int:
        return hash(self._typed_choices())

    def __repr__(self) -> str:
        return f"Categorical({list(self.choices)!r})"

    @property
    def num_values(self) -> int:
        return len(self.choices)

    def code_of(self, argument: str, value: Any) -> float:
        value = _plain(value)
        for code, choice in enumerate(self.choices):
            if type(choice) is type(value) and choice == value:
                return float(code)
        if type(value) in (int, float):
            for code, choice in enumerate(self.choices):
                if type(choice) in (int, float) and choice == value:
                    return float(code)
        shown = ", ".join(map(repr, self.choices[:10]))
        more = f" or {self.num_values - 10} more" if self.num_values > 10 else ""
        texts = [choice for choice in self.choices if isinstance(choice, str)]
        got = f"{value!r} ({type(value).__name__})"
        return fail(argument, f"one of {shown}{more}", got + did_you_mean(value, texts))

    def value_of(self, code: float) -> Value:
        return self.choices[int(code)]

    def codes_to_unit(self, codes: Codes) -> Codes:
        return (codes + 0.5) / self.num_values

    def unit_to_codes(self, unit: Codes) -> Codes:
        return np.clip(np.floor(unit * self.num_values), 0, self.num_values - 1)

    def _typed_choices(self) -> tuple[tuple[str, Value], ...]:
        return tuple(map(_typed, self.choices))


Parameter = Float | Int | Categorical
KINDS: dict[str, type[Parameter]] = {"float": Float, "int": Int, "categorical": Categorical}


def _plain(value: Any) -> Any:
    """Return the Python value of a NumPy or jax scalar; any other value unchanged."""
    # By attributes, because values may come from any array library.
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _typed(choice: Value) -> tuple[str, Value]:
    return type(choice).__name__, choice  # True == 1 == 1.0 in Python, but they are three choices


def _real(argument: str, value: Any) -> float:
    number = _plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        fail(argument, "a finite number", f"{value!r} ({type(value).__name__})")
    try:
        number = float(number) + 0.0  # turns -0.0 into 0.0
    except OverflowError:
        fail(argument, "a finite number", "an int too large for a float")
    if not math.isfinite(number):
        fail(argument, "a finite number", number)
    return number


def _whole(argument: str, value: Any) -> int:
    number = _plain(value)
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole:
        fail(argument, "a whole number", f"{value!r} ({type(value).__name__})")
    return int(number)


def _check_ends(parameter: Float | Int) -> None:
    if not isinstance(parameter.log, bool):
        fail("log", "True or False", f"{parameter.log!r} ({type(parameter.log).__name__})")
    if not parameter.low < parameter.high:
        fail("low", f"below `high` {_short(parameter.high)}", _short(parameter.low))
    if parameter.log and parameter.low <= 0:
        fail("low", "> 0 on a log scale", _short(parameter.low))


def _short(number: float) -> str:
    return repr(number).removesuffix(".0")


def _ends(parameter: Float | Int) -> str:
    return f"{_short(parameter.low)}, {_short(parameter.high)}{', log=True' * parameter.log}"
