"""Mechanisms of the simulator: distribution of their noise, their privacy, and runs with them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import privacy
from jlibo.meta import RunSizes
from jlibo.meta.past import remember_all
from jlibo.privacy.mechanisms import mu_of

DELTA = 1e-5
NUM_GROUPS, HORIZON = 6, 40


@pytest.mark.parametrize("dtype, rtol", [(jnp.float32, 3e-4), (jnp.float64, 1e-8)])
def test_mu_of_traced_numbers_is_the_exact_one(dtype, rtol):
    epsilons = [0.01, 0.1, 1.0, 4.0, 30.0, 100.0]
    for delta in (1e-9, 1e-5, 0.1):
        found = jax.jit(jax.vmap(lambda epsilon: mu_of(epsilon, delta, dtype)))(jnp.asarray(epsilons, dtype))  # noqa: B023
        assert found.dtype == dtype
        exact = [privacy.gaussian_mu(epsilon, delta) for epsilon in epsilons]
        np.testing.assert_allclose(found, exact, rtol=rtol)


def released(mechanism, votes, keys):
    """Return what is released after each vote of one stream, [time, group]."""

    def one(carry, step):
        state, counts, number = carry
        selected, key = step
        client, server = jax.random.split(key)
        counts = counts + mechanism.message(selected, key=client)
        state, estimates = mechanism.release(state, counts, number, key=server)
        return (state, counts, number + 1), jnp.asarray(estimates, float)

    start = (
        mechanism.init(votes.shape[1], len(votes), jnp.result_type(float)),
        jnp.zeros(votes.shape[1], int),
    )
    return jax.lax.scan(one, (*start, jnp.asarray(1)), (votes, keys))[1]


@pytest.fixture(scope="module")
def votes():
    return jax.random.bernoulli(jax.random.key(1), 0.3, (HORIZON, NUM_GROUPS))


def many(mechanism, votes, number=2000):
    keys = jax.random.split(jax.random.key(0), (number, len(votes)))
    return np.asarray(jax.jit(jax.vmap(lambda keys: released(mechanism, votes, keys)))(keys))


MECHANISMS = {
    "toeplitz": privacy.ToeplitzNoise(2.0, DELTA, max_selected=3),
    "gnmax": privacy.GNMaxNoise(2.0, DELTA, max_selected=3),
    "local": privacy.RandomisedResponse(8.0, max_selected=3),
    "none": privacy.NoPrivacy(),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_are_unbiased(name, votes):
    found = many(MECHANISMS[name], votes)
    counts = np.cumsum(np.asarray(votes), 0)
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - counts) <= 4.5 * error + 1e-9).all()  # 240 numbers


def test_noise_of_all_releases_has_the_covariance_that_was_calibrated(votes):
    limits = dict(max_selected=3, horizon=HORIZON)
    noise = many(MECHANISMS["toeplitz"], votes, 6000) - np.cumsum(np.asarray(votes), 0)
    rows, columns = np.indices((HORIZON, HORIZON))
    weights = privacy.toeplitz_weights(HORIZON)
    root = np.where(rows >= columns, weights[np.maximum(rows - columns, 0)], 0.0)
    expected = privacy.toeplitz_scale(2.0, DELTA, **limits) ** 2 * root @ root.T
    pooled = np.einsum("ntg,nsg->ts", noise, noise) / (noise.shape[0] * NUM_GROUPS)
    np.testing.assert_allclose(pooled, expected, rtol=0, atol=0.05 * expected.max())
    # Other kernels have independent noise.
    assert abs(np.corrcoef(noise[:, -1, 0], noise[:, -1, 1])[0, 1]) < 0.06
    fresh = many(MECHANISMS["gnmax"], votes, 6000) - np.cumsum(np.asarray(votes), 0)
    np.testing.assert_allclose(fresh.std((0, 2)), privacy.gnmax_scale(2.0, DELTA, **limits), rtol=0.05)
    assert abs(np.corrcoef(fresh[:, -1, 0], fresh[:, -2, 0])[0, 1]) < 0.06


def test_randomised_response_is_unbiased_within_three_standard_errors(votes):
    found = many(MECHANISMS["local"], votes, 4000)[:, -1]
    counts = np.asarray(votes).sum(0)
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - counts) <= 3 * error).all()
    flip = privacy.flip_probability(8.0, max_selected=3)
    expected = np.sqrt(HORIZON * flip * (1 - flip)) / (1 - 2 * flip)
    np.testing.assert_allclose(found.std(0), expected, rtol=0.06)


# --- in runs ------------------------------------------------------------------------------------------------

FEATURES = jlibo.Cosine(num_features=NUM_GROUPS)


def run(mechanism, key, num_tasks=4, **options):
    env = jlibo.SyntheticEnv.draw(FEATURES, support_size=2, key=jax.random.key(3))
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.5, mechanism=mechanism, **options)
    policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
    return jlibo.run_lifelong(env, FEATURES, policy, learner, num_tasks=num_tasks, horizon=9, key=key)


def test_epsilon_is_an_axis_of_a_sweep_without_a_new_trace():
    key = jax.random.key(0)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def supports(epsilon):
        return run(privacy.ToeplitzNoise(epsilon, DELTA), key).support

    alone = [supports(jnp.asarray(epsilon)) for epsilon in (0.5, 2.0, 100.0)]
    at_once = jax.jit(jax.vmap(lambda epsilon: run(privacy.ToeplitzNoise(epsilon, DELTA), key).support))
    np.testing.assert_array_equal(at_once(jnp.asarray([0.5, 2.0, 100.0])), jnp.stack(alone))


def test_private_runs_play_the_same_tasks_and_draw_other_noise_for_each_seed():
    exact = run(privacy.NoPrivacy(), jax.random.key(0))
    noisy = run(privacy.ToeplitzNoise(1.0, DELTA), jax.random.key(0))
    np.testing.assert_array_equal(exact.rewards[0], noisy.rewards[0])
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.vmap(lambda key: run(privacy.ToeplitzNoise(1.0, DELTA), key))(keys).carry[0].mechanism
    assert (states[0] != states[1]).all()


def test_resumed_run_draws_the_same_noise():
    key, mechanism = jax.random.key(0), privacy.ToeplitzNoise(4.0, DELTA)
    env = jlibo.SyntheticEnv.draw(FEATURES, support_size=2, key=jax.random.key(3))
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.5, mechanism=mechanism)
    parts = (env, FEATURES, jlibo.GPUCB(nu=10.0, noise_std=0.1), learner)
    whole = jlibo.run_lifelong(*parts, num_tasks=4, horizon=9, key=key)
    first = jlibo.run_lifelong(*parts, num_tasks=4, horizon=9, key=key, tasks=range(2))
    second = jlibo.run_lifelong(*parts, num_tasks=4, horizon=9, key=key, tasks=range(2, 4), carry=first.carry)
    chex.assert_trees_all_equal(second.carry, whole.carry)


def test_support_freezes_after_the_declared_number_of_votes():
    result = run(privacy.GNMaxNoise(1.0, DELTA), jax.random.key(1), num_tasks=6, num_votes=3)
    support = np.asarray(result.support)
    assert (support[3:] == support[2]).all()
    assert result.carry[0].num_clients == 3


def test_updates_without_a_key_are_refused():
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.5, mechanism=privacy.ToeplitzNoise(1.0, DELTA))
    sizes = RunSizes(FEATURES.groups, 2, 5, 3, jnp.float64)
    data = jlibo.TaskData(jnp.ones((5, NUM_GROUPS)), jnp.ones(5), jnp.arange(5) < 3)
    with pytest.raises(ValueError, match=r"`data\.key` should be a random key, which ToeplitzNoise needs"):
        learner.update(learner.init(sizes), data, sizes)


def test_votes_have_at_most_the_allowed_number_of_kernels():
    from jlibo.meta.federated import strongest

    norms = jnp.asarray([0.5, 0.9, 0.5, 0.1, 0.0])
    np.testing.assert_array_equal(strongest(norms, norms > 0.05, None), [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(strongest(norms, norms > 0.05, 3), [1, 1, 1, 0, 0])
    assert strongest(norms, norms > 0.05, 2).sum() == 2  # of equal norms only one
    np.testing.assert_array_equal(strongest(norms, norms > 0.8, 3), [0, 1, 0, 0, 0])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: privacy.ToeplitzNoise(0.0, DELTA), "`epsilon`"),
        (lambda: privacy.GNMaxNoise(1.0, 0.9), "`delta`"),
        (lambda: privacy.RandomisedResponse(1.0, max_selected=0), "`max_selected`"),
        (lambda: privacy.ToeplitzNoise(1.0, DELTA, neighbours="other"), "`neighbours`"),
        (lambda: jlibo.FederatedMetaKGL(0.1, 0.1, 0.5, num_votes=0), "`num_votes`"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("name", MECHANISMS)
def test_learning_all_tasks_at_once_equals_updating_task_by_task(name):
    learner = jlibo.FederatedMetaKGL(0.1, 0.05, 0.4, data="all", mechanism=MECHANISMS[name], num_votes=3)
    sizes = RunSizes(FEATURES.groups, 4, 5, 3, jnp.float64)
    rng = np.random.default_rng(0)
    data = jlibo.TaskData(
        jnp.asarray(rng.normal(size=(4, 5, NUM_GROUPS))),
        jnp.asarray(rng.normal(size=(4, 5))),
        jnp.ones((4, 5), bool),
        key=jax.random.split(jax.random.key(0), 4),
    )

    def step(state, one):
        state, info = learner.update(state, one, sizes)
        return state, (state, info.support)

    _, (states, supports) = jax.lax.scan(step, learner.init(sizes), data)
    for num_done in (1, 3, 4):
        past = remember_all(data, jnp.arange(4) < num_done, "all", sizes)
        state, info = learner.learn(past, jnp.asarray(num_done), sizes)
        expected = jax.tree.map(lambda leaf, last=num_done - 1: leaf[last], states)
        chex.assert_trees_all_close(state, expected)
        np.testing.assert_array_equal(info.support, supports[num_done - 1])
