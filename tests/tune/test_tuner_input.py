"""Input of the tuner: finite spaces, added tasks and invalid arguments; and when programs are compiled again.

Most of these tests compile nothing or programs that no other test uses.
"""

import math

import pytest

import jlibo
from jlibo.meta import AdaptiveMetaKGL
from jlibo.tune import MemoryMismatch, engine, modes
from jlibo.tune.memory.memory import Memory
from jlibo.tune.space.space import Categorical, Float, Int, SearchSpace
from tests.tune.problem import CONFIGS, SPACE, play, teach

# --- finite spaces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", modes.MODES)
def test_finite_space_is_exhausted_before_repeats(mode):
    space = SearchSpace(depth=Int(1, 3), kind=Categorical(["a", "b"]))
    tuner = jlibo.Tuner(space, mode=mode)
    with tuner.task("new", budget=9) as task:
        for trial in task:
            bad = trial.params == {"depth": 2, "kind": "b"}
            task.tell(trial, math.nan if bad else trial.params["depth"])
    keys = [tuple(trial.params.values()) for trial in task.trials]
    assert len(set(keys[:6])) == 6 and len(keys) == 9
    assert (2, "b") not in keys[6:]
    everything_fails = jlibo.Tuner(space, mode=mode).task("bad", budget=9)
    for trial in everything_fails:
        everything_fails.fail(trial)
    assert len(everything_fails.trials) == 9


# --- added tasks --------------------------------------------------------------------------------------------


def test_added_task_is_not_forced_exploration():
    tuner = jlibo.Tuner(SPACE)
    tuner.add_task("elsewhere", CONFIGS[:4], [1.0, None, math.nan, 2])
    (task,), trials = tuner.memory.snapshot()
    assert task.source == "added"
    assert [trial.score for trial in trials] == [1.0, None, None, 2.0]
    assert not any(trial.explored for trial in trials)
    assert tuner.task("elsewhere").best.params == CONFIGS[3]
    with pytest.raises(ValueError, match=r"`name` .* not in the memory yet, but got 'elsewhere'"):
        tuner.add_task("elsewhere", CONFIGS[:1], [1.0])
    with pytest.raises(ValueError, match=r"`scores` .* one for each of the 2 configs"):
        tuner.add_task("short", CONFIGS[:2], [1.0])
    with pytest.raises(ValueError, match="params"):
        tuner.add_task("bad", [CONFIGS[0], {"alpha": 0.5}], [1.0, 2.0])
    assert [task.name for task in tuner.memory.tasks()] == ["elsewhere"]  # nothing is added on an error


# --- invalid input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": {"alpha": Float(0, 1)}}, r"`space` should be a SearchSpace, but got .* \(dict\)"),
        ({"mode": "fast"}, "`mode` should be 'adaptive' or 'paper' or 'federated', but got 'fast'"),
        ({"seed": -1}, "`seed` should be a whole number"),
        ({"seed": 0.5}, "`seed` should be a whole number"),
        ({"maximise": "min"}, "`maximise` should be True or False, but got 'min'"),
        ({"candidates": []}, "`candidates` should be at least one configuration"),
        ({"candidates": [{"alpha": 0.5, "beta": -1}]}, r"params\['beta'\]"),
        ({"sizes": {"num_basis": 0}}, "`num_basis`"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        jlibo.Tuner(**({"space": SPACE} | arguments))


def test_memory_of_another_problem_raises(tmp_path):
    path = tmp_path / "memory.db"
    jlibo.Tuner(SPACE, memory=path, maximise=False).close()
    with pytest.raises(MemoryMismatch, match="'maximise' is asked for, 'minimise' is in the memory"):
        jlibo.Tuner(SPACE, memory=path)
    with Memory.open_existing(path) as memory:
        with pytest.raises(ValueError, match="'maximise' is asked for"):
            jlibo.Tuner(SPACE, memory=memory, maximise=True)
        with jlibo.Tuner(SPACE, memory=memory) as tuner:
            assert tuner.maximise is False
        assert memory.tasks() == []  # a memory that was passed open stays open


# --- compilation --------------------------------------------------------------------------------------------


def test_nothing_is_recompiled_until_a_padding_is_full(monkeypatch, count_traces):
    suggest, suggestions = count_traces(engine.suggest)
    history, fits = count_traces(engine.history_of)  # called by `learn`
    monkeypatch.setattr(engine, "suggest", suggest)
    monkeypatch.setattr(engine, "history_of", history)
    learner = AdaptiveMetaKGL(select=False, num_steps=3)  # not used by other tests, so not compiled yet
    tuner = jlibo.Tuner(SPACE, learner=learner, sizes={"num_basis": 2, "num_pair_basis": 1})
    for number in range(3):
        play(tuner.task(f"task {number}", budget=40), 40 if number == 0 else 3)
    # A task is padded from its first trial on: to 128 trials, or to its budget if that is larger.
    assert (suggestions.count, fits.count) == (1, 1)
    teach(tuner, 5)
    play(tuner.task("ninth", budget=64), 2)
    assert (suggestions.count, fits.count) == (1, 1)
    play(tuner.task("tenth", budget=129), 1)  # more than eight past tasks, and more than 128 trials
    assert (suggestions.count, fits.count) == (2, 2)
