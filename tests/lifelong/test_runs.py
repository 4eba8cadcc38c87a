"""Runs of the lifelong loop in batches, sweeps and parts, on other platforms, and with invalid arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import (
    GPUCB,
    ConstantExploration,
    FederatedMetaKGL,
    FixedPrior,
    Greedy,
    MetaKGL,
    SyntheticEnv,
    run_agents,
    run_lifelong,
)
from tests.lifelong.small_runs import POINTS, SEEDS, SIZES, SMALL, assert_same, equal, quick_jit, table


def small_run(lam, key, *, carry=None, tasks=None, progress_fn=None, learner=None):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=jax.random.fold_in(key, 99))
    learner = MetaKGL(lam, 0.25) if learner is None else learner
    return run_lifelong(
        env,
        SMALL,
        GPUCB(5.0, 0.1),
        learner,
        **SIZES,
        carry=carry,
        tasks=tasks,
        progress_fn=progress_fn,
        key=key,
    )


@pytest.fixture(scope="module")
def one():
    return quick_jit(small_run)


@pytest.fixture(scope="module")
def looped(one):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one(0.2, key) for key in SEEDS])


def test_sweep_is_one_trace_and_batched_equals_looped_equals_chunked(count_traces, looped):
    counted, counter = count_traces(small_run)
    sweep = quick_jit(jax.vmap(jax.vmap(counted, in_axes=(None, 0)), in_axes=(0, None)))
    lams = jnp.asarray([0.2, 0.01])
    batched = sweep(lams, SEEDS)
    sweep(jnp.asarray([0.05, 0.4]), SEEDS[::-1])
    assert counter.count == 1
    assert batched.regret.shape == (2, 4, 4, 12)
    assert_same(jax.tree.map(lambda leaf: leaf[0], batched), looped, exact=False)
    chunks = [sweep(lams, SEEDS[:2]), sweep(lams, SEEDS[2:])]
    assert counter.count == 2
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *chunks)
    assert_same(joined, batched, exact=False)


@pytest.mark.parametrize("kind", ["jitted", "not jitted"])
def test_resumed_equals_uninterrupted(one, kind):
    if kind == "jitted":
        run, whole = quick_jit(small_run, static_argnames="tasks"), one(0.2, SEEDS[0])
    else:
        run = partial(small_run, learner=FixedPrior())
        whole = run(0.2, SEEDS[0])
    first = run(0.2, SEEDS[0], tasks=range(2))
    second = run(0.2, SEEDS[0], tasks=range(2, 4), carry=first.carry)
    assert_same(second.carry, whole.carry)
    for name in ("actions", "rewards", "regret", "support", "num_explore", "status", "gap", "num_steps"):
        equal(np.concatenate([getattr(first, name), getattr(second, name)]), getattr(whole, name))


def test_progress_is_reported_once_per_task_in_a_batch():
    told = []
    run = partial(small_run, 0.2, progress_fn=lambda done: told.append(int(done)), learner=FixedPrior())
    jax.block_until_ready(quick_jit(jax.vmap(run))(SEEDS))
    jax.effects_barrier()
    assert sorted(told) == [1, 2, 3, 4]


def test_lowers_for_every_platform():
    run = jax.jit(jax.vmap(lambda lam, data: small_run(lam, jax.random.wrap_key_data(data)).regret))
    exported = jax.export.export(run, platforms=["cpu", "cuda", "tpu"])(
        jax.ShapeDtypeStruct((2,), jnp.float64), jax.ShapeDtypeStruct((2, 2), jnp.uint32)
    )
    assert exported.platforms == ("cpu", "cuda", "tpu") and exported.out_avals[0].shape == (2, 4, 12)


def test_float32_is_kept():
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS.astype("float32"), key=SEEDS[0])
    learners = {"full": FixedPrior(), "flibo": FederatedMetaKGL(0.2, 0.25, 0.25, data="all")}
    results = quick_jit(partial(run_agents, **SIZES))(env, SMALL, GPUCB(5.0, 0.1), learners, key=SEEDS[0])
    for result in results.values():
        for leaf in jax.tree.leaves(result):
            assert leaf.dtype != jnp.float64 and np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize(
    "argument, options",
    [
        ("num_tasks", dict(num_tasks=0)),
        ("horizon", dict(horizon=2.5)),
        ("tasks", dict(tasks=range(9))),
        ("tasks", dict(tasks=range(0, 4, 2))),
        ("carry", dict(tasks=range(2, 4))),
        ("carry", dict(carry=())),
    ],
)
def test_invalid_arguments_of_run_lifelong(argument, options):
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0])
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        run_lifelong(env, SMALL, Greedy(0.1), FixedPrior(), **{**SIZES, **options}, key=SEEDS[0])


def test_num_tasks_is_limited_by_the_table():
    with pytest.raises(ValueError, match="`num_tasks` should be at most the 5 tasks"):
        run_lifelong(table(own=False), SMALL, Greedy(0.1), FixedPrior(), num_tasks=6, horizon=3, key=SEEDS[0])


def test_invalid_arguments_of_run_agents():
    env = SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0])
    with pytest.raises(ValueError, match="`meta_learners` should be"):
        run_agents(env, SMALL, Greedy(0.1), {}, **SIZES, key=SEEDS[0])
    with pytest.raises(ValueError, match="`exploration` should be"):
        run_agents(
            env,
            SMALL,
            Greedy(0.1),
            {"a": FixedPrior()},
            exploration={"b": ConstantExploration()},
            **SIZES,
            key=SEEDS[0],
        )


def test_eager_calls_are_compiled_once():
    traces = []

    class Counting(jlibo.AbstractPolicy):
        noise_std: jax.Array

        def scores(self, belief, *, key):
            traces.append(1)
            return belief.mean + belief.std

    features = jlibo.Cosine(4)
    env = jlibo.SyntheticEnv.draw(
        features, support_size=2, candidates=jnp.linspace(0, 1, 9)[:, None], key=jax.random.key(0)
    )

    def run(prior_scale, noise):
        prior = jlibo.Prior(jnp.zeros(4), jnp.full(4, prior_scale))
        learner = jlibo.FixedPrior(prior)
        policy = Counting(jnp.asarray(noise))
        return jlibo.run_lifelong(
            env, features, policy, learner, num_tasks=2, horizon=3, key=jax.random.key(0)
        )

    run(0.25, 0.1)
    first = len(traces)
    run(0.5, 0.2)
    assert first > 0
    assert len(traces) == first
