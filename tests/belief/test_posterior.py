"""The posterior: textbook formulas, order of observations, float32 accuracy, transforms and bad input."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import Belief, Cosine, Fourier, Posterior, Prior, box_grid, full_prior, support_prior
from jlibo.belief import candidates
from jlibo.belief import posterior as gp
from tests import reference

NUM = 60
FOURIER = Fourier(4, constant=True)  # 9 features in 5 groups
CANDIDATES = np.asarray(box_grid(FOURIER, 25))
PHI = np.asarray(FOURIER(CANDIDATES))


def general_prior(seed=0, rank=9):
    """A non-zero mean and a full covariance of the given rank."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, rank)) / 3
    return Prior(rng.normal(size=9), rows @ rows.T)


PRIORS = {
    "full": lambda: full_prior(FOURIER.groups),
    "support": lambda: support_prior([True, False, True, False, True], FOURIER.groups),
    "mean and covariance": general_prior,
    "singular": lambda: general_prior(1, rank=4),
}
every_prior = pytest.mark.parametrize("make", PRIORS.values(), ids=PRIORS.keys())
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)


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


def test_shared_features_stay_shared_under_vmap():
    """jax rejects `out_axes=None` for batched outputs, so features and noise have no batch axis."""
    indices, _ = data(7)
    rewards = jax.random.normal(jax.random.key(0), (3, NUM))
    belief = start(general_prior())
    axes = Belief(0, 0, None, Posterior(0, None, None, 0, None, 0, None))
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
