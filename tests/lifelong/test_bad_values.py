"""Non-finite values of an environment, and noise outside of the range of the precision."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jlibo import (
    GPUCB,
    AbstractEnv,
    AdaptiveMetaKGL,
    FederatedMetaKGL,
    FixedPrior,
    FunctionEnv,
    MetaKGL,
    Prior,
    RawRewards,
    Standardise,
    Status,
    SyntheticEnv,
    Task,
    run_agents,
    run_lifelong,
)
from jlibo.lifelong.exploration import explore_uniformly
from jlibo.lifelong.one_task import draw_task
from tests.lifelong.small_runs import ENVS, POINTS, SEEDS, SIZES, SMALL, assert_same, close, equal, quick_jit

# --- non-finite values ---


class BadEnv(AbstractEnv):
    """A user's environment: the values of `plain`, with `bad` in given cells [tasks, candidates]."""

    plain: FunctionEnv
    is_bad: jax.Array
    bad: jax.Array
    candidates: jax.Array
    noise_std: jax.Array

    def task(self, index, *, key):
        values = self.plain.task(index, key=key).values
        return Task(jnp.where(self.is_bad[index], self.bad, values))


FUNCTION = ENVS["function"]()


def bad_env(is_bad, bad):
    return BadEnv(
        FUNCTION, jnp.asarray(is_bad), jnp.asarray(bad), jnp.asarray(POINTS), jnp.asarray(FUNCTION.noise_std)
    )


BAD_LEARNERS = {"full": FixedPrior(), "libo": MetaKGL(0.02, 0.05), "flibo": FederatedMetaKGL(0.02, 0.05, 0.5)}


@pytest.fixture(scope="module", params=[RawRewards(), Standardise()], ids=["raw", "standardised"])
def bad_run(request):
    def run(env, repeats):
        return run_agents(
            env,
            SMALL,
            GPUCB(5.0, 0.1),
            BAD_LEARNERS,
            **SIZES,
            scaling=request.param,
            repeats=repeats,
            key=SEEDS[3],
        )

    return quick_jit(run, static_argnames="repeats")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("repeats", [True, False])
def test_non_finite_candidates_are_never_played(bad_run, bad, repeats):
    cells = np.zeros((4, 15), bool)
    plain = bad_run(bad_env(cells, bad), repeats=repeats)
    best = np.asarray(plain["full"].actions[0, -1])
    cells[0, [best, 3]] = cells[2, :12] = True
    results = bad_run(bad_env(cells, bad), repeats=repeats)
    for name, result in results.items():
        assert (np.asarray(plain[name].status) == Status.CONVERGED).all()
        for field in ("rewards", "regret", "gap"):
            assert np.isfinite(getattr(result, field)).all(), (name, field)
        assert (np.asarray(result.regret) >= 0).all() and (np.asarray(result.regret).min(1) < 1).all()
        assert not cells[np.arange(4)[:, None], np.asarray(result.actions)].any()
        expected = [Status.NON_FINITE_VALUES, Status.CONVERGED] * 2
        equal(result.status, expected)
    assert np.asarray(results["libo"].support)[-1].any()


def test_task_without_finite_values_is_reported_and_not_learned_from(bad_run):
    cells = np.zeros((4, 15), bool)
    cells[1] = True
    results = bad_run(bad_env(cells, np.nan), repeats=True)
    whole = bad_run(bad_env(np.zeros((4, 15), bool), np.nan), repeats=True)
    for name, result in results.items():
        equal(result.status, [Status.CONVERGED, Status.NON_FINITE_REWARDS] + [Status.CONVERGED] * 2)
        equal(np.isnan(result.regret).all(1), np.arange(4) == 1)
        assert np.isfinite(result.regret[2:]).all() and np.isfinite(result.gap).all()
        assert_same(result.actions[0], whole[name].actions[0])
        for leaf in jax.tree.leaves(result.carry):
            assert np.isfinite(leaf).all()
    libo = results["libo"].carry[0].past
    assert not np.any(libo.features[1]) and not np.any(libo.targets[1]) and libo.num_observations[1] == 0
    assert np.asarray(results["libo"].support)[-1].any()


def test_values_are_checked_outside_of_jit():
    fn = lambda point, parameters: jnp.where(point[0] > parameters, jnp.log(-point[0]), point[0])  # noqa: E731
    env = FunctionEnv(POINTS, fn, lambda index, key: jnp.asarray([0.5, -1.0])[index], 0.1)
    draws = draw_task(env, 0, 50, key=SEEDS[0])
    bad = POINTS[:, 0] > 0.5
    assert bad.any() and not bad[np.asarray(draws.exploration)].any() and not draws.is_whole
    close(draws.task.best_value, POINTS[~bad].max())
    with pytest.raises(ValueError, match="`values` should be finite for at least one available candidate"):
        env.task(1, key=SEEDS[0])
    with pytest.raises(ValueError, match="`candidates` should be finite"):
        FunctionEnv(np.where(bad[:, None], np.nan, POINTS), fn, lambda index, key: 0.0, 0.1)


@pytest.mark.parametrize("available", [None, np.arange(15) % 2 == 0])
def test_exploration_is_uniform_on_finite_values(available):
    """If all values are finite, the draws equal those of `explore_uniformly`."""

    class Fixed(AbstractEnv):
        values: jax.Array
        candidates: jax.Array
        noise_std: jax.Array

        def task(self, index, *, key):
            return Task(self.values, available)

    values = np.zeros(15)
    env = Fixed(jnp.asarray(values), jnp.asarray(POINTS), jnp.asarray(0.1))
    draws = draw_task(env, 0, 6000, key=SEEDS[0])
    explore_key = jax.random.split(jax.random.fold_in(SEEDS[0], 0), 4)[2]
    equal(draws.exploration, explore_uniformly(Task(env.values, available), 6000, key=explore_key))
    values[[1, 4, 8]] = np.nan
    draws = draw_task(eqx.tree_at(lambda e: e.values, env, jnp.asarray(values)), 0, 6000, key=SEEDS[0])
    good = np.isfinite(values) & (True if available is None else available)
    counts = np.bincount(np.asarray(draws.exploration), minlength=15)
    assert (counts[~good] == 0).all() and stats.chisquare(counts[good]).pvalue > 0.01


# --- noise outside of the range of the precision ---


@pytest.mark.parametrize(
    "noise_std, learner",
    [
        (1e-19, FixedPrior()),
        (1e-10, FixedPrior()),
        (1e-5, MetaKGL(0.2, 0.25)),
        (1e-2, FixedPrior(Prior(np.zeros(6), np.full(6, 1e6)))),
        (0.1, AdaptiveMetaKGL(noise_std=1e-10)),
        (1e30, FixedPrior()),
    ],
)
def test_noise_outside_of_the_precision_range_is_refused(noise_std, learner):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    with pytest.raises(ValueError, match=r"`noise_std` should be from .*float32.*, but got"):
        run_lifelong(env, SMALL, GPUCB(5.0, noise_std), learner, **SIZES, key=SEEDS[0])


@pytest.mark.parametrize("scaling", [RawRewards(), Standardise()])
def test_traced_noise_is_clipped_to_the_precision_range(scaling):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    learners = {"libo": MetaKGL(0.2, 0.25), "learned": AdaptiveMetaKGL()}

    @quick_jit
    def run(noise_std):
        policy = GPUCB(5.0, noise_std)
        own = {**learners, "learned": AdaptiveMetaKGL(noise_std=noise_std)}
        return run_agents(env, SMALL, policy, own, scaling=scaling, **SIZES, key=SEEDS[0])

    runs = [run(jnp.float32(noise_std)) for noise_std in (0.0, 1e-30, 1e-19, 1e-10, 1e-5)]
    for results in runs:
        for name, result in results.items():
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.regret)), name
            equal(result.actions[0], runs[0][name].actions[0])
    close(FixedPrior(Prior(np.zeros(6), np.full(6, 1e-8), 1e-5)).fixed_prior.noise_std, 1e-5)


def test_small_noise_with_a_small_prior_is_accepted():
    """Noise is compared with the prior's standard deviation, not with 1."""
    env = ENVS["function"]()
    env = eqx.tree_at(lambda env: env.candidates, env, jnp.asarray(POINTS, "float32"))
    learner = FixedPrior(Prior(np.zeros(6, "float32"), np.full(6, 1e-8, "float32")))
    result = run_lifelong(env, SMALL, GPUCB(5.0, 1e-6), learner, num_tasks=1, horizon=3, key=SEEDS[0])
    assert np.isfinite(result.regret).all()
