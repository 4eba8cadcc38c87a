"""Runs with standardised rewards: actions equal to a dense NumPy reference and invariant to units."""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jlibo import (
    GPUCB,
    AbstractMetaLearner,
    FederatedMetaKGL,
    FixedPrior,
    FunctionEnv,
    NoExploration,
    Prior,
    RawRewards,
    Standardise,
    TableEnv,
    full_prior,
    mixture,
    run_agents,
    run_lifelong,
    run_task,
)
from jlibo.belief.scaling import PastScales
from jlibo.lifelong.one_task import draw_task
from jlibo.meta.base import info_of
from tests import reference
from tests.belief.observed import (
    FOURIER,
    NOISE,
    cast,
    close,
    equal,
    general_prior,
    likeliest_units,
    quick_jit,
)

# --- whole runs ---

POINTS = np.sort(np.random.default_rng(0).uniform(size=(25, 1)), axis=0)  # not a grid, which has exact ties
FEATURES = np.asarray(FOURIER(POINTS))
NUM_TASKS, HORIZON = 3, 10
VALUES = FEATURES @ np.random.default_rng(1).normal(size=(9, NUM_TASKS)) * [[1.0, 5.0, 0.3]]
KEY = jax.random.key(3)
SIZES = dict(num_tasks=NUM_TASKS, horizon=HORIZON)
POLICY = GPUCB(2.0, NOISE)


class Mixed(AbstractMetaLearner):
    """A fixed mixture of several priors; nothing is learned between tasks."""

    priors: tuple[Prior, ...]
    exploration: NoExploration = NoExploration()
    data: ClassVar[str] = "all"
    noise_std: ClassVar[None] = None

    def init(self, sizes):
        return ()

    def prior(self, state, sizes):
        return mixture([cast(prior, sizes.dtype) for prior in self.priors], np.ones(len(self.priors)))

    def update(self, state, data, sizes):
        return state, info_of(jnp.ones(sizes.num_groups, bool), None, sizes)

    def learn(self, past, num_done, sizes):
        return (), info_of(jnp.ones(sizes.num_groups, bool), None, sizes)


class Recorder(AbstractMetaLearner):
    """A learner whose state is the data of the last task, as passed to `update`."""

    exploration: NoExploration = NoExploration()
    data: ClassVar[str] = "all"
    noise_std: ClassVar[None] = None

    def init(self, sizes):
        return jnp.zeros((sizes.horizon, sizes.num_features)), jnp.zeros(sizes.horizon)

    def prior(self, state, sizes):
        return general_prior()

    def update(self, state, data, sizes):
        info = info_of(jnp.ones(sizes.num_groups, bool), None, sizes)
        return (data.features, data.rewards), info

    def learn(self, past, num_done, sizes):
        raise NotImplementedError("rows of a history are not the steps of a task")


LEARNERS = {
    "diagonal": FixedPrior(Prior(np.arange(9.0) / 9, np.linspace(0.1, 1, 9))),
    "matrix": FixedPrior(general_prior()),
    "noise of its own": FixedPrior(Prior(np.zeros(9), np.ones(9), 0.05)),
    "mixture": Mixed((general_prior(0), general_prior(1))),
    # Equal weights of all features would give equal variances, and exact ties before the first reward.
    "larger mixture": Mixed(
        tuple(Prior(np.zeros(9), size * np.linspace(0.5, 1, 9), 0.2) for size in (0.1, 1.0, 10.0))
    ),
}


def table(multiple=1.0, shift=0.0):
    """A table environment with noise in the same units as the values."""
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
    """Run all kinds of priors; `shift` is one number, or one per task."""
    return play_compiled(multiple, jnp.broadcast_to(jnp.asarray(shift, float), (NUM_TASKS, 1)), scaling)


@pytest.fixture(scope="module")
def runs():
    return {kind: play(1.0, 0.0, kind()) for kind in (RawRewards, Standardise)}


def dense_covariance(prior):
    return np.asarray(prior.factor() @ prior.factor().T)


FULL = np.diag(np.asarray(full_prior(FOURIER.groups).covariance))


class ByHand:
    """The units of a run, task by task, in NumPy. The units of a running task are fitted with `prior`."""

    def __init__(self, kind, prior):
        self.is_raw, self.scales = kind is RawRewards, []
        self.mean, self.covariance = np.asarray(prior.mean), dense_covariance(prior)
        self.noise_std = NOISE if prior.noise_std is None else float(prior.noise_std)

    def units(self, actions, rewards):
        """Centre and scale after some steps of a task."""
        if self.is_raw:
            return 0.0, 1.0
        guess = np.exp(np.mean(np.log(self.scales))) if self.scales else 1.0
        if len(rewards) == 0:
            return 0.0, guess
        rows = FEATURES[actions]
        matrix = rows @ self.covariance @ rows.T + self.noise_std**2 * np.eye(len(rows))
        return likeliest_units(np.asarray(rewards), rows @ self.mean, matrix, 2.0, guess)

    def finish(self, actions, rewards):
        """The units of a finished task that are stored: by the full kernel and the policy's noise."""
        if self.is_raw:
            return 0.0, 1.0
        rows = FEATURES[actions]
        matrix = rows @ FULL @ rows.T + NOISE**2 * np.eye(len(rows))
        units = likeliest_units(np.asarray(rewards), np.zeros(len(rows)), matrix, 0.0, 0.0)
        self.scales.append(units[1])
        return units


@pytest.mark.parametrize("kind", [RawRewards, Standardise])
@pytest.mark.parametrize("name", ["matrix", "diagonal", "noise of its own"])
def test_actions_equal_numpy_reference(runs, kind, name):
    """GP-UCB on the targets in current units, with a dense posterior at every step."""
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
            assert scores[actions[step]] >= scores.max() - 1e-6
            rewards.append(VALUES[actions[step], task] + float(draws.noise[step]))
        close(result.rewards[task], rewards)
        close(result.regret[task], VALUES[:, task].max() - VALUES[actions, task])
        by_hand.finish(actions, rewards)


@pytest.mark.parametrize("name", ["mixture", "larger mixture"])
def test_mixture_actions_equal_dense_reference(runs, name):
    """Every component has units of its own; the centre is integrated out of its evidence."""
    result, priors = runs[Standardise][name], LEARNERS[name].priors
    by_hands = [ByHand(Standardise, prior) for prior in priors]
    for task in range(NUM_TASKS):
        actions, rewards = np.asarray(result.actions[task]), np.asarray(result.rewards[task])
        for step in range(HORIZON):
            rows, means, variances, scores = FEATURES[actions[:step]], [], [], []
            for by_hand in by_hands:
                centre, scale = by_hand.units(actions[:step], rewards[:step])
                targets = (rewards[:step] - centre) / scale
                noise_std, prior_mean, covariance = by_hand.noise_std, by_hand.mean, by_hand.covariance
                mean, posterior = reference.weight_posterior(prior_mean, covariance, rows, targets, noise_std)
                means.append(centre + scale * FEATURES @ mean)
                variances.append(scale**2 * np.einsum("pf,fg,pg->p", FEATURES, posterior, FEATURES))
                gram = rows @ covariance @ rows.T
                score = reference.log_marginal_likelihood(gram, targets, noise_std, rows @ prior_mean)
                if step:
                    noisy, ones = gram + noise_std**2 * np.eye(step), np.ones(step)
                    score -= (step - 1) * np.log(scale) + 0.5 * np.log(ones @ np.linalg.solve(noisy, ones))
                scores.append(score)
            weights = np.exp(np.array(scores) - logsumexp(scores))
            mean = weights @ means
            variance = weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
            value = mean + 2 * np.sqrt(variance)
            assert value[actions[step]] >= value.max() - 1e-5 * np.ptp(value)
        for by_hand in by_hands:
            by_hand.finish(actions, rewards)


@pytest.mark.parametrize("kind", [RawRewards, Standardise])
def test_meta_learner_gets_rewards_in_final_units(runs, kind):
    result, by_hand = runs[kind]["recorder"], ByHand(kind, general_prior())
    for actions, rewards in zip(np.asarray(result.actions), np.asarray(result.rewards), strict=True):
        centre, scale = by_hand.finish(actions, rewards)
    features, told = result.carry[0]
    close(told, (rewards - centre) / scale, rtol=1e-6)
    close(features, FEATURES[actions])
    if kind is Standardise:
        close(result.carry[1].total, np.log(by_hand.scales).sum(), rtol=1e-6)
        assert result.carry[1].num_tasks == NUM_TASKS


def test_standardisation_changes_actions(runs):
    """Otherwise the tests of invariance below would be vacuous."""
    for name in LEARNERS:
        raw, own = (np.asarray(runs[kind][name].actions) for kind in (RawRewards, Standardise))
        assert (raw != own).any(), name


@pytest.mark.parametrize("name", list(LEARNERS))
def test_run_agents_equals_run_lifelong(runs, name):
    run = quick_jit(partial(run_lifelong, **SIZES))
    alone = run(table(), FOURIER, POLICY, LEARNERS[name], scaling=Standardise(), key=KEY)
    together = runs[Standardise][name]
    equal(alone.actions, together.actions)
    close(alone.regret, together.regret)
    jax.tree.map(close, alone.carry, together.carry)


def test_raw_rewards_are_the_default_for_mixtures(runs):
    run = quick_jit(partial(run_lifelong, **SIZES))
    alone = run(table(), FOURIER, POLICY, LEARNERS["mixture"], key=KEY)
    equal(alone.actions, runs[RawRewards]["mixture"].actions)
    assert alone.carry == ((), ())


@pytest.mark.parametrize("multiple, shift", [(1000.0, 0.0), (1.0, -500.0), (1e-3, 2.0), (1000.0, 12345.0)])
def test_actions_are_invariant_to_shift_and_scale_of_rewards(runs, multiple, shift):
    """With the guess in the same units as the rewards."""
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
    """A run with every reward multiplied and shifted, in float32 or float64."""

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
def test_actions_are_invariant_to_powers_of_two(scaled_run, dtype, shift):
    """A power of two does not change rounding, so actions and selections are exactly equal."""
    plain = scaled_run(dtype, 0, shift)
    span = range(-90, 91, 15) if dtype == np.float32 else (-900, -400, -90, 400, 900)
    for exponent in span:
        for name, result in scaled_run(dtype, exponent, shift).items():
            equal(result.actions, plain[name].actions)
            equal(result.support, plain[name].support)
            assert (np.asarray(result.status) == 0).all()
    assert len(np.unique(plain["flibo"].actions)) > 5 and np.asarray(plain["flibo"].support).any()


run_standardised = quick_jit(partial(run_agents, scaling=Standardise(), **SIZES))


@pytest.mark.parametrize("size", [1e-20, 1e19])
def test_rewards_whose_squares_overflow_are_learned_from(size):
    """With the default guess of 1, wrong by twenty orders of magnitude; later tasks use the learned scale."""
    env = TableEnv((size * VALUES.T).astype(np.float32), POINTS.astype(np.float32))
    learners = {"flibo": SCALE_LEARNERS["flibo"]}
    result = run_standardised(env, FOURIER, POLICY, learners, key=KEY)["flibo"]
    assert np.isfinite(np.asarray(result.regret)).all() and np.asarray(result.support).any(1).all()
    total, count = (float(leaf) for leaf in result.carry[1].__dict__.values())
    assert count == NUM_TASKS and abs(np.exp(total / count) / size) < 30
    plain = run_standardised(
        TableEnv(VALUES.T.astype(np.float32), POINTS.astype(np.float32)), FOURIER, POLICY, learners, key=KEY
    )
    last = np.asarray(result.regret[-1]).sum() / size, np.asarray(plain["flibo"].regret[-1]).sum()
    assert last[0] < 3 * last[1] + 0.5


def test_actions_are_invariant_to_a_shift_per_task(runs):
    other = play(1.0, jnp.asarray([[10.0], [-300.0], [0.5]]), Standardise())
    for name, result in runs[Standardise].items():
        equal(other[name].actions, result.actions)


def test_guess_is_ignored_after_past_tasks():
    """One task with stored scales of past tasks: its actions do not depend on the guess."""

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


def test_constant_rewards_give_finite_results():
    result = play(0.0, 3.0, Standardise())
    for run in result.values():
        assert np.isfinite(np.asarray(run.rewards)).all() and not np.asarray(run.regret).any()
        close(run.carry[1].total, 0)


# --- resuming, sweeps, precision ---


def test_resumed_equals_uninterrupted():
    """The past scales are part of the carry."""
    run = quick_jit(partial(run_lifelong, scaling=Standardise(), **SIZES), static_argnames="tasks")
    whole = run(table(), FOURIER, POLICY, Recorder(), key=KEY)
    first = run(table(), FOURIER, POLICY, Recorder(), tasks=range(2), key=KEY)
    second = run(table(), FOURIER, POLICY, Recorder(), tasks=range(2, 3), carry=first.carry, key=KEY)
    jax.tree.map(equal, second.carry, whole.carry)
    for field in ("actions", "rewards", "regret", "support", "num_explore", "status", "gap"):
        parts = [np.asarray(getattr(part, field)) for part in (first, second)]
        equal(np.concatenate(parts), getattr(whole, field))


def test_sweep_of_guesses_and_seeds_is_one_trace(runs, count_traces):
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


def test_float32_is_kept():
    env = TableEnv(VALUES.T.astype(np.float32) + 1000, POINTS.astype(np.float32), noise_std=0.1)
    learners = {"flibo": FederatedMetaKGL(0.05, 0.05, 0.5, data="all"), "mixture": LEARNERS["mixture"]}
    for result in run_standardised(env, FOURIER, POLICY, learners, key=KEY).values():
        for leaf in jax.tree.leaves(result):
            assert leaf.dtype != jnp.float64 and np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize("scaling", [RawRewards(), Standardise()])
def test_rewards_may_have_a_wider_dtype_than_candidates(scaling):
    """The belief has the dtype of the candidates; rewards are reported in their own dtype."""
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
