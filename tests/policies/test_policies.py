"""Policies: scores against reference formulas, choice among candidates, and bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import log_ndtr

import jlibo
from jlibo import (
    GPTS,
    GPUCB,
    OFUL,
    AbstractPolicy,
    Belief,
    ExpectedImprovement,
    Greedy,
    LogExpectedImprovement,
    Prior,
    TheoreticalNu,
    Uniform,
    choose,
    full_prior,
)
from jlibo.belief import posterior as gp
from jlibo.belief.belief import in_units, observe, start
from jlibo.belief.moments import Units
from jlibo.policies.log_expected_improvement import log_gain
from tests import reference
from tests.policies.cases import KEY, POLICIES, OneScore, close

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


@jax.jit
def belief_after(rewards, seed, features):
    """A belief at random points after the given rewards there, from a prior with a non-zero mean."""
    key_mean, key_phi = jax.random.split(jax.random.key(seed))
    dim = 7
    prior = Prior(jax.random.normal(key_mean, (dim,)), jnp.ones(dim) / dim)
    phi = jax.random.uniform(key_phi, (10, dim), minval=-1)
    posterior = gp.init(prior, 0.1)
    for i, reward in enumerate(rewards):
        posterior = gp.observe(posterior, phi[i], reward)
    return gp.belief_at(posterior, phi)


BELIEF = belief_after((0.3, -0.5, 1.2), 0, None)
MEAN, STD = np.asarray(BELIEF.mean), np.asarray(BELIEF.std)
GAIN = float(BELIEF.posterior.information_gain)
scores_of = jax.jit(lambda policy, belief, key: policy.scores(belief, key=key))
jitted_log_gain = jax.jit(log_gain)


# --- scores ---


@pytest.mark.parametrize(
    "policy, expected",
    [
        (GPUCB(10.0, 0.1), reference.upper_confidence_bound(MEAN, STD, 10)),
        (GPUCB(0, 0.1), MEAN),
        (
            GPUCB(TheoreticalNu(2.0, 0.05, 0.3), 0.1),
            reference.upper_confidence_bound(MEAN, STD, reference.theoretical_nu(2, 0.3, GAIN, 0.05)),
        ),
        (
            OFUL(2.0, 0.05, 0.1),
            reference.upper_confidence_bound(MEAN, STD, reference.oful_radius(2, GAIN, 0.05)),
        ),
        (OFUL(2.0, 1.0, 0.1), MEAN + (2 + np.sqrt(2 * GAIN)) * STD),
        (Greedy(0.1), MEAN),
        (ExpectedImprovement(0.1), reference.expected_improvement(MEAN, STD, 1.2)),
        (ExpectedImprovement(0.1, 0.25), reference.expected_improvement(MEAN, STD, 1.45)),
        (LogExpectedImprovement(0.1), np.log(reference.expected_improvement(MEAN, STD, 1.2))),
        (LogExpectedImprovement(0.1, 0.25), np.log(reference.expected_improvement(MEAN, STD, 1.45))),
        (GPTS(0.1, scale=0.0), MEAN),
    ],
)
def test_scores_equal_the_formulas(policy, expected):
    close(scores_of(policy, BELIEF, KEY), expected)


def test_information_gain_is_that_of_the_observed_points():
    phi = np.asarray(BELIEF.features[:3])
    close(GAIN, reference.information_gain(phi @ phi.T / 7, 0.1))


def certain(mean):
    """A belief with zero variance: two features, one point each."""
    posterior = gp.observe(gp.init(Prior(jnp.asarray(mean), jnp.zeros(2)), 0.1), jnp.zeros(2), 0.5)
    return gp.belief_at(posterior, jnp.eye(2))


def test_expected_improvement_without_variance():
    @jax.jit
    def score(mean, margin):
        scores = ExpectedImprovement(0.1, margin).scores(certain(mean), key=KEY)
        return scores.sum(), scores

    (_, scores), slope = jax.jit(jax.value_and_grad(score, has_aux=True))(jnp.array([0.75, 0.25]), 0.1)
    close(scores, [0.15, 0])
    close(slope, [1, 0])


def test_expected_improvement_before_the_first_reward_equals_std():
    belief = belief_after((), 1, None)
    close(ExpectedImprovement(0.1).scores(belief, key=KEY), belief.std)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.floats(-30, 5), st.floats(-6, 1))
def test_expected_improvement_is_non_negative_and_accurate(dtype, ratio, log_std):
    std = dtype(10.0**log_std)
    mean = dtype(ratio * std)
    posterior = eqx.tree_at(lambda at: at.best_reward, BELIEF.posterior, jnp.zeros((), dtype))
    belief = Belief(jnp.array([mean]), jnp.array([std**2]), jnp.zeros((1, 7), dtype), posterior)
    score = np.asarray(scores_of(ExpectedImprovement(0.1), belief, KEY))
    expected = reference.expected_improvement([mean], [std], 0.0)
    assert score.dtype == dtype and score >= 0
    np.testing.assert_allclose(score, expected, rtol=0, atol=50 * np.finfo(dtype).eps * float(std))


def log_gain_by_integration(ratio):
    """log(pdf(z) + z cdf(z)) as the integral of the cdf up to z, in which no terms cancel."""
    if ratio > 5:
        return np.log(ratio)  # relative error below 1e-12 at the ratios tested
    scale = max(1.0, abs(ratio))
    area, _ = integrate.quad(lambda t: np.exp(log_ndtr(ratio - t / scale) - log_ndtr(ratio)), 0, np.inf)
    return np.log(area / scale) + log_ndtr(ratio)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_expected_improvement_equals_numerical_integration(dtype):
    ratios = np.array([-1e3, -100, -20.01, -19.99, -6.01, -5.99, -3, -1, -1e-3, 0, 1e-3, 1, 7, 100], dtype)
    expected = [log_gain_by_integration(float(ratio)) for ratio in ratios]
    tol = 2e-4 if dtype == np.float32 else 1e-7
    np.testing.assert_allclose(jitted_log_gain(jnp.asarray(ratios)), expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_expected_improvement_is_strictly_increasing(dtype):
    ratios = jnp.asarray(np.linspace(-60, 5, 4001), dtype)
    assert (np.diff(jitted_log_gain(ratios)) > 0).all()
    assert np.isfinite(jitted_log_gain(jnp.asarray([-1e6, 1e6], dtype))).all()
    slopes = jax.jit(jax.vmap(jax.grad(log_gain)))(
        jnp.asarray([-100.0, -1.0, 0.0, 1.0, 13.0, 14.0, 50.0], dtype)
    )
    assert np.isfinite(slopes).all() and (slopes > 0).all()


def test_log_expected_improvement_before_the_first_reward():
    started_with = {"mean": Prior(jnp.arange(7.0), jnp.ones(7)), "none": full_prior(range(7))}
    points = jnp.asarray(np.random.default_rng(0).normal(size=(9, 7)))
    for name, prior in started_with.items():
        belief = gp.belief_at(gp.init(prior, 0.1), points)
        scores = scores_of(LogExpectedImprovement(0.1), belief, KEY)
        wanted = points @ prior.mean if name == "mean" else belief.std
        np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_thompson_sampling_draws_one_function_for_all_points():
    policy = GPTS(0.1, scale=2.0)
    draws = jax.jit(jax.vmap(lambda key: policy.scores(BELIEF, key=key)))(jax.random.split(KEY, 20_000))
    limit = 5 / np.sqrt(20_000)  # five standard errors
    assert (np.abs(draws.mean(0) - MEAN) <= limit * 2 * STD).all()
    np.testing.assert_allclose(draws.std(0), 2 * STD, rtol=limit)
    # The draws are joint: at ten points they have rank seven, the number of shared weights.
    assert np.linalg.matrix_rank(np.asarray(draws[:100] - BELIEF.mean), tol=1e-8) == 7
    phi = np.asarray(BELIEF.features)
    expected = 4 * phi @ np.asarray(BELIEF.posterior.covariance) @ phi.T
    np.testing.assert_allclose(np.cov(draws.T), expected, atol=2 * limit * np.abs(expected).max())


def test_uniform_plays_every_candidate_equally_often():
    num = 20_000
    chosen = jax.jit(jax.vmap(lambda key: choose(Uniform(), BELIEF, key=key)))(jax.random.split(KEY, num))
    counts = np.bincount(chosen, minlength=10)
    assert (np.abs(counts - num / 10) <= 5 * np.sqrt(num * 0.1 * 0.9)).all()


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "uniform"])
def test_score_of_a_point_does_not_depend_on_other_points(name):
    """`maximise` relies on this. Only Uniform draws by index, as all its points are equal."""
    subset = jnp.array([7, 2, 2])
    part = Belief(BELIEF.mean[subset], BELIEF.variance[subset], BELIEF.features[subset], BELIEF.posterior)
    whole = scores_of(POLICIES[name], BELIEF, KEY)
    close(scores_of(POLICIES[name], part, KEY), whole[subset])


# --- choice among candidates ---


@every_policy
def test_choose_returns_the_highest_score_among_available_candidates(policy):
    scores = np.asarray(scores_of(policy, BELIEF, KEY))
    assert choose(policy, BELIEF, key=KEY) == scores.argmax()
    for order in (scores.argsort(), scores.argsort()[::-1]):
        available = np.zeros(10, bool)
        for index in order[:9]:
            available[index] = True
            best = choose(policy, BELIEF, available=available, key=KEY)
            assert best == np.where(available, scores, -np.inf).argmax() and available[best]


def test_choose_returns_an_available_candidate_if_all_scores_are_minus_infinity():
    belief = eqx.tree_at(lambda b: b.mean, BELIEF, jnp.full(10, -jnp.inf))
    assert choose(Greedy(0.1), belief, available=jnp.arange(10) == 6, key=KEY) == 6


# --- bad input ---


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: GPUCB(-1.0, 0.1), "`nu` should be a number >= 0, but got -1.0"),
        (lambda: GPUCB(np.nan, 0.1), "`nu` should be finite"),
        (lambda: GPUCB(1.0, 0.0), "`noise_std` should be a number > 0, but got 0.0"),
        (
            lambda: GPUCB(jnp.array([1.0, -2.0]), 0.1),
            "`nu` should be a number >= 0, but got values from -2.0",
        ),
        (lambda: GPTS(-0.1), "`noise_std` should be a number > 0"),
        (lambda: GPTS(0.1, -1), "`scale` should be a number >= 0"),
        (lambda: GPTS(0.1, np.inf), "`scale` should be finite"),
        (lambda: Greedy(np.nan), "`noise_std` should be finite"),
        (lambda: Uniform(0), "`noise_std` should be a number > 0"),
        (lambda: ExpectedImprovement(0.0), "`noise_std` should be a number > 0"),
        (lambda: ExpectedImprovement(0.1, -0.1), "`margin` should be a number >= 0"),
        (lambda: OFUL(0.0, 0.1, 0.1), "`norm_bound` should be a number > 0"),
        (lambda: OFUL(1.0, 0.0, 0.1), "`delta` should be a number > 0 and <= 1, but got 0.0"),
        (lambda: OFUL(1.0, 1.1, 0.1), "`delta` should be a number > 0 and <= 1, but got 1.1"),
        (lambda: OFUL(1.0, 0.1, -0.1), "`noise_std` should be a number > 0"),
        (lambda: TheoreticalNu(0.0, 0.1, 0.1), "`norm_bound` should be a number > 0"),
        (lambda: TheoreticalNu(1.0, 2.0, 0.1), "`delta` should be a number > 0 and <= 1"),
        (lambda: TheoreticalNu(1.0, 0.1, -0.1), "`noise_level` should be a number >= 0"),
        (
            lambda: choose(Greedy(0.1), BELIEF, available=np.ones(9, bool), key=KEY),
            r"`available` .*shape \[10\]",
        ),
        (
            lambda: choose(Greedy(0.1), BELIEF, available=np.zeros(10, bool), key=KEY),
            "`available` .*no point",
        ),
        (lambda: choose(OneScore(0.1), BELIEF, key=KEY), r"`scores` .*shape \[10\], but got shape \[\]"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_policy_without_scores_is_abstract():
    class Nothing(AbstractPolicy):
        noise_std: float = 0.1

    with pytest.raises(TypeError, match="scores"):
        Nothing()


def test_patience_draws_every_second_point_after_observations_without_a_new_best():
    features = jlibo.Cosine(5)
    phi = features(jlibo.box_grid(features, 30))
    belief = jlibo.posterior.belief_at(
        jlibo.posterior.init(jlibo.full_prior(features.groups), noise_std=0.1), phi
    )
    plain, patient = LogExpectedImprovement(0.1), LogExpectedImprovement(0.1, patience=3)
    keys = jax.random.split(jax.random.key(0), 2)
    rewards = [1.0, 0.5, 1.0, 0.2, 0.9, 0.1, 1.5, 0.0]  # a tie is no new best
    draws = []
    observe = jax.jit(jlibo.posterior.observe_candidate)
    for place, reward in enumerate(rewards):
        belief = observe(belief, 3 * place, reward)
        scores = [np.asarray(scores_of(patient, belief, key)) for key in keys]
        draws.append(not np.array_equal(*scores))
        if not draws[-1]:
            np.testing.assert_array_equal(scores[0], scores_of(plain, belief, keys[0]))
    assert draws == [False, False, False, True, False, True, False, False]
    with pytest.raises(ValueError, match="patience"):
        LogExpectedImprovement(0.1, patience=0)


def test_patience_asks_the_last_component_and_draws_in_turn():
    features = jlibo.Cosine(5)
    phi = features(jlibo.box_grid(features, 30))
    wide = jlibo.full_prior(features.groups)
    learned = jlibo.Prior(jnp.arange(5.0), 0.1 * wide.covariance)
    policy, plain = LogExpectedImprovement(0.1, patience=1), LogExpectedImprovement(0.1)
    keys = jax.random.split(jax.random.key(0), 2)

    def turns(weights):
        running = start(jlibo.mixture([learned, wide], weights), phi, 0.1, 1)
        found = []
        for place in range(7):
            # The first reward is the best one. It does not distinguish the components.
            running = observe(running, 4 * place, jnp.asarray(5.0 - place))
            units = Units(jnp.zeros(2), jnp.ones(2))
            belief = in_units(eqx.tree_at(lambda r: r.products, running, 0 * running.products), units)
            scores = [np.asarray(policy.scores(belief, key=key)) for key in keys]
            if not np.array_equal(*scores):
                found.append("draw")
            elif np.array_equal(scores[0], plain.scores(belief, key=keys[0])):
                found.append("mixture")
            else:
                np.testing.assert_array_equal(scores[0], plain.scores(belief.wide, key=keys[0]))
                found.append("wide")
        return found

    rest = ["mixture", "draw", "mixture"]
    assert turns([0.999, 0.001]) == ["mixture", "wide", *rest, "wide", "mixture"]
    # Without trust in the past, the turn of the last component is a draw.
    assert turns([0.0, 1.0]) == ["mixture", "draw", *rest, "draw", "mixture"]
