"""The recommended trial and the explanation of a task: meaning, units, calibration and compilation."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy.stats import norm

import jlibo
from jlibo.tune import Explanation, Recommendation, arrays, insight, outlook
from jlibo.tune import explain as explain_module
from tests.tune.problem import BUDGET, CONFIGS, SPACE, make_tuner, play, score, teach

LISTED = CONFIGS[:24]
"""Candidates of the tests with a list, which share compiled programs."""


def told_task(tuner, pairs, name="new"):
    """Return a task with these configurations and scores."""
    record = tuner.memory.task(name, budget=BUDGET)
    tuner.memory.add_finished(record.id, pairs)
    return tuner.task(name)


# --- the recommended trial ----------------------------------------------------------------------------------


def test_recommended_is_a_told_trial_with_its_expectation():
    task = make_tuner().task("new", budget=BUDGET)
    assert task.recommended is None and task.expected_gain is None
    waiting = task.ask()
    assert task.recommended is None
    task.fail(waiting)
    assert task.recommended is None
    play(task, 8)
    task.ask()  # pending
    chosen = task.recommended
    assert isinstance(chosen, Recommendation)
    assert chosen.trial in task.trials and chosen.params == chosen.trial.params
    assert chosen.expected_score == pytest.approx(score(chosen.params), abs=4 * chosen.std)
    assert 0 < chosen.std < 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.std = 0.0  # pyright: ignore


def parabola(rng):
    """Return a function of the two unit coordinates with a random optimum of value 1."""
    centre, width = rng.uniform(0.3, 0.7, 2), rng.uniform(0.5, 2, 2)
    return lambda params: float(1 - (width * (SPACE.to_unit(params) - centre) ** 2).sum())


def test_recommended_is_better_than_best_under_noise():
    """True values over seeded repetitions; the expected score is less biased than the best score."""
    tuner, gains, errors, biases = make_tuner(), [], [], []
    for seed in range(120):
        rng = np.random.default_rng([1, seed])
        truth = parabola(rng)
        given = [SPACE.from_unit(point) for point in SPACE.sample_unit(30, rng=rng)]
        task = told_task(tuner, [(params, truth(params) + 0.1 * rng.normal()) for params in given])
        chosen, best = task.recommended, task.best
        gains.append(truth(chosen.params) - truth(best.params))
        biases.append((chosen.expected_score - truth(chosen.params), best.score - truth(best.params)))
        errors.append(biases[-1][0] / chosen.std)
        tuner.memory.delete_task("new")
    assert np.mean(gains) > 2 * np.std(gains) / math.sqrt(len(gains))
    ours, naive = np.mean(biases, axis=0)
    assert abs(ours) < 0.6 * naive
    assert np.mean(np.abs(errors) < 2) > 0.8


@pytest.mark.slow
def test_recommended_is_better_than_best_on_its_own_trials():
    """The same with trials that the tuner chose, many of them where a score was high."""
    gains = []
    for seed in range(150):
        rng = np.random.default_rng([2, seed])
        truth = parabola(rng)
        task = make_tuner(seed=seed).task("new", budget=BUDGET)
        play(task, 20, lambda params, rng=rng, truth=truth: truth(params) + 0.1 * rng.normal())
        gains.append(truth(task.recommended.params) - truth(task.best.params))
    assert np.mean(gains) > 2 * np.std(gains) / math.sqrt(len(gains))


def test_repeated_configurations_are_averaged():
    """Of a few configurations, each told often, it is the one with the best mean and not a lucky one."""
    truths, regrets = np.linspace(0, 0.5, 6), []
    for seed in range(40):
        noise = np.random.default_rng([3, seed]).normal(size=(12, 6))
        tuner = make_tuner(candidates=CONFIGS)
        scores = truths + 0.4 * noise
        task = told_task(tuner, [(CONFIGS[j], scores[i, j]) for i in range(12) for j in range(6)])
        trials = task.recommended.trial.number, task.best.number
        regrets.append([0.5 - truths[number % 6] for number in trials])
    ours, naive = np.mean(regrets, axis=0)
    assert ours < 0.7 * naive


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-9, 0.0), (-1e3, 5e6), (1e200, -3e200)])
def test_expectations_are_in_the_units_of_the_scores(scale, shift):
    """A linear map of the scores maps all numbers; a negative factor turns maximisation to minimisation."""
    rng = np.random.default_rng(0)
    values = [score(params) + 0.05 * rng.normal() for params in CONFIGS[:20]]

    def explained(scale, shift):
        tuner = make_tuner(maximise=scale > 0)
        teach(tuner, fn=lambda params, peak: scale * score(params, peak) + shift)
        pairs = [(params, scale * value + shift) for params, value in zip(CONFIGS, values, strict=False)]
        return told_task(tuner, pairs).explain(3)

    plain, mapped = explained(1.0, 0.0), explained(scale, shift)
    assert mapped.recommended.trial.number == plain.recommended.trial.number
    assert mapped.best.number == plain.best.number
    expected = scale * plain.recommended.expected_score + shift
    precision = 1e-3 * abs(scale) * plain.scale + 1e-12 * abs(shift)
    assert mapped.recommended.expected_score == pytest.approx(expected, rel=0, abs=precision)
    for name in ("expected_gain", "scale"):
        assert getattr(mapped, name) == pytest.approx(abs(scale) * getattr(plain, name), rel=1e-3)
    for k in (1, 3):
        assert mapped.expected_gains[k].value == pytest.approx(
            abs(scale) * plain.expected_gains[k].value, rel=0.05
        )
    assert mapped.trust == pytest.approx(plain.trust, abs=1e-3)


def test_gain_equals_that_of_a_dense_gaussian_process():
    """A reference in NumPy: the joint posterior of all candidates in function space."""
    noise_std = 0.1
    tuner = make_tuner(
        learner=jlibo.FixedPrior(),
        policy=jlibo.ExpectedImprovement(noise_std),
        candidates=CONFIGS,
    )
    task = told_task(tuner, [(params, score(params)) for params in CONFIGS[:12]])
    with task._lock:
        now = explain_module.forecast(task._setting())
    features = tuner.model.features
    values = np.asarray(features(np.asarray([SPACE.to_unit(params) for params in CONFIGS])), np.float64)
    kernel = values @ np.diag(np.asarray(tuner.knowledge().knowledge.prior.covariance)) @ values.T
    scores = np.asarray([score(params) for params in CONFIGS[:12]])
    noisy, ones = kernel[:12, :12] + noise_std**2 * np.eye(12), np.ones(12)
    weights = np.linalg.solve(noisy, ones)  # the centre of highest likelihood is their mean of the scores
    targets = (scores - weights @ scores / weights.sum()) / now.scale
    solved = np.linalg.solve(noisy, kernel[:12])
    mean, covariance = solved.T @ targets, kernel - kernel[:, :12] @ solved
    best = now.place
    assert mean[best] > mean[:12].max() - 0.05
    differences = mean[12:] - mean[best]
    stds = np.sqrt(np.diag(covariance)[12:] + covariance[best, best] - 2 * covariance[12:, best])
    gains = differences * norm.cdf(differences / stds) + stds * norm.pdf(differences / stds)
    assert now.gain == pytest.approx(gains.max() * now.scale, rel=1e-4)
    assert task.expected_gain == now.gain


# --- the explanation ----------------------------------------------------------------------------------------


def test_explanation_without_past():
    task = make_tuner().task("<b>new\x1b[31m</b>", budget=BUDGET)
    empty = task.explain()
    assert isinstance(empty, Explanation)
    assert (empty.num_scores, empty.best, empty.recommended) == (0, None, None)
    assert (empty.num_past, empty.trust, empty.prior_trust, empty.similar) == (0, None, None, ())
    assert (empty.scale, empty.expected_gain, empty.expected_gains) == (None, None, {})
    assert "no score yet" in str(empty) and "Past: none" in str(empty)
    task.tell(task.ask(), 0.5)
    one = task.explain()  # a single score does not tell the scale of the scores
    assert one.recommended.trial.number == 0 and one.expected_gain is None and one.scale is None
    assert "1 score," in str(one) and "unknown" in str(one)
    play(task, 12)
    full = task.explain(num_trials=4)
    assert list(full.expected_gains) == [1, 2, 3, 4]
    assert full.best == task.best and full.recommended == task.recommended
    assert full.expected_gain == pytest.approx(task.expected_gain)
    assert f"{full.expected_gain:.3g} by the next trial" in str(full)
    page = full._repr_html_()
    assert "&lt;b&gt;new" in page and "<b>" not in page and "\x1b" not in page
    with pytest.raises(ValueError, match="`num_trials` should be"):
        task.explain(0)


def test_importance_finds_the_parameter_that_matters():
    tuner = make_tuner()
    first = tuner.task("new", budget=BUDGET).explain().importance
    assert set(first) == {"alpha", "log beta"}
    task = told_task(tuner, [(params, score(params)) for params in CONFIGS[:25]])
    shares = task.explain().importance
    assert sum(share.value for share in shares.values()) == pytest.approx(1, abs=1e-4)
    assert next(iter(shares)) == "log beta" and shares["log beta"].value > 0.8
    assert shares["log beta"].std < 0.5 * first["log beta"].std
    assert [share.value for share in shares.values()] == sorted(
        (share.value for share in shares.values()), reverse=True
    )


def rising(params, peak=1.0):
    """Return a score unlike `score`: it depends on alpha, and the optimum is at the other end of beta."""
    return 0.3 * (np.log10(params["beta"]) + 2) ** 2 / 9 - (params["alpha"] - 0.1) ** 2


def test_trust_follows_the_evidence():
    tuner = make_tuner()
    teach(tuner, 5)
    prior = tuner.task("prior", budget=BUDGET).explain()
    assert prior.prior_trust == pytest.approx(0.9, abs=1e-3)  # the wide prior has weight 0.1
    assert prior.trust == pytest.approx(prior.prior_trust, abs=1e-3)
    assert prior.num_past == 5 and "90%" in str(prior)
    alike = told_task(tuner, [(params, score(params)) for params in CONFIGS[20:30]], "alike").explain()
    unlike = told_task(tuner, [(params, rising(params)) for params in CONFIGS[20:30]], "unlike").explain()
    assert alike.trust > 0.95 and unlike.trust < 0.5
    assert alike.prior_trust == pytest.approx(0.9, abs=1e-3)
    paper = make_tuner(mode="paper")
    teach(paper, 2)
    fixed = told_task(paper, [(params, score(params)) for params in CONFIGS[20:24]]).explain()
    assert (fixed.num_past, fixed.trust) == (2, None) and len(fixed.similar) == 2
    assert "always relies on them" in str(fixed)


@pytest.mark.parametrize("num_trials", [4, 12])
def test_similar_tasks_are_those_of_the_same_kind(num_trials):
    """Half of the past tasks are like the new one, also after few trials; the direction does not matter."""
    for maximise in (True, False):
        sign = 1 if maximise else -1
        tuner = make_tuner(maximise=maximise)
        for number in range(6):
            fn = rising if number % 2 else score
            values = [sign * (1 + number / 5) * fn(params, 1 + 0.1 * number) for params in CONFIGS[:20]]
            tuner.add_task(f"{fn.__name__} {number}", CONFIGS[:20], values)
        tuner.add_task("too short", CONFIGS[:1], [1.0])  # not learned from
        for fn in (score, rising):
            pairs = [(params, sign * fn(params)) for params in CONFIGS[20 : 20 + num_trials]]
            similar = told_task(tuner, pairs).explain().similar
            assert len(similar) == 6
            assert {task.name.split()[0] for task in similar[:3]} == {fn.__name__}
            values = [task.similarity for task in similar]
            assert values == sorted(values, reverse=True) and -1 <= values[-1] <= values[0] <= 1
            assert values[2] > values[3] + 0.2
            tuner.memory.delete_task("new")


def test_expected_gains_grow_with_the_number_of_trials():
    tuner = make_tuner()
    task = told_task(tuner, [(params, score(params)) for params in CONFIGS[:6]])
    found = task.explain(num_trials=10)
    gains = [found.expected_gains[k].value for k in range(1, 11)]
    assert min(gains) > 0 and gains == sorted(gains) and gains[-1] > 1.5 * gains[0]
    # The first simulated trial is chosen by the policy; no candidate is better than the most promising one.
    first = found.expected_gains[1]
    assert 0.3 * found.expected_gain < first.value < found.expected_gain + 4 * first.std
    assert task.explain(num_trials=10) == found  # deterministic
    assert task.explain(num_trials=3).expected_gains[3] == found.expected_gains[3]


def test_expected_gains_are_calibrated():
    """On functions drawn from the prior, the simulated gain is the realised one on average."""
    tuner = make_tuner()
    features = tuner.model.features
    points = np.asarray([SPACE.to_unit(params) for params in LISTED])
    # The simulated trials are the policy's, so no trial is one of forced exploration.
    listed = make_tuner(
        learner=jlibo.AdaptiveMetaKGL(exploration=jlibo.NoExploration()),
        candidates=LISTED,
    )
    values = np.asarray(features(points), np.float64)
    stds = np.sqrt(np.asarray(listed.knowledge().knowledge.prior.components.covariance[-1]).diagonal())
    expected, realised = [], []
    for seed in range(24):
        truth = values @ (stds * np.random.default_rng([3, seed]).normal(size=len(stds)))
        told = {tuple(params.values()): value for params, value in zip(LISTED, truth, strict=True)}

        def fn(params, told=told):
            return float(told[tuple(params.values())])

        task = told_task(listed, [(params, fn(params)) for params in CONFIGS[:5]])
        now = task.explain(4)
        base = fn(now.recommended.params)
        expected.append(now.expected_gains[4].value)
        realised.append(max(0.0, *(fn(params) - base for params in play(task, 4, fn))))
        listed.memory.delete_task("new")
    error = np.std(realised) / math.sqrt(len(realised))
    assert abs(np.mean(expected) - np.mean(realised)) < 3 * error + 0.1 * np.mean(realised)


def test_pending_trials_are_still_to_come():
    tuner = make_tuner(candidates=LISTED)
    task = told_task(tuner, [(params, score(params)) for params in LISTED[:10]])
    before = task.explain(5)
    task.ask(4)
    assert task.explain(5) == before


def test_exhausted_candidates_have_no_gain():
    tuner = make_tuner(candidates=LISTED)
    task = told_task(tuner, [(params, score(params)) for params in LISTED[:-1]])
    found = task.explain(4)
    assert found.expected_gains[1] == found.expected_gains[4]  # one candidate is left
    assert found.expected_gain > 0


@pytest.mark.parametrize("scores", [[0.5] * 9, [1e300, -1e300] * 4, [0.0, 1e-300], [1.0, 1.0, -1e12, 1.0]])
@pytest.mark.parametrize("has_past", [False, True])
def test_extreme_scores_give_finite_numbers(scores, has_past):
    tuner = make_tuner()
    if has_past:
        teach(tuner)
    found = told_task(tuner, list(zip(CONFIGS, scores, strict=False))).explain(2)
    known = has_past or len(set(scores)) > 1
    assert (found.expected_gain is not None) == known
    assert str(found)
    numbers = [share.value for share in found.importance.values()]
    if max(map(abs, scores)) < 1e299:
        numbers += [found.recommended.expected_score, found.recommended.std]
        numbers += [] if not known else [found.expected_gain, found.scale, found.expected_gains[2].value]
    assert np.all(np.isfinite(numbers))


def test_long_task_is_explained_from_compressed_rows(monkeypatch):
    """The numbers equal those from one row per trial."""
    rng = np.random.default_rng(5)
    pairs = [(SPACE.from_unit(point), None) for point in rng.uniform(size=(300, 2))]
    pairs = [(params, score(params) + 0.1 * rng.normal()) for params, _ in pairs]

    def forecast():
        return told_task(make_tuner(), pairs)._forecast()

    short = forecast()
    monkeypatch.setattr(arrays, "most_rows", lambda num_features: 10**6)
    whole = forecast()
    assert short.place == whole.place
    assert short[1:] == pytest.approx(whole[1:], rel=1e-4)


# --- cost ---------------------------------------------------------------------------------------------------


def test_nothing_is_recompiled_and_ask_does_not_explain(monkeypatch, count_traces):
    look, calls = count_traces(outlook.look)  # compiled: every call counts
    monkeypatch.setattr(outlook, "look", look)
    monkeypatch.setattr(insight, "look", look)
    traces = []
    # A function inside of each program: `look`, `_simulated` and `_similar`.
    for module, name in ((outlook, "_level"), (insight, "_play"), (insight, "past_surfaces")):
        inner, counter = count_traces(getattr(module, name))
        monkeypatch.setattr(module, name, inner)
        traces.append(counter)
    tuner = make_tuner()
    teach(tuner, 2)
    task = tuner.task("new", budget=BUDGET)
    play(task, 4)
    assert calls.count == 0
    counts = []
    for number in range(4):
        play(task, 3)
        assert task.recommended is not None and task.expected_gain > 0
        task.explain()
        assert calls.count >= 2 * (number + 1)
        counts.append([counter.count for counter in traces])
    other = tuner.task("other", budget=BUDGET)
    play(other, 2)
    other.explain()
    # At most once each; not at all if another test has compiled them.
    assert counts == [[counter.count for counter in traces]] * 4 and max(counts[0]) <= 1


@pytest.mark.slow
def test_float32_agrees_with_float64():
    pairs = [(params, 1e4 + score(params)) for params in CONFIGS[:25]]

    def explained():
        tuner = make_tuner()
        teach(tuner)
        return told_task(tuner, pairs).explain(2)

    with jax.enable_x64(False):
        single = explained()
    double = explained()
    assert single.recommended.trial == double.recommended.trial
    assert single.recommended.expected_score == pytest.approx(double.recommended.expected_score, abs=1e-3)
    assert single.expected_gain == pytest.approx(double.expected_gain, rel=0.02)
    assert single.trust == pytest.approx(double.trust, abs=0.01)
