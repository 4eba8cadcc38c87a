"""Priors: their kernels, diagonal, full and singular covariances, bad input."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import Concatenate, Cosine, Fourier, Prior, full_prior, support_prior
from jlibo.belief.prior import semidefinite_cholesky

FEATURES = Concatenate(Cosine(3), Fourier(2, constant=True))  # groups of sizes 1, 1, 1, 1, 2, 2
POINTS = np.linspace(0, 1, 11)[:, None]


def base_kernels():
    """k_j(x, x') of every group on POINTS, written out from the definitions of the two maps."""
    x, difference = POINTS[:, 0], POINTS - POINTS.T
    waves = [np.outer(np.cos(j * np.pi * x), np.cos(j * np.pi * x)) for j in (1, 2, 3)]
    return np.stack([*waves, np.ones((11, 11)), *(np.cos(2 * np.pi * j * difference) for j in (1, 2))])


def kernel(prior):
    phi = np.asarray(FEATURES(POINTS))
    factor = np.asarray(prior.factor())
    return phi @ factor @ factor.T @ phi.T


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_support_prior_is_the_average_of_the_chosen_kernels(chosen):
    prior = support_prior(chosen, FEATURES.groups)
    expected = base_kernels()[chosen if any(chosen) else [True] * 6].mean(0)
    np.testing.assert_allclose(kernel(prior), expected, atol=1e-12)
    np.testing.assert_allclose(prior.variance(FEATURES(POINTS)), np.diagonal(expected), atol=1e-12)
    assert not prior.mean.any() and prior.num_features == 8


def test_full_prior_and_empty_support():
    np.testing.assert_allclose(kernel(full_prior(FEATURES.groups)), base_kernels().mean(0), atol=1e-12)
    empty, full = support_prior(np.zeros(6, bool), FEATURES.group_ids), full_prior(FEATURES.groups)
    np.testing.assert_array_equal(empty.covariance, full.covariance)


def test_changed_support_does_not_retrace():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def jitted(support):
        return support_prior(support, FEATURES.groups)

    supports = jax.random.bernoulli(jax.random.key(0), 0.5, (8, 6))
    for support in supports:
        np.testing.assert_allclose(
            jitted(support).covariance, support_prior(support, FEATURES.groups).covariance
        )
    batch = jax.vmap(lambda support: support_prior(support, FEATURES.groups))(supports).covariance
    np.testing.assert_allclose(batch, [jitted(support).covariance for support in supports])


def test_diagonal_equals_full_covariance():
    rng = np.random.default_rng(0)
    mean, diagonal = rng.normal(size=8), rng.uniform(size=8) * (np.arange(8) != 3)
    phi = FEATURES(POINTS)
    thin, thick = Prior(mean, diagonal), Prior(mean, np.diag(diagonal))
    np.testing.assert_allclose(thin.variance(phi), thick.variance(phi), rtol=1e-13)
    for prior in (thin, thick):
        np.testing.assert_allclose(prior.factor() @ prior.factor().T, np.diag(diagonal), atol=1e-15)
        np.testing.assert_array_equal(prior.mean, mean)
    assert thick.variance(phi.reshape(1, 11, 8)).shape == (1, 11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.integers(0, 12), st.floats(-6, 6), st.booleans(), st.integers(0, 2**32 - 1))
def test_semidefinite_cholesky(dtype, rank, scale, uneven, seed):
    """The error is round-off only, for any rank, any scale, and variances many orders of magnitude apart."""
    rng = np.random.default_rng(seed)
    rows = 10.0**scale * rng.normal(size=(12, rank))
    if uneven:
        rows = rows * 10.0 ** rng.uniform(-6, 0, size=(12, 1))
    matrix = (rows @ rows.T).astype(dtype)
    factor = np.asarray(semidefinite_cholesky(matrix))
    assert factor.dtype == dtype and np.isfinite(factor).all()
    error = np.abs(factor @ factor.T - matrix).max()
    assert error <= 20 * 12 * np.finfo(dtype).eps * np.abs(matrix).max()


def test_semidefinite_cholesky_of_a_small_variance_correlated_with_a_large_one():
    small = np.sqrt(np.finfo(float).eps)
    matrix = np.array([[small**2, small], [small, 1]])
    factor = np.asarray(semidefinite_cholesky(matrix))
    np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-15)


def test_semidefinite_cholesky_under_vmap_and_grad():
    rows = np.random.default_rng(0).normal(size=(3, 5, 2))
    matrices = rows @ rows.swapaxes(1, 2)
    factors = jax.vmap(semidefinite_cholesky)(matrices)
    for one, matrix in zip(factors, matrices, strict=True):
        np.testing.assert_allclose(one, semidefinite_cholesky(matrix), atol=1e-13)
    regular = matrices[0] + np.eye(5)
    direction = matrices[1]

    def trace(matrix):
        factor = semidefinite_cholesky(matrix)
        return jnp.trace(factor @ factor.T)

    slope = jnp.sum(jax.grad(trace)(regular) * direction)
    np.testing.assert_allclose(slope, np.trace(direction), rtol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_that_of_the_arrays(dtype):
    prior = Prior(np.zeros(2, dtype), np.ones(2, dtype))
    assert prior.mean.dtype == prior.covariance.dtype == prior.factor().dtype == dtype
    assert Prior([0, 1], [[1, 0], [0, 2]]).mean.dtype == jnp.result_type(float)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Prior(0.0, [1.0]), r"`mean` should be an array of shape \[features\], but got shape \[\]"),
        (lambda: Prior([0.0, np.nan], [1, 1]), r"`mean` should be finite .*the first at \[1\]"),
        (
            lambda: Prior([0.0, 0.0], [1.0]),
            r"`covariance` .*diagonal \[2\] or a matrix \[2, 2\].*shape \[1\]",
        ),
        (lambda: Prior([0.0, 0.0], np.ones((2, 3))), r"`covariance` .*but got shape \[2, 3\]"),
        (lambda: Prior([0.0], [np.inf]), "`covariance` should be finite"),
        (lambda: Prior([0.0, 0.0], [1.0, -1.0]), "`covariance` should be a number >= 0"),
        (lambda: Prior([0.0, 0.0], [[1, 0.5], [0, 1]]), "`covariance` should be a symmetric matrix"),
        (lambda: Prior([0.0, 0.0], [[1, 2], [2, 1]]), "`covariance` .*semi-definite.*an eigenvalue of -1"),
        (lambda: Prior([0.0, 0.0], [[1, 0], [0, -2]]), "`covariance` .*an eigenvalue of -2"),
        (lambda: support_prior([True], [0, 1, 1]), r"`support` should be an array of shape \[2\]"),
        (lambda: support_prior([1, 0], [0, 1, 1]), "`support` should be an array of booleans"),
        (lambda: support_prior([True, True], [0, 2]), "`groups` .*no feature of group 1"),
        (lambda: full_prior([]), "`groups` should be a list of one group id per feature"),
        (lambda: full_prior([0.5]), "`groups` should be whole numbers"),
        (lambda: jax.jit(lambda c: Prior(jnp.zeros(2), c))(jnp.ones(3)), "`covariance` .*shape"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
