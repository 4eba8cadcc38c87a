"""Parameters that are numbers: `Float` and `Int`. Public as `jlibo.Float` and `jlibo.Int`."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, final

import numpy as np

from jlibo.checks import fail
from jlibo.tune.space.base import AbstractParameter, Codes, cells_to_unit, unit_to_cells
from jlibo.tune.space.values import plain
from jlibo.tune.space.when import when_of

LARGEST_INT = 2**40  # up to here the round trip through [0, 1] is exact, also on a log scale
SLACK = 1e-12  # relative round-off beyond a bound that is accepted: np.logspace misses its own bounds
STEP_SLACK = 1e-6  # in steps: how far a number may be from the nearest multiple


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Float(AbstractParameter):
    """A real parameter from `low` to `high`, both included.

    **Arguments:**

    - `low`, `high`: the bounds, finite, `low` below `high`.
    - `log`: use a log scale, on which equal ratios are equal distances. `low` must then be positive.
    - `step`: if given, the values are `low`, `low + step`, `low + 2 * step` and so on. `high` becomes the
      largest of them. Not together with `log`.
    - `when`: the condition under which the parameter exists: a mapping from the name of another parameter to
      a value or a list of values. Several entries must all hold. None if it exists always.
    - `default`: the value that older trials had, if they were made before there was this parameter. It has no
      other effect.

    **Raises:**

    - `ValueError`: the bounds are not finite numbers in increasing order, or not positive on a log scale;
      `step` is not positive or larger than the range; `when` is not a mapping; `default` is not a value.

    ```python
    from jlibo import Float, SearchSpace

    space = SearchSpace(momentum=Float(0.0, 0.99), rate=Float(1e-4, 1.0, log=True))
    assert space.from_unit([0.0, 1.0]) == {"momentum": 0.0, "rate": 1.0}
    assert Float(0, 1, step=0.25).num_values == 5
    ```
    """

    low: float
    high: float
    log: bool = False
    step: float | None = dataclasses.field(default=None, kw_only=True)
    when: Mapping[str, Any] | None = dataclasses.field(default=None, kw_only=True)
    default: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        for end in ("low", "high"):
            object.__setattr__(self, end, _real(end, getattr(self, end)))
        _check_ends(self)
        if not math.isfinite(self.high - self.low):
            fail("high", f"a finite distance above `low` {_short(self.low)}", _short(self.high))
        if self.log and not math.log(self.low) < math.log(self.high):
            fail("high", f"far enough above `low` {self.low!r} to differ on a log scale", repr(self.high))
        if self.step is not None:
            object.__setattr__(self, "step", _real("step", self.step))
            last = _check_step(self, self.step)
            object.__setattr__(self, "high", self.value_of(last))
        object.__setattr__(self, "when", when_of(self.when))
        _set_default(self)

    def __repr__(self) -> str:
        return f"Float({_arguments(self)})"

    @property
    def has_default(self) -> bool:
        return self.default is not None

    @property
    def num_values(self) -> int | None:
        return None if self.step is None else _last_step(self, self.step) + 1

    @property
    def first_code(self) -> float:
        return 0.0 if self.step is not None else self.low

    def code_of(self, argument: str, value: Any) -> float:
        number = _real(argument, value)
        scale = max(abs(self.low), abs(self.high))
        least = self.low - SLACK * (self.low if self.log else scale)
        most = self.high + SLACK * (self.high if self.log else scale)
        is_inside = least <= number <= most
        if self.step is not None:
            place = (number - self.low) / self.step if is_inside else math.nan
            if not abs(place - np.rint(place)) <= STEP_SLACK:
                _fail_step(argument, self, _short(number))
            return float(np.rint(place))
        if not is_inside:
            fail(argument, f"a number from {_short(self.low)} to {_short(self.high)}", _short(number))
        return min(max(number, self.low), self.high)

    def code_near(self, argument: str, value: Any) -> float:
        if self.step is None:
            return self.code_of(argument, value)
        return _code_near(self, argument, value, self.step)

    def codes_near(self, argument: str, values: Sequence[Any]) -> Codes:
        return _codes_near(self, argument, values)

    def value_of(self, code: float) -> float:
        if self.step is None:
            return float(code)
        # In decimals, as people write them: 0 + 3 * 0.1 is 0.3 and not 0.30000000000000004.
        return float(Decimal(repr(self.low)) + int(code) * Decimal(repr(self.step)))

    def codes_to_unit(self, codes: Codes) -> Codes:
        if self.num_values is not None:
            return cells_to_unit(codes, self.num_values)
        low, high = self._scale(self.low), self._scale(self.high)
        return np.clip((self._scale(codes) - low) / (high - low), 0.0, 1.0)

    def unit_to_codes(self, unit: Codes) -> Codes:
        if self.num_values is not None:
            return unit_to_cells(unit, self.num_values)
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
    - `step`: if given, the values are `low`, `low + step`, `low + 2 * step` and so on. `high` becomes the
      largest of them. Not together with `log`.
    - `when`: the condition under which the parameter exists: a mapping from the name of another parameter to
      a value or a list of values. Several entries must all hold. None if it exists always.
    - `default`: the value that older trials had, if they were made before there was this parameter. It has no
      other effect.

    **Raises:**

    - `ValueError`: the bounds are not integers in increasing order, exceed `2**40` in absolute value, or are
      not positive on a log scale; `step` is not positive or larger than the range; `when` is not a mapping;
      `default` is not a value.

    ```python
    from jlibo import Int, SearchSpace

    space = SearchSpace(depth=Int(1, 10), units=Int(16, 1024, log=True))
    assert space.from_unit([0.0, 1.0]) == {"depth": 1, "units": 1024}
    assert Int(1, 9, step=2).num_values == 5
    ```
    """

    low: int
    high: int
    log: bool = False
    step: int | None = dataclasses.field(default=None, kw_only=True)
    when: Mapping[str, Any] | None = dataclasses.field(default=None, kw_only=True)
    default: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        for end in ("low", "high"):
            object.__setattr__(self, end, _whole(end, getattr(self, end)))
            if abs(getattr(self, end)) > LARGEST_INT:
                fail(end, f"between -2**40 and 2**40, {LARGEST_INT:,}", getattr(self, end))
        _check_ends(self)
        if self.step is not None:
            step = _whole("step", self.step)
            # A step of one is no step. Equal parameters have equal fields.
            object.__setattr__(self, "step", None if step == 1 else step)
            last = _check_step(self, step)
            object.__setattr__(self, "high", self.low + step * last)
        object.__setattr__(self, "when", when_of(self.when))
        _set_default(self)

    def __repr__(self) -> str:
        return f"Int({_arguments(self)})"

    @property
    def has_default(self) -> bool:
        return self.default is not None

    @property
    def num_values(self) -> int:
        return (self.high - self.low) // (self.step or 1) + 1

    @property
    def first_code(self) -> float:
        return 0.0 if self.step is not None else float(self.low)

    def code_of(self, argument: str, value: Any) -> float:
        number = _whole(argument, value)
        is_inside = self.low <= number <= self.high
        if self.step is not None:
            if not is_inside or (number - self.low) % self.step:
                _fail_step(argument, self, number)
            return float((number - self.low) // self.step)
        if not is_inside:
            fail(argument, f"a whole number from {self.low} to {self.high}", number)
        return float(number)

    def code_near(self, argument: str, value: Any) -> float:
        return _code_near(self, argument, value, self.step or 1)

    def codes_near(self, argument: str, values: Sequence[Any]) -> Codes:
        return _codes_near(self, argument, values)

    def value_of(self, code: float) -> int:
        return int(code) if self.step is None else self.low + self.step * int(code)

    def codes_to_unit(self, codes: Codes) -> Codes:
        if self.step is not None:
            return cells_to_unit(codes, self.num_values)
        if self.log:
            least, most = np.log(self.low - 0.5), np.log(self.high + 0.5)
            return (np.log(codes) - least) / (most - least)
        return (codes - self.low + 0.5) / self.num_values

    def unit_to_codes(self, unit: Codes) -> Codes:
        if self.step is not None:
            return unit_to_cells(unit, self.num_values)
        if self.log:
            least, most = np.log(self.low - 0.5), np.log(self.high + 0.5)
            codes = np.rint(np.exp(least + unit * (most - least)))
        else:
            codes = self.low + np.floor(unit * self.num_values)
        return np.clip(codes, self.low, self.high)


def _real(argument: str, value: Any) -> float:
    number = plain(value)
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
    number = plain(value)
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


def _check_step(parameter: Float | Int, step: float) -> int:
    """Return the number of steps from `low` to the largest value, after a check of `step`."""
    if parameter.log and step != 1:
        fail("step", "None on a log scale", _short(step))
    if not 0 < step <= (parameter.high - parameter.low) * (1 + STEP_SLACK):
        fail("step", f"> 0 and at most `high - low`, {_short(parameter.high - parameter.low)}", _short(step))
    last = _last_step(parameter, step)
    if last >= LARGEST_INT:
        fail("step", "large enough for at most 2**40 values", _short(step))
    return last


def _last_step(parameter: Float | Int, step: float) -> int:
    return math.floor((parameter.high - parameter.low) / step + STEP_SLACK)


def _set_default(parameter: Float | Int) -> None:
    if parameter.default is not None:
        value = parameter.value_of(parameter.code_of("default", parameter.default))
        object.__setattr__(parameter, "default", value)


def _code_near(parameter: Float | Int, argument: str, value: Any, step: float) -> float:
    """Return the code of any number from `low` to `high`: `code_of`, or a number between two codes."""
    number = _real(argument, value)
    if not parameter.low <= number <= parameter.high:
        return parameter.code_of(argument, value)  # a bound up to round-off, or an error
    return float(_codes_between(parameter, number, step))


def _codes_between(parameter: Float | Int, numbers: Any, step: float) -> Any:
    """Return the codes of numbers inside the range, between two codes if a number is between two values."""
    places = (numbers - parameter.low) / step
    nearest = np.rint(places)
    return parameter.first_code + np.where(abs(places - nearest) <= STEP_SLACK, nearest, places)


def _codes_near(parameter: Float | Int, argument: str, values: Sequence[Any]) -> Codes:
    """Return `code_near` of many values; at once if they are plain numbers inside the range."""
    if set(map(type, values)) <= {int, float}:
        with contextlib.suppress(OverflowError):  # an int too large for a float
            numbers = np.array(values, float) + 0.0  # turns -0.0 into 0.0
            if ((numbers >= parameter.low) & (numbers <= parameter.high)).all():
                if isinstance(parameter, Float) and parameter.step is None:
                    return numbers
                return _codes_between(parameter, numbers, parameter.step or 1)
    return np.array([parameter.code_near(argument, value) for value in values], float)


def _fail_step(argument: str, parameter: Float | Int, got: object) -> None:
    low, high, step = map(_short, (parameter.low, parameter.high, parameter.step or 1))
    fail(argument, f"a number from {low} to {high} in steps of {step}", got)


def _short(number: float) -> str:
    return repr(number).removesuffix(".0")


def _arguments(parameter: Float | Int) -> str:
    words = [_short(parameter.low), _short(parameter.high)]
    words += ["log=True"] if parameter.log else []
    words += [] if parameter.step is None else [f"step={_short(parameter.step)}"]
    words += [] if parameter.when is None else [f"when={parameter.when!r}"]
    words += [] if parameter.default is None else [f"default={_short(parameter.default)}"]
    return ", ".join(words)
