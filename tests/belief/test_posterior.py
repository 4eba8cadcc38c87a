"""The posterior: textbook formulas, order of observations, pending points, transforms and bad input."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import Belief, Posterior, Prior, full_prior, support_prior
from jlibo.belief import posterior as gp
from tests import reference
from tests.belief.posteriors import (
    FOURIER,
    NUM,
    PHI,
    belief_at,
    data,
    general_prior,
    observe,
    observe_candidate,
    run_candidates,
    run_points,
    start,
)

PRIORS = {
    "full": lambda: full_prior(FOURIER.groups),
    "support": lambda: support_prior([True, False, True, False, True], FOURIER.groups),
    "mean and covariance": general_prior,
    "singular": lambda: general_prior(1, rank=4),
}
every_prior = pytest.mark.parametrize("make", PRIORS.values(), ids=PRIORS.keys())
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)


# --- textbook formulas ---


@every_prior
def test_equals_the_kernel_formulas_after_every_observation(make):
    prior, (indices, rewards) = make(), data()
    belief, (means, variances) = run_candidates(start(prior), indices, rewards)
    covariance = np.asarray(prior.factor() @ prior.factor().T)
    gram, prior_mean = PHI @ covariance @ PHI.T, PHI @ np.asarray(prior.mean)
    for num in (1, 2, 10, NUM):
        rows = np.asarray(indices[:num])
        rest = np.asarray(rewards[:num]) - prior_mean[rows]
        mean, variance = reference.gp_posterior(
            gram[np.ix_(rows, rows)], gram[rows], np.diagonal(gram), rest, 0.3
        )
        close(means[num - 1], prior_mean + mean)
        close(variances[num - 1], variance)
    observed = gram[np.ix_(indices, indices)]
    evidence = reference.log_marginal_likelihood(observed, np.asarray(rewards), 0.3, prior_mean[indices])
    close(belief.posterior.log_marginal_likelihood, evidence)
    close(belief.posterior.information_gain, reference.information_gain(observed, 0.3))
    assert belief.posterior.best_reward == rewards.max() and belief.posterior.num_observations == NUM


@every_prior
def test_equals_the_weight_formulas_at_any_points(make):
    prior, (_, rewards) = make(), data(1)
    rng = np.random.default_rng(1)
    observed, points = (np.asarray(FOURIER(rng.uniform(size=(num, 1)))) for num in (NUM, 7))
    covariance = np.asarray(prior.factor() @ prior.factor().T)
    mean, covariance = reference.weight_posterior(
        np.asarray(prior.mean), covariance, observed, np.asarray(rewards), 0.3
    )
    posterior = run_points(gp.init(prior, 0.3), observed, rewards)
    close(posterior.mean, mean)
    close(posterior.covariance, covariance)
    predicted = gp.predict(posterior, points)
    close(predicted[0], points @ mean)
    close(predicted[1], np.einsum("pf,fg,pg->p", points, covariance, points))
    close(gp.predict(posterior, points[0]), [part[0] for part in predicted])
    close(gp.predict(posterior, points.reshape(1, 7, 9)), [part[None] for part in predicted])


@every_prior
def test_candidates_equal_points(make):
    """`observe_candidate` equals `belief_at` after `observe`, including the posterior."""
    indices, rewards = data(2)
    belief, _ = run_candidates(start(make()), indices, rewards)
    again = belief_at(run_points(gp.init(make(), 0.3), PHI[indices], rewards), PHI)
    jax.tree.map(close, belief, again)
    close(belief.std, np.sqrt(belief.variance))


def test_before_any_observation():
    prior = general_prior()
    belief = start(prior)
    close(belief.mean, PHI @ prior.mean)
    close(belief.variance, prior.variance(PHI))
    assert belief.posterior.best_reward == -np.inf and belief.posterior.num_observations == 0
    assert belief.posterior.log_marginal_likelihood == belief.posterior.information_gain == 0


@pytest.mark.parametrize("num", [0, 6])
def test_samples_are_joint_and_have_the_right_moments(num):
    indices, rewards = data(3, 6)
    posterior = gp.init(general_prior(), 0.3)
    posterior = run_points(posterior, PHI[indices[:num]], rewards[:num])
    points, count = PHI[[0, 1, 7, 20]], 20_000
    draws = jax.vmap(lambda key: gp.sample(posterior, points, key=key))(
        jax.random.split(jax.random.key(0), count)
    )
    mean, covariance = points @ posterior.mean, points @ posterior.covariance @ points.T
    variances = np.diagonal(covariance)
    limit = 5 / np.sqrt(count)  # five standard errors
    assert (np.abs(draws.mean(0) - mean) <= limit * np.sqrt(variances)).all()
    spread = np.sqrt(np.outer(variances, variances) + covariance**2)
    assert (np.abs(np.cov(draws.T) - covariance) <= limit * spread).all()
    weights = gp.sample_weights(posterior, key=jax.random.key(1))
    close(gp.sample(posterior, points, key=jax.random.key(1)), points @ weights)


# --- properties ---


@given(st.permutations(range(12)), st.integers(0, 2**32 - 1), st.sampled_from([1e-2, 0.1, 1.0]))
def test_order_does_not_matter(order, seed, noise_std):
    indices, rewards = data(seed, 12)
    belief, _ = run_candidates(start(general_prior(), noise_std), indices, rewards)
    other, _ = run_candidates(
        start(general_prior(), noise_std), indices[jnp.array(order)], rewards[jnp.array(order)]
    )
    first, second = ([b.mean, b.variance, b.posterior.mean, b.posterior.covariance] for b in (belief, other))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-8), first, second)
    for name in ("log_marginal_likelihood", "information_gain", "best_reward", "num_observations"):
        np.testing.assert_allclose(*(getattr(b.posterior, name) for b in (belief, other)), rtol=1e-7)


@pytest.mark.parametrize("noise_std", [1e-3, 0.3])
def test_pending_points_reduce_variance_and_keep_mean(noise_std):
    indices, rewards = data(4, 5)
    belief, _ = run_candidates(start(general_prior(), noise_std), indices, rewards)
    for index in (3, 3, 11):
        pending = jax.jit(gp.observe_pending)(belief, index)
        observed = observe_candidate(belief, index, 7.0)
        np.testing.assert_array_equal(pending.variance, observed.variance)
        np.testing.assert_array_equal(pending.posterior.factor, observed.posterior.factor)
        np.testing.assert_array_equal(pending.mean, belief.mean)
        for name in ("mean", "best_reward", "log_marginal_likelihood", "num_observations"):
            assert (getattr(pending.posterior, name) == getattr(belief.posterior, name)).all()
        belief = pending


# --- transforms ---


def test_scan_under_jit_equals_an_eager_loop():
    indices, rewards = data(5, 4)
    belief = start(general_prior())
    scanned, _ = run_candidates(belief, indices, rewards)
    for index, reward in zip(indices, rewards, strict=True):
        belief = gp.observe_candidate(belief, index, reward)
    jax.tree.map(close, scanned, belief)


def test_vmap_over_priors_equals_a_loop():
    indices, rewards = data(6)
    supports = jnp.array([[True] * 5, [True, False, False, True, False]])

    def run(support, reward_scale):
        return run_candidates(start(support_prior(support, FOURIER.groups)), indices, rewards * reward_scale)[
            0
        ]

    batch = jax.vmap(run)(supports, jnp.array([1.0, -2.0]))
    for i, scale in enumerate((1.0, -2.0)):
        jax.tree.map(close, jax.tree.map(lambda leaf, i=i: leaf[i], batch), run(supports[i], scale))


def test_columns_are_the_features_transposed():
    """A belief with columns, as loops have it, gives the same beliefs as one without."""
    belief = start(full_prior(FOURIER.groups))
    columns = Belief(belief.mean, belief.variance, PHI, belief.posterior, columns=PHI.T)
    for index, reward in ((3, 0.7), (1, -0.2)):
        belief, columns = (observe_candidate(one, index, reward) for one in (belief, columns))
        close(columns.mean, belief.mean)
        close(columns.variance, belief.variance)
        assert columns.columns is not None
    close(gp.observe_pending(columns, 2).variance, gp.observe_pending(belief, 2).variance)


def test_shared_features_stay_shared_under_vmap():
    """jax rejects `out_axes=None` for batched outputs, so features and noise have no batch axis."""
    indices, _ = data(7)
    rewards = jax.random.normal(jax.random.key(0), (3, NUM))
    belief = start(general_prior())
    axes = Belief(0, 0, None, Posterior(0, None, None, 0, None, 0, None, 0))
    batch = jax.vmap(lambda r: run_candidates(belief, indices, r)[0], out_axes=axes)(rewards)
    assert batch.features.shape == PHI.shape and batch.posterior.factor.shape == (9, 9)
    for i, reward in enumerate(rewards):
        alone, _ = run_candidates(belief, indices, reward)
        close(batch.mean[i], alone.mean)
        close(batch.posterior.log_marginal_likelihood[i], alone.posterior.log_marginal_likelihood)
        close(batch.variance[i], alone.variance)


@pytest.mark.parametrize("part", [0, 1], ids=["mean", "variance"])
def test_gradient_with_respect_to_points(part):
    indices, rewards = data(8, 10)
    posterior = run_points(gp.init(general_prior(), 0.3), PHI[indices], rewards)

    @jax.jit
    def value(points):
        return gp.predict(posterior, FOURIER(points))[part]

    points, step = jnp.array([[0.05], [0.31], [0.77]]), 1e-5
    slopes = jax.grad(lambda points: value(points).sum())(points)
    differences = (value(points + step) - value(points - step)) / (2 * step)
    np.testing.assert_allclose(slopes[:, 0], differences, rtol=1e-6, atol=1e-6)


def test_gradient_of_std_is_zero_at_zero_variance():
    posterior = gp.init(Prior(np.zeros(9), np.zeros(9)), 0.1)
    slope = jax.grad(lambda points: gp.belief_at(posterior, FOURIER(points)).std.sum())(jnp.array([[0.3]]))
    assert slope == 0


def test_gradient_of_the_evidence_with_respect_to_the_prior():
    """Empirical-Bayes learners of the prior need this gradient."""
    indices, rewards = data(9, 10)

    @jax.jit
    def evidence(mean, diagonal):
        return run_points(gp.init(Prior(mean, diagonal), 0.3), PHI[indices], rewards).log_marginal_likelihood

    at, along = (jnp.zeros(9), jnp.ones(9)), (jnp.linspace(-1, 1, 9), jnp.linspace(0.5, 1, 9))
    slope = sum(jnp.vdot(*pair) for pair in zip(jax.grad(evidence, (0, 1))(*at), along, strict=True))
    ahead, behind = (evidence(*(a + h * b for a, b in zip(at, along, strict=True))) for h in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)


# --- precision and bad input ---


def test_dtype_is_that_of_the_prior():
    """float64 features and rewards do not promote a float32 posterior, which would break a scan's carry."""
    prior = Prior(np.zeros(9, np.float32), np.ones(9, np.float32))
    belief = start(prior)
    belief, _ = run_candidates(belief, *data())
    posterior = run_points(gp.init(prior, np.float64(0.3)), PHI[:3], jnp.ones(3))
    leaves = jax.tree.leaves((belief, posterior, gp.predict(posterior, PHI)))
    assert {leaf.dtype.name for leaf in leaves} == {"float32", "int32"}


BELIEF = start(full_prior(FOURIER.groups))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gp.init(general_prior(), 0.0), "`noise_std` should be a number > 0, but got 0.0"),
        (lambda: gp.init(general_prior(), -1), "`noise_std` should be a number > 0, but got -1"),
        (lambda: gp.init(general_prior(), np.nan), "`noise_std` should be finite"),
        (lambda: gp.init(general_prior(), np.inf), "`noise_std` should be finite"),
        (lambda: gp.init(general_prior(), [0.1]), r"`noise_std` should be an array of shape \[\]"),
        (
            lambda: gp.observe(BELIEF.posterior, np.ones(8), 0.0),
            r"`feature` .*shape \[9\], but got shape \[8\]",
        ),
        (lambda: gp.observe(BELIEF.posterior, np.full(9, np.nan), 0.0), "`feature` should be finite"),
        (lambda: gp.observe(BELIEF.posterior, np.ones(9), np.ones(2)), r"`reward` should be .*shape \[\]"),
        (lambda: gp.observe(BELIEF.posterior, np.ones(9), np.inf), "`reward` should be finite"),
        (lambda: gp.observe_candidate(BELIEF, 0, np.nan), "`reward` should be finite"),
        (lambda: gp.observe_candidate(BELIEF, 0, np.ones(25)), r"`reward` should be .*shape \[\]"),
        (lambda: gp.observe_candidate(BELIEF, [0, 1], 1.0), r"`index` should be .*shape \[\]"),
        (
            lambda: gp.observe_candidate(BELIEF, 25, 1.0),
            "`index` should be a number >= 0 and <= 24, but got 25",
        ),
        (lambda: gp.observe_pending(BELIEF, -1), "`index` should be a number >= 0 and <= 24, but got -1"),
        (lambda: gp.predict(BELIEF.posterior, np.ones((3, 8))), r"`features` .*shape \[3, 9\].*\[3, 8\]"),
        (lambda: gp.predict(BELIEF.posterior, np.full((1, 9), np.inf)), r"`features` .*finite.*at \[0, 0\]"),
        (lambda: gp.predict(BELIEF.posterior, 1.0), r"`features` .*shape \[9\], but got shape \[\]"),
        (lambda: gp.belief_at(BELIEF.posterior, np.ones(9)), r"`features` .*shape \[points, 9\]"),
        (lambda: gp.sample(BELIEF.posterior, np.ones(8), key=jax.random.key(0)), r"`features` .*shape \[9\]"),
        (lambda: jax.jit(gp.predict)(BELIEF.posterior, np.ones(8)), r"`features` .*shape \[9\]"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_values_inside_jit_give_nan():
    belief = observe_candidate(BELIEF, 0, jnp.nan)
    assert np.isnan(belief.mean).all() and np.isnan(belief.posterior.log_marginal_likelihood)
    assert np.isnan(observe(BELIEF.posterior, jnp.full(9, jnp.inf), 0.0).mean).any()
