"""Selection of kernels by likelihood, and the adaptive learner: a mixture of a learned and a wide prior."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import jlibo
from jlibo import AdaptiveMetaKGL, FirstTasksExploration, FixedPrior, SelfTunedMetaKGL
from jlibo.belief.belief import component_weights, observe, start
from jlibo.belief.moments import Units
from jlibo.belief.prior import PriorMixture, full_prior, in_one_shape
from jlibo.belief.scaling import Standardise
from jlibo.meta import RunSizes, TaskData
from jlibo.meta.base import selected_prior
from jlibo.meta.past import no_past, remember
from jlibo.meta.selection import choose_support
from jlibo.solver.solution import Status

close = np.testing.assert_allclose
GROUPS = (0, 1, 1, 2, 3, 3, 4)
SELECTION = RunSizes(GROUPS, 8, 12, 12, jnp.float64, (0,))
TRUTH = np.array([False, True, False, True, False])


def draw_tasks(num_tasks=8, seed=0, noise=0.1):
    """Standardised tasks: a constant (group 0, free) and functions in groups 1 and 3."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(num_tasks):
        features = rng.normal(size=(12, len(GROUPS)))
        features[:, 0] = 1
        coef = rng.normal(size=len(GROUPS)) * (TRUTH | (np.arange(5) == 0))[list(GROUPS)]
        rewards = features @ coef + noise * rng.normal(size=12)
        tasks.append(TaskData(jnp.asarray(features), jnp.asarray(rewards), jnp.ones(12, bool)))
    return tasks


@eqx.filter_jit
def update(learner, state, data, sizes):
    return learner.update(state, data, sizes)


def learn(learner, tasks, sizes=SELECTION):
    state, info = learner.init(sizes), None
    for data in tasks:
        state, info = update(learner, state, data, sizes)
    return state, info


def log_likelihood(tasks, support, noise_std):
    prior = selected_prior(jnp.asarray(support), SELECTION)
    total = 0.0
    for task in tasks:
        rows = np.asarray(task.features)
        covariance = rows @ np.diag(prior.covariance) @ rows.T + noise_std**2 * np.eye(len(rows))
        total += multivariate_normal(np.zeros(len(rows)), covariance).logpdf(task.rewards)
    return total


def test_selection_recovers_the_support_without_lam_or_omega():
    tasks = draw_tasks()
    state, info = learn(SelfTunedMetaKGL(), tasks)
    np.testing.assert_array_equal(state.support, TRUTH)
    np.testing.assert_array_equal(info.support, TRUTH | (np.arange(5) == 0))  # and the free one
    assert not info.fell_back
    # It has the highest likelihood among some alternatives, by a dense computation.
    others = [np.ones(5, bool), TRUTH & (np.arange(5) == 1), TRUTH | (np.arange(5) == 4)]
    best = log_likelihood(tasks, TRUTH, 0.1)
    assert all(log_likelihood(tasks, other, 0.1) < best for other in others)


@pytest.mark.parametrize("num_rows", [2, 3, 12])
def test_guarded_kernel_stays_full_with_fewer_rows_than_features(num_rows):
    """The support has four features: the constant, two of group 1 and one of group 3."""
    tasks = [
        TaskData(task.features, task.rewards, jnp.arange(12) < num_rows) for task in draw_tasks(noise=0.02)
    ]
    free, _ = learn(SelfTunedMetaKGL(guarded=False), tasks)
    guarded, info = learn(SelfTunedMetaKGL(), tasks)
    assert free.support.sum() < 4
    np.testing.assert_array_equal(guarded.support, TRUTH if num_rows == 12 else np.arange(5) > 0)
    assert info.status == Status.CONVERGED


def test_guarded_kernel_stays_full_without_evidence():
    """Tasks of all kernels: a smaller set may be more likely by chance, but not by two standard errors."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        tasks = []
        for _ in range(6):
            features = rng.normal(size=(12, len(GROUPS)))
            features[:, 0] = 1
            rewards = features @ (0.4 * rng.normal(size=len(GROUPS))) + 0.1 * rng.normal(size=12)
            tasks.append(TaskData(jnp.asarray(features), jnp.asarray(rewards), jnp.ones(12, bool)))
        guarded, _ = learn(SelfTunedMetaKGL(), tasks)
        np.testing.assert_array_equal(guarded.support, np.arange(5) > 0)


@eqx.filter_jit
def store(past, place, data):
    return remember(past, place, data, "all", SELECTION)


def remembered(tasks):
    past = no_past("all", SELECTION)
    for place, data in enumerate(tasks):
        past = store(past, jnp.asarray(place), data)
    return past


def tasks_of_all_kernels():
    rng = np.random.default_rng(3)
    return [
        TaskData(task.features, task.features @ rng.normal(size=len(GROUPS)), task.explored)
        for task in draw_tasks()
    ]


@jax.jit
def choose(past, noise_std):
    return choose_support(past, noise_std, SELECTION, num_lams=8, tol=1e-3, max_steps=300)


def test_selection_keeps_all_kernels_where_all_matter():
    support, solution = choose(remembered(tasks_of_all_kernels()), 0.1)
    np.testing.assert_array_equal(support, np.arange(5) > 0)
    # All kernels replace the empty selection at lambda_max; status and gap are those of that solve.
    assert solution.status == Status.CONVERGED and solution.num_steps == 0
    np.testing.assert_array_equal(solution.coef, 0)


def test_selection_returns_the_solution_of_the_selected_kernels():
    # With this much noise, solves at smaller lam select more kernels than the most likely set.
    sizes = []
    for seed in range(5):
        support, solution = choose(remembered(draw_tasks(seed=seed, noise=4.0)), 4.0)
        norms = np.asarray(solution.group_norms)
        if not norms.any():
            np.testing.assert_array_equal(support, np.arange(5) > 0)
            continue
        assert any((support == (norms > omega)).all() for omega in (0, 0.1 * norms.max()))
        assert solution.status == Status.CONVERGED
        sizes.append(support.sum())
    assert len(sizes) > 2 and min(sizes) == 2


def test_selection_reports_non_finite_data():
    tasks = draw_tasks()
    tasks[1] = eqx.tree_at(lambda t: t.rewards, tasks[1], tasks[1].rewards.at[0].set(jnp.nan))
    assert choose(remembered(tasks), 0.1)[1].status == Status.NON_FINITE_INPUT


@pytest.mark.parametrize("num_lams", [1, 2, 8])
def test_selection_computes_each_likelihood_once(num_lams):
    """At lambda_max nothing is selected, and the kernel of an empty selection is that of the whole set."""
    past = remembered(draw_tasks())
    counts, plain_map = [], jax.lax.map

    def count(fn, supports):
        counts.append(len(supports))
        return plain_map(fn, supports)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "map", count)
        options = dict(num_lams=num_lams, tol=1e-3, max_steps=300)
        jax.eval_shape(lambda past: choose_support(past, jnp.asarray(0.1), SELECTION, **options), past)
    assert counts == [2 * num_lams - 1]


@pytest.mark.parametrize("learner", [SelfTunedMetaKGL(), AdaptiveMetaKGL(num_steps=3)])
def test_prior_is_finite_after_constant_tasks_and_without_tasks(learner):
    flat = [eqx.tree_at(lambda t: t.rewards, task, jnp.zeros(12)) for task in draw_tasks()[:2]]
    state, _ = learn(learner, flat)
    for at in (learner.init(SELECTION), state):
        prior = learner.prior(at, SELECTION)
        if isinstance(prior, PriorMixture):
            close(np.exp(prior.log_weights).sum(), 1)
            prior = prior.components
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(prior))


# --- the adaptive learner ---


def test_unselected_kernels_keep_a_share_of_the_variance():
    tasks = draw_tasks()
    outside = ~(TRUTH | (np.arange(5) == 0))[list(GROUPS)]
    for share in (0.0, 0.3):
        state, _ = learn(AdaptiveMetaKGL(unselected_weight=share, num_steps=3), tasks)
        variance = np.diagonal(state.learned.covariance)
        assert (variance[~outside] > 0).all()
        assert (variance[outside] > 0).all() == (share > 0)
        close(np.asarray(state.learned.mean)[outside] * (share == 0), 0, atol=1e-12)


def test_order_of_past_tasks_does_not_matter():
    tasks = draw_tasks()
    learner = AdaptiveMetaKGL(num_steps=3)
    forward, backward = learn(learner, tasks)[0], learn(learner, tasks[::-1])[0]
    jax.tree.map(partial(close, atol=1e-7), forward.learned, backward.learned)


def alien_weights(alien, seed=5):
    """Return the components' weights after 0 to 4 rewards of a task like the past ones, or unlike them."""
    rng = np.random.default_rng(seed)
    truth = np.array([0.0, 2, -1, 0, 1, 1, 0])
    sizes = RunSizes(GROUPS, 12, 12, 12, jnp.float64, (0,))
    tasks = []
    for task in draw_tasks(12):
        weights = truth + 0.1 * rng.normal(size=truth.size)
        tasks.append(eqx.tree_at(lambda t: t.rewards, task, task.features @ weights))
    learner = AdaptiveMetaKGL(select=False, num_steps=3)
    state, _ = learn(learner, tasks, sizes)
    prior = learner.prior(state, sizes)
    features = jnp.asarray(rng.normal(size=(4, len(GROUPS))))
    rewards = features @ jnp.asarray(-truth if alien else truth)
    one = jnp.ones(())
    weigh = jax.jit(lambda columns: component_weights(columns, Units(0 * one, one)))
    step = jax.jit(observe)
    columns = jax.jit(lambda: start(prior, features, jnp.asarray(0.1), 3))()
    weights = [weigh(columns)]
    for place, reward in enumerate(rewards):
        columns = step(columns, place, reward)
        weights.append(weigh(columns))
    return np.asarray(weights)


def test_prior_before_the_first_task_is_the_wide_one():
    sizes = RunSizes(GROUPS, 12, 12, 12, jnp.float64, (0,))
    learner = AdaptiveMetaKGL(select=False, num_steps=3)
    prior = learner.prior(learner.init(sizes), sizes)
    np.testing.assert_array_equal(np.exp(prior.log_weights), [0, 1])
    # A single prior that is stacked with a mixture has no trust in a past either.
    single, same = in_one_shape([full_prior(GROUPS, jnp.float64), prior], jnp.asarray(0.1))
    np.testing.assert_array_equal(np.exp(single.log_weights), [0, 1])
    np.testing.assert_array_equal(np.exp(same.log_weights), [0, 1])


def test_wide_prior_dominates_on_a_task_unlike_the_past():
    unlike, like = alien_weights(alien=True), alien_weights(alien=False)
    close(unlike[0], [0.9, 0.1])
    assert unlike[4, -1] > 0.99
    assert like[4, 0] > 0.9


def hills(height=1.0):
    """Hills on a line whose maxima lie close together; each task has its own units."""
    grid = jnp.linspace(0, 1, 41)[:, None]

    def draw(index, key):
        place_key, scale_key = jax.random.split(key)
        return 0.7 + 0.02 * jax.random.normal(place_key), jnp.exp(2 * jax.random.normal(scale_key))

    def reward(point, hill):
        top, scale = hill
        return scale * (5 - height * ((point[0] - top) / 0.25) ** 2)

    return jlibo.FunctionEnv(grid, reward, draw, noise_std=0.0)


@pytest.fixture(scope="module")
def climbed():
    """Run two agents on hills: one that learns from past tasks and one that does not."""
    features = jlibo.Unpenalised(jlibo.Cosine(6, constant=True), ["constant"])
    learners = {"none": FixedPrior(), "adaptive": AdaptiveMetaKGL(num_steps=5, num_lams=4)}
    policy = jlibo.LogExpectedImprovement(0.1)

    def run(key):
        return jlibo.run_agents(
            hills(),
            features,
            policy,
            learners,
            num_tasks=6,
            horizon=8,
            scaling=Standardise(),
            repeats=False,
            key=key,
        )

    return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4))


def test_learning_from_past_tasks_reduces_early_regret(climbed):
    regret = {name: np.asarray(jlibo.metrics.simple_regret(result)) for name, result in climbed.items()}
    # Both agents have the same tasks. Tasks differ in units, so regret is divided by that of the worst step.
    worst = np.max([result.regret for result in climbed.values()], axis=(0, 3))[..., None]
    adaptive, without = regret["adaptive"] / worst, regret["none"] / worst
    assert adaptive[:, 3:, 0].mean() < 0.1 * without[:, 3:, 0].mean()
    assert adaptive[:, 3:, 2].mean() < 0.5 * without[:, 3:, 2].mean()


def test_exploration_only_in_the_first_task(climbed):
    np.testing.assert_array_equal(climbed["adaptive"].num_explore[0], [5, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(FirstTasksExploration(5, 2).counts(4, 3), [3, 3, 0, 0])
    np.testing.assert_array_equal(FirstTasksExploration(2, 1).counts(1, 9), [2])


# --- runs without repeats ---


def test_without_repeats_no_candidate_is_played_twice(climbed):
    for result in climbed.values():
        for actions in np.asarray(result.actions).reshape(-1, 8):
            assert len(set(actions.tolist())) == 8


def test_without_repeats_all_available_candidates_are_played_before_any_repeats():
    values = np.full((2, 9), np.nan)
    values[:, [1, 4, 6]] = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]
    env = jlibo.TableEnv(values, np.linspace(0, 1, 9)[:, None])
    learner = FixedPrior(exploration=FirstTasksExploration(2, 1))
    result = jlibo.run_lifelong(
        env,
        jlibo.Cosine(3),
        jlibo.Greedy(0.1),
        learner,
        num_tasks=2,
        horizon=7,
        repeats=False,
        key=jax.random.key(0),
    )
    for actions in np.asarray(result.actions):
        assert set(actions[:3].tolist()) == {1, 4, 6}
        assert set(actions[3:].tolist()) <= {1, 4, 6}


def test_horizon_above_the_number_of_candidates_raises_without_repeats():
    with pytest.raises(ValueError, match="`horizon` should be at most the 41 candidates without repeats"):
        jlibo.run_lifelong(
            hills(),
            jlibo.Cosine(3),
            jlibo.Greedy(0.1),
            FixedPrior(),
            num_tasks=1,
            horizon=42,
            repeats=False,
            key=jax.random.key(0),
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveMetaKGL(noise_std=0.0), "`noise_std` should be a number > 0"),
        (lambda: AdaptiveMetaKGL(wide_weight=1.5), "`wide_weight` should be a number"),
        (lambda: AdaptiveMetaKGL(mean_tasks=-1.0), "`mean_tasks` should be a number > 0"),
        (lambda: AdaptiveMetaKGL(unselected_weight=2.0), "`unselected_weight` should be a number"),
    ],
)
def test_bad_settings_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
