"""Adaptive meta-learners: learned mean and covariance, selection by likelihood, mixture with a wide prior.

The hierarchy is compared with an independent dense NumPy EM, whose objective must increase at every step.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import jlibo
from jlibo import AdaptiveMetaKGL, FirstTasksExploration, FixedPrior, Prior, SelfTunedMetaKGL
from jlibo.belief.belief import component_weights, observe, start
from jlibo.belief.moments import Units
from jlibo.belief.scaling import Standardise
from jlibo.meta import RunSizes, TaskData
from jlibo.meta.base import selected_prior
from jlibo.meta.hierarchy import NOISE_ROWS, UNIT_REWARDS, fit_hierarchy
from jlibo.meta.past import PastTasks, no_past, remember, sample_tasks
from jlibo.meta.selection import choose_support
from jlibo.solver.solution import Status
from tests.belief.observed import likeliest_units, unit_likelihood

close = np.testing.assert_allclose
NUM_FEATURES, NUM_TASKS, NUM_ROWS = 4, 6, 3
NOISE, COVARIANCE_TASKS, MEAN_TASKS = 0.3, 2.0, 0.5
WIDE = np.array([0.5, 1.0, 0.7, 0.2])


# --- the hierarchy ---


def draw_past(num_tasks=NUM_TASKS, num_rows=NUM_ROWS, seed=0):
    """Tasks of a known hierarchy: the rows and rewards, and the true mean."""
    rng = np.random.default_rng(seed)
    mean = np.array([1.0, -2.0, 0.5, 0.0])
    features = rng.normal(size=(num_tasks, num_rows, NUM_FEATURES))
    weights = mean + 0.3 * rng.normal(size=(num_tasks, NUM_FEATURES))
    targets = np.einsum("trf,tf->tr", features, weights) + NOISE * rng.normal(size=(num_tasks, num_rows))
    return features, targets, mean


def as_past(features, targets, num_padded=0):
    """Past tasks as the learner stores them, with `num_padded` absent tasks that hold garbage."""
    num_tasks, num_rows = targets.shape
    rubbish = np.full((num_padded, num_rows, NUM_FEATURES), 7.0)
    return PastTasks(
        features=jnp.asarray(np.concatenate([features, rubbish])),
        targets=jnp.asarray(np.concatenate([targets, rubbish[..., 0]])),
        constants=jnp.ones((num_tasks + num_padded, num_rows)),
        lost_products=jnp.zeros((num_tasks + num_padded, 2, 2)),
        num_observations=jnp.full(num_tasks + num_padded, float(num_rows)),
        is_done=jnp.asarray(np.r_[np.ones(num_tasks), np.zeros(num_padded)]),
    )


@partial(jax.jit, static_argnames="num_steps")
def fit(past, num_steps):
    wide = Prior(jnp.zeros(NUM_FEATURES), jnp.asarray(WIDE))
    begin = Prior(wide.mean, jnp.diag(wide.covariance), jnp.asarray(NOISE))
    number = partial(jnp.asarray, dtype=begin.mean.dtype)
    return fit_hierarchy(
        past,
        begin,
        wide,
        num_steps=num_steps,
        covariance_tasks=number(COVARIANCE_TASKS),
        mean_tasks=number(MEAN_TASKS),
        noise_std=number(NOISE),
    )


def em_step(features, targets, mean, covariance, noise):
    """One step of the same EM, task by task with dense inverses; also the units of the tasks."""
    means, doubts, squares, units = [], [], 0.0, []
    for rows, rewards in zip(features, targets, strict=True):
        total = rows @ covariance @ rows.T + noise**2 * np.eye(len(rows))
        units.append(likeliest_units(rewards, rows @ mean, total, UNIT_REWARDS, 1.0))
        values = (rewards - units[-1][0]) / units[-1][1]
        gain = covariance @ rows.T @ np.linalg.inv(total)
        means.append(mean + gain @ (values - rows @ mean))
        doubts.append(covariance - gain @ rows @ covariance)
        squares += ((values - rows @ means[-1]) ** 2).sum() + np.trace(rows @ doubts[-1] @ rows.T)
    num_tasks = len(targets)
    new_mean = np.sum(means, 0) / (num_tasks + MEAN_TASKS)
    spread = sum(np.outer(w - new_mean, w - new_mean) for w in means) + sum(doubts)
    matrix = COVARIANCE_TASKS * np.diag(WIDE) + spread + MEAN_TASKS * np.outer(new_mean, new_mean)
    new_noise = np.sqrt((squares + NOISE_ROWS * NOISE**2) / (targets.size + NOISE_ROWS))
    return (new_mean, matrix / (COVARIANCE_TASKS + num_tasks), new_noise), units


def objective(features, targets, units, mean, covariance, noise):
    """Objective of EM: the log likelihood of all rewards plus log priors of units and parameters."""
    answer = 0.0
    for rows, rewards, own in zip(features, targets, units, strict=True):
        total = rows @ covariance @ rows.T + noise**2 * np.eye(len(rows))
        answer += unit_likelihood(rewards, rows @ mean, total, own, UNIT_REWARDS, 1.0)
    inverse = np.linalg.inv(covariance)
    answer -= 0.5 * MEAN_TASKS * mean @ inverse @ mean
    determinant = np.linalg.slogdet(covariance)[1]
    answer -= 0.5 * COVARIANCE_TASKS * (determinant + np.trace(np.diag(WIDE) @ inverse))
    return answer - 0.5 * NOISE_ROWS * (2 * np.log(noise) + NOISE**2 / noise**2)


@pytest.mark.parametrize("num_padded", [0, 2])
def test_hierarchy_equals_dense_em_and_its_objective_increases(num_padded):
    features, targets, _ = draw_past()
    parameters, heights = (np.zeros(NUM_FEATURES), np.diag(WIDE), NOISE), []
    for _ in range(5):
        new, units = em_step(features, targets, *parameters)
        heights += [objective(features, targets, units, *some) for some in (parameters, new)]
        parameters = new
    assert (np.diff(heights) > 0).all()
    mean, covariance, noise = parameters
    fitted = fit(as_past(features, targets, num_padded), 5)
    close(fitted.mean, mean, atol=1e-6)
    close(fitted.noise_std, noise, atol=1e-6)
    # The covariance of a new task includes the uncertainty of the mean.
    close(fitted.covariance, covariance * (1 + 1 / (NUM_TASKS + MEAN_TASKS)), atol=1e-6)


def test_hierarchy_without_tasks_is_the_widened_prior():
    features, targets, _ = draw_past()
    past = as_past(features, targets)
    nothing = eqx.tree_at(lambda p: p.is_done, past, jnp.zeros(NUM_TASKS))
    fitted = fit(nothing, 5)
    close(fitted.mean, np.zeros(NUM_FEATURES), atol=1e-12)
    assert np.isfinite(fitted.covariance).all() and float(fitted.noise_std) == pytest.approx(NOISE)
    # The prior's covariance counts as `covariance_tasks` tasks; the uncertainty of the mean widens it.
    close(fitted.covariance, np.diag(WIDE) * (1 + 1 / MEAN_TASKS), atol=1e-12)


def test_many_tasks_recover_mean_covariance_and_noise():
    features, targets, truth = draw_past(num_tasks=120, num_rows=6, seed=1)
    fitted = fit(as_past(features, targets), 30)
    # The scales of the tasks are estimated too, so all is known up to a common factor near one.
    factor = np.linalg.norm(fitted.mean) / np.linalg.norm(truth)
    assert 0.8 < factor < 1.2
    close(fitted.mean / factor, truth, atol=0.15)
    close(np.sqrt(np.diagonal(fitted.covariance)) / factor, 0.3, atol=0.12)
    # A task has six rewards, and its centre and scale take two degrees of freedom.
    close(fitted.noise_std / factor, NOISE, atol=0.08)


def test_units_of_tasks_do_not_hide_what_they_share():
    """Tasks whose rewards are shifted and scaled agree after their units are estimated."""
    features, targets, truth = draw_past(num_tasks=60, num_rows=8, seed=2)
    rng = np.random.default_rng(3)
    scales, centres = np.exp(rng.uniform(-1, 1, 60)), 3 * rng.normal(size=60)
    fitted = fit(as_past(features, centres[:, None] + scales[:, None] * targets), 30)
    mean = np.asarray(fitted.mean)
    assert mean @ truth > 0.98 * np.linalg.norm(mean) * np.linalg.norm(truth)
    # Tasks differ by 0.3 around a mean of norm 2.3. Scales of 1/e to e would hide that.
    spread = np.sqrt(np.diagonal(fitted.covariance)) / np.linalg.norm(mean)
    assert (spread < 0.3).all()


def test_compressed_rows_give_the_same_fit():
    """More rows than features are compressed; the sum of squares that this loses is stored."""
    features, targets, _ = draw_past(num_rows=9)
    sizes = RunSizes(tuple(range(NUM_FEATURES)), NUM_TASKS, 9, 0, jnp.float64)
    past = no_past("all", sizes)
    for place in range(NUM_TASKS):
        task = TaskData(jnp.asarray(features[place]), jnp.asarray(targets[place]), jnp.zeros(9, bool))
        past = remember(past, jnp.asarray(place), task, "all", sizes)
    assert past.features.shape == (NUM_TASKS, NUM_FEATURES, NUM_FEATURES)
    whole, short = fit(as_past(features, targets), 4), fit(past, 4)
    jax.tree.map(partial(close, atol=1e-9), whole, short)


@pytest.mark.parametrize("num_done", [3, 10, 37])
def test_sample_is_evenly_spaced_over_the_finished_tasks(num_done):
    features, targets, _ = draw_past(num_tasks=40, num_rows=3)
    past = as_past(features, targets)
    past = eqx.tree_at(lambda p: p.is_done, past, (jnp.arange(40) < num_done).astype(float))
    few = sample_tasks(past, 10)
    assert few.is_done.sum() == min(num_done, 10)
    places = [int(np.flatnonzero((targets == one).all(1))[0]) for one in np.asarray(few.targets)]
    assert len(set(places)) == 10 and np.ptp(np.diff(places)) <= 1 and places[0] == 0
    assert sample_tasks(past, 40) is past


# --- selection ---

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


def remembered(tasks, sizes=SELECTION):
    past = no_past("all", sizes)
    for place, data in enumerate(tasks):
        past = remember(past, jnp.asarray(place), data, "all", sizes)
    return past


def tasks_of_all_kernels():
    rng = np.random.default_rng(3)
    return [
        TaskData(task.features, task.features @ rng.normal(size=len(GROUPS)), task.explored)
        for task in draw_tasks()
    ]


@eqx.filter_jit
def choose(past, noise_std=0.1):
    return choose_support(past, jnp.asarray(noise_std), SELECTION, num_lams=8, tol=1e-3, max_steps=300)


def test_selection_keeps_all_kernels_where_all_matter():
    support, solution = choose(remembered(tasks_of_all_kernels()))
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
    assert choose(remembered(tasks))[1].status == Status.NON_FINITE_INPUT


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
        choose_support(past, jnp.asarray(0.1), SELECTION, num_lams=num_lams, tol=1e-3, max_steps=300)
    assert counts == [2 * num_lams - 1]


@pytest.mark.parametrize("learner", [SelfTunedMetaKGL(), AdaptiveMetaKGL(num_steps=3)])
def test_prior_is_finite_after_constant_tasks_and_without_tasks(learner):
    flat = [eqx.tree_at(lambda t: t.rewards, task, jnp.zeros(12)) for task in draw_tasks()[:2]]
    state, _ = learn(learner, flat)
    for at in (learner.init(SELECTION), state):
        prior = learner.prior(at, SELECTION)
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


def alien_weights(num_rewards, alien, seed=5):
    """Return the weights of the components after rewards of a task like the past ones, or unlike them."""
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
    columns = start(prior, features, jnp.asarray(0.1), 3)
    for place in range(num_rewards):
        columns = observe(columns, place, rewards[place])
    one = jnp.ones(())
    return np.asarray(component_weights(columns, Units(0 * one, one)))


def test_wide_prior_dominates_on_a_task_unlike_the_past():
    close(alien_weights(0, alien=True), [0.9, 0.1])
    assert alien_weights(4, alien=True)[-1] > 0.99
    assert alien_weights(4, alien=False)[0] > 0.9


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
