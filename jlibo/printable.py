"""Text and values from files and command lines as one short line that is safe to print on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

MAX_LENGTH = 200
_MAX_BITS, _MAX_DEPTH, _MAX_ITEMS = 256, 3, 8


def printable(text: object, *, max_length: int | None = MAX_LENGTH) -> str:
    r"""Return `str(text)` with unprintable characters escaped, cut to `max_length`.

    Names in a file can contain control characters, terminal escape sequences, line ends, marks that change
    the writing direction and lone surrogates; all are escaped. A longer text is cut in the middle, so a path
    keeps its end. With `max_length=None` nothing is cut.

    ```python
    from jlibo.printable import printable

    printable("iris \x1b[31m")  # 'iris \\x1b[31m'
    ```
    """
    whole = str(text)
    if max_length is None or len(whole) <= max_length:
        escaped = _escaped(whole)
    else:  # escape a bounded part of each end, longer than what is kept
        escaped = f"{_escaped(whole[:max_length])} {_escaped(whole[-max_length:])}"
    if max_length is None or len(escaped) <= max_length:
        return escaped
    tail = (max_length - 3) // 2
    return f"{escaped[: max_length - 3 - tail]}...{escaped[len(escaped) - tail :]}"


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def described(value: Any) -> str:
    """Return a short description of a value read from TOML or JSON, of any depth and length."""
    return "nothing" if value is None else printable(_described(value, 0))


def _described(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return f"'{printable(value)}'"
    if isinstance(value, int) and not isinstance(value, bool):
        # Python raises when it prints an integer of more than 4,300 digits.
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
