"""The file under a memory: an SQLite database that is ours, whole and of a format we know, or a clear error.

A file is looked at before anything is written to it, so a file that is not a memory stays as it is, to the
byte. What SQLite says when something goes wrong is put into words that name the file and what to do.
"""

import json
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from jlibo.tune import memory_schema as schema

BUSY_SECONDS = 30.0
_CHANCE = random.SystemRandom()  # not the generator that users seed


class MemoryFileError(Exception):
    """A memory that cannot be read or written; the message names the file and says what to do."""


# One lock for all memories of the process, held during every transaction and while the process forks. So a
# child never inherits a half-done transaction, whose connection it could neither use nor safely close.
_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


@final
class MemoryFile:
    """The open file: safe to use from many threads, and from a forked process, which connects anew.

    With `new_meta` a missing or empty file becomes a new memory with these entries in its table `meta`;
    without, it is an error. With `write=False` a file that can only be read will do. A `path` of `None` is a
    memory in RAM.
    """

    def __init__(self, path: str | None, *, new_meta: Mapping[str, str] | None = None, write: bool = True):
        self.path = path
        self._pid = os.getpid()
        self._database: sqlite3.Connection | None = None
        create = new_meta is not None
        if path is not None:
            _check_place(path, create=create)
        try:
            with _LOCK:
                self._database = _connect(path, create=create)
                _prepare(self._database, path, new_meta, write)
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise explain(path, error) from error
            raise

    def close(self) -> None:
        with _LOCK:
            if self._database is not None:
                self._database.close()
            self._database = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What is read inside is as it was at one moment."""
        with self._transaction(_begin_reading) as database:
            yield database

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """What is written inside is on the disk at the end, or undone if there is an error."""
        with self._transaction(_begin_writing) as database:
            yield database

    @contextmanager
    def _transaction(self, begin_fn: Callable[[sqlite3.Connection], None]) -> Iterator[sqlite3.Connection]:
        with _LOCK:
            try:
                database = self._connection()
                begin_fn(database)
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                if self._database is not None and self._database.in_transaction:
                    with suppress(sqlite3.Error):  # the first error is the one to tell
                        self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise explain(self.path, error) from error
                if isinstance(error, json.JSONDecodeError):  # someone edited a row by hand
                    raise damaged(self.path, f"parameters of a trial: {error}") from error
                raise

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise MemoryFileError("this memory is closed: open it again.")
        if self._pid != os.getpid():
            if self.path is None:
                raise MemoryFileError(
                    "a memory in RAM cannot be shared with a forked process: give the memory a path."
                )
            self._database, self._pid = _connect(self.path), os.getpid()
        return self._database


def _connect(path: str | None, *, create: bool = False) -> sqlite3.Connection:
    """A bare connection: transactions are explicit, and a commit is on the disk when it returns."""
    uri = ":memory:" if path is None else f"{Path(path).as_uri()}?mode={'rwc' if create else 'rw'}"
    database = sqlite3.connect(
        uri, uri=path is not None, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        # EXTRA, not FULL: it also syncs the folder after the journal is gone, without which a power cut just
        # after a commit can bring the journal back and undo it.
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("PRAGMA foreign_keys = ON")
        # A file made by someone else must not run functions of this process from its schema.
        database.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        database.close()
        raise
    return database


def _begin_reading(database: sqlite3.Connection) -> None:
    database.execute("BEGIN")


def _begin_writing(database: sqlite3.Connection) -> None:
    """Begin to write as soon as no one else does, or give up after `BUSY_SECONDS`.

    SQLite's own wait asks ever more seldom, up to every 100 ms, and a process that writes without a pause
    then keeps the others out for many seconds. Asking often and at random makes everyone's turn come.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    database.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
            time.sleep(_CHANCE.uniform(0.0005, 0.003))
    finally:
        database.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")


def explain(path: str | None, error: sqlite3.Error) -> MemoryFileError:
    """What SQLite said, in one sentence about this file."""
    place = "the memory in RAM" if path is None else f"'{path}'"
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return MemoryFileError(f"{place} was moved or deleted while it was in use: open the memory again.")
    match code & 0xFF:  # the rest of the bits is detail
        case sqlite3.SQLITE_NOTADB:
            return not_ours(path, "it is not an SQLite file")
        case sqlite3.SQLITE_CORRUPT:
            return damaged(path, str(error))
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            words = f"cannot be opened for writing ({error}): allow it for the file and its folder"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            words = f"was locked by another process for more than {BUSY_SECONDS:g} s: try again, or end it"
        case sqlite3.SQLITE_FULL:
            words = "cannot grow, the disk is full: free some space and try again; nothing it held is lost"
        case sqlite3.SQLITE_IOERR:
            words = (
                f"could not be read or written ({error}): look whether its disk is full, over a quota or "
                "failing, and try again; nothing it held is lost"
            )
        case _:
            words = f"could not be used, SQLite says: {error}"
    return MemoryFileError(f"{place} {words}.")


def not_ours(path: str | None, why: str) -> MemoryFileError:
    return MemoryFileError(f"'{path}' is not a memory of jlibo, {why}: give another path; it is unchanged.")


def damaged(path: str | None, what: str) -> MemoryFileError:
    return MemoryFileError(
        f"'{path}' is damaged ({what}): put back a copy of it, or import an export of it into a new memory; "
        "it is unchanged."
    )


def _check_place(path: str, *, create: bool) -> None:
    """Look at what is at `path`, without a lock and without leaving a trace."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise MemoryFileError(f"there is no memory at '{path}': give the path of one.") from None
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise MemoryFileError(
                f"cannot make '{path}', there is no folder '{folder}': make it, or give another path."
            ) from None
        return
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise MemoryFileError(f"cannot look at '{path}' ({words}): give another path.") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file on a disk"
        raise MemoryFileError(f"'{path}' is {kind}: give the path of a file.")
    if status.st_size == 1:  # SQLite takes it for an empty file and would write over it
        raise not_ours(path, "it is not an SQLite file")
    # An open transaction, or one that was cut short, has a journal. Then the header may be half written, and
    # only a reader with a lock sees the truth; the size was asked for first, so that this order is safe.
    if status.st_size > 0 and not os.path.exists(os.path.realpath(path) + "-journal"):
        _look_at_header(path)


def _look_at_header(path: str) -> None:
    """Refuse another program's file before SQLite opens it in earnest, which could tidy up its log.

    The file is read through SQLite and not with `open`, since closing any file handle of a process drops all
    POSIX locks that the process has on the file, those of its SQLite connections too.
    """
    try:
        database = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        return  # the connection in earnest says why
    try:
        (application_id,) = database.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            raise explain(path, error) from error
        return  # without a lock, a file that is just growing looks damaged
    finally:
        database.close()
    if application_id != schema.APPLICATION_ID:
        raise not_ours(path, "it is an SQLite file of another program")


def _prepare(database: sqlite3.Connection, path: str | None, new_meta, write: bool) -> None:
    """Check the file as a whole, then make or migrate it where that is called for."""
    _begin_reading(database)
    version = _format_of(database, path)
    if version is None and new_meta is None:
        raise not_ours(path, "it is empty")
    if version is not None:
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise damaged(path, problem.replace("\n", " "))
    database.execute("COMMIT")
    if version == schema.FORMAT_VERSION and not write:
        return
    database.execute("PRAGMA journal_mode = DELETE")  # one file; a no-op unless someone chose another mode
    try:
        _begin_writing(database)
        version = _format_of(database, path)  # again: another process may have been faster
        if version is None:
            _create(database, new_meta or {})
        else:
            _migrate(database, path, version)
        # Where nothing else changed, this write finds out now whether the file and its folder can be written.
        database.execute(f"PRAGMA user_version = {schema.FORMAT_VERSION}")
        database.execute("ROLLBACK" if version == schema.FORMAT_VERSION else "COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _format_of(database: sqlite3.Connection, path: str | None) -> int | None:
    """The version of the file's format; `None` for a file without content."""
    application_id, version, num_schema_changes = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version", "schema_version")
    )
    if application_id == version == num_schema_changes == 0:
        return None
    if application_id != schema.APPLICATION_ID:
        raise not_ours(path, "it is an SQLite file of another program")
    if version > schema.FORMAT_VERSION:
        raise MemoryFileError(
            f"'{path}' was written by a newer jlibo (format {version}, while this one knows up to "
            f"{schema.FORMAT_VERSION}): update jlibo."
        )
    return version


def _create(database: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    schema.create_tables(database)
    database.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", list(meta.items()))
    schema.seal_meta(database)


def _migrate(database: sqlite3.Connection, path: str | None, version: int) -> None:
    for old in range(version, schema.FORMAT_VERSION):
        if old not in schema.MIGRATIONS:
            raise MemoryFileError(
                f"'{path}' has format {old}, which this jlibo cannot bring to {schema.FORMAT_VERSION}: "
                "open it once with an older jlibo, and export it there."
            )
        schema.MIGRATIONS[old](database)
