"""The contract of parameters. Internal.

A parameter has values, their numeric codes, and the unit coordinates of the codes. This module uses only
NumPy, in float64.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from jlibo.tune.space.values import Value

Codes = Float64[np.ndarray, "*batch"]


class AbstractParameter(abc.ABC):
    """A parameter: its values, their numeric codes, and the unit coordinates of the codes.

    The code of a number is the number itself, or its index if there is a step. The code of a choice is its
    index. Codes may be arrays, to convert many points at once.
    """

    log: bool = False
    when: Mapping[str, Any] | None = None
    default: Any = None

    @property
    @abc.abstractmethod
    def has_default(self) -> bool:
        """Whether older trials, which do not have the parameter, have a value of it: `default`."""

    @property
    @abc.abstractmethod
    def num_values(self) -> int | None:
        """The number of values; None if the parameter is continuous."""

    @property
    @abc.abstractmethod
    def first_code(self) -> float:
        """The code of the first value. The codes of finitely many values follow in steps of one."""

    @abc.abstractmethod
    def code_of(self, argument: str, value: Any) -> float:
        """Return the code of a value; the error for an invalid value calls it `argument`."""

    @abc.abstractmethod
    def code_near(self, argument: str, value: Any) -> float:
        """Return `code_of`, or for a number in the range that is between two values a code between theirs.

        A trial of another space may have such a number, and a model can use it.
        """

    @abc.abstractmethod
    def codes_near(self, argument: str, values: Sequence[Any]) -> Codes:
        """Return `code_near` of many values."""

    @abc.abstractmethod
    def value_of(self, code: float) -> Value:
        """Return the value of a code, as a plain Python value."""

    @abc.abstractmethod
    def codes_to_unit(self, codes: Codes) -> Codes:
        """Return the unit coordinates of codes."""

    @abc.abstractmethod
    def unit_to_codes(self, unit: Codes) -> Codes:
        """Return the codes nearest to unit coordinates, always inside the range."""


def cells_to_unit(cells: Codes, num_cells: int) -> Codes:
    """Return the centres of cells of equal width, by their index."""
    return (cells + 0.5) / num_cells


def unit_to_cells(unit: Codes, num_cells: int) -> Codes:
    """Return the indices of the cells that unit coordinates are in."""
    return np.clip(np.floor(unit * num_cells), 0, num_cells - 1)
