"""The file of a ballot: its tables, its errors, and its rows. Internal.

A vote, the noise drawn for it and the support that follows from both are one row, so they are written in one
transaction: after a crash the same release is published, and noise is never drawn a second time.
"""

import json
import math
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from jlibo.federated.rules import BallotRules
from jlibo.printable import printable
from jlibo.sqlite_file import connection
from jlibo.sqlite_file.checksum import row_checksum
from jlibo.sqlite_file.errors import DamagedRow, FileWords
from jlibo.sqlite_file.file import FileKind
from jlibo.sqlite_file.format import FileFormat
from jlibo.strict_json import strict_json

_TABLES = {
    1: {
        "meta": """CREATE TABLE meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL CHECK (typeof(value) = 'text')
)""",
        "votes": """CREATE TABLE votes (
    number INTEGER PRIMARY KEY,
    client TEXT NOT NULL CHECK (typeof(client) = 'text'),
    task TEXT NOT NULL UNIQUE CHECK (typeof(task) = 'text'),
    selected TEXT NOT NULL CHECK (typeof(selected) = 'text'),
    noisy TEXT CHECK (typeof(noisy) IN ('text', 'null')),
    support TEXT NOT NULL CHECK (typeof(support) = 'text'),
    checksum INTEGER NOT NULL CHECK (typeof(checksum) = 'integer')
)""",
    }
}
_META = ("rules", "jlibo")
_COLUMNS = "number, client, task, selected, noisy, support"


class BallotFileError(Exception):
    """A ballot cannot be read or written; the message names the file and says what to do."""


class BallotMismatch(BallotFileError):
    """A ballot has other rules than those that are asked for."""


FORMAT = FileFormat(
    FileWords("ballot", BallotFileError, lambda path: f"put back a copy of {path}"),
    application_id=0x6A6C6276,  # "jlbv"
    tables=_TABLES,
    has_counters=False,
)


@final
class VoteRow(NamedTuple):
    """A counted vote and what was released after it."""

    number: int
    """The number of the vote, from 1."""
    client: str
    task: str
    selected: tuple[int, ...]
    noisy: tuple[float, ...] | None
    """What the mechanism drew for this vote, one number for each kernel; None without noise."""
    support: tuple[int, ...]
    """The elected kernels after this vote."""


def _create(database: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    FORMAT.create(database, FORMAT.newest)
    content = {**meta, "checksum": str(_meta_checksum(meta))}
    database.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", list(content.items()))


def _migrate(database: sqlite3.Connection, path: str | None, version: int) -> None:
    raise AssertionError("there is no older format")


def kind() -> FileKind[sqlite3.Connection]:
    """Return what distinguishes the file of a ballot from others."""
    return FileKind(FORMAT, lambda path: connection.connect(path, sqlite3.Connection), _create, _migrate)


def read_rules(database: sqlite3.Connection) -> BallotRules:
    """Return the rules in the file, or raise a `DamagedRow`."""
    meta = dict(database.execute("SELECT key, value FROM meta LIMIT 100").fetchall())
    if meta.get("checksum") != str(_meta_checksum(meta)):
        raise DamagedRow("the checksum of its rules does not match")
    try:
        return BallotRules.from_json(meta["rules"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedRow(f"its rules cannot be read: {printable(error)}") from error


def _meta_checksum(meta: Mapping[str, str]) -> int:
    return row_checksum([meta.get(key) for key in _META])


def read_votes(
    database: sqlite3.Connection, rules: BallotRules, where: str = "TRUE", *values: Any
) -> list[VoteRow]:
    """Return the votes that meet `where`, a condition in SQL, in the order in which they were counted."""
    question = f"SELECT {_COLUMNS}, checksum FROM votes WHERE {where} ORDER BY number"
    return [_checked(rules, *row) for row in database.execute(question, values)]


def insert_vote(database: sqlite3.Connection, row: VoteRow) -> None:
    """Insert a vote with its checksum."""
    noisy = None if row.noisy is None else json.dumps(row.noisy)
    content = (row.number, row.client, row.task, json.dumps(row.selected), noisy, json.dumps(row.support))
    database.execute(
        f"INSERT INTO votes ({_COLUMNS}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*content, row_checksum(content)),
    )


def _checked(rules: BallotRules, *columns: Any) -> VoteRow:
    """Return the row, or raise a `DamagedRow`."""
    *content, checksum = columns
    number, client, task, selected, noisy, support = content
    try:
        if checksum != row_checksum(content):
            raise ValueError("its checksum does not match")
        drawn = None if noisy is None else tuple(strict_json(noisy))
        if drawn is not None and not (
            len(drawn) == rules.num_kernels and all(type(x) is float and math.isfinite(x) for x in drawn)
        ):
            raise ValueError("its noise is not a finite number for each kernel")
        if (drawn is not None) != (rules.mechanism in ("toeplitz", "gnmax")):
            raise ValueError("its noise does not fit the mechanism")
        return VoteRow(number, client, task, _kernels(rules, selected), drawn, _kernels(rules, support))
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"vote {printable(number)}: {printable(error)}") from error


def _kernels(rules: BallotRules, text: str) -> tuple[int, ...]:
    indices = strict_json(text)
    if not all(type(index) is int and 0 <= index < rules.num_kernels for index in indices):
        raise ValueError("an index is not that of a kernel")
    return tuple(indices)
