"""The file of a memory: an SQLite file of jlibo whose rows are tasks and trials. Internal."""

import sqlite3
from collections.abc import Mapping

from jlibo.sqlite_file import connection
from jlibo.sqlite_file.connection import LOCK as LOCK
from jlibo.sqlite_file.errors import DamagedRow
from jlibo.sqlite_file.file import FileKind, SqliteFile
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import schema as schema
from jlibo.tune.memory.errors import WORDS
from jlibo.tune.memory.rows import MemoryConnection, View, plain_params
from jlibo.tune.memory.spaces import read_spaces, valid_in

MemoryFile = SqliteFile[MemoryConnection]


def open_file(
    path: str | None,
    *,
    new_meta: Mapping[str, str] | None = None,
    write: bool = True,
    file_mode: int = 0o600,
) -> MemoryFile:
    """Open the file of a memory; the arguments are those of `SqliteFile`."""
    kind = FileKind(schema.FORMAT, connect, _create, _migrate)
    return SqliteFile(path, kind, new_meta=new_meta, write=write, file_mode=file_mode)


def connect(path: str | None, *, mode: str = "rw") -> MemoryConnection:
    """Return a connection with explicit transactions; a commit is on the disk when it returns."""
    return connection.connect(path, MemoryConnection, mode=mode)


def _create(database: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    schema.create(database, meta)


def _migrate(database: MemoryConnection, path: str | None, version: int) -> None:
    """Migrate the tables to the newest format, and read all of them before the change is committed."""
    schema.migrate(database, path, version)
    try:
        known = [one.space for one in read_spaces(rows.read_meta(database))]
        database.params_fn = lambda text: View(valid_in(known, plain_params(text)))
        rows.read_tasks(database)
        rows.read_trials(database)
    except DamagedRow as error:
        raise WORDS.damaged(path, str(error)) from error
