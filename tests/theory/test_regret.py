"""Regret bounds and information gain: formulas against NumPy, bounds against runs, exponents and limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory
from tests.theory import reference

NUMBERS = dict(beta_min=0.5, omega=0.2, kappa=0.7, noise_std=0.005)
PRIOR = dict(norm_bound=1.0, delta=0.1)


# --- information gain ---------------------------------------------------------------------------------------


def test_gain_equals_that_of_the_posterior_and_of_numpy():
    features = jlibo.Cosine(6)
    rows = features(jlibo.sample_box(features, 9, key=jax.random.key(0)))
    prior = jlibo.support_prior(jnp.arange(6) < 3, features.groups)
    posterior = jlibo.posterior.init(prior, 0.2)
    for row in rows:
        posterior = jlibo.posterior.observe(posterior, row, 0.0)
    gain = theory.information_gain(rows, 0.2, prior)
    np.testing.assert_allclose(gain, posterior.information_gain, rtol=1e-8)
    kernel = np.asarray(rows)[:, :3] @ np.asarray(rows)[:, :3].T / 3
    np.testing.assert_allclose(gain, np.linalg.slogdet(np.eye(9) + kernel / 0.04)[1] / 2, rtol=1e-8)


def test_greedy_gain_is_bracketed_by_the_best_set_and_the_lemma():
    features = jlibo.Cosine(4)
    candidates = features(jlibo.box_grid(features, 7))
    prior = jlibo.full_prior(features.groups)
    greedy = theory.greedy_information_gain(candidates, 3, 0.5, prior)
    sets = itertools.combinations_with_replacement(range(7), 3)
    best = max(float(theory.information_gain(candidates[jnp.asarray(one)], 0.5, prior)) for one in sets)
    assert greedy.gain[-1] <= best + 1e-9 <= greedy.upper[-1] + 2e-9
    np.testing.assert_allclose(
        greedy.gain[-1], theory.information_gain(candidates[greedy.chosen], 0.5, prior), rtol=1e-7
    )
    assert best <= theory.information_gain_bound(3, 4, 0.5)


def test_gain_bound_is_monotone_and_holds_for_random_rows():
    rng = np.random.default_rng(0)
    for seed in range(20):
        num_rows, dim, lam = rng.choice([1, 5, 29]), rng.choice([1, 7]), rng.uniform(0.05, 2)
        rows = np.random.default_rng(seed).normal(size=(num_rows, dim))
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        gain = theory.information_gain(jnp.asarray(rows), lam)
        assert gain <= theory.information_gain_bound(num_rows, dim, lam) + 1e-9
    at = theory.information_gain_bound
    assert at(11, 5, 0.1) > at(10, 5, 0.1) > at(10, 4, 0.1) > at(10, 4, 0.2)
    assert at(10, 5, 0.1) < at(10, 5, 0.1, kernel_bound=2.0)


def test_played_gain_of_a_run():
    features, key = jlibo.Cosine(5), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, learner = jlibo.GPUCB(nu=2.0, noise_std=0.1), jlibo.FixedPrior()
    result = jlibo.run_lifelong(env, features, policy, learner, num_tasks=2, horizon=8, key=key)
    prior = jlibo.full_prior(features.groups)
    gains = theory.played_information_gain(result, features, env.candidates, 0.1, prior)
    rows = features(env.candidates[result.actions[1]])
    np.testing.assert_allclose(gains[1], theory.information_gain(rows, 0.1, prior), rtol=1e-8)
    most = theory.greedy_information_gain(features(env.candidates), 8, 0.1, prior).upper[-1]
    assert (gains > 0).all() and (gains <= most).all()


# --- one task -----------------------------------------------------------------------------------------------


def test_regret_of_one_task_equals_the_formula_written_out():
    for horizon, dim, norm, noise, delta in ((100, 5, 1.0, 0.1, 0.1), (5000, 2, 22.0, 0.5, 0.01)):
        got = theory.gp_ucb_regret(horizon, dim, norm_bound=norm, noise_std=noise, delta=delta)
        np.testing.assert_allclose(got, reference.gp_ucb_regret(horizon, dim, norm, noise, delta), rtol=1e-9)


def test_regret_of_one_task_is_monotone_and_sublinear():
    at = lambda **changes: theory.gp_ucb_regret(  # noqa: E731
        **{
            "horizon": 1000.0,
            "num_features": 5.0,
            "norm_bound": 1.0,
            "noise_std": 0.1,
            "delta": 0.1,
            "regulariser": 0.1,
            **changes,
        }
    )
    for name, value in (("horizon", 1001.0), ("num_features", 5.5), ("norm_bound", 1.1), ("noise_std", 0.11)):
        assert at(**{name: value}) > at()
        assert at(regulariser=None, **{name: value}) > at(regulariser=None)
    assert at(delta=0.2) < at() < at(num_tasks=2.0)
    assert at(num_tasks=2.0, reading="printed") == at(reading="printed")
    assert at(horizon=1e9) / 1e9 < at() / 1000 / 10
    assert at(norm_bound=0.0, noise_std=0.0) == 0


def test_runs_of_oful_stay_below_the_bound():
    """500 tasks with the width of the theory: regret exceeds its bound in no more than delta of them."""
    features, noise_std, delta, horizon = jlibo.Cosine(4), 0.3, 0.2, 60
    key = jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(
        features, support_size=4, norm_bound=1.0, beta_min=0.0, noise_std=noise_std, key=key
    )
    norm = float(theory.kernel_norm(1.0, 4))
    policy = jlibo.OFUL(norm_bound=norm, delta=delta, noise_std=noise_std)
    result = jlibo.run_lifelong(
        env, features, policy, jlibo.FixedPrior(), num_tasks=500, horizon=horizon, key=key
    )
    bound = theory.gp_ucb_regret(
        horizon, 4, norm_bound=norm, noise_std=noise_std, delta=delta, regulariser=noise_std
    )
    total = result.regret.sum(-1)
    assert (total > bound).mean() <= delta
    assert total.mean() > bound / 100, "the bound is not absurd"


def test_full_kernel_costs_more():
    rest = dict(norm_bound=1.0, noise_std=0.1, delta=0.1)
    oracle = theory.gp_ucb_regret(1000, 5, **rest)
    full = theory.full_kernel_regret(1000, 50, num_kernels=50, support_size=5, **rest)
    printed = theory.full_kernel_regret(1000, 50, num_kernels=50, support_size=5, **rest, reading="printed")
    assert oracle < full < printed


def test_norm_of_the_average_kernel():
    """||f||_k = sqrt(|J|) ||beta||: the weights w of f in the features phi / sqrt(|J|) are sqrt(|J|) beta."""
    beta = np.array([3.0, 4.0])
    np.testing.assert_allclose(theory.kernel_norm(5.0, 2), np.linalg.norm(np.sqrt(2) * beta))


# --- all tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_tasks_until_recovery_equals_a_loop(seed):
    rng = np.random.default_rng(seed)
    # Few numbers of tasks, as each is compiled.
    num_tasks, horizon = int(rng.choice([3, 40, 199])), int(rng.integers(10, 10_000))
    numbers = {**NUMBERS, "noise_std": float(10 ** rng.uniform(-4, -2))}
    counts = np.sqrt(horizon) / np.arange(1, num_tasks + 1) ** 0.25
    kernels = int(rng.integers(2, 1000))
    got = theory.tasks_until_recovery(counts, kernels, **numbers, delta=0.1)
    assert got == reference.tasks_until_recovery(list(counts), kernels, **numbers, delta=0.1)
    by_sum = theory.tasks_until_recovery(counts, kernels, **numbers, delta=0.1, method="sum")
    assert by_sum[0] <= got[0] and by_sum[1] >= got[1]


def test_failure_by_task_uses_the_rows_so_far():
    counts = np.array([4.0, 3.0, 2.0])
    numbers = {**NUMBERS, "noise_std": 0.002}
    got = theory.failure_by_task(counts, 5, **numbers)
    ratio = 0.2 * 0.49 * np.sqrt(np.cumsum(counts) / np.arange(1, 4)) / (32 * 0.002)
    expected = np.minimum(5 * np.exp(-np.cumsum(counts) / 8 * (ratio - 1) ** 2), 1)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert (got < 1).any()


def test_exponent_of_the_logarithm_is_four_thirds():
    """m_0 of the decreasing schedule grows as log(mp/delta)^(4/3), not as its power 3/4."""
    counts = jlibo.DecreasingExploration().rates(2_000_000, 400)
    logs = np.log(4 * 2_000_000 * np.array([1e10, 1e100]) / 0.1)
    numbers = {**NUMBERS, "noise_std": 0.0014}
    found = [theory.tasks_until_recovery(counts, p, **numbers, delta=0.1) for p in (1e10, 1e100)]
    assert all(reached for _, reached in found)
    slope = np.log(found[1][0] / found[0][0]) / np.log(logs[1] / logs[0])
    np.testing.assert_allclose(slope, 4 / 3, atol=0.05)


def bound(num_tasks=200, horizon=2500, kernels=50, counts=None, **changes):
    counts = jlibo.DecreasingExploration().counts(num_tasks, horizon) if counts is None else counts
    settings = {**NUMBERS, **PRIOR, "task_regret": 100.0, **changes}
    return theory.lifelong_regret_bound(counts, horizon, kernels, **settings)


def test_terms_of_the_regret_bound():
    one = bound()
    counts = jlibo.DecreasingExploration().counts(200, 2500)
    assert one.reached and 1 <= one.wrong_tasks < 200
    assert one.exploration == 2 * counts.sum()
    assert one.mismatch == 2 * 2500 * one.wrong_tasks
    assert one.oracle == 200 * 100
    assert one.total == one.exploration + one.mismatch + one.oracle
    assert one.trivial == 2 * 200 * 2500 and one.is_informative
    nothing = bound(noise_std=10.0)
    assert not nothing.reached and nothing.wrong_tasks == 200 and not nothing.is_informative


def test_regret_bound_is_monotone():
    total = lambda **changes: float(bound(**changes).total)  # noqa: E731
    assert total(kernels=10**9) > total()
    assert total(noise_std=0.006) > total() > total(noise_std=0.0)
    assert total(kappa=0.65) > total() > total(kappa=1.0)
    assert total(norm_bound=1.1) > total()
    assert total(delta=1e-30) > total()
    assert total(task_regret=101.0) > total()
    assert total(reading="printed") < total()
    assert bound(noise_std=0.0).wrong_tasks == 1


def test_excess_vanishes_per_task_for_the_decreasing_schedule_only():
    def excess(schedule, num_tasks):
        counts = schedule.counts(num_tasks, 10_000)
        one = bound(num_tasks, 10_000, counts=counts, noise_std=1e-4)
        return float(one.exploration + one.mismatch) / num_tasks

    decreasing, constant = jlibo.DecreasingExploration(), jlibo.ConstantExploration()
    assert excess(decreasing, 100_000) < excess(decreasing, 1_000) / 2
    assert excess(constant, 100_000) > 2 * 100


def test_integer_rule_costs_at_most_one_task():
    for num_tasks, horizon in ((30, 100), (100, 300), (500, 1000)):
        schedule = jlibo.DecreasingExploration()
        numbers = {**NUMBERS, "noise_std": 0.002}
        real = theory.tasks_until_recovery(schedule.rates(num_tasks, horizon), 50, **numbers, delta=0.1)
        whole = theory.tasks_until_recovery(schedule.counts(num_tasks, horizon), 50, **numbers, delta=0.1)
        assert real[1] and whole[1]
        assert real[0] <= whole[0] <= real[0] + 1


def test_federated_bound():
    settings = {**NUMBERS, **PRIOR, "task_regret": 10.0, "alpha": 0.25, "noise_std": 4.5e-3}
    one = theory.federated_regret_bound(100, 50, 2500, 50, **settings)
    assert one.reached and one.wrong_tasks < 100
    assert one.exploration == 2 * 100 * 50 and one.mismatch == 2 * one.wrong_tasks * 2500
    client = theory.recovery_probability(50, 1, 50, **{**NUMBERS, "noise_std": 4.5e-3})
    expected = np.ceil(np.log(4 * 100 * 50 / 0.1) / theory.vote_exponent(client, 0.25))
    assert one.wrong_tasks == expected
    assert (
        theory.federated_regret_bound(100, 50, 2500, 50, **settings, reading="printed").wrong_tasks
        >= expected
    )
    nothing = theory.federated_regret_bound(100, 50, 2500, 50, **{**settings, "noise_std": 1.0})
    assert not nothing.reached and nothing.mismatch == nothing.trivial


def test_bounds_are_jittable_and_vmappable():
    counts = jlibo.DecreasingExploration().counts(50, 400)
    noises = jnp.asarray([0.001, 0.002, 0.01])

    def total(noise_std):
        return bound(50, 400, counts=counts, noise_std=noise_std).total

    each = [total(noise) for noise in noises]
    np.testing.assert_allclose(jax.jit(jax.vmap(total))(noises), each, rtol=1e-9)


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method"):
        bound(method="guess")
