"""Parameters with unordered choices. Public as `jlibo.Categorical`."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from jlibo.checks import did_you_mean, fail
from jlibo.tune.space.base import AbstractParameter, Codes, cells_to_unit, unit_to_cells
from jlibo.tune.space.values import NO_DEFAULT, NoDefault, Value, checked, copied, key_of, plain
from jlibo.tune.space.when import when_of


@final
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Categorical(AbstractParameter):
    """A parameter with unordered choices: any values that JSON can hold, and tuples.

    These are strings, numbers, booleans and None, and tuples, lists and dicts of them. Choices of different
    types are different choices: True is not 1, and 1 is not 1.0. A value is first looked up with its type. If
    there is none, a list matches an equal tuple, an int an equal float and a float an equal int, but a
    boolean never matches a number. The order of the list is part of the parameter, because it determines the
    unit coordinate of each choice.

    **Arguments:**

    - `choices`: at least two distinct choices in a fixed order. Numbers must be finite, and the keys of a
      dict strings. A tuple and a list with the same entries are not distinct.
    - `when`: the condition under which the parameter exists: a mapping from the name of another parameter to
      a value or a list of values. Several entries must all hold. None if it exists always.
    - `default`: the value that older trials had, if they were made before there was this parameter. It has no
      other effect.

    **Raises:**

    - `ValueError`: the choices are not a list of at least two distinct values that JSON can hold, or `when`
      is not a mapping, or `default` is not a choice.

    ```python
    from jlibo import Categorical, SearchSpace

    space = SearchSpace(kernel=Categorical(["rbf", "linear"]), layers=Categorical([(64,), (64, 64), None]))
    assert space.validate({"kernel": "rbf", "layers": [64, 64]}) == {"kernel": "rbf", "layers": (64, 64)}
    ```
    """

    choices: tuple[Value, ...]
    when: Mapping[str, Any] | None
    default: Value
    """None may also be a choice; `has_default` tells."""

    def __init__(
        self,
        choices: Iterable[Value],
        *,
        when: Mapping[str, Any] | None = None,
        default: Value | NoDefault = NO_DEFAULT,
    ):
        if isinstance(choices, str | Mapping | set | frozenset) or not isinstance(choices, Iterable):
            fail("choices", "a list of choices in a fixed order", f"{choices!r} ({type(choices).__name__})")
        own = tuple(checked("choices", choice) for choice in choices)
        codes = {}
        for code, choice in enumerate(own):
            key = key_of(choice, as_stored=True)
            if key in codes:
                fail("choices", "distinct", f"{choice!r} twice")
            codes[key] = float(code)
        if len(own) < 2:
            fail("choices", "at least 2 distinct choices", list(own))
        object.__setattr__(self, "choices", own)
        object.__setattr__(self, "when", when_of(when))
        object.__setattr__(self, "_codes", codes)  # the code of each choice, by its key as stored
        object.__setattr__(self, "_has_default", not isinstance(default, NoDefault))
        is_given = self.has_default
        value = self.choices[int(self.code_of("default", default))] if is_given else None
        object.__setattr__(self, "default", value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Categorical) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        when = "" if self.when is None else f", when={self.when!r}"
        default = f", default={self.default!r}" if self.has_default else ""
        return f"Categorical({list(self.choices)!r}{when}{default})"

    @property
    def has_default(self) -> bool:
        return self.__dict__["_has_default"]

    @property
    def num_values(self) -> int:
        return len(self.choices)

    @property
    def first_code(self) -> float:
        return 0.0

    def code_of(self, argument: str, value: Any) -> float:
        value = plain(value)
        try:
            code = self.__dict__["_codes"].get(key_of(value, as_stored=True))
        except TypeError:  # not a value of JSON, since it is not hashable
            code = None
        if code is not None:
            return code
        if type(value) in (int, float):
            for place, choice in enumerate(self.choices):
                if type(choice) in (int, float) and choice == value:
                    return float(place)
        shown = ", ".join(map(repr, self.choices[:10]))
        more = f" or {self.num_values - 10} more" if self.num_values > 10 else ""
        texts = [choice for choice in self.choices if isinstance(choice, str)]
        got = f"{value!r} ({type(value).__name__})"
        return fail(argument, f"one of {shown}{more}", got + did_you_mean(value, texts))

    def code_near(self, argument: str, value: Any) -> float:
        return self.code_of(argument, value)

    def codes_near(self, argument: str, values: Sequence[Any]) -> Codes:
        return np.array([self.code_of(argument, value) for value in values], float)

    def value_of(self, code: float) -> Value:
        return copied(self.choices[int(code)])

    def codes_to_unit(self, codes: Codes) -> Codes:
        return cells_to_unit(codes, self.num_values)

    def unit_to_codes(self, unit: Codes) -> Codes:
        return unit_to_cells(unit, self.num_values)

    def _key(self) -> tuple:
        default = key_of(self.default) if self.has_default else None
        return tuple(map(key_of, self.choices)), self.when, default
