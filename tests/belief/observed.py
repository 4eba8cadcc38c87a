"""Helpers for the tests of beliefs and units: priors, rewards, beliefs, and dense NumPy equivalents."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from jlibo import (
    Fourier,
    Prior,
    box_grid,
)
from jlibo.belief import belief as running
from jlibo.belief.moments import Moments
from jlibo.checks import is_concrete
from tests import reference

NUM, NOISE = 30, 0.3
FOURIER = Fourier(4, constant=True)  # 9 features in 5 groups
PHI = np.asarray(FOURIER(box_grid(FOURIER, 25)))
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
equal = np.testing.assert_array_equal
# These programs are short: with less optimisation they compile in half the time.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def general_prior(seed=0, noise_std=None):
    """A non-zero mean and a full covariance."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, 9)) / 3
    return Prior(rng.normal(size=9), rows @ rows.T, noise_std)


def data(seed=0, num=NUM, centre=5.0, scale=20.0):
    """Candidate indices, some of them repeated, and rewards in units far from one."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, len(PHI), num), centre + scale * rng.normal(size=num)


def cast(tree, dtype):
    def convert(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        # By NumPy where possible, which compiles nothing.
        return jnp.asarray(np.asarray(leaf).astype(dtype)) if is_concrete(leaf) else leaf.astype(dtype)

    return jax.tree.map(convert, tree)


def padded(array):
    """Zeros appended to a length of 32 or 512, so that few lengths are compiled; the rest is absent."""
    room = 32 if len(array) <= 32 else 512
    return np.pad(array, (0, room - len(array)))


start = quick_jit(running.start, static_argnames="num_columns")
belief_in, component_weights = map(quick_jit, (running.in_units, running.component_weights))
expect = quick_jit(running.observe_pending)


@quick_jit
def watch(columns, indices, rewards, present):
    def step(columns, seen):
        return running.observe(columns, *seen), None

    return jax.lax.scan(step, columns, (indices, rewards, present))[0]


def seen(prior, indices, rewards, *, num_columns=3, present=None, pad=padded):
    columns = start(prior, jnp.asarray(PHI, jax.tree.leaves(prior)[0].dtype), NOISE, num_columns=num_columns)
    present = np.ones(len(indices), bool) if present is None else present
    rewards = jnp.asarray(pad(rewards), columns.products.dtype)
    return watch(columns, pad(indices), rewards, pad(present))


def dense(prior, indices, targets, noise_std=NOISE):
    """Dense mean and variance at the candidates, mean and covariance of the weights, and log evidence."""
    prior_mean, covariance = np.asarray(prior.mean), np.asarray(prior.covariance)
    rows = PHI[indices]
    mean, posterior = reference.weight_posterior(prior_mean, covariance, rows, targets, noise_std)
    evidence = reference.log_marginal_likelihood(
        rows @ covariance @ rows.T, targets, noise_std, rows @ prior_mean
    )
    return PHI @ mean, np.einsum("pf,fg,pg->p", PHI, posterior, PHI), mean, posterior, evidence


def some_units(seed, num=4):
    rng = np.random.default_rng(seed)
    return list(zip(20 * rng.normal(size=num), 10.0 ** rng.uniform(-1, 2, num), strict=True))


@jax.jit
def gather(rewards, present):
    def add(moments, one):
        return moments.add(*one), None

    return jax.lax.scan(add, Moments.empty(rewards.dtype), (rewards, present))[0]


def moments_of(rewards, present=None, dtype=np.float64):
    rewards = np.asarray(rewards, dtype)
    present = np.ones(len(rewards), bool) if present is None else np.asarray(present)
    return gather(padded(rewards), padded(present))


def unit_likelihood(rewards, mean, matrix, units, weight, past_scale):
    """Log likelihood of rewards with prior mean and covariance in `units`, with the prior of the scale."""
    centre, scale = units
    residual = (rewards - centre) / scale - mean
    squares = residual @ np.linalg.solve(matrix, residual) + weight * (past_scale / scale) ** 2
    freedom = max(len(rewards) - 1, 0) + weight
    return -0.5 * (squares + np.linalg.slogdet(matrix)[1]) - freedom * np.log(scale)


def likeliest_units(rewards, mean, matrix, weight, past_scale):
    """The centre and scale that maximise `unit_likelihood`, by a search over the scale."""
    inverse = np.linalg.inv(matrix)

    def centre(scale):
        return (inverse @ (rewards - scale * mean)).sum() / inverse.sum()

    def height(log_scale):
        units = centre(np.exp(log_scale)), np.exp(log_scale)
        return -unit_likelihood(rewards, mean, matrix, units, weight, past_scale)

    first = np.log(np.std(rewards) + past_scale)
    scale = np.exp(minimize_scalar(height, bracket=(first - 1, first), tol=1e-14).x)
    return centre(scale), scale
