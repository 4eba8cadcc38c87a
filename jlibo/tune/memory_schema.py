"""The tables of a memory in every version of its format, and how one version becomes the next.

Each row carries a CRC-32 of its content. SQLite's own check finds damage to the structure of a file, but not
a flipped bit inside of a number or a text. The checksum is not a signature: a program that writes to the file
on purpose can write a matching one.
"""

import sqlite3
from collections.abc import Callable

from jlibo.tune import memory_records as records

APPLICATION_ID = 0x6A6C6962  # "jlib": SQLite keeps it in the file's header, where `file(1)` finds it too
FORMAT_VERSION = 2

# Types are checked by CHECK and not by STRICT: an SQLite before 3.37 cannot even read a file with a STRICT
# table, and a memory moves between machines. AUTOINCREMENT, so that the id of a deleted trial never comes
# back: a late `tell` must not land on another trial. Times are ISO 8601, UTC.
_META = """CREATE TABLE meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL CHECK (typeof(value) = 'text')
)"""
_TASKS = """CREATE TABLE tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text'),
    budget INTEGER CHECK (typeof(budget) IN ('integer', 'null')),
    source TEXT NOT NULL CHECK (source IN ('tuner', 'added')),
    seed INTEGER NOT NULL CHECK (typeof(seed) = 'integer'),
    changed INTEGER NOT NULL DEFAULT 0 CHECK (typeof(changed) = 'integer'),
    created TEXT NOT NULL CHECK (typeof(created) = 'text'){added}
)"""
_TRIALS = """CREATE TABLE trials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number INTEGER NOT NULL CHECK (typeof(number) = 'integer' AND number >= 0),
    params TEXT NOT NULL CHECK (typeof(params) = 'text'),
    state TEXT NOT NULL CHECK (state IN ('pending', 'complete', 'failed')),
    score REAL CHECK (typeof(score) IN ('real', 'null') AND abs(score) <= 1.7976931348623157e308),
    explored INTEGER NOT NULL CHECK (explored IN (0, 1)),
    owner TEXT CHECK (typeof(owner) IN ('text', 'null')),
    claimed TEXT CHECK (typeof(claimed) IN ('text', 'null')),
    created TEXT NOT NULL CHECK (typeof(created) = 'text'),
    finished TEXT CHECK (typeof(finished) IN ('text', 'null')),{added}
    UNIQUE (task_id, number),
    CHECK ((state = 'complete') = (score IS NOT NULL)),
    CHECK ((state = 'pending') = (finished IS NULL)),
    CHECK (owner IS NULL OR state = 'pending')
)"""
_CLAIMS = "claims INTEGER NOT NULL DEFAULT 0 CHECK (typeof(claims) = 'integer' AND claims >= 0)"
_CHECKSUM = "checksum INTEGER NOT NULL DEFAULT 0 CHECK (typeof(checksum) = 'integer')"

# The tables of each version that this jlibo reads. Version 2 has its new columns where ALTER TABLE puts them,
# so that a migrated file and a new one have the same schema.
TABLES: dict[int, dict[str, str]] = {
    1: {"meta": _META, "tasks": _TASKS.format(added=""), "trials": _TRIALS.format(added="")},
    2: {
        "meta": _META,
        "tasks": _TASKS.format(added=f", {_CHECKSUM}"),
        "trials": _TRIALS.format(added=f" {_CLAIMS}, {_CHECKSUM},"),
    },
}


def create_tables(database: sqlite3.Connection, version: int = FORMAT_VERSION) -> None:
    """Make the empty tables of a new memory."""
    for statement in TABLES[version].values():
        database.execute(statement)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def seal_meta(database: sqlite3.Connection) -> None:
    """Write the checksum of the entries of `meta`; `deleted` is a counter and not part of it."""
    meta = dict(database.execute("SELECT key, value FROM meta").fetchall())
    value = str(records.meta_checksum(meta))
    database.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('checksum', ?)", (value,))


def _from_1_to_2(database: sqlite3.Connection) -> None:
    """Add the number of claims to trials, and checksums to all rows."""
    database.execute(f"ALTER TABLE tasks ADD COLUMN {_CHECKSUM}")
    database.execute(f"ALTER TABLE trials ADD COLUMN {_CLAIMS}")
    database.execute(f"ALTER TABLE trials ADD COLUMN {_CHECKSUM}")
    database.execute("UPDATE trials SET claims = 1 WHERE owner IS NOT NULL")
    for table, columns in (("tasks", records.TASK_CONTENT), ("trials", records.TRIAL_CONTENT)):
        found = database.execute(f"SELECT id, {', '.join(columns)} FROM {table}").fetchall()
        sums = [(records.row_checksum(content), row_id) for row_id, *content in found]
        database.executemany(f"UPDATE {table} SET checksum = ? WHERE id = ?", sums)
    seal_meta(database)


# From the version of a format to what turns it into the next, inside the transaction that sets the version.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _from_1_to_2}
