"""Time of the inner loop relative to the limits of the machine.

    python benchmarks/roofline.py [--quick] [--json FILE]

The loop is `run_task` of GP-UCB on 1,000 candidates and 50 features, as in the paper's experiment. Lanes are
pairs of seed and agent, distributed over a few threads. Two limits are measured on the same machine: the
fastest matrix product (NumPy's BLAS and XLA's, float32, the best of several sizes, on all cores, and the
loop's own product), and the fastest pass over memory, both of the size of the loop's state (which fits in a
cache) and of a size that fits in no cache. The limit of the loop is the larger of its floating-point work
over the first and its bytes over the second. The work counts multiplications and additions; the bytes are
those that must be read and written in each step.
"""

import os
import threading

import harness
import numpy as np

NUM_CANDIDATES, NUM_FEATURES = 1000, 50

NOTES = """\
Work of a step of one lane with N candidates and d features: 2Nd for the product with the candidates, 2d^2
each for the factor's image, its direction and its update, 9N for means, variances and scores. Bytes: the
factor read and written, means and variances read and written; the candidates' features are shared by all
lanes and counted once per thread. Square roots count as one operation. The loop is compiled as in sweeps
and experiments (`jlibo.programs.options`, level 2). Costs beyond the limit: the passes over means,
variances and scores are separate kernels, each of which reads and writes the output of the previous one
(XLA does not fuse through a matrix product or a reduction); about 25 kernels per step are launched at
some microseconds each; and the product, with an inner dimension of 50, runs at a part of the peak, which
is measured at its best size. The row "its product alone" has the time of the products only.

Of 40 lanes, whose means and variances fit into the L2 cache, a step took 95 us on one core with XLA's
defaults, by `jax.profiler.trace`: 28 for the product, 12 for the maximum of the scores, which YNNPACK
also wrote to every point, 7 each for the scores and for the factor's image, 4 each for the factor, its
direction and the places of the maximum, 3 each for means, variances and the first place, and the rest for
small kernels and for waking a second core to share the update of the factor. With the options of level 2
it took 54. The product with rows was 31 us of these; with columns it is 18, and with vectors of 512 bits
the rest takes a tenth less."""


def work(num_lanes):
    """Return floating-point operations and bytes of one step of `num_lanes` lanes, in float32."""
    n, d = NUM_CANDIDATES, NUM_FEATURES
    flops = num_lanes * (2 * n * d + 6 * d * d + 9 * n)
    num_bytes = 4 * (num_lanes * (2 * d * d + 4 * n) + n * d)
    return flops, num_bytes


def in_threads(functions):
    """Return a contender that runs all functions concurrently, each in a thread."""

    def run():
        threads = [threading.Thread(target=function) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return harness.timed(run)


def matrix_peak(num_threads, quick):
    """Return the FLOP/s of the fastest matrix product on `num_threads` cores."""
    import jax
    from threadpoolctl import threadpool_limits

    best = 0.0
    for size in (256,) if quick else (512, 1024, 2048):
        rng = np.random.default_rng(0)
        pairs = [rng.standard_normal((2, size, size)).astype(np.float32) for _ in range(num_threads)]
        count = max(1, (2**22 if quick else 2**31) // size**3)
        with threadpool_limits(1, "blas"):
            blas = in_threads([lambda p=p, n=count: [p[0] @ p[1] for _ in range(n)] for p in pairs])
            seconds = min(blas() for _ in range(3))
        best = max(best, num_threads * count * 2 * size**3 / seconds)
        if num_threads > 1:
            product = jax.jit(lambda a, b: a @ b)
            first, second = jax.device_put(pairs[0][0]), jax.device_put(pairs[0][1])
            jax.block_until_ready(product(first, second))
            xla = harness.timed(lambda p=product, a=first, b=second: p(a, b).block_until_ready())
            best = max(best, 2 * size**3 / min(xla() for _ in range(5)))
    return best


def bandwidth(num_threads, bytes_a_thread):
    """Return the bytes/s of the fastest pass (copy, or add in place) over arrays of this total size."""
    length = max(1024, bytes_a_thread // 8)
    count = max(1, 2**27 // (8 * length))
    copies, adds = [], []
    for _ in range(num_threads):
        first, second = np.ones(length, np.float32), np.ones(length, np.float32)
        copies.append(lambda a=first, b=second: [np.copyto(a, b) for _ in range(count)])
        adds.append(lambda a=first, b=second: [np.add(a, b, out=a) for _ in range(count)])
    best = 0.0
    for functions, passes in ((copies, 2), (adds, 3)):
        run = in_threads(functions)
        best = max(best, num_threads * count * passes * 4 * length / min(run() for _ in range(3)))
    return best


def make_loop(num_lanes, horizon):
    """Return the compiled inner loop for a number of lanes, and its product alone, without arguments."""
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo.belief.prior import full_prior
    from jlibo.lifelong.one_task import Draws
    from jlibo.programs import options

    features = jlibo.Cosine(NUM_FEATURES)
    rows = features(jnp.linspace(0, 1, NUM_CANDIDATES)[:, None])
    prior = full_prior(features.groups, rows.dtype)
    policy = jlibo.GPUCB(10.0, 0.1)
    keys = jax.random.split(jax.random.key(0), num_lanes)
    values = jax.vmap(lambda key: rows @ jax.random.normal(key, (NUM_FEATURES,)))(keys)
    noise = 0.1 * jax.random.normal(jax.random.key(1), (num_lanes, horizon))
    forced = jnp.zeros((num_lanes, horizon), jnp.int32)

    def play(values, noise, exploration, key):
        draws = Draws(jlibo.Task(values), noise, exploration, jax.random.split(key, horizon))
        return jlibo.run_task(policy, prior, rows, draws, jnp.zeros((), jnp.int32))

    compiled = options.compiled(jax.jit(jax.vmap(play)).lower(values, noise, forced, keys), 2)
    arguments = values, noise, forced, keys

    def products(weights):
        def step(weights, _):
            cross = jnp.matmul(weights, rows.T)
            # Use a part of every product, because XLA removes unused computations.
            return weights + 1e-9 * cross[:, :NUM_FEATURES], None

        return jax.lax.scan(step, weights, length=horizon)[0]

    weights = jnp.ones((num_lanes, NUM_FEATURES), rows.dtype)
    product = jax.jit(products).lower(weights).compile()
    jax.block_until_ready((compiled(*arguments), product(weights)))
    return (
        lambda: jax.block_until_ready(compiled(*arguments)),
        lambda: jax.block_until_ready(product(weights)),
    )


def main():
    parser = harness.arguments(__doc__)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    num_lanes, horizon, repeats = (8, 10, 3) if options.quick else (80, 100, 31)
    records = []
    for num_threads in sorted({1, cores}):
        lanes = -(-num_lanes // num_threads)
        loop, product = make_loop(lanes, horizon)
        contenders = {
            "loop": in_threads([loop] * num_threads),
            "product": in_threads([product] * num_threads),
        }
        timings = harness.interleaved(contenders, repeats)
        flops, num_bytes = (num_threads * part for part in work(lanes))
        own = num_threads * lanes * 2 * NUM_CANDIDATES * NUM_FEATURES * horizon / timings["product"].median
        peak = max(matrix_peak(num_threads, options.quick), own)
        near = bandwidth(num_threads, num_bytes // num_threads)
        far = bandwidth(num_threads, 2**22 if options.quick else 2**27)
        limit = max(flops / peak, num_bytes / near)
        seconds = timings["loop"].median / horizon
        records.append(
            dict(
                threads=num_threads,
                lanes=num_threads * lanes,
                step_us=1e6 * seconds,
                product_us=1e6 * timings["product"].median / horizon,
                flops=flops,
                bytes=num_bytes,
                peak_gflops=peak / 1e9,
                near_gb=near / 1e9,
                far_gb=far / 1e9,
                compute_us=1e6 * flops / peak,
                memory_us=1e6 * num_bytes / near,
                limit_us=1e6 * limit,
                ratio=seconds / limit,
                gflops=flops / seconds / 1e9,
            )
        )
    lines = [
        ("a step of all lanes, microseconds", "step_us"),
        ("its product alone", "product_us"),
        ("floating-point work, Mflop", lambda r: r["flops"] / 1e6),
        ("bytes that must move, MB", lambda r: r["bytes"] / 1e6),
        ("fastest matrix product, Gflop/s", "peak_gflops"),
        ("fastest pass, state's size, GB/s", "near_gb"),
        ("fastest pass, beyond the caches, GB/s", "far_gb"),
        ("limit by work, microseconds", "compute_us"),
        ("limit by bytes, microseconds", "memory_us"),
        ("achieved, Gflop/s", "gflops"),
        ("time over the limit", "ratio"),
    ]
    rows = [
        [words, *(harness.number(what(r) if callable(what) else r[what]) for r in records)]
        for words, what in lines
    ]
    result = dict(
        benchmark="roofline",
        quick=options.quick,
        machine=harness.describe_machine(),
        records=records,
        tables=[
            dict(
                title=f"The inner loop, {num_lanes} lanes, beside the machine's limits",
                header=["", *(f"{r['threads']} thread{'s' * (r['threads'] > 1)}" for r in records)],
                rows=rows,
            )
        ],
        aims=[
            harness.aim(f"time over the limit, {r['threads']} thread(s)", 3, r["ratio"], at_most=True)
            for r in records
        ],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
