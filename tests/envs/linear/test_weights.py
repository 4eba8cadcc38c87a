"""Laws of weights: their moments are those they state, and they share what they say they share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo.envs.linear import (
    GaussianWeights,
    JointlySparseWeights,
    KernelWeights,
    LowRankWeights,
    ShiftedWeights,
)

KEY = jax.random.key(0)
COVARIANCE = jnp.asarray([[0.5, 0.2, 0.0], [0.2, 0.3, 0.0], [0.0, 0.0, 0.0]])
LAWS = {
    "kernel": KernelWeights.draw(range(6), support_size=2, norm_bound=2.0, beta_min=0.0, key=KEY),
    "low rank": LowRankWeights.draw(num_features=6, rank=2, key=KEY),
    "gaussian": GaussianWeights.draw(hyper_std=0.5, covariance=COVARIANCE, key=KEY),
    "jointly sparse": JointlySparseWeights.draw(num_features=6, support_size=2, key=KEY),
    "shifted": ShiftedWeights(LowRankWeights.draw(num_features=6, rank=2, key=KEY), jnp.arange(6.0)),
}


def draws(law, num=20_000):
    keys = jax.random.split(jax.random.key(1), num)
    return np.asarray(jax.jit(jax.vmap(lambda key: law.draw_weights(jnp.asarray(50), key=key)))(keys))


@pytest.mark.parametrize("name", LAWS)
def test_mean_and_covariance_are_those_of_the_oracle(name):
    law = LAWS[name]
    weights, prior = draws(law), law.facts.prior
    covariance = prior.covariance if prior.covariance.ndim == 2 else jnp.diag(prior.covariance)
    scale = max(float(jnp.abs(covariance).max()), 1e-3)
    np.testing.assert_allclose(weights.mean(0), prior.mean, atol=5 * (scale / 20_000) ** 0.5)
    np.testing.assert_allclose(np.cov(weights.T), covariance, atol=0.05 * scale)


@pytest.mark.parametrize("name", LAWS)
def test_the_marginal_is_the_mean_over_what_tasks_share(name):
    """The mean square of weights over many laws is that of the marginal, which no law tells apart."""
    law = LAWS[name]
    made = {
        "kernel": lambda key: KernelWeights.draw(
            range(6), support_size=2, norm_bound=2.0, beta_min=0.0, key=key
        ),
        "low rank": lambda key: LowRankWeights.draw(num_features=6, rank=2, key=key),
        "gaussian": lambda key: GaussianWeights.draw(hyper_std=0.5, covariance=COVARIANCE, key=key),
        "jointly sparse": lambda key: JointlySparseWeights.draw(num_features=6, support_size=2, key=key),
    }
    if name not in made:
        assert law.facts.marginal is not None
        return

    def one(key):
        first, second = jax.random.split(key)
        return made[name](first).draw_weights(jnp.asarray(0), key=second)

    weights = jax.jit(jax.vmap(one))(jax.random.split(KEY, 20_000))
    marginal = law.facts.marginal
    variances = marginal.covariance if marginal.covariance.ndim == 1 else jnp.diagonal(marginal.covariance)
    expected = np.asarray(variances + marginal.mean**2)
    np.testing.assert_allclose(np.mean(np.asarray(weights) ** 2, 0), expected, rtol=0.08)


def test_kernel_weights_are_those_of_the_synthetic_environment():
    features = jlibo.Cosine(10)
    env = jlibo.SyntheticEnv.draw(features, support_size=3, key=KEY)
    law = KernelWeights.draw(features.groups, support_size=3, key=KEY)
    np.testing.assert_array_equal(law.support, env.support)
    key = jax.random.key(7)
    np.testing.assert_array_equal(law.draw_weights(0, key=key), env.coefficients(key=key))


def test_low_rank_weights_are_in_the_subspace():
    law = LAWS["low rank"]
    basis = np.asarray(law.basis)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-12)
    weights = draws(law, 100)
    np.testing.assert_allclose(weights @ basis @ basis.T, weights, atol=1e-12)
    norms = np.linalg.norm(weights, axis=1)
    assert 0.8 <= norms.min() < 0.83
    assert 0.97 < norms.max() <= 1.0


def test_directions_are_revealed_one_after_the_other():
    law = LowRankWeights.draw(num_features=5, rank=3, reveals=(0, 4, 9), key=KEY)
    within = np.asarray(
        [law.draw_weights(index, key=jax.random.key(index)) @ law.basis for index in range(12)]
    )
    known = np.abs(within) > 1e-9
    np.testing.assert_array_equal(known[[0, 4, 9]], np.eye(3, dtype=bool))
    np.testing.assert_array_equal(known[[1, 3, 5, 8, 10]], [[1, 0, 0]] * 2 + [[1, 1, 0]] * 2 + [[1, 1, 1]])


def test_an_axis_aligned_subspace_is_sparse():
    law = LowRankWeights.draw(num_features=6, rank=2, is_axis_aligned=True, key=KEY)
    assert (np.asarray(law.draw_weights(0, key=KEY)) != 0).sum() == 2


def test_without_covariance_all_tasks_have_the_same_weights():
    law = GaussianWeights.draw(hyper_std=1.0, covariance=jnp.zeros((3, 3)), key=KEY)
    np.testing.assert_array_equal(draws(law, 10), np.tile(law.mean, (10, 1)))


def test_sparse_weights_have_a_rank_if_groups_have_one_size():
    key = jax.random.key(0)
    for groups, rank in ((range(6), 2), ((0, 0, 1, 1, 2, 2), 4), ((0, 0, 1, 2), None)):
        assert KernelWeights.draw(tuple(groups), support_size=2, key=key).facts.rank == rank
    assert JointlySparseWeights.draw(num_features=6, support_size=2, key=key).facts.rank == 2


def test_a_shift_keeps_the_facts_about_the_rest():
    facts = LAWS["shifted"].facts
    assert facts.rank == 2
    np.testing.assert_allclose(facts.prior.mean, np.arange(6.0))
    np.testing.assert_allclose(facts.norm_bound, 1 + np.linalg.norm(np.arange(6.0)))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`support_size` should be at most the 6 groups"):
        KernelWeights.draw(range(6), support_size=7, key=KEY)
    with pytest.raises(ValueError, match="`rank` should be at most the 4 features"):
        LowRankWeights.draw(num_features=4, rank=5, key=KEY)
    with pytest.raises(ValueError, match="`reveals` should be 2 increasing numbers, the first of them 0"):
        LowRankWeights.draw(num_features=4, rank=2, reveals=(1, 3), key=KEY)
    with pytest.raises(ValueError, match=r"`covariance` should be an array of shape \[3, 3\]"):
        GaussianWeights(jnp.zeros(3), jnp.eye(2), jlibo.Prior(jnp.zeros(3), jnp.ones(3)))
    with pytest.raises(ValueError, match=r"`shift` should be an array of shape \[6\]"):
        ShiftedWeights(LAWS["low rank"], jnp.ones(5))
