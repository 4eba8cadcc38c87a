"""Balls and ellipsoids: closed forms, the monotone ascent, and agreement with finite sets."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.actions import Ball, Ellipsoid, FiniteActions, upper_confidence
from jlibo.actions.ball import ascend

RANDOM = np.random.default_rng(0)
SHAPE = np.diag([4.0, 1.0, 0.25]) + 0.1
BALL, ELLIPSOID = Ball(2.0, 3), Ellipsoid.of(jnp.asarray(SHAPE))
MEAN, FACTOR = jnp.asarray(RANDOM.normal(size=3)), jnp.asarray(RANDOM.normal(size=(3, 3)))
KEY = jax.random.key(0)


def on_boundary(actions, num):
    keys = jax.random.split(jax.random.key(1), num)
    return jax.vmap(lambda key: actions.uniform(key=key).features)(keys)


@pytest.mark.parametrize("actions", [BALL, ELLIPSOID])
def test_best_is_in_the_set_and_no_other_point_is_better(actions):
    best = actions.best(MEAN).features
    points = on_boundary(actions, 20_000)
    assert best @ MEAN >= (points @ MEAN).max()
    matrix = np.linalg.inv(SHAPE) if actions is ELLIPSOID else np.eye(3) / 4
    np.testing.assert_allclose(best @ matrix @ best, 1, rtol=1e-10)
    np.testing.assert_allclose(np.einsum("pi,ij,pj->p", points, matrix, points), 1, rtol=1e-8)


def test_best_for_the_ellipsoid_is_the_closed_form():
    expected = SHAPE @ MEAN / np.sqrt(MEAN @ SHAPE @ MEAN)
    np.testing.assert_allclose(ELLIPSOID.best(MEAN).features, expected, rtol=1e-10)


def test_a_round_ellipsoid_is_the_ball():
    round_one = Ellipsoid(2.0 * jnp.eye(3), 2.0)
    np.testing.assert_allclose(round_one.best(MEAN).features, BALL.best(MEAN).features, rtol=1e-12)
    np.testing.assert_allclose(round_one.uniform(key=KEY).features, BALL.uniform(key=KEY).features)


def test_zero_weights_give_a_point_of_the_set():
    for actions in (BALL, ELLIPSOID):
        assert np.isfinite(actions.best(jnp.zeros(3)).features).all()


def test_isotropic_draws_have_a_second_moment_proportional_to_the_identity():
    keys = jax.random.split(KEY, 20_000)
    points = jax.vmap(lambda key: ELLIPSOID.isotropic(key=key).features)(keys)
    moment = np.asarray(points.T @ points) / len(points)
    np.testing.assert_allclose(moment, ELLIPSOID.inner**2 / 3 * np.eye(3), atol=0.005 * ELLIPSOID.inner**2)
    inside = np.einsum("pi,ij,pj->p", points, np.linalg.inv(SHAPE), points)
    assert inside.max() <= 1 + 1e-9


@pytest.mark.parametrize("actions", [BALL, ELLIPSOID])
@pytest.mark.parametrize("width", [0.0, 0.5, 20.0])
def test_upper_confidence_is_as_good_as_a_dense_finite_set(actions, width):
    """Finite and continuous sets agree as the number of actions grows."""

    def value(points):
        return points @ MEAN + width * jnp.linalg.norm(points @ FACTOR, axis=-1)

    found = value(upper_confidence(actions, MEAN, FACTOR, width, key=KEY).features)
    gaps = []
    for num in (100, 1000, 100_000):
        finite = FiniteActions(on_boundary(actions, num))
        gaps.append(float(found - value(upper_confidence(finite, MEAN, FACTOR, width, key=KEY).features)))
    assert min(gaps) > -1e-9 * float(found)
    assert gaps[0] >= gaps[1] >= gaps[2]
    assert gaps[2] < 2e-3 * float(found)


def test_no_step_of_the_ascent_makes_a_convex_score_worse():
    def score(points):
        return points @ MEAN + 3 * jnp.linalg.norm(points @ FACTOR, axis=-1)

    point = BALL.uniform(key=KEY).features
    values = [float(score(point[None])[0])]
    for _ in range(30):
        point = BALL.best(jax.grad(lambda x: score(x[None])[0])(point)).features
        values.append(float(score(point[None])[0]))
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] > values[0]


def test_ascend_keeps_the_best_point_of_a_score_that_is_not_convex():
    target = jnp.asarray([0.3, 0.1, 0.0])

    def score(points):
        return -((points - target) ** 2).sum(-1)

    start = BALL.uniform(key=KEY).features
    found = ascend(lambda weights: BALL.best(weights).features, score, None, BALL, key=KEY)
    assert score(found[None])[0] >= score(start[None])[0]


def test_equal_scores_give_the_random_start():
    """As for the policy of uniform play, whose scores do not depend on the point."""
    flat = partial(BALL.maximise, lambda points: jnp.zeros(len(points)), directions=jnp.eye(3))
    first, second = (flat(key=jax.random.key(number)).features for number in (0, 1))
    np.testing.assert_allclose(jnp.linalg.norm(first), 2)
    assert not np.allclose(first, second)


@pytest.mark.parametrize("actions", [BALL, ELLIPSOID])
def test_design_cycles_through_the_basis_within_the_set(actions):
    basis = jnp.eye(3)[:, 1:]
    steps = [actions.design(basis, step).features for step in range(4)]
    size = 2.0 if actions is BALL else float(actions.inner)
    np.testing.assert_allclose(steps, size * np.eye(3)[[1, 2, 1, 2]], rtol=1e-12)
    np.testing.assert_array_equal(actions.mean(), np.zeros(3))


def test_a_batch_of_sets_equals_each_of_them():
    factors = jnp.stack([ELLIPSOID.factor, 2 * ELLIPSOID.factor])
    batch = Ellipsoid(factors[0], 1.0)
    batch = eqx.tree_at(lambda sets: (sets.factor, sets.inner), batch, (factors, jnp.ones(2)))
    found = jax.vmap(lambda actions: actions.best(MEAN).features)(batch)
    np.testing.assert_allclose(found, [ELLIPSOID.best(MEAN).features, 2 * ELLIPSOID.best(MEAN).features])


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`radius` should be a number > 0"):
        Ball(0.0, 3)
    with pytest.raises(ValueError, match="`shape` should be a symmetric positive definite matrix"):
        Ellipsoid.of(-jnp.eye(2))
    with pytest.raises(ValueError, match=r"`shape` should be an array of shape \[features, 2\]"):
        Ellipsoid.of(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"`mean` should be an array of shape \[3\]"):
        upper_confidence(BALL, jnp.zeros(2), jnp.eye(2), 1.0, key=KEY)
