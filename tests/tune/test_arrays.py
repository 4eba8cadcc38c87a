"""Conversion of records to padded arrays: scores of any scale, constant shapes, untried candidates."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo.tune import arrays
from jlibo.tune.history import GivenHistory
from jlibo.tune.memory.records import TaskRecord, TrialRecord
from jlibo.tune.space import candidates
from jlibo.tune.space.space import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(a=Float(0, 1), b=Float(1e-3, 1e3, log=True), c=Int(1, 100, log=True))
MIXED = SearchSpace(a=Float(-5, 5), b=Int(1, 4), c=Categorical(["x", "y", None]))
finite = st.floats(allow_nan=False, allow_infinity=False)


def trial(number, params, state="complete", score=1.0, task_id=1, explored=False):
    score = score if state == "complete" else None
    return TrialRecord(
        id=number,
        task_id=task_id,
        number=number,
        params=params,
        state=state,
        score=score,
        explored=explored,
        owner=None,
        created="",
        finished=None,
    )


# --- scores -------------------------------------------------------------------------------------------------


@given(st.lists(finite, max_size=12), st.booleans())
def test_level_bounds_scores_and_keeps_their_order(scores, maximise):
    values, log_unit = arrays.level(scores, maximise=maximise)
    assert values.shape == (len(scores),)
    assert np.isfinite(values).all() and math.isfinite(log_unit)
    assert np.abs(values).max(initial=0) <= 1e6
    order = np.argsort(np.asarray(scores, float) * (1 if maximise else -1), kind="stable")
    assert (np.diff(values[order]) >= 0).all()
    if len(set(scores)) > 1 and np.ptp(np.asarray(scores) / 4) > 0:
        assert values.max() <= 1 + 1e-12


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=4), st.booleans())
def test_scores_are_recovered_from_their_level(scores, maximise):
    """With fewer than five scores none is clipped at the median minus a multiple of the spread."""
    values, log_unit = arrays.level(scores, maximise=maximise)
    inverse = arrays.Level.of(scores, maximise=maximise)
    unclipped = np.abs(values) < 1e5
    size = np.abs(scores).max()
    for score, value in zip(np.asarray(scores)[unclipped], values[unclipped], strict=True):
        assert inverse.score(value) == pytest.approx(score, rel=1e-9, abs=1e-9 * size)
    assert inverse.size(2.0) == pytest.approx(2 * math.exp(log_unit))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.integers(-200, 200))
def test_level_returns_the_log_of_the_divisor(scores, exponent):
    scores = [round(score, 6) for score in scores]
    values, log_unit = arrays.level([score * 2.0**exponent for score in scores], maximise=True)
    same, same_log_unit = arrays.level(scores, maximise=True)
    assert values.tolist() == same.tolist()
    if np.ptp(scores) == 0:
        assert log_unit == 0 and not values.any()
        return
    assert log_unit - same_log_unit == pytest.approx(exponent * math.log(2))
    if same.min() > -arrays.FARTHEST:  # no score was clipped
        differences = np.subtract.outer(same, same) * math.exp(same_log_unit)
        assert differences == pytest.approx(np.subtract.outer(scores, scores), abs=1e-9)


def test_only_low_outliers_are_clipped():
    values, _ = arrays.level([0.5, 0.6, 0.7, 0.8, -1e9], maximise=True)
    assert values.min() == -arrays.FARTHEST and len(set(values)) == 5
    values, _ = arrays.level([0.5, 0.6, 0.7, 0.8, 1e9], maximise=True)
    assert values.max() == 1


# --- shapes -------------------------------------------------------------------------------------------------


def test_padded_lengths_double():
    assert [arrays.padded(count, 32) for count in (0, 1, 32, 33, 64, 65)] == [32, 32, 32, 64, 64, 128]


@pytest.mark.parametrize("space", [SPACE, MIXED])
def test_unit_points_equal_to_unit(space):
    points = space.sample_unit(20, rng=np.random.default_rng(0))
    trials = [trial(number, space.from_unit(point)) for number, point in enumerate(points)]
    found = arrays.unit_points(space, trials)
    assert found == pytest.approx(np.asarray([space.to_unit(t.params) for t in trials]), abs=1e-14)
    assert arrays.unit_points(space, []).shape == (0, 3)


def test_own_rows_exclude_failed_trials():
    params = [SPACE.from_unit(point) for point in SPACE.sample_unit(4, rng=np.random.default_rng(1))]
    states = ["complete", "failed", "pending", "complete"]
    trials = [trial(n, p, state, float(n)) for n, (p, state) in enumerate(zip(params, states, strict=True))]
    features = SPACE.features()
    points = arrays.unit_points(SPACE, trials)
    in_arrays = arrays.trial_arrays(points, trials)
    rows, log_unit = GivenHistory(in_arrays, features, maximise=False).rows(room=40)
    own = rows.with_features(features)
    assert own.features.shape == (128, features.num_features)
    assert own.told.tolist() == [True, False, False, True] + [False] * 124
    assert own.pending.tolist() == [False, False, True] + [False] * 125
    assert own.features[:4] == pytest.approx(np.asarray(features(jnp.asarray(points))))
    assert own.scores[0] == -own.scores[3] > 0  # to minimise
    assert own.scores[0] * 2 * math.exp(log_unit) == pytest.approx(3)
    assert not own.scores[1:3].any() and not own.scores[4:].any()


def test_past_trials_keep_scored_trials_of_tasks_with_two_scores():
    points = SPACE.sample_unit(40, rng=np.random.default_rng(2))
    params = [SPACE.from_unit(point) for point in points]
    tasks = [TaskRecord(n, f"task {n}", None, "added" if n == 3 else "tuner", 0, "") for n in range(1, 5)]
    trials = [trial(n, params[n], "failed" if n == 1 else "complete", n, 1, n < 5) for n in range(36)]
    trials += [trial(0, params[0], task_id=2), trial(1, params[1], "pending", task_id=2)]
    trials += [trial(n, params[n], score=5.0, task_id=3) for n in range(2)]
    trials += [trial(n, params[n], score=5.0, task_id=9) for n in range(2)]  # a task that is left out
    past, num_tasks = arrays.past_trials(SPACE, SPACE.features(), tasks, trials, maximise=True)
    assert num_tasks == 2
    assert past.present.shape == (8, 64)
    assert past.present.sum(1).tolist() == [35, 2] + [0] * 6
    assert past.explored.sum(1).tolist() == [4, 2] + [0] * 6  # all trials of an added task count as explored
    assert not past.scores[1].any()
    assert arrays.past_trials(SPACE, SPACE.features(), tasks[1:2], trials, maximise=True) is None


# --- candidates ---------------------------------------------------------------------------------------------


def test_small_space_is_enumerated():
    assert candidates.whole_space(SPACE) is None
    space = SearchSpace(b=Int(1, 4, log=True), c=Categorical(["x", "y", None]))
    points = candidates.whole_space(space)
    configs = {tuple(space.from_unit(point).values()) for point in points}
    assert configs == {(b, c) for b in range(1, 5) for c in ("x", "y", None)} and len(points) == 12
    assert candidates.whole_space(space, most=11) is None


@pytest.mark.parametrize("space", [SPACE, MIXED])
def test_nearby_points_are_near_and_inside_the_box(space):
    centre = space.snap(np.array([[0.02, 0.5, 0.97]]))
    points = candidates.nearby(space, centre, seed=(0, 1, 2))
    assert points.shape == (candidates.NEARBY, 3)
    assert ((points >= 0) & (points <= 1)).all()
    assert points == pytest.approx(space.snap(points))
    assert np.median(np.abs(points - centre)[:, 0]) < 0.1
    # Many differ in one coordinate only, and an edge has no more points than its neighbourhood.
    assert (np.isclose(points, centre).sum(1) == 2).mean() > 0.2
    assert (points[:, 0] == 0).mean() < 0.05
    assert (points == candidates.nearby(space, centre, seed=(0, 1, 2))).all()
    anywhere = candidates.nearby(space, np.zeros((0, 3)), seed=(0,))
    assert np.ptp(anywhere[:, 0]) > 0.9


def test_left_to_try_excludes_tried_points_and_neighbours_of_failures():
    line = np.linspace(0, 1, 101)[:, None]
    none = np.zeros((0, 1))
    assert candidates.left_to_try(line, none, none, none).all()
    left = candidates.left_to_try(line, line[:3], none, line[:3])
    assert not left[:3].any() and left[3:].all()
    # Points near a failure are excluded unless a score is near; round-off does not make a point new.
    failed, scored = line[[50]] + 1e-13, line[[55]]
    left = candidates.left_to_try(line, np.concatenate([failed, scored]), failed, scored)
    assert np.flatnonzero(~left[:57]).tolist() == [*range(41, 54), 55]
    # More failures exclude a larger region; if nothing else is left, the farthest points are tried.
    wide = candidates.left_to_try(line, line[[48, 50]], line[[48, 50]], none)
    assert not wide[29:70].any() and wide[:28].all() and wide[71:].all()
    failed = line[[20, 40, 60, 80, 90]]
    left = candidates.left_to_try(line, failed, failed, none)
    assert 20 < left.sum() < 30 and left[0] and left[100] and not left[21]


def test_exhausted_candidates_repeat_only_scored_points():
    line = np.linspace(0, 1, 5)[:, None]
    left = candidates.left_to_try(line, line, line[:2], line[2:])
    assert left.tolist() == [False, False, True, True, True]
    assert candidates.left_to_try(line, line, line, line[:0]).all()
