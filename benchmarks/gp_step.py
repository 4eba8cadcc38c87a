"""Time of one suggestion by jlibo, scikit-learn, BoTorch and GPJax, with the same kernel and data.

    python benchmarks/gp_step.py [--quick] [--json FILE]

Given n observations and one new reward, the next of 1,000 candidates is chosen by an upper confidence bound.
The kernel is the average of 50 cosines. Hyper-parameters are fixed and nothing is fitted. A peer conditions
on all observations again, as its interface requires; jlibo updates its belief by the one reward. "from
nothing" is jlibo conditioning on all observations one by one, starting from the prior. All run in double
precision, and jlibo also in single precision.

Peers are installed in separate environments: JLIBO_TUNERS_PYTHON (BoTorch, `make tuners`) and
JLIBO_GPJAX_PYTHON (`make gpjax`). A missing environment is reported, and the benchmark runs without it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NUM_FEATURES, NUM_CANDIDATES, NOISE_STD, NU = 50, 1000, 0.1, 10.0
INTERPRETERS = dict(
    sklearn=("", sys.executable, ""),
    botorch=("JLIBO_TUNERS_PYTHON", ROOT / ".venv-tuners" / "bin" / "python", "make tuners"),
    gpjax=("JLIBO_GPJAX_PYTHON", ROOT / ".venv-gpjax" / "bin" / "python", "make gpjax"),
)

NOTES = """\
The cost of a jlibo step does not depend on the number of observations: the belief is a mean and a variance
at each candidate and a factor of the weights' covariance. A single step of 1,000 candidates and 50 features
is about 0.2 million floating-point operations, so most of its time is jax's dispatch of a call and the
launch of 25 kernels. jlibo and GPJax run with `jax_cpu_enable_async_dispatch` off, which is better for a
caller that waits for each result: with it, every call wakes a thread, and a step takes more than twice as
long. A batch of beliefs (`vmap`, as in a sweep over seeds) shares this overhead; the row "in a batch of
100" has the time of one of them. Peers condition on all observations at each call: n^2 (n + candidates).
The aim is relative to the fastest peer at each n. Changes: the product with the features has no transpose
(three times faster for one vector), and the features are not part of the state that a step returns, so they
are not copied. All are timed in sequence after a first call: 200 steps of jlibo, 5 calls of a peer."""


def draw_data(size, seed=0):
    """Return cosine features scaled to the averaged kernel, rows of the observations, and rewards."""
    rng = np.random.default_rng(seed)
    points = np.linspace(0, 1, NUM_CANDIDATES)[:, None]
    features = np.cos(np.pi * np.arange(1, NUM_FEATURES + 1) * points)
    places = rng.integers(NUM_CANDIDATES, size=size)
    coef = np.zeros(NUM_FEATURES)
    coef[rng.permutation(NUM_FEATURES)[:5]] = rng.uniform(2, 5, 5)
    rewards = features[places] @ coef + NOISE_STD * rng.standard_normal(size)
    return features, places, rewards


class Peer:
    """A process that suggests with one of the peers; see peers_gp.py."""

    def __init__(self, name, python, path):
        script = Path(__file__).with_name("peers_gp.py")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", script, name, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = name
        self.version = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} process ended early; its error is above")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start_peers(path):
    """Return all peers that have an interpreter."""
    found = []
    for name, (variable, python, target) in INTERPRETERS.items():
        python = os.environ.get(variable, str(python))
        if not Path(python).exists():
            print(f"{name}: no interpreter (run `{target}`, or set {variable}); going on without it")
            continue
        try:
            found.append(Peer(name, python, path))
        except RuntimeError as error:
            print(f"{name}: left out, {error}")
    return found


class Ours:
    """jlibo at one number of observations: a belief without the last reward, and compiled functions."""

    def __init__(self, data, size, dtype, batch=100):
        import jax
        import jax.numpy as jnp

        import jlibo
        from jlibo.belief import posterior as gp

        features, places, rewards = data
        features, rewards = jnp.asarray(features, dtype), jnp.asarray(rewards[:size], dtype)
        places = jnp.asarray(places[:size], jnp.int32)
        prior = jlibo.Prior(jnp.zeros(NUM_FEATURES, dtype), jnp.full(NUM_FEATURES, 1 / NUM_FEATURES, dtype))
        policy = jlibo.GPUCB(NU, NOISE_STD)
        key = jax.random.key(0)

        def condition_all(features, places, rewards):
            def add(posterior, step):
                place, reward = step
                return gp.update(posterior, features[place], reward), None

            posterior, _ = jax.lax.scan(add, gp.init(prior, NOISE_STD), (places, rewards))
            return gp.belief_at(posterior, features)

        # As in the lifelong loop, the candidates' features are not part of the state, so they are not copied.
        def step(state, features, place, reward):
            mean, variance, posterior = state
            belief = gp.observe_candidate(gp.Belief(mean, variance, features, posterior), place, reward)
            return (belief.mean, belief.variance, belief.posterior), jlibo.choose(policy, belief, key=key)

        def from_nothing(features, places, rewards):
            return jlibo.choose(policy, condition_all(features, places, rewards), key=key)

        belief = jax.jit(condition_all)(features, places[:-1], rewards[:-1])
        self.last = places[-1], rewards[-1]
        self.compiled = jax.jit(step)
        self.state = belief.mean, belief.variance, belief.posterior
        self.block = jax.block_until_ready
        self.whole = jax.jit(from_nothing)
        self.data = features, places, rewards
        self.batched = jax.jit(jax.vmap(step, in_axes=(0, None, None, 0)))
        self.batch = batch
        self.states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch, *leaf.shape)), self.state)
        self.rewards = self.last[1] * jnp.linspace(0.9, 1.1, batch, dtype=dtype)
        (mean, variance, posterior), index = self.compiled(self.state, features, *self.last)
        self.index = int(index)
        new = gp.Belief(mean, variance, features, posterior)
        self.scores = np.asarray(policy.scores(new, key=key), np.float64)

    def step(self):
        self.block(self.compiled(self.state, self.data[0], *self.last))

    def from_nothing(self):
        self.block(self.whole(*self.data))

    def in_batch(self):
        self.block(self.batched(self.states, self.data[0], self.last[0], self.rewards))


def many(function, count):
    """Return a contender whose time is the mean over `count` calls."""
    run = harness.timed(lambda: [function() for _ in range(count)])
    return lambda: run() / count


def bench(data, size, peers, repeats):
    """Time all contenders at one number of observations."""
    import jax

    single = Ours(data, size, np.float32)
    with jax.enable_x64(True):
        double = Ours(data, size, np.float64)
    in_batch = harness.timed(single.in_batch)
    contenders = {
        "jlibo": many(double.step, 200),
        "jlibo float32": many(single.step, 200),
        "jlibo in a batch": lambda: in_batch() / single.batch,
        "jlibo from nothing": many(double.from_nothing, 5),
    }
    agreement = {}
    for peer in peers:
        answer = peer.ask(do="suggest", size=size, scores=True)
        difference = np.abs(np.array(answer["scores"]) - double.scores).max()
        agreement[peer.name] = dict(same=answer["index"] == double.index, scores=float(difference))
        # Peers are called several times in a row too: the first call after a pause is slower for all.
        contenders[peer.name] = lambda peer=peer: peer.ask(do="suggest", size=size, count=5)["seconds"]
    agreement["jlibo float32"] = dict(
        same=single.index == double.index, scores=float(np.abs(single.scores - double.scores).max())
    )
    with jax.enable_x64(True):
        timings = harness.interleaved(contenders, repeats, budget=10.0)
    return {name: timing.median for name, timing in timings.items()}, agreement


def peer_aim(size, seconds, peer_names):
    """Return the aim relative to the fastest peer; it is not met if a peer is missing."""
    fastest = min(peer_names, key=seconds.get)
    words = f"n = {size}, times the fastest peer ({fastest})"
    missing = [name for name in INTERPRETERS if name not in peer_names]
    if missing:
        return harness.aim(f"{words}, not measured: without {' and '.join(missing)}", 50, None)
    return harness.aim(words, 50, seconds[fastest] / seconds["jlibo"])


def main():
    parser = harness.arguments(__doc__)
    options = parser.parse_args()
    import jax

    # A caller that waits for each result does not gain from asynchronous dispatch to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    sizes = (20, 40) if options.quick else (50, 100, 500)
    data = features, places, rewards = draw_data(max(sizes))
    seconds, agreement = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(
            path,
            candidates=features / np.sqrt(NUM_FEATURES),
            rows=features[places] / np.sqrt(NUM_FEATURES),
            rewards=rewards,
            noise_std=NOISE_STD,
            nu=NU,
        )
        peers = start_peers(path)
        bench(data, sizes[0], peers, repeats=2)  # warm-up: starts all threads
        for size in sizes:
            seconds[size], agreement[size] = bench(data, size, peers, repeats=3 if options.quick else 31)
        versions = [peer.version for peer in peers]
        for peer in peers:
            peer.close()
    names = list(seconds[sizes[0]])
    peer_names = [peer.name for peer in peers]
    best = {size: min(seconds[size][name] for name in peer_names) for size in sizes}
    ratios = {size: best[size] / seconds[size]["jlibo"] for size in sizes}
    steps = [seconds[size]["jlibo"] for size in sizes]
    words = {"jlibo in a batch": "jlibo float32, in a batch of 100", "jlibo": "jlibo float64"}
    rows = [
        [words.get(name, name)] + [f"{1e6 * seconds[size][name]:,.0f}" for size in sizes] for name in names
    ]
    rows.append(["fastest peer / jlibo float64"] + [f"{ratios[size]:.0f}x" for size in sizes])
    rows.append(
        ["fastest peer / jlibo in a batch"]
        + [f"{best[size] / seconds[size]['jlibo in a batch']:,.0f}x" for size in sizes]
    )
    result = dict(
        benchmark="gp_step",
        quick=options.quick,
        machine=harness.describe_machine(("jax", "jaxlib", "numpy", "scikit-learn")),
        peers=versions,
        sizes=list(sizes),
        seconds={str(size): seconds[size] for size in sizes},
        agreement={str(size): agreement[size] for size in sizes},
        tables=[
            dict(
                title="Microseconds for one suggestion among 1,000 candidates, after n observations",
                header=["", *[f"n = {size}" for size in sizes]],
                rows=rows,
            ),
            dict(
                title="The same suggestion, and the largest difference of any candidate's score",
                header=["against jlibo float64", *[f"n = {size}" for size in sizes]],
                rows=[
                    [name]
                    + [
                        f"{'the same' if agreement[size][name]['same'] else 'another'}, "
                        f"{agreement[size][name]['scores']:.0e}"
                        for size in sizes
                    ]
                    for name in agreement[sizes[0]]
                ],
            ),
        ],
        aims=[
            *[peer_aim(size, seconds[size], peer_names) for size in sizes],
            harness.aim(
                "slowest over fastest step across the numbers of observations (1: constant)",
                1.25,
                max(steps) / min(steps),
                at_most=True,
            ),
        ],
        notes=NOTES,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
