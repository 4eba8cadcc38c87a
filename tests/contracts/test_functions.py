"""The contract of every feature map, policy, posterior function and solver, by one table of cases.

Every function gives equal results under `jit`, `vmap` and eagerly, keeps the dtype of its data, is traced
once for all numbers, and lowers for cpu, cuda and tpu; every module is a pytree of arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jlibo
from jlibo import Cosine, Prior
from jlibo.belief import posterior as gp
from tests.contracts.table import POLICIES
from tests.features.maps import CASES as MAPS
from tests.features.maps import points_of

COSINE = Cosine(6)


# --- arguments for a seed and a dtype; shapes do not depend on the seed ---


def normal(seed, *shape, dtype):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def make_prior(seed, dtype):
    rows = normal(seed, 6, 4, dtype=dtype)
    return Prior(normal(seed + 9, 6, dtype=dtype), rows @ rows.T)


@jax.jit
def posterior_of_one(prior, noise_std, row):
    return gp.observe(gp.init(prior, noise_std), row, 0.5)


def make_posterior(seed, dtype):
    return posterior_of_one(make_prior(seed, dtype), 0.1 + seed, normal(seed, 6, dtype=dtype))


def make_features(seed, dtype):
    return COSINE(jnp.asarray(np.random.default_rng(seed).uniform(size=(5, 1)), dtype))


belief_at = jax.jit(gp.belief_at)


def make_belief(seed, dtype):
    return belief_at(make_posterior(seed, dtype), make_features(seed, dtype))


def make_problem(seed, dtype):
    design = normal(seed, 3, 5, 6, dtype=dtype)
    mask = jnp.arange(5) < jnp.array([[5], [3], [4]])
    return design, normal(seed + 1, 3, 5, dtype=dtype), jnp.asarray(0.1 + seed, dtype), mask


# --- the table ---


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    make: Callable[[int, Any], tuple]
    """`make(seed, dtype)`: the arguments of `fn`, all of them pytrees of arrays."""


def key_of(seed, dtype):
    return jax.random.key(seed)


def argument(maker):
    """An argument that depends only on the seed, such as a policy."""
    return lambda seed, dtype: maker(seed)


def case(fn, *makers):
    return Case(fn, lambda seed, dtype: tuple(make(seed, dtype) for make in makers))


def of_map(make):
    points = partial(points_of, make(), 3)
    return case(
        lambda f, x: f(x), argument(lambda seed: make()), lambda s, dtype: jnp.asarray(points(s), dtype)
    )


def of_policy(make):
    return case(lambda p, b, key: p.scores(b, key=key), argument(make), make_belief, key_of)


def of_box(make):
    run = partial(jlibo.maximise, features=COSINE, num_candidates=9, num_starts=2, num_steps=3)
    return case(lambda p, q, key: run(p, q, key=key), argument(make), make_posterior, key_of)


def of_solver(fn):
    solve = partial(fn, groups=[0, 1, 1, 2, 0, 2])
    return Case(lambda args: solve(*args[:-1], mask=args[-1]), lambda *how: (make_problem(*how),))


CASES = {
    **{f"features {name}": of_map(make) for name, make in MAPS.items()},
    "support_prior": case(
        lambda support, x: jlibo.support_prior(support, COSINE.groups, dtype=x.dtype),
        argument(lambda seed: jnp.arange(6) % (2 + seed) == 0),
        make_features,
    ),
    "prior variance": case(lambda p, x: (p.variance(x), p.factor()), make_prior, make_features),
    "init": case(gp.init, make_prior, argument(lambda seed: jnp.asarray(0.1 + seed))),
    "observe": case(
        gp.observe,
        make_posterior,
        lambda s, dtype: normal(s, 6, dtype=dtype),
        argument(lambda seed: jnp.asarray(0.3 + seed)),
    ),
    "predict": case(gp.predict, make_posterior, make_features),
    "sample": case(lambda q, x, key: gp.sample(q, x, key=key), make_posterior, make_features, key_of),
    "sample_weights": case(lambda q, key: gp.sample_weights(q, key=key), make_posterior, key_of),
    "belief_at": case(gp.belief_at, make_posterior, make_features),
    "observe_candidate": case(
        gp.observe_candidate,
        make_belief,
        argument(lambda seed: jnp.asarray(2 + seed)),
        argument(lambda seed: jnp.asarray(0.3 + seed)),
    ),
    "observe_pending": case(gp.observe_pending, make_belief, argument(lambda seed: jnp.asarray(2 + seed))),
    **{f"policy {name}": of_policy(make) for name, make in POLICIES.items()},
    "choose": case(
        lambda p, b, a, key: jlibo.choose(p, b, available=a, key=key),
        argument(POLICIES["gp_ucb"]),
        make_belief,
        argument(lambda seed: jnp.arange(5) > seed),
        key_of,
    ),
    "maximise gp_ucb": of_box(POLICIES["gp_ucb"]),
    "maximise gp_ts": of_box(POLICIES["gp_ts"]),
    "lambda_max": of_solver(lambda x, y, lam, **rest: jlibo.lambda_max(x, y, **rest)),
    "group_lasso": of_solver(jlibo.group_lasso),
    "group_lasso_path": of_solver(
        lambda x, y, lam, **rest: jlibo.group_lasso_path(x, y, lam * jnp.array([2.0, 1.0], x.dtype), **rest)
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@cache
def arguments(name, seed, dtype):
    return CASES[name].make(seed, dtype)


assert_same = partial(chex.assert_trees_all_close, rtol=1e-8, atol=1e-10)


def floating(tree):
    return {leaf.dtype.name for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


# --- the contract ---


@every_case
def test_jit_equals_eager_without_retracing(name):
    @jax.jit
    @chex.assert_max_traces(n=1)
    def jitted(*args):
        return CASES[name].fn(*args)

    for seed in (0, 1):
        args = arguments(name, seed, "float64")
        assert_same(jitted(*args), CASES[name].fn(*args))


@every_case
def test_batched_equals_looped(name):
    lanes = [arguments(name, seed, "float64") for seed in (0, 1)]
    batch = jax.tree.map(stack, *lanes)
    out = jax.device_get(jax.jit(jax.vmap(CASES[name].fn))(*batch))
    for i, lane in enumerate(lanes):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], out), CASES[name].fn(*lane))


def stack(*leaves):
    """Stack by NumPy, which compiles nothing, except for random keys."""
    is_key = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jnp.stack(leaves) if is_key else jnp.asarray(np.stack(leaves))


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_output_dtype_equals_input_dtype(name, dtype):
    """Including float32 while x64 is enabled, with Python numbers or float64 scalars as other arguments."""
    out = jax.eval_shape(CASES[name].fn, *arguments(name, 0, dtype))
    assert floating(out) <= {dtype}


@every_case
def test_lowers_for_every_platform(name):
    args = arguments(name, 0, "float32")
    exported = export.export(jax.jit(CASES[name].fn), platforms=["cpu", "cuda", "tpu"])(*args)
    assert exported.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
def test_python_numpy_and_jax_numbers_share_one_trace(make):
    @jax.jit
    @chex.assert_max_traces(n=1)
    def scores(policy, belief):
        return policy.scores(belief, key=jax.random.key(0))

    belief = make_belief(0, np.float32)
    for seed in (0, 1.5, np.float64(2.5), np.int64(3), np.float32(4)):
        assert scores(make(seed), belief).dtype == np.float32


def test_eager_maximise_is_compiled_once():
    calls = []

    class Counted(jlibo.AbstractPolicy):
        noise_std: jax.Array

        def scores(self, belief, *, key):
            calls.append(1)
            return belief.mean

    def run(seed):
        policy, posterior = Counted(jnp.asarray(0.1 + seed)), make_posterior(seed, "float64")
        rate = 0.01 * (1 + seed)
        return jlibo.maximise(
            policy, posterior, COSINE, num_steps=2, learning_rate=rate, key=jax.random.key(seed)
        )

    run(0)
    num_calls = len(calls)
    run(1)
    assert num_calls > 0 and len(calls) == num_calls


# --- modules ---

MODULES = {
    **{f"features {name}": make for name, make in MAPS.items()},
    **{f"policy {name}": partial(make, 1) for name, make in POLICIES.items()},
    "prior": partial(make_prior, 0, np.float32),
    "belief and posterior": partial(make_belief, 0, np.float32),
    "solution": lambda: CASES["group_lasso"].fn(*arguments("group_lasso", 0, "float64")),
    "box maximum": lambda: CASES["maximise gp_ucb"].fn(*arguments("maximise gp_ucb", 0, "float64")),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
def test_modules_are_pytrees_of_arrays(make):
    module = make()
    leaves, structure = jax.tree.flatten(module)
    assert all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    assert hash(structure) == hash(jax.tree.structure(make()))
    assert eqx.tree_equal(jax.tree.unflatten(structure, leaves), module)
    doubled = jax.tree.map(lambda leaf: 2 * np.asarray(leaf), module)
    assert type(doubled) is type(module) and jax.tree.structure(doubled) == structure
    for new, old in zip(jax.tree.leaves(doubled), leaves, strict=True):
        np.testing.assert_array_equal(new, 2 * np.asarray(old))
