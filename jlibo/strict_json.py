"""Reading of untrusted JSON."""

import json
from collections import Counter
from typing import Any, NoReturn

from jlibo.printable import printable


def strict_json(text: str) -> Any:
    """Return the content of untrusted JSON, or raise a `ValueError` that says why it cannot be read.

    In contrast to this, `json.loads` accepts NaN and repeated keys, and raises other errors for deep nesting
    and for numbers with thousands of digits.
    """
    try:
        return _STRICT.decode(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error.msg} at character {error.pos + 1}") from None


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > 400:  # far above the largest float; the message does not repeat the text
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{printable(twice, max_length=100)}' is there twice")
    return content


_STRICT = json.JSONDecoder(parse_constant=_constant, parse_int=_whole_number, object_pairs_hook=_object)
