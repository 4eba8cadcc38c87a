"""The stop rule: when a loop ends, what it costs in regret, and what it leaves alone."""

import itertools
import math

import numpy as np
import pytest

import jlibo
from jlibo.tune import ExpectedGainBelow, UntoldTrialsWarning
from tests.tune.problem import BUDGET, CONFIGS, SPACE, make_tuner, play, score, teach


def run(task, fn, most=BUDGET):
    """Run the loop over a task for at most `most` trials; return the number of its trials."""
    for trial in itertools.islice(task, most):
        task.tell(trial, fn(trial.params))
    return len(task.trials)


# --- when it stops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_past", [False, True])
def test_stops_early_with_small_regret_on_easy_functions(has_past):
    """Most loops end before the budget, with less regret than the threshold. The best value is 1."""
    threshold, counts, regrets = 0.02, [], []
    for seed in range(5):
        rng = np.random.default_rng([1, seed])
        peak = rng.uniform(0.6, 1.4)
        tuner = jlibo.Tuner(SPACE, seed=seed)  # a small dictionary cannot represent the function well enough
        if has_past:
            teach(tuner)
        task = tuner.task("new", budget=BUDGET, stop_when=threshold)
        counts.append(run(task, lambda params, peak=peak: score(params, peak)))
        regrets.append(1 - score(task.recommended.params, peak))
        stopped = counts[-1] < BUDGET
        assert task.should_stop and (task.expected_gain < threshold or not stopped)
    assert np.mean(np.asarray(counts) < BUDGET) >= 0.9
    assert np.mean(counts) < (10 if has_past else 20)
    assert min(counts) >= 5
    assert np.mean(np.asarray(regrets) < threshold) >= 0.8


def bumps(seed):
    """Return a function with many optima, which the features represent badly."""
    rng = np.random.default_rng(seed)
    waves, phases = 6 * rng.normal(size=(12, 2)), rng.uniform(0, 2 * math.pi, 12)
    sizes = rng.normal(size=12) / 3
    return lambda params: float(sizes @ np.cos(waves @ SPACE.to_unit(params) + phases))


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_does_not_stop_in_the_first_trials_on_hard_functions(noise):
    """The standard deviation of these functions is about 0.8."""
    counts = []
    for seed in range(10):
        rng, fn = np.random.default_rng([2, seed]), bumps(seed)
        rule = ExpectedGainBelow(0.02, min_trials=1)
        task = make_tuner(seed=seed).task("new", budget=BUDGET, stop_when=rule)
        counts.append(run(task, lambda params, rng=rng, fn=fn: fn(params) + noise * rng.normal(), most=10))
    assert min(counts) > 5 and np.median(counts) > 8


def test_smaller_thresholds_stop_later():
    counts = [
        run(make_tuner().task("new", budget=BUDGET, stop_when=threshold), score)
        for threshold in (1.0, 0.03, 1e-9)
    ]
    assert counts == sorted(counts) and counts[0] == 5 and counts[-1] == BUDGET


def test_relative_rule_does_not_depend_on_the_scale():
    rule, counts = ExpectedGainBelow(0.04, relative=True, min_trials=4), []
    for scale, maximise in [(1.0, True), (1e6, True), (-1e-3, False)]:
        tuner = make_tuner(maximise=maximise, candidates=CONFIGS)
        task = tuner.task("new", budget=BUDGET, stop_when=rule)
        counts.append(run(task, lambda params, scale=scale: scale * score(params)))
        found = task.explain(1)
        assert found.expected_gain < 0.04 * found.scale
    assert len(set(counts)) == 1
    assert 4 <= counts[0] < BUDGET


def test_equal_scores_do_not_stop_without_a_known_scale():
    """Nothing is known about the size of a gain while all scores are equal and there is no past."""
    tuner = make_tuner()
    task = tuner.task("new", budget=8, stop_when=1e9)
    assert run(task, lambda params: 0.5) == 8
    assert task.expected_gain is None


# --- what it leaves alone -----------------------------------------------------------------------------------


def test_rule_counts_scores_and_not_failures():
    task = make_tuner().task("new", budget=BUDGET, stop_when=ExpectedGainBelow(1e9, min_trials=6))
    for number, trial in enumerate(task):
        task.fail(trial) if number in (1, 3) else task.tell(trial, score(trial.params))
    assert len(task.trials) == 8


def test_ask_is_never_refused_and_pending_trials_come_first():
    tuner = make_tuner()
    with tuner.task("new", budget=BUDGET) as task:
        assert not task.should_stop  # no rule
        play(task, 6)
        task.ask()
    task = tuner.task("new", stop_when=1e9)
    assert task.should_stop and task.stop_when == ExpectedGainBelow(1e9)
    numbers = []
    for left in task:  # offered although the rule is met
        numbers.append(left.number)
        task.tell(left, 0.5)
    assert numbers == [6]
    assert task.ask().number == 7
    assert not tuner.task("new").should_stop  # the rule is not stored
    assert tuner.task("new", budget=6).should_stop  # the budget is spent
    play(task, 3)
    assert not tuner.task("new", budget=BUDGET, stop_when=1e-12).should_stop


def test_untold_trials_warning_names_the_rule():
    task = make_tuner().task("new", budget=BUDGET)
    play(task, 6)
    task.stop_when = ExpectedGainBelow(1e-12)
    loop = iter(task)
    next(loop)
    task.stop_when = ExpectedGainBelow(1e9)
    with pytest.warns(UntoldTrialsWarning, match="because its stop rule is met, but 1 of its 1 trials"):
        assert list(loop) == []


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1%", [0.1], 10**400])
def test_invalid_rules_raise(value):
    with pytest.raises(ValueError, match="`stop_when` should be None, a gain above 0"):
        make_tuner().task("new", stop_when=value)
    with pytest.raises(ValueError, match="`threshold` should be a finite number above 0"):
        ExpectedGainBelow(value)


def test_invalid_rule_creates_no_task():
    tuner = make_tuner()
    with pytest.raises(ValueError, match="stop_when"):
        tuner.task("new", stop_when=-1)
    assert tuner.memory.tasks() == []
    with pytest.raises(ValueError, match="`relative` should be"):
        ExpectedGainBelow(0.1, relative=1)  # pyright: ignore
    with pytest.raises(ValueError, match="`min_trials` should be"):
        ExpectedGainBelow(0.1, min_trials=0)
