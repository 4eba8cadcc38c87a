"""Growth of time and memory with the number of seeds, features, candidates, tasks and past tasks.

    python benchmarks/scaling.py [--quick] [--json FILE]

Each size runs in a separate process, so that its peak memory can be measured. Seeds are run by the
experiments' runner in chunks; past tasks by Meta-KGL's update with one more task, once with all of them in
the history and once with the latest (`max_past`); the other sizes by `run_lifelong` with Meta-KGL on a few
seeds.
"""

import json
import os
import time

import harness
import numpy as np

SIZES = dict(
    seeds=(1, 10, 100, 1_000, 10_000),
    features=(50, 200, 1_000),
    candidates=(1_000, 10_000, 100_000),
    tasks=(10, 100, 500),
    past=(10, 100, 1_000, 10_000),
)
QUICK = dict(seeds=(1, 3), features=(20, 40), candidates=(100, 200), tasks=(2, 4), past=(2, 4))
BASE = dict(features=50, candidates=1_000, tasks=4, steps=50)
QUICK_BASE = dict(features=20, candidates=100, tasks=2, steps=9)
NUM_SEEDS = 4
NEWCOMERS, PAST_ROWS = 8, 10
"""Further tasks learned from after the past ones, and forced exploration steps of every task."""
LATEST, QUICK_LATEST = 100, 3
"""Most past tasks of the learner that keeps the latest."""
UNITS = dict(
    seeds="a seed of 4 agents",
    features="a step",
    candidates="a step",
    tasks="a task",
    past="learning from one more task",
)

NAMES = dict(past="past tasks")
COLUMNS = dict(
    seeds=dict(results_mb="results, MB"),
    past=dict(
        state_mb="state, MB",
        median_steps="steps",
        latest_ms="with the latest {latest}: learning from one more task, ms",
        latest_state_mb="state, MB",
        latest_peak_mb="peak, MB",
        latest_steps="steps",
    ),
)
"""Further columns of a table: entry of a record and header."""

NOTES = """\
Memory is the peak of the whole process, in MB; the first row of seeds shows the memory of Python, jax and
the compiled program without computation. Beyond a chunk (100 seeds over all threads) only the results grow,
which are kept on the host: the column "results" has their size, and the peak contains them twice, when the
chunks are joined. A step costs candidates x features for the product and features^2 for the factor of the
covariance. The group lasso of a task includes all past tasks, so that the time of a task grows linearly
with their number and that of a run quadratically. The rows of past tasks show one more task after so many:
the state has at most as many rows a task as there are features, so it grows linearly too. The solver starts
from the last solution and takes ten to thirty steps on a working set of 16 features. Reading the design four
times (the gradient at zero and at the start, the residual at the start, the gradient at the end), gathering
the set and the steps on it take most of the time. With all past tasks it cannot be flat: one more task moves
the coefficients of all tasks a little, and the duality gap is a bound over all data. With `max_past` it is:
the learner keeps the latest tasks, a new one takes the place of the oldest, and it is in the state of a run
on the kept tasks alone. Here it has learned from all tasks of the row, one after another; how many tasks it
should keep is measured by `benchmarks/long_runs.py`. With the printed lam = 0.5 nothing is selected from
about 100 tasks on, so lam falls with the root of their number there, as in Theorem 3.3, and the support is
the true one."""


def run_child(request):
    """Compile and run one size, and print the result."""
    os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))
    axis, base, value = request["axis"], request["base"], request["value"]
    if axis == "seeds":
        answer = seeds_run(value, base)
    elif axis == "past":
        answer = past_run(value, base, request["most"])
    else:
        answer = lifelong_run({**base, axis: value})
    print(json.dumps(dict(answer, peak_mb=harness.peak_memory_mb())))


def seeds_run(num_seeds, base):
    import jax

    from jlibo.experiments import find
    from jlibo.experiments.runner import prepare_experiment

    experiment = find("lifelong-cosine").changed({"num_tasks": base["tasks"], "horizon": base["steps"]})
    prepared = prepare_experiment(experiment, num_seeds=num_seeds)
    repeats = 3 if num_seeds <= 1000 else 1
    seconds, result = [], None
    for _ in range(repeats):
        result = None  # free the result of the last repeat, which would count as memory of this one
        begin = time.perf_counter()
        result = prepared.run()
        seconds.append(time.perf_counter() - begin)
    bytes_out = sum(leaf.nbytes for leaf in jax.tree.leaves(result.results))
    return dict(
        seconds=float(np.median(seconds)),
        compile_s=prepared.compile_seconds,
        units=num_seeds,
        results_mb=bytes_out / 2**20,
        chunk=prepared.seeds_at_once * prepared.num_threads,
    )


def lifelong_run(size):
    import jax
    import jax.numpy as jnp

    import jlibo

    features = jlibo.Cosine(size["features"])
    points = jnp.linspace(0, 1, size["candidates"])[:, None]

    def one(key):
        env_key, run_key = jax.random.split(key)
        env = jlibo.SyntheticEnv.draw(features, support_size=5, candidates=points, key=env_key)
        result = jlibo.run_lifelong(
            env,
            features,
            jlibo.GPUCB(10.0, 0.1),
            jlibo.MetaKGL(lam=0.5, omega=0.25, tol=1e-5),
            num_tasks=size["tasks"],
            horizon=size["steps"],
            key=run_key,
        )
        return result.regret, result.num_steps

    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    begin = time.perf_counter()
    compiled = jax.jit(jax.vmap(one)).lower(keys).compile()
    compile_seconds = time.perf_counter() - begin
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(keys))
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > 20:
            break
    return dict(seconds=float(np.median(seconds)), compile_s=compile_seconds)


def past_run(num_past, base, most):
    """Time the updates of Meta-KGL with a few more tasks, each after at least `num_past` tasks.

    `most`: most tasks that the learner keeps, the latest; None for all.
    """
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo.meta.past import remember_all

    num_tasks, num_features = num_past + NEWCOMERS, base["features"]
    learner = jlibo.MetaKGL(lam=1.0, omega=0.25, lam_scaling="sqrt", tol=1e-5, max_past=most)
    sizes = jlibo.RunSizes(tuple(range(num_features)), num_tasks, PAST_ROWS, PAST_ROWS, jnp.float32)
    support = np.random.default_rng(0).permutation(num_features)[:5]

    def draw(count, seed):
        rng = np.random.default_rng(seed)
        points = rng.uniform(size=(count, PAST_ROWS, 1))
        design = np.cos(np.pi * np.arange(1, num_features + 1) * points)
        coef = rng.uniform(0.5, 5, (count, 5)) * rng.choice([-1, 1], (count, 5))
        rewards = np.einsum("snf,sf->sn", design[..., support], coef)
        rewards += 0.1 * rng.standard_normal(rewards.shape)
        arrays = (jnp.asarray(array, jnp.float32) for array in (design, rewards))
        return jlibo.TaskData(*arrays, jnp.ones(rewards.shape, bool))

    @jax.jit
    def learn_past(data):
        """All at once, which is quick; the result is that of one task after another."""
        done = jnp.arange(num_tasks) < num_past
        past = remember_all(data, done, "exploration", sizes)
        past = jax.tree.map(lambda leaf: jnp.where(done.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0), past)
        return learner.learn(past, jnp.asarray(num_past), sizes)[0]

    def learn_more(state, newcomers):
        def one(state, task):
            state, info = learner.update(state, task, sizes)
            return state, (info.support, info.num_steps)

        return jax.lax.scan(one, state, newcomers)

    newcomers = draw(NEWCOMERS, 1)
    state = learn_past(draw(num_tasks, 2)) if most is None else jax.jit(lambda: learner.init(sizes))()
    begin = time.perf_counter()
    compiled = jax.jit(learn_more).lower(state, newcomers).compile()
    compile_seconds = time.perf_counter() - begin
    if most is not None:
        # A few at a time, so that the data need no memory. The last ones are the same in all rows.
        for turn in reversed(range(-(-num_past // NEWCOMERS))):
            state, _ = compiled(state, draw(NEWCOMERS, 2 + turn))
    answer = jax.block_until_ready(compiled(state, newcomers))
    seconds = []
    while len(seconds) < 5 or (len(seconds) < 50 and sum(seconds) < 2):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(state, newcomers))
        seconds.append(time.perf_counter() - begin)
    found, num_steps = answer[1]
    return dict(
        seconds=float(np.median(seconds)),
        compile_s=compile_seconds,
        state_mb=sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 2**20,
        recovered=set(np.flatnonzero(found[-1])) == set(support),
        median_steps=int(np.median(num_steps)),
    )


def latest_run(value, base, most):
    """Return the figures of the learner that keeps the latest past tasks, for their columns."""
    _, record = harness.child(__file__, dict(axis="past", base=base, value=value, most=most))
    return dict(
        latest_ms=1e3 * record["seconds"] / NEWCOMERS,
        latest_state_mb=record["state_mb"],
        latest_peak_mb=record["peak_mb"],
        latest_steps=record["median_steps"],
        latest_recovered=record["recovered"],
    )


def units_of(axis, value, base):
    """Return the number of units to which the reported time refers."""
    if axis == "seeds":
        return value
    if axis == "past":
        return NEWCOMERS
    tasks = value if axis == "tasks" else base["tasks"]
    return NUM_SEEDS * tasks * (1 if axis == "tasks" else base["steps"])


def main():
    parser = harness.arguments(__doc__, child="used by the benchmark itself")
    options = parser.parse_args()
    if options.child:
        run_child(json.loads(options.child))
        return
    sizes, base = (QUICK, QUICK_BASE) if options.quick else (SIZES, BASE)
    most = QUICK_LATEST if options.quick else LATEST
    records, tables = {}, []
    for axis, values in sizes.items():
        records[axis] = {}
        for value in values:
            _, record = harness.child(__file__, dict(axis=axis, value=value, base=base, most=None))
            record["per_unit"] = record["seconds"] / units_of(axis, value, base)
            if axis == "past":
                record |= latest_run(value, base, most)
            records[axis][value] = record
            print(f"done: {value} {axis}", flush=True)
        header = [axis, "run, s", f"{UNITS[axis]}, ms", "compile, s", "peak, MB"]
        rows = [
            [
                f"{value:,}",
                harness.number(record["seconds"]),
                harness.number(1e3 * record["per_unit"]),
                f"{record['compile_s']:.1f}",
                harness.number(record["peak_mb"]),
            ]
            + [harness.number(record[column]) for column in COLUMNS.get(axis, {})]
            for value, record in records[axis].items()
        ]
        header += [words.format(latest=most) for words in COLUMNS.get(axis, {}).values()]
        fixed = ", ".join(f"{number} {name}" for name, number in base.items() if name != axis)
        if axis == "past":
            fixed = f"{base['features']} features, {PAST_ROWS} rows a task"
        tables.append(
            dict(title=f"With the number of {NAMES.get(axis, axis)} ({fixed})", header=header, rows=rows)
        )
    seeds = records["seeds"]
    middle, many = (
        (list(sizes["seeds"])[-3:][0], max(sizes["seeds"])) if not options.quick else sizes["seeds"]
    )
    grown = seeds[many]["peak_mb"] - seeds[middle]["peak_mb"] - 2 * seeds[many]["results_mb"]
    before, after = (records["past"][value] for value in sizes["past"][-2:])
    words = "with the latest {} of {:,} past tasks over that of {:,}".format(most, *sizes["past"][:-3:-1])
    result = dict(
        benchmark="scaling",
        quick=options.quick,
        machine=harness.describe_machine(),
        records=records,
        tables=tables,
        aims=[
            harness.aim(
                f"time per seed at {many:,} seeds over that at {middle:,}",
                1.1,
                seeds[many]["per_unit"] / seeds[middle]["per_unit"],
                at_most=True,
            ),
            harness.aim(
                f"memory at {many:,} seeds beyond that at {middle:,} and the results twice, MB",
                100,
                grown,
                at_most=True,
            ),
            harness.aim(
                f"time of one more task {words}", 1.2, after["latest_ms"] / before["latest_ms"], at_most=True
            ),
            harness.aim(
                f"state {words}", 1.0, after["latest_state_mb"] / before["latest_state_mb"], at_most=True
            ),
        ],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
