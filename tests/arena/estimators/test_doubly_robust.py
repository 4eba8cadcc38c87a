"""Doubly robust pseudo-rewards, and the group lasso from statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.arena.estimators import (
    TaskStatistics,
    group_lasso_of,
    propensity,
    pseudo_reward,
    rows_of_statistics,
    statistics_of,
)
from tests.arena.estimators.references import draw_tasks

NUM_ACTIONS, SIZE, EXPLORE = 5, 3, 0.4


def close(got, want, tol=1e-8):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def stats_of(draw):
    return statistics_of(draw.features, draw.rewards)


def expected_pseudo_reward(is_printed: bool, seed=0):
    """The exact expectation over the draws of a step, and what it should be."""
    rng = np.random.default_rng(seed)
    arms, theta, coef = rng.normal(size=(NUM_ACTIONS, SIZE)), rng.normal(size=SIZE), rng.normal(size=SIZE)
    greedy, mean = int(np.argmax(arms @ coef)), arms.mean(0)
    total = 0.0
    for explored in (True, False):
        for arm in range(NUM_ACTIONS):
            chance = EXPLORE / NUM_ACTIONS if explored else (1 - EXPLORE) * (arm == greedy)
            was_greedy = not explored if is_printed else arm == greedy
            value = pseudo_reward(
                arms[arm] @ theta,
                arms[arm],
                mean,
                coef,
                propensity(jnp.asarray(was_greedy), EXPLORE, NUM_ACTIONS),
                NUM_ACTIONS,
            )
            total += chance * float(value)
    return total, mean @ theta, arms[greedy] @ (theta - coef)


@pytest.mark.parametrize("seed", range(5))
def test_pseudo_reward_is_unbiased(seed):
    got, want, _ = expected_pseudo_reward(is_printed=False, seed=seed)
    close(got, want)


@pytest.mark.parametrize("seed", range(5))
def test_printed_propensity_is_biased(seed):
    """The weight of the greedy arm has the expectation (1 - lam) / (lam / K + 1 - lam) + 1 in place of 1."""
    got, want, residual = expected_pseudo_reward(is_printed=True, seed=seed)
    weight = (1 - EXPLORE) / (EXPLORE / NUM_ACTIONS + 1 - EXPLORE) + 1
    close(got - want, (weight - 1) * residual / NUM_ACTIONS)
    assert abs(got - want) > 1e-3


def test_propensities_sum_to_one():
    is_greedy = np.arange(NUM_ACTIONS) == 2
    close(propensity(is_greedy, EXPLORE, NUM_ACTIONS).sum(), 1)


@pytest.mark.parametrize("num_rows", [2, 8])
def test_rows_have_the_same_normal_equations(num_rows):
    draw = draw_tasks(4, num_rows, SIZE)
    rows, targets = rows_of_statistics(stats_of(draw))
    again = statistics_of(rows, targets)
    close(again.gram, stats_of(draw).gram)
    close(again.moment, stats_of(draw).moment)


def test_group_lasso_is_the_solver_on_rows():
    draw, penalty = draw_tasks(4, 8, SIZE), 0.8
    # The solver divides by all rows, the paper by the rows of a task.
    want = jlibo.group_lasso(draw.features, draw.rewards, penalty / 4, tol=1e-10)
    got = group_lasso_of(stats_of(draw), penalty, tol=1e-10)
    close(got.coef, want.coef, 1e-6)
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:2])]), stats_of(draw))
    close(group_lasso_of(padded, penalty, tol=1e-10).coef[:4], got.coef, 1e-6)
    order = [2, 0, 1]
    moved = statistics_of(draw.features[:, :, order], draw.rewards)
    close(group_lasso_of(moved, penalty, tol=1e-10).coef, got.coef[:, np.array(order)], 1e-6)


def test_one_task_is_the_lasso():
    sklearn = pytest.importorskip("sklearn.linear_model")
    draw = draw_tasks(1, 8, SIZE)
    lasso = sklearn.Lasso(alpha=0.2, fit_intercept=False, tol=1e-12).fit(draw.features[0], draw.rewards[0])
    # sklearn: (1 / 2n) loss + alpha |w|_1, so the penalty of (1 / n) loss is 2 alpha.
    close(group_lasso_of(stats_of(draw), 0.4, tol=1e-12).coef[0], lasso.coef_, 1e-6)


def test_orthonormal_design_is_block_soft_thresholding():
    rng = np.random.default_rng(0)
    num_tasks, num_rows = 4, 8
    features = np.stack([np.linalg.qr(rng.normal(size=(num_rows, SIZE)))[0] for _ in range(num_tasks)])
    rewards = rng.normal(size=(num_tasks, num_rows))
    ols = np.einsum("trf,tr->tf", features, rewards)
    norms = np.linalg.norm(ols, axis=0)
    penalty = 2 * np.sort(norms)[1] / num_rows  # one group vanishes, one is at the edge
    want = ols * np.maximum(1 - penalty * num_rows / 2 / norms, 0)
    close(group_lasso_of(statistics_of(features, rewards), penalty, tol=1e-12).coef, want, 1e-6)


def test_fixed_actions_are_degenerate():
    """The mean context is then constant: the design has rank one whatever the number of steps."""
    mean = np.tile(np.arange(1.0, 4.0), (1, 20, 1))
    rows, _ = rows_of_statistics(statistics_of(mean, np.ones((1, 20))))
    assert np.linalg.matrix_rank(np.asarray(rows[0])) == 1
    nothing = group_lasso_of(TaskStatistics.empty(2, SIZE), 0.1)
    close(nothing.coef, np.zeros((2, SIZE)))
