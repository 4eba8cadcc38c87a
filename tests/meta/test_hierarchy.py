"""The hierarchy of tasks: learned mean, covariance and noise, and the tasks that they are learned from.

It is compared with an independent dense NumPy EM, whose objective must increase at every step.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import Prior
from jlibo.meta import RunSizes, TaskData
from jlibo.meta.hierarchy import NOISE_ROWS, UNIT_REWARDS, add_up, fit_hierarchy
from jlibo.meta.past import PastTasks, no_past, remember, sample_tasks
from tests.belief.observed import likeliest_units, unit_likelihood

close = np.testing.assert_allclose
NUM_FEATURES, NUM_TASKS, NUM_ROWS = 4, 6, 3
NOISE, COVARIANCE_TASKS, MEAN_TASKS = 0.3, 2.0, 0.5
WIDE = np.array([0.5, 1.0, 0.7, 0.2])


def draw_past(num_tasks=NUM_TASKS, num_rows=NUM_ROWS, seed=0):
    """Tasks of a known hierarchy: the rows and rewards, and the true mean."""
    rng = np.random.default_rng(seed)
    mean = np.array([1.0, -2.0, 0.5, 0.0])
    features = rng.normal(size=(num_tasks, num_rows, NUM_FEATURES))
    weights = mean + 0.3 * rng.normal(size=(num_tasks, NUM_FEATURES))
    targets = np.einsum("trf,tf->tr", features, weights) + NOISE * rng.normal(size=(num_tasks, num_rows))
    return features, targets, mean


def as_past(features, targets, num_padded=0):
    """Past tasks as the learner stores them, with `num_padded` absent tasks that hold garbage."""
    num_tasks, num_rows = targets.shape
    rubbish = np.full((num_padded, num_rows, NUM_FEATURES), 7.0)
    return PastTasks(
        features=jnp.asarray(np.concatenate([features, rubbish])),
        targets=jnp.asarray(np.concatenate([targets, rubbish[..., 0]])),
        constants=jnp.ones((num_tasks + num_padded, num_rows)),
        lost_products=jnp.zeros((num_tasks + num_padded, 2, 2)),
        num_observations=jnp.full(num_tasks + num_padded, float(num_rows)),
        is_done=jnp.asarray(np.r_[np.ones(num_tasks), np.zeros(num_padded)]),
    )


@partial(jax.jit, static_argnames="num_steps")
def fit(past, num_steps):
    wide = Prior(jnp.zeros(NUM_FEATURES), jnp.asarray(WIDE))
    begin = Prior(wide.mean, jnp.diag(wide.covariance), jnp.asarray(NOISE))
    number = partial(jnp.asarray, dtype=begin.mean.dtype)
    return fit_hierarchy(
        past,
        begin,
        wide,
        num_steps=num_steps,
        covariance_tasks=number(COVARIANCE_TASKS),
        mean_tasks=number(MEAN_TASKS),
        noise_std=number(NOISE),
    )


def em_step(features, targets, mean, covariance, noise):
    """One step of the same EM, task by task with dense inverses; also the units of the tasks."""
    means, doubts, squares, units = [], [], 0.0, []
    for rows, rewards in zip(features, targets, strict=True):
        total = rows @ covariance @ rows.T + noise**2 * np.eye(len(rows))
        units.append(likeliest_units(rewards, rows @ mean, total, UNIT_REWARDS, 1.0))
        values = (rewards - units[-1][0]) / units[-1][1]
        gain = covariance @ rows.T @ np.linalg.inv(total)
        means.append(mean + gain @ (values - rows @ mean))
        doubts.append(covariance - gain @ rows @ covariance)
        squares += ((values - rows @ means[-1]) ** 2).sum() + np.trace(rows @ doubts[-1] @ rows.T)
    num_tasks = len(targets)
    new_mean = np.sum(means, 0) / (num_tasks + MEAN_TASKS)
    spread = sum(np.outer(w - new_mean, w - new_mean) for w in means) + sum(doubts)
    matrix = COVARIANCE_TASKS * np.diag(WIDE) + spread + MEAN_TASKS * np.outer(new_mean, new_mean)
    new_noise = np.sqrt((squares + NOISE_ROWS * NOISE**2) / (targets.size + NOISE_ROWS))
    return (new_mean, matrix / (COVARIANCE_TASKS + num_tasks), new_noise), units


def objective(features, targets, units, mean, covariance, noise):
    """Objective of EM: the log likelihood of all rewards plus log priors of units and parameters."""
    answer = 0.0
    for rows, rewards, own in zip(features, targets, units, strict=True):
        total = rows @ covariance @ rows.T + noise**2 * np.eye(len(rows))
        answer += unit_likelihood(rewards, rows @ mean, total, own, UNIT_REWARDS, 1.0)
    inverse = np.linalg.inv(covariance)
    answer -= 0.5 * MEAN_TASKS * mean @ inverse @ mean
    determinant = np.linalg.slogdet(covariance)[1]
    answer -= 0.5 * COVARIANCE_TASKS * (determinant + np.trace(np.diag(WIDE) @ inverse))
    return answer - 0.5 * NOISE_ROWS * (2 * np.log(noise) + NOISE**2 / noise**2)


@pytest.mark.parametrize("num_padded", [0, 2])
def test_hierarchy_equals_dense_em_and_its_objective_increases(num_padded):
    features, targets, _ = draw_past()
    parameters, heights = (np.zeros(NUM_FEATURES), np.diag(WIDE), NOISE), []
    for _ in range(5):
        new, units = em_step(features, targets, *parameters)
        heights += [objective(features, targets, units, *some) for some in (parameters, new)]
        parameters = new
    assert (np.diff(heights) > 0).all()
    mean, covariance, noise = parameters
    fitted = fit(as_past(features, targets, num_padded), 5)
    close(fitted.mean, mean, atol=1e-6)
    close(fitted.noise_std, noise, atol=1e-6)
    # The covariance of a new task includes the uncertainty of the mean.
    close(fitted.covariance, covariance * (1 + 1 / (NUM_TASKS + MEAN_TASKS)), atol=1e-6)


def test_hierarchy_without_tasks_is_the_widened_prior():
    features, targets, _ = draw_past()
    past = as_past(features, targets)
    nothing = eqx.tree_at(lambda p: p.is_done, past, jnp.zeros(NUM_TASKS))
    fitted = fit(nothing, 5)
    close(fitted.mean, np.zeros(NUM_FEATURES), atol=1e-12)
    assert np.isfinite(fitted.covariance).all() and float(fitted.noise_std) == pytest.approx(NOISE)
    # The prior's covariance counts as `covariance_tasks` tasks; the uncertainty of the mean widens it.
    close(fitted.covariance, np.diag(WIDE) * (1 + 1 / MEAN_TASKS), atol=1e-12)


def test_many_tasks_recover_mean_covariance_and_noise():
    features, targets, truth = draw_past(num_tasks=120, num_rows=6, seed=1)
    fitted = fit(as_past(features, targets), 30)
    # The scales of the tasks are estimated too, so all is known up to a common factor near one.
    factor = np.linalg.norm(fitted.mean) / np.linalg.norm(truth)
    assert 0.8 < factor < 1.2
    close(fitted.mean / factor, truth, atol=0.15)
    close(np.sqrt(np.diagonal(fitted.covariance)) / factor, 0.3, atol=0.12)
    # A task has six rewards, and its centre and scale take two degrees of freedom.
    close(fitted.noise_std / factor, NOISE, atol=0.08)


def test_units_of_tasks_do_not_hide_what_they_share():
    """Tasks whose rewards are shifted and scaled agree after their units are estimated."""
    features, targets, truth = draw_past(num_tasks=60, num_rows=8, seed=2)
    rng = np.random.default_rng(3)
    scales, centres = np.exp(rng.uniform(-1, 1, 60)), 3 * rng.normal(size=60)
    fitted = fit(as_past(features, centres[:, None] + scales[:, None] * targets), 30)
    mean = np.asarray(fitted.mean)
    assert mean @ truth > 0.98 * np.linalg.norm(mean) * np.linalg.norm(truth)
    # Tasks differ by 0.3 around a mean of norm 2.3. Scales of 1/e to e would hide that.
    spread = np.sqrt(np.diagonal(fitted.covariance)) / np.linalg.norm(mean)
    assert (spread < 0.3).all()


def test_compressed_rows_give_the_same_fit():
    """More rows than features are compressed; the sum of squares that this loses is stored."""
    features, targets, _ = draw_past(num_rows=9)
    sizes = RunSizes(tuple(range(NUM_FEATURES)), NUM_TASKS, 9, 0, jnp.float64)
    past, store = no_past("all", sizes), eqx.filter_jit(remember)
    for place in range(NUM_TASKS):
        task = TaskData(jnp.asarray(features[place]), jnp.asarray(targets[place]), jnp.zeros(9, bool))
        past = store(past, jnp.asarray(place), task, "all", sizes)
    assert past.features.shape == (NUM_TASKS, NUM_FEATURES, NUM_FEATURES)
    whole, short = fit(as_past(features, targets), 4), fit(past, 4)
    jax.tree.map(partial(close, atol=1e-9), whole, short)


@pytest.mark.parametrize("num_done", [3, 10, 37])
def test_sample_is_evenly_spaced_over_the_finished_tasks(num_done):
    features, targets, _ = draw_past(num_tasks=40, num_rows=3)
    past = as_past(features, targets)
    past = eqx.tree_at(lambda p: p.is_done, past, (jnp.arange(40) < num_done).astype(float))
    few = sample_tasks(past, 10)
    assert few.is_done.sum() == min(num_done, 10)
    places = [int(np.flatnonzero((targets == one).all(1))[0]) for one in np.asarray(few.targets)]
    assert len(set(places)) == 10 and np.ptp(np.diff(places)) <= 1 and places[0] == 0
    assert sample_tasks(past, 40) is past


@pytest.mark.parametrize(
    "num_done, most, expected",
    [
        (100, 100, range(104)),
        (100, 32, [*range(8), *range(24, 32), *range(48, 56), *range(72, 80)]),
        (5, 64, range(8)),
    ],
)
def test_parts_are_visited_evenly_spaced_up_to_the_last_finished_task(num_done, most, expected):
    features, targets, _ = draw_past(num_tasks=120, num_rows=3)
    past = as_past(features, targets)
    past = eqx.tree_at(lambda p: p.is_done, past, (jnp.arange(120) < num_done).astype(float))

    def count(total, tasks):
        return total + tasks.is_done.sum(), jnp.ones_like(tasks.is_done)

    total, visited = add_up(count, jnp.zeros(()), past, jnp.zeros(120), jnp.asarray(most))
    assert np.flatnonzero(visited).tolist() == list(expected)
    assert total == min(num_done, len(expected))
