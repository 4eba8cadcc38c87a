"""Environments: draws of the synthetic data model, tables with missing values, user functions, errors."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jlibo import AbstractEnv, Cosine, FixedPrior, Fourier, FunctionEnv, Greedy, SyntheticEnv, TableEnv
from jlibo.envs.base import Task
from jlibo.experiments import run_offline
from jlibo.lifelong.exploration import explore_once, explore_uniformly
from jlibo.lifelong.one_task import draw_task
from jlibo.lifelong.play import plan_agents

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 2000)
FOURIER = Fourier(6)  # groups of two features
POINTS = np.linspace(0, 1, 8)[:, None]


def group_norms(coef, groups):
    return np.sqrt(
        np.stack([(coef[:, np.asarray(groups) == j] ** 2).sum(1) for j in range(max(groups) + 1)], 1)
    )


@jax.jit
def _coefficients(env, keys):
    return jax.vmap(lambda key: env.coefficients(key=key))(keys)


def coefficients(env, keys=KEYS):
    return np.asarray(_coefficients(env, keys))


# --- the number of tasks ---


class _Endless(AbstractEnv):
    candidates: jax.Array
    noise_std: jax.Array

    def task(self, index, *, key):
        return Task(self.candidates[:, 0] * (1 + index))


class _WithField(_Endless):
    num_tasks: int = eqx.field(static=True, default=3)


class _WithProperty(_Endless):
    @property
    def num_tasks(self):
        return 3


class _WithInit(_Endless):
    num_tasks: int = eqx.field(static=True)

    def __init__(self, candidates, noise_std):
        self.candidates, self.noise_std, self.num_tasks = candidates, noise_std, 3


def _function(num_tasks):
    return FunctionEnv(POINTS, lambda point, slope: slope * point[0], lambda index, key: 1.0, 0.1, num_tasks)


NUM_TASKS = {
    "synthetic": (lambda: SyntheticEnv.draw(FOURIER, support_size=2, candidates=POINTS, key=KEY), None),
    "function": (lambda: _function(None), None),
    "limited function": (lambda: _function(3), 3),
    "table": (lambda: TableEnv(np.ones((3, 8)), POINTS), 3),
    "own": (lambda: _Endless(jnp.asarray(POINTS), jnp.asarray(0.1)), None),
    "own, a field": (lambda: _WithField(jnp.asarray(POINTS), jnp.asarray(0.1)), 3),
    "own, a property": (lambda: _WithProperty(jnp.asarray(POINTS), jnp.asarray(0.1)), 3),
    "own, set in init": (lambda: _WithInit(jnp.asarray(POINTS), jnp.asarray(0.1)), 3),
}


@pytest.mark.parametrize("name", NUM_TASKS)
def test_num_tasks_is_limited_by_the_environment(name):
    make, most = NUM_TASKS[name]
    env = make()
    assert env.num_tasks == most
    learners = {"full": FixedPrior()}
    plan_agents(env, FOURIER, learners, num_tasks=3, horizon=2)
    offline = partial(run_offline, env, FOURIER, Greedy(0.1), learners, num_rows=2, horizon=2, key=KEY)
    # The task after the offline ones is the test task.
    assert jax.eval_shape(partial(offline, num_tasks=2))["full"].regret.shape == (2, 2)
    if most is None:
        plan_agents(env, FOURIER, learners, num_tasks=400, horizon=2)
        assert jax.eval_shape(partial(offline, num_tasks=3))["full"].regret.shape == (3, 2)
        return
    with pytest.raises(
        ValueError, match="`num_tasks` should be at most the 3 tasks of the environment, but got 4"
    ):
        plan_agents(env, FOURIER, learners, num_tasks=4, horizon=2)
    with pytest.raises(ValueError, match="the 3 tasks of the environment, less 1 to test on, but got 3"):
        offline(num_tasks=3)


@pytest.mark.parametrize("num_tasks", [0, 2.5, True])
def test_function_env_num_tasks_must_be_a_positive_integer(num_tasks):
    with pytest.raises(ValueError, match="`num_tasks` should be a whole number"):
        _function(num_tasks)


# --- synthetic ---


@pytest.mark.parametrize("features, size", [(Cosine(12), 3), (Cosine(12), 1), (FOURIER, 2), (FOURIER, 6)])
@pytest.mark.parametrize("beta_min, norm_bound", [(0.5, 10.0), (1.0, 4.0), (0.0, 1.0)])
def test_synthetic_draws_satisfy_support_and_norm_bounds(features, size, beta_min, norm_bound):
    env = SyntheticEnv.draw(
        features, support_size=size, norm_bound=norm_bound, beta_min=beta_min, candidates=POINTS, key=KEY
    )
    assert int(env.support.sum()) == size
    coef = coefficients(env)
    norms = group_norms(coef, features.groups)
    assert np.isfinite(coef).all()
    assert np.linalg.norm(coef, axis=1).max() <= norm_bound * (1 + 1e-12)
    assert norms[:, np.asarray(env.support)].min() >= beta_min * (1 - 1e-12)
    assert (norms[:, ~np.asarray(env.support)] == 0).all()


@pytest.mark.parametrize("features, size", [(Cosine(12), 3), (FOURIER, 2)])
def test_synthetic_draws_are_uniform_in_the_ball(features, size):
    env = SyntheticEnv.draw(features, support_size=size, beta_min=0.0, candidates=POINTS, key=KEY)
    coef = coefficients(env)[:, np.asarray(env.support)[np.asarray(features.groups)]]
    radius = np.linalg.norm(coef, axis=1)
    assert stats.kstest((radius / 10) ** coef.shape[1], "uniform").pvalue > 0.01
    direction = coef / radius[:, None]
    standard_error = 1 / np.sqrt(len(coef) * coef.shape[1])
    assert np.abs(direction.mean(0)).max() < 4 * standard_error
    np.testing.assert_allclose((direction**2).mean(0), 1 / coef.shape[1], atol=0.04)


def test_synthetic_draws_match_rejection_sampling():
    """The radii of draws with `beta_min` have the distribution of unconstrained draws that satisfy it."""
    make = lambda beta_min: SyntheticEnv.draw(  # noqa: E731
        Cosine(12), support_size=2, norm_bound=2.0, beta_min=beta_min, candidates=POINTS, key=KEY
    )
    free, kept = coefficients(make(0.0)), coefficients(make(0.5), jax.random.split(jax.random.key(1), 2000))
    used = np.asarray(make(0.0).support)
    meets = (np.abs(free[:, used]) >= 0.5).all(1)
    assert stats.ks_2samp(np.linalg.norm(free[meets], axis=1), np.linalg.norm(kept, axis=1)).pvalue > 0.01


def test_all_supports_are_equally_likely():
    draw = jax.jit(
        jax.vmap(lambda key: SyntheticEnv.draw(Cosine(8), support_size=2, candidates=POINTS, key=key).support)
    )
    counts = np.asarray(draw(KEYS)).sum(0)
    assert stats.chisquare(counts).pvalue > 0.01


def test_synthetic_values_are_features_times_coefficients():
    env = SyntheticEnv.draw(FOURIER, support_size=2, candidates=POINTS, key=KEY)
    np.testing.assert_allclose(
        jax.jit(lambda env: env.task(3, key=KEYS[0]).values)(env),
        np.asarray(FOURIER(POINTS)) @ coefficients(env)[0],
    )


def test_default_candidates_match_the_paper():
    line, square = SyntheticEnv.draw(Cosine(6), key=KEY), SyntheticEnv.draw(Cosine(6, dim=2), key=KEY)
    assert line.candidates.shape == (1000, 1) and square.candidates.shape == (1600, 2)
    np.testing.assert_allclose(np.diff(line.candidates[:, 0]), 1 / 999)
    assert (float(line.norm_bound), float(line.beta_min), float(line.noise_std)) == (10.0, 0.5, 0.1)
    assert int(line.support.sum()) == 5


@pytest.mark.parametrize(
    "argument, options",
    [
        ("support_size", dict(support_size=13)),
        ("support_size", dict(support_size=0)),
        ("beta_min", dict(support_size=4, beta_min=5.0)),
        ("beta_min", dict(beta_min=-1.0)),
        ("norm_bound", dict(norm_bound=0.0)),
        ("noise_std", dict(noise_std=-0.1)),
        ("candidates", dict(candidates=np.zeros(5))),
        ("candidates", dict(candidates=np.zeros((5, 2)))),
    ],
)
def test_synthetic_errors(argument, options):
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        SyntheticEnv.draw(Cosine(12), **{"candidates": POINTS, **options}, key=KEY)


def test_three_dimensions_require_candidates():
    with pytest.raises(ValueError, match="`candidates` should be given"):
        SyntheticEnv.draw(Cosine(12, dim=3), key=KEY)


# --- draws of a task ---


def test_task_draws_are_reproducible_and_differ_between_tasks():
    env = SyntheticEnv.draw(Cosine(6), support_size=2, candidates=POINTS, noise_std=0.3, key=KEY)
    draw = jax.jit(lambda index: draw_task(env, index, 4000, key=KEY))
    draws = draw(2)
    assert abs(float(draws.noise.std()) / 0.3 - 1) < 0.05 and abs(float(draws.noise.mean())) < 0.02
    counts = np.bincount(np.asarray(draws.exploration), minlength=8)
    assert stats.chisquare(counts).pvalue > 0.01
    again, other = (draw(index) for index in (2, 3))
    np.testing.assert_array_equal(draws.task.values, again.task.values)
    assert not np.allclose(draws.task.values, other.task.values)
    assert not np.allclose(draws.noise, other.noise)


def test_exploration_is_uniform_on_available_candidates():
    available = jnp.asarray([True, False, True, True, False])
    draws = np.asarray(explore_uniformly(Task(jnp.zeros(5), available), 3000, key=KEY))
    counts = np.bincount(draws, minlength=5)
    assert (counts[[1, 4]] == 0).all() and stats.chisquare(counts[[0, 2, 3]]).pvalue > 0.01


# --- tables ---

VALUES = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan], [-7.0, -8.0, -9.0]])
SHARED = np.array([[0.1], [0.5], [0.9]])
OWN = np.arange(9).reshape(3, 3, 1) / 10


def test_table_with_shared_candidates():
    env = TableEnv(VALUES, SHARED, noise_std=0.2)
    assert env.num_tasks == 3
    for row in range(3):
        task = env.task(jnp.asarray(row), key=KEY)
        known = ~np.isnan(VALUES[row])
        assert task.points is None
        np.testing.assert_array_equal(task.available, known)
        np.testing.assert_array_equal(np.asarray(task.values)[known], VALUES[row, known])
        assert float(task.best_value) == np.nanmax(VALUES[row])
        assert np.isfinite(np.asarray(task.values)).all()


def test_table_with_candidates_per_task():
    env = TableEnv(VALUES, OWN)
    padded = TableEnv(VALUES, np.where(np.isnan(VALUES)[..., None], np.nan, OWN))
    for row in range(3):
        known = ~np.isnan(VALUES[row])
        points = np.asarray(env.task(jnp.asarray(row), key=KEY).points)
        np.testing.assert_array_equal(points[known], OWN[row, known])
        np.testing.assert_array_equal(padded.task(jnp.asarray(row), key=KEY).points, points)
        assert np.isfinite(points).all()


def test_table_shuffled_is_a_permutation():
    env = TableEnv(np.arange(30.0).reshape(10, 3), SHARED)
    orders = [np.asarray(env.shuffled(key=jax.random.key(seed)).order) for seed in range(4)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(10))
    assert len({tuple(order) for order in orders}) == 4
    shuffled = env.shuffled(key=jax.random.key(0))
    rows = [float(shuffled.task(jnp.asarray(i), key=KEY).values[0]) for i in range(10)]
    np.testing.assert_array_equal(rows, 3.0 * orders[0])


def test_table_of_integers_keeps_its_candidates():
    env = TableEnv([[1, 2, 3]], SHARED)
    np.testing.assert_allclose(env.candidates, SHARED)
    assert jnp.issubdtype(env.values.dtype, jnp.floating)


@pytest.mark.parametrize(
    "argument, values, candidates",
    [
        ("values", VALUES[0], SHARED),
        ("candidates", VALUES, SHARED[:2]),
        ("candidates", VALUES, SHARED[:, 0]),
        ("candidates", VALUES, OWN[:2]),
        ("values", np.full((2, 3), np.nan), SHARED),
        ("values", np.array([[1.0, np.inf, 2.0]]), SHARED),
    ],
)
def test_table_errors(argument, values, candidates):
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        TableEnv(values, candidates)


# --- functions ---


def test_function_env():
    env = FunctionEnv(
        POINTS,
        lambda point, p: -p["scale"] * jnp.sum((point - p["centre"]) ** 2),
        lambda index, key: dict(centre=jnp.asarray([0.2, 0.7])[index], scale=1.0 + jax.random.uniform(key)),
        0.1,
    )
    values = jax.jit(lambda index: env.task(index, key=KEY).values)
    scale = 1 + float(jax.random.uniform(KEY))
    for index, centre in enumerate((0.2, 0.7)):
        np.testing.assert_allclose(values(index), -scale * (POINTS[:, 0] - centre) ** 2, rtol=1e-12)


def test_function_env_errors():
    with pytest.raises(ValueError, match="`candidates` should be"):
        FunctionEnv(POINTS[:, 0], lambda point, p: 0.0, lambda index, key: (), 0.1)
    with pytest.raises(ValueError, match="`noise_std` should be"):
        FunctionEnv(POINTS, lambda point, p: 0.0, lambda index, key: (), -1.0)


@pytest.mark.parametrize("available", [None, np.array([True, False, True, True])])
def test_exploration_without_repeats_restarts_after_all_candidates(available):
    draws = np.asarray(explore_once(Task(jnp.zeros(4), available), 10, key=KEY))
    playable = np.flatnonzero(np.ones(4, bool) if available is None else available)
    first = draws[: len(playable)]
    assert sorted(first) == playable.tolist()
    np.testing.assert_array_equal(draws, np.resize(first, 10))
