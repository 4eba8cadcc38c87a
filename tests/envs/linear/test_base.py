"""The linear environment: what it tells, and that its parts fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo.envs.linear import BallArms, Facts, LinearEnv, LowRankWeights

KEY = jax.random.key(0)
WEIGHTS = LowRankWeights.draw(num_features=4, rank=2, key=KEY)
ENV = LinearEnv(WEIGHTS, BallArms(1.0, 4), noise_std=0.5)


def test_a_method_sees_the_facts_it_names_only():
    facts = ENV.facts.only(["noise_std", "rank"])
    assert facts.rank == 2
    assert facts.noise_std == 0.5
    assert jax.tree.leaves(facts) == [facts.noise_std]
    assert facts.basis is None
    assert ENV.facts.basis is not None


def test_an_unknown_fact_is_refused():
    with pytest.raises(ValueError, match=r"`names` should be among noise_std, .*did you mean 'rank'"):
        Facts().only(["ranks"])


def test_parts_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="`arms` should be of 4 features, as the weights, but got 5"):
        LinearEnv(WEIGHTS, BallArms(1.0, 5), noise_std=0.5)
    with pytest.raises(ValueError, match="`noise_std` should be a number >= 0"):
        LinearEnv(WEIGHTS, BallArms(1.0, 4), noise_std=-1.0)


def test_a_task_is_a_function_of_its_key():
    first, second = (ENV.task(3, key=jax.random.key(1)).weights for _ in range(2))
    np.testing.assert_array_equal(first, second)
    best = ENV.actions(ENV.task(3, key=KEY), key=KEY).best(jnp.asarray([0.0, 2.0, 0.0, 0.0]))
    np.testing.assert_allclose(best.features, [0, 1, 0, 0])
