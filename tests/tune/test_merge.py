"""Memories that are merged, and tasks that are renamed and deleted."""

import os
import shutil
import stat
import warnings

import pytest

from jlibo.tune import (
    Categorical,
    Float,
    Int,
    Memory,
    MemoryFileError,
    MemoryMismatch,
    SearchSpace,
    SpaceChangedWarning,
    Tuner,
)
from jlibo.tune.memory.memory import TrialStateError, new_owner
from jlibo.tune.memory.merged_file import merge_files
from jlibo.tune.memory.records import LONGEST_NAME, free_name

SPACE = SearchSpace(x=Float(0, 1), kind=Categorical(["a", "b"]))


def point(x=0.5, kind="a"):
    return {"x": x, "kind": kind}


def fill(path, scores, *, space=SPACE, maximise=True):
    """Write a memory with the given scores by the name of the task."""
    with Memory.open(path, space=space, maximise=maximise) as memory:
        for name, some in scores.items():
            task = memory.task(name, budget=10, seed=3)
            memory.add_finished(task.id, [(point(number / 10), one) for number, one in enumerate(some)])
    return path


def facts(memory):
    """Return the state and the score of each trial by the name of its task."""
    if not isinstance(memory, Memory):
        with Memory.open_existing(memory) as opened:
            return facts(opened)
    return {
        task.name: [(trial.number, trial.state, trial.score) for trial in memory.trials(task.id)]
        for task in memory.tasks()
    }


@pytest.fixture
def paths(tmp_path):
    first = fill(tmp_path / "a.db", {"iris": [1.0, 2.0], "wine": [3.0]})
    second = fill(tmp_path / "b.db", {"wine": [4.0, None, 3.0], "beans": [5.0]})
    return first, second


# --- tasks --------------------------------------------------------------------------------------------------


def test_all_of_another_memory_is_added(tmp_path):
    one = fill(tmp_path / "a.db", {"iris": [1.0, 2.0]})
    two = fill(tmp_path / "b.db", {"wine": [4.0, None], "beans": [5.0]})
    with Memory.open_existing(two) as memory:
        pending = memory.add_trial(memory.task("beans").id, point(), explored=True, owner=new_owner())
        theirs = {(task.name, task.budget, task.seed, task.created) for task in memory.tasks()}
    before = two.read_bytes()
    with Memory.open(one, space=SPACE) as memory:
        revision = memory.revision()
        report = memory.merge(two)
        assert (report.num_tasks, report.num_trials, report.num_there) == (2, 4, 0)
        assert not report.joined and not report.renamed and not report.skipped
        assert facts(memory) == {
            "iris": [(0, "complete", 1.0), (1, "complete", 2.0)],
            "wine": [(0, "complete", 4.0), (1, "failed", None)],
            "beans": [(0, "complete", 5.0), (1, "pending", None)],
        }
        assert {(task.name, task.budget, task.seed, task.created) for task in memory.tasks()[1:]} == theirs
        last = memory.all_trials()[-1]
        assert (last.params, last.explored, last.owner, last.claims) == (point(), True, None, 0)
        assert last.created == pending.created
        assert memory.revision() > revision
        # Once more: both have the tasks from a common past.
        again = memory.merge(str(two))
        assert (again.num_tasks, again.num_trials, again.num_there) == (0, 0, 4)
        assert again.joined == ("wine", "beans")
    assert two.read_bytes() == before


@pytest.mark.parametrize("on_conflict", ["join", "rename", "skip"])
def test_different_tasks_of_one_name(paths, on_conflict):
    with Memory.open(paths[0], space=SPACE) as memory:
        with pytest.raises(ValueError, match=r"both memories have a task 'wine': choose with `on_conflict`"):
            memory.merge(paths[1])
        assert list(facts(memory)) == ["iris", "wine"]
        report = memory.merge(paths[1], on_conflict=on_conflict)
        found = facts(memory)
    assert found.pop("iris") == [(0, "complete", 1.0), (1, "complete", 2.0)]
    assert found.pop("beans") == [(0, "complete", 5.0)]
    mine, theirs = [(0, "complete", 3.0)], [(0, "complete", 4.0), (1, "failed", None), (2, "complete", 3.0)]
    if on_conflict == "join":  # one of their trials has another configuration than mine with the same score
        added = [(1, "complete", 4.0), (2, "failed", None), (3, "complete", 3.0)]
        assert found == {"wine": mine + added} and report.joined == ("wine",)
    elif on_conflict == "rename":
        assert found == {"wine": mine, "wine (2)": theirs} and report.renamed == {"wine": "wine (2)"}
    else:
        assert found == {"wine": mine} and report.skipped == ("wine",)


def test_copies_of_one_memory_are_joined(tmp_path):
    """Both copies have gone on; a trial that was pending is told in one of them."""
    path, copy = fill(tmp_path / "a.db", {"iris": [1.0, 2.0]}), tmp_path / "b.db"
    with Memory.open(path, space=SPACE) as memory:
        task = memory.task("iris")
        left = memory.add_trial(task.id, point(0.7), explored=False, owner=None)
        taken = memory.add_trial(task.id, point(0.8), explored=False, owner=new_owner())
        twice = memory.add_trial(task.id, point(0.9), explored=False, owner=None)
        shutil.copy(path, copy)
        memory.tell(twice.id, 9.0)
        memory.add_finished(task.id, [(point(0.25), 3.0)])
        memory.add_trial(task.id, point(0.125), explored=False, owner=None)
    with Memory.open(copy, space=SPACE) as memory:
        for trial, score in ((left, 7.0), (taken, 8.0), (twice, 9.5)):
            memory.tell(trial.id, score)
        memory.add_finished(task.id, [(point(0.375), 4.0), (point(0.0), 1.0)])
    with Memory.open(path, space=SPACE) as memory:
        report = memory.merge(copy)
        assert report.joined == ("iris",) and (report.num_trials, report.num_there) == (5, 2)
        found = [(trial.params["x"], trial.state, trial.score) for trial in memory.trials(task.id)]
        assert found == [
            (0.0, "complete", 1.0),
            (0.1, "complete", 2.0),
            (0.7, "complete", 7.0),  # told in the copy
            (0.8, "pending", None),  # this process works on it
            (0.9, "complete", 9.0),
            (0.25, "complete", 3.0),
            (0.125, "pending", None),
            (0.8, "complete", 8.0),
            (0.9, "complete", 9.5),  # told twice: two measurements
            (0.375, "complete", 4.0),
            (0.0, "complete", 1.0),  # there is one more of it than in the first memory
        ]
        assert memory.tell(taken.id, 8.5).score == 8.5
    with Memory.open(copy, space=SPACE) as memory:
        assert memory.merge(path).num_trials == 4  # 9.0, 8.5, 3.0 and the one in the queue
        assert memory.merge(path).num_trials == 0


@pytest.mark.parametrize("is_copy", [False, True])
def test_reports_errors_and_estimates_are_merged(tmp_path, is_copy):
    """They are added with a new task, and to pending trials of a copy that was made before."""
    path, copy = tmp_path / "a.db", tmp_path / "b.db"
    with Memory.open(copy, space=SPACE) as memory:
        task = memory.task("iris")
        stopped, failed = (
            memory.add_trial(task.id, point(x), explored=False, owner=None) for x in (0.1, 0.2)
        )
        if is_copy:
            shutil.copy(copy, path)
        memory.report(stopped.id, 0, 1.5)
        memory.report(stopped.id, 3, None)
        memory.stop(stopped.id, 0.25)
        memory.fail(failed.id, "out of memory")
    if not is_copy:
        fill(path, {"wine": [4.0]})
    with Memory.open(path, space=SPACE) as memory:
        assert memory.merge(copy).num_trials == 2
        first, second = memory.trials(memory.task("iris").id)
        assert (first.state, first.score, first.estimate) == ("stopped", None, 0.25)
        assert memory.curve(first.id) == {0: 1.5, 3: None}
        assert (second.state, second.error) == ("failed", "out of memory")
        assert memory.merge(copy).num_trials == 0


def test_free_names():
    assert free_name("a", []) == "a" and free_name("a", ["a", "a (2)"]) == "a (3)"
    assert len(free_name("a" * LONGEST_NAME, ["a" * LONGEST_NAME])) <= LONGEST_NAME


# --- spaces -------------------------------------------------------------------------------------------------


def test_memories_of_different_spaces(tmp_path):
    wide = SearchSpace(x=Float(0, 2), kind=Categorical(["b", "c", "a"]), depth=Int(1, 3, default=2))
    one, two = fill(tmp_path / "a.db", {"iris": [1.0, 2.0]}), tmp_path / "b.db"
    with Memory.open(two, space=wide) as memory:
        points = [{"x": x, "kind": kind, "depth": 3} for x, kind in ((0.5, "a"), (1.5, "a"), (0.5, "c"))]
        memory.add_finished(memory.task("wine").id, [(params, 5.0) for params in points])
    with Tuner(SPACE, one) as tuner:
        words = r"has trials of another search space(?s:.*)3 of 5\. Out of range: 'x' \(1\), 'kind' \(1\)"
        with pytest.warns(SpaceChangedWarning, match=words):
            assert tuner.merge(two).num_trials == 3
        assert [(t.params, t.fits) for t in tuner.memory.all_trials()[2:]] == [
            (point(), True),
            (points[1], False),
            (points[2], False),
        ]
        assert tuner.memory.spaces == [SPACE, wide]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tuner.merge(two)  # said once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tuner(SPACE, one).close()
    with pytest.warns(SpaceChangedWarning, match="5 of 5"), Memory.open(one, space=wide) as memory:
        assert [trial.params["depth"] for trial in memory.all_trials()] == [2, 2, 3, 3, 3]


def test_memories_that_cannot_be_merged(tmp_path):
    one = fill(tmp_path / "a.db", {"iris": [1.0]})
    other = fill(tmp_path / "b.db", {"wine": [1.0]}, maximise=False)
    with Memory.open(tmp_path / "c.db", space=SearchSpace(rate=Float(0, 1))) as memory:
        memory.add_finished(memory.task("wine").id, [({"rate": 0.5}, 1.0)])
    (tmp_path / "d.db").write_text("no memory")
    link = tmp_path / "link.db"
    link.symlink_to(one)
    before = one.read_bytes()
    with Memory.open(one, space=SPACE) as memory:
        for path, kind, message in [
            (other, MemoryMismatch, "the first maximises and the second minimises"),
            (tmp_path / "c.db", MemoryMismatch, "have no common parameter"),
            (tmp_path / "d.db", MemoryFileError, "is not an SQLite file"),
            (tmp_path / "e.db", MemoryFileError, "there is no memory at"),
            (one, ValueError, "`other` should be another memory"),
            (link, ValueError, "`other` should be another memory"),
            (memory, ValueError, "`other` should be another memory"),
        ]:
            with pytest.raises(kind, match=message):
                memory.merge(path)
        with pytest.raises(ValueError, match="`on_conflict` should be 'error' or 'join'"):
            memory.merge(other, on_conflict="both")
        assert memory.spaces == [SPACE]
    assert one.read_bytes() == before


# --- files --------------------------------------------------------------------------------------------------


def test_memories_are_merged_into_a_new_file(paths, tmp_path):
    new = tmp_path / "new.db"
    before = [path.read_bytes() for path in paths]
    (report,) = merge_files(paths[0], [paths[1]], new, on_conflict="rename")
    assert (report.num_tasks, report.num_trials) == (2, 4)
    assert list(facts(new)) == ["iris", "wine", "wine (2)", "beans"]
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    with pytest.raises(MemoryFileError, match="is there already"):
        merge_files(paths[0], [paths[1]], new, on_conflict="rename")
    with pytest.raises(ValueError, match="both memories have a task"):
        merge_files(paths[0], [paths[1]], tmp_path / "other.db", on_conflict="error")
    with pytest.raises(MemoryFileError, match="cannot write"):
        merge_files(paths[0], [paths[1]], tmp_path / "no" / "other.db", on_conflict="skip")
    assert [path.read_bytes() for path in paths] == before
    assert sorted(os.listdir(tmp_path)) == ["a.db", "b.db", "new.db"]


def test_several_memories_are_merged_together_or_not_at_all(paths, tmp_path):
    third = fill(tmp_path / "c.db", {"peas": [1.0]})
    bad = fill(tmp_path / "d.db", {"iris": [1.0]})
    before = paths[0].read_bytes()
    with pytest.raises(ValueError, match="a task 'iris'"):
        merge_files(paths[0], [third, bad], on_conflict="error")
    assert paths[0].read_bytes() == before
    reports = merge_files(paths[0], [third, paths[1], bad], on_conflict="rename")
    assert [report.num_trials for report in reports] == [1, 4, 1]
    assert list(facts(paths[0])) == ["iris", "wine", "peas", "wine (2)", "beans", "iris (2)"]


# --- names --------------------------------------------------------------------------------------------------


def test_tasks_are_renamed_and_deleted(paths):
    with Tuner(SPACE, paths[0]) as tuner:
        trials = tuner.memory.trials(2)
        tuner.rename_task("wine", "red wine")
        assert [task.name for task in tuner.tasks] == ["iris", "red wine"]
        assert tuner.memory.trials(2) == trials
        tuner.rename_task("iris", "iris")
        for old, new, kind, message in [
            ("win", "x", TrialStateError, "there is no task 'win' in the memory"),
            ("red wines", "x", TrialStateError, r"'red wines' .*\(did you mean 'red wine'\?\)"),
            ("iris", "red wine", ValueError, "`new` should be a name that no other task has"),
            ("iris", "", ValueError, "`name` should be a task's name"),
            ("iris", "x" * 5000, ValueError, "at most 4096 characters"),
        ]:
            with pytest.raises(kind, match=message):
                tuner.rename_task(old, new)
        with pytest.raises(TrialStateError, match="there is no task 'beans'"):
            tuner.memory.delete_tasks(["iris", "beans"])
        assert len(tuner.tasks) == 2
        tuner.delete_task("red wine")
        assert tuner.memory.delete_tasks(["iris", "iris"]) == {"iris": 2}
        assert tuner.tasks == [] and tuner.memory.all_trials() == []
