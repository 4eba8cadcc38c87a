"""Studies whose distributions differ from those of the past: what is learned, said and written."""

import warnings

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from jlibo.integrations.optuna import LiBOSampler, LiBOSamplerWarning
from jlibo.integrations.optuna import trials as optuna_trials
from jlibo.integrations.optuna.branches import choose_space
from jlibo.integrations.optuna.past import MemoryPast, StudiesPast
from jlibo.integrations.optuna.space import coded_space, with_defaults
from jlibo.tune import Categorical, Float, Int, Memory, SearchSpace, SpaceChangedWarning, Tuner
from tests.integrations.studies import LEVEL, SPACE, loss, objective, random_study, small_sampler

X = SearchSpace(x=Float(0, 1))


def study_of(name, space, *points):
    """Return a study with complete trials at these values; `space` are its distributions."""
    study = optuna.create_study(study_name=name)
    for number, params in enumerate(points):
        own = {key: space[key] for key in params}
        study.add_trial(create_trial(params=params, distributions=own, value=float(number)))
    return study


def write(past, study):
    """Write the trials of a study to the memory, as the sampler does after the last trial."""
    last = study.trials[-1]
    assert past.add(study, last, last.state, last.values, explored=()) is None


@pytest.fixture
def path(tmp_path):
    """A memory of a study with the parameter x from 0 to 1."""
    path = tmp_path / "memory.db"
    past = MemoryPast(path, {})
    write(past, study_of("old", {"x": FloatDistribution(0, 1)}, *({"x": n / 10} for n in range(8))))
    past.close()
    return path


# --- spaces of a study --------------------------------------------------------------------------------------


def configs(space, *points):
    return optuna_trials.configs_of(study_of("s", space, *points).trials)


def test_study_with_other_ranges_has_the_branches_of_the_past():
    full = SearchSpace(
        kind=Categorical(["a", "b", "c"]),
        x=Float(0, 1, when={"kind": "a"}),
        y=Float(0, 1, when={"kind": ["b", "c"]}),
        z=Float(0, 1, when={"kind": "b"}),
        gone=Int(1, 5),
    )
    past = [
        {name: (full[name], value) for name, value in params.items()}
        for params in ({"kind": "a", "x": 0.1, "gone": 2}, {"kind": "c", "y": 0.1, "gone": 3})
    ]
    kinds = {"kind": CategoricalDistribution(["c", "a", "d"]), "x": FloatDistribution(0, 2)}
    own = configs({**kinds, "new": IntDistribution(1, 3)}, {"kind": "a", "x": 0.5, "new": 2})
    # Without `gone`, which the study does not have, and `z`, whose choice is gone; `y` keeps its branch.
    expected = {
        "kind": Categorical(["c", "a", "d"]),
        "x": Float(0, 2, when={"kind": "a"}),
        "y": Float(0, 1, when={"kind": "c"}),
    }
    assert choose_space(own, [(full, past)]) == SearchSpace(expected, new=Int(1, 3))
    without_new = configs(kinds, {"kind": "a", "x": 0.5})
    assert choose_space(without_new, [(full, past)]) == SearchSpace(expected)
    # A study that shows other branches than the past, and a past of another problem.
    contrary = configs(kinds, {"kind": "a"}, {"kind": "c", "x": 1.5})
    alone = SearchSpace(kind=Categorical(["c", "a", "d"]), x=Float(0, 2, when={"kind": "c"}))
    assert choose_space(contrary, [(full, past)]) == alone
    other = configs({"n": IntDistribution(1, 5)}, {"n": 2})
    assert choose_space(without_new, [(SearchSpace(n=Int(1, 5)), other)])["x"] == Float(0, 2)


def test_defaults_are_coded_as_their_parameters():
    distributions = {
        "width": IntDistribution(8, 28, step=4),
        "rate": FloatDistribution(0, 1, step=0.25),
        "layers": CategoricalDistribution([None, "(3, 3)"]),
        "x": FloatDistribution(0, 1),
    }
    space = coded_space(distributions)
    found = with_defaults(space, {"width": 16, "rate": 0.75, "layers": None, "other": 1})
    assert found["width [8 + 4 k]"].default == 2 and found["rate [0.0 + 0.25 k]"].default == 3
    assert found["layers"].has_default and found["layers"].default is None and not found["x"].has_default
    for wrong in ({"width": 40}, {"x": "a"}, {"width": "a"}, {"layers": "b"}):
        with pytest.raises(ValueError, match=rf"`defaults\['{next(iter(wrong))}'\]` should be a value"):
            with_defaults(space, wrong)
    with pytest.raises(ValueError, match="`defaults` should be a mapping"):
        LiBOSampler(defaults=[("x", 1)])


@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_default_of_a_choice_with_a_label():
    space = coded_space({"size": CategoricalDistribution([(3, 3), (5, 5)])})
    assert with_defaults(space, {"size": (5, 5)})["size"].default == "1: (5, 5)"


# --- the memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "num_fitting"), [(2.0, 8), (0.45, 5)], ids=["a wider range", "a narrower range"]
)
def test_memory_teaches_a_study_with_another_range(path, high, num_fitting):
    study = study_of("new", {"x": FloatDistribution(0, high)}, {"x": 0.1}, {"x": 0.2})
    space = SearchSpace(x=Float(0, high))
    for attempt in range(2):
        past = MemoryPast(path, {})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            tasks, trials, problem = past.read(study, space)
        # Said once, in whichever process, and only if something does not fit.
        assert [one.category for one in said] == [SpaceChangedWarning] * (num_fitting < 8 and attempt == 0)
        assert problem is None and [task.name for task in tasks] == ["old"]
        assert sum(trial.fits for trial in trials if trial.task_id == tasks[0].id) == num_fitting
        write(past, study)
        past.close()
    with Memory.open_existing(path) as memory:
        assert memory.spaces == [X, space]
        assert [task.name for task in memory.tasks()] == ["old", "new"]
        assert (
            len(memory.all_trials()) == 10 and sum(one.fits for one in memory.all_trials()) == num_fitting + 2
        )


def test_memory_of_a_study_with_a_new_parameter(path):
    distributions = {"x": FloatDistribution(0, 1), "width": IntDistribution(8, 28, step=4)}
    points = [{"x": 0.1, "width": 8}, {"x": 0.2, "width": 12}]
    study, space = study_of("new", distributions, *points), coded_space(distributions)
    bare = MemoryPast(path, {})
    with pytest.warns(SpaceChangedWarning, match=r"0 of 8\. Without a value: 'width \[8 \+ 4 k\]' \(8\)"):
        _, trials, _ = bare.read(study, space)
    assert not any(trial.fits for trial in trials)
    bare.close()
    past = MemoryPast(path, {"width": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, trials, _ = past.read(study, space)
        assert [trial.params["width [8 + 4 k]"] for trial in trials] == [2] * 8
        write(past, study)
        # A process that has not been given the default finds it in the memory.
        other = MemoryPast(path, {})
        tasks, trials, _ = other.read(study, space)
        assert [task.name for task in tasks] == ["old"] and all(trial.fits for trial in trials)
        # The objective of before, once more: the parameter is gone again.
        again = study_of("again", distributions, {"x": 0.5}, {"x": 0.6})
        tasks, trials, _ = other.read(again, X)
        assert [task.name for task in tasks] == ["old", "new"] and all(trial.fits for trial in trials)
        assert {tuple(trial.params) for trial in trials} == {("x",)}
    past.close()
    other.close()


def test_default_of_a_tuner_is_that_of_the_sampler(path):
    space = SearchSpace(x=Float(0, 1), depth=Int(1, 9, default=3))
    with pytest.warns(SpaceChangedWarning, match="'depth' is new"):
        Tuner(space, path, maximise=False).close()
    distributions = {"x": FloatDistribution(0, 1), "depth": IntDistribution(1, 9)}
    study = study_of("new", distributions, {"x": 0.5, "depth": 4}, {"x": 0.25, "depth": 5})
    for defaults, expected in (({}, 3), ({"depth": 7}, 7)):
        past = MemoryPast(path, defaults)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, trials, _ = past.read(study, coded_space(distributions))
        assert [trial.params["depth"] for trial in trials] == [expected] * 8
        past.close()


def test_sampler_learns_from_a_tuner_with_another_space(tmp_path):
    path = tmp_path / "memory.db"
    points = [one.params for one in random_study(30).trials]
    with Tuner(SearchSpace(dict(SPACE) | {"x": Float(-1, 2)}), path, maximise=False) as tuner:
        tuner.add_task("past", points, [loss(**point) for point in points])
        tuner.task("past").add({"x": 1.5, "rate": 0.5, "depth": 1}, -9.0)  # does not fit
    sampler = small_sampler(path, seed=0)
    study = optuna.create_study(study_name="new", sampler=sampler)
    with pytest.warns(SpaceChangedWarning, match=r"30 of 31\. Out of range: 'x' \(1\)") as said:
        study.optimize(objective(), n_trials=4)
    assert len(said) == 1
    assert sampler._chooser.knowledge(study, SPACE)[1].num_tasks == 1
    assert study.best_value < 4 * LEVEL
    sampler.close()


# --- past studies -------------------------------------------------------------------------------------------


def test_past_studies_teach_as_far_as_they_fit():
    wide = study_of("wide", {"x": FloatDistribution(0, 2)}, *({"x": n / 4} for n in range(8)))
    none = study_of("none", {"x": CategoricalDistribution(["a", "b"])}, {"x": "a"}, {"x": "b"})
    study = study_of("new", {"x": FloatDistribution(0, 1)}, {"x": 0.5})
    tasks, trials, problem = StudiesPast([wide, none], None, {}).read(study, X)
    assert [task.name for task in tasks] == ["wide"]
    assert [trial.params["x"] for trial in trials if trial.fits] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert "only what fits is learned from 'wide', 'none', because their parameters differ" in problem
    narrow = study_of("narrow", {"x": FloatDistribution(0, 0.5)}, {"x": 0.25}, {"x": 0.5})
    tasks, _, problem = StudiesPast([narrow], None, {}).read(study, X)
    assert len(tasks) == 1 and problem is None
    more = {"x": FloatDistribution(0, 1), "depth": IntDistribution(1, 9)}
    deep = study_of("deep", more, {"x": 0.5, "depth": 3}, {"x": 0.25, "depth": 4})
    space = SearchSpace(x=Float(0, 1), depth=Int(1, 9))
    _, trials, problem = StudiesPast([narrow], None, {"depth": 3}).read(deep, space)
    assert [trial.params["depth"] for trial in trials] == [3, 3] and problem is None
    _, trials, problem = StudiesPast([narrow], None, {}).read(deep, space)
    assert not any(trial.fits for trial in trials) and "nothing is learned from 'narrow'" in problem
    assert issubclass(LiBOSamplerWarning, UserWarning)
