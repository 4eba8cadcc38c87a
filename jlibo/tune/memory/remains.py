"""Reads a damaged memory: every row that SQLite can still read, and a count of the others. Internal.

Tables are read in the order of row ids, without indexes, around unreadable pages. Page 1 of a file holds its
header and its schema, which are the same in all memories of one format. A damaged or foreign page 1 is
therefore replaced by that of a new memory. All this happens on a copy of the file.
"""

import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from jlibo.tune.memory import rows as rows
from jlibo.tune.memory import schema as schema
from jlibo.tune.memory.errors import LONGEST_TEXT, SQLITE_ERRORS, MemoryFileError
from jlibo.tune.memory.file import connect
from jlibo.tune.memory.records import (
    REPORT_CONTENT,
    TASK_CONTENT,
    TRIAL_CONTENT,
    DamagedRow,
    TaskRecord,
    TrialRecord,
    row_checksum,
)
from jlibo.tune.memory.reports import Curve, checked_report
from jlibo.tune.memory.spaces import KnownSpace, read_spaces, valid_in
from jlibo.tune.space.space import SearchSpace

_PAGE_SIZES = tuple(2**power for power in range(9, 17))
_LEAF = 0x0D  # the first byte of a page that holds rows of a table


@final
@dataclass
class Remains:
    """The result of one attempt to read the file."""

    space: SearchSpace | None
    spaces: tuple[KnownSpace, ...]
    maximise: bool
    tasks: dict[int, TaskRecord]
    trials: list[TrialRecord]
    curves: dict[int, Curve]
    lost: Counter[str]
    notes: list[str]
    worth: tuple[bool, int, bool]  # to compare attempts: checksums match, number of rows, space was read


def read_remains(copy: Path, space: SearchSpace | None, maximise: bool | None, *, verify: bool) -> Remains:
    """Read a file as it is, or with a new page 1 if its schema is not that of a memory."""
    version = _version(copy)
    if version is not None:
        return _read_tables(copy, version, space, maximise, verify=verify)
    for end in ("-journal", "-wal"):  # they belong to the old page 1
        Path(f"{copy}{end}").unlink(missing_ok=True)
    with open(copy, "rb") as file:
        head = file.read(max(_PAGE_SIZES))
    best = None
    for size, version in itertools.product(
        _page_sizes(head, copy.stat().st_size), sorted(schema.TABLES, reverse=True)
    ):
        with open(copy, "r+b") as file:
            file.write(head)
            file.seek(0)
            file.write(_first_page(copy.with_name("page.db"), size, version, copy.stat().st_size // size))
        with contextlib.suppress(*SQLITE_ERRORS):
            found = _read_tables(copy, version, space, maximise, verify=verify, is_page_new=True)
            if best is None or found.worth > best.worth:
                best = found
            if best.worth[0]:  # checksums match: this is the right page size and format
                break
    if best is None or not (best.tasks or best.trials):
        raise MemoryFileError("nothing in the file can be read as a memory; it is unchanged.")
    best.notes.append("the header or the schema was not that of a memory, and was replaced")
    return best


def _version(copy: Path) -> int | None:
    """Return the format of a file; None if its header or schema is not that of a memory."""
    try:
        with contextlib.closing(connect(str(copy))) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            is_known = version in schema.TABLES and schema.problem_of(database, version) is None
            return version if is_known else None
    except SQLITE_ERRORS:
        return None


def _page_sizes(head: bytes, file_size: int) -> list[int]:
    """Return the page sizes to try: that in the header, the usual one, the others; a file has >= 2 pages."""
    said = int.from_bytes(head[16:18], "big")
    sizes = dict.fromkeys([65536 if said == 1 else said, 4096, *_PAGE_SIZES])
    return [size for size in sizes if size in _PAGE_SIZES and file_size >= 2 * size]


def _first_page(scratch: Path, size: int, version: int, num_pages: int) -> bytes:
    """Return page 1 of a new memory. Tables are created in a fixed order, so their root pages are fixed."""
    scratch.unlink(missing_ok=True)
    with contextlib.closing(connect(str(scratch), mode="rwc")) as database:
        database.execute(f"PRAGMA page_size = {size}")
        database.execute("BEGIN")
        schema.create(database, {}, version)
        database.execute(f"PRAGMA user_version = {version}")
        database.execute("COMMIT")
    page = bytearray(scratch.read_bytes()[:size])
    page[28:32] = num_pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no list of free pages, which only writing would need
    return bytes(page)


def _read_tables(
    copy: Path,
    version: int,
    space: SearchSpace | None,
    maximise: bool | None,
    *,
    verify: bool,
    is_page_new: bool = False,
) -> Remains:
    lost: Counter[str] = Counter()
    notes: list[str] = []
    with _reading(copy) as database:
        own = _read_problem(database, version, verify=verify)
        known: tuple[KnownSpace, ...] = ()
        if own is not None:
            space, known, maximise = own
        elif space is not None:
            notes.append("the search space cannot be read, so the one that was given is used")
    task_rows = _rows(copy, "tasks", TASK_CONTENT, version, lost, notes)
    trial_rows = _rows(copy, "trials", TRIAL_CONTENT, version, lost, notes)
    report_rows = _report_rows(copy, version, lost, notes, is_page_new=is_page_new)
    spaces = [one.space for one in known] if known or space is None else [space]

    def params_fn(text: str) -> rows.View:
        params = rows.plain_params(text)
        return rows.View(valid_in(spaces, params) if spaces else params)

    tasks: dict[int, TaskRecord] = {}
    for row in task_rows:
        try:
            tasks[row[0]] = rows.checked_task(*row, verify=verify)
        except DamagedRow as error:
            lost[f"task: {_reason(error)}"] += 1
    trials: list[TrialRecord] = []
    for row in trial_rows:
        try:
            trials.append(rows.checked_trial(params_fn, *row, verify=verify))
        except DamagedRow as error:
            lost[f"trial: {_reason(error)}"] += 1
    curves: dict[int, Curve] = {}
    for row in report_rows:
        try:
            trial_id, step, score = checked_report(*row, verify=verify)
            curves.setdefault(trial_id, {})[step] = score
        except DamagedRow as error:
            lost[f"report: {_reason(error)}"] += 1
    num_matching = sum(row[-1] == row_checksum(row[1:-1]) for row in (*task_rows, *trial_rows))
    worth = (version > 1 and num_matching > 0, len(tasks) + len(trials), own is not None)
    return Remains(space, known, maximise is not False, tasks, trials, curves, lost, notes, worth)


def _reason(error: DamagedRow) -> str:
    return str(error).partition(": ")[2]


def _read_problem(
    database: rows.MemoryConnection, version: int, *, verify: bool
) -> tuple[SearchSpace, tuple[KnownSpace, ...], bool] | None:
    try:
        if verify and version > 1:
            meta = rows.read_meta(database)
        else:
            meta = dict(database.execute("SELECT key, value FROM meta NOT INDEXED LIMIT 100").fetchall())
        space, maximise = rows.read_problem(meta)
        return space, read_spaces(meta), maximise
    except (DamagedRow, *SQLITE_ERRORS):
        return None


@contextlib.contextmanager
def _reading(copy: Path) -> Iterator[rows.MemoryConnection]:
    with contextlib.closing(connect(str(copy))) as database:
        database.execute("PRAGMA query_only = ON")
        # A text that is not UTF-8 must invalidate only its own row, whose checksum then does not match.
        database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        yield database


def _rows(
    copy: Path, table: str, content: tuple[str, ...], version: int, lost: Counter[str], notes: list[str]
) -> list[tuple[Any, ...]]:
    """Return the readable rows of a table: id, content and checksum."""
    columns = _columns(content, version)
    with _reading(copy) as database:
        found, is_damaged = _scan(database, table, columns, copy.stat().st_size)
        listed = None
        with contextlib.suppress(*SQLITE_ERRORS):
            question = f"SELECT id FROM {table} INDEXED BY sqlite_autoindex_{table}_1"
            listed = {row[0] for row in itertools.islice(database.execute(question), copy.stat().st_size)}
    if is_damaged or (listed is not None and listed - set(found)):
        for row in _rows_of_lost_pages(copy, table, columns):
            # Pages that are no longer in use may hold deleted rows. The index lists the ids that exist.
            is_missing = row[0] not in found and (listed is None or row[0] in listed)
            if is_missing and _is_of(table, _completed(content, row, version)):
                found[row[0]] = row
        missing = 0 if listed is None else len(listed - set(found))
        if missing:
            lost[f"{table[:-1]}: its page cannot be read"] += missing
        if listed is None:
            notes.append(f"a page of the {table} cannot be read, so there may have been more of them")
    return [_completed(content, row, version) for row in found.values()]


def _report_rows(
    copy: Path, version: int, lost: Counter[str], notes: list[str], *, is_page_new: bool
) -> list[tuple[Any, ...]]:
    """Return the readable reports: id, content and checksum.

    A migration creates the table, so its root page is not known if page 1 is new. All pages are then searched
    for reports.
    """
    if "reports" not in schema.TABLES[version]:
        return []
    if not is_page_new:
        return _rows(copy, "reports", REPORT_CONTENT, version, lost, notes)
    rows_there = _rows_of_lost_pages(copy, "reports", _columns(REPORT_CONTENT, version))
    return list({row[0]: row for row in rows_there if _is_of("reports", row)}.values())


def _columns(content: tuple[str, ...], version: int) -> str:
    return f"id, {', '.join(schema.columns_of(version, content))}{', checksum' if version > 1 else ''}"


def _completed(content: tuple[str, ...], row: tuple[Any, ...], version: int) -> tuple[Any, ...]:
    """Return a row with all columns of the newest format; format 1 has neither claims nor checksums."""
    there = dict(zip(schema.columns_of(version, content), row[1:], strict=False))
    full = [there.get(column, 0 if column == "claims" else None) for column in content]
    return row[0], *full, row[-1] if version > 1 else row_checksum(full)


def _is_of(table: str, row: tuple[Any, ...]) -> bool:
    """Return whether a row is valid in this table and its checksum matches."""
    try:
        if table == "tasks":
            rows.checked_task(*row)
        elif table == "trials":
            rows.checked_trial(rows.plain_view, *row)
        else:
            checked_report(*row)
    except DamagedRow:
        return False
    return True


def _rows_of_lost_pages(copy: Path, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of all pages that look like a leaf of a table, whether they are still linked or not.

    Each page is written over the root page of the table, so that SQLite reads it as the whole table. Rows of
    other tables are included; `_is_of` filters them out.
    """
    with _reading(copy) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    num_pages = copy.stat().st_size // size
    if not 1 < root <= num_pages:
        return
    with open(copy, "r+b", buffering=0) as file:
        file.seek((root - 1) * size)
        original = file.read(size)
        try:
            for number in range(1, num_pages):
                file.seek(number * size)
                page = file.read(size)
                if page[0] != _LEAF:
                    continue
                file.seek((root - 1) * size)
                file.write(page if number != root - 1 else original)
                with contextlib.suppress(*SQLITE_ERRORS), _reading(copy) as database:
                    yield from _scan(database, table, columns, size)[0].values()
        finally:
            file.seek((root - 1) * size)
            file.write(original)


def _scan(
    database: sqlite3.Connection, table: str, columns: str, size: int
) -> tuple[dict[int, tuple[Any, ...]], bool]:
    """Return all readable rows, by id, and whether some page could not be read.

    A range of ids is read in both directions, each until an error. The remaining middle is split in two
    ranges. This finds all rows except those on damaged pages.
    """
    found: dict[int, tuple[Any, ...]] = {}
    whole = (-(2**63), 2**63 - 1)
    ranges: list[tuple[int, int]] = [whole]
    steps_left, bytes_left, problem = 1000 + size // 8, 8 * size + LONGEST_TEXT, False
    question = f"SELECT {columns} FROM {table} NOT INDEXED WHERE id BETWEEN ? AND ? ORDER BY id "

    def read(low: int, high: int, order: str) -> tuple[int | None, bool]:
        """Read until an error; return the last id, if any, and whether the end of the range was reached."""
        nonlocal bytes_left
        last = None
        try:
            for row in database.execute(question + order, (low, high)):
                bytes_left -= sum(len(value) for value in row if isinstance(value, str | bytes))
                # A damaged or hostile tree may contain a cycle of pages.
                is_next = last is None or (row[0] > last if order == "ASC" else row[0] < last)
                if not is_next or bytes_left < 0:
                    return last, False
                last = row[0]
                found[last] = row
        except SQLITE_ERRORS:
            return last, False
        return last, True

    while ranges and steps_left > 0 and bytes_left >= 0:
        steps_left -= 1
        low, high = ranges.pop()
        upwards, done = read(low, high, "ASC")
        if done:
            continue
        problem = True
        downwards, done = read(low, high, "DESC")
        if done:
            continue
        first = low if upwards is None else upwards + 1
        last = high if downwards is None else downwards - 1
        if (low, high) == whole:
            first, last = max(first, 1), min(last, _largest_id(database, table, size))
        if first < last:
            middle = (first + last) // 2
            ranges += [(middle + 1, last), (first, middle)]
        elif first == last and low < high:
            ranges.append((first, last))
    return found, problem


def _largest_id(database: sqlite3.Connection, table: str, size: int) -> int:
    """Return the largest possible id of a table: SQLite's counter, or a bound from the size of the file."""
    with contextlib.suppress(*SQLITE_ERRORS):
        found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        if found is not None and type(found[0]) is int and 0 < found[0] < 2**40:
            return found[0]
    return size // 16
