"""Errors of SQLite files; their messages name the file and say what to do. Internal.

Text that comes from the file is escaped before it enters a message.
"""

import dataclasses
import shlex
import sqlite3
from collections.abc import Callable
from typing import final

from jlibo.printable import printable

LONGEST_TEXT = 2**24  # the largest text or row that SQLite reads or writes here, in bytes

# UnicodeDecodeError: Python cannot decode SQLite's message about a schema with damaged names.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


class DamagedRow(ValueError):
    """A row of a file was not written by this program; the message names the row and the defect."""


@final
@dataclasses.dataclass(frozen=True)
class FileWords:
    """The messages about one kind of file.

    **Arguments:**

    - `noun`: what such a file is called, such as "memory".
    - `error`: the class of its errors.
    - `repair_fn`: returns what to do about a damaged file, given its path as a shell would read it.
    """

    noun: str
    error: type[Exception]
    repair_fn: Callable[[str], str]

    def place_of(self, path: str | None) -> str:
        return f"the {self.noun} in RAM" if path is None else f"'{printable(path)}'"

    def not_ours(self, path: str | None, why: str) -> Exception:
        return self.error(
            f"{self.place_of(path)} is not a {self.noun} of jlibo, {why}: give another path; it is unchanged."
        )

    def not_writable(self, path: str | None, why: str) -> Exception:
        return self.error(
            f"{self.place_of(path)} cannot be opened for writing ({why}): allow it for the file and its "
            "folder."
        )

    def damaged(self, path: str | None, what: str) -> Exception:
        """Return the error for a damaged file; `what` must be safe to print."""
        advice = self.repair_fn(shlex.quote(printable(path, max_length=None)))
        return self.error(f"{self.place_of(path)} is damaged ({what}): {advice}; it is unchanged.")

    def explain(self, path: str | None, error: Exception, *, busy_seconds: float) -> Exception:
        """Return SQLite's error as an error about this file; `busy_seconds` is the lock's timeout."""
        place = self.place_of(path)
        code = _result_code(error)
        said = printable(error, max_length=200)  # it may contain names from the file
        if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
            return self.damaged(path, "a text in it is not UTF-8")
        if code == sqlite3.SQLITE_READONLY_DBMOVED:
            return self.error(
                f"{place} was moved or deleted while it was in use: open the {self.noun} again."
            )
        match primary_code(error):
            case sqlite3.SQLITE_NOTADB:
                return self.not_ours(path, "it is not an SQLite file")
            case sqlite3.SQLITE_CORRUPT:
                return self.damaged(path, said)
            case sqlite3.SQLITE_TOOBIG:
                return self.damaged(path, f"a text in it is longer than {LONGEST_TEXT:,} bytes")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
                return self.not_writable(path, said)
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                words = (
                    f"was locked by another process for more than {busy_seconds:g} s: try again, or end it"
                )
            case sqlite3.SQLITE_FULL:
                words = (
                    "cannot grow, the disk is full: free some space and try again; nothing it held is lost"
                )
            case sqlite3.SQLITE_IOERR:
                words = (
                    f"could not be read or written ({said}): look whether its disk is full, over a quota or "
                    "failing, and try again; nothing it held is lost"
                )
            case _:
                words = f"could not be used, SQLite says: {said}"
        return self.error(f"{place} {words}.")


def primary_code(error: BaseException) -> int:
    """Return the primary result code of an SQLite error; 0 if the error has no code."""
    return _result_code(error) & 0xFF  # the other bits are details


def _result_code(error: BaseException) -> int:
    # Errors that Python's sqlite3 module raises without a call of SQLite do not have the attribute.
    return getattr(error, "sqlite_errorcode", 0)
