"""Offline runs: learners together and alone, and calls that share a compiled program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jlibo import (
    GPUCB,
    AdaptiveMetaKGL,
    Cosine,
    FixedPrior,
    FunctionEnv,
    MetaKGL,
    Prior,
    SyntheticEnv,
    theory,
)
from jlibo.experiments import run_offline


def test_offline_learners_may_have_priors_of_different_shapes():
    features = Cosine(6)
    learners = {
        "wide": FixedPrior(),
        "adaptive": AdaptiveMetaKGL(num_steps=2, num_lams=3),
        "matrix": FixedPrior(Prior(np.zeros(6), np.eye(6) / 6 + 0.01)),
        "own noise": FixedPrior(Prior(np.zeros(6), np.full(6, 1 / 6), noise_std=0.3)),
        "libo": MetaKGL(lam=0.1, omega=0.1),
    }
    env_key, key = jax.random.split(jax.random.key(3))
    env = SyntheticEnv.draw(features, support_size=2, key=env_key)
    run = partial(run_offline, env, features, GPUCB(2.0, 0.1), num_tasks=3, num_rows=5, horizon=6, key=key)
    together = run(learners)
    assert list(together) == list(learners)
    for name in ("adaptive", "matrix", "libo"):
        alone = run({name: learners[name]})[name]
        np.testing.assert_allclose(together[name].regret, alone.regret, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(together[name].support, alone.support)
    assert np.ptp([np.sum(result.regret) for result in together.values()]) > 1


def test_runs_outside_of_jit_are_traced_once(count_traces):
    """A second call with other keys and numbers reuses the programs of the first."""
    points = jnp.linspace(0, 1, 7)[:, None]
    reward_fn, rewards = count_traces(lambda point, top: -jnp.sum((point - top) ** 2))
    env = FunctionEnv(points, reward_fn, lambda index, key: jax.random.uniform(key), 0.1)
    found = []
    for number in (1, 2):
        agents, key = {"libo": MetaKGL(lam=0.1 * number, omega=0.1)}, jax.random.key(number)
        run = (env, Cosine(4), GPUCB(1.0 * number, 0.1), agents)
        offline = run_offline(*run, num_tasks=2, num_rows=3, horizon=4, key=key)
        covered = theory.measure_coverage(
            *run, coef_norm=1.0 * number, delta=0.1 * number, num_tasks=2, horizon=4, key=key
        )
        found.append((offline["libo"].regret.sum(), covered["libo"].ratio.sum()))
        if number == 1:
            first = rewards.count
    assert first > 0 and rewards.count == first
    assert found[0] != found[1]
