"""Laws of arms: shapes, norms and correlations, and which of them change from step to step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.actions import Ball, BoxActions, Ellipsoid, FiniteActions
from jlibo.envs.linear import BallArms, BoxArms, CandidateArms, EllipsoidArms, FreshArms, TaskArms

KEY = jax.random.key(0)
BOX = BoxActions(jlibo.Cosine(4), num_candidates=8, num_starts=1, num_steps=1)
ARMS = {
    "candidates": CandidateArms(jnp.ones((3, 4))),
    "task": TaskArms(5, 4),
    "cube": TaskArms(5, 4, "cube"),
    "fresh": FreshArms(5, 4),
    "fresh sphere": FreshArms(5, 4, "sphere", radius=2.0),
    "fresh ball": FreshArms(5, 4, "ball", radius=0.25),
    "ball": BallArms(2.0, 4),
    "ellipsoid": EllipsoidArms(4.0, 4),
    "box": BoxArms(BOX),
}


@pytest.mark.parametrize("name", ARMS)
def test_the_kind_says_what_changes(name):
    law = ARMS[name]
    assert law.num_features == 4
    arms = law.draw_arms(0, key=KEY)
    first, second = (law.actions(arms, key=jax.random.key(number)) for number in (1, 2))
    assert isinstance(first, FiniteActions) == (law.kind != "continuous")
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    same = all(np.array_equal(one, other) for one, other in leaves)
    assert same == (law.kind != "fresh")
    again = law.actions(arms, key=jax.random.key(1))
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shapes_of_arms():
    def rows(name):
        law = ARMS[name]
        return np.asarray(law.actions(law.draw_arms(0, key=KEY), key=KEY).features)

    np.testing.assert_allclose(np.linalg.norm(rows("task"), axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(rows("fresh sphere"), axis=1), 2)
    assert np.abs(rows("cube")).max() <= 0.5
    assert np.linalg.norm(rows("fresh ball"), axis=1).max() <= 0.25


def test_points_of_a_fresh_ball_are_uniform_in_it():
    rows = FreshArms(20_000, 3, "ball").actions((), key=KEY).features
    inside = np.linalg.norm(rows, axis=1)
    # The cube of the radius is uniform on [0, 1].
    np.testing.assert_allclose(np.quantile(inside**3, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.02)


@pytest.mark.parametrize("correlated, axis", [("features", 1), ("arms", 0)])
def test_contexts_have_variance_one_and_the_correlation_asked_for(correlated, axis):
    law = FreshArms(3, 2, correlation=0.7, correlated=correlated)
    sets = jax.vmap(lambda key: law.actions((), key=key).features)(jax.random.split(KEY, 20_000))
    first = np.asarray(sets[:, 0, 0])
    other = np.asarray(sets[:, 0, 1] if axis == 1 else sets[:, 1, 0])
    across = np.asarray(sets[:, 1, 0] if axis == 1 else sets[:, 0, 1])
    np.testing.assert_allclose(first.var(), 1, atol=0.04)
    np.testing.assert_allclose(np.corrcoef(first, other)[0, 1], 0.7, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(first, across)[0, 1], 0, atol=0.03)


def test_ellipsoids_have_at_most_the_condition_number():
    law = ARMS["ellipsoid"]
    for number in range(5):
        ellipsoid = law.draw_arms(0, key=jax.random.key(number))
        assert isinstance(ellipsoid, Ellipsoid)
        lengths = np.linalg.svd(np.asarray(ellipsoid.factor), compute_uv=False)
        assert (lengths[0] / lengths[-1]) ** 2 <= 4.0 + 1e-6
        assert lengths[0] <= 1 + 1e-9
        np.testing.assert_allclose(ellipsoid.inner, lengths[-1], rtol=1e-6)
    assert isinstance(ARMS["ball"].actions((), key=KEY), Ball)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`num_arms` should be a whole number >= 1"):
        TaskArms(0, 4)
    with pytest.raises(ValueError, match="`shape` should be 'sphere' or 'cube'"):
        TaskArms(3, 4, "gaussian")
    with pytest.raises(ValueError, match="`correlation` should be a number"):
        FreshArms(3, 4, correlation=1.5)
    with pytest.raises(ValueError, match="`condition` should be a number >= 1"):
        EllipsoidArms(0.5, 4)
    with pytest.raises(ValueError, match=r"`features` should be an array of shape \[actions, features\]"):
        CandidateArms(jnp.ones(3))
