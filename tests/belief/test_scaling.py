"""Moments of rewards and the units derived from them, for rewards of any size, in float32 and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import (
    Prior,
    RawRewards,
    Standardise,
    mixture,
)
from jlibo.belief import belief as running
from jlibo.belief.moments import Moments
from jlibo.belief.scaling import PastScales
from tests.belief.observed import (
    NOISE,
    NUM,
    PHI,
    belief_in,
    cast,
    close,
    data,
    equal,
    gather,
    general_prior,
    likeliest_units,
    moments_of,
    quick_jit,
    seen,
    unit_likelihood,
    watch,
)

# --- moments and units ---


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=12, max_size=12))
def test_moments_equal_numpy(pairs):
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
def test_float32_moments_do_not_cancel(offset):
    """Plain sums of squares would lose a variance of one at an offset of 1e4."""
    spread = max(1.0, 1e-4 * abs(offset))
    rewards = (offset + spread * np.random.default_rng(0).normal(size=200)).astype(np.float32)
    moments, exact = moments_of(rewards, dtype=np.float32), rewards.astype(np.float64)
    assert moments.mean.dtype == moments.sum_squares.dtype == np.float32
    close(moments.mean, exact.mean(), atol=1e-2 * spread, rtol=0)
    close(moments.sum_squares / 200, exact.var(), rtol=1e-2)


@pytest.mark.parametrize("nothing", [0.0, 1e9, np.nan, np.inf])
def test_absent_reward_leaves_moments_unchanged(nothing):
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
    # Rewards of one task may differ by orders of magnitude: the largest dominate.
    mixed = (rewards * 10.0 ** np.random.default_rng(1).uniform(-20, 0, 40)).astype(np.float32)
    moments, exact = moments_of(mixed, dtype=np.float32), mixed.astype(np.float64)
    close(np.sqrt(float(moments.squares)) * float(moments.unit), np.sqrt(40) * exact.std(), rtol=1e-5)


def past(*scales):
    return PastScales(jnp.asarray(np.log(scales).sum()), jnp.asarray(float(len(scales))))


NO_PAST = Standardise().init(jnp.float64)


units_of = quick_jit(lambda scaling, *args: scaling.units(*args))


def units_after(scaling, state, prior, indices, rewards):
    return units_of(scaling, state, moments_of(rewards), seen(prior, indices, rewards))


def predicted(prior, indices):
    """Prior mean and covariance of noisy rewards, dense."""
    rows, noise_std = PHI[indices], NOISE if prior.noise_std is None else float(prior.noise_std)
    matrix = rows @ np.asarray(prior.covariance) @ rows.T + noise_std**2 * np.eye(len(rows))
    return rows @ np.asarray(prior.mean), matrix


@pytest.mark.parametrize("num", [2, 3, NUM])
def test_units_have_the_highest_likelihood_with_the_guess_as_pseudo_observations(num):
    prior, (indices, rewards) = general_prior(), data(num=num)
    units = units_after(Standardise(guess=4.0, weight=2.5), NO_PAST, prior, indices, rewards)
    centre, scale = likeliest_units(rewards, *predicted(prior, indices), 2.5, 4.0)
    close(units.scale, scale, rtol=1e-6)
    close(units.centre, centre, rtol=1e-6)
    close(units.apply(rewards), (rewards - units.centre) / units.scale)


def test_other_units_have_a_lower_likelihood():
    prior, (indices, rewards) = general_prior(), data(2)
    units = units_after(Standardise(guess=4.0), NO_PAST, prior, indices, rewards)
    centre, scale = float(units.centre), float(units.scale)

    def height(*units):
        return unit_likelihood(rewards, *predicted(prior, indices), units, 2.0, 4.0)

    best = height(centre, scale)
    assert all(height(centre, scale * factor) < best for factor in (0.9, 0.99, 1.01, 1.1))
    assert all(height(centre + scale * shift, scale) < best for shift in (-0.1, -0.01, 0.01, 0.1))


def test_mixture_has_units_of_each_component():
    priors, (indices, rewards) = [general_prior(seed, NOISE) for seed in range(3)], data(6)
    units = units_after(Standardise(), NO_PAST, mixture(priors, [0.2, 0.3, 0.5]), indices, rewards)
    for place, prior in enumerate(priors):
        alone = units_after(Standardise(), NO_PAST, prior, indices, rewards)
        close(units.centre[place], alone.centre)
        close(units.scale[place], alone.scale)


def test_scale_is_the_standard_deviation_for_independent_rewards():
    """Under this prior, rewards are independent with variance one."""
    indices, rewards = data(num=20)
    apart = Prior(np.zeros(9), 1e-12 * np.eye(9), 1.0)
    units = units_after(Standardise(weight=1e-12), NO_PAST, apart, indices, rewards)
    close(units.scale, rewards.std(ddof=1), rtol=1e-6)


def test_repeating_the_best_candidate_does_not_shrink_the_scale():
    """The standard deviation falls when one candidate is repeated, but the estimated unit does not."""
    rng, unit = np.random.default_rng(0), 50.0
    prior = Prior(np.zeros(9), np.eye(9) / 5)
    values = PHI @ rng.normal(size=9) / np.sqrt(5)
    spread = np.arange(0, 25, 3)
    indices = np.concatenate([spread, np.full(400, np.argmax(values))])
    rewards = unit * (values[indices] + NOISE * rng.normal(size=len(indices)))
    units = units_after(Standardise(weight=1e-12), NO_PAST, prior, indices, rewards)
    assert rewards.std() < 0.6 * rewards[: len(spread)].std()
    close(units.scale, unit, rtol=0.1)


@pytest.mark.parametrize("rewards", [[], [7.0], [7.0] * 5], ids=["none", "one", "alike"])
def test_units_without_deviation(rewards):
    num, prior = len(rewards), Prior(np.zeros(9), general_prior().covariance)
    indices = np.arange(num)
    units = units_after(Standardise(guess=3.0), NO_PAST, prior, indices, np.array(rewards))
    close(units.centre, 7 if num else 0)
    # Without rewards or with one, the scale is the guess; equal rewards shrink it, as zero deviations do.
    close(units.scale, 3 * np.sqrt(2 / (2 + max(num - 1, 0))))
    known = units_after(Standardise(guess=3.0), past(2.0, 8.0), prior, indices, np.array(rewards))
    close(known.scale, 4 * np.sqrt(2 / (2 + max(num - 1, 0))))


settle = quick_jit(lambda *args: Standardise(guess=100.0).settle(general_prior(), NOISE, *args))


def settled(indices, rewards, present=None):
    present = np.ones(len(indices), bool) if present is None else present
    return settle(jnp.asarray(PHI)[indices], jnp.asarray(rewards), present)


def test_settle_uses_only_the_rewards_of_the_task():
    indices, rewards = data(4)
    units = settled(indices, rewards)
    centre, scale = likeliest_units(rewards, *predicted(general_prior(), indices), 0.0, 0.0)
    close(units.centre, centre, rtol=1e-6)
    close(units.scale, scale, rtol=1e-6)
    present = np.random.default_rng(3).uniform(size=NUM) < 0.5
    padded = settled(indices, np.where(present, rewards, np.nan), present)
    jax.tree.map(close, padded, settled(indices[present], rewards[present]))
    raw = RawRewards().settle(general_prior(), NOISE, PHI[indices], jnp.asarray(rewards), None)
    assert (float(raw.centre), float(raw.scale)) == (0, 1)
    equal(raw.apply(rewards), rewards)


def test_guess_becomes_the_geometric_mean_of_past_scales():
    scaling, state = Standardise(guess=100.0), NO_PAST
    scales = []
    for done, scale in enumerate((0.1, 10.0, 2.0), start=1):
        units = settled(*data(done, scale=scale))
        scales.append(float(units.scale))
        state = scaling.update(state, units)
        expected = np.exp(np.mean(np.log(scales)))
        close(units_after(scaling, state, general_prior(), np.array([3]), np.array([1.0])).scale, expected)
    assert RawRewards().update((), units) == ()


@pytest.mark.parametrize("rewards", [[7.0], [0.0] * 4, [0.1] * 7, [-1e5] * 9])
def test_task_without_deviation_leaves_the_state_unchanged(rewards):
    state = past(2.0, 8.0)
    units = settled(np.arange(len(rewards)), rewards)
    assert units.scale == 0
    equal(units.apply(np.asarray(rewards)), np.zeros(len(rewards)))
    jax.tree.map(equal, Standardise().update(state, units), state)


@quick_jit
def watched_units(scaling, state, prior, phi, rewards, present):
    """Units at the start, after some rewards, and with this task added to the past ones."""
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
def test_scale_is_positive_and_finite(dtype, rewards, num):
    scaling, prior = Standardise(guess=1e-6), cast(general_prior(), dtype)
    rewards, phi = jnp.asarray(rewards, dtype), jnp.asarray(PHI, dtype)
    for units in watched_units(scaling, cast(NO_PAST, dtype), prior, phi, rewards, np.arange(6) < num):
        assert units.scale > 0 and np.isfinite(units.scale) and np.isfinite(units.centre)
        assert units.scale.dtype == units.centre.dtype == dtype


@pytest.mark.parametrize("offset", [0.0, 30.0, -100.0])
def test_float32_scale_is_accurate_with_an_offset_of_a_hundred_scales(offset):
    prior, (indices, rewards) = general_prior(), data(3, scale=1.0, centre=0.0)
    exact = units_after(Standardise(), NO_PAST, prior, indices, rewards)
    rewards = (rewards + offset).astype(np.float32)
    columns, moments = seen(cast(prior, np.float32), indices, rewards), moments_of(rewards, dtype=np.float32)
    units = units_of(Standardise(), cast(NO_PAST, np.float32), moments, columns)
    close(units.scale, exact.scale, rtol=0.02)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e19, 1e30])
def test_units_of_rewards_whose_squares_are_out_of_range(size):
    """float32 against float64, during a task and after it is finished."""
    prior, (indices, rewards) = general_prior(), data(3, scale=1.0, centre=2.0)
    exact = units_after(Standardise(), NO_PAST, prior, indices, rewards)
    narrow = cast(prior, np.float32)
    own = (size * rewards).astype(np.float32)
    columns, moments = seen(narrow, indices, own), moments_of(own, dtype=np.float32)
    scaling = cast(Standardise(guess=size), np.float32)
    units = units_of(scaling, cast(NO_PAST, np.float32), moments, columns)
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
    # Units stay finite with past tasks of a very different scale.
    for other in (1e-30, 1.0, 1e30):
        other_rewards = (other * rewards).astype(np.float32)
        columns, moments = seen(narrow, indices, other_rewards), moments_of(other_rewards, dtype=np.float32)
        units = scaling.units(state, moments, columns)
        assert units.scale > 0 and np.isfinite(units.scale)
        assert np.isfinite(belief_in(columns, units).mean).all()
