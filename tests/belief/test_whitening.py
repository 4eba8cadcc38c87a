"""Many observations at once: whitened rows, and beliefs equal to those of one observation at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import Prior, mixture
from jlibo.belief.moments import Units
from jlibo.belief.observations import Observations, after
from jlibo.belief.whitening import BLOCK, inverse_cholesky
from tests.belief.observed import (
    NOISE,
    PHI,
    belief_in,
    cast,
    close,
    component_weights,
    data,
    expect,
    general_prior,
    quick_jit,
    start,
    watch,
)

NUM_ROWS = 21
PRIORS = {
    "matrix": general_prior(),
    "diagonal": Prior(np.arange(9.0) / 9, np.linspace(0.1, 1, 9)),
    "mixture": mixture([general_prior(seed, 0.1 + 0.1 * seed) for seed in range(3)], [0.2, 0.3, 0.5]),
}


@pytest.mark.parametrize("size", [1, 5, BLOCK, BLOCK + 1, 3 * BLOCK, 50])
@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-10), (np.float32, 2e-3)])
def test_inverse_cholesky_equals_numpy(size, dtype, rtol):
    rows = np.random.default_rng(size).normal(size=(size, size + 3))
    matrix = rows @ rows.T + 0.1 * np.eye(size)
    expected = np.linalg.inv(np.linalg.cholesky(matrix))
    both = quick_jit(lambda pair: (inverse_cholesky(pair[0]), jax.vmap(inverse_cholesky)(pair)))
    answer, batch = both(jnp.asarray(np.stack([matrix, 2 * matrix]), dtype))
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, atol=rtol * np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(batch)[0], answer, atol=rtol * np.abs(expected).max())


def rows_of(dtype):
    """Trials in any order: told, pending and padding that holds garbage."""
    rng = np.random.default_rng(0)
    indices, rewards = data(1, NUM_ROWS)
    kind = rng.permutation(np.repeat([0, 1, 2], [12, 4, 5]))
    told, pending = kind == 0, kind == 1
    features = np.where((kind < 2)[:, None], PHI[indices], 7.0)
    return indices, np.where(told, rewards, np.nan), features, told, pending


@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-8), (np.float32, 2e-3)])
@pytest.mark.parametrize("name", PRIORS)
def test_all_observations_at_once_equal_one_at_a_time(name, dtype, rtol):
    prior = cast(PRIORS[name], dtype)
    indices, rewards, features, told, pending = rows_of(dtype)
    points = jnp.asarray(PHI, dtype)
    one_by_one = watch(
        start(prior, points, NOISE, num_columns=3), indices, jnp.asarray(np.nan_to_num(rewards), dtype), told
    )
    for place in np.flatnonzero(pending):
        one_by_one = expect(one_by_one, indices[place])
    observations = Observations(
        jnp.asarray(features, dtype),
        jnp.asarray(rewards, dtype),
        jnp.asarray(told),
        jnp.asarray(pending),
        jnp.ones(NUM_ROWS, dtype),
    )
    at_once = quick_jit(after)(prior, observations, points, NOISE)
    units = Units(jnp.asarray(4.0, dtype), jnp.asarray(15.0, dtype))
    expected, answer = belief_in(one_by_one, units), belief_in(at_once, units)
    close(answer.mean, expected.mean, rtol=rtol, atol=rtol)
    close(answer.variance, expected.variance, rtol=rtol, atol=rtol)
    close(answer.posterior.mean, expected.posterior.mean, rtol=rtol, atol=rtol)
    close(answer.posterior.covariance, expected.posterior.covariance, rtol=rtol, atol=rtol)
    close(answer.posterior.best_reward, expected.posterior.best_reward, rtol=rtol)
    assert answer.posterior.num_observations == told.sum()
    evidence = [belief.posterior.log_marginal_likelihood for belief in (answer, expected)]
    close(*evidence, rtol=rtol)
    close(component_weights(at_once, units), component_weights(one_by_one, units), rtol=50 * rtol, atol=rtol)


def test_no_observation_gives_the_prior():
    nothing = np.zeros(4, bool)
    observations = Observations(
        jnp.asarray(PHI[:4]), jnp.full(4, jnp.nan), jnp.asarray(nothing), jnp.asarray(nothing), jnp.ones(4)
    )
    prior = PRIORS["mixture"]
    at_once = quick_jit(after)(prior, observations, jnp.asarray(PHI), NOISE)
    units = Units(jnp.asarray(0.0), jnp.asarray(1.0))
    expected = belief_in(start(prior, jnp.asarray(PHI), NOISE, num_columns=3), units)
    answer = belief_in(at_once, units)
    close(answer.mean, expected.mean)
    close(answer.variance, expected.variance)
    assert answer.posterior.best_reward == -np.inf and answer.posterior.num_observations == 0
