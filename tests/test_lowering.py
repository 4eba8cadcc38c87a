"""Every compiled entry of the library lowers for cuda and tpu, and none calls back to the host.

One table of entries, each a function of arrays; a test checks that every jitted function of the package is in
the table. The programs are lowered but not compiled, as the machine may have no such device.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jlibo
from jlibo import arena, privacy, theory
from jlibo.actions import BoxActions
from jlibo.arena import Schedule, estimators, methods, run_rounds
from jlibo.belief import posterior as gp
from jlibo.belief.moments import Moments
from jlibo.belief.prior import semidefinite_cholesky
from jlibo.envs.linear import BoxArms, FreshArms, KernelWeights, LinearEnv, LowRankWeights
from jlibo.experiments import federated_numbers, find, recovery
from jlibo.experiments.run import ExperimentRun
from jlibo.lifelong.loop import run_agents
from jlibo.meta import RunSizes, TaskData
from jlibo.sweeps.points import as_points
from jlibo.sweeps.program import trace
from jlibo.tune import arrays, ask, engine, federated, insight, learning, outlook, portfolio
from jlibo.tune.report import curves

PLATFORMS = ("cuda", "tpu")
NUM_FEATURES, NUM_TASKS, HORIZON = 5, 3, 6
FEATURES = jlibo.Cosine(NUM_FEATURES)
GROUPS = tuple(range(NUM_FEATURES))
SIZES = RunSizes(GROUPS, NUM_TASKS, HORIZON, 3, jnp.float32)
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)

POLICIES = {
    "GPUCB": jlibo.GPUCB(10.0, 0.1),
    "GPUCB with TheoreticalNu": jlibo.GPUCB(jlibo.TheoreticalNu(1.0, 0.1, 0.1), 0.1),
    "GPTS": jlibo.GPTS(0.1),
    "OFUL": jlibo.OFUL(1.0, 0.1, 0.1),
    "Greedy": jlibo.Greedy(0.1),
    "ExpectedImprovement": jlibo.ExpectedImprovement(0.1),
    "LogExpectedImprovement": jlibo.LogExpectedImprovement(0.1),
    "Uniform": jlibo.Uniform(),
}
LEARNERS = {
    "FixedPrior": jlibo.FixedPrior(),
    "MetaKGL": jlibo.MetaKGL(0.1, 0.1),
    "MetaKGL, noise": jlibo.MetaKGL(0.1, 0.1, lam_scaling="noise"),
    "MetaKGL, estimated": jlibo.MetaKGL(4.0, 0.75, lam_scaling="estimated", omega_scaling="penalty"),
    "FederatedMetaKGL": jlibo.FederatedMetaKGL(0.1, 0.1, 0.25),
    "FederatedMetaKGL, toeplitz": jlibo.FederatedMetaKGL(
        0.1, 0.1, 0.25, mechanism=privacy.ToeplitzNoise(1.0, 1e-5)
    ),
    "FederatedMetaKGL, gnmax": jlibo.FederatedMetaKGL(
        0.1, 0.1, 0.25, mechanism=privacy.GNMaxNoise(1.0, 1e-5)
    ),
    "FederatedMetaKGL, local": jlibo.FederatedMetaKGL(
        0.1, 0.1, 0.25, mechanism=privacy.RandomisedResponse(4.0)
    ),
    "MetaKeL": jlibo.MetaKeL(0.1),
    "SelfTunedMetaKGL": jlibo.SelfTunedMetaKGL(num_lams=2),
    "AdaptiveMetaKGL": jlibo.AdaptiveMetaKGL(num_lams=2, num_steps=2),
    "MetaKGL, latest": jlibo.MetaKGL(0.1, 0.1, max_past=1),
    "AdaptiveMetaKGL, latest": jlibo.AdaptiveMetaKGL(num_lams=2, num_steps=2, max_past=1),
}

RIVALS = {
    "HierarchicalPrior": methods.HierarchicalPrior(
        jlibo.Prior(np.zeros(NUM_FEATURES), np.ones(NUM_FEATURES)), jnp.eye(NUM_FEATURES), 0.1
    ),
    "EmpiricalBayes": methods.EmpiricalBayes(0.1, 1.0),
    "EmpiricalBayes, low rank": methods.EmpiricalBayes(0.1, 1.0, "low-rank", 2),
    "TaskMomentsPrior": methods.TaskMomentsPrior(0.1, jlibo.full_prior(GROUPS), data="all"),
    "LikelihoodPrior": methods.LikelihoodPrior(0.1, 1.0),
    "LikelihoodPrior, functions": methods.LikelihoodPrior(
        0.1, 1.0, hyper=estimators.HyperPrior.on_functions(np.eye(NUM_FEATURES), np.eye(NUM_FEATURES), 0.1)
    ),
    "PredictivePrior": methods.PredictivePrior(0.1, 1.0, num_steps=2),
    "TraceNormPrior": methods.TraceNormPrior(1.0),
}
JOINT_LEARNERS = {
    "JointHierarchy": methods.JointHierarchy(
        jlibo.Prior(np.zeros(NUM_FEATURES), np.ones(NUM_FEATURES)), jnp.eye(NUM_FEATURES), 0.1
    ),
    "ExploreThenCommit": methods.ExploreThenCommit((2, 2, 2), 2, 2),
    "ExploreThenCommit, moment": methods.ExploreThenCommit((2, 2, 2), 2, 2, "moment"),
    "PhasedGreedy": methods.PhasedGreedy(2),
    "JointOful": methods.JointOful(0.1, 2),
    "TraceNormGreedy": methods.TraceNormGreedy(),
    "DoublyRobustLasso": methods.DoublyRobustLasso(first_steps=2),
}


class Entry(NamedTuple):
    """A function of arrays, their shapes, and the jitted functions of the package that it calls."""

    fn: Callable[..., Any]
    shapes: tuple[Any, ...]
    covers: tuple[str, ...] = ()


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def booleans(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


def key_of(data):
    return jax.random.wrap_key_data(data)


def make_belief(rows, rewards):
    posterior = gp.init(jlibo.full_prior(GROUPS, jnp.float32), 0.1)
    return gp.observe_candidate(gp.belief_at(posterior, rows), jnp.asarray(1), rewards[0])


def of_policy(policy):
    def step(policy, rows, rewards, available, data):
        belief = make_belief(rows, rewards)
        chosen = jlibo.choose(policy, belief, available=available, key=key_of(data))
        return chosen, gp.observe_pending(belief, chosen)

    arguments = shapes_of(policy), floats(7, NUM_FEATURES), floats(7), booleans(7), KEY
    return Entry(step, arguments)


def of_learner(learner):
    def update(learner, rows, rewards, explored, data):
        state = learner.init(SIZES)
        task = TaskData(rows, rewards, explored, key=key_of(data))
        state, info = learner.update(state, task, SIZES)
        return learner.prior(state, SIZES), info

    return Entry(
        partial(with_static, learner, update),
        (
            shapes_of(learner),
            floats(HORIZON, NUM_FEATURES),
            floats(HORIZON),
            booleans(HORIZON),
            KEY,
        ),
    )


def of_action_sets(data):
    """A run on a box, and runs of the arena on fresh contexts, a ball and an ellipsoid."""
    key = key_of(data)
    weights = KernelWeights.draw(GROUPS, support_size=2, key=key)
    actions = BoxActions(FEATURES, num_candidates=8, num_starts=2, num_steps=2)
    box = LinearEnv(weights, BoxArms(actions), 0.1)
    rest = dict(num_tasks=2, horizon=3, key=key)
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    run = jlibo.run_lifelong(box, FEATURES, POLICIES["GPUCB"], learner, scaling=scaling, **rest)
    sized = {name: one.sized(num_tasks=2, horizon=3) for name, one in arena.ENVIRONMENTS.items()}
    names = ("low-rank-contexts", "low-rank-ball", "low-rank-ellipsoid", "gaussian-arms")
    played = [arena.run_method(sized[name], arena.METHODS["oracle"], key=key) for name in names]
    together = arena.OneAfterAnother(LEARNERS["MetaKGL"], POLICIES["GPTS"])
    return run.regret, played, run_rounds(box, together, Schedule.concurrent(2, 3), key=key).regret


def of_joint_learner(learner):
    def run(learner, data):
        key = key_of(data)
        weights = LowRankWeights.draw(num_features=NUM_FEATURES, rank=2, key=key)
        env = LinearEnv(weights, FreshArms(4, NUM_FEATURES), 0.1)
        return run_rounds(env, learner, Schedule.concurrent(NUM_TASKS, HORIZON), key=key).regret

    return Entry(partial(with_static, learner, run), (shapes_of(learner), KEY), ("_run_compiled",))


def estimates(gram, moment, squares, count, arms):
    stats = estimators.TaskStatistics(gram, moment, squares, count)
    inverse = jnp.broadcast_to(jnp.eye(NUM_FEATURES, dtype=gram.dtype), gram.shape)
    return (
        estimators.trace_norm_least_squares(stats, 0.1),
        estimators.group_lasso_of(stats, 0.1),
        estimators.joint_choice(arms, moment, inverse, 1.0),
        estimators.top_subspace(gram[0], 2),
    )


def with_static(module, fn, numbers, *args):
    """`fn` of the module with its arrays replaced by traced ones."""
    return fn(eqx.combine(numbers, eqx.filter(module, eqx.is_array, inverse=True)), *args)


def shapes_of(tree):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), eqx.filter(tree, eqx.is_array)
    )


def make_env(data):
    return jlibo.SyntheticEnv.draw(
        FEATURES,
        support_size=2,
        candidates=jnp.linspace(0, 1, 9, dtype=jnp.float32)[:, None],
        key=key_of(data),
    )


def lifelong(learners, data, *, policy="GPUCB", **rest):
    return run_agents(
        make_env(data),
        FEATURES,
        POLICIES[policy],
        {name: LEARNERS[name] for name in learners},
        num_tasks=NUM_TASKS,
        horizon=HORIZON,
        key=key_of(data),
        **rest,
    )


def table_run(values, data):
    env = jlibo.TableEnv(values, np.linspace(0, 1, 9, dtype=np.float32)[:, None])
    return jlibo.run_lifelong(
        env.shuffled(key=key_of(data)),
        FEATURES,
        POLICIES["LogExpectedImprovement"],
        LEARNERS["MetaKGL"],
        num_tasks=NUM_TASKS,
        horizon=HORIZON,
        scaling=jlibo.Standardise(),
        key=key_of(data),
    )


def function_run(data):
    env = jlibo.FunctionEnv(
        jnp.linspace(0, 1, 9, dtype=jnp.float32)[:, None],
        lambda point, shift: jnp.sin(3 * point[0] + shift),
        lambda index, key: jax.random.uniform(key, dtype=jnp.float32),
        0.1,
    )
    return jlibo.run_lifelong(
        env, FEATURES, POLICIES["GPTS"], LEARNERS["FixedPrior"], num_tasks=2, horizon=3, key=key_of(data)
    )


def coverage(data):
    env = jlibo.SyntheticEnv.draw(FEATURES, support_size=2, key=key_of(data))
    sizes = dict(num_tasks=NUM_TASKS, horizon=HORIZON, key=key_of(data))
    agents = {"MetaKGL": LEARNERS["MetaKGL"]}
    return theory.measure_coverage(env, FEATURES, POLICIES["GPUCB"], agents, coef_norm=1.0, **sizes)


def theory_of_designs(design, mask, kappa):
    rest = dict(beta_min=0.5, omega=0.2, noise_std=0.1)
    probability = theory.design_recovery_probability(design, kappa=kappa, mask=mask, **rest)
    return theory.kappa_lower(design, 2, mask=mask), probability


def theory_of_counts(counts, kappa):
    rest = dict(beta_min=0.5, omega=0.2, kappa=kappa, noise_std=0.1, norm_bound=1.0, delta=0.1)
    return theory.lifelong_regret_bound(counts, 20, 5, task_regret=3.0, method="sum", **rest)


def gains(rows):
    prior = jlibo.full_prior(GROUPS, jnp.float32)
    return theory.information_gain(rows, 0.1, prior), theory.greedy_information_gain(rows, 3, 0.1, prior)


def exploration_rows(data):
    return recovery.exploration_rows(make_env(data), FEATURES, NUM_TASKS, HORIZON, key_of(data))


def of_experiment(name, covers=()):
    experiment = find(name)
    run_fn = ExperimentRun(experiment, ("regret", "support", "true_support"))
    program = trace(run_fn, as_points([experiment.data()]), jax.random.key(0), dims=run_fn.dims)
    return Entry(program.chunk_fn(2), program.arguments(2), covers)


def solver(fn):
    return Entry(
        lambda design, targets, lam, mask: fn(design, targets, lam, groups=[0, 1, 1, 2, 0], mask=mask),
        (floats(3, 4, NUM_FEATURES), floats(3, 4), floats(), booleans(3, 4)),
        ("_group_lasso",),
    )


def box(policy):
    def maximise(rows, rewards, data):
        posterior = make_belief(rows, rewards).posterior
        rest = dict(num_candidates=8, num_starts=2, num_steps=2)
        return jlibo.maximise(policy, posterior, FEATURES, key=key_of(data), **rest)

    return Entry(maximise, (floats(7, NUM_FEATURES), floats(7), KEY), ("_maximise",))


def tuner_learn(features, scores, explored, present):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    past = engine.PastTrials(features, scores, explored, present, jnp.zeros(NUM_TASKS, scores.dtype))
    count = jnp.asarray(2, jnp.int32)
    return engine.learn(learner, scaling, jnp.asarray(0.1, scores.dtype), past, count, SIZES)


def tuner_summarise(features, scores, explored, present):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    past = engine.PastTrials(features, scores, explored, present, jnp.zeros(NUM_TASKS, scores.dtype))
    support = jnp.ones(SIZES.num_groups, bool)
    return engine.summarise(learner, scaling, jnp.asarray(0.1, scores.dtype), past, support, SIZES)


def tuner_rows(points, scores, explored, present, is_summary=False):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    rows = arrays.PastRows(points, scores, explored, present, jnp.zeros(NUM_TASKS, scores.dtype))
    parts = (learner, scaling, jnp.asarray(0.1, scores.dtype), FEATURES, rows)
    if is_summary:
        return learning._summarise(*parts, jnp.ones(SIZES.num_groups, bool), SIZES)
    return learning._begin(*parts, SIZES).history


def client_votes(points, scores, explored, present):
    rows = arrays.PastRows(points, scores, explored, present, jnp.zeros(NUM_TASKS, scores.dtype))
    numbers = (jnp.asarray(number, scores.dtype) for number in (0.2, 0.1, 0.1))
    share, omega, noise_std = numbers
    return federated._selections(share, omega, jlibo.Standardise(), noise_std, FEATURES, rows, SIZES, 2)


def election_votes(data):
    parts = (make_env(data), FEATURES, LEARNERS["FederatedMetaKGL"])
    return federated_numbers.votes_of(*parts, 4, 3, key=key_of(data))


def election_regret(supports, data):
    policy = jlibo.GPUCB(10.0, 0.1)
    return federated_numbers._played(make_env(data), FEATURES, policy, supports, 1, HORIZON, key=key_of(data))


def tuner_suggest(features, scores, told, pending, candidates, data, is_compressed=False):
    zero = jnp.zeros((), scores.dtype)
    moments = Moments(zero, zero, zero, zero)
    none = jnp.zeros((), jnp.int32)
    rest = engine.Compressed(scores, jnp.zeros((2, 2), scores.dtype), zero, moments, zero, none)
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    knowledge = engine.nothing_known(learner, scaling, SIZES)
    return engine.suggest(
        POLICIES["LogExpectedImprovement"],
        scaling,
        knowledge,
        engine.OwnTrials(features, scores, told, pending, rest if is_compressed else None),
        candidates,
        jnp.ones(len(candidates), bool),
        jnp.zeros((), scores.dtype),
        key=key_of(data),
    )


def tuner_best(points, scores, told, pending, candidates, near, data):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    knowledge = engine.nothing_known(learner, scaling, SIZES)
    rows = arrays.OwnRows(points, scores, told, pending)
    available = jnp.ones(len(candidates) + len(near), bool)
    zero = jnp.zeros((), scores.dtype)
    parts = (POLICIES["GPUCB"], scaling, knowledge, FEATURES, rows)
    return ask._best_candidates(*parts, ask.Choices(candidates, near, available), zero, key=key_of(data))


def tuner_insight(points, scores, told, pending, candidates, near, features, data, is_whole=True):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    knowledge = engine.nothing_known(learner, scaling, SIZES)
    rows, tried = arrays.OwnRows(points, scores, told, pending), outlook.Tried(points, scores, told)
    choices = ask.Choices(candidates, near, jnp.ones(len(candidates) + len(near), bool))
    zero = jnp.zeros((), scores.dtype)
    policy = POLICIES["LogExpectedImprovement"]
    rest = (scaling, knowledge, FEATURES, rows, tried, choices, zero)
    if not is_whole:
        return outlook.look(policy.noise_std, *rest).outlook
    present, steps = jnp.ones(len(candidates), bool), jnp.ones(features.shape[:2], scores.dtype)
    past = engine.PastTrials(features, steps, steps > 0, steps > 0, jnp.zeros(NUM_TASKS, scores.dtype))
    effects = jnp.ones((2, features.shape[-1], features.shape[-1]), scores.dtype)
    return insight.insight(policy, *rest, present, effects, past, 3, key=key_of(data))


def past_values(fn, features, scores, explored, present, points):
    learner, scaling = LEARNERS["AdaptiveMetaKGL"], jlibo.Standardise()
    past = engine.PastTrials(features, scores, explored, present, jnp.zeros(NUM_TASKS, scores.dtype))
    knowledge = engine.nothing_known(learner, scaling, SIZES)
    return fn(jnp.asarray(0.1, scores.dtype), scaling, knowledge, FEATURES, past, points)


TRIALS = (floats(4, NUM_FEATURES), floats(4), booleans(4), booleans(4))
PAST_ROWS = (floats(NUM_TASKS, HORIZON, 1), floats(NUM_TASKS, HORIZON), *(booleans(NUM_TASKS, HORIZON),) * 2)
PAST_SHAPES = (
    *(floats(NUM_TASKS, HORIZON, NUM_FEATURES), floats(NUM_TASKS, HORIZON)),
    *(booleans(NUM_TASKS, HORIZON), booleans(NUM_TASKS, HORIZON)),
)
INSIGHT_SHAPES = (
    *(floats(4, 1), *TRIALS[1:], floats(8, NUM_FEATURES), floats(2, 1)),
    *(floats(NUM_TASKS, HORIZON, NUM_FEATURES), KEY),
)
ENTRIES: dict[str, Callable[[], Entry]] = {
    **{f"policy {name}": partial(of_policy, policy) for name, policy in POLICIES.items()},
    **{f"learner {name}": partial(of_learner, learner) for name, learner in LEARNERS.items()},
    **{f"rival {name}": partial(of_learner, learner) for name, learner in RIVALS.items()},
    **{f"joint {name}": partial(of_joint_learner, learner) for name, learner in JOINT_LEARNERS.items()},
    "action sets": lambda: Entry(of_action_sets, (KEY,)),
    "arena estimates": lambda: Entry(
        estimates,
        (
            floats(NUM_TASKS, NUM_FEATURES, NUM_FEATURES),
            *(floats(NUM_TASKS, NUM_FEATURES), floats(NUM_TASKS), floats(NUM_TASKS)),
            floats(NUM_TASKS, 4, NUM_FEATURES),
        ),
    ),
    "maximise GPUCB": partial(box, POLICIES["GPUCB"]),
    "maximise GPTS": partial(box, POLICIES["GPTS"]),
    "group_lasso": partial(solver, jlibo.group_lasso),
    "group_lasso, a batch": lambda: Entry(
        jax.vmap(lambda design, targets: jlibo.group_lasso(design, targets, 0.1)),
        (floats(16, 3, 4, 40), floats(16, 3, 4)),
    ),
    "group_lasso_path": lambda: solver(
        lambda design, targets, lam, **rest: jlibo.group_lasso_path(
            design, targets, lam * jnp.array([2.0, 1.0], jnp.float32), **rest
        )
    )._replace(covers=("_path",)),
    "lambda_max": lambda: solver(
        lambda design, targets, lam, **rest: jlibo.lambda_max(design, targets, **rest)
    )._replace(covers=("_lambda_max",)),
    "features": lambda: Entry(FEATURES, (floats(2, 7, 1),), ("_evaluate_batch",)),
    "normalise": lambda: Entry(
        lambda data: jlibo.normalise(FEATURES, num_points=7, key=key_of(data)).scales,
        (KEY,),
        ("_max_diagonal", "_scales"),
    ),
    "semidefinite_cholesky": lambda: Entry(
        semidefinite_cholesky, (floats(NUM_FEATURES, NUM_FEATURES),), ("semidefinite_cholesky",)
    ),
    "posterior": lambda: Entry(
        lambda rows, rewards, data: gp.sample(
            gp.observe(make_belief(rows, rewards).posterior, rows[0], rewards[1]), rows, key=key_of(data)
        ),
        (floats(7, NUM_FEATURES), floats(7), KEY),
    ),
    "run_agents, all learners": lambda: Entry(
        partial(lifelong, tuple(LEARNERS)), (KEY,), ("_play_compiled",)
    ),
    "run_agents, all seeds at once": lambda: Entry(
        jax.vmap(partial(lifelong, ("MetaKGL", "FederatedMetaKGL"))),
        (jax.ShapeDtypeStruct((4, 2), jnp.uint32),),
    ),
    "run_agents, without repeats": lambda: Entry(
        partial(lifelong, ("MetaKGL",), repeats=False), (KEY,), ("draw_coefficients", "draw_support")
    ),
    "run_lifelong, a table": lambda: Entry(table_run, (floats(NUM_TASKS, 9), KEY)),
    "run_lifelong, functions": lambda: Entry(function_run, (KEY,)),
    "experiment lifelong-cosine": partial(of_experiment, "lifelong-cosine"),
    "experiment offline-cosine": partial(of_experiment, "offline-cosine", covers=("_learn_and_play",)),
    "theory of designs": lambda: Entry(
        theory_of_designs,
        (floats(2, 4, NUM_FEATURES), booleans(2, 4), floats()),
        ("_gram_constants", "_kappa_from_eigenvalue", "_failure"),
    ),
    "theory of counts": lambda: Entry(
        theory_of_counts, (floats(NUM_TASKS), floats()), ("_failures", "_first_right")
    ),
    "exact vote": lambda: Entry(theory.exact_vote_probability, (floats(4), floats()), ("_tail",)),
    "information gain": lambda: Entry(
        gains, (floats(7, NUM_FEATURES),), ("_information_gain", "_greedy_gain")
    ),
    "exploration_rows": lambda: Entry(exploration_rows, (KEY,), ("_exploration_places",)),
    "measure_coverage": lambda: Entry(coverage, (KEY,), ("_cover",)),
    "kappa_search": lambda: Entry(
        lambda design, mask, data: theory.kappa_search(
            design, 2, mask=mask, num_starts=4, num_rounds=2, num_steps=3, key=key_of(data)
        ),
        (floats(2, 4, NUM_FEATURES), booleans(2, 4), KEY),
        ("_search",),
    ),
    "tuner learn": lambda: Entry(
        tuner_learn,
        (
            floats(NUM_TASKS, HORIZON, NUM_FEATURES),
            floats(NUM_TASKS, HORIZON),
            booleans(NUM_TASKS, HORIZON),
            booleans(NUM_TASKS, HORIZON),
        ),
        ("learn", "begin", "finish"),
    ),
    "tuner learn, rows": lambda: Entry(tuner_rows, PAST_ROWS, ("_begin",)),
    "tuner summarise, rows": lambda: Entry(partial(tuner_rows, is_summary=True), PAST_ROWS, ("_summarise",)),
    "client's votes": lambda: Entry(client_votes, PAST_ROWS, ("_selections",)),
    "votes of many clients": lambda: Entry(election_votes, (KEY,), ("votes_of",)),
    "regret after an election": lambda: Entry(election_regret, (booleans(3, len(GROUPS)), KEY), ("_played",)),
    "tuner candidates": lambda: Entry(
        partial(ask._features_at, FEATURES), (floats(4, 1),), ("_features_at",)
    ),
    "tuner suggest": lambda: Entry(tuner_suggest, (*TRIALS, floats(8, NUM_FEATURES), KEY), ("suggest",)),
    "tuner suggest, compressed": lambda: Entry(
        partial(tuner_suggest, is_compressed=True),
        (*TRIALS, floats(8, NUM_FEATURES), KEY),
        ("suggest",),
    ),
    "tuner summarise": lambda: Entry(
        tuner_summarise,
        (
            floats(NUM_TASKS, HORIZON, NUM_FEATURES),
            floats(NUM_TASKS, HORIZON),
            booleans(NUM_TASKS, HORIZON),
            booleans(NUM_TASKS, HORIZON),
        ),
        ("summarise",),
    ),
    "tuner exploration": lambda: Entry(
        lambda data: engine.exploration_order(9, 4, key=key_of(data)), (KEY,), ("exploration_order",)
    ),
    "tuner best candidate": lambda: Entry(
        tuner_best,
        (floats(4, 1), *TRIALS[1:], floats(8, NUM_FEATURES), floats(2, 1), KEY),
        ("_best_candidates",),
    ),
    "tuner outlook": lambda: Entry(partial(tuner_insight, is_whole=False), INSIGHT_SHAPES, ("look",)),
    "tuner insight": lambda: Entry(tuner_insight, INSIGHT_SHAPES, ("_simulated", "_similar")),
    "tuner defaults": lambda: Entry(
        partial(past_values, portfolio.task_values), (*PAST_SHAPES, floats(8, 1)), ("task_values",)
    ),
    "report curves": lambda: Entry(
        partial(past_values, curves.task_curves), (*PAST_SHAPES, floats(NUM_TASKS, 8, 1)), ("task_curves",)
    ),
}


@cache
def entry_of(name):
    return ENTRIES[name]()


@cache
def lowered(name):
    """Lower the entry for each platform, and return the text of the program."""
    entry = entry_of(name)
    exported = export.export(jax.jit(entry.fn), platforms=PLATFORMS)(*entry.shapes)
    assert exported.platforms == PLATFORMS
    return exported.mlir_module()


def callbacks(text):
    return [call for call in re.findall(r"custom_call @(\w+)", text) if "callback" in call]


@pytest.mark.parametrize("name", ENTRIES)
def test_lowers_for_accelerators_without_callbacks(name):
    assert callbacks(lowered(name)) == []


def test_callbacks_are_detected():
    """A run with a progress callback contains one, and `callbacks` finds it."""

    def run(data):
        return lifelong(("FixedPrior",), data, progress_fn=lambda done: None)

    # For this machine's platform: a callback cannot be lowered for a missing device.
    text = jax.jit(run).lower(KEY).as_text()
    assert callbacks(text) != []


def test_no_jitted_function_is_missing_from_the_table():
    jitted = type(jax.jit(lambda: 0)), type(eqx.filter_jit(lambda: 0))
    found = set()
    for module in pkgutil.walk_packages(jlibo.__path__, "jlibo."):
        if module.name.startswith(("jlibo.integrations", "jlibo.plot", "jlibo.sweeps.dask")):
            continue  # optional packages, and drawing
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            if isinstance(value, jitted) and value.__module__ == module.name:
                found.add(name)
    assert found == {covered for name in ENTRIES for covered in entry_of(name).covers}
