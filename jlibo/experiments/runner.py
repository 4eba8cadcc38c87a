"""One runner for all experiments: compile once, play the seeds in batches, report on the way.

A lifelong experiment is played in segments of a few tasks, each the same compiled program with other task
numbers: progress can be told between them without a host callback, which would keep the program out of the
compilation cache. On a CPU several batches of seeds run at once, each in a thread, as XLA shares only the
larger products of a program among cores; that is safe because no program here calls LAPACK inside a loop
(jax 0.10 may deadlock there).

A program makes all that it needs from the numbers of its seeds: what is computed outside would be compiled
on its own, operation by operation.
"""

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.checks import check_count
from jlibo.experiments import worlds
from jlibo.experiments.budget import check_fits
from jlibo.experiments.settings import Experiment
from jlibo.features import AbstractFeatures
from jlibo.lifelong import metrics
from jlibo.lifelong.loop import AgentPlan, LifelongResult, RunSpec, plan_agents, play_tasks, start_agents
from jlibo.lifelong.offline import OfflineResult, run_offline
from jlibo.solver.solution import Status, count_statuses
from jlibo.sweeps.program_cache import Program, build

MAX_SEEDS_AT_ONCE = {"lifelong": 100, "offline": 20}
SEGMENT_TASKS = 7
SIMPLE_REGRET_STEPS = (1, 3, 5, 10, 20, 50, 100)
"""Steps at which a summary tells the regret of the best action so far."""

ProgressFn = Callable[[float, str], None]
"""Called with the share of the work done and what is being done."""


@dataclasses.dataclass(frozen=True)
class ExperimentResult:
    """All seeds of all agents, as NumPy arrays with a leading seeds axis."""

    experiment: Experiment
    num_seeds: int
    first_seed: int
    results: dict[str, LifelongResult | OfflineResult]
    true_support: np.ndarray | None
    """[seeds, groups]; None where nobody knows it."""
    timing: dict[str, float]


def run_experiment(
    experiment: Experiment,
    *,
    num_seeds: int = 20,
    first_seed: int = 0,
    num_threads: int | None = None,
    progress_fn: ProgressFn | None = None,
) -> ExperimentResult:
    """Run all agents of `experiment` on seeds first_seed .. first_seed + num_seeds - 1.

    `num_threads`: how many batches of seeds run at once; by default one a core on a CPU, else one.
    """
    prepared = prepare_experiment(
        experiment, num_seeds=num_seeds, num_threads=num_threads, progress_fn=progress_fn
    )
    return prepared.run(first_seed=first_seed, progress_fn=progress_fn)


@dataclasses.dataclass(frozen=True)
class PreparedExperiment:
    """An experiment compiled for a number of seeds, to be run on any."""

    experiment: Experiment
    num_seeds: int
    seeds_at_once: int
    num_threads: int
    program: Program
    compile_seconds: float

    def run(self, *, first_seed: int = 0, progress_fn: ProgressFn | None = None) -> ExperimentResult:
        """Play seeds first_seed .. first_seed + num_seeds - 1."""
        experiment = self.experiment
        begin = time.perf_counter()
        # The last chunk is filled up with further seeds, which are dropped: one shape, one compilation.
        num_chunks = -(-self.num_seeds // self.seeds_at_once)
        seeds = first_seed + np.arange(num_chunks * self.seeds_at_once, dtype=np.uint32)
        steps = num_chunks * (len(_segments(experiment)) if experiment.kind == "lifelong" else 1)
        count = _Count(steps, progress_fn or (lambda share, words: None))
        play = _lifelong_chunk if experiment.kind == "lifelong" else _offline_chunk
        numbers = _numbers(experiment)

        def play_chunk(chunk_seeds):
            return play(experiment, self.program, chunk_seeds, numbers, count)

        parts = _in_threads(play_chunk, np.split(seeds, num_chunks), self.num_threads, on_error=count.stop)
        results, support = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: self.num_seeds], *parts)
        kind: Any = LifelongResult if experiment.kind == "lifelong" else OfflineResult
        rest: dict[str, Any] = {"carry": None} if experiment.kind == "lifelong" else {}
        # Dictionaries come back from compiled programs sorted; tables and plots keep the paper's order.
        named: dict[str, Any] = {name: kind(**results[name], **rest) for name in experiment.agents}
        timing = {"compile_s": self.compile_seconds, "run_s": time.perf_counter() - begin}
        return ExperimentResult(experiment, self.num_seeds, first_seed, named, support, timing)


def prepare_experiment(
    experiment: Experiment,
    *,
    num_seeds: int = 20,
    num_threads: int | None = None,
    seeds_at_once: int | None = None,
    progress_fn: ProgressFn | None = None,
) -> PreparedExperiment:
    """Compile `experiment` for `num_seeds` seeds, or find it where it was kept (see `compiled`).

    `seeds_at_once`: most seeds that all threads together hold; by default `MAX_SEEDS_AT_ONCE`. More need
    more memory, and pay on an accelerator.
    """
    check_count("num_seeds", num_seeds)
    worlds.check_num_tasks(experiment)
    num_threads = _usual_threads() if num_threads is None else num_threads
    check_count("num_threads", num_threads)
    seeds_at_once = MAX_SEEDS_AT_ONCE[experiment.kind] if seeds_at_once is None else seeds_at_once
    check_count("seeds_at_once", seeds_at_once)
    check_fits(
        experiment,
        num_seeds,
        seeds_at_once=seeds_at_once,
        itemsize=jnp.dtype(jnp.result_type(float)).itemsize,
    )
    most = max(1, seeds_at_once // num_threads)
    at_once = min(-(-num_seeds // num_threads), most)
    if progress_fn is not None:
        progress_fn(0.0, "compiling")
    begin = time.perf_counter()
    make = _make_lifelong if experiment.kind == "lifelong" else _make_offline
    # Numbers are data, and the name is a word: other numbers are the same program.
    shape = {name: value for name, value in experiment.settings().items() if name not in experiment.numbers()}
    shape["explore_scale"] = experiment.explore_scale
    program = build(f"{shape} {at_once} {SEGMENT_TASKS}", lambda: make(experiment, at_once))
    seconds = time.perf_counter() - begin
    return PreparedExperiment(experiment, num_seeds, at_once, num_threads, program, seconds)


def _usual_threads() -> int:
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_threads(
    fn: Callable[[Any], Any],
    items: list,
    num_threads: int,
    *,
    on_error: Callable[[], None] = lambda: None,
) -> list:
    """`fn` of every item. If one fails, or the user interrupts, `on_error` is called to stop the others."""
    if num_threads == 1 or len(items) == 1:
        return [fn(item) for item in items]
    # A thread does not see what its caller set by `with jax.enable_x64(...)`.
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def in_this_precision(item):
        with jax.enable_x64(wide):
            return fn(item)

    pool = ThreadPoolExecutor(num_threads)
    try:
        return list(pool.map(in_this_precision, items))
    except BaseException:
        on_error()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Another thread failed or the user interrupted: this one need not go on."""


class _Count:
    """Counts what all threads have done, and tells the share of it."""

    def __init__(self, total: int, report: ProgressFn):
        self.total, self.report, self.done = total, report, 0
        self.lock = threading.Lock()
        self.is_stopped = False

    def stop(self):
        """Let every thread end after the segment that it plays now."""
        self.is_stopped = True

    def one_more(self):
        with self.lock:
            if self.is_stopped:
                raise _Stopped
            self.done += 1
            self.report(self.done / self.total, "running")


def _numbers(experiment: Experiment) -> dict[str, np.ndarray]:
    dtype = jnp.result_type(float)
    return {name: np.asarray(value, dtype) for name, value in experiment.numbers().items()}


def _one_seed(experiment: Experiment, features: AbstractFeatures, seed, numbers: dict):
    """Environment, agents and remaining key of one seed."""
    return worlds.make_world(experiment, features, numbers, key=jax.random.fold_in(jax.random.key(0), seed))


def _segments(experiment: Experiment) -> list[np.ndarray]:
    """The numbers of the tasks, in parts of equal length."""
    num_tasks = experiment.num_tasks
    length = max(size for size in range(1, SEGMENT_TASKS + 1) if num_tasks % size == 0)
    return np.split(np.arange(num_tasks, dtype=np.int32), num_tasks // length)


def _make_lifelong(experiment: Experiment, at_once: int):
    """A segment of a few tasks, from the agents' states (as a list) to their states after it."""
    features = worlds.make_features(experiment)
    scaling = worlds.make_scaling(experiment)

    def start(seed, numbers) -> tuple[Any, ...]:
        env, learners, run_key = _one_seed(experiment, features, seed, numbers)
        plan: AgentPlan = plan_agents(
            env, features, learners, num_tasks=experiment.num_tasks, horizon=experiment.horizon
        )
        return env, learners, run_key, plan, start_agents(learners, plan, scaling)

    def play_segment(seed, numbers, leaves, indices):
        env, learners, run_key, plan, states = start(seed, numbers)
        begin, structure = jax.tree.flatten(states)
        # The first segment is handed anything of the right shape.
        begin = [jnp.where(indices[0] == 0, new, old) for new, old in zip(begin, leaves, strict=True)]
        policy = worlds.make_policy(numbers)
        spec = RunSpec.of(env, features, policy, learners, plan.sizes, scaling=scaling)
        states = jax.tree.unflatten(structure, begin)
        results = play_tasks(spec, states, indices, jnp.asarray(plan.counts)[indices], key=run_key)
        carry = jax.tree.leaves({name: result.carry for name, result in results.items()})
        return _fields(results), carry, worlds.true_support(env)

    seeds = jax.ShapeDtypeStruct((at_once,), np.uint32)
    numbers = _numbers(experiment)
    states = jax.eval_shape(jax.vmap(lambda seed: start(seed, numbers)[-1]), seeds)
    segment = jax.vmap(play_segment, in_axes=(0, None, 0, None))
    return segment, (seeds, numbers, jax.tree.leaves(states), _segments(experiment)[0])


def _lifelong_chunk(experiment, program: Program, seeds, numbers, count: _Count) -> tuple[Any, Any]:
    states = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), program.shapes[2])
    segments, support = [], None
    for indices in _segments(experiment):
        results, states, support = program.call(seeds, numbers, states, indices)
        segments.append(jax.tree.map(np.asarray, results))
        count.one_more()
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *segments)
    return joined, jax.tree.map(np.asarray, support)


def _make_offline(experiment: Experiment, at_once: int):
    features = worlds.make_features(experiment)

    def play(seed, numbers):
        env, learners, run_key = _one_seed(experiment, features, seed, numbers)
        results = run_offline(
            env,
            features,
            worlds.make_policy(numbers),
            learners,
            num_tasks=experiment.num_tasks,
            num_rows=experiment.offline_rows,
            horizon=experiment.horizon,
            key=run_key,
        )
        return _fields(results), worlds.true_support(env)

    seeds = jax.ShapeDtypeStruct((at_once,), np.uint32)
    return jax.vmap(play, in_axes=(0, None)), (seeds, _numbers(experiment))


def _offline_chunk(experiment, program: Program, seeds, numbers, count: _Count) -> tuple[Any, Any]:
    answer = jax.tree.map(np.asarray, program.call(seeds, numbers))
    count.one_more()
    return answer


def _fields(results) -> dict[str, dict[str, Any]]:
    """Results as dictionaries, which a program on disk can return; the states go their own way."""
    return {
        name: {
            field.name: getattr(result, field.name)
            for field in dataclasses.fields(result)
            if field.name != "carry"
        }
        for name, result in results.items()
    }


def summarise(result: ExperimentResult) -> dict:
    """Return what `summary.json` holds.

    Of each agent, `statuses` counts how its tasks ended, by `Status.label`. `unconverged_solves` counts the
    solves among them that did not converge; tasks whose values or rewards were not finite are no solves.
    """
    agents = {}
    for name, run in result.results.items():
        sizes = metrics.support_size(run)
        statuses = count_statuses(run.status)
        agents[name] = {
            "support_size": np.mean(sizes, 0).tolist(),
            "statuses": {status.label: count for status, count in statuses.items()},
            "unconverged_solves": sum(
                count
                for status, count in statuses.items()
                if status.is_of_solve and status != Status.CONVERGED
            ),
            "empty_selections": int(np.asarray(run.fell_back).sum()),
        }
        if result.true_support is not None:
            found = metrics.recovery(run, result.true_support)
            agents[name]["recovery_rate"] = np.mean(found, 0).tolist()
        if result.experiment.kind == "offline":
            mean, error = metrics.mean_and_standard_error(run.regret.sum(-1).astype(np.float64))
            agents[name]["regret"] = {"mean": np.asarray(mean).tolist(), "se": np.asarray(error).tolist()}
        else:
            total = run.regret.astype(np.float64).sum((1, 2))
            mean, error = metrics.mean_and_standard_error(total)
            agents[name]["lifelong_regret"] = {"mean": float(mean), "se": float(error)}
            agents[name]["task_regret"] = run.regret.sum(-1).mean(0).tolist()
            agents[name]["simple_regret"] = _simple_regret(np.asarray(run.regret))
    return {
        "experiment": result.experiment.name,
        "settings": result.experiment.settings(),
        "seeds": result.num_seeds,
        "first_seed": result.first_seed,
        "agents": agents,
        "timing": dict(result.timing),
    }


def _simple_regret(regret: np.ndarray) -> dict[str, dict]:
    """Regret of the best action so far after some steps, over all tasks and over the last half of them."""
    best = np.minimum.accumulate(regret.astype(np.float64), -1)
    horizon, num_tasks = best.shape[-1], best.shape[1]
    answer = {}
    for name, tasks in (("all_tasks", best), ("last_half", best[:, num_tasks // 2 :])):
        answer[name] = {}
        for step in sorted({*(step for step in SIMPLE_REGRET_STEPS if step < horizon), horizon}):
            mean, error = metrics.mean_and_standard_error(tasks[..., step - 1].mean(1))
            answer[name][str(step)] = {"mean": float(mean), "se": float(error)}
    return answer
