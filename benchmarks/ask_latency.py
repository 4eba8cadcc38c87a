"""Latency of `ask`: three parameters, fifty past tasks of a hundred trials each, a new task of a hundred.

    python benchmarks/ask_latency.py [--quick] [--json FILE]

| part     | what it is                                                                                     |
|----------|------------------------------------------------------------------------------------------------|
| SQLite   | reading the task's trials, writing the new one (it is on the disk when `ask` returns)          |
| engine   | features of the new candidates, belief, policy, best candidate: one compiled call              |
| the rest | Python and NumPy: candidates near the best, untried candidates, records to arrays              |

`processor_ms` is the processor time of all threads, which is more reliable on a busy machine. The first call
also compiles and learns from the past, and is reported separately. The memory is a file in the temporary
folder in one run, and in RAM in the other; the difference is the cost of the disk.
"""

import contextlib
import os
import tempfile
import time

os.environ.setdefault("NPROC", "4")

import harness
import numpy as np

import jlibo
from jlibo.tune import ask as ask_module

SPACE = jlibo.SearchSpace(
    alpha=jlibo.Float(0, 1), lam=jlibo.Float(1e-4, 1e2, log=True), rate=jlibo.Float(1e-3, 1, log=True)
)
MEMORY_CALLS = ("claim_pending", "trials", "revision", "snapshot", "add_trial")
WANTED_MS = 20.0


def value(params, number):
    """Return the value of a smooth function whose maximum differs between tasks."""
    point = SPACE.to_unit(params)
    peak = 0.6 + 0.1 * np.sin(number)
    return 0.8 - (point[1] - peak) ** 2 - 0.3 * (point[0] - 0.5) ** 2 * point[1]


class Clock:
    """Measures the seconds spent inside of wrapped functions since the last `read`."""

    def __init__(self):
        self.seconds = 0.0

    def around(self, function):
        def wrapped(*args, **kwargs):
            start = time.perf_counter()
            answer = function(*args, **kwargs)
            if hasattr(answer, "block_until_ready"):
                answer.block_until_ready()
            self.seconds += time.perf_counter() - start
            return answer

        return wrapped

    def read(self):
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@contextlib.contextmanager
def measured(memory):
    """Measure the time of the memory's calls and of the compiled call by two clocks."""
    sqlite, engine = Clock(), Clock()
    for name in MEMORY_CALLS:
        setattr(memory, name, sqlite.around(getattr(memory, name)))
    compiled = ask_module._best_candidates
    ask_module._best_candidates = engine.around(compiled)
    try:
        yield sqlite, engine
    finally:
        ask_module._best_candidates = compiled


def fill(tuner, num_tasks, num_trials):
    rng = np.random.default_rng(0)
    for number in range(num_tasks):
        configs = [SPACE.from_unit(point) for point in SPACE.sample_unit(num_trials, rng=rng)]
        tuner.add_task(f"past {number}", configs, [value(params, number) for params in configs])


def learn_seconds(tuner):
    start = time.perf_counter()
    knowledge, _ = tuner.knowledge()
    knowledge.support.block_until_ready()
    return time.perf_counter() - start


def run(path, num_tasks, num_trials, num_asks):
    with jlibo.Tuner(SPACE, memory=path) as tuner:
        fill(tuner, num_tasks, num_trials)
        first_learn = learn_seconds(tuner)
        tuner._learned.clear()
        warm_learn = learn_seconds(tuner)
        rows = []
        with measured(tuner.memory) as (sqlite, engine), tuner.task("new", budget=num_asks + 1) as task:
            for _ in range(num_asks + 1):
                sqlite.read(), engine.read()
                start, processor = time.perf_counter(), time.process_time()
                trial = task.ask()
                used = time.process_time() - processor
                rows.append((time.perf_counter() - start, sqlite.read(), engine.read(), used))
                task.tell(trial, value(trial.params, num_tasks))
    seconds = np.asarray(rows)
    warm = 1e3 * seconds[1:]
    total, in_sqlite, in_engine, used = np.median(warm, axis=0)
    return dict(
        first_learn_s=round(first_learn, 2),
        learn_s=round(warm_learn, 3),
        first_ask_s=round(float(seconds[0, 0]), 2),
        ask_ms=round(float(total), 2),
        ask_95_ms=round(float(np.quantile(warm[:, 0], 0.95)), 2),
        sqlite_ms=round(float(in_sqlite), 2),
        engine_ms=round(float(in_engine), 2),
        processor_ms=round(float(used), 2),
        rest_ms=round(float(np.median(warm[:, 0] - warm[:, 1] - warm[:, 2])), 2),
    )


def main():
    options = harness.arguments(__doc__).parse_args()
    num_tasks, num_trials, num_asks = (6, 20, 12) if options.quick else (50, 100, 100)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "file": run(os.path.join(folder, "memory.db"), num_tasks, num_trials, num_asks),
            "RAM": run(None, num_tasks, num_trials, num_asks),
        }
    names = list(runs["file"])
    result = dict(
        benchmark="ask_latency",
        machine=harness.describe_machine(),
        sizes=dict(parameters=3, past_tasks=num_tasks, trials=num_trials, asks=num_asks),
        **runs,
        tables=[
            dict(
                title=f"ask, after {num_tasks} tasks of {num_trials} trials (median of {num_asks} questions)",
                header=["memory", *names],
                rows=[[kind, *(harness.number(one[name]) for name in names)] for kind, one in runs.items()],
            )
        ],
        aims=[harness.aim("ask, warm, milliseconds", WANTED_MS, runs["file"]["ask_ms"], at_most=True)],
        notes="The memory in RAM runs second, with the programs that the first run compiled.",
        quick=options.quick,
    )
    harness.report(result, options.json)


if __name__ == "__main__":
    main()
