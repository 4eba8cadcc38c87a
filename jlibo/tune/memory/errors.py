"""What goes wrong with the file of a memory, in words that name the file and say what to do.

Whatever comes from the file itself is escaped before it goes into a message.
"""

import shlex
import sqlite3

from jlibo.printable import printable

LONGEST_TEXT = 2**24  # bytes of a text or a row that SQLite reads and writes here


class MemoryFileError(Exception):
    """A memory that cannot be read or written; the message names the file and says what to do."""


# Python cannot decode what SQLite says about a schema with damaged names in it.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def explain(path: str | None, error: Exception, *, busy_seconds: float) -> MemoryFileError:
    """What SQLite said, in one sentence about this file, for whose lock it waited `busy_seconds`."""
    place = place_of(path)
    code = getattr(error, "sqlite_errorcode", 0)
    said = printable(error, max_length=200)  # it may hold names from the file
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return damaged(path, "a text in it is not UTF-8")
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return MemoryFileError(f"{place} was moved or deleted while it was in use: open the memory again.")
    match code & 0xFF:  # the rest of the bits is detail
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


def not_ours(path: str | None, why: str) -> MemoryFileError:
    return MemoryFileError(
        f"{place_of(path)} is not a memory of jlibo, {why}: give another path; it is unchanged."
    )


def not_writable(path: str | None, why: str) -> MemoryFileError:
    return MemoryFileError(
        f"{place_of(path)} cannot be opened for writing ({why}): allow it for the file and its folder."
    )


def damaged(path: str | None, what: str) -> MemoryFileError:
    """The error of a memory that cannot be trusted; `what` is safe to print."""
    quoted = shlex.quote(printable(path, max_length=None))
    return MemoryFileError(
        f"{place_of(path)} is damaged ({what}): put back a copy of it, or write what can be read to a "
        f"new file with `jlibo memory salvage {quoted} NEW`; it is unchanged."
    )


def place_of(path: str | None) -> str:
    return "the memory in RAM" if path is None else f"'{printable(path)}'"
