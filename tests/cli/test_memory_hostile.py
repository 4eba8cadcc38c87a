"""The memory's command line with hostile names and lines, failing output, and damaged files."""

import json
import os
import sqlite3
import subprocess

import pytest

from jlibo import cli
from jlibo.cli.failures import IO_ERROR
from jlibo.tune.memory.memory import Memory, MemoryFileError, SpaceChangedWarning
from jlibo.tune.space.space import Categorical, Float, SearchSpace
from tests import forked
from tests.cli.memories import LINE, SPACE, lines_of

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eevil \u2066 [red]markup[/red] \n\r\t\0 \x9b"


def hostile_memory(path):
    space = SearchSpace({f"alpha{HOSTILE}": Float(0, 1), "kind": Categorical([HOSTILE, "b"])})
    with Memory.open(path, space=space) as memory:
        task = memory.task(HOSTILE)
        memory.add_finished(task.id, [({f"alpha{HOSTILE}": 0.5, "kind": HOSTILE}, 1.0)])
        memory.task("x" * 4000)
    return path


def is_harmless(text):
    return all(character.isprintable() or character == "\n" for character in text)


def test_names_from_a_file_are_escaped_in_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: {HOSTILE: 1.0})
    path = hostile_memory(tmp_path / "memory.db")
    assert cli.main(["memory", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert is_harmless(shown)
    assert r"\x1b[31mred" in shown and r"\u202eevil" in shown and "[red]markup[/red]" in shown
    assert max(map(len, shown.splitlines())) < 3000
    assert cli.main(["memory", "export", str(path)]) == 0
    printed = capsys.readouterr().out
    assert is_harmless(printed) and printed.isascii()
    assert json.loads(printed)["task"] == HOSTILE and json.loads(printed)["params"]["kind"] == HOSTILE
    with pytest.warns(SpaceChangedWarning) as said:
        Memory.open(path, space=SPACE).close()
    assert is_harmless(str(said[0].message)) and r"\x1b[31mred" in str(said[0].message)
    with pytest.raises(MemoryFileError) as caught:
        Memory.open(path, space=SPACE, maximise=False)
    assert is_harmless(str(caught.value))
    odd = tmp_path / f"odd {HOSTILE.replace(chr(0), '')}.db"
    for action in (["show", str(odd)], ["import", str(odd), str(odd)], ["salvage", str(odd), str(odd)]):
        assert cli.main(["memory", *action]) == 2
        assert is_harmless(capsys.readouterr().err)


HOSTILE_LINES = {
    "deep lists": "[" * 500_000,
    "deep objects": '{"a":' * 500_000,
    "deep in a known key": json.dumps(LINE)[:-1] + ', "budget": ' + "[" * 900 + "]" * 900 + "}",
    "deep parameters": json.dumps(LINE).replace("0.5", "[" * 900 + "]" * 900),
    "5,000 digits": json.dumps(LINE).replace("1.5", "9" * 5000),
    "a huge number": json.dumps(LINE).replace("1.5", "9" * 399),
    "a huge parameter": json.dumps(LINE).replace("0.5", "9" * 399),
    "a huge power": json.dumps(LINE).replace("1.5", "1e999999"),
    "NaN": json.dumps(LINE).replace("1.5", "NaN"),
    "-Infinity": json.dumps(LINE).replace("0.5", "-Infinity"),
    "a key twice": json.dumps(LINE)[:-1] + ', "score": 2.5}',
    "a parameter twice": json.dumps(LINE).replace('"alpha": 0.5', '"alpha": 0.5, "alpha": 0.25'),
    "a lone surrogate": json.dumps(LINE).replace("iris", "\\ud800"),
    "a lone surrogate as a key": json.dumps(LINE).replace('"alpha"', '"\\ud800"'),
    "a lone surrogate as a value": json.dumps(LINE).replace('"a"', '"\\udfff"'),
    "an escape sequence": json.dumps(LINE).replace('"task"', '"\\u001b[31m"'),
    "a long key": json.dumps(LINE | {"x" * 100_000: 1}),
    "a long name": json.dumps(LINE | {"task": "x" * 100_000}),
    "a long value": json.dumps(LINE | {"state": "x" * 100_000}),
    "a wrong type": json.dumps(LINE | {"task": {"a": [1]}}),
    "a number of 2**64": json.dumps(LINE | {"number": 2**64}),
}


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_hostile_line_gives_one_short_message(file, tmp_path, capsys, name):
    lines = tmp_path / "lines.jsonl"
    lines.write_text(HOSTILE_LINES[name])
    before = file.read_bytes()
    assert cli.main(["memory", "import", str(file), str(lines)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"jlibo: {lines}, line 1: ") and message.endswith("; nothing was imported.\n")
    assert message.count("\n") == 1 and is_harmless(message) and len(message) < 1000
    assert file.read_bytes() == before
    assert cli.main(["memory", "import", str(tmp_path / "new.db"), str(lines), "--space", str(lines)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and is_harmless(message) and len(message) < 1000
    assert not (tmp_path / "new.db").exists()


def run(*arguments, **options):
    command = ["-m", "jlibo.cli", "memory", *map(str, arguments)]
    return forked.run(command, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("action", ["export", "import", "salvage"])
def test_output_to_a_full_device_gives_one_line(file, tmp_path, action):
    arguments = {
        "export": ["export", file],
        "import": ["import", file, os.devnull],
        "salvage": ["salvage", file, tmp_path / "new.db"],
    }
    with open("/dev/full", "w") as full:
        done = run(*arguments[action], stdout=full)
    assert done.returncode == IO_ERROR
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_ascii_terminal_shows_escapes(file):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "160"}
    script = """
import sys
from jlibo.tune.tuner import Tuner
Tuner.importance = lambda self: {}
from jlibo import cli
sys.exit(cli.main(["memory", "show", sys.argv[1]]))
"""
    done = forked.run(["-c", script, str(file)], capture_output=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert rb"[bold]wine[/bold] \u2665" in done.stdout and done.stderr == b""


def test_export_keeps_file_mode_and_umask(file, tmp_path, monkeypatch):
    mask = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
        out = tmp_path / "lines.jsonl"
        assert cli.main(["memory", "export", str(file), "--out", str(out)]) == 0
        assert out.stat().st_mode & 0o777 == 0o640
        out.chmod(0o604)
        assert cli.main(["memory", "export", str(file), "--out", str(out)]) == 0
        assert out.stat().st_mode & 0o777 == 0o604
    finally:
        monkeypatch.undo()
        os.umask(mask)


def test_exit_code_of_salvage_reports_losses(file, tmp_path, capsys):
    new, space = tmp_path / "new.db", tmp_path / "space.json"
    space.write_text(json.dumps(SPACE.spec()))
    assert cli.main(["memory", "salvage", str(file), str(new)]) == 0
    assert capsys.readouterr().out == f"2 tasks and 5 trials are in '{new}'.\nnothing was lost.\n"
    lines = [json.loads(line) for line in lines_of(new)]
    assert lines == [json.loads(line) for line in lines_of(file)]

    assert cli.main(["memory", "salvage", str(file), str(new)]) == 2
    assert "is there already" in capsys.readouterr().err
    with sqlite3.connect(file) as database:
        database.execute("UPDATE trials SET score = 9.5 WHERE id = 1")
    database.close()
    assert cli.main(["memory", "export", str(file)]) == 2
    assert "`jlibo memory salvage" in capsys.readouterr().err
    new.unlink()
    assert cli.main(["memory", "salvage", str(file), str(new)]) == 1
    assert "lost: 1 x trial: its checksum does not match\n" in capsys.readouterr().out
    new.unlink()
    assert cli.main(["memory", "salvage", str(file), str(new), "--unverified"]) == 0
    assert json.loads(lines_of(new)[0])["score"] == 9.5

    with sqlite3.connect(file) as database:
        database.execute("UPDATE meta SET value = '' WHERE key = 'space'")
    database.close()
    new.unlink()
    assert cli.main(["memory", "salvage", str(file), str(new)]) == 2
    assert "give it with --space" in capsys.readouterr().err
    assert cli.main(["memory", "salvage", str(file), str(new), "--space", str(space)]) == 1
    assert "note: the search space cannot be read" in capsys.readouterr().out


def test_show_does_not_learn_in_a_huge_space(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: pytest.fail("too large"))
    path = tmp_path / "memory.db"
    Memory.open(path, space=SearchSpace({f"p{i}": Float(0, 1) for i in range(200)})).close()
    assert cli.main(["memory", "show", str(path)]) == 0
    assert "what matters is not computed: the space has 180,301 features" in capsys.readouterr().out
