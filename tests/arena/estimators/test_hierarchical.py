"""The hierarchical Gaussian model against the brute-force joint Gaussian, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.arena.estimators import (
    Gaussian,
    MeanEvidence,
    condition,
    evidence_on_mean,
    hierarchical_beliefs,
    hyper_posterior,
    leave_one_out_priors,
    statistics_of,
)
from jlibo.arena.estimators.gaussian import factor_of
from jlibo.arena.estimators.hierarchical import all_evidence, new_task_prior
from tests.arena.estimators.references import (
    Draw,
    draw_tasks,
    gaussian_posterior,
    joint_hierarchy,
    random_covariance,
)

NOISE = 0.3**2
SIZE, NUM_TASKS = 3, 4
MEAN = np.array([0.5, -1.0, 2.0])
HYPER, TASK = random_covariance(SIZE, seed=1), 0.2 * random_covariance(SIZE, seed=2)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


def gaussian(mean, covariance):
    return Gaussian(jnp.asarray(mean), factor_of(jnp.asarray(covariance)))


def factor(covariance):
    return factor_of(jnp.asarray(covariance))


def draw(num_rows=2, seed=0) -> Draw:
    """Tasks with fewer observations than features: their Gram matrices are singular."""
    return draw_tasks(NUM_TASKS, num_rows, SIZE, seed=seed)


def stats_of(data: Draw):
    return statistics_of(data.features, data.rewards)


beliefs = jax.jit(hierarchical_beliefs)


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_beliefs_are_those_of_the_joint_gaussian(num_rows):
    data = draw(num_rows)
    stats = stats_of(data)
    mean, covariance = joint_hierarchy(MEAN, HYPER, TASK, data, NOISE)
    found = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE)
    for task in range(NUM_TASKS):
        part = slice((task + 1) * SIZE, (task + 2) * SIZE)
        close(found.mean[task], mean[part])
        close(found.covariance[task], covariance[part, part])
    chosen = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE, jnp.asarray([2, 0]))
    close(chosen.mean, found.mean[np.array([2, 0])])
    shared = hyper_posterior(gaussian(MEAN, HYPER), all_evidence(factor(TASK), stats, NOISE).total)
    close(shared.mean, mean[:SIZE])
    close(shared.covariance, covariance[:SIZE, :SIZE])


def test_leave_one_out_form_is_the_marginal_form():
    stats = stats_of(draw())
    priors = leave_one_out_priors(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE)
    after = jax.vmap(condition, in_axes=(0, 0, 0, None))(priors, stats.gram, stats.moment, NOISE)
    found = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE)
    close(after.mean, found.mean)
    close(after.covariance, found.covariance)


def test_sequential_tasks_are_adats():
    """The prior of task s+1 from sums over tasks 1..s is the leave-one-out prior of a task without data."""
    data = draw()
    evidence = MeanEvidence.none(SIZE)
    for task in range(NUM_TASKS):
        prior = new_task_prior(hyper_posterior(gaussian(MEAN, HYPER), evidence), factor(TASK))
        stats = stats_of(data).only(jnp.arange(NUM_TASKS) < task)
        want = leave_one_out_priors(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE)
        close(prior.mean, want.mean[task])
        close(prior.covariance, want.covariance[task])
        # within the task: AdaTS conditions its prior, HierTS everything
        seen = stats_of(data).only(jnp.arange(NUM_TASKS) <= task)
        after = condition(prior, seen.gram[task], seen.moment[task], NOISE)
        found = beliefs(gaussian(MEAN, HYPER), factor(TASK), seen, NOISE)
        close(after.mean, found.mean[task])
        close(after.covariance, found.covariance[task])
        new = evidence_on_mean(factor(TASK), seen.gram[task], seen.moment[task], NOISE)
        evidence = jax.tree.map(jnp.add, evidence, new)


def test_known_mean_is_the_oracle():
    """Sigma_q = 0: every task has the prior N(mu_q, Sigma_0), whatever the others show."""
    data = draw()
    found = beliefs(gaussian(MEAN, np.zeros((SIZE, SIZE))), factor(TASK), stats_of(data), NOISE)
    for task in range(NUM_TASKS):
        mean, covariance = gaussian_posterior(MEAN, TASK, data.features[task], data.rewards[task], NOISE)
        close(found.mean[task], mean)
        close(found.covariance[task], covariance)


def test_equal_tasks_are_one_bandit():
    """Sigma_0 = 0: all tasks have the posterior of the pooled data; small Sigma_0 approaches it."""
    data = draw()
    pooled = gaussian_posterior(MEAN, HYPER, data.features.reshape(-1, SIZE), data.rewards.ravel(), NOISE)
    found = beliefs(gaussian(MEAN, HYPER), jnp.zeros((SIZE, SIZE)), stats_of(data), NOISE)
    nearly = beliefs(gaussian(MEAN, HYPER), 1e-6 * jnp.eye(SIZE), stats_of(data), NOISE)
    for task in range(NUM_TASKS):
        close(found.mean[task], pooled[0])
        close(found.covariance[task], pooled[1])
        close(nearly.mean[task], pooled[0])


def test_without_other_tasks_it_is_the_single_task_baseline():
    data = draw()
    stats = stats_of(data).only(jnp.arange(NUM_TASKS) == 2)
    found = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE)
    mean, covariance = gaussian_posterior(MEAN, HYPER + TASK, data.features[2], data.rewards[2], NOISE)
    close(found.mean[2], mean)
    close(found.covariance[2], covariance)


def test_arms_of_a_bandit():
    """Basis vectors as actions and diagonal covariances: precision N / (N s0^2 + s^2)."""
    counts, sums, task_std = np.array([3.0, 0.0, 7.0]), np.array([1.0, 0.0, -2.0]), 0.4
    evidence = evidence_on_mean(task_std * jnp.eye(SIZE), jnp.diag(counts), jnp.asarray(sums), NOISE)
    close(evidence.precision, np.diag(counts / (counts * task_std**2 + NOISE)))
    close(evidence.moment, sums / (counts * task_std**2 + NOISE))


def test_order_of_tasks_and_splits_of_rounds_do_not_matter():
    data = draw(4)
    order = np.array([2, 0, 3, 1])
    found = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats_of(data), NOISE)
    moved = Draw(data.features[order], data.rewards[order], data.weights[order])
    again = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats_of(moved), NOISE)
    close(again.mean, found.mean[order])
    halves = [
        statistics_of(data.features[:, part], data.rewards[:, part]) for part in (slice(2), slice(2, 4))
    ]
    joined = jax.tree.map(jnp.add, *halves)
    close(beliefs(gaussian(MEAN, HYPER), factor(TASK), joined, NOISE).mean, found.mean)


def test_rotation_and_batches():
    data = draw()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(SIZE, SIZE)))[0]
    found = beliefs(gaussian(MEAN, HYPER), factor(TASK), stats_of(data), NOISE)
    turned = beliefs(
        gaussian(turn @ MEAN, turn @ HYPER @ turn.T),
        factor(turn @ TASK @ turn.T),
        statistics_of(data.features @ turn.T, data.rewards),
        NOISE,
    )
    close(turned.mean, found.mean @ turn.T)
    close(turned.covariance, turn @ found.covariance @ turn.T)
    many = [stats_of(draw(seed=seed)) for seed in range(3)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    run = jax.jit(jax.vmap(hierarchical_beliefs, in_axes=(None, None, 0, None)))
    whole = run(gaussian(MEAN, HYPER), factor(TASK), batch, NOISE)
    for place, stats in enumerate(many):
        close(whole.mean[place], beliefs(gaussian(MEAN, HYPER), factor(TASK), stats, NOISE).mean)
