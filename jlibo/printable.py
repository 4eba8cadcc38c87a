"""Text and values from files and command lines, as one short line that a terminal can print safely."""

from collections.abc import Mapping, Sequence
from typing import Any

MAX_LENGTH = 200
_MAX_BITS, _MAX_DEPTH, _MAX_ITEMS = 256, 3, 8


def printable(text: object, *, max_length: int = MAX_LENGTH) -> str:
    """Return `str(text)` with control characters and other unprintable ones escaped, cut to `max_length`.

    Names in a file can hold escape sequences, which a terminal would carry out, and line breaks.
    """
    whole = str(text)
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in whole[:max_length]
    )
    return escaped if len(escaped) <= max_length >= len(whole) else f"{escaped[: max_length - 3]}..."


def described(value: Any) -> str:
    """Return a short description of a value read from TOML or JSON, however deep or long it is."""
    return "nothing" if value is None else printable(_described(value, 0))


def _described(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return f"'{printable(value)}'"
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to print whole numbers of more than 4,300 digits.
        bits = value.bit_length()
        return str(value) if bits <= _MAX_BITS else f"a whole number of {bits} bits"
    if isinstance(value, Mapping | Sequence) and not isinstance(value, bytes):
        if depth == _MAX_DEPTH:
            return "..."
        rest = ", ..." if len(value) > _MAX_ITEMS else ""
        if isinstance(value, Mapping):
            some = list(value.items())[:_MAX_ITEMS]
            parts = [f"{_described(key, depth + 1)}: {_described(one, depth + 1)}" for key, one in some]
            return "{" + ", ".join(parts) + rest + "}"
        return "[" + ", ".join(_described(one, depth + 1) for one in value[:_MAX_ITEMS]) + rest + "]"
    return repr(value)
