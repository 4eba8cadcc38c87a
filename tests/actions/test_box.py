"""Boxes: the maximum of a known function, and agreement with finite sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.actions import BoxActions, FiniteActions

FEATURES = jlibo.Cosine(6)
BOX = BoxActions(FEATURES, num_candidates=64, num_starts=4, num_steps=40)
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=6))


def test_best_is_the_maximum_over_the_box_and_finite_sets_approach_it():
    best = BOX.best(WEIGHTS)
    np.testing.assert_allclose(FEATURES(best.place), best.features)
    found = float(best.features @ WEIGHTS)
    gaps = []
    for num in (10, 100, 10_000):
        grid = FiniteActions(FEATURES(jlibo.box_grid(FEATURES, num)))
        gaps.append(found - float(grid.best(WEIGHTS).features @ WEIGHTS))
    assert gaps[0] >= gaps[1] >= gaps[2] >= -1e-4
    assert abs(gaps[2]) < 1e-4


def test_best_does_not_depend_on_a_key_and_maximise_does_not_need_the_same_sample():
    first, second = (
        BOX.maximise(lambda rows: rows @ WEIGHTS, key=jax.random.key(number)).features @ WEIGHTS
        for number in (3, 4)
    )
    np.testing.assert_allclose(first, second, atol=1e-3)
    np.testing.assert_array_equal(BOX.best(WEIGHTS).place, BOX.best(WEIGHTS).place)


def test_draws_and_designs_are_points_of_the_box():
    action = BOX.uniform(key=jax.random.key(0))
    assert 0 <= float(action.place[0]) <= 1
    np.testing.assert_allclose(FEATURES(action.place), action.features)
    basis = jnp.eye(6)[:, :2]
    rows = jnp.stack([BOX.design(basis, step).features for step in range(10)])
    # Both directions are explored.
    assert np.linalg.eigvalsh(np.asarray((rows @ basis).T @ (rows @ basis)))[0] > 1
    assert BOX.mean().shape == (6,)


def test_without_steps_the_best_of_the_sample_is_returned():
    still = BoxActions(FEATURES, num_candidates=8, num_starts=1, num_steps=0)
    sample = jlibo.sample_box(FEATURES, 8, key=jax.random.key(5))
    found = still.maximise(lambda rows: rows @ WEIGHTS, key=jax.random.key(5))
    np.testing.assert_array_equal(found.place, sample[jnp.argmax(FEATURES(sample) @ WEIGHTS)])


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`num_starts` should be a whole number >= 1"):
        BoxActions(FEATURES, num_starts=0)
    with pytest.raises(ValueError, match="`learning_rate` should be a number > 0"):
        BoxActions(FEATURES, learning_rate=0.0)
