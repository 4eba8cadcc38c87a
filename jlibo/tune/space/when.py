"""The condition of a parameter as it is written: values of other parameters for which it exists. Internal.

`jlibo.tune.space.conditions` checks conditions against the other parameters of a space.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from jlibo.checks import fail
from jlibo.tune.space.values import Value, checked, copied, from_json, key_of, to_json


@final
class When(Mapping[str, tuple[Value, ...]]):
    """A read-only mapping from the name of a parent to the values for which the parameter exists.

    The order of names and of values does not matter.
    """

    def __init__(self, when: Mapping[str, Any]):
        entries = {}
        for name in sorted(when):
            values = when[name] if _are_several(when[name]) else [when[name]]
            found = {key_of(one): one for one in (checked(f"when[{name!r}]", value) for value in values)}
            if not found:
                fail(f"when[{name!r}]", "a value, or a list of at least one value", "none")
            entries[name] = tuple(sorted(found.values(), key=lambda value: json.dumps(value, sort_keys=True)))
        self._entries: dict[str, tuple[Value, ...]] = entries

    def __getitem__(self, name: str) -> tuple[Value, ...]:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, When) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return repr({name: _alone(values) for name, values in self.items()})

    def __str__(self) -> str:
        """The condition in words, such as `kernel is 'rbf' or 'poly'`."""
        return " and ".join(f"{name} is {' or '.join(map(repr, some))}" for name, some in self.items())

    def to_json(self) -> dict[str, Any]:
        """Return the condition as plain JSON values."""
        return {name: [to_json(value) for value in values] for name, values in self.items()}

    def _key(self) -> tuple:
        return tuple((name, tuple(map(key_of, values))) for name, values in self.items())


def when_of(when: Any) -> When | None:
    """Return the argument `when` of a parameter as a `When`; None if there is no condition."""
    if when is None or isinstance(when, When):
        return when or None
    expected = "a mapping from the name of a parameter to a value or a list of values"
    if not isinstance(when, Mapping):
        fail("when", expected, f"{when!r} ({type(when).__name__})")
    for name in when:
        if not isinstance(name, str) or not name.strip():
            fail("when", expected, f"the name {name!r}")
    return When(when) if when else None


def when_from_json(argument: str, content: Any) -> When | None:
    """Return the condition of `When.to_json`."""
    if not isinstance(content, Mapping) or not all(isinstance(some, list) for some in content.values()):
        fail(argument, "a mapping from names to lists of values", repr(content))
    return when_of({name: [from_json(argument, one) for one in some] for name, some in content.items()})


def _are_several(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _alone(values: tuple[Value, ...]) -> Any:
    """Return the value if there is only one, as it may be written, and a list otherwise."""
    only = copied(values[0])
    return list(values) if len(values) > 1 or _are_several(only) else only
