"""Time of every method of the arena for 20 seeds, in an environment of its own setting.

    python benchmarks/arena_speed.py [--quick] [--json FILE]

The environment is the first of those for which the paper's tables have a claim about the method; for the
others the first of `HOMES` on which it runs. "Compile" is tracing and compilation in this process, without a
cache on disk. "Run" is the compiled program, all seeds in one batch for each core. A step is one action of
one seed, so a method that plays all tasks at the same time has as many steps as one that plays them in
sequence.
"""

import os
import time

import harness
import numpy as np

HOMES = ("sparse-grid", "gaussian-arms", "low-rank-contexts", "sparse-contexts", "gaussian-ball")
NUM_SEEDS, REPEATS = 20, 3
BUDGET = 5.0
"""Seconds after which a run is not repeated."""

NOTES = """\
Methods that learn between tasks only, such as LiBO and AdaTS, pay for a step the update of one belief.
Methods that refresh their estimate within tasks pay for it at growing intervals or in every round, and those
that maximise a likelihood by Adam after every task (ABLR, PACOH, ALPaCA) for its gradients."""


def home_of(method):
    """Return the environment in which a method is timed."""
    from jlibo.arena import CLAIMS, ENVIRONMENTS

    claimed = [name for claim in CLAIMS if claim.method == method.name for name in claim.environments]
    for name in (*claimed, *HOMES):
        if ENVIRONMENTS[name].is_default and method.refusal(ENVIRONMENTS[name]) is None:
            return ENVIRONMENTS[name]
    raise LookupError(method.name)


def measure(method, environment, num_seeds):
    """Return seconds to trace and compile, and to run."""
    import jax

    from jlibo.arena import run_method
    from jlibo.sweeps.compiled import CompiledChunks
    from jlibo.sweeps.engines import local_chunks, usual_threads
    from jlibo.sweeps.points import Plan, as_points
    from jlibo.sweeps.program import trace

    def run_fn(*, key):
        return {"regret": run_method(environment, method, key=key)}

    num_threads, key, points = usual_threads(), jax.random.key(0), as_points(None)
    begin = time.perf_counter()
    program = trace(run_fn, points, key, dims={"regret": ("task", "step")})
    plan = Plan(points, num_seeds, 0, -(-num_seeds // num_threads))
    compiled = CompiledChunks(program, plan.chunk, jax.devices()[:1], key)
    compile_seconds = time.perf_counter() - begin
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        finished = list(local_chunks(compiled, plan, range(plan.num_chunks), None, num_threads=num_threads))
        seconds.append(time.perf_counter() - begin)
        assert all(np.isfinite(arrays[0]).all() for _, arrays in finished)
        if sum(seconds) > BUDGET:
            break
    return compile_seconds, float(np.median(seconds))


def main():
    parser = harness.arguments(__doc__)
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jlibo.arena import METHODS

    names = ("independent", "libo", "e2tc") if options.quick else tuple(METHODS)
    num_seeds = 2 if options.quick else NUM_SEEDS
    records = {}
    for name in names:
        home = home_of(METHODS[name])
        environment = home.sized(num_tasks=2, horizon=4) if options.quick else home
        compile_seconds, run_seconds = measure(METHODS[name], environment, num_seeds)
        num_steps = num_seeds * environment.num_tasks * environment.horizon
        records[name] = dict(
            environment=home.name,
            tasks=environment.num_tasks,
            steps=environment.horizon,
            compile_s=compile_seconds,
            run_s=run_seconds,
            step_us=1e6 * run_seconds / num_steps,
        )
        print(f"done: {name}", flush=True)
    rows = [
        [
            name,
            record["environment"],
            f"{record['tasks']} x {record['steps']}",
            f"{record['compile_s']:.1f}",
            harness.number(record["run_s"]),
            harness.number(record["step_us"]),
        ]
        for name, record in records.items()
    ]
    header = ["method", "environment", "tasks x steps", "compile, s", "run, s", "a step, us"]
    table = dict(title=f"Every method with {num_seeds} seeds, single precision", header=header, rows=rows)
    result = dict(
        benchmark="arena_speed",
        quick=options.quick,
        machine=harness.describe_machine(),
        records=records,
        tables=[table],
        aims=[],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
