"""Finite action sets: maxima, draws, and the optimal design."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.actions import FiniteActions
from jlibo.actions.finite import optimal_design

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(30, 4)))
ACTIONS = FiniteActions(ROWS)


def test_best_and_maximise_are_the_argmax():
    weights = jnp.asarray([1.0, -2.0, 0.5, 0.0])
    place = int(np.argmax(ROWS @ weights))
    assert ACTIONS.best(weights).place == place
    found = ACTIONS.maximise(lambda rows: rows @ weights, key=jax.random.key(0))
    assert found.place == place
    np.testing.assert_array_equal(found.features, ROWS[place])


def test_uniform_draws_reach_every_action_equally_often():
    keys = jax.random.split(jax.random.key(0), 6000)
    places = jax.vmap(lambda key: ACTIONS.uniform(key=key).place)(keys)
    counts = np.bincount(places, minlength=30)
    # 200 expected, with a standard deviation of 14.
    assert counts.shape == (30,)
    assert np.abs(counts - 200).max() < 5 * 14


def test_mean_is_that_of_the_rows():
    np.testing.assert_allclose(ACTIONS.mean(), np.mean(ROWS, 0), rtol=1e-12)


def test_optimal_design_satisfies_kiefer_wolfowitz():
    """The largest leverage of the optimal design is the dimension; of the uniform one it is much larger."""
    weights = np.asarray(optimal_design(ROWS))
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)
    assert (weights >= 0).all()

    def leverage(weights):
        return np.einsum("ki,ij,kj->k", ROWS, np.linalg.inv((ROWS.T * weights) @ ROWS), ROWS).max()

    assert leverage(weights) < 4 * 1.1
    assert leverage(np.full(30, 1 / 30)) > 4 * 1.5


def test_design_of_a_singular_set_is_finite():
    weights = optimal_design(jnp.ones((5, 3)))
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)


def test_design_plays_each_action_as_often_as_its_weight_says():
    basis = jnp.eye(4)[:, :2]
    weights = np.asarray(optimal_design(ROWS @ basis))
    places = jax.vmap(lambda step: ACTIONS.design(basis, step).place)(jnp.arange(400))
    shares = np.bincount(places, minlength=30) / 400
    assert np.abs(shares - weights).max() < 0.02


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"`features` should be an array of shape \[actions, features\]"):
        FiniteActions(jnp.ones(3))
