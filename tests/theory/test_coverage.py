"""Coverage of confidence bands: the true and the full kernel keep their promise, a wrong kernel does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory

FEATURES = jlibo.Cosine(6)
DELTA, NOISE = 0.1, 0.3


def environment(key):
    return jlibo.SyntheticEnv.draw(
        FEATURES,
        support_size=2,
        norm_bound=1.0,
        beta_min=0.3,
        noise_std=NOISE,
        candidates=jlibo.box_midpoints(FEATURES, 40),
        key=key,
    )


def measure(agents, *, num_keys=40, num_tasks=5, horizon=25, regulariser=NOISE, **rest):
    """Ratios [keys, tasks] of each agent, in environments of their own."""

    def one(key):
        env = environment(key)
        policy = jlibo.GPUCB(nu=2.0, noise_std=regulariser)
        learners = {name: make(env) for name, make in agents.items()}
        return theory.measure_coverage(
            env,
            FEATURES,
            policy,
            learners,
            coef_norm=1.0,
            delta=DELTA,
            num_tasks=num_tasks,
            horizon=horizon,
            key=key,
            **rest,
        )

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), num_keys))
    return {name: np.asarray(coverage.ratio) for name, coverage in found.items()}


def known(mask_fn):
    return lambda env: jlibo.FixedPrior(
        fixed_prior=jlibo.support_prior(mask_fn(env.support), FEATURES.groups)
    )


AGENTS = {"true": known(lambda support: support), "full": lambda env: jlibo.FixedPrior()}


@pytest.mark.parametrize(
    "width, regulariser", [("ellipsoid", NOISE), ("ellipsoid", 0.1), ("kernel", (1 + 2 / 25) ** 0.5)]
)
def test_true_and_full_kernel_are_covered(width, regulariser):
    for ratio in measure(AGENTS, width=width, regulariser=regulariser).values():
        assert (ratio > 1).mean() <= DELTA
        assert ratio.max() > 0.1, "the band is not absurdly wide"


@pytest.mark.slow
@pytest.mark.parametrize("width, regulariser", [("ellipsoid", 0.1), ("kernel", (1 + 2 / 25) ** 0.5)])
def test_thousands_of_tasks_are_covered(width, regulariser):
    for ratio in measure(AGENTS, num_keys=1000, width=width, regulariser=regulariser).values():
        assert (ratio > 1).mean() <= DELTA


def test_kernel_width_fails_at_a_small_regulariser():
    """Chowdhury & Gopalan prove their width for lambda_ucb^2 = 1 + 2/n; at a small one it is too narrow."""
    ratios = measure(AGENTS, width="kernel", regulariser=0.1)
    assert (ratios["true"] > 1).mean() > DELTA


def test_kernel_without_f_is_not_covered():
    ratios = measure({"wrong": known(lambda support: ~support)}, num_keys=10)
    assert (ratios["wrong"] > 1).mean() > 0.9


def test_band_with_a_norm_that_is_too_small_fails():
    """The first step has the prior band: f leaves it if B is below the largest |f| / std of the prior."""
    env = environment(jax.random.key(3))
    draws = jlibo.draw_task(env, 0, horizon=3, key=jax.random.key(4))
    prior = jlibo.support_prior(env.support, FEATURES.groups)
    policy = jlibo.GPUCB(nu=2.0, noise_std=NOISE)
    played = jlibo.run_task(policy, prior, env.candidate_features, draws, 0)
    rest = dict(noise_level=NOISE, regulariser=NOISE, delta=DELTA, width="kernel")
    arguments = (prior, env.candidate_features, draws.task.values, played)
    ratio = theory.band_ratio(*arguments, norm_bound=0.0, **rest)
    width = NOISE * np.sqrt(2 * (1 + np.log(1 / DELTA)))
    std = np.sqrt(np.asarray(prior.variance(env.candidate_features)))
    expected = np.abs(np.asarray(draws.task.values)).max(where=std > 1e-9, initial=0)
    np.testing.assert_allclose(ratio[0], (np.abs(draws.task.values) / (width * std)).max(), rtol=1e-3)
    assert expected > 0
    assert theory.band_ratio(*arguments, norm_bound=100.0, **rest).max() < 1


def test_norm_of_a_kernel_average():
    prior = jlibo.support_prior(jnp.arange(6) < 4, FEATURES.groups)
    np.testing.assert_allclose(theory.norm_of(prior, 3.0), theory.kernel_norm(3.0, 4))


@pytest.mark.slow
def test_every_meta_learner_can_be_measured():
    agents = {
        "libo": lambda env: jlibo.MetaKGL(lam=0.1, omega=0.1),
        "flibo": lambda env: jlibo.FederatedMetaKGL(lam=0.1, omega=0.1, alpha=0.25),
        "self-tuned": lambda env: jlibo.SelfTunedMetaKGL(noise_std=NOISE, num_lams=4),
        "adaptive": lambda env: jlibo.AdaptiveMetaKGL(noise_std=NOISE, num_lams=4, num_steps=2),
    }
    ratios = measure(agents, num_keys=2, num_tasks=3, horizon=9)
    for ratio in ratios.values():
        assert ratio.shape == (2, 3) and np.isfinite(ratio).all() and (ratio > 0).all()


def test_unknown_width_is_refused():
    with pytest.raises(ValueError, match="width"):
        measure({"full": lambda env: jlibo.FixedPrior()}, num_keys=1, num_tasks=1, horizon=2, width="wide")
