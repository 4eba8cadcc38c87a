"""Search spaces: round trips between values and unit points, the mapping interface, error messages."""

import copy
import dataclasses
import json
import math
import pickle
import re

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import jlibo
from jlibo.tune import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(
    alpha=Float(0, 1),
    depth=Int(2, 9),
    kind=Categorical(["tree", "linear", None, 3]),
    lam=Float(1e-6, 10.0, log=True),
    units=Int(1, 4096, log=True),
    warm=Categorical([True, False]),
)
CONFIGURATION = dict(alpha=0.25, depth=3, kind="linear", lam=1e-3, units=64, warm=False)
examples = hypothesis.settings(max_examples=50)


def generator(seed=0):
    return np.random.default_rng(seed)


# --- strategies ---


def floats(low=-1e9, high=1e9):
    return st.floats(low, high, allow_nan=False)


@st.composite
def float_parameters(draw):
    log = draw(st.booleans())
    low, high = sorted([draw(floats(1e-200, 1e200) if log else floats()) for _ in range(2)])
    hypothesis.assume(high > low and (not log or math.log(high) > math.log(low)))
    return Float(low, high, log=log)


@st.composite
def int_parameters(draw):
    log = draw(st.booleans())
    largest = draw(st.sampled_from([3, 100, 10**6, 2**40]))
    low = draw(st.integers(1 if log else -largest, largest - 1))
    return Int(low, draw(st.integers(low + 1, largest)), log=log)


choices = st.none() | st.booleans() | st.integers() | floats() | st.text(max_size=4)
categorical_parameters = st.lists(
    choices, min_size=2, max_size=6, unique_by=lambda value: (type(value), value)
).map(Categorical)
parameters = float_parameters() | int_parameters() | categorical_parameters
names = st.text(min_size=1, max_size=5).filter(str.strip)
spaces = st.dictionaries(names, parameters, min_size=1, max_size=4)


def values_of(parameter):
    if isinstance(parameter, Float):
        return st.floats(parameter.low, parameter.high)
    if isinstance(parameter, Int):
        return st.integers(parameter.low, parameter.high)
    return st.sampled_from(parameter.choices)


def same(parameter, value, other):
    if not isinstance(parameter, Float):
        return type(value) is type(other) and value == other
    if parameter.log:
        return math.isclose(value, other, rel_tol=1e-12)
    return abs(value - other) <= 1e-14 * max(abs(parameter.low), abs(parameter.high))


# --- round trips ---


@examples
@given(st.data())
def test_to_unit_then_from_unit_is_the_identity(data):
    space = SearchSpace(data.draw(spaces))
    params = {name: data.draw(values_of(parameter)) for name, parameter in space.items()}
    point = space.to_unit(params)
    assert point.shape == (len(space),) and point.dtype == np.float64
    assert (point >= 0).all() and (point <= 1).all()
    back = space.from_unit(point)
    for name, parameter in space.items():
        assert same(parameter, params[name], back[name])
    assert space.validate(params) == params and space.validate(back) == back


@examples
@given(st.data())
def test_from_unit_of_any_point_is_in_the_space(data):
    space = SearchSpace(data.draw(spaces))
    corner_or_inside = st.sampled_from([0.0, 1.0, 0.5]) | floats(0, 1)
    points = np.array(
        data.draw(st.lists(st.tuples(*[corner_or_inside for _ in space]), min_size=1, max_size=4))
    )
    snapped = space.snap(points)
    for point, place in zip(points, snapped, strict=True):
        params = space.from_unit(point)
        assert list(params) == list(space.names)
        for name, parameter in space.items():
            if not isinstance(parameter, Categorical):
                assert type(params[name]) is (float if isinstance(parameter, Float) else int)
                assert parameter.low <= params[name] <= parameter.high
            else:
                assert any(params[name] is choice for choice in parameter.choices)
        np.testing.assert_array_equal(space.to_unit(params), place)
    np.testing.assert_allclose(space.snap(snapped), snapped, rtol=0, atol=1e-6)
    json.dumps(space.from_unit(points[0]), allow_nan=False)


@pytest.mark.parametrize("parameter", [Int(-3, 12), Int(1, 300, log=True), Int(7, 8), Int(7, 8, log=True)])
def test_int_round_trip_in_float32(parameter):
    space = SearchSpace(n=parameter)
    numbers = range(parameter.low, parameter.high + 1)
    units = np.array([space.to_unit(dict(n=n)) for n in numbers])
    assert (np.diff(units[:, 0]) > 0).all() and units.min() > 0 and units.max() < 1
    np.testing.assert_array_equal(space.snap(units), units)
    for n, unit in zip(numbers, units, strict=True):
        assert space.from_unit(unit) == dict(n=n)
        assert space.from_unit(unit.astype(np.float32)) == dict(n=n)
        assert space.from_unit(jnp.asarray(unit, jnp.float32)) == dict(n=n)


@pytest.mark.parametrize("log", [False, True])
def test_int_round_trip_up_to_2_to_the_40(log):
    space = SearchSpace(n=Int(1, 2**40, log=log))
    for n in (1, 2, 3, 2**39 - 1, 2**40 - 2, 2**40 - 1, 2**40, *generator().integers(1, 2**40, 200).tolist()):
        assert space.from_unit(space.to_unit(dict(n=n))) == dict(n=n)


def test_to_unit_of_known_values():
    point = SPACE.to_unit(CONFIGURATION)
    ends = np.log(0.5), np.log(4096.5)
    expected = [0.25, 1.5 / 8, 1.5 / 4, 3 / 7, (np.log(64) - ends[0]) / (ends[1] - ends[0]), 1.5 / 2]
    np.testing.assert_allclose(point, expected, rtol=1e-14)
    assert SPACE.from_unit(point) == CONFIGURATION | {"lam": pytest.approx(1e-3, rel=1e-12)}


def test_bounds_are_exact():
    space = SearchSpace(a=Float(0.1, 0.7), b=Float(1e-7, 3e-3, log=True), c=Int(2, 5), d=Int(2, 5, log=True))
    assert space.from_unit(np.zeros(4)) == dict(a=0.1, b=1e-7, c=2, d=2)
    assert space.from_unit(np.ones(4)) == dict(a=0.7, b=3e-3, c=5, d=5)
    np.testing.assert_array_equal(space.to_unit(dict(a=0.1, b=1e-7, c=2, d=2))[:2], 0)
    np.testing.assert_array_equal(space.to_unit(dict(a=0.7, b=3e-3, c=5, d=5))[:2], 1)


def test_round_off_beyond_a_bound_is_clipped():
    space = SearchSpace(a=Float(-1, 1), b=Float(1e-5, 1e5, log=True))
    params = dict(a=1 + 1e-15, b=1e-5 * (1 - 1e-15))
    assert space.validate(params) == dict(a=1.0, b=1e-5)
    np.testing.assert_array_equal(space.to_unit(params), [1, 0])
    assert space.from_unit(np.array([1 + 1e-7, -1e-7])) == dict(a=1.0, b=1e-5)
    with pytest.raises(ValueError, match="b"):
        space.to_unit(dict(a=0, b=0.99999e-5))


@pytest.mark.parametrize(
    "parameter",
    [Float(0, 1), Float(1e-3, 1, log=True), Float(0, 1, step=0.1), Int(1, 9), Int(1, 9, step=2)],
    ids=repr,
)
def test_codes_of_many_values_are_those_of_each(parameter):
    inside = np.random.default_rng(0).uniform(parameter.low, parameter.high, 20).tolist()
    beyond = [parameter.high * (1 + 1e-13)] if isinstance(parameter, Float) else []  # by round-off
    values = [parameter.low, parameter.high, *beyond, *inside]
    for some in (values, inside, []):
        alone = [parameter.code_near("x", value) for value in some]
        assert parameter.codes_near("x", some).tolist() == alone
    for wrong in (True, np.nan, 10**400, "1", parameter.high + 1):
        with pytest.raises(ValueError, match="x"):
            parameter.codes_near("x", [parameter.low, wrong])


def test_numpy_and_jax_scalars_become_python_values():
    params = dict(
        alpha=np.float32(0.25),
        depth=np.int64(3),
        kind=np.str_("linear"),
        lam=jnp.asarray(1.0),
        units=64.0,
        warm=np.bool_(False),
    )
    plain = SPACE.validate(params)
    assert plain == CONFIGURATION | {"lam": 1.0}
    assert [type(value) for value in plain.values()] == [float, int, str, float, int, bool]
    json.dumps(plain, allow_nan=False)


def test_choices_of_different_types_are_distinct():
    space = SearchSpace(c=Categorical([1, True, 1.0, "1", None, 0]))
    for index, choice in enumerate([1, True, 1.0, "1", None, 0]):
        unit = space.to_unit(dict(c=choice))
        assert unit == (index + 0.5) / 6
        assert space.from_unit(unit)["c"] is space["c"].choices[index]
    assert space.to_unit(dict(c=0.0)) == 5.5 / 6  # an int may be written as a float
    with pytest.raises(ValueError, match=r"`params\['c'\]` should be one of .*, but got False \(bool\)"):
        space.to_unit(dict(c=False))
    with pytest.raises(ValueError, match=r"but got 1 \(int\)"):
        SearchSpace(c=Categorical([True, False])).to_unit(dict(c=1))
    assert Categorical([True, 2]) != Categorical([1, 2]) != Categorical([1.0, 2])
    assert Categorical([1, 2]) == Categorical((1, np.int64(2)))
    assert Categorical(["a", "b"]) != Categorical(["b", "a"])
    assert len({Categorical([True, 2]), Categorical([1, 2]), Categorical(range(1, 3))}) == 2


# --- mapping interface ---


def test_space_is_a_mapping_sorted_by_name():
    assert SPACE.names == tuple(SPACE) == ("alpha", "depth", "kind", "lam", "units", "warm")
    assert SPACE.num_parameters == len(SPACE) == 6
    assert SPACE["alpha"] == Float(0, 1) and "alpha" in SPACE and "beta" not in SPACE
    assert SearchSpace(SPACE) == SPACE == SearchSpace({name: SPACE[name] for name in reversed(SPACE.names)})
    assert SearchSpace({"b c": Int(0, 1)}, a=Float(0, 1)).names == ("a", "b c")
    with pytest.raises(KeyError, match=r"no parameter 'alhpa' \(did you mean 'alpha'"):
        SPACE["alhpa"]


def test_space_is_immutable_hashable_and_can_be_copied():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPACE.extra = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPACE["alpha"].low = 1
    with pytest.raises(TypeError):
        SPACE["alpha"] = Float(0, 2)
    given = dict(a=Float(0, 1))
    space = SearchSpace(given)
    given["b"] = Float(0, 1)
    assert space.names == ("a",)
    for clone in (pickle.loads(pickle.dumps(SPACE)), copy.deepcopy(SPACE)):
        assert clone == SPACE and hash(clone) == hash(SPACE)
    assert dict(SPACE) != SPACE and SearchSpace({**SPACE, "alpha": Float(0, 2)}) != SPACE


def test_repr_has_one_line_per_parameter_and_evaluates():
    assert repr(SearchSpace(b=Int(1, 8, log=True), a=Float(0, 2.5))) == (
        "SearchSpace({\n    'a': Float(0, 2.5),\n    'b': Int(1, 8, log=True),\n})"
    )
    assert eval(repr(SPACE)) == SPACE


@examples
@given(spaces)
def test_spec_round_trips_through_json(chosen):
    space = SearchSpace(chosen)
    text = json.dumps(space.spec(), allow_nan=False)
    again = SearchSpace.from_spec(json.loads(text))
    assert again == space and hash(again) == hash(space) and json.dumps(again.spec()) == text
    assert space.difference(again) == []


def test_spec_format():
    space = SearchSpace(b=Categorical(["x", 1]), a=Int(1, 8, log=True), c=Float(0, 1))
    assert space.spec() == {
        "version": 1,
        "parameters": {
            "a": {"kind": "int", "low": 1, "high": 8, "log": True},
            "b": {"kind": "categorical", "choices": ["x", 1]},
            "c": {"kind": "float", "low": 0.0, "high": 1.0, "log": False},
        },
    }


def test_difference():
    here = SearchSpace(a=Float(0, 1), b=Int(1, 3), c=Categorical([1, 2]), same=Float(0, 1))
    there = SearchSpace(a=Float(0, 2), c=Categorical([True, 2]), d=Float(1, 2, log=True), same=Float(0, 1))
    assert here.difference(there) == [
        "'a': Float(0, 1) here, Float(0, 2) there",
        "'b' is only here: Int(1, 3)",
        "'c': Categorical([1, 2]) here, Categorical([True, 2]) there",
        "'d' is only there: Float(1, 2, log=True)",
    ]
    named = here.difference(there, here="in this run", there="in the memory")
    assert named[0] == "'a': Float(0, 1) in this run, Float(0, 2) in the memory"
    assert there.difference(here)[1] == "'b' is only there: Int(1, 3)"


def test_samples_are_stratified_snapped_and_reproducible():
    num = 40
    points = SPACE.sample_unit(num, rng=generator(3))
    assert points.shape == (num, 6) and points.dtype == np.float64
    np.testing.assert_array_equal(points, SPACE.sample_unit(num, rng=generator(3)))
    assert (points != SPACE.sample_unit(num, rng=generator(4))).any()
    np.testing.assert_allclose(SPACE.snap(points), points, atol=1e-12)
    for name in ("alpha", "lam"):  # one point in each of the equal strata
        column = points[:, SPACE.names.index(name)]
        assert sorted(np.floor(column * num + 1e-9).astype(int)) == list(range(num))
    for name in ("depth", "kind", "warm"):  # each value equally often
        _, counts = np.unique(points[:, SPACE.names.index(name)], return_counts=True)
        assert len(counts) == SPACE[name].num_values and counts.min() == counts.max() == num / len(counts)
    assert SPACE.sample_unit(1, rng=generator()).shape == (1, 6)


def test_space_modules_do_not_import_jax():
    for module in ("space", "parameters"):
        path = f"{next(iter(jlibo.__path__))}/tune/space/{module}.py"
        with open(path, encoding="utf-8") as file:
            assert not re.search(r"^\s*(import|from) (jax|equinox)\b", file.read(), re.MULTILINE)


# --- error messages ---


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Float(1, 1), "`low` should be below `high` 1, but got 1."),
        (lambda: Float(2, 1), "`low` should be below `high` 1, but got 2."),
        (lambda: Float(0, 1, log=True), "`low` should be > 0 on a log scale, but got 0."),
        (lambda: Float(float("nan"), 1), "`low` should be a finite number, but got nan."),
        (lambda: Float(0, math.inf), "`high` should be a finite number, but got inf."),
        (lambda: Float(0, 10**400), "`high` should be a finite number, but got an int too large"),
        (lambda: Float("0", 1), "`low` should be a finite number, but got '0' (str)."),
        (lambda: Float(False, 1), "`low` should be a finite number, but got False (bool)."),
        (lambda: Float(-1e308, 1e308), "`high` should be a finite distance above `low` -1e+308"),
        (lambda: Float(1e9, math.nextafter(1e9, 2e9), log=True), "`high` should be far enough above `low`"),
        (lambda: Float(0, 1, log=1), "`log` should be True or False, but got 1 (int)."),
        (lambda: Int(3, 3), "`low` should be below `high` 3, but got 3."),
        (lambda: Int(0.5, 3), "`low` should be a whole number, but got 0.5 (float)."),
        (lambda: Int(0, math.nan), "`high` should be a whole number, but got nan (float)."),
        (lambda: Int(0, True), "`high` should be a whole number, but got True (bool)."),
        (lambda: Int(0, 8, log=True), "`low` should be > 0 on a log scale, but got 0."),
        (lambda: Int(0, 2**41), "`high` should be between -2**40 and 2**40, 1,099,511,627,776, but got"),
        (lambda: Categorical("ab"), "`choices` should be a list of choices in a fixed order, but got 'ab'"),
        (lambda: Categorical({"a", "b"}), "`choices` should be a list of choices in a fixed order"),
        (lambda: Categorical(3), "`choices` should be a list of choices in a fixed order, but got 3 (int)."),
        (lambda: Categorical(["a"]), "`choices` should be at least 2 distinct choices, but got ['a']."),
        (lambda: Categorical(["a", "b", "a"]), "`choices` should be distinct, but got 'a' twice."),
        (lambda: Categorical([1, {2, 3}]), "which a JSON file can hold, but got {2, 3} (set)."),
        (lambda: Categorical([1.0, math.inf]), "`choices` should be finite"),
        (lambda: SearchSpace(), "`parameters` should be at least one parameter, but got none."),
        (lambda: SearchSpace({}), "`parameters` should be at least one parameter, but got none."),
        (lambda: SearchSpace([("a", Float(0, 1))]), "`parameters` should be a mapping from names"),
        (lambda: SearchSpace({1: Float(0, 1)}), "that are not empty, but got the name 1."),
        (lambda: SearchSpace({" ": Float(0, 1)}), "that are not empty, but got the name ' '."),
        (lambda: SearchSpace(a=(0, 1)), "`parameters['a']` should be a Float, an Int or a Categorical, but"),
        (lambda: SearchSpace({"a": Int(0, 1)}, a=Int(0, 1)), "names given once, but got 'a' in the mapping"),
        (lambda: SPACE.sample_unit(0, rng=generator()), "`num` should be a whole number >= 1, but got 0."),
        (lambda: SPACE.sample_unit(3, rng=0), "`rng` should be a NumPy generator, such as np.random.default"),
        (lambda: SPACE.from_unit(np.zeros(5)), "`point` should be an array of shape [6], but got shape [5]."),
        (lambda: SPACE.from_unit("a"), "`point` should be numbers in [0, 1], but got 'a'."),
        (
            lambda: SPACE.from_unit(np.full(6, np.nan)),
            "`point` should be numbers in [0, 1], but got nan at [0].",
        ),
        (lambda: SPACE.snap(np.zeros(6)), "`points` should be an array of shape [points, 6]"),
        (
            lambda: SPACE.snap(2 * np.eye(6)[1:]),
            "`points` should be numbers in [0, 1], but got 2.0 at [0, 1].",
        ),
        (lambda: SPACE.difference(dict(SPACE)), "`other` should be a SearchSpace"),
    ],
)
def test_invalid_spaces_and_points_raise(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(alpha=1.5), "`params['alpha']` should be a number from 0 to 1, but got 1.5."),
        (dict(alpha=math.nan), "`params['alpha']` should be a finite number, but got nan."),
        (dict(alpha="0.5"), "`params['alpha']` should be a finite number, but got '0.5' (str)."),
        (dict(alpha=True), "`params['alpha']` should be a finite number, but got True (bool)."),
        (
            dict(alpha=np.zeros(1)),
            "`params['alpha']` should be a finite number, but got array([0.]) (ndarray).",
        ),
        (dict(depth=10), "`params['depth']` should be a whole number from 2 to 9, but got 10."),
        (dict(depth=2.5), "`params['depth']` should be a whole number, but got 2.5 (float)."),
        (dict(depth=None), "`params['depth']` should be a whole number, but got None (NoneType)."),
        (dict(units=True), "`params['units']` should be a whole number, but got True (bool)."),
        (
            dict(kind="trees"),
            "`params['kind']` should be one of 'tree', 'linear', None, 3, but got 'trees' (str) "
            "(did you mean 'tree'?).",
        ),
        (dict(warm="True"), "`params['warm']` should be one of True, False, but got 'True' (str)."),
        (
            dict(alhpa=1.0),
            "`params` should be a mapping with a value for each of 'alpha', 'depth', 'kind', 'lam', 'units', "
            "'warm', but got the unknown name 'alhpa' (did you mean 'alpha'?).",
        ),
        (dict(extra=1.0), "'warm', but got the unknown name 'extra'."),
    ],
)
def test_invalid_values_raise(change, message):
    for method in (SPACE.to_unit, SPACE.validate):
        with pytest.raises(ValueError, match=re.escape(message)):
            method(CONFIGURATION | change)


def test_invalid_configurations_raise():
    missing = {name: value for name, value in CONFIGURATION.items() if name != "lam"}
    with pytest.raises(ValueError, match="'lam', 'units', 'warm', but got none for 'lam'"):
        SPACE.to_unit(missing)
    with pytest.raises(ValueError, match="did you mean 'lam'"):  # 'lam' is missing too; the hint has priority
        SPACE.to_unit(missing | {"lamb": 1.0})
    with pytest.raises(ValueError, match=r"`params` should be a mapping .* but got \[0.5\] \(list\)"):
        SPACE.to_unit([0.5])
    many = SearchSpace(c=Categorical(range(30)))
    with pytest.raises(ValueError, match=r"one of 0, 1, 2, .*, 9 or 20 more, but got 'x'"):
        many.to_unit(dict(c="x"))


@pytest.mark.parametrize(
    "spec, message",
    [
        ([], "`spec` should be a mapping with the keys 'version' and 'parameters', but got []."),
        ({"parameters": {}}, "`spec` should be a mapping with the keys"),
        (
            {"version": 4, "parameters": {}},
            "`spec['version']` should be 1 to 3, which this jlibo reads, but got 4.",
        ),
        ({"version": True, "parameters": {}}, "`spec['version']` should be 1"),
        ({"version": 1, "parameters": []}, "`spec['parameters']` should be a mapping"),
        ({"version": 1, "parameters": {}}, "`parameters` should be at least one"),
        (
            {"version": 1, "parameters": {"a": {"kind": "normal"}}},
            "`spec['parameters']['a']` should be a mapping whose 'kind' is one of 'float', 'int', ",
        ),
        (
            {"version": 1, "parameters": {"a": 3}},
            "`spec['parameters']['a']` should be a mapping whose 'kind'",
        ),
        (
            {"version": 1, "parameters": {"a": {"kind": "int", "low": 1, "high": 2}}},
            "`spec['parameters']['a']` should be a mapping with the keys 'kind', 'low', 'high', 'log'",
        ),
        (
            {"version": 1, "parameters": {"a": {"kind": "int", "low": 2, "high": 1, "log": False}}},
            "`spec['parameters']['a']` cannot be read: `low` should be below `high` 1, but got 2.",
        ),
        (
            json.loads(
                '{"version": 1, "parameters": {"a": {"kind": "float", "low": NaN, "high": 1, "log": false}}}'
            ),
            "`spec['parameters']['a']` cannot be read: `low` should be a finite number, but got nan.",
        ),
    ],
)
def test_invalid_specs_raise(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SearchSpace.from_spec(spec)
