"""Parameters that exist only for some values of others: configurations, features, the model, files."""

import copy
import json
import pickle
import re

import chex
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.tune import Categorical, Float, Int, Memory, SearchSpace, Tuner
from jlibo.tune.importance import effect_matrices, parameter_names
from jlibo.tune.memory.lines import export_lines, import_lines
from jlibo.tune.model import make_model, without_names
from jlibo.tune.space import candidates
from jlibo.tune.space.joint import joint_features

PARAMETERS = dict(
    algorithm=Categorical(["svc", "forest", "none"]),
    C=Float(1e-3, 1e3, log=True, when={"algorithm": "svc"}),
    kernel=Categorical(["linear", "rbf", "poly"], when={"algorithm": "svc"}),
    gamma=Float(1e-4, 10, log=True, when={"kernel": ["rbf", "poly"]}),
    trees=Int(1, 4, log=True, when={"algorithm": "forest"}),
    depth=Int(1, 9, step=2, when={"trees": [2, 4]}),
    scale=Categorical([True, False]),
)
SPACE = SearchSpace(PARAMETERS)
SVC = {"algorithm": "svc", "kernel": "rbf", "C": 1.0, "gamma": 0.1, "scale": True}
BRANCHES = ("a", "b", "c", "d")


def generator(seed=0):
    return np.random.default_rng(seed)


# --- configurations and points ---


@pytest.mark.parametrize(
    "params",
    [
        SVC,
        {"algorithm": "svc", "kernel": "linear", "C": 1.0, "scale": False},
        {"algorithm": "forest", "trees": 3, "scale": True},
        {"algorithm": "forest", "trees": 4, "depth": 5, "scale": True},
        {"algorithm": "none", "scale": True},
    ],
)
def test_configuration_has_exactly_the_parameters_that_are_on(params):
    assert SPACE.validate(params) == params and set(SPACE.active_names(params)) == set(params)
    point = SPACE.to_unit(params)
    assert all(point[SPACE.names.index(name)] == 0.5 for name in set(SPACE) - set(params))
    again = SPACE.from_unit(point)
    assert set(again) == set(params)
    assert again == {
        name: pytest.approx(value) if name in "Cgamma" else value for name, value in params.items()
    }


def test_points_that_differ_only_where_they_are_off_are_one_point():
    points = generator().uniform(size=(500, len(SPACE)))
    snapped = SPACE.snap(points)
    for point, place in zip(points[:50], snapped[:50], strict=True):
        np.testing.assert_allclose(SPACE.to_unit(SPACE.from_unit(point)), place, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(SPACE.snap(snapped), snapped)
    drawn = SPACE.sample_unit(50, rng=generator(1))
    np.testing.assert_array_equal(SPACE.snap(drawn), drawn)


@pytest.mark.parametrize(
    "params, message",
    [
        (
            {"algorithm": "none", "scale": True, "C": 1.0},
            "that is on, but got one for 'C', which is off: it exists only if algorithm is 'svc'.",
        ),
        (
            {name: value for name, value in SVC.items() if name != "gamma"},
            "but got none for 'gamma', which is on: kernel is 'poly' or 'rbf'.",
        ),
        ({"algorithm": "none", "scale": True, "gama": 1}, "the unknown name 'gama' (did you mean 'gamma'?)"),
        (SVC | {"gamma": 100.0}, "`params['gamma']` should be a number from 0.0001 to 10, but got 100."),
    ],
)
def test_configurations_that_do_not_meet_the_conditions_raise(params, message):
    for call in (SPACE.validate, SPACE.to_unit):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(params)


@pytest.mark.parametrize(
    "parameters, message",
    [
        (
            dict(PARAMETERS, C=Float(0, 1, when={"algoritm": "svc"})),
            "`parameters['C'].when` should be a condition on 'C', 'algorithm', 'depth', 'gamma', 'kernel', "
            "'scale', 'trees', but got the unknown name 'algoritm' (did you mean 'algorithm'?).",
        ),
        (
            dict(PARAMETERS, C=Float(0, 1, when={"algorithm": "svm"})),
            "`parameters['C'].when['algorithm']` should be one of 'svc', 'forest', 'none', but got 'svm'",
        ),
        (dict(a=Int(1, 2, when={"a": 1})), "should be free of cycles, but got 'a' depends on 'a'."),
        (
            dict(a=Int(1, 2, when={"b": 1}), b=Int(1, 2, when={"c": 1}), c=Int(1, 2, when={"b": 1})),
            "should be free of cycles, but got 'b' depends on 'c' depends on 'b'.",
        ),
        (
            dict(a=Float(0, 1), b=Int(1, 2, when={"a": 1})),
            "should be a condition on a parameter with at most 1000 values: a Categorical, an Int, or with a "
            "step, but got Float(0, 1).",
        ),
        (
            dict(a=Int(1, 2), b=Int(1, 2, when={"a": 1}), c=Int(1, 2, when={"b": 1, "a": 2})),
            "`parameters['c'].when` should be met by some value of 'a', but got {'a': 2, 'b': 1}, which "
            "contradicts the conditions of its parents.",
        ),
    ],
)
def test_impossible_conditions_raise(parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SearchSpace(parameters)


@pytest.mark.parametrize(
    "when, message",
    [
        ("svc", "`when` should be a mapping from the name of a parameter to a value or a list of values"),
        ({3: "svc"}, "but got the name 3."),
        ({"a": []}, "`when['a']` should be a value, or a list of at least one value, but got none."),
        ({"a": {1, 2j}}, "which a JSON file can hold, but got 2j (complex)."),
    ],
)
def test_invalid_conditions_raise(when, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Float(0, 1, when=when)


def test_conditions_are_part_of_a_parameter():
    one, other = (Int(1, 3, when={"a": values, "b": True}) for values in (["x", "y"], ("y", "x", "y")))
    assert one == other and hash(one) == hash(other) and one != Int(1, 3)
    assert Int(1, 3, when={}) == Int(1, 3) and Int(1, 3, when={"a": "x"}) == Int(1, 3, when={"a": ["x"]})
    assert repr(one) == "Int(1, 3, when={'a': ['x', 'y'], 'b': True})"
    assert Categorical(["u", "v"], when={"a": "x"}) != Categorical(["u", "v"])
    assert eval(repr(SPACE)) == SPACE
    for again in (copy.deepcopy(SPACE), pickle.loads(pickle.dumps(SPACE))):
        assert again == SPACE and again.validate(SVC) == SVC
    assert SPACE.difference(SearchSpace(PARAMETERS | {"C": Float(0, 1)})) == [
        "'C': Float(0.001, 1000, log=True, when={'algorithm': 'svc'}) here, Float(0, 1) there"
    ]


# --- candidates ---


def finite_space():
    return SearchSpace({name: one for name, one in PARAMETERS.items() if name not in ("C", "gamma")})


def test_every_configuration_of_a_finite_space_is_one_candidate():
    space = finite_space()
    points = candidates.whole_space(space)
    assert candidates.num_configurations(space) == len(points) == 2 * (3 + 1 + (4 + 2 * 4) + 0)
    assert len(np.unique(points, axis=0)) == len(points)
    np.testing.assert_array_equal(space.snap(points), points)
    assert candidates.num_configurations(SPACE) is None


def test_no_configuration_is_asked_for_twice():
    task = Tuner(finite_space()).task("all", budget=32)
    asked = []
    for trial in task:
        asked.append(json.dumps(trial.params, sort_keys=True))
        task.tell(trial, len(trial.params))
    assert len(set(asked)) == len(asked) == 32


def test_points_near_a_trial_move_along_what_is_on():
    centre = SPACE.to_unit(SVC)
    near = candidates.nearby(SPACE, centre[None], seed=(0, 1))
    np.testing.assert_array_equal(SPACE.snap(near), near)
    alone = near[(np.abs(near - centre) > 1e-9).sum(1) == 1]
    assert len(alone) > candidates.NEARBY / 10
    assert not (np.abs(alone - centre) > 1e-9)[:, [name not in SVC for name in SPACE]].any()


def test_points_near_a_trial_have_any_value_of_what_they_turn_on():
    centre = SPACE.to_unit({"algorithm": "forest", "trees": 3, "scale": True})
    depths = candidates.nearby(SPACE, centre[None], seed=(0, 1))[:, SPACE.names.index("depth")]
    assert len(np.unique(depths[depths != 0.5])) == 4


# --- features ---


@pytest.mark.parametrize("sizes", [{}, {"interactions": False, "num_joint": 64}])
def test_features_do_not_depend_on_parameters_that_are_off(sizes):
    features = SPACE.features(**sizes)
    points = SPACE.sample_all(200, rng=generator())
    values = np.asarray(features(jnp.asarray(points)))
    np.testing.assert_array_equal(features(jnp.asarray(SPACE.with_off(points))), values)
    squares = np.add.reduceat(values.T**2, np.flatnonzero(np.diff((-1, *features.groups))))
    assert squares.max() <= 1 + 1e-5
    on = np.array([[name in SPACE.from_unit(point) for name in SPACE] for point in points])
    for place, name in enumerate(SPACE.names, 1):
        own = values[:, np.array(features.groups) == place]
        assert name in features.names[place] and not own[~on[:, place - 1]].any()
        assert own[on[:, place - 1]].any()


def test_pairs_that_never_vary_together_are_left_out():
    names = set(SPACE.features().names)
    assert {"log C x log gamma", "log C x kernel", "depth x log trees", "kernel x scale"} <= names
    assert not names & {"log C x log trees", "log C x algorithm", "log gamma x algorithm", "depth x kernel"}
    assert "log gamma x kernel" in names  # gamma is on for two kernels
    with pytest.raises(ValueError, match=r"pairs of parameters that vary together, but got \('C', 'depth'\)"):
        SPACE.features(interactions=[("C", "depth")])


def distance_kernel(space, points):
    """The exact kernel of the joint group between all points: that of inducing points at these points."""
    from jlibo.tune.space.conditions import activity
    from jlibo.tune.space.joint import _can_be_off, _matern, _On, _squared_distances

    counts = [one.num_values if isinstance(one, Categorical) else 0 for one in space.values()]
    on = activity(points, space.intervals, np)
    rows = [
        _squared_distances(point, points, counts, _On(own, on, _can_be_off(space.intervals)), 4, np)
        for point, own in zip(points, on, strict=True)
    ]
    return np.stack([_matern(row, np) for row in rows])


@pytest.mark.parametrize("num_children", [1, 4, 12])
def test_joint_kernel_is_positive_definite(num_children):
    parents = dict(p=Categorical(["x", "y"]), q=Categorical([1, 2, 3], when={"p": "x"}))
    numbers = {f"n{i}": Float(0, 1, when={"p": "x"}) for i in range(num_children)}
    others = {f"o{i}": Categorical(["u", "v", "w"], when={"p": "y"}) for i in range(num_children)}
    space = SearchSpace(parents | numbers | others | {"z": Float(0, 1)})
    # Points on a line in one branch, the case in which a distance of zero to "off" would fail, and others.
    line = [
        space.to_unit({"p": "x", "q": 1, "z": 0.5} | dict.fromkeys(numbers, u)) for u in np.linspace(0, 1, 20)
    ]
    points = np.unique(np.concatenate([line, space.sample_unit(150, rng=generator())]), axis=0)
    kernel = distance_kernel(space, points)
    np.testing.assert_allclose(kernel, kernel.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(kernel), 1, rtol=0, atol=1e-9)
    assert np.linalg.eigvalsh(kernel)[0] > -1e-9


def test_a_parameter_that_is_off_is_equally_far_from_all_values():
    space = SearchSpace(p=Categorical(["x", "y"]), n=Float(0, 1, when={"p": "x"}))
    on = [space.to_unit({"p": "x", "n": n}) for n in np.linspace(0, 1, 9)]
    points = np.array([*on, space.to_unit({"p": "y"})])
    assert np.ptp(distance_kernel(space, points)[-1, :-1]) < 1e-12
    features = space.features(interactions=False, num_joint=64)
    values = np.asarray(features(jnp.asarray(points)))[:, np.array(features.groups) == 3]
    assert np.ptp(values[:-1] @ values[-1]) < 1e-3


def test_spaces_with_the_same_conditions_share_a_program():
    def space(first, values, names):
        return SearchSpace(
            {names[0]: Categorical(values), names[1]: Float(*first, when={names[0]: values[0]})}
        )

    one = without_names(space((0, 1), ["x", "y"], "ab").features())
    same = without_names(space((2, 3), [1, 2], "pq").features())
    other = without_names(SearchSpace(a=Categorical(["x", "y"]), b=Float(0, 1)).features())
    points = jnp.asarray([[0.25, 0.3], [0.75, 0.5]])
    assert one.conditions == same.conditions != other.conditions == ()
    traced = []

    def evaluate(features, point):
        traced.append(features)
        return features.evaluate(point)

    jitted = eqx.filter_jit(evaluate)
    for features in (one, same, other):
        jitted(features, points[0])
    assert len(traced) == 2


def test_space_without_conditions_has_no_trace_of_them():
    plain = SearchSpace(a=Categorical(["x", "y"]), b=Float(0, 1))
    features = plain.features(num_joint=16)
    assert plain.intervals == () == features.conditions and features.joint.is_on is None
    chex.assert_trees_all_equal(joint_features((2, 0), 16), features.joint)


# --- the model ---


def test_total_effects_of_parameters_that_are_off():
    """Those of a function of `depth` are 0 for C, which is never on with it, and positive for its parents."""
    model = make_model(SPACE, mode="paper")
    weights = np.zeros(model.features.num_features)
    group = 1 + SPACE.names.index("depth")
    weights[model.features.groups.index(group)] = 1.0
    effects = dict(zip(parameter_names(model), weights @ effect_matrices(model) @ weights, strict=True))
    assert effects["log C"] == effects["kernel"] == effects["log gamma"] == effects["scale"] == 0
    assert effects["depth"] > 0 and effects["log trees"] > 0 and effects["algorithm"] > 0
    # A new value changes something only where it is on.
    on = np.mean(["depth" in SPACE.from_unit(point) for point in SPACE.sample_unit(512, rng=generator())])
    values = np.cos(np.pi * (np.arange(5) + 0.5) / 5)
    scale = model.features.scales[model.features.groups.index(group)]
    assert effects["depth"] == pytest.approx(on * values.var() * scale**2, rel=0.15)


def branched(when: bool) -> SearchSpace:
    def own(branch):
        return {f"{branch}_{name}": Float(0, 1, when={"kind": branch} if when else None) for name in "xy"}

    mains = {"kind": Categorical(BRANCHES)}
    return SearchSpace(mains | own("a") | own("b") | own("c") | own("d"))


def branched_score(params, shift):
    """Return a score whose best branch is "b", with an optimum of its own in each branch."""
    kind = params["kind"]
    place = BRANCHES.index(kind)
    x, y = params[f"{kind}_x"], params[f"{kind}_y"]
    bumps = (x - 0.2 - 0.15 * place - shift) ** 2 + (y - 0.8 + 0.2 * place + shift) ** 2
    return (0.5, 0.8, 0.6, 0.55)[place] - 2 * bumps


def trials_needed(when: bool, seed: int) -> int:
    space = branched(when)
    with Tuner(space, seed=seed, sizes=dict(interactions=False, num_basis=4, num_joint=64)) as tuner:
        for number, shift in enumerate((-0.05, 0.0, 0.05)):
            points = space.sample_unit(16, rng=generator((seed, number)))
            configs = [space.from_unit(point) for point in points]
            tuner.add_task(f"past {number}", configs, [branched_score(one, shift) for one in configs])
        with tuner.task("new", budget=8) as task:
            for trial in task:
                score = branched_score(trial.params, 0.02)
                task.tell(trial, score)
                if score > 0.75:
                    return trial.number + 1
    return 9


def test_past_tasks_lead_to_the_best_branch_and_its_values():
    """With conditions, what was learned inside a branch is not spread over parameters that are off."""
    needed = {when: [trials_needed(when, seed) for seed in range(2)] for when in (True, False)}
    assert max(needed[True]) <= 4 and np.mean(needed[True]) < np.mean(needed[False])


def test_suggestions_do_not_depend_on_how_off_parameters_are_named_or_ranged():
    """Ranges of parameters that were never on cannot matter, so two such spaces give equal suggestions."""

    def suggested(own):
        space = SearchSpace(kind=Categorical(["a", "b"]), x=Float(0, 1, when={"kind": "a"}), y=own)
        task = Tuner(space, seed=0).task("one", budget=8)
        found = []
        for _ in range(6):
            trial = task.ask()
            found.append(trial.params | {"y": None})
            task.tell(trial, trial.params.get("x", -1.0))
        return found

    assert suggested(Float(0, 1, when={"kind": "b"})) == suggested(Float(5, 9, when={"kind": "b"}))


# --- files ---


def test_memory_keeps_configurations_and_conditions(tmp_path):
    path = tmp_path / "memory.db"
    configs = [SPACE.from_unit(point) for point in SPACE.sample_unit(12, rng=generator())]
    with Tuner(SPACE, memory=path) as tuner:
        tuner.add_task("past", configs, [float(len(config)) for config in configs])
        lines = list(export_lines(tuner.memory))
    with Memory.open_existing(path) as memory:
        assert memory.space == SPACE
        assert [trial.params for trial in memory.snapshot()[1]] == configs
    copied = Memory.open(tmp_path / "copy.db", space=SPACE)
    with copied:
        assert import_lines(copied, lines).num_trials == 12
        assert list(export_lines(copied)) == lines


def test_file_of_an_older_version_opens(tmp_path):
    """A file as version 0.1 wrote it, before conditions and steps: the same text, and the same content."""
    space = SearchSpace(a=Int(1, 9), b=Categorical(["x", None]), c=Float(1e-3, 1, log=True))
    old = (
        '{"version": 1, "parameters": {"a": {"kind": "int", "low": 1, "high": 9, "log": false}, '
        '"b": {"kind": "categorical", "choices": ["x", null]}, '
        '"c": {"kind": "float", "low": 0.001, "high": 1.0, "log": true}}}'
    )
    assert json.dumps(space.spec()) == old
    with Memory.open(tmp_path / "memory.db", space=SearchSpace.from_spec(json.loads(old))) as memory:
        memory.add_finished(memory.task("t").id, [({"a": 2, "b": None, "c": 0.5}, 1.0)])
    with Tuner(space, tmp_path / "memory.db") as tuner:
        assert tuner.memory.snapshot()[1][0].params == {"a": 2, "b": None, "c": 0.5}


def test_spec_says_that_it_has_conditions():
    spec = json.loads(json.dumps(SPACE.spec()))
    assert spec["version"] == 2 and SearchSpace.from_spec(spec) == SPACE
    assert spec["parameters"]["gamma"]["when"] == {"kernel": ["poly", "rbf"]}
    assert spec["parameters"]["depth"]["step"] == 2 and "when" not in spec["parameters"]["algorithm"]
    assert SearchSpace(x=Float(0, 1)).spec()["version"] == 1  # as older versions of jlibo write and read it
    with pytest.raises(ValueError, match="should be a mapping with the keys 'kind', 'low', 'high', 'log'"):
        SearchSpace.from_spec(spec | {"version": 1})
