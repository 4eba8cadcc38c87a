"""The memory as JSON lines, and the command line that shows, exports and imports it."""

import io
import json
import os
import subprocess
import sys

import pytest

from jlibo import cli
from jlibo.cli import memory as memory_cli
from jlibo.cli.failures import BROKEN_PIPE
from jlibo.tune.memory.lines import ImportReport, LineError, export_lines, import_lines
from jlibo.tune.memory.memory import Memory
from jlibo.tune.space.space import Int, SearchSpace
from tests.cli.memories import LINE, SPACE, fill, lines_of, params

# --- lines --------------------------------------------------------------------------------------------------


def test_export_then_import_is_the_identity(memory):
    fill(memory)
    lines = list(export_lines(memory))
    assert len(lines) == 5
    first = json.loads(lines[0])
    assert (first["task"], first["number"], first["score"], first["state"]) == ("iris", 0, -1 / 3, "complete")
    assert (first["params"]["alpha"], first["explored"], first["source"]) == (0.1 + 0.2, False, "tuner")
    assert first["created"].endswith("Z") and first["finished"] >= first["created"]

    with Memory.open(None, space=SPACE) as fresh:
        assert import_lines(fresh, lines) == ImportReport(num_trials=5, num_tasks=2, num_skipped=0)
        assert list(export_lines(fresh)) == lines
        iris, _ = fresh.tasks()
        assert (iris.budget, iris.seed, iris.source) == (20, 11, "tuner")
        assert fresh.claim_pending(iris.id, owner="you").number == 2  # imported without its owner
        revision = fresh.revision()
        assert revision > 0
        assert import_lines(fresh, lines) == ImportReport(num_trials=0, num_tasks=0, num_skipped=5)
        assert fresh.revision() == revision


def test_optional_keys_have_defaults(memory):
    texts = [
        "",
        json.dumps(LINE),
        "  \n",
        json.dumps(LINE | {"number": 4, "score": 2, "created": "2026-03-01T10:00:00+01:00"}) + "\r",
        json.dumps(LINE | {"number": 5, "state": "failed", "score": None}),
        json.dumps(LINE),
    ]
    assert import_lines(memory, texts) == ImportReport(num_trials=3, num_tasks=1, num_skipped=0)
    (task,) = memory.tasks()
    assert (task.source, task.seed, task.budget) == ("added", 0, None)
    trials = memory.trials(task.id)
    assert [(t.number, t.score) for t in trials] == [(0, 1.5), (4, 2.0), (5, None)]
    assert trials[1].created == trials[1].finished == "2026-03-01T09:00:00.000000Z"
    # Gaps are kept: the count is the number of trials, and numbering continues after the largest.
    added = memory.add_trial(task.id, params(), explored=False, owner=None, expected_count=3)
    assert added.number == 6


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "this is not JSON"),
        ("[1]", r"a JSON object should stand here, but got \[1\]"),
        ('{"score": NaN}', "NaN is not a number of JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"score": 1, "score": 2}', "the key 'score' is there twice"),
        ('{"score": ' + "9" * 5000 + "}", "a number has 5000 digits"),
        ({"state": ...}, "the key 'state' is missing"),
        ({"stat": "complete"}, "the key 'stat' is not known"),
        ({"state": "done"}, r"'state' should be .* but got \"done\""),
        ({"state": ["done"]}, "'state' should be"),
        ({"score": None}, "'score' of a complete trial should be a finite number, but got null"),
        ({"state": "failed"}, r"'score' of a failed trial should be null, but got 1.5"),
        ({"score": "high"}, "'score' should be a number or null"),
        ({"score": True}, "'score' should be a number or null"),
        ({"number": -1}, "`number` should be a whole number from 0"),
        ({"number": 0.0}, "`number` should be a whole number"),
        ({"number": 2**63}, "`number` should be a whole number"),
        ({"task": ""}, "`name` should be a task's name"),
        ({"task": "\ud800"}, "UTF-8"),
        ({"params": {"alpha": 0.5}}, "none for 'kind'"),
        ({"params": params(alpha=7)}, r"params\['alpha'\].* from 0 to 1, but got 7"),
        ({"params": None}, "`params` should be a mapping"),
        ({"explored": 1}, "'explored' should be true or false, but got 1"),
        ({"source": "me"}, "'source' should be"),
        ({"budget": 0}, "`budget` should be"),
        ({"seed": "x"}, "`seed` should be"),
        ({"created": "yesterday"}, "'created' should be a time in ISO 8601"),
        ({"created": 5}, "'created' should be a time"),
        ({"maximise": False}, "is to be minimised, but those of the memory are to be maximised"),
        ({"score": 3.5}, r"trial 0 of task 'iris' was another one in line 1"),
    ],
)
def test_invalid_line_raises_and_nothing_is_imported(memory, bad, message):
    if isinstance(bad, dict):
        changed = LINE | bad
        bad = json.dumps({key: value for key, value in changed.items() if value is not ...})
    good = json.dumps(LINE)
    with pytest.raises(LineError, match=f"^line 3: .*{message}.*; nothing was imported.$"):
        import_lines(memory, [good, "", bad, good])
    assert memory.snapshot() == ([], [])


def test_conflict_with_the_memory_raises_and_nothing_is_imported(memory):
    import_lines(memory, [json.dumps(LINE)])
    before = memory.snapshot()
    for clash in ({"score": 2.5}, {"params": params(kind="b")}, {"explored": True}):
        lines = [json.dumps(LINE | {"task": "new"}), json.dumps(LINE | clash)]
        with pytest.raises(LineError, match=r"^line 2: the memory has another trial 0 of task 'iris'"):
            import_lines(memory, lines)
    assert memory.snapshot() == before


# --- command line -------------------------------------------------------------------------------------------


def test_show_prints_the_space_and_the_best_of_each_task(file, capsys, monkeypatch):
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: {})  # learning takes long here
    monkeypatch.setenv("COLUMNS", "160")
    assert cli.main(["memory", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "2 tasks, 5 trials, to maximise" in shown
    assert "lam: Float(0.0001, 10000, log=True)" in shown
    iris = next(line for line in shown.splitlines() if line.startswith("iris"))
    assert iris.split() == ["iris", "tuner", "2", "1", "0", "1", "1e+300", "alpha=1,", "kind=a,", "lam=1"]
    assert "[bold]wine[/bold] ♥" in shown


def test_show_of_a_minimising_and_of_an_empty_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: {})
    path = tmp_path / "memory.db"
    with Memory.open(path, space=SPACE, maximise=False) as memory:
        assert cli.main(["memory", "show", str(path)]) == 0
        assert "0 tasks, 0 trials, to minimise" in capsys.readouterr().out
        memory.add_finished(memory.task("iris").id, [(params(), 1.0), (params(), -1.0)])
        memory.task("wine")
    assert cli.main(["memory", "show", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "-1" in next(line for line in shown if line.startswith("iris")).split()
    assert next(line for line in shown if line.startswith("wine")).split()[2:] == ["0"] * 4 + ["-", "-"]


def test_format_of_selected_kernels(memory, monkeypatch):
    shares = {"log lam": 0.624, "alpha": 0.375, "kind": 0.001, "alpha x kind": 0.0, "alpha x log lam": 0.0}
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: shares)
    assert memory_cli._selected_kernels(memory) == (
        "matters: log lam 62 %, alpha 38 %, kind < 1 %; not selected: alpha x kind, alpha x log lam"
    )
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: {"alpha": 1.0})
    assert memory_cli._selected_kernels(memory) == "matters: alpha 100 %"


def test_export_and_import_commands(file, tmp_path, capsys, monkeypatch):
    lines, space, new = (str(tmp_path / name) for name in ("lines.jsonl", "space.json", "new.db"))
    assert cli.main(["memory", "export", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == lines_of(file)
    assert cli.main(["memory", "export", str(file), "--out", lines]) == 0
    assert cli.main(["memory", "export", str(file), "--space", "--out", space]) == 0
    with open(lines) as exported:
        assert exported.read() == printed
    assert capsys.readouterr().out == ""

    assert cli.main(["memory", "import", new, lines, "--space", space]) == 0
    assert "5 trials and 2 tasks are new, 0 trials were there already" in capsys.readouterr().out
    assert lines_of(new) == lines_of(file)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(printed.encode("utf-8-sig"))))
    assert cli.main(["memory", "import", new, "-"]) == 0
    assert "0 trials and 0 tasks are new, 5 trials were there already" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["lines.jsonl", "memory.db", "new.db", "space.json"]


def test_lines_include_the_direction(tmp_path, capsys):
    path, lines, space = (str(tmp_path / name) for name in ("memory.db", "lines.jsonl", "space.json"))
    with Memory.open(path, space=SPACE, maximise=False) as memory:
        fill(memory)
    cli.main(["memory", "export", path, "--out", lines])
    cli.main(["memory", "export", path, "--out", space, "--space"])
    new = str(tmp_path / "new.db")
    assert cli.main(["memory", "import", new, lines, "--space", space]) == 2
    assert f"{lines}, line 1: this score is to be minimised" in capsys.readouterr().err
    assert not os.path.exists(new)
    assert cli.main(["memory", "import", new, lines, "--space", space, "--minimise"]) == 0
    assert cli.main(["memory", "import", new, lines]) == 0
    assert lines_of(new) == lines_of(path)


def test_mistakes_get_one_line_and_exit_code_2(file, tmp_path, capsys):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    new, missing = str(tmp_path / "new.db"), str(tmp_path / "missing")
    other = json.dumps(SearchSpace(depth=Int(1, 3)).spec())
    good = write("good.jsonl", json.dumps(LINE | {"task": "more"}))
    before = file.read_bytes(), sorted(os.listdir(tmp_path))
    for arguments, message in [
        (["show", missing], "there is no memory at"),
        (["show", good], "is not an SQLite file"),
        (["show", str(tmp_path)], "is a folder"),
        (["export", missing], "there is no memory at"),
        (["export", str(file), "--out", str(tmp_path / "no" / "lines")], "cannot write"),
        (["export", str(file), "--out", str(tmp_path)], "cannot write"),
        (["export", str(file), "--out", str(file)], "is the memory itself"),
        (["import", new, good], "a new one needs --space SPACE.json"),
        (["import", new, missing], "cannot read"),
        (["import", new, good, "--space", missing], "cannot read"),
        (["import", new, good, "--space", good], "is not a search space"),
        (["import", str(file), good, "--minimise"], "'minimise' is asked for, 'maximise' is in the memory"),
        (["import", good, good], "is not an SQLite file"),
    ]:
        assert cli.main(["memory", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert message in captured.err and captured.out == ""
        assert captured.err.count("\n") == 1 or "asked for" in message
    for name, text, message in [
        ("bad.jsonl", json.dumps(LINE) + "\n{", "bad.jsonl, line 2: this is not JSON"),
        ("latin.jsonl", json.dumps(LINE).encode() + b"\n\xe9", "latin.jsonl, line 2: this is not UTF-8"),
    ]:
        lines = write(name, text)
        for target in ([str(file)], [new, "--space", write("space.json", json.dumps(SPACE.spec()))]):
            assert cli.main(["memory", "import", target[0], lines, *target[1:]]) == 2
            assert message in capsys.readouterr().err
        os.unlink(lines)
    assert cli.main(["memory", "import", str(file), good, "--space", write("space.json", other)]) == 2
    assert "'depth' is only asked for" in capsys.readouterr().err
    os.unlink(tmp_path / "space.json")
    assert (file.read_bytes(), sorted(os.listdir(tmp_path))) == before


def test_export_to_a_closed_pipe_prints_no_error(tmp_path):
    path = tmp_path / "memory.db"
    with Memory.open(path, space=SPACE) as memory:
        memory.add_finished(memory.task("iris").id, [(params(), 1.0)] * 2000)
    command = [sys.executable, "-m", "jlibo.cli", "memory", "export", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["task"] == "iris"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == BROKEN_PIPE


# --- CSV ----------------------------------------------------------------------------------------------------


def test_import_of_a_csv(file, tmp_path, capsys):
    lines, space, new = (str(tmp_path / name) for name in ("trials.CSV", "space.json", "new.db"))
    cli.main(["memory", "export", str(file), "--space", "--out", space])
    with open(lines, "w", encoding="utf-8") as csv:
        csv.write("task,kind,alpha,lam,score\niris,a,0.5,1,0.25\nwine ♥,b,1.0,1e-4,\niris,b,0,2,-1\n")
    assert cli.main(["memory", "import", new, lines, "--space", space]) == 0
    assert "3 trials and 2 tasks are new, 0 trials were there already" in capsys.readouterr().out
    found = [json.loads(line) for line in lines_of(new)]
    assert [(line["task"], line["number"], line["state"], line["score"]) for line in found] == [
        ("iris", 0, "complete", 0.25),
        ("iris", 1, "complete", -1.0),
        ("wine ♥", 0, "failed", None),
    ]
    assert found[0]["params"] == params() and found[0]["source"] == "added"
    # Again, and into a task that has other trials already.
    assert cli.main(["memory", "import", new, lines]) == 0
    assert "0 trials and 0 tasks are new, 3 trials were there already" in capsys.readouterr().out
    before = len(lines_of(file))
    assert cli.main(["memory", "import", str(file), lines]) == 0
    assert "3 trials and 1 tasks are new" in capsys.readouterr().out
    assert len(lines_of(file)) == before + 3


def test_csv_of_all_trials_is_imported_again(tmp_path, capsys):
    import pandas

    from jlibo import Tuner

    old, new, csv, space = (str(tmp_path / name) for name in ("old.db", "new.db", "all.csv", "space.json"))
    with Tuner(SPACE, memory=old) as tuner:
        tuner.add_task("iris", [{**params(), "score": 1 / 3}, {**params(kind="b"), "score": None}])
        frame = tuner.to_dataframe(score="auc")
    assert isinstance(frame, pandas.DataFrame)
    frame.to_csv(csv, index=False)
    cli.main(["memory", "export", old, "--space", "--out", space])
    assert cli.main(["memory", "import", new, csv, "--space", space, "--score", "auc"]) == 0
    capsys.readouterr()
    contents = [[json.loads(line) for line in lines_of(path)] for path in (old, new)]
    for line in (*contents[0], *contents[1]):
        del line["created"], line["finished"]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind,alpha,lam,score\na,1,1,1\n", "no column 'task'"),
        ("task,kind,alfa,lam,score\niris,a,1,1,1\n", "the unknown column 'alfa' (did you mean 'alpha'?)"),
        ("task,kind,alpha,lam,score\niris,a,1,1,1\n,a,1,1,1\n", "bad.csv, line 3: `task` should be the name"),
        ("task,kind,alpha,lam,score\niris,c,1,1,1\n", "bad.csv, line 2: `params['kind']` should be one of"),
        ("task,kind,alpha,lam,score\niris,a,1,1,high\n", "bad.csv, line 2: `score` should be a number"),
        ("task,kind,alpha,lam,score\n\x1b[31m,a,1,1,high\n", "bad.csv, line 2: `score` should be a number"),
        (None, "cannot read"),
    ],
)
def test_bad_csv_gives_one_line_and_changes_nothing(file, tmp_path, capsys, text, message):
    path, space, new = tmp_path / "bad.csv", tmp_path / "space.json", tmp_path / "new.db"
    space.write_text(json.dumps(SPACE.spec()))
    if text is not None:
        path.write_text(text)
    before = lines_of(file)
    for target in ([str(file)], [str(new), "--space", str(space)]):
        assert cli.main(["memory", "import", target[0], str(path), *target[1:]]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.out == ""
        assert captured.err.count("\n") == 1 and "\x1b" not in captured.err
    assert lines_of(file) == before and not new.exists()
