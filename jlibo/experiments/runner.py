"""Runs experiments: all seeds and agents of an experiment as chunks of one compiled program.

| here                 | what it is                                                                          |
|----------------------|-------------------------------------------------------------------------------------|
| `prepare_experiment` | traces and compiles, or loads the program from the cache (`programs.traced`)       |
| `PreparedExperiment` | runs any seeds with it, through the engine of sweeps                                |
| `run_experiment`     | both                                                                                |

On a CPU several chunks run at a time, each in a thread (`sweeps.engines.usual_threads`). That is safe because
no program here calls LAPACK inside a loop (jax 0.10 may deadlock there).
"""

import dataclasses
import time
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.checks import check_count
from jlibo.experiments.budget import check_fits
from jlibo.experiments.experiment import Experiment
from jlibo.experiments.run import TRUE_SUPPORT, ExperimentRun, outputs_of
from jlibo.front_door import front_door
from jlibo.lifelong.offline import OfflineResult
from jlibo.lifelong.play import LifelongResult
from jlibo.sweeps.compiled import LEVEL, CompiledChunks
from jlibo.sweeps.engines import choose_devices, local_chunks, usual_threads
from jlibo.sweeps.points import Plan, Points, as_points
from jlibo.sweeps.program import stored_program, trace
from jlibo.sweeps.progress import Meter, ProgressFn

FEW_STEPS = 300_000
"""Steps of a run, over all seeds, agents and tasks, up to which the compiler's time counts more than its own.

A step takes about a microsecond longer in a program of level 1, which compiles in half the time."""


@final
@dataclasses.dataclass(frozen=True)
class ExperimentResult:
    """The results of all seeds and agents, as NumPy arrays with a leading seeds axis."""

    experiment: Experiment
    num_seeds: int
    first_seed: int
    results: dict[str, LifelongResult | OfflineResult]
    true_support: np.ndarray | None
    """[seeds, groups]; None if the environment does not know it."""
    timing: dict[str, float]


@front_door
def run_experiment(
    experiment: Experiment,
    *,
    num_seeds: int = 20,
    first_seed: int = 0,
    num_threads: int | None = None,
    progress_fn: ProgressFn | None = None,
) -> ExperimentResult:
    """Run all agents of an experiment on several seeds.

    A run of at most `FEW_STEPS` steps is compiled in less time and runs longer. Its results may differ in the
    last bits from those of a larger run.

    **Arguments:**

    - `experiment`: the experiment, for example `find("lifelong-cosine")`.
    - `num_seeds`, `first_seed`: seeds are `first_seed`, `first_seed + 1`, ....
    - `num_threads`: number of chunks that run at a time; by default the number of cores on a CPU, else 1.
    - `progress_fn`: called with the share of work done (0 to 1) and a word.

    **Returns:** an `ExperimentResult`.

    **Raises:** `ValueError` for an invalid argument; `SettingError` if the seeds do not fit into memory.

    ```python
    from jlibo.experiments import find, run_experiment, summarise

    small = find("lifelong-cosine").changed({"num_features": 8, "num_tasks": 3, "horizon": 10})
    result = run_experiment(small, num_seeds=2)
    print(summarise(result)["agents"]["libo"]["lifelong_regret"])
    ```
    """
    prepared = prepare_experiment(
        experiment,
        num_seeds=num_seeds,
        num_threads=num_threads,
        level=_level(experiment, num_seeds),
        progress_fn=progress_fn,
    )
    return prepared.run(first_seed=first_seed, progress_fn=progress_fn)


@final
@dataclasses.dataclass(frozen=True)
class PreparedExperiment:
    """An experiment that is compiled for a number of seeds and can be run on any."""

    experiment: Experiment
    num_seeds: int
    num_threads: int
    points: Points
    compiled: CompiledChunks
    compile_seconds: float

    @property
    def seeds_at_once(self) -> int:
        """Number of seeds in a chunk."""
        return self.compiled.chunk

    def run(self, *, first_seed: int = 0, progress_fn: ProgressFn | None = None) -> ExperimentResult:
        """Run seeds `first_seed`, ..., `first_seed + num_seeds - 1`."""
        begin = time.perf_counter()
        plan = Plan(self.points, self.num_seeds, first_seed, self.compiled.chunk)
        numbers = range(plan.num_chunks)
        meter = None if progress_fn is None else Meter(progress_fn, num_chunks=plan.num_chunks)
        outputs = self.compiled.program.outputs
        parts: dict[int, list[np.ndarray]] = dict(
            local_chunks(self.compiled, plan, numbers, meter, num_threads=self.num_threads)
        )
        named: dict[str, np.ndarray] = {}
        for place, output in enumerate(outputs):
            lanes = plan.empty(output.shape, output.dtype)
            for number in numbers:
                lanes[plan.place(number)] = parts[number][place]
            named[output.name] = lanes
        truth = named.pop(TRUE_SUPPORT, None)
        result_type: Any = self.experiment.make_protocol().result_type
        rest: dict[str, Any] = {"carry": None} if result_type is LifelongResult else {}
        results = {
            agent: result_type(**{name: lanes[:, place] for name, lanes in named.items()}, **rest)
            for place, agent in enumerate(self.experiment.agents)
        }
        timing = {"compile_s": self.compile_seconds, "run_s": time.perf_counter() - begin}
        return ExperimentResult(self.experiment, self.num_seeds, first_seed, results, truth, timing)


def prepare_experiment(
    experiment: Experiment,
    *,
    num_seeds: int = 20,
    num_threads: int | None = None,
    seeds_at_once: int | None = None,
    level: int = LEVEL,
    progress_fn: ProgressFn | None = None,
) -> PreparedExperiment:
    """Compile an experiment for `num_seeds` seeds, or load it from the program cache.

    It is compiled to run fast, since it can be run many times; `run_experiment` compiles small experiments in
    less time.

    **Arguments:**

    - `experiment`, `num_seeds`, `num_threads`, `progress_fn`: as in `run_experiment`.
    - `seeds_at_once`: number of seeds that all threads together compute at a time; by default that of the
      protocol. More need more memory, and are faster on an accelerator.
    - `level`: how much the compiler optimises on a CPU (`jlibo.programs.options`).
    """
    check_count("num_seeds", num_seeds)
    num_threads = usual_threads() if num_threads is None else num_threads
    check_count("num_threads", num_threads)
    protocol = experiment.make_protocol()
    seeds_at_once = protocol.seeds_at_once if seeds_at_once is None else seeds_at_once
    check_count("seeds_at_once", seeds_at_once)
    itemsize = jnp.dtype(jnp.result_type(float)).itemsize
    check_fits(experiment, num_seeds, seeds_at_once=seeds_at_once, itemsize=itemsize)
    chunk = min(-(-num_seeds // num_threads), max(1, seeds_at_once // num_threads))
    if progress_fn is not None:
        progress_fn(0.0, "compiling")
    begin = time.perf_counter()
    # All data of the experiment are arguments of the program, so that other values do not retrace.
    points = as_points([experiment.data()]) if experiment.data() else as_points(None)
    key = jax.random.key(0)

    def traced():
        wanted = [name for name in outputs_of(experiment) if name in protocol.fields or name == TRUE_SUPPORT]
        run_fn = ExperimentRun(experiment, tuple(wanted))
        return trace(run_fn, points, key, dims=run_fn.dims)

    name = experiment.program_name()
    program = traced() if name is None else stored_program(f"experiment {name}", chunk, traced)
    compiled = CompiledChunks(program, chunk, choose_devices(1), key, level=level)
    seconds = time.perf_counter() - begin
    return PreparedExperiment(experiment, num_seeds, num_threads, points, compiled, seconds)


def _level(experiment: Experiment, num_seeds: int) -> int:
    """Return the level at which compiling and one run together are fastest."""
    protocol = experiment.make_protocol()
    num_steps = num_seeds * len(experiment.agents) * protocol.num_tasks * protocol.horizon
    return 1 if num_steps <= FEW_STEPS else LEVEL
