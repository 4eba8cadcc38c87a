"""Errors of the file of a memory; their messages name the file and say what to do. Internal.

Text that comes from the file is escaped before it enters a message.
"""

import shlex
import sqlite3

from jlibo.printable import printable

LONGEST_TEXT = 2**24  # the largest text or row that SQLite reads or writes here, in bytes


class MemoryFileError(Exception):
    """A memory cannot be read or written; the message names the file and says what to do."""


class MemoryMismatch(MemoryFileError):
    """A memory is of another problem: another direction, or a search space in which nothing of it fits."""


# UnicodeDecodeError: Python cannot decode SQLite's message about a schema with damaged names.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def explain(path: str | None, error: Exception, *, busy_seconds: float) -> MemoryFileError:
    """Return SQLite's error as a `MemoryFileError` about this file; `busy_seconds` is the lock's timeout."""
    place = place_of(path)
    code = _result_code(error)
    said = printable(error, max_length=200)  # it may contain names from the file
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return damaged(path, "a text in it is not UTF-8")
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return MemoryFileError(f"{place} was moved or deleted while it was in use: open the memory again.")
    match primary_code(error):
        case sqlite3.SQLITE_NOTADB:
            return not_ours(path, "it is not an SQLite file")
        case sqlite3.SQLITE_CORRUPT:
            return damaged(path, said)
        case sqlite3.SQLITE_TOOBIG:
            return damaged(path, f"a text in it is longer than {LONGEST_TEXT:,} bytes")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return not_writable(path, said)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            words = f"was locked by another process for more than {busy_seconds:g} s: try again, or end it"
        case sqlite3.SQLITE_FULL:
            words = "cannot grow, the disk is full: free some space and try again; nothing it held is lost"
        case sqlite3.SQLITE_IOERR:
            words = (
                f"could not be read or written ({said}): look whether its disk is full, over a quota or "
                "failing, and try again; nothing it held is lost"
            )
        case _:
            words = f"could not be used, SQLite says: {said}"
    return MemoryFileError(f"{place} {words}.")


def primary_code(error: BaseException) -> int:
    """Return the primary result code of an SQLite error; 0 if the error has no code."""
    return _result_code(error) & 0xFF  # the other bits are details


def _result_code(error: BaseException) -> int:
    # Errors that Python's sqlite3 module raises without a call of SQLite do not have the attribute.
    return getattr(error, "sqlite_errorcode", 0)


def not_ours(path: str | None, why: str) -> MemoryFileError:
    return MemoryFileError(
        f"{place_of(path)} is not a memory of jlibo, {why}: give another path; it is unchanged."
    )


def not_writable(path: str | None, why: str) -> MemoryFileError:
    return MemoryFileError(
        f"{place_of(path)} cannot be opened for writing ({why}): allow it for the file and its folder."
    )


def damaged(path: str | None, what: str) -> MemoryFileError:
    """Return the error for a damaged memory; `what` must be safe to print."""
    quoted = shlex.quote(printable(path, max_length=None))
    return MemoryFileError(
        f"{place_of(path)} is damaged ({what}): put back a copy of it, or write what can be read to a "
        f"new file with `jlibo memory salvage {quoted} NEW`; it is unchanged."
    )


def place_of(path: str | None) -> str:
    return "the memory in RAM" if path is None else f"'{printable(path)}'"
