"""The short list of a memory: configurations that together do best over all past tasks.

All tuners have the same shapes of space and past, so that they share compiled programs.
"""

import itertools

import numpy as np
import pytest

import jlibo
from jlibo.tune import Categorical, Defaults, Memory, SearchSpace, portfolio
from jlibo.tune.arrays import scored_trials
from jlibo.tune.model import make_model
from jlibo.tune.portfolio import greedy
from tests.tune.problem import CONFIGS, SPACE, score, teach

LOW, HIGH = -2.0, 2.0


def worth(params, tasks):
    """Return the mean over tasks of the best score that a list of configurations achieves."""
    return np.mean([max(score(one, peak) for one in params) for peak in tasks])


def taught(peaks, configs=CONFIGS[:20], **options):
    tuner = jlibo.Tuner(SPACE, **options)
    for number, peak in enumerate(peaks):
        tuner.add_task(f"past {number}", configs, [score(params, peak) for params in configs])
    return tuner


def test_list_covers_two_kinds_of_tasks():
    peaks = [LOW, HIGH, LOW + 0.2, HIGH - 0.2]
    tuner = taught(peaks)
    found = tuner.defaults(3)
    assert isinstance(found, Defaults) and isinstance(found, list) and len(found) == 3
    assert all(SPACE.validate(params) == params for params in found)
    # First a compromise, then one for each kind.
    first, *others = (np.log10(params["beta"]) for params in found)
    assert abs(first) < 0.8 and np.sort(others) == pytest.approx([LOW, HIGH], abs=0.8)
    # Nearly as good as the best three of the tried configurations.
    triples = [worth(some, peaks) for some in itertools.combinations(CONFIGS[:20], 3)]
    assert worth(found, peaks) > max(triples) - 0.05
    assert worth(found, peaks) > max(worth([one], peaks) for one in CONFIGS) + 0.1
    # Deterministic, the first of more, and the same from another tuner.
    assert tuner.defaults(3) == found and tuner.defaults(5)[:3] == found
    assert taught(peaks).defaults(3) == found


def test_constant_and_tiny_tasks():
    tuner = taught([LOW, HIGH])
    tuner.add_task("constant", CONFIGS[:5], [0.5] * 5)
    tuner.add_task("two", CONFIGS[:2], [1e300, -1e300])
    found = tuner.defaults(3)
    assert len(found) == 3 and worth(found, [LOW, HIGH]) > 0.9


def test_every_task_counts_alike():
    """The scale of a task's scores does not matter, neither does the direction."""
    peaks = [LOW, HIGH, LOW + 0.2, HIGH - 0.2]
    plain = taught(peaks, candidates=CONFIGS).defaults(3)
    scaled = jlibo.Tuner(SPACE, candidates=CONFIGS, maximise=False)
    for number, peak in enumerate(peaks):
        factor = 2.0 ** (20 * number - 30)
        scaled.add_task(f"{number}", CONFIGS[:20], [-factor * score(one, peak) for one in CONFIGS[:20]])
    assert scaled.defaults(3) == plain
    assert all(params in CONFIGS[:20] for params in plain)  # from a list, those that were tried


def test_prints_as_code():
    found = taught([LOW, HIGH]).defaults(3)
    names = {}
    exec(str(found), names)
    assert names["defaults"] == found and str(found).count("\n") == 4
    assert eval(repr(found)) == found
    odd = Defaults([{"a'\"\n": (1, None), "b": {"c": [True, 1e-300]}}, {"x": "</script>\u202e"}])
    exec(str(odd), names)
    assert names["defaults"] == odd and "\u202e" not in str(odd)
    exec(str(Defaults()), names)
    assert names["defaults"] == []


def test_no_past_and_few_configurations():
    empty = jlibo.Tuner(SPACE)
    assert empty.defaults(3) == [] and str(empty.defaults(3)) == "defaults = []"
    empty.add_task("one score", CONFIGS[:1], [1.0])
    empty.add_task("failed", CONFIGS[:3], [None] * 3)
    assert empty.defaults(3) == []
    for k in (0, -1, 1.5, "three", True):
        with pytest.raises(ValueError, match="`k`"):
            empty.defaults(k)
    few = taught([LOW, HIGH], CONFIGS[:3], candidates=CONFIGS)
    assert sorted(map(str, few.defaults(10))) == sorted(map(str, CONFIGS[:3]))


def test_only_what_the_tuner_would_suggest():
    def is_small(params):
        return params["beta"] < 1

    found = taught([LOW, HIGH], constraint=is_small).defaults(4)
    assert len(found) == 4 and all(map(is_small, found))
    listed = taught([LOW, HIGH], candidates=CONFIGS[:5]).defaults(10)
    assert sorted(map(str, listed)) == sorted(map(str, CONFIGS[:5]))


def test_failed_configuration_is_of_no_use_in_its_task():
    configs = CONFIGS[:20]
    tuner = jlibo.Tuner(SPACE, candidates=CONFIGS)
    teach(tuner, 2)
    (best,) = tuner.defaults(1)
    assert score(best) > 0.95
    for number in range(6):
        scores = [None if params == best else score(params) for params in configs]
        tuner.add_task(f"new {number}", configs, scores)
    (second,) = tuner.defaults(1)
    assert second != best and score(second) > 0.9


def test_greedy_choice():
    values = np.array([[3.0, 2.0, 0.0, 2.5], [0.0, 2.0, 3.0, 1.0]])
    assert greedy(values, 1) == [1]
    assert greedy(values, 2) == [1, 0] and greedy(values, 9) == [1, 0, 2, 3]
    # Without any gain the highest mean comes next, and equal ones in their order.
    assert greedy(np.array([[1.0, 5.0, 4.0, 4.0]]), 3) == [1, 2, 3]
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(size=(6, 12))
        best = max(values[:, list(some)].max(1).mean() for some in itertools.combinations(range(12), 3))
        floor = values.min()
        assert values[:, greedy(values, 3)].max(1).mean() - floor >= (1 - 1 / np.e) * (best - floor)


def test_list_is_tried_first_in_the_next_task():
    tuner = taught([LOW, HIGH, LOW + 0.2, HIGH - 0.2])
    task = tuner.task("new", budget=5)
    short_list = tuner.defaults(3)
    for params in short_list:
        assert task.enqueue(params)
    assert [trial.params for trial in task.ask(3)] == short_list


def test_choices_are_distinct_configurations():
    space = SearchSpace(
        model=Categorical(["svc", "forest"]),
        C=jlibo.Float(1e-3, 1e3, log=True, when={"model": "svc"}),
        layers=Categorical([(64,), (64, 64)]),
    )
    points = space.sample_unit(20, rng=np.random.default_rng(1))
    configs = [space.from_unit(point) for point in points]
    with Memory.open(None, space=space) as memory:
        memory.add_finished(memory.task("one").id, [(params, 1.0) for params in configs * 2])
        tasks, trials = memory.snapshot()
    found = portfolio._choices(make_model(space), scored_trials(tasks, trials), maximise=True, seed=0)
    tried = {str(params) for params in configs}
    assert {str(params) for params in found.configs[: len(tried)]} == tried
    assert len({str(params) for params in found.configs}) == len(found.configs) > 300
    assert all(space.validate(params) == params for params in found.configs)
    assert np.array_equal(space.snap(found.points), found.points)
