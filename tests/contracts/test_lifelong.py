"""Every policy x meta-learner x scaling x environment satisfies the contract of `run_agents`.

The whole product is traced with abstract values, which checks structure, shapes and dtypes. Compiling takes
seconds per program, so numbers are computed only for a part of the product, with all policies in one program;
the slow tests compute them for the whole product.
"""

import operator
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import RunSizes, TableEnv, TaskData, run_agents
from jlibo.meta.past import no_past, remember
from tests.contracts.table import (
    ENVS,
    FEATURES,
    HORIZON,
    LEARNERS,
    NUM_CANDIDATES,
    NUM_TASKS,
    POLICIES,
    SCALINGS,
    OneOf,
    concrete_classes,
)
from tests.features.maps import CASES as MAPS

# The programs run briefly: with less optimisation they compile in half the time.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
KEY = jax.random.key(0)
SIZES = dict(num_tasks=NUM_TASKS, horizon=HORIZON)
FIELDS = {
    "actions": ((NUM_TASKS, HORIZON), jnp.integer),
    "rewards": ((NUM_TASKS, HORIZON), jnp.floating),
    "regret": ((NUM_TASKS, HORIZON), jnp.floating),
    "explored": ((NUM_TASKS, HORIZON), jnp.bool_),
    "num_explore": ((NUM_TASKS,), jnp.integer),
    "support": ((NUM_TASKS, FEATURES.num_groups), jnp.bool_),
    "fell_back": ((NUM_TASKS,), jnp.bool_),
    "status": ((NUM_TASKS,), jnp.integer),
    "gap": ((NUM_TASKS,), jnp.floating),
    "num_steps": ((NUM_TASKS,), jnp.integer),
}


@pytest.mark.parametrize(
    "base, instances",
    [
        (jlibo.AbstractPolicy, [make(0) for make in POLICIES.values()]),
        (jlibo.AbstractMetaLearner, [make(0) for make in LEARNERS.values()]),
        (jlibo.AbstractScaling, [make(0) for make in SCALINGS.values()]),
        (jlibo.AbstractEnv, [make(0, "float64") for make in ENVS.values()]),
        (
            jlibo.AbstractFeatures,
            [make() for make in MAPS.values()],
        ),
    ],
    ids=["policies", "meta_learners", "scalings", "environments", "features"],
)
def test_every_class_is_in_the_table(base, instances):
    missing = concrete_classes(base) - {type(instance) for instance in instances}
    assert not missing, f"give {missing} an entry in tests/contracts/table.py"


def check_fields(result, dtype, batch=()):
    """Shapes and dtypes of a result, of arrays or abstract values, as `LifelongResult` declares them."""
    assert set(FIELDS) | {"carry"} == set(vars(result))
    for name, (shape, kind) in FIELDS.items():
        value = getattr(result, name)
        assert value.shape == (*batch, *shape) and jnp.issubdtype(value.dtype, kind), name
        if kind is jnp.floating:
            assert value.dtype == dtype, name
    for leaf in jax.tree.leaves(result.carry):
        assert not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == dtype


# --- the whole product, abstractly ---


def trace_run(learners, scaling, env):
    """The abstract results of a run. `OneOf` traces every policy."""
    one_policy = OneOf([make(0) for make in POLICIES.values()], jnp.asarray(0))
    return jax.eval_shape(
        lambda env, *agent: run_agents(env, FEATURES, *agent[:2], scaling=agent[2], **SIZES, key=KEY),
        *(env, one_policy, learners, scaling),
    )


def check_run(result, learner, scaling):
    check_fields(result, "float32")
    expected = jax.eval_shape(lambda: (learner.init(setting_of(learner)), scaling.init(jnp.dtype("float32"))))
    chex.assert_trees_all_equal_structs(result.carry, expected)
    chex.assert_trees_all_equal_shapes_and_dtypes(result.carry, expected)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_combination_keeps_shapes_dtypes_and_state_structure(scaling, env):
    """All learners in one run. In float32 with x64 enabled, so that a float64 value is detected."""
    learners = {name: make(0) for name, make in LEARNERS.items()}
    scaling = SCALINGS[scaling](0)
    results = trace_run(learners, scaling, ENVS[env](0, "float32"))
    assert set(results) == set(learners)
    for name, result in results.items():
        check_run(result, learners[name], scaling)


@pytest.mark.parametrize(
    "learner, scaling",
    [(name, list(SCALINGS)[place % len(SCALINGS)]) for place, name in enumerate(LEARNERS)],
)
def test_every_learner_alone_keeps_shapes_dtypes_and_state_structure(learner, scaling):
    """Priors of one shape, which the policies see as they are; with others they are put into one shape."""
    learner, scaling = LEARNERS[learner](0), SCALINGS[scaling](0)
    result = trace_run({"agent": learner}, scaling, ENVS["table"](0, "float32"))["agent"]
    check_run(result, learner, scaling)


# --- numbers: every pair of kinds, and all policies with all learners ---

# A learner's programs take seconds to compile, "adaptive" and "self_tuned" most, so each learner is in few.
PRIORS = ("full", "full_matrix", "mean_and_covariance")
PROGRAMS = [
    ("synthetic", "raw", "float32", ("meta_kgl", "self_tuned")),
    ("table", "standardise", "float64", (*PRIORS, "adaptive")),
    ("function", "standardise", "float64", ("federated", "meta_kel")),
    ("table_of_own_candidates", "raw", "float64", ("full", "meta_kgl")),
    # The other pairs of environment, scaling and precision, with learners that compile fast.
    ("synthetic", "standardise", "float64", ("full",)),
    ("table", "raw", "float32", ("full",)),
    ("table_of_own_candidates", "standardise", "float32", ("full",)),
    ("function", "raw", "float32", PRIORS),
]
WHOLE_PRODUCT = [
    pytest.param(env, scaling, dtype, tuple(LEARNERS), marks=pytest.mark.slow)
    for env in ENVS
    for scaling in SCALINGS
    for dtype in ("float32", "float64")
]


def short(value):
    return f"{len(value)}_learners" if isinstance(value, tuple) else value


@pytest.mark.parametrize("env, scaling, dtype, names", PROGRAMS + WHOLE_PRODUCT, ids=short)
def test_batch_of_all_policies_gives_valid_results(env, scaling, dtype, names):
    """The second call has different numbers in every module and reuses the program."""

    @quick_jit
    @chex.assert_max_traces(n=1)
    def run(env, policies, learners, scaling, key):
        def play(number):
            return run_agents(
                env, FEATURES, OneOf(policies, number), learners, **SIZES, scaling=scaling, key=key
            )

        return jax.vmap(play)(jnp.arange(len(policies)))

    for seed in (0, 1):
        world = ENVS[env](seed, dtype)
        policies = [make(seed) for make in POLICIES.values()]
        learners = {name: LEARNERS[name](seed) for name in names}
        results = run(world, policies, learners, SCALINGS[scaling](seed), jax.random.key(seed))
        assert set(results) == set(names)
        for name, result in results.items():
            check_fields(result, dtype, batch=(len(POLICIES),))
            chex.assert_tree_all_finite(result)
            check_numbers(result, world, learners[name])
        if set(names) >= {"full", "full_matrix"}:
            check_same_prior(results["full"], results["full_matrix"])


def check_numbers(result, env, learner):
    actions = np.asarray(result.actions)
    assert (np.asarray(result.regret) >= 0).all()
    # These learners limit the steps of a solve, as they use only which groups it selects.
    is_limited = isinstance(learner, jlibo.SelfTunedMetaKGL | jlibo.AdaptiveMetaKGL)
    ends = [jlibo.Status.CONVERGED, *([jlibo.Status.STEP_LIMIT] if is_limited else [])]
    assert np.isin(result.status, ends).all()
    assert (actions >= 0).all() and (actions < NUM_CANDIDATES).all()
    counts = learner.exploration.counts(NUM_TASKS, HORIZON)
    np.testing.assert_array_equal(result.num_explore, np.broadcast_to(counts, (len(POLICIES), NUM_TASKS)))
    np.testing.assert_array_equal(
        result.explored, np.broadcast_to(np.arange(HORIZON) < counts[:, None], actions.shape)
    )
    if isinstance(env, TableEnv):
        rows = np.asarray(env.order)[:NUM_TASKS, None]
        assert np.asarray(env.available)[rows, actions].all(), "played a candidate without a value"


def check_same_prior(first, second):
    """The same prior as a diagonal and as a matrix gives equal actions for every policy."""
    # Draws of weights depend on the order of the factor's columns, which differs.
    others = [number for number, name in enumerate(POLICIES) if name != "gp_ts"]
    np.testing.assert_array_equal(first.actions[np.array(others)], second.actions[np.array(others)])


# --- learners between tasks ---


def setting_of(learner, dtype="float32"):
    most = int(learner.exploration.counts(NUM_TASKS, HORIZON).max())
    return RunSizes(FEATURES.groups, NUM_TASKS, HORIZON, most, jnp.dtype(dtype))


def make_tasks(sizes):
    tasks = [task_data(index, sizes) for index in range(NUM_TASKS)]
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *tasks)


def task_data(index, sizes):
    """Rewards of a sparse function that differs between tasks, with forced exploration first."""
    rng = np.random.default_rng(index)
    features = np.asarray(FEATURES(rng.random((HORIZON, 1))))
    rewards = features @ np.array([2.0, 0, 0, -1.0]) * rng.uniform(0.8, 1.2) + 0.01 * rng.normal(size=HORIZON)
    explored = np.arange(HORIZON) < sizes.max_explore
    return TaskData(jnp.asarray(features, sizes.dtype), jnp.asarray(rewards, sizes.dtype), explored)


def update_and_learn(learner, tasks, sizes):
    """State and report after an update by each task, and the results of `learn` on all tasks and on none."""

    def step(carry, step):
        (state, past), (index, data) = carry, step
        state, info = learner.update(state, data, sizes)
        return (state, remember(past, index, data, learner.data, sizes)), info

    none = no_past(learner.data, sizes)
    start = learner.init(sizes), none
    (state, past), infos = jax.lax.scan(step, start, (jnp.arange(NUM_TASKS), tasks))
    pasts = jax.tree.map(lambda *leaves: jnp.stack(leaves), none, past)
    learned = jax.vmap(lambda past, num_done: learner.learn(past, num_done, sizes))(
        pasts, jnp.asarray([0, NUM_TASKS], jnp.int32)
    )
    nothing, everything = (jax.tree.map(operator.itemgetter(place), learned) for place in (0, 1))
    return (state, jax.tree.map(operator.itemgetter(-1), infos)), everything, nothing[0]


def check_structure(learner, sizes, results):
    """States after updates and after `learn` have the structure of the first one."""
    (updated, info), (learned, learned_info), nothing = results
    first = jax.eval_shape(lambda: learner.init(sizes))
    for state in (updated, learned, nothing):
        chex.assert_trees_all_equal_structs(state, first)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, first)
    chex.assert_trees_all_equal_shapes_and_dtypes(learned_info, info)


@pytest.mark.parametrize("name", LEARNERS)
def test_update_and_learn_keep_the_structure_of_the_state(name):
    """In float32; the test below has float64."""
    learner = LEARNERS[name](0)
    sizes = setting_of(learner, "float32")
    results = jax.eval_shape(partial(update_and_learn, sizes=sizes), learner, make_tasks(sizes))
    check_structure(learner, sizes, results)


@pytest.mark.parametrize("name", LEARNERS)
def test_learn_equals_repeated_update(name):
    learner = LEARNERS[name](0)
    sizes = setting_of(learner, "float64")
    run = partial(update_and_learn, sizes=sizes)
    results = quick_jit(run)(learner, make_tasks(sizes))
    check_structure(learner, sizes, results)
    (updated, info), (learned, learned_info), nothing = results
    prior = partial(learner.prior, sizes=sizes)
    chex.assert_trees_all_equal(learned_info.support, info.support)
    chex.assert_trees_all_close(prior(learned), prior(updated), rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(prior(nothing), prior(learner.init(sizes)), rtol=1e-12)
