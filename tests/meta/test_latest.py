"""Learners that keep the latest past tasks (`max_past`) are in the state of a run on these tasks alone."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jlibo import (
    GPUCB,
    AdaptiveMetaKGL,
    ConstantExploration,
    Cosine,
    MetaKeL,
    MetaKGL,
    RunSizes,
    SelfTunedMetaKGL,
    SyntheticEnv,
    TaskData,
    run_lifelong,
)
from jlibo.experiments import SettingError, Spec
from jlibo.lifelong.offline import run_offline
from jlibo.meta import hierarchy, selection
from jlibo.meta.base import only_present
from jlibo.meta.meta_kgl import solve_past
from jlibo.meta.past import in_order, latest, no_past, num_kept, remember, remember_all, sample_tasks
from tests.lifelong.small_runs import assert_same, close, equal, quick_jit

GROUPS = (0, 0, 1, 2, 3)
NUM_TASKS, KEPT, ROWS = 8, 3, 6
EARLY, LATE = np.array([1.0, 1, 0, 0, 0]), np.array([0.0, 0, 0, 1, 1])


def sizes_of(num_tasks, free_groups=()):
    return RunSizes(GROUPS, num_tasks, ROWS, ROWS - 1, jnp.float64, free_groups)


def draw_tasks(num_tasks=NUM_TASKS, num_rows=ROWS, change=4):
    """Tasks whose support changes before task number `change`."""
    rng = np.random.default_rng(0)
    tasks = []
    for number in range(num_tasks):
        features = rng.normal(size=(num_rows, len(GROUPS)))
        coef = rng.uniform(1, 2, len(GROUPS)) * (EARLY if number < change else LATE)
        rewards = features @ coef + 0.05 * rng.normal(size=num_rows)
        explored = np.arange(num_rows) < num_rows - 1 - number % 2
        tasks.append(TaskData(*map(jnp.asarray, (features, rewards, explored))))
    return tasks


TASKS = draw_tasks()
LEARNERS = {
    "meta_kgl": partial(MetaKGL, 0.1, 0.25, tol=1e-12),
    "meta_kgl_sqrt": partial(MetaKGL, 0.3, 0.25, lam_scaling="sqrt", data="all", tol=1e-12),
    "meta_kgl_estimated": partial(
        MetaKGL, 4.0, 0.75, lam_scaling="estimated", omega_scaling="penalty", data="all", tol=1e-12
    ),
    "meta_kgl_bracket": partial(
        MetaKGL, 0.125, 0.1, lam_scaling="bracket", omega_scaling="rewards", tol=1e-12
    ),
    "meta_kel": partial(MetaKeL, 0.1, tol=1e-12),
    "meta_kel_printed": partial(MetaKeL, 0.1, scaling="printed", beta_min=0.5, data="all", tol=1e-12),
    "self_tuned": SelfTunedMetaKGL,
    "adaptive": AdaptiveMetaKGL,
    "adaptive_without_selection": partial(AdaptiveMetaKGL, select=False),
}
# Each program takes a second to compile. Those that differ only in numbers or in what they compute from a
# history, which the others have too, are slow.
SLOW = {"meta_kgl", "meta_kgl_estimated", "meta_kel_printed", "adaptive_without_selection"}
every_learner = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LEARNERS],
)
one_of_each = pytest.mark.parametrize("name", ["meta_kgl_sqrt", "meta_kel", "self_tuned", "adaptive"])
is_exact = {
    "self_tuned",
    "adaptive",
    "adaptive_without_selection",
}  # they do not start from the last solution


@eqx.filter_jit
def update(learner, state, data, sizes):
    return learner.update(state, data, sizes)


def run(learner, tasks, sizes, state=None):
    """State, report and prior after an update by each task."""
    state, info = learner.init(sizes) if state is None else state, None
    for data in tasks:
        state, info = update(learner, state, data, sizes)
    return state, info, learner.prior(state, sizes)


def check_same_results(name, first, second):
    """Reports and priors are equal: bit for bit, or up to the tolerance of the solver."""
    (state, info, prior), (other_state, other_info, other_prior) = first, second
    if name in is_exact:
        assert_same((state, info, prior), (other_state, other_info, other_prior))
        return
    for field in ("support", "fell_back", "status"):
        equal(getattr(info, field), getattr(other_info, field))
    jax.tree.map(partial(close, rtol=1e-5, atol=1e-5), prior, other_prior)


# --- equal to a run on the latest tasks ---


@every_learner
@pytest.mark.parametrize("num_done", [KEPT, KEPT + 2, NUM_TASKS])
def test_capped_learner_equals_a_new_one_on_the_latest_tasks(name, num_done):
    capped = run(LEARNERS[name](max_past=KEPT), TASKS[:num_done], sizes_of(NUM_TASKS))
    new = run(LEARNERS[name](), TASKS[num_done - KEPT : num_done], sizes_of(KEPT))
    check_same_results(name, capped, new)
    if name not in is_exact:
        order = partial(in_order, num_done=jnp.asarray(num_done), sizes=sizes_of(NUM_TASKS))
        assert_same(order(capped[0].past), new[0].past)
        close(np.roll(capped[0].coef, -(num_done % KEPT), axis=0), new[0].coef, atol=1e-5)


@one_of_each
def test_capped_learner_with_free_groups_equals_a_new_one_on_the_latest_tasks(name):
    capped = run(LEARNERS[name](max_past=KEPT), TASKS, sizes_of(NUM_TASKS, (1,)))
    new = run(LEARNERS[name](), TASKS[-KEPT:], sizes_of(KEPT, (1,)))
    check_same_results(name, capped, new)


@every_learner
def test_at_least_all_tasks_of_the_run_is_none_bit_for_bit(name):
    expected = run(LEARNERS[name](), TASKS[:5], sizes_of(5))
    for most in (5, 6):
        assert_same(run(LEARNERS[name](max_past=most), TASKS[:5], sizes_of(5)), expected)


@every_learner
def test_learning_all_tasks_at_once_keeps_the_latest(name):
    """Also if `num_done` counts tasks without a place in the history; further updates go on from there."""
    learner, sizes = LEARNERS[name](max_past=KEPT), sizes_of(NUM_TASKS)
    data = jax.tree.map(lambda *leaves: jnp.stack(leaves), *TASKS)
    for num_done, counted in ((5, 5), (2, 2), (NUM_TASKS, NUM_TASKS + 3)):
        is_done = jnp.arange(NUM_TASKS) < num_done
        present = jnp.broadcast_to(is_done[:, None], data.rewards.shape)
        past = remember_all(only_present(data, present), is_done, learner.data, sizes)
        state, info = eqx.filter_jit(learner.learn)(past, jnp.asarray(counted, jnp.int32), sizes)
        start = max(num_done - KEPT, 0)
        expected = run(LEARNERS[name](), TASKS[start:num_done], sizes_of(KEPT))
        check_same_results(name, (state, info, learner.prior(state, sizes)), expected)
        further = run(learner, TASKS[5:7], sizes, state)
        expected = run(LEARNERS[name](), [*TASKS[start:num_done], *TASKS[5:7]][-KEPT:], sizes_of(KEPT))
        check_same_results(name, further, expected)


@pytest.mark.parametrize("name", ["self_tuned", "adaptive"])
def test_learners_that_sample_tasks_do_so_in_the_order_of_time(name, monkeypatch):
    """With more kept tasks than the selection and the first EM steps use; the history has gone round once."""
    monkeypatch.setattr(selection, "SELECTION_TASKS", 2)
    monkeypatch.setattr(hierarchy, "FEW_TASKS", 2)
    monkeypatch.setattr(hierarchy, "PART_TASKS", 1)
    tasks = draw_tasks(13, ROWS - 1)
    sizes = RunSizes(GROUPS, 13, ROWS - 1, ROWS - 1, jnp.float64)
    short = RunSizes(GROUPS, 5, ROWS - 1, ROWS - 1, jnp.float64)
    capped = run(LEARNERS[name](max_past=5), tasks, sizes)
    check_same_results(name, capped, run(LEARNERS[name](), tasks[-5:], short))


# --- the history ---


def numbered(num_done, *, most, num_tasks=NUM_TASKS):
    """A history of tasks whose rewards are their number, counted from 1."""
    past, sizes = no_past("all", sizes_of(num_tasks), most=most), sizes_of(num_tasks)
    for place in range(num_done):
        data = TaskData(jnp.ones((ROWS, len(GROUPS))), jnp.full(ROWS, place + 1.0), jnp.ones(ROWS, bool))
        past = store(past, jnp.asarray(place), data, sizes)
    return past, sizes


@eqx.filter_jit
def store(past, place, data, sizes):
    return remember(past, place, data, "all", sizes)


def numbers_of(past):
    """The number of the task at each place."""
    scale = np.asarray(past.features)[..., 0].sum(1)
    totals = np.asarray(past.targets).sum(1)
    return np.where(scale != 0, np.round(totals / np.where(scale == 0, 1, scale)), 0).astype(int).tolist()


@pytest.mark.parametrize(
    ("num_done", "places", "ordered"),
    [
        (2, [1, 2, 0], [1, 2, 0]),
        (3, [1, 2, 3], [1, 2, 3]),
        (4, [4, 2, 3], [2, 3, 4]),
        (8, [7, 8, 6], [6, 7, 8]),
    ],
)
def test_full_history_forgets_the_oldest_task(num_done, places, ordered):
    past, sizes = numbered(num_done, most=3)
    assert numbers_of(past) == places and len(past.is_done) == 3
    assert past.is_done.sum() == num_kept(past, jnp.asarray(num_done)) == min(num_done, 3)
    assert numbers_of(in_order(past, jnp.asarray(num_done), sizes)) == ordered


@pytest.mark.parametrize(
    ("num_done", "most", "expected"),
    [(8, 3, [6, 7, 8]), (4, 3, [2, 3, 4]), (3, 3, [1, 2, 3]), (1, 3, [1, 0, 0]), (0, 2, [0, 0]), (8, 1, [8])],
)
def test_latest_tasks_of_a_history(num_done, most, expected):
    past, _ = numbered(num_done, most=None)
    assert numbers_of(latest(past, most)) == expected
    assert latest(past, None) is past and latest(past, NUM_TASKS) is past


def test_sample_of_a_history_that_went_round_is_evenly_spaced_in_time():
    past, sizes = numbered(29, most=12, num_tasks=30)
    few = sample_tasks(in_order(past, jnp.asarray(29), sizes), 4)
    assert numbers_of(few) == [18, 21, 24, 27]


@pytest.mark.parametrize("num_tasks", [KEPT + 1, 100_000])
@every_learner
def test_size_of_the_state_does_not_depend_on_the_number_of_tasks(name, num_tasks):
    shapes = [
        jax.eval_shape(lambda count=count: LEARNERS[name](max_past=KEPT).init(sizes_of(count)))
        for count in (KEPT + 1, num_tasks)
    ]
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes[0]) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), shapes[1]
    )
    assert max(leaf.shape[0] for leaf in jax.tree.leaves(shapes[0]) if leaf.ndim) <= max(KEPT, len(GROUPS))


@eqx.filter_jit
def solve(past, init):
    return solve_past(past, jnp.asarray(0.1), sizes_of(NUM_TASKS), init=init, tol=1e-12, max_steps=10_000)


def test_group_lasso_does_not_depend_on_the_order_of_tasks():
    past = no_past("all", sizes_of(NUM_TASKS))
    for place, data in enumerate(TASKS):
        past = store(past, jnp.asarray(place), data, sizes_of(NUM_TASKS))
    order = np.random.default_rng(0).permutation(NUM_TASKS)
    mixed = solve(jax.tree.map(lambda leaf: leaf[order], past), jnp.zeros((NUM_TASKS, len(GROUPS))))
    solution = solve(past, jnp.zeros((NUM_TASKS, len(GROUPS))))
    close(mixed.group_norms, solution.group_norms, rtol=1e-6)
    close(mixed.coef, solution.coef[order], atol=1e-6)


@pytest.mark.parametrize("name", ["meta_kgl_sqrt", "meta_kel"])
def test_coefficients_of_a_forgotten_task_are_no_start_for_the_new_one(name):
    learner, sizes = LEARNERS[name](max_past=KEPT), sizes_of(NUM_TASKS)
    state, _, _ = run(learner, TASKS[:KEPT], sizes)
    assert np.abs(state.coef).sum(1).min() > 0
    stopped = eqx.tree_at(lambda at: at.max_steps, learner, 0)  # the solver returns its start
    after, _ = stopped.update(state, TASKS[KEPT], sizes)
    equal(after.coef[0], 0)
    equal(after.coef[1:], state.coef[1:])


# --- runs ---

FEATURES, POLICY = Cosine(6), GPUCB(5.0, 0.1)
RUN = dict(num_tasks=7, horizon=12)
EXPLORE = ConstantExploration(2.0)


def small_run(key, lam=0.2, max_past=3, **options):
    env = SyntheticEnv.draw(FEATURES, support_size=2, key=jax.random.key(5))
    learner = MetaKGL(lam, 0.4, data="all", exploration=EXPLORE, max_past=max_past)
    return run_lifelong(env, FEATURES, POLICY, learner, **RUN, **options, key=key)


def test_seeds_and_settings_of_a_capped_run_are_one_trace_and_find_the_support(count_traces):
    counted, counter = count_traces(small_run)
    sweep = quick_jit(jax.vmap(jax.vmap(counted, (0, None)), (None, 0)))
    keys = jax.random.split(jax.random.key(0), 4)
    batched = sweep(keys, jnp.asarray([0.2, 0.1]))
    sweep(keys[::-1], jnp.asarray([0.3, 0.05]))
    assert counter.count == 1
    support = SyntheticEnv.draw(FEATURES, support_size=2, key=jax.random.key(5)).support
    equal(batched.support[..., 3:, :], np.broadcast_to(support, batched.support[..., 3:, :].shape))
    one = quick_jit(small_run)(keys[1], 0.1)
    assert_same(jax.tree.map(lambda leaf: leaf[1, 1], batched), one, exact=False)


def test_tasks_of_a_capped_learner_are_one_trace(count_traces):
    counted, counter = count_traces(
        lambda state, data: LEARNERS["meta_kgl"](max_past=2).update(state, data, sizes_of(NUM_TASKS))
    )
    step, state = jax.jit(counted), LEARNERS["meta_kgl"](max_past=2).init(sizes_of(NUM_TASKS))
    for data in TASKS:
        state, _ = step(state, data)
    assert counter.count == 1


def test_resumed_capped_run_equals_an_uninterrupted_one():
    key = jax.random.key(3)
    play = quick_jit(small_run, static_argnames="tasks")
    whole = play(key)
    first = play(key, tasks=range(5))
    second = play(key, tasks=range(5, 7), carry=first.carry)
    assert_same(second.carry, whole.carry)
    for name in ("actions", "regret", "support", "gap"):
        equal(np.concatenate([getattr(first, name), getattr(second, name)]), getattr(whole, name))


def test_offline_learning_keeps_the_latest_tasks():
    env = SyntheticEnv.draw(FEATURES, support_size=2, key=jax.random.key(5))
    learners = {str(most): MetaKGL(0.2, 0.25, max_past=most) for most in (None, 2, 5)}
    results = run_offline(
        env, FEATURES, POLICY, learners, num_tasks=5, num_rows=6, horizon=4, key=jax.random.key(0)
    )
    assert_same(results["5"], results["None"])
    first, expected = (jax.tree.map(lambda leaf: leaf[:2], results[most]) for most in ("2", "None"))
    assert_same(first, expected, exact=False)
    assert (results["2"].gap[2:] != results["None"].gap[2:]).any()


# --- tasks that change ---


@one_of_each
def test_capped_learner_follows_a_change_of_the_support(name):
    """Four tasks of the first kernel, four of the last two: the capped learner has only the latter."""
    learner, sizes = LEARNERS[name](max_past=KEPT), sizes_of(NUM_TASKS)
    tasks = draw_tasks(num_rows=40)
    sizes = RunSizes(GROUPS, NUM_TASKS, 40, 39, jnp.float64)
    early, late = ([True, False, False, False], [False, False, True, True])
    _, before, _ = run(learner, tasks[:4], sizes)
    _, after, _ = run(learner, tasks, sizes)
    equal(before.support, early)
    equal(after.support, late)
    _, uncapped, _ = run(LEARNERS[name](), tasks, sizes)
    assert uncapped.support[0], "the first tasks are still in the history of the learner without a cap"


# --- bad values ---


@one_of_each
@pytest.mark.parametrize(
    ("most", "message"),
    [
        (0, "`max_past` should be a whole number >= 1, but got 0"),
        (-3, "`max_past` should be a whole number >= 1"),
        (2.5, "`max_past` should be a whole number known before tracing, but got 2.5"),
        (True, "`max_past` should be a whole number known before tracing, but got True"),
        ("3", "`max_past` should be a whole number known before tracing, but got '3'"),
    ],
)
def test_bad_number_of_tasks_is_refused_by_name(name, most, message):
    with pytest.raises(ValueError, match=message):
        LEARNERS[name](max_past=most)


def test_traced_number_of_tasks_is_refused_by_name():
    with pytest.raises(ValueError, match="`max_past` should be a whole number known before tracing"):
        jax.jit(lambda most: MetaKGL(0.1, 0.1, max_past=most))(3)


def test_number_of_tasks_is_a_setting_of_experiments():
    assert Spec(MetaKGL, lam=0.1, omega=0.1, max_past=8).make().max_past == 8
    with pytest.raises(SettingError, match="'max_past' should be a number >= 1, but got 0"):
        Spec(MetaKGL, lam=0.1, omega=0.1, max_past=0)
    with pytest.raises(SettingError, match=r"'max_past' should be a whole number, but got 1\.5"):
        Spec(MetaKGL, lam=0.1, omega=0.1, max_past=1.5)
