"""The rule that stops trials: standings, what past curves say, and estimates. All in NumPy."""

import numpy as np
import pytest

from jlibo.tune import MedianRule
from jlibo.tune.curves.curves import TaskCurves, estimated_final, standing, standings
from jlibo.tune.curves.rule import CUTS, among_best, risks_at

STEPS = 10
RULE = MedianRule(control_every=None)


def curves(finals, starts=None, *, maximise=True):
    """Return curves that go in a straight line from `starts`, or from the final score, to the final score."""
    finals = np.asarray(finals, float)
    starts = finals if starts is None else np.asarray(starts, float)
    lines = [
        {step: float(start + (final - start) * step / (STEPS - 1)) for step in range(STEPS)}
        for start, final in zip(starts, finals, strict=True)
    ]
    return TaskCurves.of(lines, finals, maximise=maximise)


def says(value, own, past=(), *, step=4, number=0, rule=RULE):
    return rule.says_stop(number, step, value, own, past)


# --- curves -------------------------------------------------------------------------------------------------


def test_value_at_a_step_is_the_last_report_until_then():
    task = TaskCurves.of([{0: 1.0, 10: 2.0}, {5: 3.0}, {2: None, 3: 4.0}, {}], [7, 8, 9, 5], maximise=True)
    for step, values, finals in [
        (0, [1], [7]),
        (2, [1, -np.inf], [7, 9]),
        (5, [1, 3, 4], [7, 8, 9]),
        (99, [2, 3, 4], [7, 8, 9]),
    ]:
        found = task.at(step)
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], finals)
    assert len(TaskCurves.of([{5: 3.0}], [1], maximise=True).at(4)[0]) == 0
    assert not task.is_last(9) and task.is_last(10) and TaskCurves.of([], [], maximise=True).is_last(0)


def test_standing_is_the_share_of_better_trials():
    others = np.array([1.0, 2.0, 2.0, 4.0])
    assert [standing(value, others) for value in (0, 1, 2, 3, 5)] == [1.0, 0.875, 0.5, 0.25, 0.0]
    chance = np.random.default_rng(0)
    values = chance.integers(0, 5, 20).astype(float)
    expected = [standing(value, np.delete(values, place)) for place, value in enumerate(values)]
    np.testing.assert_allclose(standings(values), expected)


def test_among_best_shares_places_of_ties():
    np.testing.assert_allclose(among_best(np.array([1.0, 3.0, 2.0])), [0, 1, 0])
    np.testing.assert_allclose(among_best(np.ones(30)), 0.1)
    finals = np.arange(20.0)
    assert among_best(finals).sum() == 2 and among_best(finals)[-2:].tolist() == [1, 1]


# --- the median ---------------------------------------------------------------------------------------------


def test_without_a_past_the_median_decides():
    own = curves([1, 2, 3, 4, 5])
    assert [says(value, own) for value in (0.5, 2.5, 3, 3.5, 9)] == [True, True, False, False, False]
    low = curves([1, 2, 3, 4, 5], maximise=False)
    assert says(-4.5, low) and not says(-1.5, low)
    assert says(-np.inf, own)


def test_first_trials_are_never_stopped():
    own = curves([2, 3, 4, 5])
    assert not says(0.0, own)
    assert says(0.0, own, rule=MedianRule(min_trials=4, control_every=None))
    assert not says(0.0, TaskCurves.of([], [], maximise=True))
    many = [curves(np.arange(20.0)) for _ in range(5)]
    assert not says(0.0, own, many)  # whatever the past says


def test_nothing_is_stopped_at_its_last_step_or_before_the_first():
    own = curves([1, 2, 3, 4, 5])
    assert says(0.0, own, step=STEPS - 2) and not says(0.0, own, step=STEPS - 1)
    assert not says(0.0, own, step=STEPS + 5)
    later = MedianRule(min_step=5, control_every=None)
    assert not says(0.0, own, step=4, rule=later) and says(0.0, own, step=5, rule=later)


def test_plateau_of_equal_scores_is_not_stopped():
    assert not says(1.0, curves([1, 1, 1, 1, 1]))


def test_control_trials_run_to_their_end():
    own = curves([1, 2, 3, 4, 5])
    rule = MedianRule(control_every=8)
    assert [number for number in range(24) if not says(0.0, own, number=number, rule=rule)] == [7, 15, 23]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(min_trials=0), "min_trials"),
        (dict(min_step=-1), "min_step"),
        (dict(risk=0.1), "`risk` should be a number above 0 and below 0.1"),
        (dict(risk="low"), "risk"),
        (dict(risk=float("nan")), "risk"),
        (dict(control_every=0), "control_every"),
    ],
)
def test_invalid_arguments_raise(arguments, words):
    with pytest.raises(ValueError, match=words):
        MedianRule(**arguments)


# --- past tasks ---------------------------------------------------------------------------------------------


def crossing(num_trials=20, scale=1.0):
    """Return a task whose best trials are the worst ones at the start."""
    finals = np.linspace(0, 1, num_trials)
    return curves(scale * finals, scale * (1 - finals) * 0.5)


def test_past_curves_say_where_it_is_safe():
    own = curves([1, 2, 3, 4, 5])
    parallel = [curves(unit * np.arange(20.0)) for unit in (1, 1e6)]  # units do not matter
    cross = [crossing(scale=unit) for unit in (1.0, 1e6)]
    assert says(2.5, own, parallel, step=0) and says(2.5, own, step=0)
    assert not says(2.5, own, cross, step=0)
    assert not says(0.0, own, cross, step=0)
    # The curves cross at a third of the way; late standings are those of the end.
    assert says(2.5, own, cross, step=STEPS - 2)


def test_only_the_worst_are_stopped_if_the_past_says_so():
    """In each past task a trial just below the median at the start becomes the best."""
    finals = np.arange(20.0)
    starts = finals.copy()
    starts[-1] = 8.5  # worse than 11 of the others
    past = [curves(finals, starts) for _ in range(5)]
    own = curves(np.arange(20.0))
    assert not says(9.0, own, past, step=0)
    assert says(1.0, own, past, step=0)


def test_own_trials_teach_as_well():
    """The best of the first trials was the worst at the start, so nothing is stopped there."""
    own = curves([1, 2, 3, 4, 10], [1, 2, 3, 4, 0])
    assert not says(0.5, own, step=0)
    assert says(0.5, own, [curves(np.arange(30.0)) for _ in range(20)], step=0)  # unless many others disagree


def test_estimated_risk_is_that_of_the_trials():
    """The risks converge to the shares of trials that ended among the best, given their standing."""
    chance = np.random.default_rng(0)

    def noisy():
        finals = chance.normal(size=40)
        return curves(finals, finals + chance.normal(size=40))

    tasks = [noisy() for _ in range(150)]
    found = risks_at(0, tasks, prior_risk=0.0125)
    at = np.concatenate([standings(task.at(0)[0]) for task in tasks])
    good = np.concatenate([among_best(task.finals) for task in tasks])
    for cut in CUTS:
        assert found[cut] == pytest.approx(good[at > cut].mean(), rel=0.1, abs=0.001)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_stopped_trials_would_rarely_have_been_among_the_best():
    """At most the accepted share of those that are stopped ends among the best, whatever the curves tell."""
    chance = np.random.default_rng(1)

    def task(noise, num=40):
        finals = chance.normal(size=num)
        return curves(finals, finals + noise * chance.normal(size=num))

    for noise, stops in [(0.2, True), (5.0, False)]:
        past = [task(noise) for _ in range(20)]
        stopped, lost = 0, 0.0
        for _ in range(15):
            new = task(noise)
            good = among_best(new.finals)
            for place, value in enumerate(new.at(0)[0]):
                others = np.arange(40) != place
                own = TaskCurves(new.steps, new.values[others], new.finals[others])
                if says(value, own, past, step=0):
                    stopped, lost = stopped + 1, lost + good[place]
        assert (stopped > 150) == stops
        assert lost <= 0.025 * max(stopped, 1)


# --- estimates ----------------------------------------------------------------------------------------------


def test_estimate_has_the_same_standing_among_the_final_scores():
    own = curves(np.linspace(0.7, 0.9, 21), np.linspace(0.1, 0.3, 21))  # all rise by 0.6
    finals = list(own.finals)
    assert estimated_final(0, 0.15, own, finals, maximise=True) == pytest.approx(0.75, abs=0.01)
    assert estimated_final(0, 0.0, own, finals, maximise=True) == 0.7
    assert estimated_final(0, None, own, finals, maximise=True) == 0.7  # not finite
    assert estimated_final(0, 0.29, own, finals, maximise=True) == pytest.approx(0.8)  # at most the median


def test_estimate_when_low_scores_are_good():
    own = curves(np.linspace(0.1, 0.3, 21), np.linspace(10, 30, 21), maximise=False)
    finals = list(-own.finals)
    assert estimated_final(0, 25.0, own, finals, maximise=False) == pytest.approx(0.25, abs=0.01)
    assert estimated_final(0, None, own, finals, maximise=False) == pytest.approx(0.3)


def test_estimate_without_curves_is_at_most_the_median():
    none = TaskCurves.of([], [], maximise=True)
    assert estimated_final(3, 0.9, none, [0.1, 0.2, 0.3], maximise=True) == 0.2
    assert estimated_final(3, 0.15, none, [0.1, 0.2, 0.3], maximise=True) == 0.15
    assert estimated_final(3, 0.15, none, [], maximise=True) == 0.15
    assert estimated_final(3, None, none, [], maximise=True) is None
