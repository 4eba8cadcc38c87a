"""Configurations of one search space seen in another: defaults, values, conditions, and the words for it."""

import json

import numpy as np
import pytest

from jlibo.tune import Categorical, Float, Int, SearchSpace
from jlibo.tune.arrays import unit_points
from jlibo.tune.memory.records import pending_trial
from jlibo.tune.space.fitting import Misfit, completed, describe, fit
from jlibo.tune.space.parameters import conditioned

# --- defaults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameter",
    [
        Float(0, 1, default=0.5),
        Float(1e-4, 1, log=True, default=1e-4, when={"kind": "a"}),
        Float(0, 1, step=0.25, default=0.75),
        Int(1, 5, default=2),
        Int(0, 5, default=0),
        Categorical(["a", None], default=None),
        Categorical([True, 1, (8, 8)], default=(8, 8)),
        Categorical([{"a": 1}, [2]], default={"a": 1}),
    ],
)
def test_default_is_a_part_of_the_parameter(parameter):
    kind = Categorical(["a", "b"])
    space = SearchSpace(x=parameter, kind=kind)
    spec = json.loads(json.dumps(space.spec()))
    assert spec["version"] == 3 and SearchSpace.from_spec(spec) == space
    assert space["x"].has_default and SearchSpace.from_spec(spec)["x"].default == parameter.default
    assert eval(repr(parameter), {type(parameter).__name__: type(parameter)}) == parameter
    assert conditioned(conditioned(parameter, None), parameter.when) == parameter
    assert "default" not in json.dumps(SearchSpace(x=Float(0, 1), kind=kind).spec())


def test_parameters_differ_by_their_defaults():
    assert Categorical([None, "a"]) != Categorical([None, "a"], default=None)
    assert hash(Categorical([None, "a"], default=None)) == hash(Categorical([None, "a"], default=None))
    assert Int(1, 5) != Int(1, 5, default=2) and not Int(1, 5).has_default
    assert not Categorical([None, "a"]).has_default


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(0, 1, default=2), "`default` should be a number from 0 to 1, but got 2"),
        (lambda: Float(0, 1, step=0.5, default=0.3), "`default` should be a number .* in steps of 0.5"),
        (lambda: Int(1, 5, default=1.5), "`default` should be a whole number"),
        (lambda: Int(1, 5, default="2"), "`default` should be a whole number"),
        (lambda: Categorical(["a", "b"], default="c"), "`default` should be one of 'a', 'b'"),
        (lambda: Categorical(["a", "b"], default=None), "`default` should be one of"),
    ],
)
def test_default_must_be_a_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_old_spec_has_no_default():
    fields = {"kind": "int", "low": 1, "high": 5, "log": False, "default": 2}
    with pytest.raises(ValueError, match="a mapping with the keys 'kind', 'low', 'high', 'log' and perhaps"):
        SearchSpace.from_spec({"version": 2, "parameters": {"x": fields}})
    assert SearchSpace.from_spec({"version": 3, "parameters": {"x": fields}})["x"] == Int(1, 5, default=2)


def test_missing_values_of_results_are_defaults():
    space = SearchSpace(
        kind=Categorical(["a", "b"], default="a"),
        x=Float(0, 1, default=0.5, when={"kind": "a"}),
        y=Float(0, 1),
    )
    assert completed(space, {"y": 0.25}) == {"kind": "a", "x": 0.5, "y": 0.25}
    assert completed(space, {"y": 0.25, "kind": "b"}) == {"kind": "b", "y": 0.25}
    for bad, message in [
        ({"x": 0.1}, "none for 'y'"),
        ({"y": 2.0}, r"params\['y'\]"),
        ({"y": 0, "kind": "c"}, r"params\['kind'\]"),
        ([], "`params` should be a mapping"),
    ]:
        with pytest.raises(ValueError, match=message):
            completed(space, bad)


# --- fit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (Float(0, 2), 0.5, 0.5),  # wider
        (Float(0, 0.4), 0.5, None),  # narrower
        (Float(1e-3, 1, log=True), 0.5, 0.5),  # another scale
        (Float(1e-3, 1, log=True), 0.0, None),
        (Float(0, 1, step=0.25), 0.5, 0.5),
        (Float(0, 1, step=0.25), 0.3, 0.3),  # between two steps
        (Float(0, 1, step=0.25), 1.3, None),
        (Int(0, 9), 3.0, 3),  # another kind
        (Int(0, 9), 2.5, 2.5),
        (Int(0, 9, step=3), 4, 4),
        (Int(1, 9, log=True), 2.5, 2.5),
        (Int(0, 9), "3", None),
        (Float(0, 9), 3, 3.0),
        (Float(0, 9), True, None),
        (Categorical([0.1, 0.5]), 0.5, 0.5),
        (Categorical([0.1, 0.5]), 0.3, None),
        (Categorical(["c", "a"]), "a", "a"),  # reordered, new and removed choices
        (Categorical(["c", "a"]), "b", None),
        (Categorical([(1, 2), None]), [1, 2], (1, 2)),
        (Categorical([1, True]), True, True),
    ],
)
def test_value_stays_what_it_is(parameter, value, expected):
    found = fit(SearchSpace(x=parameter), {"x": value})
    if expected is None:
        assert found.params is None and found.misfits == (Misfit("x", is_missing=False),)
        return
    assert found.params == {"x": expected} and type(found.params["x"]) is type(expected)
    is_value = not isinstance(expected, float) or isinstance(parameter, Categorical | Float)
    assert found.is_exact == (is_value and expected not in (0.3, 4))


def test_parameters_that_are_new_gone_or_without_a_value():
    space = SearchSpace(x=Float(0, 1), depth=Int(1, 5, default=2), kind=Categorical(["a", "b"]))
    assert fit(space, {"x": 0.5, "kind": "b", "gone": 7}) == (
        {"depth": 2, "kind": "b", "x": 0.5},
        (),
        False,
    )
    assert fit(space, {"x": 0.5, "kind": "b"}).is_exact  # nothing but a default was added
    assert fit(space, {"x": 5}).misfits == (Misfit("kind", True), Misfit("x", False))
    assert fit(space, {"x": 0.5, "kind": "b", "depth": 4}).params == {"depth": 4, "kind": "b", "x": 0.5}
    assert list(fit(space, {"x": 0.5, "kind": "b"}).params) == ["depth", "kind", "x"]


def test_conditions_decide_which_values_are_needed():
    space = SearchSpace(
        model=Categorical(["svc", "forest", "boost"]),
        C=Float(0, 1, when={"model": "svc"}),
        rate=Float(0, 1, when={"model": "boost"}),
        trees=Int(1, 9, default=5, when={"model": ["forest", "boost"]}),
        size=Int(2, 8, step=2),
        extra=Float(0, 1, when={"size": [4, 8]}, default=0.5),
    )
    # A parameter of a new choice needs no default: older trials do not have the choice.
    assert fit(space, {"model": "svc", "C": 0.5, "size": 2}).params == {"C": 0.5, "model": "svc", "size": 2}
    # It was there always, and is now there only for some choices: dropped elsewhere.
    dropped = fit(space, {"model": "forest", "C": 0.5, "size": 4})
    assert dropped.params == {"extra": 0.5, "model": "forest", "size": 4, "trees": 5}
    assert not dropped.is_exact
    assert fit(space, {"model": "boost", "size": 2}).misfits == (Misfit("rate", is_missing=True),)
    # Between two values of a parent it is not known which parameters exist.
    assert fit(space, {"model": "forest", "size": 5}).misfits == (Misfit("size", is_missing=False),)


def test_number_between_steps_is_between_their_unit_points():
    for space, low, middle, high in [
        (SearchSpace(x=Float(0, 1, step=0.25)), 0.25, 0.375, 0.5),
        (SearchSpace(x=Int(0, 9)), 2, 2.5, 3),
        (SearchSpace(x=Int(0, 9, step=3)), 3, 4.5, 6),
    ]:
        trials = [pending_trial(0, n, fit(space, {"x": x}).params) for n, x in enumerate((low, middle, high))]
        points = unit_points(space, trials)[:, 0]
        assert points[1] == pytest.approx((points[0] + points[2]) / 2)
        np.testing.assert_array_equal(points[[0, 2]], [space.to_unit({"x": x})[0] for x in (low, high)])


# --- words --------------------------------------------------------------------------------------------------


def test_words_for_every_change():
    old = SearchSpace(
        a=Float(0, 1), b=Int(1, 5), c=Categorical(["x", "y"]), d=Categorical(["x", "y"]), e=Float(0, 1)
    )
    new = SearchSpace(
        a=Float(0, 2),
        c=Categorical(["z", "y"]),
        d=Categorical(["y", "x"]),
        e=Categorical([0, 1]),
        f=Int(1, 5, default=2),
        g=Int(1, 5),
    )
    assert describe(new, old) == [
        "'a': Float(0, 2) now, Float(0, 1) before",
        "'b' is gone: Int(1, 5); its values are ignored",
        "'c': Categorical(['z', 'y']) now, Categorical(['x', 'y']) before; new: 'z'; gone: 'x'",
        "'d': Categorical(['y', 'x']) now, Categorical(['x', 'y']) before; in another order",
        "'e': Categorical([0, 1]) now, Float(0, 1) before; values stay what they are, also as another kind",
        "'f' is new: Int(1, 5, default=2); it is 2 where a trial has no value",
        "'g' is new: Int(1, 5)",
    ]
    assert describe(new, new) == []
