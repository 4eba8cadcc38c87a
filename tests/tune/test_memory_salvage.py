"""Salvage of damaged files: rows found are correct, lost ones are counted, and no file is partly written."""

import contextlib
import os
import random
import sqlite3
import stat
import textwrap

import pytest

from jlibo.tune.memory.memory import Memory, MemoryFileError
from jlibo.tune.memory.salvage import salvage
from jlibo.tune.space.space import Categorical, Float, SearchSpace
from tests import forked

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
POINT = {"alpha": 0.5, "lam": 1.0, "kind": "a"}
PAGE = 4096


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.db"


@pytest.fixture
def new(tmp_path):
    return tmp_path / "new.db"


def fill(path, num_tasks=4, num_trials=50, maximise=True):
    chance = random.Random(0)
    with Memory.open(path, space=SPACE, maximise=maximise) as memory:
        for number in range(num_tasks):
            task = memory.task(f"task {number}", budget=10 + number, seed=number)
            points = [POINT | {"alpha": chance.random()} for _ in range(num_trials)]
            memory.add_finished(task.id, [(point, chance.gauss(0, 1)) for point in points])
            memory.add_trial(task.id, POINT, explored=True, owner="me")
    return content_of(path)


def content_of(path):
    """Return the trials by task and number, and the tasks by name; without ids and owners."""
    with Memory.open_existing(path) as memory:
        tasks, trials = memory.snapshot()
    names = {task.id: task.name for task in tasks}
    facts = {
        (names[t.task_id], t.number): (t.params, t.state, t.score, t.explored, t.created, t.finished)
        for t in trials
    }
    return facts, {t.name: (t.budget, t.source, t.seed, t.created) for t in tasks}


def root_of(path, name):
    with contextlib.closing(sqlite3.connect(path)) as database:
        question = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        return database.execute(question, (name,)).fetchone()[0]


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            database.execute(statement)


def overwrite(path, place, data):
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(data)


def test_undamaged_memory_is_salvaged_completely(path, new):
    before = fill(path, maximise=False)
    report = salvage(path, new)
    assert report.complete and (report.num_tasks, report.num_trials) == (4, 204)
    assert content_of(new) == before
    with Memory.open_existing(new) as memory:
        assert memory.maximise is False
        assert all(trial.owner is None for trial in memory.all_trials())
        assert memory.revision() > 0
    assert sorted(os.listdir(path.parent)) == ["memory.db", "new.db"]
    if os.name == "posix":
        assert stat.S_IMODE(new.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["trials", "tasks", "sqlite_autoindex_trials_1", "sqlite_autoindex_tasks_1"])
@pytest.mark.parametrize("noise", [b"\0" * PAGE, b"\xff" * PAGE, random.Random(1).randbytes(PAGE)])
def test_lost_root_page_loses_only_its_own_rows(path, new, name, noise):
    trials, tasks = fill(path)
    overwrite(path, (root_of(path, name) - 1) * PAGE, noise)
    damaged = path.read_bytes()
    report = salvage(path, new)
    found, found_tasks = content_of(new)
    if name == "tasks":  # all tasks are on this page: names are lost, trials stay grouped by task
        assert report.lost == {"task: its page cannot be read": 4} and not report.complete
        assert sorted(found_tasks) == [f"salvaged task {number}" for number in (1, 2, 3, 4)]
        assert {(f"task {int(task[-1]) - 1}", n): v for (task, n), v in found.items()} == trials
    else:
        assert (found, found_tasks) == (trials, tasks)
        assert not report.lost
    assert path.read_bytes() == damaged


def test_lost_leaf_is_counted_exactly(path, new):
    trials, tasks = fill(path)
    data = path.read_bytes()
    leaf = next(n for n in range(len(data) // PAGE - 1, 0, -1) if data[n * PAGE] == 0x0D)
    overwrite(path, leaf * PAGE, b"\0" * PAGE)
    report = salvage(path, new)
    found, found_tasks = content_of(new)
    assert found_tasks == tasks and 0 < len(found) < len(trials)
    assert all(trials[key] == value for key, value in found.items())
    assert sum(report.lost.values()) == len(trials) - len(found) and not report.complete


@pytest.mark.parametrize("place", [0, 16, 18, 24, 28, 32, 40, 44, 56, 60, 68, 92, 100, 108, 3000])
def test_damaged_header_or_schema_loses_nothing(path, new, place):
    before = fill(path)
    overwrite(path, place, b"\xa5" * 12)
    damaged = path.read_bytes()
    salvage(path, new)
    assert content_of(new) == before
    assert path.read_bytes() == damaged


def test_hostile_schema_is_not_copied(path, new):
    before = fill(path)
    change(
        path,
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN UPDATE trials SET score = 0.0; END",
        "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    )
    report = salvage(path, new)
    assert content_of(new) == before
    assert not report.lost and "schema" in report.notes[0]


def test_damaged_rows_are_counted_by_reason(path, new):
    trials, _ = fill(path)
    change(
        path,
        "UPDATE trials SET score = 0.25 WHERE id = 3",
        "UPDATE trials SET params = '{' WHERE id IN (4, 5)",
        "UPDATE trials SET params = CAST(x'ff' AS TEXT) WHERE id = 6",
        "DELETE FROM tasks WHERE id = 4",
    )
    report = salvage(path, new)
    assert report.lost == {"trial: its checksum does not match": 4}
    assert report.notes == ("a task is lost and its trials are in 'salvaged task 4'",)
    found, _ = content_of(new)
    assert len(found) == len(trials) - 4 and ("task 0", 2) not in found

    os.unlink(new)
    report = salvage(path, new, verify=False)
    assert sum(report.lost.values()) == 3 and not any("checksum" in reason for reason in report.lost)
    assert content_of(new)[0]["task 0", 2][2] == 0.25


def test_unreadable_space_must_be_given(path, new):
    before = fill(path, maximise=False)
    change(path, "UPDATE meta SET value = '{' WHERE key = 'space'")
    with pytest.raises(MemoryFileError, match=r"search space .* cannot be read: give it with --space"):
        salvage(path, new)
    assert os.listdir(path.parent) == ["memory.db"]
    report = salvage(path, new, space=SPACE, maximise=False)
    assert content_of(new) == before and not report.complete
    with Memory.open_existing(new) as memory:
        assert memory.maximise is False


def test_invalid_source_or_target_raises(path, new, tmp_path):
    fill(path, num_tasks=1, num_trials=2)
    other = tmp_path / "other.txt"
    other.write_text("words " * 5000)
    short = tmp_path / "short.db"
    short.write_bytes(b"x")
    before = sorted(os.listdir(tmp_path))
    for source, target, words in [
        (tmp_path / "none.db", new, "there is no file at"),
        (tmp_path, new, "there is no file at"),
        (path, other, "is there already"),
        (path, path, "is there already"),
        (path, tmp_path / "no" / "new.db", "cannot write"),
        (other, new, "nothing in the file can be read"),
        (short, new, "nothing in the file can be read"),
    ]:
        with pytest.raises(MemoryFileError, match=words):
            salvage(source, target)
    assert sorted(os.listdir(tmp_path)) == before
    assert other.read_text() == "words " * 5000


def test_interrupted_transaction_is_rolled_back(path, new, tmp_path):
    """The file and the journal are those of a process that was killed during a write."""
    before = fill(path)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
    database.execute("BEGIN")
    database.execute("UPDATE trials SET score = 0.0, checksum = 0 WHERE score IS NOT NULL")
    killed = tmp_path / "killed.db"
    killed.write_bytes(path.read_bytes())
    (tmp_path / "killed.db-journal").write_bytes((tmp_path / "memory.db-journal").read_bytes())
    database.execute("ROLLBACK")
    database.close()
    damaged = killed.read_bytes()
    assert damaged != path.read_bytes()
    assert salvage(killed, new).complete
    assert content_of(new) == before
    assert killed.read_bytes() == damaged


def test_cyclic_pages_terminate(path, new):
    """Each child of the root is the same leaf; then the root is its own child."""
    fill(path)
    place = (root_of(path, "trials") - 1) * PAGE
    data = bytearray(path.read_bytes())
    assert data[place] == 0x05  # an inner page of a table
    num_cells = int.from_bytes(data[place + 3 : place + 5], "big")
    first = int.from_bytes(data[place + 12 : place + 14], "big")
    for child in (data[place + first : place + first + 4], (place // PAGE + 1).to_bytes(4, "big")):
        for cell in range(num_cells):
            pointer = int.from_bytes(data[place + 12 + 2 * cell : place + 14 + 2 * cell], "big")
            data[place + pointer : place + pointer + 4] = child
        path.write_bytes(data)
        with pytest.raises(MemoryFileError, match="is damaged"):
            Memory.open(path, space=SPACE)
        assert not salvage(path, new).lost
        assert len(content_of(new)[0]) == 204
        new.unlink()


def test_target_created_meanwhile_is_not_replaced(path, new, monkeypatch):
    fill(path, num_tasks=1, num_trials=2)
    link = os.link

    def late(draft, target):
        new.write_text("mine")
        link(draft, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(MemoryFileError, match="is there already"):
        salvage(path, new)
    assert new.read_text() == "mine"


def damage_at_random(data, chance):
    data = bytearray(data)
    kind = chance.choice(["bit", "page", "bytes", "cut", "header"])
    place = chance.randrange(len(data))
    if kind == "bit":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "page":
        place -= place % PAGE
        data[place : place + PAGE] = chance.choice([bytes(PAGE), chance.randbytes(PAGE)])
    elif kind == "bytes":
        data[place : place + 300] = chance.randbytes(len(data[place : place + 300]))
    elif kind == "cut":
        del data[place:]
    else:
        place = chance.randrange(100)
        data[place : place + 10] = chance.randbytes(10)
    return bytes(data)


def salvage_at_random(path, new, num, seed):
    """Return how often all, some and no rows were salvaged; salvaged rows are always correct."""
    trials, tasks = fill(path, num_tasks=3, num_trials=40)
    data, chance, counts = path.read_bytes(), random.Random(seed), [0, 0, 0]
    for _ in range(num):
        damaged = damage_at_random(data, chance)
        path.write_bytes(damaged)
        try:
            report = salvage(path, new, space=SPACE)
        except MemoryFileError:
            counts[2] += 1
        else:
            found, found_tasks = content_of(new)
            new.unlink()
            assert all(trials[k] == v for k, v in found.items() if not k[0].startswith("salvaged"))
            assert all(tasks[k] == v for k, v in found_tasks.items() if not k.startswith("salvaged"))
            counts[len(found) < len(trials)] += 1
            assert not report.complete or (found, found_tasks) == (trials, tasks)
        assert path.read_bytes() == damaged
        assert os.listdir(path.parent) == [path.name]
    return counts


def test_random_damage_gives_correct_rows_or_raises(path, new):
    whole, part, nothing = salvage_at_random(path, new, num=25, seed=4)
    assert whole > 3 and part > 3 and nothing < 10


@pytest.mark.slow
def test_much_random_damage_gives_correct_rows_or_raises(path, new):
    whole, part, nothing = salvage_at_random(path, new, num=500, seed=5)
    assert whole > 100 and part > 100 and nothing < 100


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_killed_salvage_leaves_no_partial_file(path, new):
    """Children are forked after the imports and killed at random moments; a last run removes their files."""
    trials, _ = fill(path, num_tasks=2, num_trials=1000)
    script = """
    import os, random, signal, sys, time
    from jlibo.tune.memory import Memory
    from jlibo.tune.memory.salvage import salvage
    path, new = sys.argv[1:]
    random.seed(0)
    began = time.monotonic()
    salvage(path, new)
    usual = time.monotonic() - began
    os.unlink(new)
    kills = finished = left = 0
    while kills < 25:
        pid = os.fork()
        if pid == 0:
            salvage(path, new)
            os._exit(0)
        time.sleep(random.uniform(0, 1.1) * usual)
        os.kill(pid, signal.SIGKILL)
        kills += os.waitpid(pid, 0)[1] == signal.SIGKILL
        left += len(os.listdir(os.path.dirname(path))) > 1
        if os.path.exists(new):
            with Memory.open_existing(new) as memory:
                assert len(memory.all_trials()) == 2002
            os.unlink(new)
            finished += 1
        assert finished < 100
    salvage(path, new)
    print(kills, left)
    """
    command = ["-c", textwrap.dedent(script), str(path), str(new)]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, left = map(int, done.stdout.split())
    assert kills == 25 and left > 5
    assert sorted(os.listdir(path.parent)) == ["memory.db", "new.db"]
    assert content_of(new)[0] == trials
