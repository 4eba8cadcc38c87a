"""The file of a memory: an undamaged SQLite database of jlibo in a known format, or an error. Internal.

A file is checked before anything is written to it, so a file that is not a memory stays unchanged, byte for
byte. SQLite's errors are raised again with messages that name the file and say what to do.
"""

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import schema as schema
from jlibo.tune.memory.errors import (
    LONGEST_TEXT,
    SQLITE_ERRORS,
    MemoryFileError,
    explain,
    not_ours,
    primary_code,
)
from jlibo.tune.memory.errors import damaged as damaged
from jlibo.tune.memory.place import check_place, make_file
from jlibo.tune.memory.records import DamagedRow
from jlibo.tune.memory.rows import MemoryConnection, View, plain_params
from jlibo.tune.memory.spaces import read_spaces, valid_in

PrepareFn = Callable[[MemoryConnection], None]
logger = logging.getLogger(__name__)

BUSY_SECONDS = 30.0
_CHANCE = random.SystemRandom()  # independent of the generator that users seed


# One lock for all memories of the process, held during every transaction and while the process forks. A child
# therefore never inherits an open transaction, whose connection it could neither use nor safely close.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


@final
class MemoryFile:
    """An open file, safe to use from many threads and from a forked process, which opens its own connection.

    **Arguments:**

    - `path`: the path of the file; None for a memory in RAM.
    - `new_meta`: if given, a missing or empty file becomes a new memory with these entries in its table
      `meta`. If None, such a file is an error.
    - `write`: if False, the file need only be readable.
    - `file_mode`: the permissions of a new file.
    """

    def __init__(
        self,
        path: str | None,
        *,
        new_meta: Mapping[str, str] | None = None,
        write: bool = True,
        file_mode: int = 0o600,
    ):
        self.path = path
        self._pid = os.getpid()
        self._in_ram = path is None
        self._database: MemoryConnection | None = None
        self._schema_version: int | None = None  # as of the last check of the schema
        create = new_meta is not None
        if not isinstance(file_mode, int) or file_mode & ~0o777 or file_mode & 0o600 != 0o600:
            raise ValueError(
                "`file_mode` should be permissions that let the user read and write, such as 0o600 or 0o660, "
                f"but got {file_mode!r}."
            )
        try:
            with LOCK:
                if path is not None and not check_place(path, create=create):
                    make_file(path, file_mode)
                self._database = connect(path)
                try:
                    _prepare(self._database, path, new_meta, write)
                except sqlite3.OperationalError as error:
                    if write or path is None or not _is_read_only(error):
                        raise
                    # A file of an old format that cannot be written is read from a migrated copy in RAM.
                    self._database, self._in_ram = _migrated_copy(self._database, path), True
        except BaseException as error:
            self.close()
            if isinstance(error, SQLITE_ERRORS):
                raise explain(path, error, busy_seconds=BUSY_SECONDS) from error
            raise

    def close(self) -> None:
        with LOCK:
            if self._database is not None:
                self._database.close()
            self._database = None

    @contextmanager
    def reading(self, prepare_fn: PrepareFn | None = None) -> Iterator[MemoryConnection]:
        """Open a read transaction: everything read inside is from one moment.

        `prepare_fn` is called with the connection at the beginning of the transaction.
        """
        with self._transaction(_begin_reading, prepare_fn) as database:
            yield database

    @contextmanager
    def writing(self, prepare_fn: PrepareFn | None = None) -> Iterator[MemoryConnection]:
        """Open a write transaction: it is on the disk at the end, or undone if an error is raised."""
        with self._transaction(_begin_writing, prepare_fn) as database:
            yield database

    @contextmanager
    def _transaction(
        self, begin_fn: Callable[[sqlite3.Connection], None], prepare_fn: PrepareFn | None
    ) -> Iterator[MemoryConnection]:
        with LOCK:
            try:
                database = self._connection()
                begin_fn(database)
                self._check_schema(database)
                if prepare_fn is not None:
                    prepare_fn(database)
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                if self._database is not None and self._database.in_transaction:
                    with suppress(sqlite3.Error):  # the first error is the one to report
                        self._database.execute("ROLLBACK")
                if isinstance(error, SQLITE_ERRORS):
                    raise explain(self.path, error, busy_seconds=BUSY_SECONDS) from error
                if isinstance(error, DamagedRow):
                    raise damaged(self.path, str(error)) from error
                raise

    def _check_schema(self, database: MemoryConnection) -> None:
        """Check the schema if it changed since the last check: another program may have added a trigger.

        SQLite reads the schema again only if `schema_version` changed, so a checked schema stays in use.
        """
        (version,) = database.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            if schema.check_format(database, self.path) != schema.FORMAT_VERSION:
                raise damaged(self.path, "another program changed its format while it was open")
            self._schema_version = version

    def _connection(self) -> MemoryConnection:
        if self._database is None:
            raise MemoryFileError("this memory is closed: open it again.")
        if self._pid != os.getpid():
            if self._in_ram or self.path is None:
                raise MemoryFileError(
                    "a memory in RAM cannot be shared with a forked process: give the memory a path."
                )
            self._database, self._pid, self._schema_version = connect(self.path), os.getpid(), None
        return self._database


# Limits on statements: far above what the statements here need, far below what exhausts a machine.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_TEXT,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,  # ON DELETE CASCADE is a trigger
}


def connect(path: str | None, *, mode: str = "rw") -> MemoryConnection:
    """Return a connection with explicit transactions; a commit is on the disk when it returns."""
    uri = ":memory:" if path is None else f"{Path(path).as_uri()}?mode={mode}"
    database = sqlite3.connect(
        uri,
        uri=path is not None,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=MemoryConnection,
    )
    try:
        for limit, value in _LIMITS.items():
            database.setlimit(limit, value)
        # The schema of an untrusted file must not call functions of this process. This comes first because
        # later statements read the schema.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("PRAGMA mmap_size = 0")  # truncating a mapped file would crash the process
        # EXTRA also syncs the folder after the journal is deleted. With FULL, a power failure just after a
        # commit can restore the journal and undo the commit.
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        database.close()
        raise
    return database


def _begin_reading(database: sqlite3.Connection) -> None:
    database.execute("BEGIN")


def _begin_writing(database: sqlite3.Connection) -> None:
    """Begin a write transaction as soon as no other is open, or raise after `BUSY_SECONDS`.

    SQLite's busy handler backs off to one attempt every 100 ms, so a process that writes without pause would
    block the others for many seconds. Frequent attempts at random intervals avoid this starvation.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    database.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                busy = primary_code(error) == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
            time.sleep(_CHANCE.uniform(0.0005, 0.003))
    finally:
        database.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")


def _prepare(database: MemoryConnection, path: str | None, new_meta, write: bool) -> None:
    """Check the whole file, then create or migrate it if needed."""
    _begin_reading(database)
    version = schema.check_format(database, path)
    if version is None and new_meta is None:
        raise not_ours(path, "it is empty")
    if version is not None:
        schema.check_content(database, path)
    database.execute("COMMIT")
    if version == schema.FORMAT_VERSION and not write:
        return
    database.execute("PRAGMA journal_mode = DELETE")  # keeps one file; a no-op unless another mode was set
    try:
        _begin_writing(database)
        version = schema.check_format(database, path)  # again: another process may have written meanwhile
        if version is None:
            schema.create(database, new_meta or {})
        elif version < schema.FORMAT_VERSION:
            _migrate(database, path, version)
            logger.info("%r is migrated from format %d to %d", path, version, schema.FORMAT_VERSION)
        # If nothing else changed, this write tests now whether the file and its folder can be written.
        database.execute(f"PRAGMA user_version = {schema.FORMAT_VERSION}")
        database.execute("ROLLBACK" if version == schema.FORMAT_VERSION else "COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _migrate(database: MemoryConnection, path: str | None, version: int) -> None:
    """Migrate the tables to the newest format, and read all of them before the change is committed."""
    schema.migrate(database, path, version)
    try:
        known = [one.space for one in read_spaces(rows.read_meta(database))]
        database.params_fn = lambda text: View(valid_in(known, plain_params(text)))
        rows.read_tasks(database)
        rows.read_trials(database)
    except DamagedRow as error:
        raise damaged(path, str(error)) from error


def _is_read_only(error: sqlite3.Error) -> bool:
    codes = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
    return primary_code(error) in codes


def _migrated_copy(database: MemoryConnection, path: str) -> MemoryConnection:
    """Return a read-only copy in RAM of a file of an older format, migrated to the newest format."""
    copy = connect(None)
    try:
        database.backup(copy)
        database.close()
        _prepare(copy, path, None, write=True)
        copy.execute("PRAGMA query_only = ON")
    except BaseException:
        copy.close()
        raise
    return copy
