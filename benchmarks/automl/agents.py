"""jlibo's two modes in the simulator, with and without a past.

| agent               | what it is                                                                         |
|---------------------|------------------------------------------------------------------------------------|
| `gp-ucb`, `gp-ei`   | the modes on their first day: the full kernel and the first task's exploration     |
| `paper`, `adaptive` | the modes of `Tuner`: the same policies on the prior that the mode's learner makes |

Features, learner, policy and scaling are those of the tuner (`make_model`). In the regime `own` all orders
are one batch of `run_agents`. In the regime `random` the past is learned by the tuner's own function
(`engine.learn`), once per draw.

The simulator has no clipping of heavy tails, so the scores of a table are clipped beforehand, as the tuner
clips them. The tuner estimates the threshold from the trials so far, and the benchmark from the whole task.

If several configurations have equal scores, one of them is drawn at random. Before its first reward an agent
without past tasks gives equal scores to all corners of the box, and the first row of a table may happen to be
a corner that is good on most tasks. Ties broken by the order of the rows would favour such an agent.
"""

from collections.abc import Callable, Collection, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import jlibo
from benchmarks.automl.problem import Problem
from benchmarks.automl.regimes import Regime, Trials
from jlibo.tune import engine
from jlibo.tune.arrays import level
from jlibo.tune.model import Model, make_model

PAIRS = {"paper": "gp-ucb", "adaptive": "gp-ei"}
"""Each mode, and the agent with the same policy that does not learn."""
PACKAGES = ("jax", "jaxlib", "numpy", "equinox")
"""The packages whose versions the runs depend on."""
BATCH = 8
"""New tasks that are played as one batch in the regime `random`."""


class RandomTies(jlibo.AbstractPolicy):
    """Wraps a policy so that equal scores (up to round-off) are in a random order."""

    policy: jlibo.AbstractPolicy
    noise_std: Float[Array, ""]

    def scores(self, belief, *, key):
        policy_key, tie_key = jax.random.split(key)
        scores = self.policy.scores(belief, key=policy_key)
        return scores + 1e-5 * (1 + jnp.abs(scores)) * jax.random.uniform(tie_key, scores.shape, scores.dtype)


def make_agents(
    mode: str, problem: Problem, chosen: Collection[str]
) -> tuple[Model, RandomTies, dict[str, jlibo.AbstractMetaLearner]]:
    """Return the mode's model, its policy with random ties, and the learners of the chosen agents."""
    model = make_model(problem.space, mode=mode)
    learners = {PAIRS[mode]: without_past(model), mode: model.learner}
    policy = RandomTies(model.policy, model.policy.noise_std)
    return model, policy, {name: learner for name, learner in learners.items() if name in chosen}


def seen_values(problem: Problem) -> np.ndarray:
    """Return the scores as the tuner sees them: clipped far below the median of the task."""
    values = np.array(problem.values, np.float64)
    for row in values:
        is_score = np.isfinite(row)
        levelled, log_unit = level(row[is_score], maximise=True)
        row[is_score] = levelled * np.exp(log_unit)
    return values


def without_past(model: Model) -> jlibo.FixedPrior:
    """Return the learner of a tuner on its first day: every task explores as the first task does."""
    schedule = model.learner.exploration

    def first_rate(task: int, horizon: int) -> float:
        return float(schedule.counts(1, horizon)[0])

    return jlibo.FixedPrior(exploration=jlibo.CustomExploration(first_rate))


def play_own(
    mode: str,
    problem: Problem,
    regime: Regime,
    *,
    chosen: Collection[str],
    budget: int,
    seed: int,
    points: np.ndarray | None = None,
    progress_fn: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Return the runs [order, place, step] of a mode and its agent without memory, by agent.

    `points` are [order, task, g, dim] if the tasks of each order have points of their own.
    """
    model, policy, learners = make_agents(mode, problem, chosen)
    results = play_orders(
        problem,
        model,
        policy,
        learners,
        regime.tasks,
        budget=budget,
        seed=seed,
        points=points,
        progress_fn=progress_fn,
    )
    return {name: np.asarray(result.actions) for name, result in results.items()}


def play_orders(
    problem: Problem,
    model: Model,
    policy: jlibo.AbstractPolicy,
    learners: Mapping[str, jlibo.AbstractMetaLearner],
    orders: np.ndarray,
    *,
    budget: int,
    seed: int,
    points: np.ndarray | None = None,
    progress_fn: Callable[[int], None] | None = None,
) -> dict[str, jlibo.LifelongResult]:
    """Return the result of each agent on all tasks in several orders, with a leading axis of orders."""
    values = seen_values(problem)

    def run(order, key, own_points):
        env = jlibo.TableEnv(values, problem.points if own_points is None else own_points)
        return jlibo.run_agents(
            in_order(env, order),
            model.features,
            policy,
            learners,
            num_tasks=problem.num_tasks,
            horizon=budget,
            scaling=model.scaling,
            repeats=False,
            progress_fn=progress_fn,
            key=key,
        )

    keys = jax.random.split(jax.random.key(seed), len(orders))
    results = jax.jit(jax.vmap(run))(orders, keys, points)
    jax.effects_barrier()  # wait for the last progress callbacks
    # In the caller's order: `jit` sorts the keys of dictionaries.
    return {name: results[name] for name in learners}


def in_order(env: jlibo.TableEnv, order) -> jlibo.TableEnv:
    """Return the same tasks in the given order."""
    return eqx.tree_at(lambda env: env.order, env, order)


def play_random(
    mode: str,
    problem: Problem,
    regime: Regime,
    *,
    chosen: Collection[str],
    budget: int,
    seed: int,
    progress_fn: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Return the runs [draw, place, step] on new tasks after a past of random trials, by agent.

    `progress_fn` is called with the number of finished draws.
    """
    model, policy, learners = make_agents(mode, problem, chosen)
    env = jlibo.TableEnv(seen_values(problem), problem.points)
    num_past = len(regime.pasts[0])
    sizes = model.sizes(num_past, budget)

    @eqx.filter_jit
    def play_tasks(tasks, knowledge, num_explore, key):
        def play(task):
            draws = jlibo.draw_task(env, task, budget, repeats=False, key=key)
            points = env.candidates if draws.task.points is None else draws.task.points
            return jlibo.run_task(
                policy,
                knowledge.prior,
                model.features(points),
                draws,
                num_explore,
                model.scaling,
                knowledge.scales,
                repeats=False,
            ).actions

        return jax.lax.map(play, tasks, batch_size=BATCH)

    runs = {name: np.empty((*regime.tasks.shape, budget), int) for name in learners}
    for draw, past in enumerate(regime.pasts):
        rows = past_trials(problem, model, past, budget)
        for name, learner in learners.items():
            if name == mode:
                count = jnp.asarray(num_past, jnp.int32)
                knowledge = engine.learn(learner, model.scaling, policy.noise_std, rows, count, sizes)
            else:
                knowledge = engine.nothing_known(learner, model.scaling, sizes)
            num_explore = learner.exploration.counts(num_past + 1, budget)[num_past]
            tasks = jnp.asarray(regime.tasks[draw])
            key = jax.random.fold_in(jax.random.key(seed), draw)
            runs[name][draw] = play_tasks(tasks, knowledge, jnp.asarray(num_explore, jnp.int32), key)
        if progress_fn is not None:
            progress_fn(draw + 1)
    return runs


def past_trials(
    problem: Problem, model: Model, past: tuple[Trials, ...], num_trials: int
) -> engine.PastTrials:
    """Return the past in the form that the tuner learns from; all trials count as exploration."""
    shape = len(past), num_trials
    dtype = jnp.result_type(float)
    points = np.zeros((*shape, problem.space.num_parameters))
    scores, present, log_units = np.zeros(shape), np.zeros(shape, bool), np.zeros(len(past))
    for number, trials in enumerate(past):
        count = len(trials.rows)
        points[number, :count], present[number, :count] = trials.points(problem), True
        scores[number, :count], log_units[number] = level(trials.values(problem), maximise=True)
    features = jnp.where(present[..., None], model.features(jnp.asarray(points, dtype)), 0)
    return engine.PastTrials(
        features,
        jnp.asarray(scores, dtype),
        jnp.asarray(present),
        jnp.asarray(present),
        jnp.asarray(log_units, dtype),
    )
