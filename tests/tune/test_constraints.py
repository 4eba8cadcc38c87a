"""What candidates have to satisfy, steps, choices that are not scalars, and spellings of the direction."""

import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

from jlibo.tune import Categorical, Float, Int, Memory, SearchSpace, Tuner
from jlibo.tune.memory.lines import export_lines, import_lines
from jlibo.tune.space import candidates
from jlibo.tune.space.constraints import make_constraint
from tests.tune.problem import SIZES

BOX = SearchSpace(low=Float(0, 1), high=Float(0, 1))
GRID = SearchSpace(low=Int(1, 5), high=Int(1, 5))


def is_ordered(params):
    return params["low"] < params["high"]


# --- constraint= ---


@pytest.mark.parametrize("space, mode", [(BOX, "adaptive"), (GRID, "adaptive"), (BOX, "paper")])
def test_every_suggestion_satisfies_the_constraint(space, mode):
    """Also those of forced exploration, and those near the best trial, which is at the edge."""
    tuner = Tuner(space, mode=mode, constraint=is_ordered, seed=0, sizes=SIZES)
    task = tuner.task("one", budget=10)
    for trial in task:
        assert is_ordered(trial.params)
        task.tell(trial, trial.params["low"] - trial.params["high"])
    assert len(task.trials) == 10


def test_candidates_are_filtered_and_keep_their_number():
    allowed = make_constraint(BOX, [is_ordered, lambda params: params["high"] < 0.2])
    assert allowed is not None
    pool = candidates.pool(BOX, seed=(0,), allowed=allowed)
    assert pool.shape == (candidates.POOL, 2) and allowed(pool).all() and len(np.unique(pool, axis=0)) > 700
    centres = np.array([[0.19, 0.18]])
    for points in (
        candidates.nearby(BOX, centres, seed=(0, 1), allowed=allowed),
        candidates.nearby(BOX, centres[:0], seed=(0, 1), allowed=allowed),
        candidates.untried(BOX, pool, seed=(0, 1), allowed=allowed),
    ):
        assert points.shape == (candidates.NEARBY, 2) and allowed(points).all()
    task = Tuner(GRID, constraint=is_ordered).task("all", budget=12)
    found = {tuple(trial.params.values()) for trial in task.ask(n=10)}
    assert len(found) == 10 == len(task._candidates.points)


def test_listed_candidates_are_filtered():
    configs = [{"low": low, "high": 0.5} for low in (0.25, 0.75, 0.375)]
    task = Tuner(BOX, candidates=configs, constraint=is_ordered).task("list", budget=2)
    assert sorted(trial.params["low"] for trial in task.ask(n=2)) == [0.25, 0.375]


@pytest.mark.parametrize(
    "space, constraint, message",
    [
        (
            BOX,
            "low < high",
            "`constraint` should be a function or a list of functions",
        ),
        (
            BOX,
            lambda params: None,
            "that returns True or False, but got None (NoneType) for the configuration",
        ),
        (
            BOX,
            lambda params: params["width"] > 1,
            "`constraint` raised KeyError: 'width', for the configuration {'high': ",
        ),
        (BOX, lambda params: False, "but got none of 49,152 drawn from the space."),
        (
            GRID,
            lambda params: False,
            "`constraint` should be satisfied by at least one candidate, but got none",
        ),
    ],
)
def test_constraints_that_cannot_be_used_raise(space, constraint, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tuner(space, constraint=constraint).task("one", budget=2).ask()


def test_constraint_sees_only_what_is_on():
    space = SearchSpace(kind=Categorical(["a", "b"]), x=Float(0, 1, when={"kind": "a"}))
    task = Tuner(space, constraint=lambda params: params.get("x", 1.0) > 0.5).task("one", budget=6)
    for trial in task:
        assert trial.params.get("x", 1.0) > 0.5
        task.tell(trial, 0.0)


# --- steps ---


@pytest.mark.parametrize(
    "parameter, values",
    [
        (Float(0, 1, step=0.25), [0.0, 0.25, 0.5, 0.75, 1.0]),
        (Float(0, 1, step=0.3), [0.0, 0.3, 0.6, 0.9]),
        (Float(-0.1, 0.2, step=0.1), [-0.1, 0.0, 0.1, 0.2]),
        (Int(1, 10, step=3), [1, 4, 7, 10]),
        (Int(-2, 3, step=2), [-2, 0, 2]),
    ],
)
def test_values_of_a_step(parameter, values):
    space = SearchSpace(n=parameter)
    assert parameter.num_values == len(values) and parameter.high == values[-1]
    points = candidates.whole_space(space)
    assert [
        space.from_unit(point)["n"] for point in points
    ] == values  # exact: 0.3 and not 0.30000000000000004
    assert [space.from_unit(point.astype(np.float32))["n"] for point in points] == values
    assert_allclose(points[:, 0], (np.arange(len(values)) + 0.5) / len(values))
    for value, point in zip(values, points, strict=True):
        assert space.to_unit({"n": value}) == point and space.validate({"n": value}) == {"n": value}
    assert space.features().num_features == len(values)  # with the constant, they span all functions
    assert eval(repr(parameter)) == parameter
    again = SearchSpace.from_spec(json.loads(json.dumps(space.spec())))
    assert again == space and space.spec()["version"] == 2


def test_step_is_part_of_a_parameter():
    assert Int(1, 9, step=1) == Int(1, 9) and Int(1, 9, step=2) != Int(1, 9)
    assert Int(1, 10, step=2) == Int(1, 9, step=2) and Float(0, 1, step=0.5) != Float(0, 1)
    assert repr(Float(0, 1, step=0.25)) == "Float(0, 1, step=0.25)"
    assert SearchSpace(n=Float(0, 1, step=0.1)).validate({"n": 0.1 + 0.2}) == {"n": 0.3}
    assert Float(0, 1e6, step=1e-3).num_values == 10**9 + 1


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Float(0, 1, step=0), "`step` should be > 0 and at most `high - low`, 1, but got 0."),
        (lambda: Int(1, 5, step=5), "`step` should be > 0 and at most `high - low`, 4, but got 5."),
        (lambda: Int(1, 5, step=0.5), "`step` should be a whole number, but got 0.5 (float)."),
        (lambda: Float(0, 1, step="a"), "`step` should be a finite number, but got 'a' (str)."),
        (lambda: Float(1, 9, log=True, step=2), "`step` should be None on a log scale, but got 2."),
        (lambda: Float(0, 1, step=1e-15), "`step` should be large enough for at most 2**40 values"),
        (
            lambda: SearchSpace(n=Float(0, 1, step=0.25)).validate({"n": 0.3}),
            "`params['n']` should be a number from 0 to 1 in steps of 0.25, but got 0.3.",
        ),
        (
            lambda: SearchSpace(n=Int(1, 9, step=2)).to_unit({"n": 4}),
            "`params['n']` should be a number from 1 to 9 in steps of 2, but got 4.",
        ),
    ],
)
def test_invalid_steps_raise(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# --- choices ---

CHOICES = [(64, 64), [64], (1, ("a", None)), {"depth": 2, "rates": [0.1, 0.5]}, None, "x", True, 1, 1.5]


def test_choices_come_back_exactly_as_they_are(tmp_path):
    space = SearchSpace(layers=Categorical(CHOICES), x=Float(0, 1, when={"layers": [(64, 64), None]}))
    configs = [{"layers": choice} | ({"x": 0.5} if choice in ((64, 64), None) else {}) for choice in CHOICES]
    with Tuner(space, memory=tmp_path / "memory.db") as tuner:
        tuner.add_task("past", configs, range(len(CHOICES)))
        lines = list(export_lines(tuner.memory))
    with Memory.open_existing(tmp_path / "memory.db") as memory:
        assert memory.space == space and eval(repr(space)) == space
        found = [trial.params["layers"] for trial in memory.snapshot()[1]]
    assert found == CHOICES and list(map(type, found)) == list(map(type, CHOICES))
    assert type(found[2][1]) is tuple
    with Memory.open(None, space=space) as copied:
        import_lines(copied, lines)
        assert [trial.params for trial in copied.snapshot()[1]] == configs


def test_choices_cannot_be_changed_from_outside():
    given = [[1], [2]]
    parameter = Categorical(given)
    given[0].append(3)
    parameter.value_of(0).append(4)
    assert parameter.choices == ([1], [2]) and parameter == Categorical([[1], [2]]) != Categorical(
        [(1,), (2,)]
    )
    assert hash(parameter) == hash(Categorical([[1], [2]]))


@pytest.mark.parametrize(
    "choices, message",
    [
        ([(1, 2), [1, 2]], "`choices` should be distinct, but got [1, 2] twice."),
        (
            [(1, 2j), 3],
            "or lists, tuples and dicts of these, which a JSON file can hold, but got 2j (complex).",
        ),
        ([{1: 2}, 3], "the keys of a dict should be strings, but got {1: 2}."),
        ([(1, float("nan")), 3], "`choices` should be finite, as numbers in a JSON file are, but got nan."),
    ],
)
def test_invalid_choices_raise(choices, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Categorical(choices)


def test_choices_that_contain_themselves_raise():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="`choices` should be nested at most 20 levels deep"):
        Categorical([endless, 1])


# --- direction ---


@pytest.mark.parametrize(
    "given, maximises",
    [
        ({}, True),
        ({"maximize": False}, False),
        ({"direction": "minimize"}, False),
        ({"direction": "maximise", "maximise": True, "maximize": True}, True),
    ],
)
def test_spellings_of_the_direction(given, maximises):
    assert Tuner(BOX, **given).maximise is maximises


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"maximise": True, "direction": "minimize"},
            "should be the same in all its spellings, but got maximise=True and direction='minimize'.",
        ),
        ({"maximize": 1}, "`maximize` should be True or False, but got 1"),
        ({"direction": "min"}, "`direction` should be 'maximize' or 'minimize', but got 'min'"),
        ({"direction": 1}, "`direction` should be a string, but got 1"),
    ],
)
def test_directions_that_conflict_raise(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Tuner(BOX, **given)
