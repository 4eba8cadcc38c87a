"""An open SQLite file of jlibo: undamaged, in a known format, or an error. Internal.

A file is checked before anything is written to it, so a file of another kind stays unchanged, byte for byte.
SQLite's errors are raised again with messages that name the file and say what to do.
"""

import dataclasses
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Generic, final

from jlibo.sqlite_file import connection as connection
from jlibo.sqlite_file.connection import LOCK, Connection, begin_reading, begin_writing
from jlibo.sqlite_file.errors import SQLITE_ERRORS, DamagedRow, primary_code
from jlibo.sqlite_file.format import FileFormat
from jlibo.sqlite_file.place import check_place, make_file

logger = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True)
class FileKind(Generic[Connection]):
    """What distinguishes one kind of file from another.

    **Arguments:**

    - `form`: the format, with the messages.
    - `connect_fn`: opens a connection to a path, or to a new database in RAM for None.
    - `create_fn`: creates the tables of a new file, given the entries of its table `meta`.
    - `migrate_fn`: migrates tables of an older version to the newest one and reads them.
    """

    form: FileFormat
    connect_fn: Callable[[str | None], Connection]
    create_fn: Callable[[Connection, Mapping[str, str]], None]
    migrate_fn: Callable[[Connection, str | None, int], None]


@final
class SqliteFile(Generic[Connection]):
    """An open file, safe to use from many threads and from a forked process, which opens its own connection.

    **Arguments:**

    - `path`: the path of the file; None for one in RAM.
    - `kind`: the kind of the file.
    - `new_meta`: if given, a missing or empty file becomes a new one with these entries in its table `meta`.
      If None, such a file is an error.
    - `write`: if False, the file need only be readable.
    - `file_mode`: the permissions of a new file.
    """

    def __init__(
        self,
        path: str | None,
        kind: FileKind[Connection],
        *,
        new_meta: Mapping[str, str] | None = None,
        write: bool = True,
        file_mode: int = 0o600,
    ):
        self.path = path
        self._kind = kind
        self._pid = os.getpid()
        self._in_ram = path is None
        self._database: Connection | None = None
        self._schema_version: int | None = None  # as of the last check of the schema
        create = new_meta is not None
        if not isinstance(file_mode, int) or file_mode & ~0o777 or file_mode & 0o600 != 0o600:
            raise ValueError(
                "`file_mode` should be permissions that let the user read and write, such as 0o600 or 0o660, "
                f"but got {file_mode!r}."
            )
        try:
            with LOCK:
                if path is not None and not check_place(path, kind.form, create=create):
                    make_file(path, file_mode, kind.form)
                self._database = kind.connect_fn(path)
                try:
                    _prepare(self._database, path, kind, new_meta, write)
                except sqlite3.OperationalError as error:
                    if write or path is None or not _is_read_only(error):
                        raise
                    # A file of an old format that cannot be written is read from a migrated copy in RAM.
                    self._database, self._in_ram = _migrated_copy(self._database, path, kind), True
        except BaseException as error:
            self.close()
            if isinstance(error, SQLITE_ERRORS):
                raise self._explained(error) from error
            raise

    def close(self) -> None:
        with LOCK:
            if self._database is not None:
                self._database.close()
            self._database = None

    @contextmanager
    def reading(self, prepare_fn: Callable[[Connection], None] | None = None) -> Iterator[Connection]:
        """Open a read transaction: everything read inside is from one moment.

        `prepare_fn` is called with the connection at the beginning of the transaction.
        """
        with self._transaction(begin_reading, prepare_fn) as database:
            yield database

    @contextmanager
    def writing(self, prepare_fn: Callable[[Connection], None] | None = None) -> Iterator[Connection]:
        """Open a write transaction: it is on the disk at the end, or undone if an error is raised."""
        with self._transaction(begin_writing, prepare_fn) as database:
            yield database

    @contextmanager
    def _transaction(
        self,
        begin_fn: Callable[[sqlite3.Connection], None],
        prepare_fn: Callable[[Connection], None] | None,
    ) -> Iterator[Connection]:
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
                    raise self._explained(error) from error
                if isinstance(error, DamagedRow):
                    raise self._kind.form.words.damaged(self.path, str(error)) from error
                raise

    def _explained(self, error: Exception) -> Exception:
        return self._kind.form.words.explain(self.path, error, busy_seconds=connection.BUSY_SECONDS)

    def _check_schema(self, database: Connection) -> None:
        """Check the schema if it changed since the last check: another program may have added a trigger.

        SQLite reads the schema again only if `schema_version` changed, so a checked schema stays in use.
        """
        form = self._kind.form
        (version,) = database.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            if form.check(database, self.path) != form.newest:
                raise form.words.damaged(self.path, "another program changed its format while it was open")
            self._schema_version = version

    def _connection(self) -> Connection:
        words = self._kind.form.words
        if self._database is None:
            raise words.error(f"this {words.noun} is closed: open it again.")
        if self._pid != os.getpid():
            if self._in_ram or self.path is None:
                raise words.error(
                    f"a {words.noun} in RAM cannot be shared with a forked process: "
                    f"give the {words.noun} a path."
                )
            self._database = self._kind.connect_fn(self.path)
            self._pid, self._schema_version = os.getpid(), None
        return self._database


def _prepare(
    database: Connection,
    path: str | None,
    kind: FileKind[Connection],
    new_meta: Mapping[str, str] | None,
    write: bool,
) -> None:
    """Check the whole file, then create or migrate it if needed."""
    form = kind.form
    begin_reading(database)
    version = form.check(database, path)
    if version is None and new_meta is None:
        raise form.words.not_ours(path, "it is empty")
    if version is not None:
        form.check_content(database, path)
    database.execute("COMMIT")
    if version == form.newest and not write:
        return
    database.execute("PRAGMA journal_mode = DELETE")  # keeps one file; a no-op unless another mode was set
    try:
        begin_writing(database)
        version = form.check(database, path)  # again: another process may have written meanwhile
        if version is None:
            kind.create_fn(database, new_meta or {})
        elif version < form.newest:
            kind.migrate_fn(database, path, version)
            logger.info("%r is migrated from format %d to %d", path, version, form.newest)
        # If nothing else changed, this write tests now whether the file and its folder can be written.
        database.execute(f"PRAGMA user_version = {form.newest}")
        database.execute("ROLLBACK" if version == form.newest else "COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _is_read_only(error: sqlite3.Error) -> bool:
    codes = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
    return primary_code(error) in codes


def _migrated_copy(database: Connection, path: str, kind: FileKind[Connection]) -> Connection:
    """Return a read-only copy in RAM of a file of an older format, migrated to the newest format."""
    copy = kind.connect_fn(None)
    try:
        database.backup(copy)
        database.close()
        _prepare(copy, path, kind, None, write=True)
        copy.execute("PRAGMA query_only = ON")
    except BaseException:
        copy.close()
        raise
    return copy
