"""Which parameters exist in a configuration, from the conditions of all parameters of a space. Internal.

A parameter with a condition exists, or is *on*, if each of its parents is on and has one of the given values.
A parameter that is off has no value. Its unit coordinate is always `OFF`, so that configurations that differ
only in parameters that are off are one point.

| here           | meaning                                                                            |
|----------------|------------------------------------------------------------------------------------|
| `Conditions`   | for each parameter the allowed codes of its parents, their parents included        |
| `Intervals`    | the same as intervals of unit coordinates, a static value for compiled functions   |
| `activity`     | which coordinates of points are on; the same for NumPy and jax                     |

This module uses only NumPy. Since the requirements of a parameter contain those of its parents, it is on if
the coordinates of all parents in its requirements are in their intervals, in whatever order these are tested.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from jlibo.checks import did_you_mean, fail
from jlibo.tune.space.parameters import Parameter

OFF = 0.5
"""Unit coordinate of a parameter that is off."""
MOST_PARENT_VALUES = 1000

Intervals = tuple[tuple[tuple[int, tuple[tuple[float, float], ...]], ...], ...]
"""For each parameter the pairs of a parent's coordinate and the intervals in which it has to be; () if no
parameter of the space has a condition."""


@final
@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a space, by the positions of its parameters.

    - `allowed`: for each parameter, the codes that each of its parents may have. Requirements of parents are
      included.
    - `order`: the positions, parents before the parameters that depend on them.
    - `intervals`: the same requirements for unit coordinates.
    """

    allowed: tuple[dict[int, frozenset[float]], ...]
    order: tuple[int, ...]
    intervals: Intervals

    @classmethod
    def of(cls, parameters: Mapping[str, Parameter]) -> "Conditions":
        """Return the conditions of a space, checked: known parents with few values, no cycle.

        **Raises:**

        - `ValueError`: a condition cannot be met or refers to what is not there.
        """
        names = list(parameters)
        direct = [_direct(name, parameters) for name in names]
        order = _order(names, direct)
        allowed: list[dict[int, frozenset[float]]] = [{} for _ in names]
        for place in order:
            for parent, codes in direct[place].items():
                needed = {parent: codes}
                for source in (needed, allowed[parent]):
                    for other, some in source.items():
                        allowed[place][other] = allowed[place].get(other, some) & some
            never = [names[other] for other, codes in allowed[place].items() if not codes]
            if never:
                got = f"{parameters[names[place]].when!r}, which contradicts the conditions of its parents"
                fail(_argument(names[place]), f"met by some value of {never[0]!r}", got)
        kinds = list(parameters.values())
        intervals = tuple(
            tuple((parent, _intervals(kinds[parent], codes)) for parent, codes in some.items())
            for some in allowed
        )
        return cls(tuple(allowed), order, intervals if any(intervals) else ())

    @property
    def parents(self) -> tuple[int, ...]:
        """The positions of the parameters on which others depend."""
        return tuple(sorted({parent for some in self.allowed for parent in some}))

    def are_met(self, place: int, codes: Sequence[float | None]) -> bool:
        """Return whether a parameter is on, given the codes of its parents; None for a parent that is off."""
        return all(codes[parent] in allowed for parent, allowed in self.allowed[place].items())

    def can_meet(self, place: int, other: int) -> bool:
        """Return whether two parameters can be on together and one does not fix the value of the other."""
        first, second = self.allowed[place], self.allowed[other]
        if any(not first[parent] & second[parent] for parent in set(first) & set(second)):
            return False
        return len(first.get(other, (0, 1))) > 1 and len(second.get(place, (0, 1))) > 1


def _argument(name: str) -> str:
    return f"parameters[{name!r}].when"


def _direct(name: str, parameters: Mapping[str, Parameter]) -> dict[int, frozenset[float]]:
    """Return the codes that the parents of a parameter may have, by the position of the parent."""
    names, found = list(parameters), {}
    for parent, values in (parameters[name].when or {}).items():
        argument = f"{_argument(name)}[{parent!r}]"
        if parent not in parameters:
            got = f"the unknown name {parent!r}{did_you_mean(parent, names)}"
            fail(_argument(name), f"a condition on {', '.join(map(repr, names))}", got)
        kind = parameters[parent]
        if kind.num_values is None or kind.num_values > MOST_PARENT_VALUES:
            words = (
                f"a parameter with at most {MOST_PARENT_VALUES} values: a Categorical, an Int, or with a step"
            )
            fail(argument, f"a condition on {words}", repr(kind))
        found[names.index(parent)] = frozenset(kind.code_of(argument, value) for value in values)
    return found


def _order(names: Sequence[str], direct: Sequence[Mapping[int, object]]) -> tuple[int, ...]:
    """Return the positions in an order in which parents come first."""
    order: list[int] = []
    left = list(range(len(names)))
    while left:
        ready = [place for place in left if all(parent in order for parent in direct[place])]
        if not ready:
            fail(_argument(names[left[0]]), "free of cycles", _cycle(names, direct, left))
        order += ready
        left = [place for place in left if place not in ready]
    return tuple(order)


def _cycle(names: Sequence[str], direct: Sequence[Mapping[int, object]], left: Sequence[int]) -> str:
    """Return a cycle in words. Each of the parameters in `left` has a parent in `left`."""
    path = [left[0]]
    while path.count(path[-1]) < 2:
        path.append(next(parent for parent in direct[path[-1]] if parent in left))
    path = path[path.index(path[-1]) :]
    return " depends on ".join(repr(names[place]) for place in path)


def _intervals(parameter: Parameter, codes: frozenset[float]) -> tuple[tuple[float, float], ...]:
    """Return intervals of unit coordinates, closed below and open above, that hold exactly these values."""
    every = parameter.first_code + np.arange(parameter.num_values or 0, dtype=float)
    units = parameter.codes_to_unit(every)
    # The ends are beyond the unit interval, so that the first and the last value are safe from round-off.
    edges = [-1.0, *((units[1:] + units[:-1]) / 2).tolist(), 2.0]
    runs = itertools.groupby(range(len(every)), key=lambda place: every[place] in codes)
    places = [list(run) for is_allowed, run in runs if is_allowed]
    return tuple((edges[run[0]], edges[run[-1] + 1]) for run in places)


def activity(points: Any, intervals: Intervals, numpy_or_jax: Any) -> Any:
    """Return which coordinates of points are on, as an array of their shape `[..., dim]`.

    There is at least one condition.
    """
    rules = [(place, *rule) for place, some in enumerate(intervals) for rule in some]
    most = max(len(ranges) for _, _, ranges in rules)
    nowhere = (3.0, 3.0)
    ranges = np.array([[*some, *[nowhere] * (most - len(some))] for _, _, some in rules])
    parents = np.array([parent for _, parent, _ in rules], np.int32)
    is_other = np.array([[place != child for place in range(len(intervals))] for child, _, _ in rules])
    lower, upper = (numpy_or_jax.asarray(ranges[..., end], points.dtype) for end in (0, 1))
    units = numpy_or_jax.take(points, parents, axis=-1)[..., None]
    is_met = ((units >= lower) & (units < upper)).any(-1)
    return (is_met[..., None] | is_other).all(-2)
