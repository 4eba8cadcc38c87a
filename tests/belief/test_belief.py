"""The running belief: posterior in any units, absent and pending rewards, mixtures weighted by evidence.

Compared with dense NumPy on targets that are standardised first (`reference.py`); the library does not
recompute anything when the units change.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jlibo import (
    Prior,
    RawRewards,
    Standardise,
    mixture,
)
from jlibo.belief import posterior as gp
from jlibo.belief.moments import Units
from tests import reference
from tests.belief.observed import (
    NOISE,
    NUM,
    PHI,
    belief_in,
    cast,
    close,
    component_weights,
    data,
    dense,
    equal,
    expect,
    general_prior,
    moments_of,
    seen,
    some_units,
    watch,
)

# --- the posterior in any units ---


@pytest.mark.parametrize("seed", [0, 1])
def test_belief_in_any_units_equals_posterior_of_standardised_targets(seed):
    prior, (indices, rewards) = general_prior(seed), data(seed)
    columns = seen(prior, indices, rewards)
    for centre, scale in some_units(seed):
        targets = (rewards - centre) / scale
        belief = belief_in(columns, Units(jnp.asarray(centre), jnp.asarray(scale)))
        mean, variance, weights, covariance, evidence = dense(prior, indices, targets)
        size = np.abs(targets).max()
        close(belief.mean, mean, atol=1e-9 * size)
        close(belief.variance, variance)
        close(belief.posterior.mean, weights, atol=1e-9 * size)
        close(belief.posterior.covariance, covariance)
        close(belief.posterior.log_marginal_likelihood, evidence)
        close(belief.posterior.best_reward, targets.max())
        gram = PHI[indices] @ np.asarray(prior.covariance) @ PHI[indices].T
        close(belief.posterior.information_gain, reference.information_gain(gram, NOISE))
        assert belief.posterior.num_observations == NUM


@pytest.mark.parametrize("num", [0, 1, 2])
def test_belief_after_few_rewards(num):
    prior, (indices, rewards) = general_prior(), data(num=2)
    present = np.arange(2) < num
    belief = belief_in(
        seen(prior, indices, rewards, present=present), Units(jnp.asarray(4.0), jnp.asarray(8.0))
    )
    targets = (rewards[:num] - 4) / 8
    mean, variance, _, _, evidence = dense(prior, indices[:num], targets)
    close(belief.mean, mean)
    close(belief.variance, variance)
    close(belief.posterior.log_marginal_likelihood, evidence)
    assert belief.posterior.best_reward == (targets.max() if num else -np.inf)


def test_one_column_equals_posterior_of_raw_rewards():
    """The paper's setting, with one column only; equal to `posterior` up to 1e-13."""
    prior, (indices, rewards) = general_prior(), data(scale=1.0)
    columns = seen(prior, indices, rewards, num_columns=1)
    units = RawRewards().units((), moments_of(rewards), columns)
    assert (float(units.centre), float(units.scale)) == (0, 1)
    belief = belief_in(columns, units)
    mean, variance, weights, _, evidence = dense(prior, indices, rewards)
    close(belief.mean, mean)
    close(belief.variance, variance)
    close(belief.posterior.mean, weights)
    close(belief.posterior.log_marginal_likelihood, evidence)
    assert belief.posterior.best_reward == rewards.max()

    @jax.jit
    def by_posterior(belief):
        step = lambda belief, seen: (gp.observe_candidate(belief, *seen), None)  # noqa: E731
        return jax.lax.scan(step, belief, (jnp.asarray(indices), jnp.asarray(rewards)))[0]

    other = by_posterior(gp.belief_at(gp.init(prior, NOISE), PHI))
    close(belief.mean, other.mean, rtol=1e-13, atol=1e-13)
    close(belief.posterior.factor, other.posterior.factor, rtol=1e-13, atol=1e-13)


def test_float32_is_close_to_float64():
    prior, (indices, rewards) = general_prior(), data()
    columns = seen(cast(prior, np.float32), indices, rewards)
    belief = belief_in(columns, cast(Units(jnp.asarray(5.0), jnp.asarray(20.0)), np.float32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(belief)} == {"float32", "int32"}
    mean, variance, _, _, evidence = dense(prior, indices, (rewards - 5) / 20)
    close(belief.mean, mean, atol=1e-4)
    close(belief.variance, variance, rtol=1e-3, atol=1e-5)
    close(belief.posterior.log_marginal_likelihood, evidence, rtol=1e-4)


def test_noise_std_of_the_prior_overrides_the_policys():
    prior, (indices, rewards) = general_prior(noise_std=1.7), data()
    belief = belief_in(seen(prior, indices, rewards), Units(jnp.asarray(5.0), jnp.asarray(20.0)))
    mean, variance, _, _, evidence = dense(prior, indices, (rewards - 5) / 20, 1.7)
    close(belief.mean, mean)
    close(belief.variance, variance)
    close(belief.posterior.log_marginal_likelihood, evidence)


# --- absent and pending observations ---


@pytest.fixture(scope="module")
def two_priors():
    return mixture([general_prior(0), general_prior(1)], [0.3, 0.7])


@pytest.mark.parametrize("num_columns", [1, 3])
@pytest.mark.parametrize("kind", ["prior", "mixture"])
@pytest.mark.parametrize("nothing", [0.0, -1e6, np.nan, np.inf])
def test_absent_reward_leaves_the_belief_unchanged(num_columns, kind, nothing, two_priors):
    prior, (indices, rewards) = (general_prior() if kind == "prior" else two_priors), data()
    columns = seen(prior, indices, rewards, num_columns=num_columns)
    after = watch(columns, indices[:1], jnp.full(1, nothing), np.zeros(1, bool))
    for before, now in zip(jax.tree.leaves(columns), jax.tree.leaves(after), strict=True):
        equal(now, before)


@pytest.mark.parametrize("num_columns", [1, 3])
def test_padded_rewards_equal_dropped_rewards(num_columns):
    prior, (indices, rewards) = general_prior(), data()
    present = np.random.default_rng(3).uniform(size=NUM) < 0.5
    padded = seen(prior, indices, np.where(present, rewards, 1e9), num_columns=num_columns, present=present)
    alone = seen(prior, indices[present], rewards[present], num_columns=num_columns, pad=lambda array: array)
    jax.tree.map(partial(close, rtol=1e-12, atol=1e-12), padded, alone)


def test_pending_reward_reduces_variance_and_keeps_mean(two_priors):
    units = Units(jnp.asarray(4.0), jnp.asarray(20.0))
    for prior in (general_prior(), two_priors):
        columns = seen(prior, *data())
        expected = expect(columns, 7)
        observed = watch(columns, np.array([7]), jnp.asarray([50.0]), np.ones(1, bool))
        equal(expected.belief.variance, observed.belief.variance)
        equal(expected.belief.posterior.factor, observed.belief.posterior.factor)
        for name in ("products", "log_determinant"):
            equal(getattr(expected, name), getattr(columns, name))
        equal(expected.belief.mean, columns.belief.mean)
        before, now = belief_in(columns, units), belief_in(expected, units)
        equal(now.mean, before.mean)
        assert (now.variance <= before.variance).all() and now.variance[7] < before.variance[7]
        for name in ("mean", "best_reward", "log_marginal_likelihood", "num_observations"):
            equal(getattr(now.posterior, name), getattr(before.posterior, name))
        absent = expect(columns, 7, False)
        jax.tree.map(equal, absent, columns)


def test_variance_with_pending_reward_equals_dense():
    prior, (indices, rewards) = general_prior(), data()
    belief = belief_in(expect(seen(prior, indices, rewards), 7), Units(jnp.asarray(0.0), jnp.asarray(1.0)))
    _, variance, _, _, _ = dense(prior, np.append(indices, 7), np.append(rewards, 0))
    close(belief.variance, variance)


# --- mixtures ---

LOG_WEIGHTS = np.log([0.5, 0.2, 0.3])


def three_priors():
    """One with the noise of the data, one with too little noise, one with too much."""
    return [general_prior(seed, noise_std) for seed, noise_std in ((0, 0.3), (1, 0.05), (2, 3.0))]


def dense_mixture(priors, log_weights, indices, targets):
    """Component weights, mean and variance of the mixture, and the dense components.

    The centre of the rewards has a flat prior, so it is integrated out of the evidence.
    """
    parts = [dense(prior, indices, targets, float(prior.noise_std)) for prior in priors]
    scores = log_weights + [part[-1] for part in parts]
    if len(targets):
        rows, ones = PHI[indices], np.ones(len(targets))
        for place, prior in enumerate(priors):
            matrix = rows @ np.asarray(prior.covariance) @ rows.T + float(prior.noise_std) ** 2 * np.eye(
                len(rows)
            )
            scores[place] -= 0.5 * np.log(ones @ np.linalg.solve(matrix, ones))
    weights = np.exp(scores - logsumexp(scores))
    means, variances = (np.array([part[i] for part in parts]) for i in (0, 1))
    mean = weights @ means
    return weights, mean, weights @ (variances + means**2) - mean**2, parts


@pytest.mark.parametrize("num", [0, 2, 6])
def test_mixture_is_weighted_by_evidence_and_moment_matched(num):
    priors, (indices, rewards) = three_priors(), data(5, 6)
    columns = seen(mixture(priors, np.exp(LOG_WEIGHTS)), indices, rewards, present=np.arange(6) < num)
    for centre, scale in some_units(5):
        units = Units(jnp.asarray(centre), jnp.asarray(scale))
        targets = (rewards[:num] - centre) / scale
        weights, mean, variance, parts = dense_mixture(priors, LOG_WEIGHTS, indices[:num], targets)
        # The exponent has a sum of squared residuals, whose round-off is proportional to its size.
        slack = 1e-9 * max(1, max(abs(part[-1]) for part in parts))
        close(component_weights(columns, units), weights, rtol=slack, atol=1e-300)
        belief = belief_in(columns, units)
        size = max(1, np.abs(mean).max())
        close(belief.mean, mean, atol=slack * size)
        close(belief.variance, variance, rtol=1e-7, atol=slack * size**2)
        likeliest = int(np.argmax(weights))
        close(belief.posterior.mean, parts[likeliest][2], atol=1e-9 * size)
        close(belief.posterior.covariance, parts[likeliest][3])
        close(belief.posterior.noise_std, priors[likeliest].noise_std)
        assert belief.mean.shape == belief.variance.shape == (25,) and belief.features.shape == PHI.shape
        close(belief.trust, weights[:-1].sum(), rtol=slack)
        close(belief.wide.mean, parts[-1][0], atol=slack * size)
        close(belief.wide.variance, parts[-1][1], rtol=1e-7, atol=slack * size**2)
        close(belief.wide.posterior.mean, parts[-1][2], atol=1e-9 * size)


def test_evidence_identifies_the_prior_that_generated_the_rewards():
    priors, rng = three_priors(), np.random.default_rng(8)
    for truth, prior in enumerate(priors):
        weights = rng.multivariate_normal(np.asarray(prior.mean), np.asarray(prior.covariance))
        indices = rng.integers(0, 25, 30)
        rewards = PHI[indices] @ weights + float(prior.noise_std) * rng.normal(size=30)
        columns = seen(mixture(priors, [1, 1, 1]), indices, rewards)
        likely = component_weights(columns, Units(jnp.asarray(0.0), jnp.asarray(1.0)))
        assert likely[truth] > 0.99
        close(likely.sum(), 1)


def test_component_of_weight_zero_has_no_effect():
    priors, (indices, rewards) = three_priors(), data(6)
    wild = Prior(np.full(9, 1e6), 1e12 * np.eye(9), 0.1)
    units = Units(jnp.asarray(5.0), jnp.asarray(20.0))
    without = seen(mixture(priors, [0.5, 0.2, 0.3]), indices, rewards)
    for other in (wild, priors[0]):
        columns = seen(mixture([other, *priors], [0, 0.5, 0.2, 0.3]), indices, rewards)
        weights = component_weights(columns, units)
        assert weights[0] == 0
        close(weights[1:], component_weights(without, units))
        jax.tree.map(close, belief_in(columns, units), belief_in(without, units))


def test_mixture_of_equal_priors_equals_that_prior():
    prior, (indices, rewards) = general_prior(), data(7)
    units = Units(jnp.asarray(5.0), jnp.asarray(20.0))
    alone = belief_in(seen(prior, indices, rewards), units)
    copies = seen(mixture([prior, prior], [0.9, 0.1]), indices, rewards)
    close(component_weights(copies, units), [0.9, 0.1])
    both = belief_in(copies, units)
    jax.tree.map(close, both.wide, alone)
    jax.tree.map(close, gp.Belief(both.mean, both.variance, both.features, both.posterior), alone)
    close(component_weights(seen(prior, indices, rewards), units), [1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mixture([], []), "`priors` should be at least one"),
        (lambda: mixture([general_prior()], [0.5, 0.5]), r"`weights` should be an array of shape \[1\]"),
        (lambda: mixture([general_prior()] * 2, [1, -1]), "`weights` should be a number >= 0"),
        (lambda: mixture([general_prior()] * 2, [0, 0]), "`weights` should be above 0 for at least one"),
        (lambda: mixture([general_prior()], [np.nan]), "`weights` should be"),
        (lambda: Standardise(guess=0.0), "`guess` should be a number > 0"),
        (lambda: Standardise(weight=-1.0), "`weight` should be a number > 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
