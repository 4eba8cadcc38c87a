"""Damaged and malicious memory files: opening raises an error that names the file and does not change it."""

import contextlib
import json
import os
import random
import sqlite3
import stat
import sys
import threading
from dataclasses import replace

import pytest

from jlibo.tune.memory import file as memory_file
from jlibo.tune.memory import rows as rows
from jlibo.tune.memory.memory import Memory, MemoryFileError
from jlibo.tune.memory.records import TASK_CONTENT, TRIAL_CONTENT, row_checksum
from jlibo.tune.space.space import Categorical, Float, SearchSpace
from tests import forked

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
POINT = {"alpha": 0.5, "lam": 1.0, "kind": "a"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.db"


def fill(path, num_tasks=4, num_trials=40, seed=0):
    chance = random.Random(seed)
    with Memory.open(path, space=SPACE) as memory:
        for number in range(num_tasks):
            task = memory.task(f"task {number}", budget=10 + number, seed=number)
            points = [
                POINT | {"alpha": chance.random(), "lam": 10 ** chance.uniform(-4, 4)}
                for _ in range(num_trials)
            ]
            scores = [None if chance.random() < 0.1 else chance.gauss(0, 1) for _ in points]
            memory.add_finished(task.id, zip(points, scores, strict=True))
            memory.add_trial(task.id, POINT, explored=True, owner=f"host:start:{number}:x")
        return content_of(memory)


def content_of(memory):
    tasks, trials = memory.snapshot()
    assert [trial for task in tasks for trial in memory.trials(task.id)] == trials
    return tasks, trials, memory.space, memory.maximise


def change(path, *statements):
    """Change a file as another program would, without CHECK constraints and foreign keys."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            database.execute(*([statement] if isinstance(statement, str) else statement))


def seal(path):
    """Give all rows valid checksums, as an attacker with knowledge of the format could."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for table, columns in (("tasks", TASK_CONTENT), ("trials", TRIAL_CONTENT)):
            found = database.execute(f"SELECT id, {', '.join(columns)} FROM {table}").fetchall()
            for row_id, *content in found:
                database.execute(
                    f"UPDATE {table} SET checksum = ? WHERE id = ?", (row_checksum(content), row_id)
                )


# --- bytes --------------------------------------------------------------------------------------------------


def flip_and_open(path, num_flips, seed):
    """Return the number of flips without an effect on what is read, and the number of errors."""
    before = fill(path)
    data = path.read_bytes()
    num_pages = len(data) // 4096
    chance, same, errors = random.Random(seed), 0, 0
    for number in range(num_flips):
        damaged = bytearray(data)
        page = number % num_pages  # in every page
        place = 4096 * page + chance.randrange(4096)
        if chance.random() < 0.8:
            damaged[place] ^= 1 << chance.randrange(8)
        else:
            end = place + chance.randint(1, 8)
            damaged[place:end] = chance.randbytes(len(damaged[place:end]))
        path.write_bytes(damaged)
        try:
            with Memory.open(path, space=SPACE) as memory:
                assert content_of(memory) == before, f"byte {place}"
                memory.revision()
            same += 1
        except MemoryFileError as error:
            errors += str(path) in str(error)
        assert path.read_bytes() == damaged, f"byte {place}"
        for left in os.listdir(path.parent):
            assert left == path.name
    assert same + errors == num_flips
    return same, errors


def test_flipped_bytes_have_no_effect_or_raise(path):
    same, errors = flip_and_open(path, num_flips=150, seed=1)
    assert same > 10 and errors > 50  # flips in unused space, and in content


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_flipped_bytes_have_no_effect_or_raise(path, seed):
    same, errors = flip_and_open(path, num_flips=2000, seed=seed)
    assert same > 100 and errors > 700


def test_damaged_index_raises(path):
    """SQLite's quick check covers only tables; with a damaged index, a lookup finds other rows."""
    fill(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        question = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_tasks_1'"
        (root,) = database.execute(question).fetchone()
    data = bytearray(path.read_bytes())
    place = data.index(b"task 2", 4096 * (root - 1), 4096 * root)
    data[place : place + 6] = b"task 9"
    path.write_bytes(data)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA quick_check").fetchone() == ("ok",)
    with pytest.raises(MemoryFileError, match="is damaged"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == data


# --- rows ---------------------------------------------------------------------------------------------------


BAD_TRIALS = {
    "a space that is not the memory's": {"params": json.dumps({"beta": 1})},
    "a missing parameter": {"params": json.dumps({"alpha": 0.5})},
    "a value out of range": {"params": json.dumps(POINT | {"alpha": 7})},
    "a value of another type": {"params": json.dumps(POINT | {"alpha": [0.5]})},
    "no object": {"params": "[1, 2]"},
    "no JSON": {"params": "{"},
    "nothing": {"params": ""},
    "a key twice": {"params": '{"alpha": 0.5, "alpha": 0.5, "kind": "a", "lam": 1.0}'},
    "NaN": {"params": '{"alpha": NaN, "kind": "a", "lam": 1.0}'},
    "deep lists": {"params": "[" * 200_000},
    "deep objects": {"params": '{"a":' * 100_000 + "1" + "}" * 100_000},
    "many digits": {"params": '{"alpha": ' + "9" * 5000 + "}"},
    "bytes": {"params": b"\xff\x00"},
    "text that is not UTF-8": {"owner": ("CAST(? AS TEXT)", b"\xff\xfe"), "state": "pending"},
    "no number": {"number": "many"},
    "a number below zero": {"number": -5},
    "a bad time": {"created": "yesterday"},
    "a time without a zone": {"created": "2026-03-01T09:30:00"},
    "a time that is a number": {"created": 5},
    "an empty time": {"finished": ""},
    "an infinite score": {"score": 9e999},
    "a score that is text": {"score": "high"},
    "no score": {"score": None},
    "another state": {"state": "done"},
    "claims below zero": {"claims": -1},
    "claims as text": {"claims": "x"},
    "a task that is not there": {"task_id": 99},
}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", BAD_TRIALS)
def test_damaged_trial_raises(path, name, sealed):
    fill(path, num_tasks=2, num_trials=5)
    for column, value in BAD_TRIALS[name].items():
        mark, value = value if isinstance(value, tuple) else ("?", value)
        change(path, (f"UPDATE trials SET {column} = {mark} WHERE id = 2", (value,)))
    if sealed and name != "text that is not UTF-8":
        seal(path)
    before = path.read_bytes()
    with pytest.raises(MemoryFileError) as caught, Memory.open(path, space=SPACE) as memory:
        memory.snapshot()
    message = str(caught.value)
    assert f"'{path}' is damaged (" in message and "it is unchanged" in message
    assert f"`jlibo memory salvage {path} NEW`" in message
    assert len(message) < 1000
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", ""),
        ("name", b"x"),
        ("name", "x" * 100_000),
        ("budget", -1),
        ("budget", "x"),
        ("source", "me"),
        ("seed", -1),
        ("seed", 0.5),
        ("created", "now"),
        ("changed", 2**63 - 1),
        ("changed", "x"),
    ],
)
def test_damaged_task_raises(path, column, value):
    fill(path, num_tasks=2, num_trials=5)
    change(path, (f"UPDATE tasks SET {column} = ? WHERE id = 2", (value,)))
    seal(path)
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match="is damaged"), Memory.open(path, space=SPACE) as memory:
        _ = memory.snapshot(), memory.revision()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta WHERE key = 'deleted'",
        "DELETE FROM meta WHERE key = 'checksum'",
        "UPDATE meta SET value = '99999999999999999999' WHERE key = 'deleted'",
        "UPDATE meta SET value = replace(value, '10000.0', '20000.0') WHERE key = 'space'",
    ],
)
def test_damaged_metadata_raises(path, statement):
    fill(path, num_tasks=1, num_trials=2)
    change(path, statement)
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match="is damaged"), Memory.open_existing(path) as memory:
        memory.add_finished(1, [(POINT, 1.0)])
    assert path.read_bytes() == before


def test_damaged_claim_raises_before_use(path):
    fill(path, num_tasks=1, num_trials=1)
    with Memory.open(path, space=SPACE) as memory:
        change(path, "UPDATE trials SET claimed = 'long ago' WHERE state = 'pending'")
        before = path.read_bytes()
        for use in (
            lambda: memory.claim_pending(1, owner="me"),
            lambda: memory.release("host:start:0:x"),
            lambda: memory.tell(2, 1.0),
        ):
            with pytest.raises(MemoryFileError, match="is damaged"):
                use()
        assert path.read_bytes() == before  # the damaged row did not get a valid checksum


def test_minus_zero_and_unusual_text_keep_their_checksums(path):
    with Memory.open(path, space=SPACE) as memory:
        for name in ("ä ♥ \U0001fae8", "a\0b", "\u202e", "' \" \\"):
            task = memory.task(name)
            memory.add_finished(
                task.id, [(POINT, -0.0), (POINT | {"alpha": -0.0}, 5e-324), (POINT, 2**53 + 2)]
            )
            trial = memory.add_trial(task.id, POINT, explored=False, owner=name)
            told = memory.tell(trial.id, -0.0)
            with memory.writing() as database:
                rows.insert_trial(database, replace(told, number=9, score=-0.0))
    with Memory.open(path, space=SPACE) as memory:
        assert len(memory.all_trials()) == 20


# --- schema -------------------------------------------------------------------------------------------------


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
ESCAPE = "\x1b[31mred"
HOSTILE = {
    "a view for a table": [
        "DROP TABLE meta",
        f"CREATE VIEW meta AS {ENDLESS} SELECT 'k' || x AS key, hex(zeroblob(1000)) AS value FROM n",
    ],
    "a trigger": ["CREATE TRIGGER t AFTER UPDATE ON trials BEGIN UPDATE trials SET score = 0.0; END"],
    "another table": ["CREATE TABLE more (a)"],
    "another index": ["CREATE INDEX more ON trials (score)"],
    "an index of an expression": ["CREATE INDEX more ON trials (abs(score)) WHERE score > 0"],
    "another column": ["ALTER TABLE trials ADD COLUMN more TEXT"],
    "a computed column": ["ALTER TABLE tasks ADD COLUMN more AS (hex(zeroblob(100000000)))"],
    "a missing table": ["DROP TABLE trials"],
    "a renamed column": ["ALTER TABLE trials RENAME COLUMN owner TO holder"],
    "a virtual table": ["CREATE VIRTUAL TABLE more USING fts4(a)"],
    "statistics": ["ANALYZE"],
    "a name with an escape sequence": [f'CREATE TABLE "{ESCAPE}" (a)'],
    "a CHECK less": [
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'CHECK (owner IS NULL OR state = ''pending'')', "
        "'CHECK (1)') WHERE name = 'trials'",
    ],
    "a CHECK that runs for ever": [
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'CHECK (explored IN (0, 1))', "
        "'CHECK (length(hex(zeroblob(500000000))) > 0)') WHERE name = 'trials'",
    ],
    "a schema that is no SQL": [
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = 'CREATE TABLE {ESCAPE} (' WHERE name = 'trials'",
    ],
    "a table under another's pages": [
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'tasks') "
        "WHERE name = 'meta'",
    ],
}

# Run in a process with limited memory and time, because such files could exhaust those of the test process.
OPEN_ALL = """
import resource, sys
from jlibo.tune.memory import Memory, MemoryFileError
from jlibo.tune.space import Categorical, Float, SearchSpace
SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sys.argv[1:]:
    for opening in (lambda: Memory.open(path, space=SPACE), lambda: Memory.open_existing(path, write=False)):
        try:
            with opening() as memory:
                memory.snapshot()
            print("opened")
        except MemoryFileError as error:
            print(ascii(str(error)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_foreign_schema_is_rejected_before_use(tmp_path):
    paths = []
    for number, statements in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{number}.db")
        fill(paths[-1], num_tasks=2, num_trials=3)
        change(paths[-1], *statements)
    before = [path.read_bytes() for path in paths]
    done = forked.run(["-c", OPEN_ALL, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    messages = [eval(line) for line in done.stdout.splitlines()]
    assert len(messages) == 2 * len(paths)
    for name, path, pair in zip(HOSTILE, paths, zip(messages[::2], messages[1::2], strict=True), strict=True):
        for message in pair:
            assert f"'{path}' is damaged (" in message, name
            assert message.isprintable(), name
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("name", ["a trigger", "another table", "another column"])
def test_schema_change_while_open_raises(path, name):
    fill(path, num_tasks=1, num_trials=3)
    with Memory.open(path, space=SPACE) as memory:
        trial = memory.add_trial(1, POINT, explored=False, owner=None)
        change(path, *HOSTILE[name])
        before = path.read_bytes()
        for use in (lambda: memory.tell(trial.id, 0.75), memory.snapshot, lambda: memory.task("new")):
            with pytest.raises(MemoryFileError, match="is damaged"):
                use()
        assert path.read_bytes() == before
    # Rejected files can be used again after the foreign part is removed.
    if name == "a trigger":
        change(path, "DROP TRIGGER t")
        with Memory.open(path, space=SPACE) as memory:
            assert memory.tell(trial.id, 0.75).score == 0.75


def test_text_of_many_megabytes_raises(path):
    fill(path, num_tasks=1, num_trials=1)
    change(path, ("UPDATE trials SET params = ? WHERE id = 1", ('"' + "x" * 2**25 + '"',)))
    before = path.stat().st_size
    with pytest.raises(MemoryFileError, match="is damaged"), Memory.open(path, space=SPACE) as memory:
        memory.snapshot()
    assert path.stat().st_size == before


def test_connection_cannot_attach_or_map(path):
    fill(path, num_tasks=1, num_trials=1)
    with Memory.open(path, space=SPACE) as memory, memory.writing() as database:
        assert database.getlimit(sqlite3.SQLITE_LIMIT_ATTACHED) == 0
        assert database.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert database.execute("PRAGMA cell_size_check").fetchone() == (1,)
        assert database.execute("PRAGMA mmap_size").fetchone() in [(0,), None]


# --- permissions --------------------------------------------------------------------------------------------


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_new_file_has_mode_600_and_existing_file_keeps_its_mode(tmp_path):
    path = tmp_path / "new.db"
    with Memory.open(path, space=SPACE) as memory:
        assert mode_of(path) == 0o600
        with memory.writing() as database:
            rows.insert_task(database, rows.TaskRecord(0, "x", None, "tuner", 0, "2026-03-01T09:30:00Z"))
            assert mode_of(f"{path}-journal") == 0o600
    os.chmod(path, 0o640)
    with Memory.open(path, space=SPACE) as memory:
        memory.task("y")
    assert mode_of(path) == 0o640
    empty = tmp_path / "empty.db"
    empty.touch()
    os.chmod(empty, 0o644)
    Memory.open(empty, space=SPACE).close()
    assert mode_of(empty) == 0o644
    shared = tmp_path / "shared.db"
    Memory.open(shared, space=SPACE, file_mode=0o664).close()
    assert mode_of(shared) == 0o664
    for bad in (0o066, 0o1600, "600", None):
        kind = "permissions" if isinstance(bad, int) else "a whole number"
        with pytest.raises(ValueError, match=f"`file_mode` should be {kind}"):
            Memory.open(tmp_path / "bad.db", space=SPACE, file_mode=bad)
    assert not (tmp_path / "bad.db").exists()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "far.db")
    Memory.open(link, space=SPACE).close()
    assert mode_of(tmp_path / "far.db") == 0o600 and link.is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_new_file_is_never_readable_by_others_and_umask_is_unchanged(tmp_path, monkeypatch):
    """The file exists with its mode before SQLite opens it, for any umask."""
    modes = []
    real = memory_file.connect

    def connect(path, **options):
        if path is not None:
            modes.append(mode_of(path))
        return real(path, **options)

    monkeypatch.setattr(memory_file, "connect", connect)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
    threads = [
        threading.Thread(target=lambda: Memory.open(tmp_path / "m.db", space=SPACE).close()) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert modes == [0o600] * 4
