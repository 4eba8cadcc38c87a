"""Scale of the adaptive mode: a tuner with a large past, and a lifelong run over many orders in one batch.

    python benchmarks/tuner_scale.py [--quick] [--json FILE]

| part     | what is measured                                                                               |
|----------|------------------------------------------------------------------------------------------------|
| a past   | 400 past tasks of 100 trials with 16 parameters: learning (warm), `ask`, memory of the process |
| lifelong | 35 tasks of 50 trials with 7 parameters and 400 configurations, 20 orders in one batch; and in |
|          | two batches, one per core, as `jlibo.sweep` runs them                                         |

Each part runs in a fresh process. Its peak memory includes Python and jax, which are shown apart. Times
depend on what else the machine does; `processor` is the processor time of all threads.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("NPROC", "4")

import harness
import numpy as np

PAST = dict(tasks=400, trials=100, parameters=16, asks=30)
LIFELONG = dict(tasks=35, trials=50, parameters=7, orders=20, configs=400)
QUICK_PAST = dict(tasks=6, trials=10, parameters=3, asks=3)
QUICK_LIFELONG = dict(tasks=3, trials=4, parameters=2, orders=2, configs=20)
WANTED = dict(learn_s=2.0, ask_ms=20.0, peak_mb=1000.0, lifelong_s=60.0)


def surfaces(points, num_tasks, rng):
    """Return values [task, point] of smooth functions whose optima are near each other."""
    dim = points.shape[-1]
    centres = np.clip(rng.uniform(0.3, 0.7, dim) + 0.1 * rng.normal(size=(num_tasks, dim)), 0, 1)
    widths = rng.uniform(0.2, 1.5, (num_tasks, dim)) ** 2
    return -((widths[:, None] * (points - centres[:, None]) ** 2).sum(-1))


def make_space(num_parameters):
    import jlibo

    return jlibo.SearchSpace({f"x{place:02}": jlibo.Float(0, 1) for place in range(num_parameters)})


def run_past(*, tasks, trials, parameters, asks):
    """Learn from past tasks and ask; return seconds and peak memory in megabytes."""
    import jax

    import jlibo

    jax.block_until_ready(jax.numpy.zeros(1))
    start_mb = harness.peak_memory_mb()
    rng = np.random.default_rng(0)
    space = make_space(parameters)
    points = rng.uniform(size=(tasks, trials, parameters))
    values = np.stack([surfaces(own, 1, np.random.default_rng(1))[0] for own in points])
    values += 0.1 * rng.normal(size=(tasks, 1)) + 0.02 * rng.normal(size=values.shape)
    with jlibo.Tuner(space) as tuner:
        for number in range(tasks):
            configs = [dict(zip(space, row, strict=True)) for row in points[number].tolist()]
            tuner.add_task(f"past {number}", configs, values[number].tolist())
        filled_mb = harness.peak_memory_mb()
        learn = []
        for _ in range(3):  # the first compiles
            tuner._learned.clear()
            start, used = time.perf_counter(), time.process_time()
            jax.block_until_ready(tuner.knowledge()[0].prior)
            learn.append((time.perf_counter() - start, time.process_time() - used))
        ask = []
        with tuner.task("new", budget=asks + 2) as task:
            for _ in range(asks + 2):
                start, used = time.perf_counter(), time.process_time()
                trial = task.ask()
                ask.append((time.perf_counter() - start, time.process_time() - used))
                task.tell(trial, float(-sum((value - 0.5) ** 2 for value in trial.params.values())))
    ask_s, ask_cpu = np.median(ask[2:], axis=0)
    return dict(
        first_learn_s=learn[0][0],
        learn_s=min(taken for taken, _ in learn[1:]),
        learn_processor_s=min(used for _, used in learn[1:]),
        first_ask_s=ask[0][0],
        ask_ms=1e3 * float(ask_s),
        ask_processor_ms=1e3 * float(ask_cpu),
        start_mb=start_mb,
        filled_mb=filled_mb,
        peak_mb=harness.peak_memory_mb(),
    )


def run_lifelong(*, tasks, trials, parameters, orders, configs):
    """Run the adaptive mode over many orders of tasks in one batch; return seconds and peak memory."""
    import equinox as eqx
    import jax

    import jlibo
    from jlibo.tune.model import make_model

    rng = np.random.default_rng(0)
    points = rng.uniform(size=(configs, parameters))
    env = jlibo.TableEnv(surfaces(points, tasks, rng), points)
    model = make_model(make_space(parameters))

    def run(order, key):
        result = jlibo.run_lifelong(
            eqx.tree_at(lambda env: env.order, env, order),
            model.features,
            model.policy,
            model.learner,
            num_tasks=tasks,
            horizon=trials,
            scaling=model.scaling,
            repeats=False,
            key=key,
        )
        return result.regret

    inputs = (
        np.stack([rng.permutation(tasks) for _ in range(orders)]),
        jax.random.split(jax.random.key(0), orders),
    )

    def timed(num_batches):
        """Return the regrets, the seconds to compile and to run, and the processor time of the run."""
        batches = [
            jax.tree.map(lambda leaf, at=at: leaf[at::num_batches], inputs) for at in range(num_batches)
        ]
        start = time.perf_counter()
        program = jax.jit(jax.vmap(run)).lower(*batches[0]).compile()
        compile_s = time.perf_counter() - start
        start, used = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(num_batches) as pool:
            parts = list(pool.map(lambda batch: np.asarray(program(*batch)), batches))
        return np.concatenate(parts), compile_s, time.perf_counter() - start, time.process_time() - used

    regret, compile_s, seconds, used = timed(1)
    peak_mb = harness.peak_memory_mb()
    _, _, two_batches_s, _ = timed(min(2, orders))
    best = np.minimum.accumulate(regret, axis=2)[:, :, -1].mean(0)  # simple regret at the end of each task
    return dict(
        compile_s=compile_s,
        run_s=seconds,
        processor_s=used,
        two_batches_s=two_batches_s,
        peak_mb=peak_mb,
        first_task_regret=float(best[0]),
        last_task_regret=float(best[-1]),
    )


PARTS = dict(past=run_past, lifelong=run_lifelong)


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--child", help="internal: run one part and print its numbers")
    options = parser.parse_args()
    if options.child:
        request = json.loads(options.child)
        print(json.dumps(PARTS[request["part"]](**request["sizes"])))
        return
    sizes = (
        dict(past=QUICK_PAST, lifelong=QUICK_LIFELONG)
        if options.quick
        else dict(past=PAST, lifelong=LIFELONG)
    )
    runs = {part: harness.child(__file__, dict(part=part, sizes=sizes[part]))[1] for part in PARTS}
    past, lifelong = runs["past"], runs["lifelong"]

    def words(part):
        return ", ".join(f"{count} {name}" for name, count in sizes[part].items())

    result = dict(
        benchmark="tuner_scale",
        machine=harness.describe_machine(),
        sizes=sizes,
        **runs,
        tables=[
            dict(
                title=words(part), header=list(run), rows=[[harness.number(value) for value in run.values()]]
            )
            for part, run in runs.items()
        ],
        aims=[
            harness.aim(
                "learning from 400 x 100 x 16, warm, seconds", WANTED["learn_s"], past["learn_s"], True
            ),
            harness.aim("ask after it, milliseconds", WANTED["ask_ms"], past["ask_ms"], True),
            harness.aim("peak memory of that process, MB", WANTED["peak_mb"], past["peak_mb"], True),
            harness.aim(
                "lifelong run of 20 orders, compilation included, seconds",
                WANTED["lifelong_s"],
                lifelong["compile_s"] + lifelong["run_s"],
                True,
            ),
        ],
        notes="Peak memory is that of the whole process: Python, jax and the compiler included; `start_mb` "
        "is what importing them takes, `filled_mb` what it is once the past is in the tuner's memory.",
        quick=options.quick,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    sys.exit(main())
