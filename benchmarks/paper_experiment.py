"""Time of the paper's lifelong experiment, 20 seeds of 4 agents, in jlibo and in NumPy.

    python benchmarks/paper_experiment.py [--quick] [--json FILE]

`lifelong-cosine`: 20 seeds x 4 agents x 20 tasks x 100 steps x 1,000 candidates, group lassos included.

- (a) plain NumPy: a Cholesky factor at every step, one process. It is timed on one seed with all agents, and
  the time is multiplied by the number of seeds.
- (b) careful NumPy: the rank-one updates of jlibo, all seeds and agents at once, in single precision.
- jlibo warm: compiled, all seeds; and whole processes, from start to end: with an empty compilation cache
  (cold), with a filled one, and `jlibo reproduce` with its tables and figures.

Both NumPy versions get their random draws as input, and use the fastest group-lasso solver of three and one
or two BLAS threads, whichever is faster. On a small size all three must choose the same actions (float64).
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

ROOT = Path(__file__).resolve().parents[1]

NOTES = """\
(a) and (b) get their random draws as input, which is not timed; jlibo draws its own. A fresh process is
timed from outside, from start to end, including interpreter and imports, without figures (NumPy draws none
either); `jlibo reproduce` draws them as PNG and PDF. With a filled cache, tracing is skipped too if the
package `flatbuffers` is installed, which jax needs to serialise a traced program; the table states whether
it was.

The shares of a step and the gain from batches of seeds were measured in processor time while other work
ran on the machine, so they are rough. Shares of a step before the optimisation: 27 % in `argmax`, 27 % in
the update of the means, 15 % in the product with the candidates' features, 14 % in the update of the
variances, 12 % in that of the factor. Changes: the result of the product has the layout of means and
variances, [lanes, candidates] (with the transposed layout, later kernels read across rows), and `argmax`
is two plain reductions, which vectorise. Together this reduced the time of the loop by 30 %. Keys,
environments and initial states are computed inside of the programs; outside, each small operation was
compiled separately, 3 s in all. The traced program is stored beside jax's compilation cache, and optax is
imported only for optimisation over a box. Batches of seeds run in threads, one per core. Compared with
one thread this gained only a tenth on the busy machine; the rows "warm" and "warm, one thread" show the
gain here.

A fresh process with an empty cache spends nearly all its time in compilation, one with a filled cache
half of it in the import (jax alone 0.45 s) and a fifth in LLVM's loading of the program (0.3 s).

Then three of XLA's passes were found to cost more than they give here, by the times of single kernels
(`jax.profiler.trace`) and of passes (XLA's log). They are left out (`jlibo.programs.options`). The pass
`cpu-parallel-task-assigner` divides the update of the factors between two cores, although each core has a
batch of its own: 10 % of the run. `tree_reduction_rewriter` makes each sum and maximum two passes over
windows, which hides it from fusion. And YNNPACK, to which XLA leaves maxima, copied the maximum to every
point. Without the three a step of 40 lanes takes 54 us instead of 95, the run two thirds (0.35 -> 0.24 s,
measured in short calls with other work stopped), and tracing and compilation 9.1 instead of 12.9 s of
processor time. Results move in their last bits, because sums are added in another order, so a run may
take another action now and then: the mean regrets of 20 seeds move by less than 0.01 %, and the group
lassos take the same numbers of steps. In float64 all actions are those of both NumPy versions.

Next, kernel by kernel: the product with the rows of the candidates' features took 31 of 57 us, since its
library packs the rows at every call. With their columns, transposed once a task, it takes 18, and with
vectors of 512 bits the rest takes a tenth less: 46 us a step.

In a fresh process with an empty cache: the compiler makes some 670 kernels. More than half belong to the
two group lassos (3.3 of 5.4 s of compilation and 1.0 of 1.5 s of tracing go without them), 38 to the
random draws (0.4 s and nothing), and the rest to the loop, selections and copies. XLA's newer code
generator takes twice as long for a kernel as the older one, whose kernels are as fast, except updates in
place, which it does not vectorise: 89 us a step. For a run of up to 300,000 steps this costs less than
the compiler saves (compilation 8.4 -> 4.8 s, run 0.20 -> 0.29 s, both with the newer solver), so
`run_experiment` and the command use the older one there (level 1 of `jlibo.programs.options`); the rows
"warm" and larger runs use the newer one. The solver's form for accelerators is no longer traced on a CPU
(tracing 2.0 -> 1.4 s). Python's garbage collector pauses during tracing and import, and the command, not
the library, frees nothing at its end: it starts and ends 0.4 s sooner.

Without benefit: level 0 (half the compilation, but three times the run); XLA's older emitters of fused
kernels (a third less compilation; the three updates in place are then not vectorised, since the compiler
does not know that input and output are the same array: 53 us of a step, and 10 with the newer ones);
level 1; without LLVM's expensive passes; two parts in which LLVM compiles; the scheduler for concurrency
switched off; no YNNPACK for products (a third more run time), or YNNPACK for elementwise chains (twice
the time of a step); group lassos of few features without working sets (a tenth less compilation, 1.6
times the run); compiling in more, smaller parts (no change); batches of 5 seeds instead of 10 (a tenth
slower); a blocked `argmax`, a strided one (the best with tree reductions, not without), `jnp.argmax`
(four times the time of a step). Two steps an iteration that write to each other's buffers, so that the
older code generator vectorises them: 60 us, since twice as many arrays leave the cache. The product
without YNNPACK: 16 us instead of 18, but the products of the factors take 14 more. One program for the
group lassos of LiBO and F-LiBO was not built: a client's problem has one task, and in the shape of the
other's twenty each of its steps would read twenty. Nor was jax's generator `rbg` taken, which is one
operation: under `vmap` it draws other numbers than alone, so a seed's results would depend on the seeds
in its batch, and the draws are a tenth of the compilation now."""


def world_of(experiment, num_seeds):
    """Return the draws of the experiment's seeds as NumPy arrays, made by the functions of jlibo."""
    import jax
    import jax.numpy as jnp
    from numpy_baselines import Numbers, World

    from jlibo.lifelong.one_task import draw_task

    protocol = experiment.make_protocol()

    @jax.jit
    @jax.vmap
    def draw(seed):
        world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), seed))
        env, tasks = world.env, jnp.arange(protocol.num_tasks)
        draws = jax.vmap(lambda index: draw_task(env, index, protocol.horizon, key=world.key))(tasks)
        return env.support, draws.task.values, draws.noise, draws.exploration, world.features(env.candidates)

    support, values, noise, exploration, rows = jax.tree.map(
        np.asarray, draw(np.arange(num_seeds, dtype=np.uint32))
    )
    supports = [set(np.flatnonzero(chosen)) for chosen in support]
    world = World(np.asarray(rows[0], np.float64), supports, values, noise, exploration)
    names = ("nu", "regulariser", "lam", "lam_federated", "omega", "alpha", "tol")
    return world, Numbers(*(experiment[name] for name in names))


def chosen_solver(world, numbers, num_rows):
    """Return the group-lasso solver that is fastest on data like those of the last task."""
    from numpy_baselines import GroupLasso

    solver = GroupLasso(numbers.tol)
    rng = np.random.default_rng(0)
    num_tasks = world.values.shape[1]
    rows, targets = [], []
    for task in range(num_tasks):
        places = rng.integers(len(world.features), size=num_rows)
        rows.append(world.features[places])
        targets.append(world.values[0, task, places] + 0.1 * rng.standard_normal(num_rows))
    solver.choose("libo", rows, targets, numbers.lam)
    solver.choose("flibo", rows[:1], targets[:1], numbers.lam_federated)
    return solver


def best_threads(function):
    """Return the number of BLAS threads with which `function` is faster, and the limit to set."""
    from threadpoolctl import threadpool_limits

    seconds = {}
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            seconds[threads] = min(harness.timed(function)() for _ in range(2))
    return min(seconds, key=seconds.get)


def with_threads(function, threads):
    """Return `function` under a limit of BLAS threads, as a contender."""
    from threadpoolctl import threadpool_limits

    def run():
        with threadpool_limits(threads, "blas"):
            function()

    return harness.timed(run)


def agreement(num_seeds=2, num_tasks=4, horizon=25):
    """Return the share of equal actions and selections of jlibo and both NumPy versions, in float64."""

    import jax

    with jax.enable_x64(True):
        from numpy_baselines import AGENTS, run_careful, run_plain

        from jlibo.experiments import find, run_experiment

        experiment = find("lifelong-cosine").changed({"num_tasks": num_tasks, "horizon": horizon})
        ours = run_experiment(experiment, num_seeds=num_seeds)
        world, numbers = world_of(experiment, num_seeds)
        solver = chosen_solver(world, numbers, num_rows=5)
    actions = np.stack([ours.results[name].actions for name in AGENTS])
    support = np.stack([ours.results[name].support for name in AGENTS])
    plain = [run_plain(world, seed, numbers, solver) for seed in range(num_seeds)]
    careful = run_careful(world, numbers, solver, np.float64)
    return dict(
        size=f"{num_seeds} seeds, {num_tasks} tasks, {horizon} steps, float64",
        plain_actions=float(np.mean(np.concatenate([run.actions for run in plain], axis=1) == actions)),
        plain_support=float(np.mean(np.concatenate([run.support for run in plain], axis=1) == support)),
        careful_actions=float(np.mean(careful.actions == actions)),
        careful_support=float(np.mean(careful.support == support)),
    )


def run_child(request):
    """Import, compile or load from the cache, and run, in a new process; print the time of each."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = request["cache"]
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    from jlibo.experiments import run_experiment

    experiment = make_experiment(request["quick"])
    imported = time.time() - request["begin"]
    result = run_experiment(experiment, num_seeds=request["seeds"])
    total = sum(float(run.regret.sum()) for run in result.results.values())
    print(json.dumps(dict(import_s=imported, **result.timing, regret=total)))


def make_experiment(quick):
    from jlibo.experiments import find

    return find("lifelong-cosine").changed({"num_tasks": 3, "horizon": 15} if quick else {})


def fresh_processes(num_seeds, quick, repeats):
    """Return seconds of whole processes: cold, with a filled cache, and the command line with figures."""
    cold, warm, command, parts = [], [], [], {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            request = dict(cache=str(Path(folder) / "cache"), seeds=num_seeds, quick=quick)
            seconds, parts["cold"] = harness.child(__file__, request)
            cold.append(seconds)
            seconds, parts["filled"] = harness.child(__file__, request)
            warm.append(seconds)
            if not quick:
                begin = time.perf_counter()
                words = f"reproduce lifelong-cosine --seeds {num_seeds} --out {folder}/out"
                environment = harness.user_environment({"XDG_CACHE_HOME": folder})
                for _ in range(2):  # the first run fills the cache of the command
                    begin = time.perf_counter()
                    harness.subprocess.run(
                        [sys.executable, "-m", "jlibo.cli", *words.split()],
                        check=True,
                        env=environment,
                        stdout=harness.subprocess.DEVNULL,
                    )
                command.append(time.perf_counter() - begin)
    return float(np.median(cold)), float(np.median(warm)), float(np.median(command or [np.nan])), parts


def main():
    parser = harness.arguments(__doc__, child="used by the benchmark itself")
    options = parser.parse_args()
    if options.child:
        run_child(json.loads(options.child))
        return
    import numpy_baselines as baselines

    from jlibo.experiments.runner import prepare_experiment

    num_seeds = 3 if options.quick else 20
    experiment = make_experiment(options.quick)
    agree = agreement()
    cold, filled, command, parts = fresh_processes(
        num_seeds, options.quick, repeats=1 if options.quick else 5
    )
    prepared = prepare_experiment(experiment, num_seeds=num_seeds)
    one_thread = prepare_experiment(experiment, num_seeds=num_seeds, num_threads=1)
    world, numbers = world_of(experiment, num_seeds)
    solver = chosen_solver(world, numbers, num_rows=max(1, int(experiment["horizon"] ** 0.5)))

    def plain():
        baselines.run_plain(world, 0, numbers, solver)

    def careful():
        baselines.run_careful(world, numbers, solver)

    small = world._replace(
        values=world.values[:, :1], noise=world.noise[:, :1], exploration=world.exploration[:, :1]
    )
    plain_threads = best_threads(lambda: baselines.run_plain(small, 0, numbers, solver))
    careful_threads = best_threads(lambda: baselines.run_careful(small, numbers, solver))
    contenders = {
        "plain": with_threads(plain, plain_threads),
        "careful": with_threads(careful, careful_threads),
        "jlibo": harness.timed(prepared.run),
        # In the same rounds, so that the times with and without threads are comparable.
        "one thread": harness.timed(one_thread.run),
    }
    timings = harness.interleaved(contenders, repeats=2 if options.quick else 7, budget=45.0)
    plain_seconds = num_seeds * timings["plain"].median
    careful_seconds, ours = timings["careful"].median, timings["jlibo"].median
    single = timings["one thread"].median

    def row(name, seconds, note):
        return [
            name,
            harness.number(seconds),
            harness.number(plain_seconds / seconds),
            harness.number(careful_seconds / seconds),
            note,
        ]

    def split(part):
        return ", ".join(
            f"{name.removesuffix('_s')} {part[name]:.2f}" for name in part if name.endswith("_s")
        )

    traced_kept = importlib.util.find_spec("flatbuffers") is not None
    kept = "; not traced again" if traced_kept else "; traced again (no flatbuffers)"
    rows = [
        row("(a) plain NumPy", plain_seconds, f"1 seed x {num_seeds}; {plain_threads} BLAS thread(s)"),
        row("(b) careful NumPy", careful_seconds, f"{careful_threads} BLAS thread(s), float32"),
        row("jlibo, warm", ours, f"{prepared.num_threads} threads x {prepared.seeds_at_once} seeds"),
        row("jlibo, warm, one thread", single, ""),
        row("jlibo, fresh process, empty cache", cold, split(parts["cold"])),
        row("jlibo, fresh process, filled cache", filled, split(parts["filled"]) + kept),
    ]
    if not options.quick:
        rows.append(row("jlibo reproduce, filled cache", command, "with tables and figures"))
    result = dict(
        benchmark="paper_experiment",
        quick=options.quick,
        machine=harness.describe_machine(("jax", "jaxlib", "numpy", "scipy", "celer", "scikit-learn")),
        solver=solver.chosen,
        agreement=agree,
        traced_kept=traced_kept,
        seconds=dict(
            plain=plain_seconds,
            careful=careful_seconds,
            warm=ours,
            warm_one_thread=single,
            cold=cold,
            filled=filled,
            command=None if options.quick else command,
            compile=prepared.compile_seconds,
        ),
        fresh=parts,
        runs={name: timing.runs for name, timing in timings.items()},
        tables=[
            dict(
                title=f"{experiment.name}: {num_seeds} seeds x 4 agents x {experiment['num_tasks']} tasks x "
                f"{experiment['horizon']} steps x 1,000 candidates",
                header=["what", "seconds", "(a) / it", "(b) / it", "how"],
                rows=rows,
            ),
            dict(
                title="The same actions and selections, " + agree["size"],
                header=["against jlibo", "equal actions", "equal selections"],
                rows=[
                    ["(a) plain NumPy", f"{agree['plain_actions']:.2%}", f"{agree['plain_support']:.2%}"],
                    [
                        "(b) careful NumPy",
                        f"{agree['careful_actions']:.2%}",
                        f"{agree['careful_support']:.2%}",
                    ],
                ],
            ),
        ],
        aims=[
            harness.aim("warm, times faster than (a)", 200, plain_seconds / ours),
            harness.aim("warm, times faster than (b)", 15, careful_seconds / ours),
            harness.aim("fresh process, empty cache, times faster than (a)", 20, plain_seconds / cold),
            harness.aim("fresh process, filled cache, times faster than (a)", 60, plain_seconds / filled),
        ],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
