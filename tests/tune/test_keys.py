"""Keys computed on the host have the bits of those of jax, with every setting of its generators."""

import jax
import numpy as np
import pytest

from jlibo.lifelong.one_task import split_task_key
from jlibo.tune import keys

SEEDS = ((0,), (7, 3), (2**31 - 1, 1), (2**31, 5, 2**31 - 1), (2**32 + 17, 4), (1, 2**31), (3, 2**32 - 1))


def by_jax(seed):
    key = jax.random.key(seed[0])
    for number in seed[1:]:
        key = jax.random.fold_in(key, number)
    return key


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("x64", [True, False])
def test_keys_have_the_bits_of_jax(seed, x64):
    with jax.enable_x64(x64):
        try:
            key = by_jax(seed)
        except OverflowError:
            with pytest.raises(OverflowError):
                keys.folded(seed)
            return
        assert keys.folded(seed) == key
        expected = jax.random.key_data(jax.random.split(split_task_key(key).policy, 9))
        np.testing.assert_array_equal(keys.policy_keys(key, 9), expected)
        np.testing.assert_array_equal(keys.split(key, 3), jax.random.key_data(jax.random.split(key, 3)))


def test_other_generators_are_left_to_jax():
    with jax.threefry_partitionable(False):
        expected = jax.random.key_data(jax.random.split(by_jax((1, 2)), 5))
        np.testing.assert_array_equal(keys.split(keys.folded((1, 2)), 5), expected)
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    try:
        assert keys.folded((1, 2)) == by_jax((1, 2))
    finally:
        jax.config.update("jax_default_prng_impl", before)
