"""Values that a JSON file can hold, and their exact form there. Internal.

| value                              | in a configuration's JSON | in the JSON of a space                  |
|------------------------------------|---------------------------|-----------------------------------------|
| string, number, boolean, None      | itself                    | itself                                  |
| list                               | a list                    | a list                                  |
| tuple                              | a list                    | `{"tuple": [...]}`                      |
| dict with strings as keys          | an object                 | `{"dict": {...}}`                       |

A configuration is stored in its plain form, which people read and write. The space is what turns a list back
into a tuple: two choices of one parameter never have the same plain form.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, final

from jlibo.checks import fail

Value = str | int | float | bool | None | tuple[Any, ...] | list[Any] | dict[str, Any]


@final
class NoDefault:
    """The type of `NO_DEFAULT`."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = NoDefault()
"""Stands for no default where None may be a value."""

DEEPEST = 20  # levels of nesting; a list that contains itself has no end
_WANTED = "strings, numbers, booleans, None, or lists, tuples and dicts of these, which a JSON file can hold"


def plain(value: Any) -> Any:
    """Return the Python value of a NumPy or jax scalar; any other value unchanged."""
    # By attributes, because values may come from any array library.
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def checked(argument: str, value: Any, *, level: int = 0) -> Value:
    """Return a value that JSON can hold, in plain Python values and independent of the given one.

    **Raises:**

    - `ValueError`: it has another type, is not finite, or is nested too deeply.
    """
    value = plain(value)
    if level > DEEPEST:
        fail(argument, f"nested at most {DEEPEST} levels deep", "more")
    if type(value) in (list, tuple):
        return type(value)(checked(argument, one, level=level + 1) for one in value)
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            fail(argument, f"{_WANTED}; the keys of a dict should be strings", repr(value))
        return {key: checked(argument, one, level=level + 1) for key, one in value.items()}
    if type(value) not in (str, int, float, bool, type(None)):
        fail(argument, _WANTED, f"{value!r} ({type(value).__name__})")
    if isinstance(value, float) and not math.isfinite(value):
        fail(argument, "finite, as numbers in a JSON file are", value)
    return value


def key_of(value: Any, *, as_stored: bool = False) -> tuple[str, Any]:
    """Return a key that is equal for equal values of equal types.

    True == 1 == 1.0 in Python, but they are three values. With `as_stored`, a tuple and a list of the same
    entries have the same key, as in JSON.
    """
    if isinstance(value, list | tuple):
        kind = "list" if as_stored else type(value).__name__
        return kind, tuple(key_of(one, as_stored=as_stored) for one in value)
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return "dict", tuple((key, key_of(one, as_stored=as_stored)) for key, one in items)
    return type(value).__name__, value


def copied(value: Value) -> Value:
    """Return a value that can be changed without changing the given one."""
    return copy.deepcopy(value) if isinstance(value, tuple | list | dict) else value


def to_json(value: Value) -> Any:
    """Return a value as it is in the JSON of a space, from which `from_json` restores it."""
    if isinstance(value, tuple):
        return {"tuple": [to_json(one) for one in value]}
    if isinstance(value, list):
        return [to_json(one) for one in value]
    if isinstance(value, dict):
        return {"dict": {key: to_json(one) for key, one in value.items()}}
    return value


def from_json(argument: str, content: Any) -> Any:
    """Return the value of `to_json`."""
    if isinstance(content, list):
        return [from_json(argument, one) for one in content]
    if isinstance(content, Mapping):
        if list(content) == ["tuple"] and isinstance(content["tuple"], list):
            return tuple(from_json(argument, one) for one in content["tuple"])
        if list(content) == ["dict"] and isinstance(content["dict"], Mapping):
            return {key: from_json(argument, one) for key, one in content["dict"].items()}
        fail(argument, "values in which an object is {'tuple': [...]} or {'dict': {...}}", repr(content))
    return content
