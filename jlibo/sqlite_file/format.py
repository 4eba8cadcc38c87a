"""The format of an SQLite file: its application id and the tables of each version. Internal."""

import dataclasses
import re
import sqlite3
from collections.abc import Mapping
from typing import final

from jlibo.printable import printable
from jlibo.sqlite_file.errors import FileWords


@final
@dataclasses.dataclass(frozen=True)
class FileFormat:
    """What a kind of file has in its header and its schema, in every version.

    **Arguments:**

    - `words`: the messages about the file.
    - `application_id`: the number in the header of the file.
    - `tables`: the statements that create the tables of each version that can be read, by name. The newest
      version is written.
    - `has_counters`: whether a table has AUTOINCREMENT, for which SQLite keeps a table of counters.
    """

    words: FileWords
    application_id: int
    tables: Mapping[int, Mapping[str, str]]
    has_counters: bool

    @property
    def newest(self) -> int:
        """The version that is written."""
        return max(self.tables)

    def check(self, database: sqlite3.Connection, path: str | None) -> int | None:
        """Return the version of the file's format, after a check of its schema; None for an empty file."""
        version = self._version_of(database, path)
        if version is not None:
            if version not in self.tables:
                raise self.words.error(
                    f"{self.words.place_of(path)} has format {version}, which this jlibo does not know: "
                    "open it once with an older jlibo, and export it there."
                )
            problem = self.problem_of(database, version)
            if problem is not None:
                raise self.words.damaged(path, problem)
        return version

    def _version_of(self, database: sqlite3.Connection, path: str | None) -> int | None:
        """Return the version of the file's format; None for an empty file."""
        application_id, version, num_schema_changes = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "schema_version")
        )
        if application_id == version == num_schema_changes == 0:
            return None
        if application_id != self.application_id:
            raise self.words.not_ours(path, "it is an SQLite file of another program")
        if version > self.newest:
            raise self.words.error(
                f"{self.words.place_of(path)} was written by a newer jlibo (format {version}, while this one "
                f"knows up to {self.newest}): update jlibo."
            )
        return version

    def problem_of(self, database: sqlite3.Connection, version: int) -> str | None:
        """Return how the schema of a file differs from that of this version; None if it does not.

        Call it before the first query on a table: in an untrusted file, a view with the name of a table can
        run forever, and a trigger or another CHECK can change what is written.
        """
        found = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100").fetchall()
        there = [_normal(*row) for row in found]
        expected = self._expected(version)
        for row in there:
            if row not in expected or there.count(row) > 1:
                known = {name for _, name, _, _ in expected}
                noun = self.words.noun
                word = f"is not that of a {noun}" if row[1] in known else f"does not belong in a {noun}"
                return f"its {printable(row[0], max_length=20)} '{printable(row[1], max_length=100)}' {word}"
        for row in expected:
            if row not in there:
                return f"its {row[0]} '{row[1]}' is missing"
        return None

    def _expected(self, version: int) -> list[tuple[str, str, str, str]]:
        tables = [_normal("table", name, name, sql) for name, sql in self.tables[version].items()]
        # SQLite adds an index for each UNIQUE or TEXT PRIMARY KEY, and the counters of AUTOINCREMENT.
        indexes = [
            _normal("index", f"sqlite_autoindex_{name}_1", name, None) for name in self.tables[version]
        ]
        counters = _normal(
            "table", "sqlite_sequence", "sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)"
        )
        return [*tables, *indexes, *([counters] if self.has_counters else [])]

    def check_content(self, database: sqlite3.Connection, path: str | None) -> None:
        """Check the whole file: pages, indexes, the CHECKs of all rows, and that references exist."""
        (problem,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != "ok":
            raise self.words.damaged(path, printable(problem.replace("\n", " "), max_length=200))
        orphan = database.execute("PRAGMA foreign_key_check").fetchone()
        if orphan is not None:
            table, row_id, parent, _ = orphan
            raise self.words.damaged(path, f"{table[:-1]} {row_id}: its {parent[:-1]} is missing")

    def create(self, database: sqlite3.Connection, version: int) -> None:
        """Create the tables of a new file; the caller sets its version."""
        for statement in self.tables[version].values():
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {self.application_id}")


def _normal(kind: object, name: object, table: object, sql: object) -> tuple[str, str, str, str]:
    # No quoted text in the statements above contains a blank, so all blanks are layout.
    return str(kind), str(name), str(table), re.sub(r"\s*([(),])\s*", r"\1", " ".join(str(sql).split()))
