"""Accuracy of the posterior: many updates in float32, recomputed variances, noise near the dtype's limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import Cosine, Prior, box_grid, full_prior
from jlibo.belief import candidates
from jlibo.belief import posterior as gp
from tests import reference
from tests.belief.posteriors import data, observe, predict, run_candidates, start

# --- many updates ---

LONG = Cosine(50)
LONG_PHI = np.asarray(LONG(box_grid(LONG, 100)))


def long_run(dtype, noise_std, indices, rewards):
    prior = jax.tree.map(lambda leaf: leaf.astype(dtype), full_prior(LONG.groups))
    belief = start(prior, noise_std, LONG_PHI.astype(dtype))
    return run_candidates(belief, indices, rewards.astype(dtype))


@pytest.mark.parametrize("repeated", [False, True], ids=["many points", "three points"])
@pytest.mark.parametrize("noise_std, mean_error, variance_error", [(0.1, 1e-3, 3e-5), (1e-3, 0.05, 5e-4)])
def test_float32_is_close_to_float64_after_2000_updates(noise_std, mean_error, variance_error, repeated):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 3 if repeated else 100, 2_000)
    weights = rng.normal(size=50) * (rng.uniform(size=50) < 0.1)
    rewards = LONG_PHI[indices] @ weights + noise_std * rng.normal(size=2_000)
    belief, (means, variances) = long_run(np.float32, noise_std, indices, rewards)
    exact, (exact_means, exact_variances) = long_run(np.float64, noise_std, indices, rewards)
    prior_variance = full_prior(LONG.groups).variance(LONG_PHI)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(belief)} == {"float32", "int32"}
    for leaf in (means, variances, *jax.tree.leaves(belief)):
        assert np.isfinite(leaf).all()
    assert (variances >= 0).all() and (variances <= prior_variance * (1 + 1e-6)).all()
    # Variances do not grow; a refresh from the factor corrects only round-off.
    assert (jnp.diff(variances, axis=0) <= 1e-5 * prior_variance).all()
    np.testing.assert_allclose(means, exact_means, atol=mean_error)
    np.testing.assert_allclose(variances, exact_variances, atol=variance_error)
    np.testing.assert_allclose(belief.posterior.information_gain, exact.posterior.information_gain, rtol=1e-3)
    # The factor keeps small variances relatively accurate; tracked variances lose this in subtractions.
    np.testing.assert_allclose(belief.variance, exact.variance, rtol=0.05)
    _, fresh = predict(belief.posterior, belief.features)
    _, exact_fresh = predict(exact.posterior, exact.features)
    assert (fresh >= 0).all() and (fresh <= prior_variance * (1 + 1e-5)).all()
    np.testing.assert_allclose(fresh, exact_fresh, rtol=0.05)


SMALL = Cosine(12)
SMALL_PHI = np.asarray(SMALL(box_grid(SMALL, 30)))


def small_start(dtype, noise_std, prior_scale=1.0):
    prior = Prior(np.zeros(12, dtype), np.full(12, prior_scale**2 / 12, dtype))
    return start(prior, noise_std, SMALL_PHI.astype(dtype))


@jax.jit
def after_all(belief, indices, rewards):
    return jax.lax.scan(lambda at, seen: (gp.observe_candidate(at, *seen), None), belief, (indices, rewards))[
        0
    ]


@pytest.mark.parametrize("noise_std", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("seed, played", [(0, 30), (1, 3)])
def test_tracked_variance_does_not_drift_in_20000_updates(noise_std, seed, played):
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, played, 20_000)
    rewards = SMALL_PHI[indices] @ rng.normal(size=12) + noise_std * rng.normal(size=20_000)
    belief = after_all(small_start(np.float32, noise_std), indices, rewards)
    counts = np.bincount(indices, minlength=30)
    rows = np.flatnonzero(counts)
    gram = SMALL_PHI @ SMALL_PHI.T / 12
    noisy = gram[np.ix_(rows, rows)] + np.diag(noise_std**2 / counts[rows])
    variance = np.diagonal(gram) - np.sum(gram[rows] * np.linalg.solve(noisy, gram[rows]), axis=0)
    np.testing.assert_allclose(belief.variance, variance, rtol=0.2)
    # Batches are refreshed too, with equal and with different numbers of observations.
    ahead = after_all(small_start(np.float32, noise_std), indices[:100], rewards[:100])
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), small_start(np.float32, noise_std), ahead)
    batch = jax.vmap(after_all, in_axes=(0, None, None))(both, indices[:5_000], rewards[:5_000])
    for lane in range(2):
        lane = jax.tree.map(lambda leaf, lane=lane: leaf[lane], batch)
        np.testing.assert_allclose(lane.variance, predict(lane.posterior, lane.features)[1], rtol=0.05)


def test_refresh_is_computed_only_when_due():
    """Also in a batch with different counts, where `jax.vmap` alone would compute it at every update."""
    belief = small_start(np.float64, 0.1)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), belief)
    lowered = jax.make_jaxpr(jax.vmap(lambda b: gp.observe_candidate(b, 0, 1.0)))(batch)
    branches = [eqn for eqn in _equations(lowered.jaxpr) if eqn.primitive.name == "cond"]
    assert len(branches) == 1 and branches[0].invars[0].aval.shape == ()


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns") and eqn.primitive.name != "cond":
                yield from _equations(inner)


def test_gradient_through_a_refresh(monkeypatch):
    monkeypatch.setattr(candidates, "REFRESH_STEPS", 8)
    indices, rewards = data(10, 16)

    def total(scale, observe_one):
        belief = start(Prior(np.zeros(9), scale * jnp.ones(9)))
        step = lambda at, seen: (observe_one(at, *seen), None)  # noqa: E731
        return jax.lax.scan(step, belief, (indices, rewards))[0].variance.sum()

    with_refresh = jax.grad(total)(2.0, gp.observe_candidate)
    without = jax.grad(total)(2.0, lambda *args: gp.condition(*args)[0])
    np.testing.assert_allclose(with_refresh, without, rtol=1e-10)
    assert with_refresh > 0


# --- noise outside the range of the dtype ---


def smallest_noise(dtype, prior_scale=1.0):
    """sqrt(eps) times the largest prior standard deviation at the points."""
    variance = (SMALL_PHI**2).sum(1).max() * prior_scale**2 / 12
    return float(np.sqrt(np.finfo(dtype).eps * variance))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("prior_scale", [1.0, 1e-6, 1e6])
def test_smallest_accepted_noise_is_accurate_with_repeated_points(dtype, prior_scale):
    """Against exact arithmetic; repeated rewards at a point differ by the noise."""
    noise_std = 1.01 * smallest_noise(dtype, prior_scale)
    belief = small_start(dtype, noise_std, prior_scale)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        indices = rng.integers(0, (3, 8, 30)[seed], 120)
        rewards = prior_scale * SMALL_PHI[indices] @ rng.normal(size=12) + noise_std * rng.normal(size=120)
        mean, variance = reference.exact_posterior(
            SMALL_PHI.astype(dtype), prior_scale**2 / 12, indices, rewards.astype(dtype), noise_std
        )
        after = after_all(belief, indices, rewards.astype(dtype))
        size = np.abs(mean).max()
        np.testing.assert_allclose(after.mean, mean, atol=5e-3 * size)
        played = np.unique(indices)
        np.testing.assert_allclose(np.asarray(after.mean)[played], mean[played], atol=1e-5 * size)
        fresh = predict(after.posterior, after.features)[1]
        np.testing.assert_allclose(np.sqrt(fresh), np.sqrt(variance), rtol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("prior_scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("factor", [0.9, 1e-3, 1e-15])
def test_smaller_noise_raises_or_under_jit_is_clipped_to_the_limit(dtype, prior_scale, factor):
    limit = smallest_noise(dtype, prior_scale)
    message = f"`noise_std` should be from .* {np.dtype(dtype).name} .*, but got"
    prior = Prior(np.zeros(12, dtype), np.full(12, prior_scale**2 / 12, dtype))
    with pytest.raises(ValueError, match=message):
        gp.belief_at(gp.init(prior, factor * limit), SMALL_PHI.astype(dtype))
    traced = jax.jit(
        lambda noise: gp.init(Prior(np.zeros(12, dtype), np.full(12, prior_scale**2, dtype)), noise)
    )
    held = traced(factor * 1e-3 * limit).noise_std
    np.testing.assert_allclose(held, np.sqrt(np.finfo(dtype).eps) * prior_scale, rtol=1e-5)
    belief = jax.jit(lambda noise: small_start(dtype, noise, prior_scale))(factor * limit)
    rewards = prior_scale + limit * np.resize([1, -1], 50)
    belief = after_all(belief, np.zeros(50, int), rewards.astype(dtype))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(belief))
    expected = prior_scale * SMALL_PHI @ SMALL_PHI[0] / (SMALL_PHI[0] @ SMALL_PHI[0])
    np.testing.assert_allclose(belief.mean, expected, atol=0.02 * prior_scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_at_the_limits_of_the_dtype(dtype):
    zero = Prior(np.zeros(12, dtype), np.zeros(12, dtype))
    largest = float(np.finfo(dtype).max) ** 0.5
    for noise_std in (1e-30 if dtype == np.float32 else 1e-160, largest):
        with pytest.raises(ValueError, match="`noise_std` should be from"):
            gp.init(zero, noise_std)
        with pytest.raises(ValueError, match="`noise_std` should be from"):
            Prior(np.zeros(12, dtype), np.zeros(12, dtype), noise_std)
        posterior = jax.jit(lambda noise: gp.init(zero, noise))(noise_std)
        posterior = observe(posterior, SMALL_PHI[0].astype(dtype), 1.0)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(posterior))
    assert np.isnan(jax.jit(lambda noise: gp.init(zero, noise))(-1.0).noise_std)
