"""Errors of the file of a memory; their messages name the file and say what to do. Internal."""

from jlibo.sqlite_file.errors import LONGEST_TEXT as LONGEST_TEXT
from jlibo.sqlite_file.errors import SQLITE_ERRORS as SQLITE_ERRORS
from jlibo.sqlite_file.errors import FileWords


class MemoryFileError(Exception):
    """A memory cannot be read or written; the message names the file and says what to do."""


class MemoryMismatch(MemoryFileError):
    """A memory is of another problem: another direction, or a search space in which nothing of it fits."""


def _repair(path: str) -> str:
    return (
        "put back a copy of it, or write what can be read to a new file with "
        f"`jlibo memory salvage {path} NEW`"
    )


WORDS = FileWords("memory", MemoryFileError, _repair)


def place_of(path: str | None) -> str:
    return WORDS.place_of(path)
