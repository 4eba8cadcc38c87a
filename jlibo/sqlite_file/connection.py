"""Connections to SQLite files, and transactions that are on the disk when they end. Internal."""

import os
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

from jlibo.sqlite_file.errors import LONGEST_TEXT, primary_code

BUSY_SECONDS = 30.0
_CHANCE = random.SystemRandom()  # independent of the generator that users seed

Connection = TypeVar("Connection", bound=sqlite3.Connection)

# One lock for all files of the process, held during every transaction and while the process forks. A child
# therefore never inherits an open transaction, whose connection it could neither use nor safely close.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

# Limits on statements: far above what the statements of jlibo need, far below what exhausts a machine.
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


def connect(path: str | None, factory: type[Connection], *, mode: str = "rw") -> Connection:
    """Return a connection with explicit transactions; a commit is on the disk when it returns."""
    uri = ":memory:" if path is None else f"{Path(path).as_uri()}?mode={mode}"
    options: dict[str, Any] = dict(isolation_level=None, check_same_thread=False)
    database = factory(uri, uri=path is not None, timeout=BUSY_SECONDS, **options)
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


def begin_reading(database: sqlite3.Connection) -> None:
    """Begin a read transaction."""
    database.execute("BEGIN")


def begin_writing(database: sqlite3.Connection) -> None:
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
