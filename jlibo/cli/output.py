"""Output of commands, on any terminal."""

import sys
from collections.abc import Iterable


def print_lines(lines: Iterable[str]) -> None:
    """Print lines. Characters that the terminal cannot show are escaped, which keeps JSON valid."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))
