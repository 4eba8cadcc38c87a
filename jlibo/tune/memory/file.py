"""The file under a memory: an SQLite database that is ours, whole and of a format we know, or a clear error.

A file is looked at before anything is written to it, so a file that is not a memory stays as it is, to the
byte. What SQLite says when something goes wrong is put into words that name the file and what to do.
"""

import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from jlibo.printable import printable
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import schema as schema
from jlibo.tune.memory.errors import (
    LONGEST_TEXT,
    SQLITE_ERRORS,
    MemoryFileError,
    explain,
    not_ours,
    not_writable,
    place_of,
)
from jlibo.tune.memory.errors import damaged as damaged
from jlibo.tune.memory.records import DamagedRow
from jlibo.tune.memory.rows import MemoryConnection, plain_params

BUSY_SECONDS = 30.0
_CHANCE = random.SystemRandom()  # not the generator that users seed


# One lock for all memories of the process, held during every transaction and while the process forks. So a
# child never inherits a half-done transaction, whose connection it could neither use nor safely close.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


@final
class MemoryFile:
    """The open file: safe to use from many threads, and from a forked process, which connects anew.

    With `new_meta` a missing or empty file becomes a new memory with these entries in its table `meta`;
    without, it is an error. With `write=False` a file that can only be read will do. A `path` of `None` is a
    memory in RAM. `file_mode` is the permissions of a file that is made.
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
        self._params_fn: Callable[[str], dict[str, Any]] = plain_params
        self._schema_version: int | None = None  # as of the last look at the schema
        create = new_meta is not None
        if not isinstance(file_mode, int) or file_mode & ~0o777 or file_mode & 0o600 != 0o600:
            raise ValueError(
                "`file_mode` should be permissions that let the user read and write, such as 0o600 or 0o660, "
                f"but got {file_mode!r}."
            )
        try:
            with LOCK:
                if path is not None and not _check_place(path, create=create):
                    _make_file(path, file_mode)
                self._database = connect(path)
                try:
                    _prepare(self._database, path, new_meta, write)
                except sqlite3.OperationalError as error:
                    if write or path is None or not _is_read_only(error):
                        raise
                    # An old format on a disk that cannot be written: a copy in RAM is migrated, to be read.
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
    def reading(self) -> Iterator[MemoryConnection]:
        """What is read inside is as it was at one moment."""
        with self._transaction(_begin_reading) as database:
            yield database

    @contextmanager
    def writing(self) -> Iterator[MemoryConnection]:
        """What is written inside is on the disk at the end, or undone if there is an error."""
        with self._transaction(_begin_writing) as database:
            yield database

    @contextmanager
    def _transaction(self, begin_fn: Callable[[sqlite3.Connection], None]) -> Iterator[MemoryConnection]:
        with LOCK:
            try:
                database = self._connection()
                begin_fn(database)
                self._check_schema(database)
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                if self._database is not None and self._database.in_transaction:
                    with suppress(sqlite3.Error):  # the first error is the one to tell
                        self._database.execute("ROLLBACK")
                if isinstance(error, SQLITE_ERRORS):
                    raise explain(self.path, error, busy_seconds=BUSY_SECONDS) from error
                if isinstance(error, DamagedRow):
                    raise damaged(self.path, str(error)) from error
                raise

    def set_params_fn(self, params_fn: Callable[[str], dict[str, Any]]) -> None:
        """Read the parameters of trials with `params_fn` from now on."""
        self._params_fn = params_fn
        if self._database is not None:
            self._database.params_fn = params_fn

    def _check_schema(self, database: MemoryConnection) -> None:
        """Look at the schema if it has changed since the last look: another program may have added a trigger.

        SQLite reads a schema anew only if this number has changed, so one that was checked stays in use.
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
            self._database.params_fn = self._params_fn
        return self._database


def _make_file(path: str, mode: int) -> None:
    """Make an empty file, unless another process is faster. It is never open to more users than `mode` says.

    The umask is neither asked nor changed: it belongs to all threads of the process.
    """
    try:
        handle = os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise not_writable(path, error.strerror or str(error)) from None
    try:
        if mode != 0o600:
            os.chmod(handle if os.chmod in os.supports_fd else path, mode)
    finally:
        os.close(handle)


# What a statement may ask for: far above what the statements here need, far below what exhausts a machine.
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
    """A bare connection: transactions are explicit, and a commit is on the disk when it returns."""
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
        # A file made by someone else must not run functions of this process from its schema. This comes
        # first, as later statements read the schema.
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("PRAGMA mmap_size = 0")  # a file that shrinks under a map would end the process
        # EXTRA, not FULL: it also syncs the folder after the journal is gone, without which a power cut just
        # after a commit can bring the journal back and undo it.
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("PRAGMA foreign_keys = ON")
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


def _check_place(path: str, *, create: bool) -> bool:
    """Look at what is at `path`, without a lock or a trace; False if there is no file yet."""
    place = place_of(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise MemoryFileError(f"there is no memory at {place}: give the path of one.") from None
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise MemoryFileError(
                f"cannot make {place}, there is no folder '{printable(folder)}': make it, or give another "
                "path."
            ) from None
        return False
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise MemoryFileError(f"cannot look at {place} ({words}): give another path.") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file on a disk"
        raise MemoryFileError(f"{place} is {kind}: give the path of a file.")
    if status.st_size == 1:  # SQLite takes it for an empty file and would write over it
        raise not_ours(path, "it is not an SQLite file")
    # An open transaction, or one that was cut short, has a journal. Then the header may be half written, and
    # only a reader with a lock sees the truth; the size was asked for first, so that this order is safe.
    if status.st_size > 0 and not os.path.exists(os.path.realpath(path) + "-journal"):
        _look_at_header(path)
    return True


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
    except SQLITE_ERRORS as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            raise explain(path, error, busy_seconds=BUSY_SECONDS) from error
        return  # without a lock, a file that is just growing looks damaged
    finally:
        database.close()
    if application_id != schema.APPLICATION_ID:
        raise not_ours(path, "it is an SQLite file of another program")


def _prepare(database: MemoryConnection, path: str | None, new_meta, write: bool) -> None:
    """Check the file as a whole, then make or migrate it where that is called for."""
    _begin_reading(database)
    version = schema.check_format(database, path)
    if version is None and new_meta is None:
        raise not_ours(path, "it is empty")
    if version is not None:
        schema.check_content(database, path)
    database.execute("COMMIT")
    if version == schema.FORMAT_VERSION and not write:
        return
    database.execute("PRAGMA journal_mode = DELETE")  # one file; a no-op unless someone chose another mode
    try:
        _begin_writing(database)
        version = schema.check_format(database, path)  # again: another process may have been faster
        if version is None:
            schema.create(database, new_meta or {})
        elif version < schema.FORMAT_VERSION:
            _migrate(database, path, version)
        # Where nothing else changed, this write finds out now whether the file and its folder can be written.
        database.execute(f"PRAGMA user_version = {schema.FORMAT_VERSION}")
        database.execute("ROLLBACK" if version == schema.FORMAT_VERSION else "COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _migrate(database: MemoryConnection, path: str | None, version: int) -> None:
    """Bring the tables to the newest format, and read all of them before the change is committed."""
    schema.migrate(database, path, version)
    try:
        space, _ = rows.read_problem(rows.read_meta(database))
        database.params_fn = lambda text: space.validate(plain_params(text))
        rows.read_tasks(database)
        rows.read_trials(database)
    except DamagedRow as error:
        raise damaged(path, str(error)) from error


def _is_read_only(error: sqlite3.Error) -> bool:
    codes = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def _migrated_copy(database: MemoryConnection, path: str) -> MemoryConnection:
    """A copy in RAM of an open file of an older format, brought to the newest and then not to be written."""
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
