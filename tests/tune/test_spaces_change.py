"""Memories that are used with another search space than before: what teaches, what is said, what is kept."""

import contextlib
import dataclasses
import json
import sqlite3
import warnings

import numpy as np
import pytest

import jlibo
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
    portfolio,
)
from jlibo.tune.memory import rows, schema
from jlibo.tune.memory.lines import LineError, export_lines, import_lines
from jlibo.tune.memory.salvage import salvage
from tests.tune.problem import SIZES

OLD = SearchSpace(alpha=Float(0, 1), kind=Categorical(["a", "b"]), units=Int(1, 64))
TRIALS = [
    ({"alpha": 0.125, "kind": "a", "units": 8}, 1.0),
    ({"alpha": 0.5, "kind": "b", "units": 8}, 2.0),
    ({"alpha": 0.75, "kind": "a", "units": 64}, 3.0),
    ({"alpha": 0.875, "kind": "b", "units": 2}, None),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "memory.db"
    with Memory.open(path, space=OLD) as memory:
        memory.add_finished(memory.task("past", budget=10).id, TRIALS)
    return path


def rows_of(path):
    """Return all rows of trials and tasks as they are in the file."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [
            database.execute(f"SELECT * FROM {one} ORDER BY id").fetchall() for one in ("trials", "tasks")
        ]


@contextlib.contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def changed(**parameters):
    """Return the old space with other parameters; None removes one."""
    together = dict(OLD) | parameters
    return SearchSpace({name: one for name, one in together.items() if one is not None})


CHANGES = {
    "a wider range": (changed(alpha=Float(-1, 2)), [True, True, True, True]),
    "a narrower range": (changed(alpha=Float(0, 0.6)), [True, True, False, False]),
    "another scale": (changed(alpha=Float(1e-3, 1, log=True), units=Int(1, 64, log=True)), [True] * 4),
    "a step": (changed(alpha=Float(0, 1, step=0.2), units=Int(2, 64, step=2)), [True] * 4),
    "a new parameter": (changed(depth=Int(1, 5, default=2)), [True] * 4),
    "a new choice, with a parameter": (
        changed(kind=Categorical(["a", "b", "c"]), rate=Float(0, 1, when={"kind": "c"})),
        [True] * 4,
    ),
    "a new parameter of some choices": (
        changed(rate=Float(0, 1, when={"kind": "b"})),
        [True, False, True, False],
    ),
    "a removed parameter": (changed(units=None), [True] * 4),
    "a removed choice": (changed(kind=Categorical(["a", "c"])), [True, False, True, False]),
    "reordered choices": (changed(kind=Categorical(["b", "a"])), [True] * 4),
    "another kind": (changed(alpha=Categorical([0.125, 0.5])), [True, True, False, False]),
    "a parameter that is not always there": (changed(units=Int(1, 64, when={"kind": "a"})), [True] * 4),
    "everything": (
        SearchSpace(
            alpha=Float(0.25, 4, log=True),
            kind=Categorical(["c", "b", "a"]),
            extra=Categorical([None, "x"], default=None),
        ),
        [False, True, True, True],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_memory_opens_with_a_changed_space(path, name):
    space, fits = CHANGES[name]
    before = rows_of(path)
    with pytest.warns(SpaceChangedWarning) as said, Memory.open(path, space=space) as memory:
        trials = memory.all_trials()
    assert len(said) == 1
    words = str(said[0].message)
    assert str(path) in words and f"that teach the model: {sum(fits[:3])} of 3." in words
    assert all(repr(one) in words for one in set(space.values()) - set(OLD.values()))
    assert [trial.fits for trial in trials] == fits
    assert [trial.as_written for trial in trials] == [params for params, _ in TRIALS]
    for trial in trials:
        if trial.fits:
            assert set(trial.params) == set(space.active_names(trial.params))
    assert rows_of(path) == before
    # Said once: it is recorded in the file.
    data = path.read_bytes()
    with silent(), Memory.open(path, space=space) as memory:
        assert memory.all_trials() == trials
    assert path.read_bytes() == data
    # With the old space, all is as it was.
    with silent(), Memory.open(path, space=OLD) as memory:
        assert [(trial.params, trial.score) for trial in memory.all_trials()] == TRIALS
        assert all(trial.fits and trial.runnable and trial.written is None for trial in memory.all_trials())
        assert memory.spaces == [OLD, space]


def test_defaults_and_removed_values(path):
    with pytest.warns(SpaceChangedWarning, match=r"'depth' is new(?s:.*)'units' is gone"):
        memory = Memory.open(path, space=changed(depth=Int(1, 5, default=2), units=None))
    with memory:
        first = memory.all_trials()[0]
        assert first.params == {"alpha": 0.125, "depth": 2, "kind": "a"} and first.written == TRIALS[0][0]


def test_returning_to_an_older_space_says_what_was_added_since(path):
    new = changed(alpha=Float(0, 2), depth=Int(1, 5, default=2))
    with pytest.warns(SpaceChangedWarning), Memory.open(path, space=new) as memory:
        memory.add_finished(
            memory.task("next").id,
            [({"alpha": alpha, "kind": "a", "units": 1, "depth": 4}, 4.0) for alpha in (0.5, 1.5)],
        )
    words = r"'depth' is gone(?s:.*)that teach the model: 4 of 5\. Out of range: 'alpha' \(1\)"
    with pytest.warns(SpaceChangedWarning, match=words):
        memory = Memory.open(path, space=OLD)
    with memory:
        assert [trial.fits for trial in memory.all_trials()] == [True] * 5 + [False]
        assert memory.all_trials()[4].params == {"alpha": 0.5, "kind": "a", "units": 1}
    with silent():
        for space in (new, OLD, new, OLD):
            with Memory.open(path, space=space) as memory:
                assert memory.spaces == [OLD, new] and len(memory.all_trials()) == 6
            with Memory.open_existing(path) as memory:
                assert memory.space == space  # the one that was asked for last


def test_new_parameter_without_a_default_is_an_error_if_nothing_would_teach(path):
    data = path.read_bytes()
    with pytest.raises(MemoryMismatch) as caught:
        Memory.open(path, space=changed(depth=Int(1, 5), rate=Float(0, 1, log=False)))
    assert str(caught.value).splitlines() == [
        f"'{path}' has 3 trials with a score, and none of them would teach: a parameter that is new needs a "
        "default, the value that they had. Give it, or another path:",
        "  'depth': Int(1, 5, default=...)",
        "  'rate': Float(0, 1, default=...)",
    ]
    with pytest.raises(MemoryMismatch, match="remembers another problem"):
        Memory.open(path, space=SearchSpace(depth=Int(1, 5, default=2)))
    assert path.read_bytes() == data
    with silent(), Memory.open_existing(path) as memory:
        assert memory.spaces == [OLD]
    # Some trials have it, and the words say what to do for the others.
    words = r"3 of 4\. Without a value: 'depth' \(1\); give the value that they had as `default=`"
    with pytest.warns(SpaceChangedWarning), Memory.open(path, space=changed(units=None)) as memory:
        memory.add_finished(memory.task("next").id, [({"alpha": 0.5, "kind": "a"}, 1.0)])
    with pytest.warns(SpaceChangedWarning, match=words.replace("depth", "units")):
        Memory.open(path, space=changed(alpha=Float(0, 2))).close()


def test_empty_memory_takes_any_space_silently(tmp_path):
    with silent():
        Memory.open(tmp_path / "memory.db", space=OLD).close()
        with Memory.open(tmp_path / "memory.db", space=SearchSpace(other=Int(1, 3))) as memory:
            memory.add_finished(memory.task("first").id, [({"other": 2}, 1.0)])
        Memory.open(tmp_path / "memory.db", space=SearchSpace(other=Int(1, 3))).close()


def test_a_change_that_could_not_be_said_is_said_again(path):
    space = changed(alpha=Float(0, 2))
    for _ in range(2):
        with silent(), pytest.raises(SpaceChangedWarning):
            Memory.open(path, space=space)
    with pytest.warns(SpaceChangedWarning):
        Memory.open(path, space=space).close()
    with silent():
        Memory.open(path, space=space).close()


def test_processes_with_different_spaces_share_a_memory(path):
    """An older program goes on in its space while a newer one works in another."""
    new = changed(depth=Int(1, 5, default=2), kind=Categorical(["a", "c"]))
    older = Memory.open(path, space=OLD)
    with pytest.warns(SpaceChangedWarning):
        newer = Memory.open(path, space=new)
    with older, newer:
        task = older.task("shared")
        added = older.add_finished(task.id, [({"alpha": 0.5, "kind": "a", "units": 4}, 1.0)])
        newer.add_finished(task.id, [({"alpha": 0.25, "kind": "c", "units": 4, "depth": 5}, 2.0)])
        assert older.space == OLD and newer.space == new
        assert [trial.params["depth"] for trial in newer.trials(task.id)] == [2, 5]
        seen = older.trials(task.id)
        assert seen[0] == added[0] and [trial.fits for trial in seen] == [True, False]
        with pytest.raises(ValueError, match="unknown name 'depth'"):
            older.add_finished(task.id, [({"alpha": 0.25, "kind": "a", "units": 4, "depth": 5}, 2.0)])
        with pytest.raises(ValueError, match=r"params\['kind'\]"):
            newer.add_finished(task.id, [({"alpha": 0.25, "kind": "b", "units": 4, "depth": 5}, 2.0)])


def test_memory_in_ram_is_seen_in_two_spaces():
    memory = Memory.open(None, space=OLD)
    memory.add_finished(memory.task("past").id, TRIALS)
    assert memory.with_space(OLD) is memory
    with pytest.warns(SpaceChangedWarning):
        other = memory.with_space(changed(alpha=Float(0, 0.6)))
    with silent():
        memory.with_space(changed(alpha=Float(0, 0.6)))
    assert [trial.fits for trial in other.all_trials()] == [True, True, False, False]
    assert all(trial.fits for trial in memory.all_trials())
    other.close()
    with pytest.raises(MemoryFileError, match="closed"):
        memory.all_trials()


# --- pending trials -----------------------------------------------------------------------------------------


def test_pending_trials_are_claimed_only_in_their_space(path):
    with Memory.open(path, space=OLD) as memory:
        task = memory.task("past")
        for params in ({"alpha": 0.25}, {"alpha": 0.75}, {"units": 3}):
            memory.add_trial(task.id, TRIALS[0][0] | params, explored=False, owner=None)

    def claims(space):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpaceChangedWarning)
            memory = Memory.open(path, space=space)
        with memory:
            found = []
            while (trial := memory.claim_pending(task.id, owner="me")) is not None:
                found.append(trial.params)
            memory.release("me")
            return found

    # Defaults are added. A value that is gone, out of range or between two steps is left to others.
    everything = [TRIALS[0][0] | params for params in ({"alpha": 0.25}, {"alpha": 0.75}, {"units": 3})]
    assert claims(changed(depth=Int(1, 5, default=2))) == [one | {"depth": 2} for one in everything]
    assert claims(changed(alpha=Float(0, 0.5))) == [everything[0], everything[2]]
    assert claims(changed(units=Int(2, 64, step=2))) == everything[:2]
    assert claims(changed(units=None)) == []
    assert claims(OLD) == everything


def test_results_do_not_finish_pending_trials_of_another_space(path):
    with Tuner(OLD, path) as tuner:
        tuner.task("past").enqueue({"alpha": 0.25, "kind": "a", "units": 1})
    with pytest.warns(SpaceChangedWarning):
        tuner = Tuner(changed(units=None), path)
    with tuner:
        task = tuner.task("past")
        assert task.add({"alpha": 0.25, "kind": "a"}, 9.0) == 1
        assert task.add({"alpha": 0.5, "kind": "b"}, 2.0) == 0  # there already, with another value of `units`
        states = [trial.state for trial in tuner.memory.trials(1)]
        assert states == ["complete"] * 3 + ["failed", "pending", "complete"]


# --- files --------------------------------------------------------------------------------------------------


def test_trial_of_no_known_space_is_damage(path):
    with pytest.warns(SpaceChangedWarning):
        Memory.open(path, space=changed(alpha=Float(0, 2))).close()
    with Memory.open(path, space=OLD) as memory:
        trial = memory.all_trials()[0]
        with memory.writing() as database:
            foreign = dataclasses.replace(trial, number=9, params={"alpha": 3.0, "kind": "a", "units": 1})
            rows.insert_trial(database, foreign)
        with pytest.raises(MemoryFileError, match=r"is damaged \(trial 5: .*from 0 to 1, but got 3"):
            memory.all_trials()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "[]",
        "[1]",
        '[{"space": {}, "since": "", "told": 1}]',
        '[{"space": SPACE, "since": "then", "told": 1}]',
        '[{"space": SPACE, "since": "", "told": -1}]',
        '[{"space": SPACE, "since": "", "told": true}]',
        '[{"space": SPACE, "since": ""}]',
        "[" * 100_000,
    ],
)
def test_damaged_list_of_spaces_raises(path, value):
    text = value.replace("SPACE", json.dumps(OLD.spec()))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO meta VALUES ('spaces', ?)", (text,))
        with pytest.raises(MemoryFileError, match=r"is damaged .*checksum"):
            Memory.open_existing(path)
        schema.seal_meta(database)
    before = path.read_bytes()
    with pytest.raises(MemoryFileError, match=r"is damaged .*search space"):
        Memory.open_existing(path)
    with pytest.raises(MemoryFileError, match="is damaged"):
        Memory.open(path, space=changed(alpha=Float(0, 2)))
    assert path.read_bytes() == before


def two_spaces(path):
    """Use the memory with a second space, and return it."""
    new = changed(alpha=Float(0, 0.6), units=None)
    with pytest.warns(SpaceChangedWarning), Memory.open(path, space=new) as memory:
        memory.add_finished(memory.task("next").id, [({"alpha": 0.25, "kind": "b"}, 4.0)])
    return new


def facts(memory):
    return [(t.number, t.params, t.as_written, t.state, t.score, t.fits) for t in memory.all_trials()]


def test_export_and_import_keep_the_spaces_of_trials(path, tmp_path):
    new = two_spaces(path)
    with Memory.open_existing(path) as memory:
        lines = list(export_lines(memory))
        before = facts(memory)
    assert [("space" in json.loads(line)) for line in lines] == [True] * 4 + [False]
    with Memory.open(tmp_path / "copy.db", space=new) as copied:
        with pytest.warns(SpaceChangedWarning, match="has trials of another search space(?s:.*)3 of 4"):
            assert import_lines(copied, lines).num_trials == 5
        with silent():
            assert import_lines(copied, lines).num_skipped == 5
        assert facts(copied) == before and list(export_lines(copied)) == lines
    with silent():
        Memory.open(tmp_path / "copy.db", space=new).close()
    bad = json.dumps(json.loads(lines[0]) | {"space": {"version": 9, "parameters": {}}})
    with Memory.open(None, space=new) as memory:
        with pytest.raises(LineError, match=r"^line 1: `spec\['version'\]`"):
            import_lines(memory, [bad])
        assert memory.spaces == [new]


def test_imported_lines_get_defaults():
    with Memory.open(None, space=changed(depth=Int(1, 5, default=2))) as memory:
        line = {"task": "t", "number": 0, "params": TRIALS[0][0], "score": 1.0, "state": "complete"}
        import_lines(memory, [json.dumps(line)])
        assert memory.all_trials()[0].params == TRIALS[0][0] | {"depth": 2}


def test_salvage_keeps_the_spaces(path, tmp_path):
    two_spaces(path)
    with Memory.open_existing(path) as memory:
        before, spaces = facts(memory), memory.spaces
    assert salvage(path, tmp_path / "new.db").complete
    with silent(), Memory.open_existing(tmp_path / "new.db") as memory:
        assert facts(memory) == before and memory.spaces == spaces
    with silent(), Memory.open(tmp_path / "new.db", space=spaces[1]) as memory:
        assert memory.space == spaces[1]


# --- the tuner ----------------------------------------------------------------------------------------------


def test_frames_have_all_trials_and_say_which_fit(path):
    space = changed(alpha=Categorical(["none", 0.5]), units=Int(2, 8, step=2))
    with pytest.warns(SpaceChangedWarning):
        tuner = Tuner(space, path)
    with tuner:
        frame = tuner.to_dataframe()
        assert list(frame["fits"]) == [False, True, False, False]
        assert list(frame["alpha"]) == [0.125, 0.5, 0.75, 0.875] and list(frame["units"]) == [8, 8, 64, 2]
        tuner.add_task("copy", frame.drop(columns="task"))
        assert len(tuner.to_dataframe()) == 5
        assert [summary.best_score for summary in tuner.tasks] == [2.0, 2.0]
        assert "2" in tuner._repr_html_()
    with Tuner(changed(depth=Int(1, 3, default=3)), None) as tuner:
        tuner.add_task("old", [{"alpha": 0.5, "kind": "a", "units": 2, "score": 1.0}])
        tuner.task("old").add({"alpha": 0.75, "kind": "a", "units": 2}, 2.0)
        assert list(tuner.to_dataframe()["depth"]) == [3, 3] and "fits" not in tuner.to_dataframe()


def test_tuner_learns_from_what_fits_in_a_changed_space(tmp_path):
    """A narrower range, a new parameter with a default and a removed one, in a running task too."""
    path = tmp_path / "memory.db"
    old = SearchSpace(alpha=Float(0, 1), solver=Categorical(["adam", "sgd"]))
    configs = [
        {"alpha": alpha, "solver": solver} for alpha in np.linspace(0, 1, 11) for solver in ("adam", "sgd")
    ]
    with Tuner(old, path) as tuner:
        for number in range(3):
            tuner.add_task(f"past {number}", configs, [-abs(one["alpha"] - 0.3) for one in configs])
        running = tuner.task("running", budget=5)
        best = {"alpha": 0.875, "solver": "adam"}
        running.add([best | {"score": 9.0}, best | {"alpha": 0.25, "score": 1.0}])
        running.enqueue(best | {"alpha": 0.5})  # cannot be run any more
    new = SearchSpace(alpha=Float(0, 0.8), beta=Float(1e-3, 1e3, log=True, default=1.0))
    with pytest.warns(SpaceChangedWarning, match=r"'beta' is new(?s:.*)'solver' is gone"):
        tuner = Tuner(new, path, sizes=SIZES)
    with tuner:
        # Trials that differ only in the parameter that is gone are two measurements of one configuration.
        learned = [trial.params for trial in tuner.memory.trials(1) if trial.fits]
        assert learned == [{"alpha": one["alpha"], "beta": 1.0} for one in configs if one["alpha"] <= 0.8]
        assert tuner.knowledge().num_tasks == 3  # only one trial of the running task fits
        running = tuner.task("running", budget=7)
        assert (running.best.params, running.best.score) == ({"alpha": 0.25, "beta": 1.0}, 1.0)
        assert [(one.params["alpha"], one.score) for one in running.trials] == [(0.875, 9.0), (0.25, 1.0)]
        assert "solver" in running.trials[0].params
        asked = []
        for trial in running:
            assert new.validate(trial.params) == trial.params
            asked.append(abs(trial.params["alpha"] - 0.3))
            running.tell(trial, -asked[-1])
        # The budget is that of all trials, but not of the one that is stuck.
        assert len(asked) == 5 and running.should_stop and len(running.trials) == 7
        assert np.median(asked) < 0.2  # the past is used
    stepped = SearchSpace(alpha=Float(0, 0.8, step=0.2), beta=new["beta"])
    with pytest.warns(SpaceChangedWarning, match="60 of 73"):
        tuner = Tuner(stepped, path, sizes=SIZES)
    with tuner:
        # A trial between two steps teaches, but it is not a configuration to suggest.
        between, there = ({"alpha": alpha, "beta": 1.0} for alpha in (0.1, 0.2))
        assert [trial.params for trial in tuner.memory.trials(1) if trial.fits].count(between) == 2
        assert not portfolio._is_choice(tuner.model, between) and portfolio._is_choice(tuner.model, there)
    with pytest.warns(SpaceChangedWarning):
        tuner = Tuner(old, path)
    with tuner:
        assert tuner.task("running", budget=20).ask().params == best | {"alpha": 0.5}


def test_tuner_takes_an_open_memory_of_another_space(path):
    new = changed(alpha=Float(0, 0.6))
    with Memory.open_existing(path) as memory:
        with pytest.warns(SpaceChangedWarning) as said:
            one = Tuner(new, memory)
        assert said[0].filename == __file__  # the line of the user
        other = Tuner(OLD, memory)
        assert [tuner.memory.space for tuner in (one, other)] == [new, OLD]
        assert [task.best_score for tuner in (one, other) for task in tuner.tasks] == [2.0, 3.0]
        assert memory.space == OLD  # opened without a space: it has the one that was asked for last
    assert isinstance(jlibo.tune.SpaceChangedWarning("x"), UserWarning)
