"""`jlibo memory delete`, `rename` and `merge`."""

import pytest

from jlibo import cli
from jlibo.tune.memory.memory import Memory
from jlibo.tune.space.space import Float, SearchSpace
from tests.cli.memories import SPACE, params

HOSTILE = "\x1b[31mred\n"


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "other.db"
    with Memory.open(path, space=SPACE) as memory:
        memory.add_finished(memory.task("iris").id, [(params(alpha=0.25), 5.0)])
        memory.add_finished(memory.task(HOSTILE).id, [(params(), 6.0)])
    return path


def names_of(path):
    with Memory.open_existing(path) as memory:
        return [task.name for task in memory.tasks()]


def test_delete(file, capsys):
    second = names_of(file)[1]
    assert cli.main(["memory", "delete", str(file), "iris"]) == 0
    assert capsys.readouterr().out == "the task 'iris' and its 4 trials are deleted.\n"
    assert names_of(file) == [second]
    before = file.read_bytes()
    for wrong in (["iris"], [second, "iris"]):
        assert cli.main(["memory", "delete", str(file), *wrong]) == 2
        assert capsys.readouterr().err == "jlibo: there is no task 'iris' in the memory.\n"
    assert file.read_bytes() == before
    assert cli.main(["memory", "delete", str(file.parent / "none.db"), "iris"]) == 2
    assert "there is no memory at" in capsys.readouterr().err


def test_rename(file, capsys):
    second = names_of(file)[1]
    assert cli.main(["memory", "rename", str(file), "iris", HOSTILE]) == 0
    assert capsys.readouterr().out == r"the task 'iris' is now called '\x1b[31mred\n'." + "\n"
    assert names_of(file) == [HOSTILE, second]
    before = file.read_bytes()
    for old, new, message in [
        ("irsi", "x", "there is no task 'irsi'"),
        (HOSTILE, second, "should be a name that no other task has"),
        (HOSTILE, "", "should be a task's name"),
    ]:
        assert cli.main(["memory", "rename", str(file), old, new]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
        assert "\x1b" not in captured.err
    assert file.read_bytes() == before


def test_merge_into_the_first_file(file, other, capsys):
    before = file.read_bytes(), other.read_bytes()
    assert cli.main(["memory", "merge", str(file), str(other)]) == 2
    captured = capsys.readouterr()
    assert "both memories have a task 'iris': choose with --on-conflict whether to 'join'" in captured.err
    assert (file.read_bytes(), other.read_bytes()) == before
    assert cli.main(["memory", "merge", str(file), str(other), "--on-conflict", "rename"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"'{other}': 2 trials and 2 tasks are new in '{file}', 0 trials were there already.",
        "renamed: 'iris' is 'iris (2)'",
    ]
    assert names_of(file)[2:] == ["iris (2)", HOSTILE]
    assert cli.main(["memory", "merge", str(file), str(other), "--on-conflict", "skip"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [r"joined: '\x1b[31mred\n'", "skipped: 'iris'"]
    assert other.read_bytes() == before[1]


def test_merge_into_a_new_file(file, other, tmp_path, capsys, monkeypatch):
    third = tmp_path / "third.db"
    with Memory.open(third, space=SearchSpace(dict(SPACE) | {"alpha": Float(0, 2)})) as memory:
        memory.add_finished(memory.task("wide").id, [(params(alpha=1.5), 5.0), (params(), 6.0)])
    new = tmp_path / "new.db"
    before = [path.read_bytes() for path in (file, other, third)]
    arguments = ["memory", "merge", str(file), str(other), str(third), "-o", str(new)]
    assert cli.main([*arguments, "--on-conflict", "join"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith(f"'{other}': 2 trials and 1 tasks are new in '{new}'")
    assert "has trials of another search space" in captured.err and str(new) in captured.err
    assert "Out of range: 'alpha' (1)" in captured.err
    assert len(names_of(new)) == 4
    monkeypatch.setattr("jlibo.tune.tuner.Tuner.importance", lambda self: {})  # learning takes long here
    assert cli.main(["memory", "show", str(new)]) == 0
    shown = capsys.readouterr().out
    assert "the last of 2 search spaces; 1 trials do not fit into it" in shown
    assert cli.main([*arguments, "--on-conflict", "join"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.read_bytes() for path in (file, other, third)] == before
