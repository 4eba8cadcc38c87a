"""Time to the first answer of a tuner in a fresh process, with an empty and a filled cache of programs.

    python benchmarks/first_answer.py [--quick] [--json FILE]

Eight parameters, and a memory of twenty past tasks with fifty trials each. A fresh process imports jlibo,
opens the tuner and asks once. Its clock starts when jlibo is imported. Beside it stands what nobody can
avoid: a process that imports jax and adds two numbers. The last part counts the programs that are compiled
during a task of a hundred trials.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

NUM_TASKS, NUM_TRIALS, NUM_ASKS = 20, 50, 100
WANTED_FILLED, WANTED_EMPTY = 1.0, 3.0
KINDS = ("empty", "filled", "off", "jax")


def make_space():
    import jlibo

    return jlibo.SearchSpace(
        depth=jlibo.Int(1, 8),
        kind=jlibo.Categorical(["a", "b", "c"]),
        rate=jlibo.Float(1e-3, 1, log=True),
        penalty=jlibo.Float(1e-4, 1e2, log=True),
        share=jlibo.Float(0, 1),
        shift=jlibo.Float(-1, 1),
        size=jlibo.Int(1, 1000, log=True),
        weight=jlibo.Float(0, 1),
    )


def value(space, params, number):
    """Return the value of a smooth function whose maximum differs between tasks."""
    return float(-((space.to_unit(params) - 0.4 - 0.01 * number) ** 2).sum())


def fill(path, num_tasks, num_trials):
    import numpy as np

    import jlibo

    space, rng = make_space(), np.random.default_rng(0)
    with jlibo.Tuner(space, memory=path) as tuner:
        for number in range(num_tasks):
            configs = [space.from_unit(point) for point in space.sample_unit(num_trials, rng=rng)]
            tuner.add_task(f"past {number}", configs, [value(space, one, number) for one in configs])


def first_answer(path):
    """Return the seconds of the import, and from there to the first answer."""
    start = time.perf_counter()
    import jlibo

    imported = time.perf_counter()
    with jlibo.Tuner(make_space(), memory=path) as tuner:
        trial = tuner.task("new", budget=NUM_ASKS).ask()
        answered = time.perf_counter()
    return dict(import_s=imported - start, answer_s=answered - imported, params=trial.params)


def sum_of_two():
    start = time.perf_counter()
    import jax

    imported = time.perf_counter()
    (jax.numpy.asarray(1.0) + 1.0).block_until_ready()
    return dict(import_s=imported - start, answer_s=time.perf_counter() - imported)


def whole_task(path, num_asks):
    """Return the number of programs that jax compiles until the first answer of a task, and after it."""
    import jax

    import jlibo

    events = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **more: events.append(name) if name.endswith("backend_compile_duration") else None
    )
    space = make_space()
    with jlibo.Tuner(space, memory=path) as tuner:
        task = tuner.task("new")  # without a budget: the default is half of the trials
        before = None
        for _ in range(num_asks):
            trial = task.ask()
            before = len(events) if before is None else before
            task.tell(trial, value(space, trial.params, 0))
    return dict(first=before, later=len(events) - before)


def run_child(request):
    kind = request["kind"]
    if kind == "fill":
        fill(request["path"], *request["sizes"])
        answer = {}
    elif kind == "task":
        answer = whole_task(request["path"], request["num_asks"])
    else:
        answer = sum_of_two() if kind == "jax" else first_answer(request["path"])
    print(json.dumps(answer))


def child(kind, path, cache, **more):
    """Run a part in a fresh process; return the seconds of the process and what it says."""
    environment = {"XDG_CACHE_HOME": str(cache), "JLIBO_CACHE": "0" if kind == "off" else "1"}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(dict(kind=kind, path=str(path), **more))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=harness.user_environment(environment),
    )
    return time.perf_counter() - begin, json.loads(done.stdout.splitlines()[-1])


def measure(folder, sizes, repeats):
    """Return the runs of each kind, in interleaved rounds, and the counts of a whole task."""
    memory, filled = folder / "memory.db", folder / "filled"
    child("fill", memory, filled, sizes=sizes)

    def fresh():
        shutil.copy(memory, folder / "copy.db")
        return folder / "copy.db"

    child("filled", fresh(), filled)
    runs = {kind: [] for kind in KINDS}
    for turn in range(repeats):
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            cache = filled if kind == "filled" else folder / f"{kind} {turn}"
            seconds, said = child(kind, fresh(), cache)
            runs[kind].append(dict(said, process_s=seconds))
    if len({json.dumps(run["params"]) for kind in KINDS[:3] for run in runs[kind]}) != 1:
        raise AssertionError("the answers differ")
    stored = [file.stat().st_size for file in (filled / "jlibo" / "programs").iterdir()]
    _, counts = child("task", fresh(), folder / "task", num_asks=NUM_ASKS)
    return runs, counts, stored


def median(runs, name):
    return statistics.median(run[name] for run in runs)


def main():
    if "--child" in sys.argv:
        return run_child(json.loads(sys.argv[sys.argv.index("--child") + 1]))
    options = harness.arguments(__doc__).parse_args()
    sizes, repeats = ((3, 20), 1) if options.quick else ((NUM_TASKS, NUM_TRIALS), 5)
    with tempfile.TemporaryDirectory() as folder:
        runs, counts, stored = measure(Path(folder), sizes, repeats)
    words = dict(
        empty="tuner, empty cache",
        filled="tuner, filled cache",
        off="tuner, without a cache",
        jax="import jax, add two numbers",
    )
    names = ("import_s", "answer_s", "process_s")
    medians = {kind: {name: median(runs[kind], name) for name in names} for kind in KINDS}
    result = dict(
        benchmark="first_answer",
        machine=harness.describe_machine(),
        sizes=dict(parameters=8, past_tasks=sizes[0], trials=sizes[1], repeats=repeats),
        runs={kind: [{name: round(run[name], 3) for name in names} for run in runs[kind]] for kind in KINDS},
        counts=counts,
        tables=[
            dict(
                title=f"Seconds of a fresh process, median of {repeats}, {sizes[0]} past tasks",
                header=["what", "import", "from there to the first answer", "the process from start to end"],
                rows=[
                    [words[kind], *(harness.number(medians[kind][name]) for name in names)] for kind in KINDS
                ],
            ),
            dict(
                title="Programs that are compiled",
                header=["until the first answer", f"in the other {NUM_ASKS - 1} trials", "files", "MB"],
                rows=[[counts["first"], counts["later"], len(stored), harness.number(sum(stored) / 1e6)]],
            ),
        ],
        aims=[
            harness.aim("filled cache, seconds", WANTED_FILLED, medians["filled"]["answer_s"], at_most=True),
            harness.aim("empty cache, seconds", WANTED_EMPTY, medians["empty"]["answer_s"], at_most=True),
            harness.aim("compilations in trials 2 to 100", 0, counts["later"], at_most=True),
        ],
        notes=NOTES,
        quick=options.quick,
    )
    harness.report(result, options.json)
    return 0


NOTES = """\
All answers are the same configuration, whatever the cache. Learning from the past is two programs: the
group-lasso path, which takes longest to compile and runs for some milliseconds, is not optimised; likelihoods
and EM are. A stored program is found by its arguments, sources, versions and processor, before anything is
traced; the two programs of learning and that of suggesting are compiled or loaded side by side, while the
past is read. Keys are computed by NumPy, with the bits of jax, which saves four programs.

With an empty cache both cores are busy until the answer. Of about 5 s of processor time after the import, 1.1
are tracing and lowering, and most of the rest is the compiler's. Three of XLA's passes are left out
(`jlibo.programs.options`), so that a sum is one kernel: 6.4 -> 5.2 s of processor time, with the garbage
collector paused while a program is traced. Storing the programs takes 0.1 s of processor time; where the row
without a cache is faster by more than that, other work ran on the machine.

Without benefit: a switched off HLO verifier, another number of parts in which LLVM compiles, level 1 without
LLVM's expensive passes, no YNNPACK at level 0, fewer vector instructions, blocks of 8 instead of 16 rows in
the Cholesky factor. Without optimisation, likelihoods and EM would compile in a quarter of the time, but run
two to six times as long, in every task."""


if __name__ == "__main__":
    sys.exit(main())
