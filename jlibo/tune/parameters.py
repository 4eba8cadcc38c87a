"""The kinds of parameter, and where the values of each sit in [0, 1].

NumPy alone is used here, in float64.

| parameter | where its values sit in [0, 1] |
|---|---|
| Float | evenly, or its logarithm evenly; the ends at 0 and 1 |
| Int | k values at the middles of k equal cells; with `log`, value v in a cell from v - 1/2 to v + 1/2 |
| Categorical | choice i of k at (i + 0.5) / k |
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

LARGEST_INT = 2**40  # up to here, rounding back from [0, 1] is exact, on a log scale too
SLACK = 1e-12  # round-off past an end that is forgiven, relative to it: np.logspace misses its own ends


class AbstractParameter(abc.ABC):
    """One parameter: its values, the number that stands for each (its code), and where that sits in [0, 1].

    The code of a number is the number itself, that of a choice its index. Codes may be arrays, so that many
    points are moved at once.
    """

    log: bool = False

    @property
    @abc.abstractmethod
    def num_values(self) -> int | None:
        """How many values there are, None for a continuum."""

    @abc.abstractmethod
    def code_of(self, argument: str, value: Any) -> float:
        """The code of a value, or an error that calls the value `argument`."""

    @abc.abstractmethod
    def value_of(self, code: float) -> Value:
        """The plain Python value of a code."""

    @abc.abstractmethod
    def codes_to_unit(self, codes: Codes) -> Codes:
        """Where codes sit in [0, 1]."""

    @abc.abstractmethod
    def unit_to_codes(self, unit: Codes) -> Codes:
        """The codes nearest to places in [0, 1], never outside of the range."""


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Float(AbstractParameter):
    """A real number from `low` to `high`, both included; with `log`, equal ratios are equal distances."""

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
        # The ends exactly, which the sum and the exponential miss by round-off.
        return np.where(unit <= 0, self.low, np.where(unit >= 1, self.high, codes))

    def _scale(self, numbers: Any) -> Any:
        return np.log(numbers) if self.log else numbers


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Int(AbstractParameter):
    """A whole number from `low` to `high`, both included; with `log`, equal ratios are equal distances."""

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
    """One of a list of choices without an order among them: strings, numbers, booleans or None.

    Choices of different type are different choices: True is not 1, and 1 is not 1.0. A value is looked up
    with its type first; then an int may stand for an equal float and the other way round, but no boolean for
    a number. The order of the list is part of the parameter, for it says where in [0, 1] a choice sits.
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
    """A NumPy or jax scalar as the Python value it holds; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _typed(choice: Value) -> tuple[str, Value]:
    return type(choice).__name__, choice  # True == 1 == 1.0 in Python, but these are three choices


def _real(argument: str, value: Any) -> float:
    number = _plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        fail(argument, "a finite number", f"{value!r} ({type(value).__name__})")
    try:
        number = float(number) + 0.0  # the sum makes -0.0 a plain 0.0
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
