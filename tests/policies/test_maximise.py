"""Maximisation of policies over a box: known optima, bounds, ties, transforms and bad input."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from jlibo import (
    GPUCB,
    AbstractPolicy,
    Cosine,
    Fourier,
    FunctionFeatures,
    Greedy,
    Polynomial,
    Prior,
    Uniform,
    box_grid,
    full_prior,
    maximise,
)
from jlibo.belief import posterior as gp
from tests.policies.cases import KEY, POLICIES, OneScore, close

FEATURES = {
    1: Fourier(3, constant=True, lower=-1.0, upper=3.0),
    2: Cosine(7, dim=2, lower=(0, 5), upper=(1, 9)),
}


class OneOf(AbstractPolicy):
    """One of several policies, by index, so that the tests of all policies share one compiled program."""

    index: Array
    policies: tuple[AbstractPolicy, ...]
    noise_std: float = 0.1

    def scores(self, belief, *, key):
        branches = [lambda policy=policy: policy.scores(belief, key=key) for policy in self.policies]
        return jax.lax.switch(self.index, branches)


def one_of(name):
    return OneOf(jnp.asarray(list(POLICIES).index(name)), tuple(POLICIES.values()))


@eqx.filter_jit
def random_posterior(features, seed):
    key_mean, key_points, key_rewards = jax.random.split(jax.random.key(seed), 3)
    low, high = jnp.asarray(features.lower), jnp.asarray(features.upper)
    mean = jax.random.normal(key_mean, (features.num_features,))
    points = low + (high - low) * jax.random.uniform(key_points, (4, features.dim))
    seen = (features(points), jax.random.normal(key_rewards, (4,)))
    start = gp.init(Prior(mean, full_prior(features.groups).covariance), 0.1)
    return jax.lax.scan(lambda at, one: (gp.observe(at, *one), None), start, seen)[0]


@eqx.filter_jit
def climb(policy, posterior, features, key):
    return maximise(policy, posterior, features, num_candidates=20, num_starts=3, num_steps=15, key=key)


@eqx.filter_jit
def score_at(policy, posterior, features, points, key):
    """The scores that `maximise(..., key=key)` maximises."""
    return policy.scores(gp.belief_at(posterior, features(points)), key=jax.random.split(key)[1])


@eqx.filter_jit
def climb_many(policy, features, seed):
    """Maximise on 16 random posteriors; return the results and the scores at their points."""

    def climb_one(seed):
        posterior, key = random_posterior(features, seed), jax.random.key(seed)
        found = climb(policy, posterior, features, key)
        return found, score_at(policy, posterior, features, found.point[None], key)[0]

    return jax.lax.map(climb_one, seed + jnp.arange(16))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("dim", [1, 2])
@settings(max_examples=max(1, settings().max_examples // 5))
@given(seed=st.integers(0, 2**30))
def test_maximise_is_never_worse_than_its_best_candidate(name, dim, seed):
    features = FEATURES[dim]
    found, scores = jax.tree.map(np.asarray, climb_many(one_of(name), features, jnp.asarray(seed)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert (found.score >= found.start_score).all()
    assert (found.point >= features.lower).all() and (found.point <= features.upper).all()
    # The reported score is the score at the reported point.
    np.testing.assert_allclose(scores, found.score, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "features, best",
    [
        (Cosine(1, lower=0.0, upper=3.0), [0.0]),  # the optimum is the lower end
        (FunctionFeatures(lambda x: -((x - 0.4321) ** 2), groups=[0], lower=-1.0, upper=1.0), [0.4321]),
        (FunctionFeatures(lambda x: jnp.exp(x), groups=[0], lower=-0.1, upper=0.7), [0.7]),
        (
            FunctionFeatures(
                lambda x: -jnp.sum((x - jnp.array([0.123, 7.7])) ** 2)[None],
                groups=[0],
                lower=(0, 5),
                upper=(1, 9),
            ),
            [0.123, 7.7],
        ),
        (Polynomial(1, dim=2, lower=(0.1, 0.2), upper=(0.3, 0.7)), [0.3, 0.7]),  # a corner
    ],
    ids=["lower end", "1-d", "upper end", "2-d", "corner"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximise_finds_a_known_optimum(features, best, dtype):
    ones = np.ones(features.num_features, dtype)
    grid = box_grid(features, 8)
    posterior = gp.init(Prior(ones, ones), 0.1)
    found = maximise(Greedy(0.1), posterior, features, candidates=grid, num_steps=120, key=KEY)
    width = np.subtract(features.upper, features.lower)
    np.testing.assert_allclose((found.point - np.array(best)) / width, 0, atol=2e-3)
    assert found.point.dtype == found.score.dtype == dtype
    assert (found.point >= np.array(features.lower, dtype)).all()
    assert (found.point <= np.array(features.upper, dtype)).all()
    if not (np.asarray(grid) == best).all(1).any():
        assert found.score > found.start_score


@pytest.mark.parametrize("dim, fine", [(1, 20_001), (2, 201)])
def test_maximise_finds_the_global_optimum_of_gp_ucb(dim, fine):
    features, policy = FEATURES[dim], GPUCB(2.0, 0.1)
    posterior = random_posterior(features, 5)
    scores = partial(score_at, policy, posterior, features, key=KEY)
    best, coarse = scores(box_grid(features, fine)).max(), box_grid(features, 12)
    found = maximise(policy, posterior, features, candidates=coarse, key=KEY)
    close(found.start_score, scores(coarse).max())
    spread = best - scores(coarse).min()
    assert found.score >= best - 1e-4 * spread and found.start_score < best - 1e-3 * spread


@pytest.mark.parametrize("name", POLICIES)
def test_maximise_without_steps_returns_the_best_candidate(name):
    policy, features = one_of(name), FEATURES[2]
    posterior, candidates = random_posterior(features, 0), box_grid(features, 5)
    found = maximise(policy, posterior, features, candidates=candidates, num_steps=0, key=KEY)
    assert (np.asarray(candidates) == np.asarray(found.point)).all(1).any()
    close(found.score, found.start_score)
    if name != "uniform":
        scores = score_at(policy, posterior, features, candidates, KEY)
        close(found.score, scores.max())
        close(found.point, candidates[scores.argmax()])


def test_maximise_breaks_ties_at_random():
    """Uniform gives all points the same score, and must play anywhere."""
    posterior = random_posterior(FEATURES[1], 0)
    play = partial(
        maximise, Uniform(), posterior, FEATURES[1], candidates=box_grid(FEATURES[1], 4), num_steps=0
    )
    points = [float(play(key=key).point[0]) for key in jax.random.split(KEY, 60)]
    assert len(np.unique(np.round(points, 6))) == 4


def test_maximise_under_vmap_equals_a_loop():
    """Over posteriors, keys and policies at once."""
    features, seeds, nus = FEATURES[1], jnp.arange(3), jnp.array([0.0, 1.0, 5.0])
    posteriors = jax.vmap(partial(random_posterior, features))(seeds)
    keys = jax.random.split(KEY, 3)
    batch = jax.vmap(lambda nu, *rest: climb(GPUCB(nu, 0.1), rest[0], features, rest[1]))(
        nus, posteriors, keys
    )
    for i in range(3):
        alone = climb(GPUCB(nus[i], 0.1), random_posterior(features, seeds[i]), features, keys[i])
        for part in ("point", "score", "start_score"):
            np.testing.assert_allclose(getattr(batch, part)[i], getattr(alone, part), atol=1e-7)


def test_maximise_skips_a_bad_candidate_inside_jit():
    features, posterior = FEATURES[1], random_posterior(FEATURES[1], 0)
    run = jax.jit(lambda points: maximise(Greedy(0.1), posterior, features, candidates=points, key=KEY))
    good = run(jnp.array([[0.0], [1.0], [2.0]]))
    bad = run(jnp.array([[0.0], [jnp.nan], [99.0]]))
    assert np.isfinite(bad.score) and np.isfinite(bad.point).all() and bad.start_score <= good.start_score


# --- bad input ---

ON_LINE = random_posterior(FEATURES[1], 0)
run_line = partial(maximise, Greedy(0.1), ON_LINE, FEATURES[1], key=KEY)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: run_line(candidates=np.zeros(3)), r"`candidates` should be .*shape \[candidates, 1\]"),
        (lambda: run_line(candidates=np.zeros((0, 1))), "`candidates` should be at least one point"),
        (lambda: run_line(candidates=np.full((2, 1), np.nan)), "`candidates` should be finite"),
        (lambda: run_line(candidates=[[0.0], [3.5]]), r"`candidates` .*in the box .*but got \[3.5\]"),
        (lambda: run_line(num_candidates=0), "`num_candidates` should be a whole number >= 1"),
        (lambda: run_line(num_starts=0), "`num_starts` should be a whole number >= 1"),
        (lambda: run_line(num_steps=-1), "`num_steps` should be a whole number >= 0"),
        (lambda: run_line(num_steps=1.5), "`num_steps` should be a whole number"),
        (lambda: run_line(learning_rate=0.0), "`learning_rate` should be a number > 0"),
        (lambda: run_line(learning_rate=np.inf), "`learning_rate` should be finite"),
        (lambda: maximise(Greedy(0.1), ON_LINE, Cosine(2), key=KEY), "`features` .*7 features, but got 2"),
        (lambda: maximise(OneScore(0.1), ON_LINE, FEATURES[1], key=KEY), r"`scores` .*shape \[1\]"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
