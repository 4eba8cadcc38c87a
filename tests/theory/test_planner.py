"""Assumptions in words, the plan, the report of a run, and the command line of the plan."""

import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory
from jlibo.cli import main

PAPER = dict(
    num_tasks=30, horizon=100, noise_std=0.1, norm=10.0, beta_min=0.5, num_kernels=50, support_size=5
)
GENEROUS = dict(
    num_tasks=50, horizon=10**10, noise_std=1e-3, norm=2.0, beta_min=1.0, num_kernels=8, support_size=1
)


# --- assumptions --------------------------------------------------------------------------------------------


def test_beta_min_of_coefficients():
    coef = jnp.asarray([[3.0, 4.0, 0.0, 1.0], [0.0, 0.0, 0.0, 2.0]])
    groups, support = [0, 0, 1, 2], [True, False, True]
    np.testing.assert_allclose(theory.group_norms(coef, groups), [[5, 0, 1], [0, 0, 2]])
    pooled = theory.pooled_beta_min(coef, support, groups)
    np.testing.assert_allclose(pooled, min(np.sqrt(25 / 2), np.sqrt(5 / 2)))
    assert theory.client_beta_min(coef, support, groups) == 0
    assert theory.client_beta_min(coef, [False, False, True], groups) == 1


def test_environment_satisfies_the_assumptions_that_it_was_drawn_with():
    features, key = jlibo.Cosine(6), jax.random.key(1)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, beta_min=0.7, key=key)
    beta, bounded, informative = theory.check_environment(env, features, num_tasks=4, num_rows=300, key=key)
    assert beta.holds and bounded.holds and informative.holds
    coef = [env.coefficients(key=jax.random.split(jax.random.fold_in(key, s), 4)[0]) for s in range(4)]
    expected = theory.pooled_beta_min(jnp.stack(coef), env.support, features.groups)
    np.testing.assert_allclose(beta.value, expected, rtol=1e-5)
    assert beta.value >= 0.7
    assert str(bounded).startswith("k_j(x, x) <= 1: holds.")


def test_few_rows_are_reported_as_not_informative():
    features, key = jlibo.Cosine(12), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=3, key=key)
    informative = theory.check_environment(env, features, num_tasks=2, num_rows=3, key=key)[-1]
    assert informative.holds is False and informative.value < 1e-3


def test_unbounded_kernels_are_named():
    steep = jlibo.FunctionFeatures(lambda x: jnp.stack([x[0], 3 * x[0]]), groups=[0, 1], lower=0.0, upper=1.0)
    env = jlibo.SyntheticEnv.draw(steep, support_size=1, key=jax.random.key(0))
    bounded = theory.check_environment(env, steep, num_tasks=1, num_rows=5, key=jax.random.key(0))[1]
    assert bounded.holds is False and abs(bounded.value - 9) < 1e-3
    assert "normalise" in bounded.words


def test_data_alone_give_an_estimate():
    features, rng = jlibo.Cosine(5), np.random.default_rng(0)
    design = features(jnp.asarray(rng.random((3, 40, 1))))
    coef = np.zeros((3, 5))
    coef[:, 1] = [2.0, -1.5, 1.8]
    targets = jnp.einsum("srf,sf->sr", design, coef) + 0.01 * rng.normal(size=(3, 40))
    beta, bounded, informative = theory.check_data(
        design, targets, features, lam=0.01, omega=0.3, key=jax.random.key(0)
    )
    assert "1 kernels" in beta.words and bounded.holds and informative.holds
    np.testing.assert_allclose(beta.value, np.sqrt((coef[:, 1] ** 2).mean()), rtol=0.05)
    nothing, _ = theory.check_data(design, targets, features, lam=100.0, omega=0.3, key=jax.random.key(0))
    assert nothing.holds is None and "no kernel" in nothing.words


# --- the plan -----------------------------------------------------------------------------------------------


def test_plan_of_the_papers_numbers():
    plan = theory.plan(**PAPER)
    np.testing.assert_allclose(plan.least_rows, 16_384, rtol=1e-6)
    assert round(plan.lam, 4) == 0.0006
    np.testing.assert_allclose(plan.kappa_limit**2, 0.1)
    np.testing.assert_allclose(plan.least_rows_own, 8192, rtol=1e-6)
    assert not plan.reached and plan.wrong_tasks == 30
    assert plan.binds[0].startswith("rows a task")
    text = str(plan)
    assert "sqrt(n) > 128" in text and "more than 16,384 rows a task" in text and "lam = 0.00057" in text
    assert "the guarantee never begins" in text
    by_noise = theory.noise_lam(plan.mean_rows, 30, 50, noise_std=0.1, delta=0.1)
    np.testing.assert_allclose(plan.lam_noise, by_noise, rtol=1e-6)
    assert "MetaKGL(lam=0.4, lam_scaling='noise')" in text and "lam_scaling='bracket'" in text


def test_plan_at_which_everything_holds():
    plan = theory.plan(**GENEROUS)
    assert plan.binds == [] and plan.reached
    assert plan.bound["total"] < plan.bound["trivial"]
    parts = ("exploration", "mismatch", "oracle")
    np.testing.assert_allclose(sum(plan.bound[name] for name in parts), plan.bound["total"], rtol=1e-6)
    assert "No assumption fails" in str(plan) and "the paper's schedule" in str(plan)


def test_plan_of_a_horizon_beyond_int32_in_single_precision():
    with jax.enable_x64(False):
        plan = theory.plan(**{**GENEROUS, "horizon": 10**12, "num_kernels": 10**10})
    np.testing.assert_allclose(plan.bound["trivial"], 2 * 2.0 * 50 * 1e12, rtol=1e-5)
    assert plan.rows_needed > 0 and plan.reached


def test_rows_that_are_proved_are_those_at_which_both_results_meet():
    plan = theory.plan(**PAPER)
    kappa = theory.exploration_kappa(plan.rows_proved, 50, 5, 0.5, 0.1 / 4, num_designs=30)
    signal = theory.signal(plan.rows_proved, beta_min=0.5, omega=0.25, kappa=kappa, noise_std=0.1)
    np.testing.assert_allclose(signal, 1, rtol=1e-6)
    np.testing.assert_allclose(
        plan.kappa_rows, theory.exploration_rows_needed(50, 5, 0.5, 0.1 / 4, num_designs=30)
    )
    schedule = jlibo.DecreasingExploration()
    at_least = schedule.rates(30, 10**6).mean() * math.sqrt(plan.least_horizon / 10**6)
    np.testing.assert_allclose(at_least, plan.rows_proved, rtol=1e-9)


@pytest.mark.parametrize(
    "name, worse", [("noise_std", 0.2), ("beta_min", 0.4), ("support_size", 6), ("mean_square", 0.4)]
)
def test_plan_is_monotone(name, worse):
    before, after = theory.plan(**PAPER), theory.plan(**{**PAPER, name: worse})
    assert after.least_rows > before.least_rows
    assert after.rows_needed > before.rows_needed and after.rows_proved > before.rows_proved


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_tasks", 0),
        ("horizon", 2.5),
        ("noise_std", 0.0),
        ("noise_std", float("nan")),
        ("beta_min", -1.0),
        ("beta_min", 9.0),
        ("support_size", 51),
        ("mean_square", 1.5),
        ("omega", 0.5),
        ("alpha", 0.0),
        ("delta", 0.0),
        ("num_tasks", 10**9),
    ],
)
def test_wrong_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        theory.plan(**{**PAPER, name: value})


# --- the report of a run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run():
    features, key = jlibo.Cosine(4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(
        features, support_size=1, beta_min=1.0, norm_bound=2.0, noise_std=1e-3, key=key
    )
    policy = jlibo.GPUCB(nu=2.0, noise_std=0.1)
    learner = jlibo.MetaKGL(lam=0.01, omega=0.5)
    schedule = {"libo": jlibo.ConstantExploration(scale=10.0)}
    results = jlibo.run_agents(
        env, features, policy, {"libo": learner}, num_tasks=4, horizon=400, exploration=schedule, key=key
    )
    return env, features, results["libo"]


def test_report_of_a_run(run):
    env, features, result = run
    assumed = dict(noise_std=1e-3, norm=2.0, beta_min=1.0, support_size=1, true_support=env.support)
    report = theory.report_run(result, features, env.candidates, **assumed, key=jax.random.key(1))
    assert report.mean_rows == 200
    assert 0 < report.kappa[0] <= report.kappa[1] <= 1
    # Features of mean square 1/2 have smaller traces than the worst case.
    assert 0 <= report.worst_case <= report.own_design <= 1 and report.own_design > 0.5
    assert report.recovered_after == 1
    np.testing.assert_allclose(report.regret["total"], result.regret.sum(), rtol=1e-5)
    assert report.regret["total"] <= report.bound["total"]
    assert report.gain[0] <= report.gain[1]
    assert "right from task 1 on" in str(report)
    json.dumps(report.as_dict())


def test_report_uses_the_rows_of_exploration_only(run):
    env, features, result = run
    design, mask = theory.exploration_design(result, features, env.candidates)
    assert design.shape == (4, 200, 4) and mask.all()
    np.testing.assert_allclose(design[2, 7], features(env.candidates[result.actions[2, 7]]))


def test_report_needs_exploration(run):
    env, features, result = run
    unexplored = eqx.tree_at(lambda r: r.explored, result, jnp.zeros_like(result.explored))
    with pytest.raises(ValueError, match="exploration"):
        theory.exploration_design(unexplored, features, env.candidates)


# --- the command line ---------------------------------------------------------------------------------------

WORDS = "theory plan --tasks 30 --horizon 100 --noise 0.1 --norm 10 --beta-min 0.5 --kernels 50 --support 5"


def test_command_prints_the_plan(capsys):
    assert main(WORDS.split()) == 0
    assert "more than 16,384 rows a task" in capsys.readouterr().out


def test_command_prints_json(capsys):
    assert main([*WORDS.split(), "--json", "--delta", "0.2", "--mean-square", "0.25"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["mean_square"] == 0.25 and printed["delta"] == 0.2
    np.testing.assert_allclose(printed["least_rows"], 4 * 16_384, rtol=1e-6)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--tasks none", "--tasks should be a whole number"),
        ("--noise 0", "--noise should be a number > 0"),
        ("--noise inf", "--noise should be a number"),
        ("--support 60", "--support should be at most the 50 kernels"),
        ("--beta-min 9", "--beta-min should be at most"),
        ("--omega 0.7", "--omega should be below"),
        ("--tasks 99999999999", "--tasks should be at most"),
    ],
)
def test_command_refuses_wrong_numbers_in_one_line(capsys, words, expected):
    assert main([*WORDS.split(), *words.split()]) == 2
    line = capsys.readouterr().err
    assert expected in line and line.count("\n") == 1
