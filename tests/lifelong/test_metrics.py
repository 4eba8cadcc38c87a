"""Metrics: against NumPy on small arrays, with and without leading axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import LifelongResult
from jlibo.lifelong import metrics

RNG = np.random.default_rng(0)


def result(*batch, tasks=3, horizon=4, groups=5):
    shape = (*batch, tasks)
    support = RNG.random((*shape, groups)) < 0.4
    support[..., 1, :] = False
    explored = np.broadcast_to(np.arange(horizon) < 2, (*shape, horizon))
    arrays = dict(
        actions=np.zeros((*shape, horizon), int),
        rewards=RNG.normal(size=(*shape, horizon)),
        regret=RNG.random((*shape, horizon)),
        explored=explored,
        num_explore=explored.sum(-1),
        support=support,
        fell_back=~support.any(-1),
        status=np.zeros(shape, int),
        gap=np.zeros(shape),
        num_steps=np.zeros(shape, int),
    )
    return LifelongResult(**{name: jnp.asarray(array) for name, array in arrays.items()}, carry=())


every_batch = pytest.mark.parametrize("batch", [(), (2,), (2, 3)])


@every_batch
def test_regrets(batch):
    run = result(*batch)
    regret, explored = np.asarray(run.regret), np.asarray(run.explored)
    np.testing.assert_allclose(metrics.lifelong_regret(run), np.cumsum(regret.reshape(*batch, 12), -1))
    np.testing.assert_allclose(metrics.task_regret(run), regret.sum(-1))
    np.testing.assert_allclose(metrics.simple_regret(run), np.minimum.accumulate(regret, -1))
    forced, chosen = metrics.exploration_regret(run)
    np.testing.assert_allclose(forced, (regret * explored).sum(-1))
    np.testing.assert_allclose(chosen, (regret * ~explored).sum(-1))


@every_batch
def test_supports(batch):
    run = result(*batch)
    support = np.asarray(run.support)
    size = np.asarray(metrics.support_size(run))
    np.testing.assert_array_equal(size[..., 1], 5)  # empty: all of them are in use
    np.testing.assert_array_equal(
        size[..., 0], np.where(support[..., 0, :].any(-1), support[..., 0, :].sum(-1), 5)
    )
    truth = run.support[..., 0, :]
    expected = np.zeros((*batch, 3), bool)
    for place in np.ndindex(*batch, 3):
        expected[place] = (support[place] == support[(*place[:-1], 0)]).all()
    np.testing.assert_array_equal(metrics.recovery(run, truth), expected)
    assert expected[..., 0].all() and not expected.all()


def test_mean_and_standard_error():
    values = RNG.normal(size=(6, 3, 2))
    mean, error = metrics.mean_and_standard_error(jnp.asarray(values))
    np.testing.assert_allclose(mean, values.mean(0))
    np.testing.assert_allclose(error, values.std(0, ddof=1) / np.sqrt(6))
    mean, error = metrics.mean_and_standard_error(jnp.asarray(values[:1]))
    np.testing.assert_allclose(mean, values[0])
    np.testing.assert_array_equal(error, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_mean_of_numpy_arrays_keeps_float64(axis):
    values = 1e9 + RNG.normal(size=(3, 4, 5))
    with jax.enable_x64(False):
        mean, error = metrics.mean_and_standard_error(values, axis=axis)
    assert isinstance(mean, np.ndarray) and mean.dtype == np.float64
    np.testing.assert_allclose(mean - 1e9, (values - 1e9).mean(axis), atol=1e-6)
    np.testing.assert_allclose(error, values.std(axis, ddof=1) / values.shape[axis] ** 0.5)
