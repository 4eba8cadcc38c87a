"""The joint choice of actions: OFUL for one task, and the maximum over all combinations for few."""

import itertools

import jax
import numpy as np
import pytest

from jlibo.arena.estimators import confidence_radius, joint_choice, low_rank_least_squares, statistics_of
from tests.arena.estimators.references import draw_tasks, random_covariance

SIZE, NUM_ACTIONS = 3, 6


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def problem(num_tasks, seed):
    rng = np.random.default_rng(seed)
    actions = rng.normal(size=(num_tasks, NUM_ACTIONS, SIZE))
    inverse = np.stack([0.2 * random_covariance(SIZE, seed=seed + s) for s in range(num_tasks)])
    return actions, rng.normal(size=(num_tasks, SIZE)), inverse


def value_of(choice, actions, coef, inverse, radius):
    chosen = [arms[one] for arms, one in zip(actions, choice, strict=True)]
    widths = sum(x @ v @ x for x, v in zip(chosen, inverse, strict=True))
    return sum(x @ w for x, w in zip(chosen, coef, strict=True)) + np.sqrt(radius * widths)


@pytest.mark.parametrize("seed", range(8))
def test_one_task_of_full_rank_is_oful(seed):
    """The estimate is then ridge regression, and the choice that of OFUL."""
    draw, ridge, radius = draw_tasks(1, 8, SIZE, seed=seed), 1.0, 3.0
    stats = statistics_of(draw.features, draw.rewards)
    fit = low_rank_least_squares(stats, SIZE, ridge=ridge, num_steps=0)
    rows, rewards = draw.features[0], draw.rewards[0]
    matrix = rows.T @ rows + ridge * np.eye(SIZE)
    close(fit.coef[0], np.linalg.solve(matrix, rows.T @ rewards))
    arms, inverse = problem(1, seed)[0], np.linalg.inv(matrix)
    widths = np.sqrt(np.einsum("af,fg,ag->a", arms[0], inverse, arms[0]))
    scores = arms[0] @ np.asarray(fit.coef[0]) + np.sqrt(radius) * widths
    found = joint_choice(arms, fit.coef, inverse[None], radius)
    assert int(found.actions[0]) == int(np.argmax(scores))
    close(found.value, scores.max())


@pytest.mark.parametrize("seed", range(8))
def test_few_tasks_get_the_best_combination(seed):
    actions, coef, inverse = problem(3, seed)
    for radius in (0.0, 1.0, 30.0):
        values = [
            value_of(choice, actions, coef, inverse, radius)
            for choice in itertools.product(range(NUM_ACTIONS), repeat=3)
        ]
        found = jax.jit(joint_choice)(actions, coef, inverse, radius)
        close(found.value, max(values))
        close(found.value, value_of(found.actions, actions, coef, inverse, radius))


def test_identical_tasks_share_the_bonus():
    """The bonus of m identical tasks is sqrt(L m) |x|."""
    (arms,), (coef,), (inverse,) = problem(1, 3)
    count, radius = 7, 2.0
    scores = count * arms @ coef + np.sqrt(radius * count * np.einsum("af,fg,ag->a", arms, inverse, arms))
    found = joint_choice(*(np.stack([one] * count) for one in (arms, coef, inverse)), radius)
    assert float(found.value) >= scores.max() - 1e-9
    np.testing.assert_array_equal(found.actions, np.argmax(scores))
    close(found.value, scores.max())


def test_absent_tasks_do_not_count():
    actions, coef, inverse = problem(4, 0)
    present = np.array([True, False, True, False])
    found = joint_choice(actions, coef, inverse, 2.0, present=present)
    alone = joint_choice(actions[present], coef[present], inverse[present], 2.0)
    close(found.value, alone.value)
    np.testing.assert_array_equal(np.asarray(found.actions)[present], alone.actions)


def test_radius():
    want = 0.5 * (10 * 2 + 5 * 2 * np.log(1000)) * 0.25
    close(confidence_radius(0.5, 10, 5, 2, 100.0, 0.25), want)
