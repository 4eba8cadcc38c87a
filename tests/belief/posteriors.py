"""Priors, observations and compiled updates for the tests of the posterior."""

import jax
import jax.numpy as jnp
import numpy as np

from jlibo import Fourier, Prior, box_grid
from jlibo.belief import posterior as gp

NUM = 60
FOURIER = Fourier(4, constant=True)  # 9 features in 5 groups
CANDIDATES = np.asarray(box_grid(FOURIER, 25))
PHI = np.asarray(FOURIER(CANDIDATES))


def general_prior(seed=0, rank=9):
    """A non-zero mean and a full covariance of the given rank."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, rank)) / 3
    return Prior(rng.normal(size=9), rows @ rows.T)


def data(seed=0, num=NUM):
    """Candidate indices, some of them repeated, and rewards."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, len(PHI), num)), jnp.asarray(rng.normal(size=num))


@jax.jit
def run_candidates(belief, indices, rewards):
    """The beliefs after every observation, by rank-one updates on the candidates."""

    def step(belief, seen):
        belief = gp.observe_candidate(belief, *seen)
        return belief, (belief.mean, belief.variance)

    return jax.lax.scan(step, belief, (indices, rewards))


@jax.jit
def run_points(posterior, features, rewards):
    """The posterior after all observations, at points that are not candidates."""
    return jax.lax.scan(lambda at, seen: (gp.observe(at, *seen), None), posterior, (features, rewards))[0]


predict, belief_at = jax.jit(gp.predict), jax.jit(gp.belief_at)
observe, observe_candidate = jax.jit(gp.observe), jax.jit(gp.observe_candidate)


def start(prior, noise_std=0.3, features=PHI):
    return belief_at(gp.init(prior, noise_std), features)
