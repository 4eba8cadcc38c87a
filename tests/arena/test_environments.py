"""The environments of the arena: drawn by seed, with the facts that their methods need."""

import jax
import numpy as np
import pytest

from jlibo.arena import ENVIRONMENTS
from jlibo.arena.environments import GROWTH

COMMON = {"noise_std", "norm_bound", "prior", "marginal"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_the_facts_that_all_methods_may_use(name):
    environment = ENVIRONMENTS[name]
    assert environment.name == name
    assert environment.known_facts >= COMMON
    assert environment.kind in ("fixed", "fresh", "continuous")
    assert environment.num_features == environment.shape.num_features


@pytest.mark.parametrize("name", ["sparse-grid", "low-rank-ellipsoid", "gaussian-low-rank", "revelation"])
def test_seeds_differ_and_are_drawn_in_a_batch(name):
    environment = ENVIRONMENTS[name]

    def weights(key):
        env = environment.draw(key)
        return jax.vmap(lambda index: env.task(index, key=jax.random.fold_in(key, index)).weights)(
            jax.numpy.arange(2)
        )

    keys = jax.random.split(jax.random.key(0), 2)
    batch = np.asarray(jax.jit(jax.vmap(weights))(keys))
    assert np.isfinite(batch).all()
    assert not np.allclose(batch[0], batch[1])
    np.testing.assert_allclose(batch[1], weights(keys[1]), atol=1e-9)


def test_growth_changes_the_number_of_features_only():
    sizes = {ENVIRONMENTS[name].num_features for name in GROWTH}
    assert sizes == {50, 200, 800}
    assert len({(ENVIRONMENTS[name].num_tasks, ENVIRONMENTS[name].horizon) for name in GROWTH}) == 1


def test_sized_changes_sizes_only():
    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2)
    assert (small.num_tasks, small.horizon) == (2, ENVIRONMENTS["gaussian-arms"].horizon)
    with pytest.raises(ValueError, match="`horizon` should be a whole number >= 1"):
        small.sized(horizon=0)
