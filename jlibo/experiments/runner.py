"""One runner for all experiments: compile once, play all seeds as a batch, report on the way.

A lifelong experiment is played in segments of a few tasks, each the same compiled program with other task
numbers: progress can be told between them without a host callback, which would keep the program out of the
compilation cache.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jlibo import metrics
from jlibo.envs import SyntheticEnv
from jlibo.experiments.offline import OfflineResult, run_offline
from jlibo.experiments.settings import Experiment
from jlibo.exploration import ConstantExploration, DecreasingExploration
from jlibo.features import AbstractFeatures
from jlibo.lifelong import LifelongResult, plan_agents, play_tasks, start_agents
from jlibo.meta import AbstractMetaLearner, FederatedMetaKGL, FixedPrior, MetaKGL
from jlibo.policies import GPUCB
from jlibo.prior import support_prior

MAX_SEEDS_AT_ONCE = {"lifelong": 100, "offline": 20}
SEGMENT_TASKS = 5
SOLVER_TOL = 1e-5
"""Relative duality gap of the group lassos: far finer than the thresholds that their answers are put to."""

ProgressFn = Callable[[float, str], None]
"""Called with the share of the work done and what is being done."""


@dataclasses.dataclass(frozen=True)
class ExperimentResult:
    """All seeds of all agents, as NumPy arrays with a leading seeds axis."""

    experiment: Experiment
    num_seeds: int
    first_seed: int
    results: dict[str, LifelongResult | OfflineResult]
    true_support: np.ndarray
    timing: dict[str, float]


def run_experiment(
    experiment: Experiment, *, num_seeds: int = 20, first_seed: int = 0, progress_fn: ProgressFn | None = None
) -> ExperimentResult:
    """Run all agents of `experiment` on seeds first_seed .. first_seed + num_seeds - 1."""
    report = progress_fn or (lambda share, words: None)
    features = experiment.make_features()
    numbers = {name: jnp.asarray(value) for name, value in experiment.numbers().items()}
    at_once = min(num_seeds, MAX_SEEDS_AT_ONCE[experiment.kind])
    # The last chunk is filled up with further seeds, which are dropped: one shape, one compilation.
    num_chunks = -(-num_seeds // at_once)
    seeds = first_seed + np.arange(num_chunks * at_once)
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(0), seed))(jnp.asarray(seeds))
    play = _lifelong_chunk if experiment.kind == "lifelong" else _offline_chunk

    report(0.0, "compiling")
    clock = _Clock()
    parts = []
    for chunk in range(num_chunks):
        chunk_keys = keys[chunk * at_once : (chunk + 1) * at_once]

        def report_chunk(share, chunk=chunk):
            report((chunk + share) / num_chunks, "running")

        parts.append(play(experiment, features, chunk_keys, numbers, clock, report_chunk))
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_seeds], *parts)
    timing = {"compile_s": clock.compiling, "run_s": clock.running}
    # Dictionaries come back from compiled programs sorted; the paper's order is kept for tables and plots.
    results = {name: joined[0][name] for name in experiment.agents}
    return ExperimentResult(experiment, num_seeds, first_seed, results, joined[1], timing)


class _Clock:
    """Compiles once, and keeps the time of that apart from the time of running."""

    def __init__(self):
        self.compiling = 0.0
        self.running = 0.0
        self._compiled = None

    def call(self, fn, *args):
        begin = time.perf_counter()
        if self._compiled is None:
            self._compiled = jax.jit(fn).lower(*args).compile()
            now = time.perf_counter()
            self.compiling += now - begin
            begin = now
        answer = jax.block_until_ready(self._compiled(*args))
        self.running += time.perf_counter() - begin
        return answer


def _one_seed(experiment: Experiment, features: AbstractFeatures, key, numbers: dict):
    """Environment, agents, policy and remaining key of one seed."""
    env_key, run_key = jax.random.split(key)
    env = SyntheticEnv.draw(
        features,
        support_size=experiment.support_size,
        norm_bound=numbers["norm_bound"],
        beta_min=numbers["beta_min"],
        noise_std=numbers["noise_std"],
        key=env_key,
    )
    policy = GPUCB(numbers["nu"], numbers["regulariser"])
    return env, make_agents(experiment, features, env, numbers), policy, run_key


def make_agents(
    experiment: Experiment, features: AbstractFeatures, env: SyntheticEnv, numbers: dict
) -> dict[str, AbstractMetaLearner]:
    """The four agents of the paper, in its order."""
    learners = (
        FixedPrior(fixed_prior=support_prior(env.support, features.groups)),
        FixedPrior(),
        MetaKGL(
            lam=numbers["lam"],
            omega=numbers["omega"],
            data=experiment.data,
            lam_scaling=experiment.lam_scaling,
            exploration=DecreasingExploration(experiment.explore_scale),
            tol=SOLVER_TOL,
        ),
        FederatedMetaKGL(
            lam=numbers["lam_federated"],
            omega=numbers["omega"],
            alpha=numbers["alpha"],
            data=experiment.data,
            exploration=ConstantExploration(experiment.explore_scale),
            tol=SOLVER_TOL,
        ),
    )
    return dict(zip(experiment.agents, learners, strict=True))


def _lifelong_chunk(experiment, features, keys, numbers, clock, report) -> tuple[Any, np.ndarray]:
    num_tasks = experiment.num_tasks
    length = max(size for size in range(1, SEGMENT_TASKS + 1) if num_tasks % size == 0)

    def play_segment(key, numbers, states, indices, counts):
        env, learners, policy, run_key = _one_seed(experiment, features, key, numbers)
        results = play_tasks(
            env, features, policy, learners, plan.settings, states, indices, counts, key=run_key
        )
        return results, env.support

    env, learners, _, _ = _one_seed(experiment, features, keys[0], numbers)
    plan = plan_agents(env, features, learners, num_tasks=num_tasks, horizon=experiment.horizon)
    states = start_agents(learners, plan)
    states = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(keys), *np.shape(leaf))), states)
    segment = jax.vmap(play_segment, in_axes=(0, None, 0, None, None))
    segments, support = [], None
    for begin in range(0, num_tasks, length):
        part = slice(begin, begin + length)
        indices = np.arange(num_tasks, dtype=np.int32)[part]
        results, support = clock.call(
            segment, keys, numbers, states, indices, plan.counts[part].astype(np.int32)
        )
        states = {name: result.carry for name, result in results.items()}
        segments.append(_without_carry(results))
        report((begin + length) / num_tasks)
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *segments)
    return joined, np.asarray(support)


def _offline_chunk(experiment, features, keys, numbers, clock, report) -> tuple[Any, np.ndarray]:
    def play(key, numbers):
        env, learners, policy, run_key = _one_seed(experiment, features, key, numbers)
        results = run_offline(
            env,
            features,
            policy,
            learners,
            num_tasks=experiment.num_tasks,
            num_rows=experiment.offline_rows,
            horizon=experiment.horizon,
            key=run_key,
        )
        return results, env.support

    results, support = clock.call(jax.vmap(play, in_axes=(0, None)), keys, numbers)
    report(1.0)
    return jax.tree.map(np.asarray, results), np.asarray(support)


def _without_carry(results: dict[str, LifelongResult]) -> dict[str, LifelongResult]:
    return {
        name: jax.tree.map(np.asarray, dataclasses.replace(result, carry=None))
        for name, result in results.items()
    }


def summarise(result: ExperimentResult) -> dict:
    """What `summary.json` holds."""
    agents = {}
    for name, run in result.results.items():
        sizes = metrics.support_size(run)
        found = metrics.recovery(run, result.true_support)
        agents[name] = {
            "support_size": np.mean(sizes, 0).tolist(),
            "recovery_rate": np.mean(found, 0).tolist(),
            "unconverged_solves": int((np.asarray(run.status) != 0).sum()),
            "empty_selections": int(np.asarray(run.fell_back).sum()),
        }
        if result.experiment.kind == "offline":
            mean, error = metrics.mean_and_standard_error(run.regret.sum(-1).astype(np.float64))
            agents[name]["regret"] = {"mean": np.asarray(mean).tolist(), "se": np.asarray(error).tolist()}
        else:
            total = run.regret.astype(np.float64).sum((1, 2))
            mean, error = metrics.mean_and_standard_error(total)
            agents[name]["lifelong_regret"] = {"mean": float(mean), "se": float(error)}
            agents[name]["task_regret"] = run.regret.sum(-1).mean(0).tolist()
    return {
        "experiment": result.experiment.name,
        "settings": result.experiment.settings(),
        "seeds": result.num_seeds,
        "first_seed": result.first_seed,
        "agents": agents,
        "timing": dict(result.timing),
    }
