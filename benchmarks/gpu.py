"""Time of the `lifelong-cosine` experiment on the default device of jax, such as a GPU. Usage:

    pip install -e . "jax[cuda13]"      # or cuda12, or tpu: see jax's own page on installation
    python benchmarks/gpu.py [--quick] [--json FILE]

It prints the device, the time to compile, and for 20 to 2,000 seeds the time of a whole `lifelong-cosine`
(4 agents, 20 tasks, 100 steps, 1,000 candidates) and of a seed in it, and a product of large matrices for
scale. On a machine without an accelerator it runs on the CPU and prints a note.

What to expect: we have not run it on a GPU. The tests lower every program for cuda and tpu
(tests/test_lowering.py), which shows that it can be compiled, not how fast it is. A step is about 25 small
kernels, and 2,000 steps run in sequence, so a run takes at least the time of 50,000 kernel launches. At about
5 microseconds each this is a quarter of a second for any number of seeds, until the device is full. Twenty
seeds may therefore be no faster than on two CPU cores; thousands of seeds should take little more time than
twenty. The group lasso runs as a batch on an accelerator (on a CPU one batch element at a time): converged
elements wait for the slowest one. For a small run on a machine with a GPU, set JAX_PLATFORMS=cpu.
"""

import time

import harness
import numpy as np

NOTES = "See the head of benchmarks/gpu.py for what to expect of an accelerator."


def run_seeds(experiment, num_seeds):
    """Compile and run all agents on one batch of seeds."""
    from jlibo.experiments.runner import prepare_experiment

    prepared = prepare_experiment(experiment, num_seeds=num_seeds, num_threads=1, seeds_at_once=num_seeds)
    prepared.run()
    seconds = float(np.median([harness.timed(prepared.run)() for _ in range(3)]))
    return dict(seconds=seconds, compile_s=prepared.compile_seconds)


def time_product(size):
    """Return the FLOP/s of a large matrix product in float32, at the platform's default precision."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(matrix))
    seconds = min(harness.timed(lambda: jax.block_until_ready(product(matrix)))() for _ in range(5))
    return 2 * size**3 / seconds


def main():
    parser = harness.arguments(__doc__)
    options = parser.parse_args()
    import jax

    from jlibo.experiments import find

    experiment = find("lifelong-cosine")
    if options.quick:
        experiment = experiment.changed({"num_tasks": 2, "horizon": 10})
    device = jax.devices()[0]
    is_accelerator = device.platform != "cpu"
    if not is_accelerator:
        print("No accelerator was found: this is the CPU.")
    counts = (2,) if options.quick else (20, 200, 2000) if is_accelerator else (20, 200)
    begin = time.perf_counter()
    records = {count: run_seeds(experiment, count) for count in counts}
    result = dict(
        benchmark="gpu",
        quick=options.quick,
        machine=harness.describe_machine(),
        device=f"{device.platform}: {device.device_kind}",
        product_gflops=time_product(256 if options.quick else 4096) / 1e9,
        records=records,
        total_s=time.perf_counter() - begin,
        tables=[
            dict(
                title=f"{experiment.name}, all seeds in one batch, on {device.device_kind}",
                header=["seeds", "run, s", "a seed, ms", "compile, s"],
                rows=[
                    [
                        f"{count:,}",
                        harness.number(record["seconds"]),
                        harness.number(1e3 * record["seconds"] / count),
                        f"{record['compile_s']:.1f}",
                    ]
                    for count, record in records.items()
                ],
            )
        ],
        aims=[],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
