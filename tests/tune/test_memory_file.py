"""The file of a memory: which files are accepted. All others are left unchanged, byte for byte."""

import contextlib
import gzip
import json
import os
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from jlibo.sqlite_file import connection
from jlibo.tune.memory import file as memory_file
from jlibo.tune.memory import schema as memory_schema
from jlibo.tune.memory.memory import Memory, MemoryFileError, MemoryMismatch, TaskRecord
from jlibo.tune.memory.salvage import salvage
from jlibo.tune.space.space import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))


def params(alpha=0.5, lam=1.0, kind="a"):
    return {"alpha": alpha, "kind": kind, "lam": lam}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a memory? #1%.db"  # characters that must be quoted in a URI


def filled(path, num_trials=3):
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("iris", budget=10, seed=7)
        memory.add_finished(task.id, [(params(alpha=i / num_trials), i) for i in range(num_trials)])
    return path


def test_memory_in_ram_and_closed_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (None, ":memory:"):
        memory = Memory.open(name, space=SPACE)
        memory.add_finished(memory.task("iris").id, [(params(), 1.0)])
        assert len(memory.all_trials()) == 1 and memory.path is None
        memory.close()
        memory.close()
        with pytest.raises(MemoryFileError, match="closed"):
            memory.tasks()
    assert os.listdir(tmp_path) == []


def test_path_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Memory.open("here.db", space=SPACE) as memory:
        monkeypatch.chdir("/")
        memory.task("iris")
    assert os.listdir(tmp_path) == ["here.db"]
    assert memory.path == str(tmp_path / "here.db")


def test_empty_file_becomes_a_memory_of_one_file(path):
    path.touch()
    with pytest.raises(MemoryFileError, match="it is empty"):
        Memory.open_existing(path)
    assert path.stat().st_size == 0
    filled(path)
    assert os.listdir(path.parent) == [path.name]
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert database.execute("PRAGMA application_id").fetchone() == (memory_schema.APPLICATION_ID,)
    database.close()


def test_memory_of_another_direction_or_problem_raises(path):
    filled(path)
    before = path.read_bytes()
    with pytest.raises(MemoryMismatch, match="'minimise' is asked for, 'maximise' is in the") as caught:
        Memory.open(path, space=SPACE, maximise=False)
    assert str(path) in str(caught.value) and "another problem" in str(caught.value)
    with pytest.raises(MemoryMismatch, match="its parameters are 'alpha', 'kind', 'lam', and the"):
        Memory.open(path, space=SearchSpace(depth=Int(1, 9, default=2)))
    assert path.read_bytes() == before
    reordered = SearchSpace(dict(reversed(list(SPACE.items()))))
    Memory.open(path, space=reordered).close()


def other_sqlite(path, *statements, journal="delete"):
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {journal}")
    for statement in statements:
        database.execute(statement)
    return database


@pytest.mark.parametrize(
    "content", [b"x", b"{}\n", b"alpha,lam\n" * 1000, b"\0" * 4096, b"SQLite format 3\0" + b"\0" * 4080]
)
def test_file_that_is_not_sqlite_is_unchanged(path, content):
    path.write_bytes(content)
    with pytest.raises(MemoryFileError, match=r"is not a memory of jlibo, it is not an SQLite file: give"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "statements",
    [["CREATE TABLE meta (key, value)"], ["PRAGMA user_version = 1"], ["CREATE TABLE a (b)", "DROP TABLE a"]],
)
def test_sqlite_file_of_another_program_is_unchanged(path, statements):
    other_sqlite(path, *statements).close()
    before = path.read_bytes()
    for mistaken in (lambda: Memory.open(path, space=SPACE), lambda: Memory.open_existing(path)):
        with pytest.raises(MemoryFileError, match="an SQLite file of another program: give another path"):
            mistaken()
    assert path.read_bytes() == before


def test_wal_file_of_another_program_is_unchanged(path, tmp_path):
    """A killed program in WAL mode leaves a log, which SQLite removes when it first opens the file."""
    running = other_sqlite(path, "CREATE TABLE a (b)", "INSERT INTO a VALUES (1)", journal="wal")
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(tmp_path / name, killed / name)
    running.close()
    before = {file.name: file.read_bytes() for file in killed.iterdir()}
    with pytest.raises(MemoryFileError, match="another program"):
        Memory.open(killed / path.name, space=SPACE)
    assert {file.name: file.read_bytes() for file in killed.iterdir()} == before


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_file_raises_and_is_unchanged(path, share):
    filled(path, num_trials=300)
    with open(path, "r+b") as file:
        file.truncate(int(path.stat().st_size * share))
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match=r"is damaged .*put back a copy|is not a memory of jlibo"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == before


def test_damage_inside_the_file_raises_on_opening(path):
    filled(path, num_trials=300)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(MemoryFileError, match="is damaged"):
        Memory.open_existing(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta WHERE key = 'space'",
        "UPDATE meta SET value = '{' WHERE key = 'space'",
        "UPDATE meta SET value = '{\"version\": 9, \"parameters\": {}}' WHERE key = 'space'",
        "UPDATE meta SET value = 'yes' WHERE key = 'maximise'",
        "DROP TABLE meta",
    ],
)
def test_unreadable_metadata_raises(path, statement):
    filled(path)
    other_sqlite(path, statement).close()
    with pytest.raises(MemoryFileError, match=r"is damaged|no such table"):
        Memory.open(path, space=SPACE)


def test_edited_row_raises_memory_file_error(path):
    filled(path)
    other_sqlite(path, "UPDATE trials SET params = '{' WHERE number = 1").close()
    with Memory.open(path, space=SPACE) as memory, pytest.raises(MemoryFileError, match="is damaged"):
        memory.all_trials()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "'done'"),
        ("score", "NULL"),
        ("score", "'high'"),
        ("score", "9e999"),
        ("number", "-1"),
        ("number", "0.5"),
        ("explored", "2"),
        ("finished", "NULL"),
        ("owner", "'me'"),
        ("params", "NULL"),
        ("task_id", "99"),
    ],
)
def test_schema_constraints_reject_invalid_rows(path, column, value):
    filled(path)
    database = other_sqlite(path, "PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(f"UPDATE trials SET {column} = {value} WHERE number = 1")
    database.close()


def test_newer_format_raises(path):
    filled(path)
    other_sqlite(path, "PRAGMA user_version = 5").close()
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match=r"newer jlibo \(format 5, .* 4\): update jlibo"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == before


# The schema of format 1.
VERSION_1 = (
    """CREATE TABLE meta (
        key TEXT PRIMARY KEY NOT NULL,
        value TEXT NOT NULL CHECK (typeof(value) = 'text')
    )""",
    """CREATE TABLE tasks (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text'),
        budget INTEGER CHECK (typeof(budget) IN ('integer', 'null')),
        source TEXT NOT NULL CHECK (source IN ('tuner', 'added')),
        seed INTEGER NOT NULL CHECK (typeof(seed) = 'integer'),
        changed INTEGER NOT NULL DEFAULT 0 CHECK (typeof(changed) = 'integer'),
        created TEXT NOT NULL CHECK (typeof(created) = 'text')
    )""",
    """CREATE TABLE trials (
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
        finished TEXT CHECK (typeof(finished) IN ('text', 'null')),
        UNIQUE (task_id, number),
        CHECK ((state = 'complete') = (score IS NOT NULL)),
        CHECK ((state = 'pending') = (finished IS NULL)),
        CHECK (owner IS NULL OR state = 'pending')
    )""",
)
TIME = "2026-03-01T09:30:00.125000Z"


def version_1(path):
    """Write a memory of format 1 with a complete, a failed, an owned pending and a free pending trial."""
    database = other_sqlite(path, "BEGIN", *VERSION_1)
    meta = {"space": json.dumps(SPACE.spec()), "maximise": "1", "jlibo": "0.1.0", "deleted": "3"}
    database.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))
    database.execute("INSERT INTO tasks VALUES (4, 'iris', 20, 'tuner', 5, 7, ?)", (TIME,))
    point = json.dumps(params(), sort_keys=True)
    database.executemany(
        "INSERT INTO trials VALUES (?, 4, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
        [
            (2, 0, point, "complete", 0.75, None, None, TIME, TIME),
            (3, 1, point, "failed", None, None, None, TIME, TIME),
            (5, 2, point, "pending", None, "me", TIME, TIME, None),
            (6, 3, point, "pending", None, None, None, TIME, None),
        ],
    )
    database.execute(f"PRAGMA application_id = {0x6A6C6962}")
    database.execute("PRAGMA user_version = 1")
    database.execute("COMMIT")
    database.close()
    return path


def schema_of(path):
    with contextlib.closing(other_sqlite(path)) as database:
        rows = database.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
    return [(*row, sql and re.sub(r"\s+", "", sql)) for *row, sql in rows]


def test_migration_from_format_1_keeps_all_content(path, tmp_path):
    version_1(path)
    with Memory.open(path, space=SPACE) as memory:
        (task,), trials = memory.snapshot()
        assert task == TaskRecord(4, "iris", 20, "tuner", 5, TIME)
        facts = [(t.id, t.number, t.state, t.score, t.owner, t.claims) for t in trials]
        assert facts == [
            (2, 0, "complete", 0.75, None, 0),
            (3, 1, "failed", None, None, 0),
            (5, 2, "pending", None, "me", 1),
            (6, 3, "pending", None, None, 0),
        ]
        assert all(t.params == params() and t.task_id == 4 and t.created == TIME for t in trials)
        assert memory.revision() == 7
        assert memory.add_trial(4, params(), explored=False, owner=None).id == 7
    filled(tmp_path / "new.db")
    assert schema_of(path) == schema_of(tmp_path / "new.db")  # a migrated file has the schema of a new one
    with contextlib.closing(other_sqlite(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (memory_schema.FORMAT_VERSION,)


def test_file_of_format_2_opens(path):
    """A file that jlibo 0.1 wrote before memories could have several search spaces."""
    packed = Path(__file__).parents[1] / "data" / "memory_format_2.db.gz"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    with Memory.open_existing(path) as memory:
        tasks, trials = memory.snapshot()
        assert [(task.name, task.budget, task.seed) for task in tasks] == [
            ("iris", 20, 5),
            ("wine ♥", None, 0),
        ]
        assert [(t.number, t.state, t.score) for t in trials] == [
            (0, "complete", 0.75),
            (1, "complete", 0.25),
            (2, "failed", None),
            (3, "pending", None),
            (0, "complete", 1 / 3),
            (1, "complete", -2.0),
        ]
        base = {"kernel": "linear", "layers": (8, 8), "width": 8, "depth": 3}
        assert trials[0].params == base
        assert trials[1].params == base | {"kernel": "rbf", "gamma": 0.5, "layers": None}
        assert memory.spaces == [memory.space] and memory.space["width"] == Int(4, 16, step=4)
        assert not memory.maximise and memory.revision() > 0
    with contextlib.closing(other_sqlite(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (memory_schema.FORMAT_VERSION,)


def test_migration_is_atomic(path, monkeypatch):
    version_1(path)
    before = path.read_bytes()
    monkeypatch.setattr(memory_schema, "MIGRATIONS", {})
    with pytest.raises(MemoryFileError, match="has format 1, which this jlibo cannot bring to 4"):
        Memory.open(path, space=SPACE)

    def failing(database):
        memory_schema._from_1_to_2(database)
        raise OSError("the lights went out")

    monkeypatch.setattr(memory_schema, "MIGRATIONS", {1: failing})
    with pytest.raises(OSError, match="lights"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == before
    monkeypatch.undo()
    with Memory.open_existing(path, write=False) as memory:
        assert len(memory.all_trials()) == 4


def test_unusable_paths_raise(tmp_path):
    for path, words in [
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "such.db", "there is no folder"),
        ("/dev/null", "is not a file on a disk"),
        ("a\0b", "cannot look at"),
        ("/proc/memory.db", "cannot be opened for writing"),
    ]:
        with pytest.raises(MemoryFileError, match=words):
            Memory.open(path, space=SPACE)
    with pytest.raises(MemoryFileError, match="there is no memory at"):
        Memory.open_existing(tmp_path / "none.db")
    assert os.listdir(tmp_path) == []


def test_lock_timeout_raises(path, monkeypatch):
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.1)
    filled(path)
    with Memory.open(path, space=SPACE) as memory:
        other = other_sqlite(path, "BEGIN IMMEDIATE")
        with pytest.raises(MemoryFileError, match=r"was locked by another process for more than 0.1 s"):
            memory.task("wine")
        with pytest.raises(MemoryFileError, match="was locked"):
            Memory.open(path, space=SPACE)
        assert len(memory.all_trials()) == 3  # reading still works
        other.execute("ROLLBACK")
        other.close()
        memory.task("wine")


def test_file_moved_or_replaced_while_open_raises(path, tmp_path):
    filled(path)
    with Memory.open(path, space=SPACE) as memory:
        os.replace(path, tmp_path / "moved.db")
        with pytest.raises(
            MemoryFileError, match="moved or deleted while it was in use: open the memory again"
        ):
            memory.task("wine")
        filled(path)
        with pytest.raises(MemoryFileError, match="moved or deleted"):
            memory.task("wine")


def test_write_to_a_full_database_is_rolled_back(path):
    filled(path)
    with Memory.open(path, space=SPACE) as memory:
        task, before = memory.tasks()[0], memory.snapshot()
        connection = memory._file._connection()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(MemoryFileError, match="the disk is full: free some space"):
            memory.add_finished(task.id, [(params(), 1.0)] * 1000)
        assert memory.snapshot() == before
        connection.execute("PRAGMA max_page_count = 100000")
        memory.add_finished(task.id, [(params(), 1.0)] * 1000)
    with Memory.open_existing(path) as memory:
        assert len(memory.all_trials()) == 1003


def test_damaged_file_of_an_older_format_is_not_migrated(path):
    for statement in (
        "UPDATE trials SET params = '{}' WHERE id = 3",
        "UPDATE trials SET created = 'then' WHERE id = 3",
        "UPDATE meta SET value = '{' WHERE key = 'space'",
    ):
        path.unlink(missing_ok=True)
        other_sqlite(version_1(path), statement).close()
        before = path.read_bytes()
        with pytest.raises(MemoryFileError, match="is damaged"):
            Memory.open(path, space=SPACE)
        assert path.read_bytes() == before


def test_damaged_file_of_an_older_format_can_be_salvaged(path, tmp_path):
    version_1(path)
    with open(path, "r+b") as file:
        file.write(b"\0" * 100)
    salvage(path, tmp_path / "new.db")
    with Memory.open(tmp_path / "new.db", space=SPACE) as memory:
        (task,), trials = memory.snapshot()
        assert (task.name, task.budget, task.seed) == ("iris", 20, 5)
        assert [(t.number, t.state, t.score) for t in trials] == [
            (0, "complete", 0.75),
            (1, "failed", None),
            (2, "pending", None),
            (3, "pending", None),
        ]


def test_read_only_file_of_an_older_format_can_be_read(path, monkeypatch):
    version_1(path)
    before = path.read_bytes()
    real = memory_file.connect

    def read_only(place, **options):
        return real(place, **({"mode": "ro"} if place is not None else {}))

    monkeypatch.setattr(memory_file, "connect", read_only)
    with Memory.open_existing(path, write=False) as memory:
        assert len(memory.all_trials()) == 4
        with pytest.raises(MemoryFileError, match="cannot be opened for writing"):
            memory.tell(5, 1.0)
    with pytest.raises(MemoryFileError, match="cannot be opened for writing"):
        Memory.open_existing(path)
    assert path.read_bytes() == before
