"""Units of a task's rewards: posteriors in any units, mixtures by their evidence, runs that ignore units.

Everything is compared with dense NumPy on targets that were standardised first (`reference.py`), where the
library never computes anything again when the units move.
"""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from jlibo import (
    GPUCB,
    AbstractMetaLearner,
    FederatedMetaKGL,
    FixedPrior,
    Fourier,
    FunctionEnv,
    NoExploration,
    Prior,
    RawRewards,
    Standardise,
    TableEnv,
    box_grid,
    full_prior,
    mixture,
    run_agents,
    run_lifelong,
    run_task,
)
from jlibo.belief import belief as running
from jlibo.belief import posterior as gp
from jlibo.belief.moments import Moments, Units
from jlibo.belief.scaling import PastScales
from jlibo.lifelong.one_task import draw_task
from jlibo.meta.base import info_of
from tests import reference

NUM, NOISE = 30, 0.3
FOURIER = Fourier(4, constant=True)  # 9 features in 5 groups
PHI = np.asarray(FOURIER(box_grid(FOURIER, 25)))
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
equal = np.testing.assert_array_equal
# Programs that run for a moment: with less optimisation they compile in half the time.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def general_prior(seed=0, noise_std=None):
    """A non-zero mean and a full covariance."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, 9)) / 3
    return Prior(rng.normal(size=9), rows @ rows.T, noise_std)


def data(seed=0, num=NUM, centre=5.0, scale=20.0):
    """Indices of candidates, some of them played twice, and rewards in units far from one."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, len(PHI), num), centre + scale * rng.normal(size=num)


def cast(tree, dtype):
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


start = quick_jit(running.start, static_argnames="num_columns")
belief_in, component_weights = map(quick_jit, (running.in_units, running.component_weights))
expect = quick_jit(running.observe_pending)


@quick_jit
def watch(columns, indices, rewards, present):
    def step(columns, seen):
        return running.observe(columns, *seen), None

    return jax.lax.scan(step, columns, (indices, rewards, present))[0]


def seen(prior, indices, rewards, *, num_columns=3, present=None):
    columns = start(prior, jnp.asarray(PHI, jax.tree.leaves(prior)[0].dtype), NOISE, num_columns=num_columns)
    present = np.ones(len(indices), bool) if present is None else present
    return watch(columns, indices, jnp.asarray(rewards, columns.products.dtype), present)


def dense(prior, indices, targets, noise_std=NOISE):
    """From scratch: mean and variance at the candidates, mean and covariance of the weights, log evidence."""
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


# --- the posterior in any units ---


@pytest.mark.parametrize("seed", [0, 1])
def test_the_belief_in_any_units_is_the_posterior_of_the_standardised_targets(seed):
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
def test_the_belief_after_few_rewards(num):
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


def test_one_column_is_the_posterior_of_the_rewards_themselves():
    """The paper's setting, at the cost of one column; bit for bit what `posterior` computes."""
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


def test_single_precision_follows_double():
    prior, (indices, rewards) = general_prior(), data()
    columns = seen(cast(prior, np.float32), indices, rewards)
    belief = belief_in(columns, cast(Units(jnp.asarray(5.0), jnp.asarray(20.0)), np.float32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(belief)} == {"float32", "int32"}
    mean, variance, _, _, evidence = dense(prior, indices, (rewards - 5) / 20)
    close(belief.mean, mean, atol=1e-4)
    close(belief.variance, variance, rtol=1e-3, atol=1e-5)
    close(belief.posterior.log_marginal_likelihood, evidence, rtol=1e-4)


def test_a_prior_with_a_noise_of_its_own_goes_before_the_policys():
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
def test_an_absent_reward_changes_nothing_at_all(num_columns, kind, nothing, two_priors):
    prior, (indices, rewards) = (general_prior() if kind == "prior" else two_priors), data()
    columns = seen(prior, indices, rewards, num_columns=num_columns)
    after = watch(columns, indices[:1], jnp.full(1, nothing), np.zeros(1, bool))
    for before, now in zip(jax.tree.leaves(columns), jax.tree.leaves(after), strict=True):
        equal(now, before)


@pytest.mark.parametrize("num_columns", [1, 3])
def test_padding_between_rewards_is_as_if_it_were_not_there(num_columns):
    prior, (indices, rewards) = general_prior(), data()
    present = np.random.default_rng(3).uniform(size=NUM) < 0.5
    padded = seen(prior, indices, np.where(present, rewards, 1e9), num_columns=num_columns, present=present)
    alone = seen(prior, indices[present], rewards[present], num_columns=num_columns)
    jax.tree.map(partial(close, rtol=1e-12, atol=1e-12), padded, alone)


def test_an_expected_reward_shrinks_the_variance_and_leaves_the_mean(two_priors):
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


def test_the_variance_of_an_expected_reward_is_the_dense_one():
    prior, (indices, rewards) = general_prior(), data()
    belief = belief_in(expect(seen(prior, indices, rewards), 7), Units(jnp.asarray(0.0), jnp.asarray(1.0)))
    _, variance, _, _, _ = dense(prior, np.append(indices, 7), np.append(rewards, 0))
    close(belief.variance, variance)


# --- mixtures ---

LOG_WEIGHTS = np.log([0.5, 0.2, 0.3])


def three_priors():
    """One with the noise of the data, one too sure, one too vague."""
    return [general_prior(seed, noise_std) for seed, noise_std in ((0, 0.3), (1, 0.05), (2, 3.0))]


def dense_mixture(priors, log_weights, indices, targets):
    """The weights of the components, and mean and variance of all of them together."""
    parts = [dense(prior, indices, targets, float(prior.noise_std)) for prior in priors]
    scores = log_weights + [part[-1] for part in parts]
    weights = np.exp(scores - logsumexp(scores))
    means, variances = (np.array([part[i] for part in parts]) for i in (0, 1))
    mean = weights @ means
    return weights, mean, weights @ (variances + means**2) - mean**2, parts


@pytest.mark.parametrize("num", [0, 2, 6])
def test_a_mixture_is_weighed_by_evidence_and_matched_in_its_moments(num):
    priors, (indices, rewards) = three_priors(), data(5, 6)
    columns = seen(mixture(priors, np.exp(LOG_WEIGHTS)), indices, rewards, present=np.arange(6) < num)
    for centre, scale in some_units(5):
        units = Units(jnp.asarray(centre), jnp.asarray(scale))
        targets = (rewards[:num] - centre) / scale
        weights, mean, variance, parts = dense_mixture(priors, LOG_WEIGHTS, indices[:num], targets)
        # A sum of squares of surprises is in the exponent: its round-off is that of its size.
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


def test_the_evidence_finds_the_prior_that_the_rewards_came_from():
    priors, rng = three_priors(), np.random.default_rng(8)
    for truth, prior in enumerate(priors):
        weights = rng.multivariate_normal(np.asarray(prior.mean), np.asarray(prior.covariance))
        indices = rng.integers(0, 25, 30)
        rewards = PHI[indices] @ weights + float(prior.noise_std) * rng.normal(size=30)
        columns = seen(mixture(priors, [1, 1, 1]), indices, rewards)
        likely = component_weights(columns, Units(jnp.asarray(0.0), jnp.asarray(1.0)))
        assert likely[truth] > 0.99
        close(likely.sum(), 1)


def test_a_component_that_is_impossible_never_matters():
    priors, (indices, rewards) = three_priors(), data(6)
    wild = Prior(np.full(9, 1e6), 1e12 * np.eye(9), 0.1)
    units = Units(jnp.asarray(5.0), jnp.asarray(20.0))
    without = seen(mixture(priors, [0.5, 0.2, 0.3]), indices, rewards)
    for other in (wild, priors[0]):
        columns = seen(mixture([*priors, other], [0.5, 0.2, 0.3, 0]), indices, rewards)
        weights = component_weights(columns, units)
        assert weights[3] == 0
        close(weights[:3], component_weights(without, units))
        jax.tree.map(close, belief_in(columns, units), belief_in(without, units))


def test_copies_of_one_prior_are_that_prior():
    prior, (indices, rewards) = general_prior(), data(7)
    units = Units(jnp.asarray(5.0), jnp.asarray(20.0))
    alone = belief_in(seen(prior, indices, rewards), units)
    copies = seen(mixture([prior, prior], [0.9, 0.1]), indices, rewards)
    close(component_weights(copies, units), [0.9, 0.1])
    jax.tree.map(close, belief_in(copies, units), alone)
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


# --- moments and units ---


@jax.jit
def gather(rewards, present):
    def add(moments, one):
        return moments.add(*one), None

    return jax.lax.scan(add, Moments.empty(rewards.dtype), (rewards, present))[0]


def moments_of(rewards, present=None, dtype=np.float64):
    rewards = np.asarray(rewards, dtype)
    return gather(rewards, np.ones(len(rewards), bool) if present is None else np.asarray(present))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=12, max_size=12))
def test_moments_are_those_of_numpy(pairs):
    rewards, present = (np.array(part) for part in zip(*pairs, strict=True))
    moments, kept = moments_of(rewards, present), rewards[present]
    assert moments.count == len(kept)
    if len(kept):
        size = np.abs(kept).max()
        close(moments.mean, kept.mean(), atol=1e-14 * size)
        close(moments.sum_squares, len(kept) * kept.var(), atol=1e-13 * size**2)
    else:
        assert moments.mean == moments.sum_squares == 0


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_moments_in_single_precision_do_not_cancel(offset):
    """With sums of squares instead, an offset of 1e4 would leave nothing of a variance of one."""
    spread = max(1.0, 1e-4 * abs(offset))
    rewards = (offset + spread * np.random.default_rng(0).normal(size=200)).astype(np.float32)
    moments, exact = moments_of(rewards, dtype=np.float32), rewards.astype(np.float64)
    assert moments.mean.dtype == moments.sum_squares.dtype == np.float32
    close(moments.mean, exact.mean(), atol=1e-2 * spread, rtol=0)
    close(moments.sum_squares / 200, exact.var(), rtol=1e-2)


@pytest.mark.parametrize("nothing", [0.0, 1e9, np.nan, np.inf])
def test_an_absent_reward_leaves_the_moments(nothing):
    moments = moments_of([1.0, 4.0, 2.5])
    jax.tree.map(equal, moments.add(jnp.asarray(nothing), False), moments)
    jax.tree.map(equal, moments.add(jnp.asarray(nothing), jnp.asarray(False)), moments)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e19, 1e30])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_moments_of_rewards_whose_squares_are_out_of_range(size, offset):
    rewards = (size * (offset + np.random.default_rng(0).normal(size=40))).astype(np.float32)
    moments, exact = moments_of(rewards, dtype=np.float32), rewards.astype(np.float64)
    close(moments.mean, exact.mean(), rtol=1e-5, atol=1e-6 * size)
    close(np.sqrt(float(moments.squares)) * float(moments.unit), np.sqrt(40) * exact.std(), rtol=1e-5)
    assert moments.differ
    # In any order of magnitude within one task too, the largest of them rules.
    mixed = (rewards * 10.0 ** np.random.default_rng(1).uniform(-20, 0, 40)).astype(np.float32)
    moments, exact = moments_of(mixed, dtype=np.float32), mixed.astype(np.float64)
    close(np.sqrt(float(moments.squares)) * float(moments.unit), np.sqrt(40) * exact.std(), rtol=1e-5)


def past(*scales):
    return PastScales(jnp.asarray(np.log(scales).sum()), jnp.asarray(float(len(scales))))


NO_PAST = Standardise().init(jnp.float64)


def squares(covariance, rows, rewards, noise_std):
    """(y - mean)^T K^-1 (y - mean), densely: squared deviations counted against what the prior expects."""
    if len(rewards) == 0:
        return 0.0
    rest = np.asarray(rewards) - np.mean(rewards)
    noisy = rows @ covariance @ rows.T + noise_std**2 * np.eye(len(rows))
    return rest @ np.linalg.solve(noisy, rest)


def units_after(scaling, state, prior, indices, rewards):
    """The library's units, and the dense squares that they should come from."""
    columns = seen(prior, indices, rewards)
    noise_std = NOISE if prior.noise_std is None else float(prior.noise_std)
    dense_squares = squares(np.asarray(prior.covariance), PHI[indices], rewards, noise_std)
    return scaling.units(state, moments_of(rewards), columns), dense_squares


def test_units_are_the_mean_and_the_likeliest_scale_with_the_guess_as_further_rewards():
    scaling = Standardise(guess=4.0, weight=2.5)
    for num in (2, 3, NUM):
        indices, rewards = data(num=num)
        units, dense_squares = units_after(scaling, NO_PAST, general_prior(), indices, rewards)
        close(units.centre, rewards.mean())
        close(units.scale, np.sqrt((2.5 * 4**2 + dense_squares) / (2.5 + num - 1)))
        close(units.apply(rewards), (rewards - rewards.mean()) / units.scale)


def test_the_scale_is_the_one_at_which_the_rewards_are_likeliest():
    """Without a guess, and but for the one degree of freedom that the mean takes."""
    indices, rewards = data(2)
    prior = Prior(np.zeros(9), general_prior().covariance)
    units, _ = units_after(Standardise(weight=1e-12), NO_PAST, prior, indices, rewards)
    likeliest = float(units.scale) * np.sqrt((NUM - 1) / NUM)

    def log_density(scale):
        """Of the rewards themselves, so that a smaller unit is paid for."""
        evidence = dense(prior, indices, (rewards - rewards.mean()) / scale)[-1]
        return evidence - NUM * np.log(scale)

    best = log_density(likeliest)
    assert all(log_density(likeliest * factor) < best for factor in (0.9, 0.99, 1.01, 1.1))


def test_for_points_far_apart_the_scale_is_the_standard_deviation():
    """Where a prior expects every reward on its own, with variance one."""
    indices, rewards = data(num=20)
    apart = Prior(np.zeros(9), 1e-12 * np.eye(9), 1.0)
    units, _ = units_after(Standardise(weight=1e-12), NO_PAST, apart, indices, rewards)
    close(units.scale, rewards.std(ddof=1), rtol=1e-6)


def test_steps_near_the_best_do_not_shrink_the_unit():
    """A policy settles and the standard deviation falls, but not the unit that the rewards were made with."""
    rng, unit = np.random.default_rng(0), 50.0
    prior = Prior(np.zeros(9), np.eye(9) / 5)
    values = PHI @ rng.normal(size=9) / np.sqrt(5)
    spread = np.arange(0, 25, 3)
    indices = np.concatenate([spread, np.full(400, np.argmax(values))])
    rewards = unit * (values[indices] + NOISE * rng.normal(size=len(indices)))
    units, _ = units_after(Standardise(weight=1e-12), NO_PAST, prior, indices, rewards)
    assert rewards.std() < 0.6 * rewards[: len(spread)].std()
    close(units.scale, unit, rtol=0.1)


@pytest.mark.parametrize("rewards", [[], [7.0], [7.0] * 5], ids=["none", "one", "alike"])
def test_units_where_there_is_no_deviation(rewards):
    num, prior = len(rewards), general_prior()
    indices = np.arange(num)
    units, _ = units_after(Standardise(guess=3.0), NO_PAST, prior, indices, np.array(rewards))
    assert units.centre == (7 if num else 0)
    # None and one reward leave the guess; equal rewards shrink it, as deviations of zero would.
    close(units.scale, 3 * np.sqrt(2 / (2 + max(num - 1, 0))))
    known, _ = units_after(Standardise(guess=3.0), past(2.0, 8.0), prior, indices, np.array(rewards))
    close(known.scale, 4 * np.sqrt(2 / (2 + max(num - 1, 0))))


settle = quick_jit(lambda *args: Standardise(guess=100.0).settle(general_prior(), NOISE, *args))


def settled(indices, rewards, present=None):
    present = np.ones(len(indices), bool) if present is None else present
    return settle(jnp.asarray(PHI)[indices], jnp.asarray(rewards), present)


def test_a_finished_task_settles_by_its_own_rewards_alone():
    indices, rewards = data(4)
    units = settled(indices, rewards)
    dense_squares = squares(np.asarray(general_prior().covariance), PHI[indices], rewards, NOISE)
    close(units.centre, rewards.mean())
    close(units.scale, np.sqrt(dense_squares / (NUM - 1)))
    present = np.random.default_rng(3).uniform(size=NUM) < 0.5
    padded = settled(indices, np.where(present, rewards, np.nan), present)
    jax.tree.map(close, padded, settled(indices[present], rewards[present]))
    raw = RawRewards().settle(general_prior(), NOISE, PHI[indices], jnp.asarray(rewards), None)
    assert (float(raw.centre), float(raw.scale)) == (0, 1)
    equal(raw.apply(rewards), rewards)


def test_the_guess_becomes_the_geometric_mean_of_past_tasks():
    scaling, state = Standardise(guess=100.0), NO_PAST
    scales = []
    for done, scale in enumerate((0.1, 10.0, 2.0), start=1):
        units = settled(*data(done, scale=scale))
        scales.append(float(units.scale))
        state = scaling.update(state, units)
        expected = np.exp(np.mean(np.log(scales)))
        close(units_after(scaling, state, general_prior(), np.array([3]), np.array([1.0]))[0].scale, expected)
    assert RawRewards().update((), units) == ()


@pytest.mark.parametrize("rewards", [[7.0], [0.0] * 4, [0.1] * 7, [-1e5] * 9])
def test_a_task_without_deviation_teaches_nothing(rewards):
    state = past(2.0, 8.0)
    units = settled(np.arange(len(rewards)), rewards)
    assert units.scale == 0
    equal(units.apply(np.asarray(rewards)), np.zeros(len(rewards)))
    jax.tree.map(equal, Standardise().update(state, units), state)


@quick_jit
def watched_units(scaling, state, prior, phi, rewards, present):
    """Units at the start and after some rewards, and those of the task after a task like this."""
    columns = running.start(prior, phi, NOISE, 3)
    begin = scaling.units(state, Moments.empty(phi.dtype), columns)
    places = jnp.arange(6)
    columns = watch.__wrapped__(columns, places, rewards, present)
    moments = gather(rewards, present)
    now = scaling.units(state, moments, columns)
    after = scaling.update(state, scaling.settle(prior, NOISE, phi[:6], rewards, present))
    return begin, now, scaling.units(after, moments, columns)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=6, max_size=6), st.integers(0, 6))
def test_the_scale_is_never_zero_or_unknown(dtype, rewards, num):
    scaling, prior = Standardise(guess=1e-6), cast(general_prior(), dtype)
    rewards, phi = jnp.asarray(rewards, dtype), jnp.asarray(PHI, dtype)
    for units in watched_units(scaling, cast(NO_PAST, dtype), prior, phi, rewards, np.arange(6) < num):
        assert units.scale > 0 and np.isfinite(units.scale) and np.isfinite(units.centre)
        assert units.scale.dtype == units.centre.dtype == dtype


@pytest.mark.parametrize("offset", [0.0, 30.0, -100.0])
def test_single_precision_bears_an_offset_of_a_hundred_scales(offset):
    prior, (indices, rewards) = general_prior(), data(3, scale=1.0, centre=0.0)
    exact, _ = units_after(Standardise(), NO_PAST, prior, indices, rewards)
    rewards = (rewards + offset).astype(np.float32)
    columns, moments = seen(cast(prior, np.float32), indices, rewards), moments_of(rewards, dtype=np.float32)
    units = Standardise().units(cast(NO_PAST, np.float32), moments, columns)
    close(units.scale, exact.scale, rtol=0.02)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e19, 1e30])
def test_units_of_rewards_whose_squares_are_out_of_range(size):
    """In single precision, against double: while a task is played, and once it is finished."""
    prior, (indices, rewards) = general_prior(), data(3, scale=1.0, centre=2.0)
    exact, _ = units_after(Standardise(), NO_PAST, prior, indices, rewards)
    narrow = cast(prior, np.float32)
    own = (size * rewards).astype(np.float32)
    columns, moments = seen(narrow, indices, own), moments_of(own, dtype=np.float32)
    scaling = cast(Standardise(guess=size), np.float32)
    units = scaling.units(cast(NO_PAST, np.float32), moments, columns)
    close(units.scale / size, exact.scale, rtol=1e-3)
    close(units.centre / size, exact.centre, rtol=1e-3)
    belief, wide = belief_in(columns, units), belief_in(seen(prior, indices, rewards), exact)
    close(belief.mean, wide.mean, atol=1e-2)
    close(belief.posterior.best_reward, wide.posterior.best_reward, rtol=1e-3)
    close(belief.posterior.log_marginal_likelihood, wide.posterior.log_marginal_likelihood, rtol=1e-3)
    rows, present = jnp.asarray(PHI[indices], np.float32), np.ones(NUM, bool)
    finished = quick_jit(lambda *args: scaling.settle(*args))(narrow, np.float32(NOISE), rows, own, present)
    close(finished.scale / size, settled(indices, rewards).scale, rtol=1e-3)
    state = scaling.update(cast(NO_PAST, np.float32), finished)
    # Between tasks as different as the precision allows, neither scale breaks the other.
    for other in (1e-30, 1.0, 1e30):
        other_rewards = (other * rewards).astype(np.float32)
        columns, moments = seen(narrow, indices, other_rewards), moments_of(other_rewards, dtype=np.float32)
        units = scaling.units(state, moments, columns)
        assert units.scale > 0 and np.isfinite(units.scale)
        assert np.isfinite(belief_in(columns, units).mean).all()


# --- whole runs ---

POINTS = np.sort(np.random.default_rng(0).uniform(size=(25, 1)), axis=0)  # no grid: no exact ties
FEATURES = np.asarray(FOURIER(POINTS))
NUM_TASKS, HORIZON = 3, 10
VALUES = FEATURES @ np.random.default_rng(1).normal(size=(9, NUM_TASKS)) * [[1.0, 5.0, 0.3]]
KEY = jax.random.key(3)
SIZES = dict(num_tasks=NUM_TASKS, horizon=HORIZON)
POLICY = GPUCB(2.0, NOISE)


class Mixed(AbstractMetaLearner):
    """Learns nothing, and leaves it to each task which of several priors is right."""

    priors: tuple[Prior, ...]
    exploration: NoExploration = NoExploration()
    data: ClassVar[str] = "all"

    def init(self, setting):
        return ()

    def prior(self, state, setting):
        return mixture([cast(prior, setting.dtype) for prior in self.priors], np.ones(len(self.priors)))

    def update(self, state, data, setting):
        return state, info_of(jnp.ones(setting.num_groups, bool), None, setting)

    def learn(self, past, num_done, setting):
        return (), info_of(jnp.ones(setting.num_groups, bool), None, setting)


class Recorder(AbstractMetaLearner):
    """Its state is the last task as it was told."""

    exploration: NoExploration = NoExploration()
    data: ClassVar[str] = "all"

    def init(self, setting):
        return jnp.zeros((setting.horizon, setting.num_features)), jnp.zeros(setting.horizon)

    def prior(self, state, setting):
        return general_prior()

    def update(self, state, data, setting):
        info = info_of(jnp.ones(setting.num_groups, bool), None, setting)
        return (data.features, data.rewards), info

    def learn(self, past, num_done, setting):
        raise NotImplementedError("rows of a history are not the steps of a task")


LEARNERS = {
    "diagonal": FixedPrior(Prior(np.arange(9.0) / 9, np.linspace(0.1, 1, 9))),
    "matrix": FixedPrior(general_prior()),
    "noise of its own": FixedPrior(Prior(np.zeros(9), np.ones(9), 0.05)),
    "mixture": Mixed((general_prior(0), general_prior(1))),
    "larger mixture": Mixed(tuple(Prior(np.zeros(9), size * np.ones(9), 0.2) for size in (0.1, 1.0, 10.0))),
}


def table(multiple=1.0, shift=0.0):
    """Noise comes in the same units as the values."""
    env = TableEnv(multiple * VALUES.T + shift, POINTS)
    return eqx.tree_at(lambda env: env.noise_std, env, 0.2 * jnp.asarray(multiple).max())


@quick_jit
def draw(env, task):
    return draw_task(env, task, HORIZON, key=KEY)


@quick_jit
def play_compiled(multiple, shift, scaling):
    learners = {**LEARNERS, "recorder": Recorder()}
    return run_agents(table(multiple, shift), FOURIER, POLICY, learners, scaling=scaling, **SIZES, key=KEY)


def play(multiple, shift, scaling):
    """All kinds of priors side by side; `shift` is one number, or one a task."""
    return play_compiled(multiple, jnp.broadcast_to(jnp.asarray(shift, float), (NUM_TASKS, 1)), scaling)


@pytest.fixture(scope="module")
def runs():
    return {kind: play(1.0, 0.0, kind()) for kind in (RawRewards, Standardise)}


def dense_covariance(prior):
    return np.asarray(prior.factor() @ prior.factor().T)


FULL = np.diag(np.asarray(full_prior(FOURIER.groups).covariance))


class ByHand:
    """The units of a run, task after task, in plain NumPy. `prior` is the one that gives the scale."""

    def __init__(self, kind, prior):
        self.is_raw, self.scales = kind is RawRewards, []
        self.covariance = dense_covariance(prior)
        self.noise_std = NOISE if prior.noise_std is None else float(prior.noise_std)

    def units(self, actions, rewards):
        """Centre and scale after some steps of a task."""
        if self.is_raw:
            return 0.0, 1.0
        guess = np.exp(np.mean(np.log(self.scales))) if self.scales else 1.0
        spread = squares(self.covariance, FEATURES[actions], rewards, self.noise_std)
        scale = np.sqrt((2 * guess**2 + spread) / (2 + max(len(rewards) - 1, 0)))
        return (np.mean(rewards) if len(rewards) else 0.0), scale

    def finish(self, actions, rewards):
        """The units in which a finished task is remembered: by the full kernel and the policy's noise."""
        if self.is_raw:
            return 0.0, 1.0
        spread = squares(FULL, FEATURES[actions], rewards, NOISE)
        self.scales.append(np.sqrt(spread / (len(rewards) - 1)))
        return np.mean(rewards), self.scales[-1]


@pytest.mark.parametrize("kind", [RawRewards, Standardise])
@pytest.mark.parametrize("name", ["matrix", "diagonal", "noise of its own"])
def test_step_for_step_as_plain_numpy(runs, kind, name):
    """GP-UCB on the targets of the moment, with a dense posterior at every step."""
    prior, result = LEARNERS[name].fixed_prior, runs[kind][name]
    by_hand = ByHand(kind, prior)
    for task in range(NUM_TASKS):
        draws, rewards = draw(table(), jnp.asarray(task)), []
        actions = np.asarray(result.actions[task])
        for step in range(HORIZON):
            centre, scale = by_hand.units(actions[:step], rewards)
            targets = (np.array(rewards) - centre) / scale
            mean, posterior = reference.weight_posterior(
                np.asarray(prior.mean),
                by_hand.covariance,
                FEATURES[actions[:step]],
                targets,
                by_hand.noise_std,
            )
            variance = np.einsum("pf,fg,pg->p", FEATURES, posterior, FEATURES)
            scores = FEATURES @ mean + 2 * np.sqrt(np.maximum(variance, 0))
            assert scores[actions[step]] >= scores.max() - 1e-8
            rewards.append(VALUES[actions[step], task] + float(draws.noise[step]))
        close(result.rewards[task], rewards)
        close(result.regret[task], VALUES[:, task].max() - VALUES[actions, task])
        by_hand.finish(actions, rewards)


@pytest.mark.parametrize("name", ["mixture", "larger mixture"])
def test_a_mixture_plays_what_the_dense_mixture_would(runs, name):
    """Its last component, the widest, gives the units."""
    result, priors = runs[Standardise][name], LEARNERS[name].priors
    by_hand = ByHand(Standardise, priors[-1])
    for task in range(NUM_TASKS):
        actions, rewards = np.asarray(result.actions[task]), np.asarray(result.rewards[task])
        for step in range(HORIZON):
            centre, scale = by_hand.units(actions[:step], rewards[:step])
            targets, rows = (rewards[:step] - centre) / scale, FEATURES[actions[:step]]
            means, variances, scores = [], [], []
            for prior in priors:
                noise_std = NOISE if prior.noise_std is None else float(prior.noise_std)
                prior_mean, covariance = np.asarray(prior.mean), dense_covariance(prior)
                mean, posterior = reference.weight_posterior(prior_mean, covariance, rows, targets, noise_std)
                means.append(FEATURES @ mean)
                variances.append(np.einsum("pf,fg,pg->p", FEATURES, posterior, FEATURES))
                gram = rows @ covariance @ rows.T
                scores.append(reference.log_marginal_likelihood(gram, targets, noise_std, rows @ prior_mean))
            weights = np.exp(np.array(scores) - logsumexp(scores))
            mean = weights @ means
            variance = weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
            value = mean + 2 * np.sqrt(variance)
            assert value[actions[step]] >= value.max() - 1e-8
        by_hand.finish(actions, rewards)


@pytest.mark.parametrize("kind", [RawRewards, Standardise])
def test_a_meta_learner_sees_the_task_in_the_units_it_settled_in(runs, kind):
    result, by_hand = runs[kind]["recorder"], ByHand(kind, general_prior())
    for actions, rewards in zip(np.asarray(result.actions), np.asarray(result.rewards), strict=True):
        centre, scale = by_hand.finish(actions, rewards)
    features, told = result.carry[0]
    close(told, (rewards - centre) / scale)
    close(features, FEATURES[actions])
    if kind is Standardise:
        close(result.carry[1].total, np.log(by_hand.scales).sum())
        assert result.carry[1].num_tasks == NUM_TASKS


def test_units_matter(runs):
    """Else all that follows would prove nothing."""
    for name in LEARNERS:
        raw, own = (np.asarray(runs[kind][name].actions) for kind in (RawRewards, Standardise))
        assert (raw != own).any(), name


@pytest.mark.parametrize("name", list(LEARNERS))
def test_each_kind_of_prior_plays_beside_others_as_it_plays_alone(runs, name):
    run = quick_jit(partial(run_lifelong, **SIZES))
    alone = run(table(), FOURIER, POLICY, LEARNERS[name], scaling=Standardise(), key=KEY)
    together = runs[Standardise][name]
    equal(alone.actions, together.actions)
    close(alone.regret, together.regret)
    jax.tree.map(close, alone.carry, together.carry)


def test_raw_rewards_are_the_default_for_a_mixture_too(runs):
    run = quick_jit(partial(run_lifelong, **SIZES))
    alone = run(table(), FOURIER, POLICY, LEARNERS["mixture"], key=KEY)
    equal(alone.actions, runs[RawRewards]["mixture"].actions)
    assert alone.carry == ((), ())


@pytest.mark.parametrize("multiple, shift", [(1000.0, 0.0), (1.0, -500.0), (1e-3, 2.0), (1000.0, 12345.0)])
def test_rewards_in_other_units_change_no_action(runs, multiple, shift):
    """Dollars or cents, from any zero: with the guess in the same units, every agent plays alike."""
    other = play(multiple, shift, Standardise(guess=multiple))
    for name, result in runs[Standardise].items():
        equal(other[name].actions, result.actions)
        close(other[name].regret, multiple * result.regret, rtol=1e-6, atol=1e-9 * multiple)
        if name == "recorder":
            close(other[name].carry[0][1], result.carry[0][1], rtol=1e-6, atol=1e-7)


SCALE_LEARNERS = {
    "matrix": LEARNERS["matrix"],
    "mixture": LEARNERS["mixture"],
    "flibo": FederatedMetaKGL(0.05, 0.05, 0.5, data="all"),
}


@pytest.fixture(scope="module")
def scaled_run():
    """A run with every reward multiplied and shifted, in single or double precision."""

    @quick_jit
    def run(values, points, multiple, shift):
        env = eqx.tree_at(lambda env: env.noise_std, TableEnv(values, points), 0.2 * multiple)
        values = jnp.where(env.available, multiple * values + multiple * shift, 0)
        env = eqx.tree_at(lambda env: env.values, env, values)
        scaling = Standardise(guess=multiple)
        return run_agents(env, FOURIER, POLICY, SCALE_LEARNERS, scaling=scaling, **SIZES, key=KEY)

    def of(dtype, exponent, shift):
        multiple = dtype(2.0**exponent)
        return run(VALUES.T.astype(dtype), POINTS.astype(dtype), multiple, dtype(shift))

    return of


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, -3.0])
def test_rewards_times_any_power_of_two_change_no_action(scaled_run, dtype, shift):
    """Nothing is rounded differently, so that actions and selections are equal, and not only alike."""
    plain = scaled_run(dtype, 0, shift)
    span = range(-90, 91, 15) if dtype == np.float32 else (-900, -400, -90, 400, 900)
    for exponent in span:
        for name, result in scaled_run(dtype, exponent, shift).items():
            equal(result.actions, plain[name].actions)
            equal(result.support, plain[name].support)
            assert (np.asarray(result.status) == 0).all()
    assert len(np.unique(plain["flibo"].actions)) > 5 and np.asarray(plain["flibo"].support).any()


@pytest.mark.parametrize("size", [1e-20, 1e19])
def test_rewards_out_of_range_when_squared_are_learned_from_without_a_guess(size):
    """With the default guess of one, which is wrong by twenty orders: later tasks know better."""
    env = TableEnv((size * VALUES.T).astype(np.float32), POINTS.astype(np.float32))
    learners = {"flibo": SCALE_LEARNERS["flibo"]}
    run = quick_jit(partial(run_agents, scaling=Standardise(), **SIZES))
    result = run(env, FOURIER, POLICY, learners, key=KEY)["flibo"]
    assert np.isfinite(np.asarray(result.regret)).all() and np.asarray(result.support).any(1).all()
    total, count = (float(leaf) for leaf in result.carry[1].__dict__.values())
    assert count == NUM_TASKS and abs(np.exp(total / count) / size) < 30
    plain = run(
        TableEnv(VALUES.T.astype(np.float32), POINTS.astype(np.float32)), FOURIER, POLICY, learners, key=KEY
    )
    last = np.asarray(result.regret[-1]).sum() / size, np.asarray(plain["flibo"].regret[-1]).sum()
    assert last[0] < 3 * last[1] + 0.5


def test_each_task_may_have_a_zero_of_its_own(runs):
    other = play(1.0, jnp.asarray([[10.0], [-300.0], [0.5]]), Standardise())
    for name, result in runs[Standardise].items():
        equal(other[name].actions, result.actions)


def test_once_past_tasks_are_known_the_guess_does_not_count():
    """One task, in units of its own and of a past: no guess, however wrong, has a say."""

    @jax.jit
    def actions(multiple, guess):
        draws = draw_task(table(multiple, 7 * multiple), jnp.asarray(0), HORIZON, key=KEY)
        state = PastScales(jnp.log(0.7 * multiple) + jnp.log(1.9 * multiple), jnp.asarray(2.0))
        scaling = Standardise(guess=guess)
        none = jnp.zeros((), jnp.int32)
        return run_task(POLICY, general_prior(), FEATURES, draws, none, scaling, state).actions

    expected = actions(1.0, 1.0)
    for multiple, guess in ((1000.0, 1.0), (1e-3, 50.0), (1.0, 1e-9)):
        equal(actions(multiple, guess), expected)


def test_constant_rewards_are_played_without_a_stumble():
    result = play(0.0, 3.0, Standardise())
    for run in result.values():
        assert np.isfinite(np.asarray(run.rewards)).all() and not np.asarray(run.regret).any()
        close(run.carry[1].total, 0)


# --- stop and go on, sweeps, precision ---


def test_continuing_equals_one_run_bit_for_bit():
    """The past scales are part of what is carried on."""
    run = quick_jit(partial(run_lifelong, scaling=Standardise(), **SIZES), static_argnames="tasks")
    whole = run(table(), FOURIER, POLICY, Recorder(), key=KEY)
    first = run(table(), FOURIER, POLICY, Recorder(), tasks=range(2), key=KEY)
    second = run(table(), FOURIER, POLICY, Recorder(), tasks=range(2, 3), carry=first.carry, key=KEY)
    jax.tree.map(equal, second.carry, whole.carry)
    for field in ("actions", "rewards", "regret", "support", "num_explore", "status", "gap"):
        parts = [np.asarray(getattr(part, field)) for part in (first, second)]
        equal(np.concatenate(parts), getattr(whole, field))


def test_a_sweep_of_guesses_is_one_trace_and_seeds_are_a_batch(runs, count_traces):
    def one(guess, key):
        return run_lifelong(
            table(), FOURIER, POLICY, LEARNERS["mixture"], scaling=Standardise(guess), **SIZES, key=key
        ).actions

    counted, traces = count_traces(one)
    sweep = quick_jit(jax.vmap(jax.vmap(counted, in_axes=(None, 0)), in_axes=(0, None)))
    guesses, keys = jnp.asarray([30.0, 1.0]), jnp.stack([jax.random.key(9), KEY])
    batch = sweep(guesses, keys)
    sweep(2 * guesses, keys)
    assert traces.count == 1
    equal(batch[1, 1], runs[Standardise]["mixture"].actions)
    assert (batch[0] != batch[1]).any()


def test_single_precision_stays_single():
    env = TableEnv(VALUES.T.astype(np.float32) + 1000, POINTS.astype(np.float32), noise_std=0.1)
    learners = {"flibo": FederatedMetaKGL(0.05, 0.05, 0.5, data="all"), "mixture": LEARNERS["mixture"]}
    run = quick_jit(partial(run_agents, scaling=Standardise(), **SIZES))
    for result in run(env, FOURIER, POLICY, learners, key=KEY).values():
        for leaf in jax.tree.leaves(result):
            assert leaf.dtype != jnp.float64 and np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize("scaling", [RawRewards(), Standardise()])
def test_rewards_may_be_wider_than_the_candidates(scaling):
    """What is believed stays in the precision of the candidates; rewards are reported as they came."""
    env = FunctionEnv(
        POINTS.astype(np.float32),
        lambda point, shift: jnp.sin(3 * point[0].astype(jnp.float64)) + shift,
        lambda index, key: jnp.asarray(index, jnp.float64),
        noise_std=0.1,
    )
    result = quick_jit(partial(run_agents, scaling=scaling, **SIZES))(
        env, FOURIER, POLICY, {"mixture": LEARNERS["mixture"]}, key=KEY
    )["mixture"]
    assert result.rewards.dtype == jnp.float64 and np.isfinite(result.rewards).all()
