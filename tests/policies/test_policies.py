"""Policies: scores against reference formulas, choice among candidates, maximisation over a box."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float
from scipy import integrate
from scipy.special import log_ndtr

from jlibo import (
    GPTS,
    GPUCB,
    OFUL,
    AbstractPolicy,
    Belief,
    Cosine,
    ExpectedImprovement,
    Fourier,
    FunctionFeatures,
    Greedy,
    LogExpectedImprovement,
    Polynomial,
    Prior,
    TheoreticalNu,
    Uniform,
    box_grid,
    choose,
    full_prior,
    maximise,
)
from jlibo.belief import posterior as gp
from jlibo.policies.log_expected_improvement import log_gain
from tests import reference


class LowerBound(AbstractPolicy):
    """A minimal user-defined policy."""

    width: float
    noise_std: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.1)

    def scores(self, belief, *, key):
        return belief.mean - self.width * belief.std


POLICIES = {
    "gp_ucb": GPUCB(2.0, 0.1),
    "gp_ucb_theory": GPUCB(TheoreticalNu(1.5, 0.1, 0.2), 0.1),
    "gp_ts": GPTS(0.1),
    "oful": OFUL(1.5, 0.1, 0.1),
    "greedy": Greedy(0.1),
    "expected_improvement": ExpectedImprovement(0.1),
    "log_expected_improvement": LogExpectedImprovement(0.1),
    "uniform": Uniform(),
    "user": LowerBound(0.5),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
FEATURES = {
    1: Fourier(3, constant=True, lower=-1.0, upper=3.0),
    2: Cosine(7, dim=2, lower=(0, 5), upper=(1, 9)),
}
KEY = jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


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
    close(policy.scores(BELIEF, key=KEY), expected)


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
    np.testing.assert_allclose(log_gain(jnp.asarray(ratios)), expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_expected_improvement_is_strictly_increasing(dtype):
    ratios = jnp.asarray(np.linspace(-60, 5, 4001), dtype)
    assert (np.diff(log_gain(ratios)) > 0).all()
    assert np.isfinite(log_gain(jnp.asarray([-1e6, 1e6], dtype))).all()
    slopes = jax.vmap(jax.grad(log_gain))(jnp.asarray([-100.0, -1.0, 0.0, 1.0, 13.0, 14.0, 50.0], dtype))
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
    scores = np.asarray(policy.scores(BELIEF, key=KEY))
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


# --- maximisation over a box ---


class OneOf(AbstractPolicy):
    """One of several policies, by index, so that the tests of all policies share one compiled program."""

    index: Array
    policies: tuple[AbstractPolicy, ...]
    noise_std: float = 0.1

    def scores(self, belief, *, key):
        branches = [lambda policy=policy: policy.scores(belief, key=key) for policy in self.policies]
        return jax.lax.switch(self.index, branches)


def one_of(name):
    return OneOf(jnp.asarray(list(POLICIES).index(name)), tuple(POLICIES.values()))


@eqx.filter_jit
def random_posterior(features, seed):
    key_mean, key_points, key_rewards = jax.random.split(jax.random.key(seed), 3)
    low, high = jnp.asarray(features.lower), jnp.asarray(features.upper)
    mean = jax.random.normal(key_mean, (features.num_features,))
    points = low + (high - low) * jax.random.uniform(key_points, (4, features.dim))
    seen = (features(points), jax.random.normal(key_rewards, (4,)))
    start = gp.init(Prior(mean, full_prior(features.groups).covariance), 0.1)
    return jax.lax.scan(lambda at, one: (gp.observe(at, *one), None), start, seen)[0]


@eqx.filter_jit
def climb(policy, posterior, features, key):
    return maximise(policy, posterior, features, num_candidates=20, num_starts=3, num_steps=15, key=key)


@eqx.filter_jit
def score_at(policy, posterior, features, points, key):
    """The scores that `maximise(..., key=key)` maximises."""
    return policy.scores(gp.belief_at(posterior, features(points)), key=jax.random.split(key)[1])


@eqx.filter_jit
def climb_many(policy, features, seed):
    """Maximise on 16 random posteriors; return the results and the scores at their points."""

    def climb_one(seed):
        posterior, key = random_posterior(features, seed), jax.random.key(seed)
        found = climb(policy, posterior, features, key)
        return found, score_at(policy, posterior, features, found.point[None], key)[0]

    return jax.lax.map(climb_one, seed + jnp.arange(16))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("dim", [1, 2])
@settings(max_examples=max(1, settings().max_examples // 5))
@given(seed=st.integers(0, 2**30))
def test_maximise_is_never_worse_than_its_best_candidate(name, dim, seed):
    features = FEATURES[dim]
    found, scores = jax.tree.map(np.asarray, climb_many(one_of(name), features, jnp.asarray(seed)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert (found.score >= found.start_score).all()
    assert (found.point >= features.lower).all() and (found.point <= features.upper).all()
    # The reported score is the score at the reported point.
    np.testing.assert_allclose(scores, found.score, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "features, best",
    [
        (Cosine(1, lower=0.0, upper=3.0), [0.0]),  # the optimum is the lower end
        (FunctionFeatures(lambda x: -((x - 0.4321) ** 2), groups=[0], lower=-1.0, upper=1.0), [0.4321]),
        (FunctionFeatures(lambda x: jnp.exp(x), groups=[0], lower=-0.1, upper=0.7), [0.7]),
        (
            FunctionFeatures(
                lambda x: -jnp.sum((x - jnp.array([0.123, 7.7])) ** 2)[None],
                groups=[0],
                lower=(0, 5),
                upper=(1, 9),
            ),
            [0.123, 7.7],
        ),
        (Polynomial(1, dim=2, lower=(0.1, 0.2), upper=(0.3, 0.7)), [0.3, 0.7]),  # a corner
    ],
    ids=["lower end", "1-d", "upper end", "2-d", "corner"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximise_finds_a_known_optimum(features, best, dtype):
    ones = np.ones(features.num_features, dtype)
    grid = box_grid(features, 8)
    posterior = gp.init(Prior(ones, ones), 0.1)
    found = maximise(Greedy(0.1), posterior, features, candidates=grid, num_steps=120, key=KEY)
    width = np.subtract(features.upper, features.lower)
    np.testing.assert_allclose((found.point - np.array(best)) / width, 0, atol=2e-3)
    assert found.point.dtype == found.score.dtype == dtype
    assert (found.point >= np.array(features.lower, dtype)).all()
    assert (found.point <= np.array(features.upper, dtype)).all()
    if not (np.asarray(grid) == best).all(1).any():
        assert found.score > found.start_score


@pytest.mark.parametrize("dim, fine", [(1, 20_001), (2, 201)])
def test_maximise_finds_the_global_optimum_of_gp_ucb(dim, fine):
    features, policy = FEATURES[dim], GPUCB(2.0, 0.1)
    posterior = random_posterior(features, 5)
    scores = partial(score_at, policy, posterior, features, key=KEY)
    best, coarse = scores(box_grid(features, fine)).max(), box_grid(features, 12)
    found = maximise(policy, posterior, features, candidates=coarse, key=KEY)
    close(found.start_score, scores(coarse).max())
    spread = best - scores(coarse).min()
    assert found.score >= best - 1e-4 * spread and found.start_score < best - 1e-3 * spread


@pytest.mark.parametrize("name", POLICIES)
def test_maximise_without_steps_returns_the_best_candidate(name):
    policy, features = one_of(name), FEATURES[2]
    posterior, candidates = random_posterior(features, 0), box_grid(features, 5)
    found = maximise(policy, posterior, features, candidates=candidates, num_steps=0, key=KEY)
    assert (np.asarray(candidates) == np.asarray(found.point)).all(1).any()
    close(found.score, found.start_score)
    if name != "uniform":
        scores = score_at(policy, posterior, features, candidates, KEY)
        close(found.score, scores.max())
        close(found.point, candidates[scores.argmax()])


def test_maximise_breaks_ties_at_random():
    """Uniform gives all points the same score, and must play anywhere."""
    posterior = random_posterior(FEATURES[1], 0)
    play = partial(
        maximise, Uniform(), posterior, FEATURES[1], candidates=box_grid(FEATURES[1], 4), num_steps=0
    )
    points = [float(play(key=key).point[0]) for key in jax.random.split(KEY, 60)]
    assert len(np.unique(np.round(points, 6))) == 4


def test_maximise_under_vmap_equals_a_loop():
    """Over posteriors, keys and policies at once."""
    features, seeds, nus = FEATURES[1], jnp.arange(3), jnp.array([0.0, 1.0, 5.0])
    posteriors = jax.vmap(partial(random_posterior, features))(seeds)
    keys = jax.random.split(KEY, 3)
    batch = jax.vmap(lambda nu, *rest: climb(GPUCB(nu, 0.1), rest[0], features, rest[1]))(
        nus, posteriors, keys
    )
    for i in range(3):
        alone = climb(GPUCB(nus[i], 0.1), random_posterior(features, seeds[i]), features, keys[i])
        for part in ("point", "score", "start_score"):
            np.testing.assert_allclose(getattr(batch, part)[i], getattr(alone, part), atol=1e-7)


def test_maximise_skips_a_bad_candidate_inside_jit():
    features, posterior = FEATURES[1], random_posterior(FEATURES[1], 0)
    run = jax.jit(lambda points: maximise(Greedy(0.1), posterior, features, candidates=points, key=KEY))
    good = run(jnp.array([[0.0], [1.0], [2.0]]))
    bad = run(jnp.array([[0.0], [jnp.nan], [99.0]]))
    assert np.isfinite(bad.score) and np.isfinite(bad.point).all() and bad.start_score <= good.start_score


# --- bad input ---

ON_LINE = random_posterior(FEATURES[1], 0)
run_line = partial(maximise, Greedy(0.1), ON_LINE, FEATURES[1], key=KEY)


class OneScore(AbstractPolicy):
    noise_std: jax.Array

    def scores(self, belief, *, key):
        return belief.mean.sum()


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
        (lambda: run_line(candidates=np.zeros(3)), r"`candidates` should be .*shape \[candidates, 1\]"),
        (lambda: run_line(candidates=np.zeros((0, 1))), "`candidates` should be at least one point"),
        (lambda: run_line(candidates=np.full((2, 1), np.nan)), "`candidates` should be finite"),
        (lambda: run_line(candidates=[[0.0], [3.5]]), r"`candidates` .*in the box .*but got \[3.5\]"),
        (lambda: run_line(num_candidates=0), "`num_candidates` should be a whole number >= 1"),
        (lambda: run_line(num_starts=0), "`num_starts` should be a whole number >= 1"),
        (lambda: run_line(num_steps=-1), "`num_steps` should be a whole number >= 0"),
        (lambda: run_line(num_steps=1.5), "`num_steps` should be a whole number"),
        (lambda: run_line(learning_rate=0.0), "`learning_rate` should be a number > 0"),
        (lambda: run_line(learning_rate=np.inf), "`learning_rate` should be finite"),
        (lambda: maximise(Greedy(0.1), ON_LINE, Cosine(2), key=KEY), "`features` .*7 features, but got 2"),
        (lambda: maximise(OneScore(0.1), ON_LINE, FEATURES[1], key=KEY), r"`scores` .*shape \[1\]"),
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
