"""Policies on any action set: the same as `choose` on finite sets, and never worse on continuous ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.actions import Ball, FiniteActions
from jlibo.belief import posterior as gp
from jlibo.policies import choose_action
from tests.policies.cases import POLICIES

KEY = jax.random.key(0)
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4)))


def posterior_of(policy):
    state = gp.init(jlibo.full_prior(range(4)), policy.noise_std)
    for row, reward in zip(ROWS[:3], (0.3, -0.2, 1.0), strict=True):
        state = gp.observe(state, row, reward)
    return state


@pytest.mark.parametrize("name", POLICIES)
def test_on_finite_sets_the_action_is_that_of_choose(name):
    policy = POLICIES[name]
    state = posterior_of(policy)
    chosen = jlibo.choose(policy, gp.belief_at(state, ROWS), key=KEY)
    assert choose_action(policy, state, FiniteActions(ROWS), key=KEY).place == chosen


@pytest.mark.parametrize("name", ["gp_ucb", "gp_ts", "oful", "greedy"])
def test_on_a_ball_no_random_action_has_a_higher_score(name):
    policy, ball = POLICIES[name], Ball(1.0, 4)
    state = posterior_of(policy)
    points = jax.vmap(lambda key: ball.uniform(key=key).features)(jax.random.split(KEY, 2000))
    best = choose_action(policy, state, ball, key=KEY).features

    def scores(rows):
        # One at a time: the draw of a sampling policy is of the weights, and does not depend on the points.
        return jax.vmap(lambda row: policy.scores(gp.belief_at(state, row[None]), key=KEY)[0])(rows)

    assert scores(best[None])[0] >= scores(points).max() - 1e-9


def test_uniform_play_on_a_ball_is_random():
    policy, ball = jlibo.Uniform(), Ball(1.0, 4)
    state = posterior_of(policy)
    first, second = (
        choose_action(policy, state, ball, key=jax.random.key(number)).features for number in (0, 1)
    )
    assert not np.allclose(first, second)
