"""Checksums of rows: they find flipped bits inside numbers and texts, which SQLite's own check does not."""

import zlib
from collections.abc import Sequence
from typing import Any


def row_checksum(content: Sequence[Any]) -> int:
    """Return the CRC-32 of the content of a row: plain values, as SQLite returns them.

    None at the end is left out. A row of an older format, without the last columns, keeps its checksum.
    """
    end = len(content)
    while end and content[end - 1] is None:
        end -= 1
    # `ascii` is exact and the same in every Python. What `repr` escapes depends on the version of Unicode.
    return zlib.crc32(ascii(tuple(content[:end])).encode())
