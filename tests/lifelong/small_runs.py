"""Small environments and sizes of runs, and comparisons of results, for the tests of the lifelong loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jlibo import Cosine, FunctionEnv, SyntheticEnv, TableEnv

# The programs run briefly: with less optimisation they compile in half the time.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
close = np.testing.assert_allclose
equal = np.testing.assert_array_equal


def scattered(num, dim=1, seed=0):
    """Random candidates, because the symmetries of a grid give exact ties."""
    return np.sort(np.random.default_rng(seed).random((num, dim)), axis=0)


def assert_same(first, second, exact=True):
    """Compare two results leaf by leaf: bitwise, or floating-point leaves up to round-off."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if exact or not jnp.issubdtype(a.dtype, jnp.floating):
            equal(a, b)
        else:
            close(a, b, rtol=1e-7, atol=1e-7)


SMALL = Cosine(6)
SIZES = dict(num_tasks=4, horizon=12)
POINTS = scattered(15)
SEEDS = jax.random.split(jax.random.key(0), 4)


def table(own):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 15))
    values[rng.random(values.shape) < 0.4] = np.nan
    return TableEnv(values, rng.random((5, 15, 1)) if own else POINTS, noise_std=0.1).shuffled(key=SEEDS[1])


ENVS = {
    "synthetic": lambda: SyntheticEnv.draw(SMALL, support_size=2, candidates=POINTS, key=SEEDS[0]),
    "table": lambda: table(own=False),
    "table of own candidates": lambda: table(own=True),
    "function": lambda: FunctionEnv(
        POINTS,
        lambda point, centre: -jnp.sum((point - centre) ** 2),
        lambda index, key: jax.random.uniform(key),
        0.1,
    ),
}
