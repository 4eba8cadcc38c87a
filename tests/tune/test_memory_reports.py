"""Reports, stopped trials and texts of failures in the memory: stored, exported, salvaged, migrated."""

import contextlib
import json
import sqlite3

import pytest

from jlibo.tune.memory.lines import LineError, export_lines, import_lines
from jlibo.tune.memory.memory import Memory, MemoryFileError, TrialStateError
from jlibo.tune.memory.records import LONGEST_ERROR
from jlibo.tune.memory.salvage import salvage
from jlibo.tune.space.space import Float, SearchSpace

SPACE = SearchSpace(x=Float(0, 1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.db"


def fill(path):
    """Write a task with a complete, a stopped, a failed and a pending trial, and their reports."""
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("iris")
        ids = [
            memory.add_trial(task.id, {"x": x}, explored=False, owner="me").id for x in (0.1, 0.2, 0.3, 0.4)
        ]
        for place, trial_id in enumerate(ids):
            for step in range(3 - place):
                memory.report(trial_id, 10 * step, place + step / 4)
        memory.tell(ids[0], 0.75)
        memory.stop(ids[1], 0.5)
        memory.fail(ids[2], "ValueError: no convergence")
    return content_of(path)


def content_of(path):
    with Memory.open_existing(path) as memory:
        curves = memory.curves()
        return [
            (
                trial.params["x"],
                trial.state,
                trial.score,
                trial.estimate,
                trial.error,
                curves.get(trial.id, {}),
            )
            for trial in memory.all_trials()
        ]


CONTENT = [
    (0.1, "complete", 0.75, None, None, {0: 0.0, 10: 0.25, 20: 0.5}),
    (0.2, "stopped", None, 0.5, None, {0: 1.0, 10: 1.25}),
    (0.3, "failed", None, None, "ValueError: no convergence", {0: 2.0}),
    (0.4, "pending", None, None, None, {}),
]


def test_everything_is_stored(path):
    assert fill(path) == CONTENT


def test_report_replaces_its_step_and_keeps_what_is_not_finite():
    with Memory.open(None, space=SPACE) as memory:
        trial = memory.add_trial(memory.task("iris").id, {"x": 0.5}, explored=False, owner=None)
        before = memory.revision()
        for step, score in [(3, 1.0), (1, -0.0), (3, 2.0), (7, float("nan")), (8, float("-inf"))]:
            memory.report(trial.id, step, score)
        assert memory.curve(trial.id) == {1: 0.0, 3: 2.0, 7: None, 8: None}
        assert list(memory.curve(trial.id)) == [1, 3, 7, 8]
        assert memory.revision() == before  # nothing to learn from yet
        for step in (-1, 1.5, True, "2", None, 2**63):
            with pytest.raises(ValueError, match="`step` should be a whole number from 0"):
                memory.report(trial.id, step, 1.0)
        with pytest.raises(ValueError, match="`score` should be a number"):
            memory.report(trial.id, 9, "high")
        with pytest.raises(TrialStateError, match="there is no trial"):
            memory.report(99, 0, 1.0)
        memory.delete_task("iris")
        assert memory.curves() == {}


def test_finished_trial_keeps_its_state():
    with Memory.open(None, space=SPACE) as memory:
        task = memory.task("iris")
        complete, stopped, failed = (
            memory.add_trial(task.id, {"x": x}, explored=False, owner="me").id for x in (0.1, 0.2, 0.3)
        )
        memory.tell(complete, 1.0)
        memory.stop(stopped, None)
        assert memory.stop(stopped, 0.3).estimate is None  # a second time has no effect
        memory.fail(failed, "first")
        assert memory.fail(failed, "second").error == "first"
        for call, words in [
            (lambda: memory.stop(complete, 0.0), "has the score 1.0 already, so it cannot be stopped"),
            (lambda: memory.stop(failed, 0.0), "has failed already, so it cannot be stopped"),
            (lambda: memory.tell(stopped, 1.0), "was stopped already, so it cannot be told the score 1.0"),
            (lambda: memory.fail(stopped), "was stopped already, so it cannot be told that it failed"),
            (lambda: memory.report(stopped, 1, 0.5), "was stopped already, so it cannot get a report"),
            (lambda: memory.report(complete, 1, 0.5), "already, so it cannot get a report"),
        ]:
            with pytest.raises(TrialStateError, match=words):
                call()
        states = [trial.state for trial in memory.all_trials()]
        assert states == ["complete", "stopped", "failed"]
        assert memory.score_counts() == {task.id: 1}


@pytest.mark.parametrize(
    "told, stored",
    [
        ("ValueError: bad", "ValueError: bad"),
        ("  \n", None),
        (None, None),
        ("lone \ud800 surrogate \0 zero", "lone \\ud800 surrogate \\0 zero"),
        ("x" * 5000, "x" * (LONGEST_ERROR - 3) + "..."),
        ("é" * LONGEST_ERROR, "é" * LONGEST_ERROR),
    ],
)
def test_error_is_stored_as_text_of_bounded_length(path, told, stored):
    with Memory.open(path, space=SPACE) as memory:
        trial = memory.add_trial(memory.task("iris").id, {"x": 0.5}, explored=False, owner=None)
        assert memory.fail(trial.id, told).error == stored
    assert [error for *_, error, _ in content_of(path)] == [stored]


def test_error_must_be_text():
    with Memory.open(None, space=SPACE) as memory:
        trial = memory.add_trial(memory.task("iris").id, {"x": 0.5}, explored=False, owner=None)
        with pytest.raises(ValueError, match="`error` should be a string"):
            memory.fail(trial.id, ValueError("an exception"))
        assert memory.tell(trial.id, 1.0, error="ignored").error is None


# --- lines --------------------------------------------------------------------------------------------------


def test_lines_carry_everything(path, tmp_path):
    fill(path)
    with Memory.open_existing(path) as memory:
        lines = list(export_lines(memory))
    first = json.loads(lines[0])
    assert first["reports"] == [[0, 0.0], [10, 0.25], [20, 0.5]] and "error" not in first
    other = tmp_path / "other.db"
    with Memory.open(other, space=SPACE) as memory:
        assert import_lines(memory, lines).num_trials == 4
        assert import_lines(memory, lines).num_skipped == 4
    assert content_of(other) == CONTENT


LINE = {"task": "iris", "number": 0, "params": {"x": 0.5}, "score": None, "state": "stopped"}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"score": 1.0}, "'score' of a stopped trial should be null"),
        ({"error": "no"}, "'error' should be null for a stopped trial"),
        ({"estimate": "high"}, "'estimate' should be a number or null"),
        ({"state": "failed", "error": 5}, "`error` should be a string"),
        ({"state": "failed", "estimate": 1.0}, "'estimate' should be null for a failed trial"),
        ({"reports": {"0": 1.0}}, "'reports' should be pairs"),
        ({"reports": [[0, 1.0, 2.0]]}, "'reports' should be pairs"),
        ({"reports": [[-1, 1.0]]}, "`step` should be a whole number from 0"),
        ({"reports": [[0, 1.0], [0, 2.0]]}, "'reports' should have each step once, but got 0 twice"),
        ({"reports": [[0, "a"]]}, "'reports' should be a number or null"),
    ],
)
def test_lines_with_mistakes_are_rejected(changes, words):
    with Memory.open(None, space=SPACE) as memory:
        with pytest.raises(LineError, match=f"line 1: {words}"):
            import_lines(memory, [json.dumps(LINE | changes)])
        assert memory.tasks() == []


# --- damage -------------------------------------------------------------------------------------------------


def other_sqlite(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE reports SET score = 0.125 WHERE step = 10",
        "UPDATE trials SET error = 'another' WHERE number = 2",
        "UPDATE trials SET estimate = 0.75 WHERE number = 1",
        "UPDATE trials SET stopped = NULL, estimate = NULL WHERE number = 1",
        "UPDATE trials SET stopped = 1 WHERE number = 0",
        "UPDATE reports SET trial_id = 99 WHERE step = 20",
    ],
)
def test_changed_rows_are_noticed(path, change):
    fill(path)
    other_sqlite(path, change)
    with pytest.raises(MemoryFileError, match="is damaged"):
        content_of(path)


def test_salvage_keeps_reports_and_counts_lost_ones(path, tmp_path):
    fill(path)
    assert salvage(path, tmp_path / "all.db").complete
    assert content_of(tmp_path / "all.db") == CONTENT
    other_sqlite(path, "UPDATE reports SET score = 0.125 WHERE step = 20")
    report = salvage(path, tmp_path / "some.db")
    assert report.lost == {"report: its checksum does not match": 1}
    found = content_of(tmp_path / "some.db")
    assert found[0][-1] == {0: 0.0, 10: 0.25} and found[1:] == CONTENT[1:]


# --- format 2 -----------------------------------------------------------------------------------------------

# A file that jlibo wrote in format 2, as SQL.
FORMAT_2 = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL CHECK (typeof(value) = 'text')
);
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text'),
    budget INTEGER CHECK (typeof(budget) IN ('integer', 'null')),
    source TEXT NOT NULL CHECK (source IN ('tuner', 'added')),
    seed INTEGER NOT NULL CHECK (typeof(seed) = 'integer'),
    changed INTEGER NOT NULL DEFAULT 0 CHECK (typeof(changed) = 'integer'),
    created TEXT NOT NULL CHECK (typeof(created) = 'text'),
    checksum INTEGER NOT NULL DEFAULT 0 CHECK (typeof(checksum) = 'integer')
);
CREATE TABLE trials (
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
    claims INTEGER NOT NULL DEFAULT 0 CHECK (typeof(claims) = 'integer' AND claims >= 0),
    checksum INTEGER NOT NULL DEFAULT 0 CHECK (typeof(checksum) = 'integer'),
    UNIQUE (task_id, number),
    CHECK ((state = 'complete') = (score IS NOT NULL)),
    CHECK ((state = 'pending') = (finished IS NULL)),
    CHECK (owner IS NULL OR state = 'pending')
);
INSERT INTO meta VALUES
    ('space',
     '{"version": 1, "parameters": {"x": {"kind": "float", "low": 0.0, "high": 1.0, "log": false}}}'),
    ('maximise', '1'), ('jlibo', '0.1.0'), ('deleted', '0'), ('checksum', '1964863576');
INSERT INTO tasks VALUES (1, 'iris', 9, 'tuner', 3, 1, '2026-11-18T14:47:35.791291Z', 3914188512);
INSERT INTO trials VALUES
    (1, 1, 0, '{"x": 0.25}', 'complete', 0.5, 1, NULL, NULL,
     '2026-11-18T14:47:35.799130Z', '2026-11-18T14:47:35.799130Z', 0, 3098690794),
    (2, 1, 1, '{"x": 0.75}', 'failed', NULL, 1, NULL, NULL,
     '2026-11-18T14:47:35.799130Z', '2026-11-18T14:47:35.799130Z', 0, 2306723159),
    (3, 1, 2, '{"x": 1.0}', 'pending', NULL, 0, 'me', '2026-11-18T14:47:35.820278Z',
     '2026-11-18T14:47:35.820278Z', NULL, 1, 3297126992),
    (4, 1, 3, '{"x": 0.0}', 'pending', NULL, 0, NULL, NULL,
     '2026-11-18T14:47:35.821630Z', NULL, 0, 2630880463);
PRAGMA application_id = 1785489762;
PRAGMA user_version = 2;
"""


def format_2(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(FORMAT_2)
    return path


def schema_of(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return sorted((*row, "".join((sql or "").split())) for *row, sql in rows)


def test_migration_from_format_2_keeps_all_content(path, tmp_path):
    format_2(path)
    with Memory.open(path, space=SPACE) as memory:
        (task,), trials = memory.snapshot()
        assert (task.name, task.budget, task.seed) == ("iris", 9, 3)
        facts = [(t.params["x"], t.state, t.score, t.owner, t.claims, t.error, t.estimate) for t in trials]
        assert facts == [
            (0.25, "complete", 0.5, None, 0, None, None),
            (0.75, "failed", None, None, 0, None, None),
            (1.0, "pending", None, "me", 1, None, None),
            (0.0, "pending", None, None, 0, None, None),
        ]
        assert memory.curves() == {} and memory.revision() == 1
        memory.report(3, 0, 0.25)
        memory.stop(3, 0.25)
    assert content_of(path)[2] == (1.0, "stopped", None, 0.25, None, {0: 0.25})
    fill(tmp_path / "new.db")
    assert schema_of(path) == schema_of(tmp_path / "new.db")


def test_migration_does_not_make_a_damaged_row_valid(path):
    format_2(path)
    other_sqlite(path, "UPDATE trials SET score = 0.25 WHERE id = 1")
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match="trial 1: its checksum does not match"):
        Memory.open(path, space=SPACE)
    assert path.read_bytes() == before


def root_of_reports(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        question = "SELECT rootpage FROM sqlite_master WHERE name = 'reports'"
        return database.execute(question).fetchone()[0]


@pytest.mark.parametrize("kind", ["new", "migrated", "format 2"])
def test_damaged_header_loses_no_report(path, tmp_path, kind):
    """A migrated file has the table of reports on other pages than a new one."""
    if kind != "new":
        format_2(path)
        other_sqlite(path, "INSERT INTO meta VALUES ('note', hex(randomblob(9000)))")  # takes several pages
    if kind == "format 2":
        before = [(0.25, 0.5), (0.75, None), (1.0, None), (0.0, None)]
    else:
        with Memory.open(path, space=SPACE) as memory:
            task = memory.task("many")
            for number in range(25):  # enough for several pages, so that the tables are mixed
                trial = memory.add_trial(task.id, {"x": number / 25}, explored=False, owner="me")
                for step in range(10):
                    memory.report(trial.id, step, number + step / 20)
                memory.tell(trial.id, number)
        before = content_of(path)
        assert (root_of_reports(path) == 9) == (kind == "new")
    with open(path, "r+b") as file:
        file.write(b"\xa5" * 200)
    report = salvage(path, tmp_path / "new.db")
    assert not report.lost
    after = content_of(tmp_path / "new.db")
    assert (after if kind != "format 2" else [(x, score) for x, _, score, *_ in after]) == before
