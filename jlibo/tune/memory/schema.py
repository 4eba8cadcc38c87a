"""The tables of a memory in every version of its format, and the migrations between versions. Internal.

Each row has a CRC-32 of its content. SQLite's own check finds damage to the structure of a file, but not a
flipped bit inside a number or a text. The checksum is not a signature: a program that modifies the file on
purpose can write a matching one.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from jlibo.sqlite_file.checksum import row_checksum
from jlibo.sqlite_file.format import FileFormat
from jlibo.tune.memory import records as records
from jlibo.tune.memory.errors import WORDS, MemoryFileError, place_of

APPLICATION_ID = 0x6A6C6962  # "jlib"; in the header of the file, where `file(1)` finds it too
FORMAT_VERSION = 4

# CHECK constraints and not STRICT tables check the types: SQLite before 3.37 cannot read a file with a STRICT
# table, and a memory may move between machines. AUTOINCREMENT ensures that the id of a deleted trial is never
# reused, so that a late `tell` cannot change another trial. Times are ISO 8601, UTC.
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
# ALTER TABLE cannot change the CHECK on states. The row of a stopped trial is therefore that of a failed one,
# with `stopped`.
_OUTCOME = (
    "error TEXT CHECK (typeof(error) IN ('text', 'null'))",
    "stopped INTEGER CHECK (stopped IS NULL OR (stopped = 1 AND state = 'failed'))",
    "estimate REAL CHECK (typeof(estimate) IN ('real', 'null') AND abs(estimate) <= 1.7976931348623157e308)",
)
_REPORTS = f"""CREATE TABLE reports (
    id INTEGER PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (id) ON DELETE CASCADE,
    step INTEGER NOT NULL CHECK (typeof(step) = 'integer' AND step >= 0),
    score REAL CHECK (typeof(score) IN ('real', 'null') AND abs(score) <= 1.7976931348623157e308),
    {_CHECKSUM},
    UNIQUE (trial_id, step)
)"""
# A vote of a federated run, stored before it is sent: what a client has randomised once is never drawn again.
_VOTES = f"""CREATE TABLE votes (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL UNIQUE REFERENCES tasks (id) ON DELETE CASCADE,
    public TEXT NOT NULL CHECK (typeof(public) = 'text'),
    selected TEXT NOT NULL CHECK (typeof(selected) = 'text'),
    confirmed INTEGER NOT NULL CHECK (confirmed IN (0, 1)),
    {_CHECKSUM}
)"""
_PUBLISHED = f"""CREATE TABLE published (
    name TEXT PRIMARY KEY NOT NULL,
    content TEXT NOT NULL CHECK (typeof(content) = 'text'),
    {_CHECKSUM}
)"""

# The tables of each version that this jlibo reads. New columns are where ALTER TABLE puts them, so that a
# migrated file and a new one have the same schema.
_TASKS_2 = _TASKS.format(added=f", {_CHECKSUM}")
_TABLES_3 = {
    "meta": _META,
    "tasks": _TASKS_2,
    "trials": _TRIALS.format(added=f" {', '.join((_CLAIMS, _CHECKSUM, *_OUTCOME))},"),
    "reports": _REPORTS,
}
TABLES: dict[int, dict[str, str]] = {
    1: {"meta": _META, "tasks": _TASKS.format(added=""), "trials": _TRIALS.format(added="")},
    2: {"meta": _META, "tasks": _TASKS_2, "trials": _TRIALS.format(added=f" {_CLAIMS}, {_CHECKSUM},")},
    3: _TABLES_3,
    4: {**_TABLES_3, "votes": _VOTES, "published": _PUBLISHED},
}
SINCE = {"claims": 2, "error": 3, "stopped": 3, "estimate": 3}
"""The version that added a column, for the columns with content that version 1 does not have."""


def columns_of(version: int, content: Sequence[str]) -> list[str]:
    """Return those columns that a version has; `content` is one of those of `records`."""
    return [column for column in content if SINCE.get(column, 1) <= version]


def seal_meta(database: sqlite3.Connection) -> None:
    """Write the checksum of the entries of `meta`, except the counter `deleted`."""
    meta = dict(database.execute("SELECT key, value FROM meta").fetchall())
    value = str(records.meta_checksum(meta))
    database.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('checksum', ?)", (value,))


def replace_problem(database: sqlite3.Connection, *, space: str, spaces: str) -> None:
    """Write the search space, and the list of all of them, as JSON; see `jlibo.tune.memory.spaces`."""
    pairs = [("space", space), ("spaces", spaces)]
    database.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", pairs)
    seal_meta(database)


def _from_1_to_2(database: sqlite3.Connection) -> None:
    """Add the number of claims to trials, and checksums to all rows."""
    database.execute(f"ALTER TABLE tasks ADD COLUMN {_CHECKSUM}")
    database.execute(f"ALTER TABLE trials ADD COLUMN {_CLAIMS}")
    database.execute(f"ALTER TABLE trials ADD COLUMN {_CHECKSUM}")
    database.execute("UPDATE trials SET claims = 1 WHERE owner IS NOT NULL")
    for table, content in (("tasks", records.TASK_CONTENT), ("trials", records.TRIAL_CONTENT)):
        columns = columns_of(2, content)
        found = database.execute(f"SELECT id, {', '.join(columns)} FROM {table}").fetchall()
        sums = [(row_checksum(content), row_id) for row_id, *content in found]
        database.executemany(f"UPDATE {table} SET checksum = ? WHERE id = ?", sums)
    seal_meta(database)


def _from_2_to_3(database: sqlite3.Connection) -> None:
    """Add the text of failures, stopped trials and reports. No row changes, and so no checksum."""
    for column in _OUTCOME:
        database.execute(f"ALTER TABLE trials ADD COLUMN {column}")
    database.execute(_REPORTS)


def _from_3_to_4(database: sqlite3.Connection) -> None:
    """Add the votes of a federated run, and what its server published."""
    database.execute(_VOTES)
    database.execute(_PUBLISHED)


# The function that migrates each version to the next, inside the transaction that sets the version.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _from_1_to_2,
    2: _from_2_to_3,
    3: _from_3_to_4,
}


FORMAT = FileFormat(WORDS, APPLICATION_ID, TABLES, has_counters=True)


def problem_of(database: sqlite3.Connection, version: int) -> str | None:
    """Return how the schema of a file differs from that of a memory of this version; None if it does not."""
    return FORMAT.problem_of(database, version)


def create(database: sqlite3.Connection, meta: Mapping[str, str], version: int = FORMAT_VERSION) -> None:
    """Create the tables of a new memory, with these entries in `meta`."""
    FORMAT.create(database, version)
    database.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", list(meta.items()))
    seal_meta(database)


def migrate(database: sqlite3.Connection, path: str | None, version: int) -> None:
    """Migrate the tables to the newest version; the caller sets the version of the file."""
    for old in range(version, FORMAT_VERSION):
        if old not in MIGRATIONS:
            raise MemoryFileError(
                f"{place_of(path)} has format {old}, which this jlibo cannot bring to {FORMAT_VERSION}: "
                "open it once with an older jlibo, and export it there."
            )
        MIGRATIONS[old](database)
