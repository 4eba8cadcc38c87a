"""Constraints: functions of a configuration that every candidate has to satisfy. Internal.

A constraint is a plain function, known before a configuration is evaluated, such as `lambda params:
params["low"] < params["high"]`. It is not part of the search space and not stored in the memory. Limits that
only an evaluation shows are failed trials instead.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import numpy as np

from jlibo.checks import fail
from jlibo.tune.space.space import SearchSpace


@final
class Constraint:
    """The mask of the points that satisfy all of some functions; made by `make_constraint`."""

    def __init__(self, space: SearchSpace, functions: tuple[Callable[[dict[str, Any]], bool], ...]):
        self._space = space
        self._functions = functions

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return which of the points `[points, dim]` satisfy the constraint."""
        return np.array([self.holds(self._space.from_unit(point)) for point in points], bool)

    def holds(self, params: Mapping[str, Any]) -> bool:
        """Return whether a configuration satisfies all functions.

        **Raises:**

        - `ValueError`: a function raised an error, or returned something else than True or False.
        """
        return all(_answer(function, dict(params)) for function in self._functions)


def make_constraint(space: SearchSpace, constraint: Any) -> Constraint | None:
    """Return the argument `constraint` of a tuner, a function or a list of them; None if there is none."""
    if constraint is None:
        return None
    functions = tuple(constraint) if isinstance(constraint, Iterable) else (constraint,)
    for function in functions:
        if not callable(function):
            expected = "a function from a configuration to True or False, or a list of such functions"
            fail("constraint", expected, f"{function!r} ({type(function).__name__})")
    return Constraint(space, functions) if functions else None


def _answer(function: Callable[[dict[str, Any]], bool], params: dict[str, Any]) -> bool:
    shown = repr(params)
    try:
        answer = function(params)
    except Exception as error:
        raise ValueError(
            f"`constraint` raised {type(error).__name__}: {error}, for the configuration {shown}. A "
            "parameter that is off is not in a configuration; params.get(name) is None then."
        ) from error
    if not isinstance(answer, bool | np.bool_):
        got = f"{answer!r} ({type(answer).__name__}) for the configuration {shown}"
        fail("constraint", "a function that returns True or False", got)
    return bool(answer)
