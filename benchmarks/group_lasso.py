"""Time of the group-lasso solver, celer, skglm and adelie, in one run and at the same duality gap.

    python benchmarks/group_lasso.py [--quick] [--json FILE]

Every solver reaches a duality gap of at most 1e-6 * (1/N) ||y||^2 in float64, by the reference's formula or
by its own certificate, whichever is smaller. The following is done for the peers outside of the timing: the
choice of the fastest representation and of the loosest tolerance that reaches the gap, building the matrix,
and compilation. adelie runs in a separate interpreter, named by JLIBO_PEERS_PYTHON; if it is missing, this is
reported and the benchmark runs without it. The headline is at lambda_max / 10.

"celer core" is celer's compiled solver called below its public function, with its set-up (the norms of the
groups) not timed. Users of celer do not get this time, so it is listed beside the peers with a separate
ratio.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import harness
import numpy as np
from group_lasso_peers import CORE, GOAL, certified_gap, choose, draw_problem, start_adelie, tune

NOTES = """\
All solvers reach the same relative duality gap, 1e-6, in float64. Peers get their best representation
(dense or sparse), tolerance, and one or two threads; "celer core" is its private solver called with all
set-up done beforehand, and is not counted among the peers. jlibo is called without asynchronous dispatch,
as in `gp_step.py`: with it, every call waits for a thread to wake up, a tenth to a third of a
millisecond.

Where the time goes, by a trace of the kernels: a step on the working set of 16 features is one product
with the Gram matrices of the tasks (two with the rows, if there are fewer rows than features) and about
seven kernels of 0.2 to 0.5 microseconds each. (100,50,500) reads its design at least twice, 0.3 to 0.45
ms each, gathers the set in 0.17 ms and computes its Gram matrices in 0.1 ms; its steps are less than a
fifth of the whole. A call after a pause, as here, takes up to twice as long as one in a tight loop: the
program's several hundred kernels run once or twice each and come from memory. A batch runs one problem
after another on one core, some 0.3 ms each, of which two thirds are steps.

Newton's method finishes ill-conditioned problems of many tasks as well as of one. Before, it stopped at a
relative gap of 1e-5 in float32: the inverses of the ridge matrices are not accurate enough without a step
of iterative refinement. It worked on all features, where an inverse costs nine times as much as on the 24
to which gradients have reduced 50, and computed a duality gap from the data at every step, which follows
from the sizes of the groups alone. And it changed a size by the factor exp(p); with 1 + p it follows the
straight valleys of nearly collinear columns. `benchmarks/ill_conditioned.py` has random problems. The
headline problems are well-conditioned: 40 to 110 gradient steps of 2 to 5 microseconds, as much as two to
five Newton steps, so gradients finish those. The numbers of features of the sets (16 to 128), of gradient
steps before Newton steps (40 to 300), the damping (ten) and the form of a step (seven) were chosen on the
problems of the experiments, and the form and the damping on the random ones too.

Tried without benefit: Anderson acceleration instead of momentum (70 steps instead of 100 for (30,10,50),
45 instead of 60 for (50,20,200), each with a small system to solve; more steps at lambda_max/20). A test
of the momentum every five or ten steps (a fifth to a half more steps; every second step costs none).
First working sets of 24 features instead of 16 (twice the time of (100,50,500)). Newton's method on sets
that many tasks share with gradient steps (crowded sets leave it too early). Projected Newton steps in the
norms themselves, without logarithms, converge in fewer steps near the solution and in more from afar;
with one task they get stuck. Elimination by blocks of four or eight: slower up to 32 features. Newton
steps without damping: with more features than rows they follow round-off in flat directions. Gram
matrices with fewer rows than features: computing them costs as much as they save in tens of steps.
Batching lanes into wider kernels, and the two halves of a batch in two loops, which do not run in
parallel: XLA runs loops one after another, so a batch uses one core."""

AIMS = {(50, 20, 200): 5, (100, 50, 500): 10}
"""Wanted speed-up over the best peer, at the headline's lambda; for the batch it is BATCH_AIM."""
BATCH_AIM = 20

SIZES = [(30, 10, 50, 5), (50, 20, 200, 8), (100, 50, 500, 10)]  # tasks, rows, features, active features
DIVISORS = [10, 20, 100]
HEADLINE = 10
BATCH = 256
PRECISE, PRECISE_AIM = 1e-10, 1.5
"""A high accuracy, and the aim: at most this multiple of the time at the ordinary one."""
PATH = 50
"""Number of lams of the path, down to lambda_max / 100."""


# ------------------------------------------------------------------------------------------------------ jlibo


class Ours(NamedTuple):
    """jlibo's solver, compiled for one shape."""

    compile_seconds: float
    answer: object
    run: object


def compile_ours(design, targets, lam, batched, tol=GOAL):
    """Compile, solve once, and return a contender; arrays are on the device before timing starts.

    An array of lams is solved as a path.
    """
    import jax

    from jlibo.solver.group_lasso import group_lasso, group_lasso_path

    def solve(design, targets, lam):
        return (group_lasso_path if np.ndim(lam) else group_lasso)(design, targets, lam, tol=tol)

    arrays = jax.device_put((design, targets, np.asarray(lam)))
    function = jax.jit(jax.vmap(solve) if batched else solve)
    start = time.perf_counter()
    compiled = function.lower(*arrays).compile()
    seconds = time.perf_counter() - start
    answer = jax.block_until_ready(compiled(*arrays))
    return Ours(seconds, answer, harness.timed(lambda: jax.block_until_ready(compiled(*arrays))))


# ------------------------------------------------------------------------------------------------------- runs


def bench_one(index, problem, adelie, repeats, ours):
    """Time all solvers on one problem at the same gap."""
    choices = {name: choose(name, problem) for name in ("celer", CORE, "skglm")}
    if adelie:
        choices["adelie"] = adelie.choose(index)
    left_out = [name for name, choice in choices.items() if choice is None]
    choices = {name: choice for name, choice in choices.items() if choice is not None}
    contenders = {name: choice.run for name, choice in choices.items()}
    record = dict(
        zip(("tasks", "rows", "features"), problem.design.shape, strict=True), divisor=problem.divisor
    )
    if ours:
        mine = compile_ours(problem.design, problem.targets, problem.lam, batched=False)
        contenders["jlibo"] = mine.run
    timings = harness.interleaved(contenders, repeats, budget=6.0)
    if ours:
        record["jlibo"] = dict(
            seconds=timings["jlibo"].median,
            lowest=timings["jlibo"].lowest,
            compile_seconds=mine.compile_seconds,
            gap=certified_gap(problem, mine.answer.coef, mine.answer.gap),
            num_steps=int(mine.answer.num_steps),
        )
    record["peers"] = {
        name: dict(
            seconds=timings[name].median,
            lowest=timings[name].lowest,
            gap=choice.gap,
            tol=choice.tol,
            representation=choice.representation,
        )
        for name, choice in choices.items()
    }
    record["left_out"] = left_out
    return with_ratio(record), choices


def bench_batch(problems, first_index, adelie, likes, repeats, loop, ours):
    """Time a batch of problems under one `vmap`, and a loop over the problems for each peer in `likes`.

    `likes` holds the choices for problem 0, whose representation the peers keep; the loosest tolerance is
    chosen for each problem. The time of a loop over fewer problems than the batch has is scaled up, which is
    recorded in the result.
    """
    looped = problems[:loop]
    scale = len(problems) / len(looped)
    record = dict(
        zip(("tasks", "rows", "features"), problems[0].design.shape, strict=True),
        divisor=problems[0].divisor,
        batch=len(problems),
        looped=len(looped),
        peers={},
    )
    contenders = {}
    for name, like in likes.items():
        if name == "adelie":
            choices = [adelie.tune(first_index + index, like=0) for index in range(len(looped))]
        else:
            choices = [tune(name, problem, like) for problem in looped]
        if None in choices:
            print(f"{name}: left out of the batch, {choices.count(None)} problems miss the gap")
            continue
        contenders[name] = lambda choices=choices: scale * sum(choice.run() for choice in choices)
        record["peers"][name] = dict(
            gap=max(choice.gap for choice in choices),
            tol=min(choice.tol for choice in choices),
            representation=like.representation,
        )
    if ours:
        stacked = [np.stack(arrays) for arrays in zip(*(problem[:3] for problem in problems), strict=True)]
        mine = compile_ours(*stacked, batched=True)
        contenders["jlibo"] = mine.run
        steps = np.asarray(mine.answer.num_steps)
        answers = zip(problems, np.asarray(mine.answer.coef), np.asarray(mine.answer.gap), strict=True)
        record["jlibo"] = dict(
            compile_seconds=mine.compile_seconds,
            gap=max(certified_gap(*answer) for answer in answers),
            num_steps=[int(steps.min()), int(np.median(steps)), int(steps.max())],
        )
    for name, timing in harness.interleaved(contenders, repeats, budget=30.0).items():
        entry = record["jlibo"] if name == "jlibo" else record["peers"][name]
        entry.update(seconds=timing.median, lowest=timing.lowest)
    return with_ratio(record)


def bench_ours(problems, repeats):
    """Time our solver at the headline's lambda at both accuracies, and on a path of lams, side by side."""
    records = []
    for problem in problems:
        lams = np.geomspace(problem.lam * problem.divisor, problem.lam * problem.divisor / 100, PATH)
        runs = {
            "usual": compile_ours(problem.design, problem.targets, problem.lam, batched=False),
            "precise": compile_ours(problem.design, problem.targets, problem.lam, batched=False, tol=PRECISE),
            "path": compile_ours(problem.design, problem.targets, lams, batched=False),
        }
        timings = harness.interleaved({name: run.run for name, run in runs.items()}, repeats, budget=6.0)
        record = dict(zip(("tasks", "rows", "features"), problem.design.shape, strict=True))
        for name, run in runs.items():
            status, steps = np.asarray(run.answer.status), np.asarray(run.answer.num_steps)
            record[name] = dict(
                seconds=timings[name].median, num_steps=int(steps.sum()), converged=bool((status == 0).all())
            )
        records.append(record)
    return records


def ours_row(record):
    """Return a row of the table of our solver alone."""
    size = f"({record['tasks']},{record['rows']},{record['features']})"
    usual, precise, path = (record[name] for name in ("usual", "precise", "path"))
    return [
        size,
        *(f"{1e3 * entry['seconds']:.2f}" for entry in (usual, precise, path)),
        f"{precise['seconds'] / usual['seconds']:.2f}",
        f"{1e3 * path['seconds'] / PATH:.2f}",
        ", ".join(str(entry["num_steps"]) for entry in (usual, precise, path)),
    ]


def with_ratio(record):
    """Add the best peer and the speed-up of jlibo to the record."""
    seconds = {name: entry["seconds"] for name, entry in record["peers"].items()}
    public = [name for name in seconds if name != CORE]
    record["best_peer"] = min(public, key=seconds.get)
    if "jlibo" in record:
        record["ratio"] = seconds[record["best_peer"]] / record["jlibo"]["seconds"]
        if CORE in seconds:
            record["ratio_celer_core"] = seconds[CORE] / record["jlibo"]["seconds"]
    return record


def table_rows(record):
    """Return a table with one row per solver."""
    size = f"({record['tasks']},{record['rows']},{record['features']})"
    size += f" x {record['batch']}" if "batch" in record else ""
    rows = []
    for name, entry in [("jlibo", record.get("jlibo")), *record["peers"].items()]:
        if entry is None:
            continue
        note = f"{entry['representation']}, tol {entry['tol']:.0e}" if "tol" in entry else ""
        if "batch" in record and name != "jlibo" and record["looped"] != record["batch"]:
            note += f"; {record['looped']} timed and scaled"
        if name == "jlibo":
            note = f"{entry['num_steps']} steps, compiled in {entry['compile_seconds']:.2f} s"
        faster = f"{entry['seconds'] / record['jlibo']['seconds']:.2f}x" if "jlibo" in record else ""
        milliseconds = f"{1e3 * entry['seconds']:.2f}"
        rows.append([size, f"/{record['divisor']}", name, milliseconds, faster, f"{entry['gap']:.1e}", note])
    return rows


def aims(records, batched, has_adelie):
    """Return the aims: the speed-up over the best peer, at the headline's lambda.

    adelie is the fastest peer; if it is not installed, the aim is not measured.
    """

    def one(words, wanted, record):
        words += f" ({record['best_peer']})" if has_adelie else " (not measured: adelie is not installed)"
        return harness.aim(words, wanted, record["ratio"] if has_adelie else None)

    found = []
    for record in records:
        size = (record["tasks"], record["rows"], record["features"])
        if record["divisor"] == HEADLINE and size in AIMS:
            found.append(one(f"{size}, times the best peer", AIMS[size], record))
    words = f"{batched['batch']} problems at once, times a loop over the best peer"
    return [*found, one(words, BATCH_AIM, batched)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="the two smaller sizes, few repeats, a loop over 32"
    )
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    parser.add_argument("--peers-only", action="store_true", help="time the peers alone")
    arguments = parser.parse_args()
    ours = not arguments.peers_only
    if ours:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    warnings.filterwarnings("ignore", module="celer|sklearn|skglm|numba")

    sizes = SIZES[:2] if arguments.quick else SIZES
    repeats, loop = (7, 32) if arguments.quick else (31, BATCH)
    rng = np.random.default_rng(0)
    singles = [draw_problem(rng, *size, divisor) for size in sizes for divisor in DIVISORS]
    batch = [draw_problem(rng, *SIZES[0], HEADLINE) for _ in range(BATCH)]
    adelie = start_adelie(singles + batch)

    records, choices = [], []
    for index, problem in enumerate(singles):
        record, chosen = bench_one(index, problem, adelie, repeats, ours)
        records.append(record)
        choices.append(chosen)
        print(f"done: {problem.design.shape}, lambda_max / {problem.divisor}", flush=True)
    likes = {name: choices[0][name] for name in (records[0]["best_peer"], CORE) if name in choices[0]}
    batched = bench_batch(batch, len(singles), adelie, likes, min(repeats, 7), loop, ours)

    for record in records:
        if record["left_out"]:
            size = (record["tasks"], record["rows"], record["features"])
            print(
                f"{size}: no run of {', '.join(record['left_out'])} (dense matrix too large, or gap missed)"
            )
    table = dict(
        title=f"Median milliseconds at a relative duality gap of {GOAL:g}; headline: lambda_max/{HEADLINE}",
        header=["(tasks, rows, features)", "lam", "solver", "ms", "vs jlibo", "gap", "how"],
        rows=[row for record in [*records, batched] for row in table_rows(record)],
    )
    tables, goals = [table], []
    if ours:
        headline = [problem for problem in singles if problem.divisor == HEADLINE]
        alone = bench_ours(headline, repeats)
        tables.append(
            dict(
                title=f"jlibo: milliseconds at two accuracies, and for {PATH} lams down to lambda_max/100",
                header=["size", f"{GOAL:g}", f"{PRECISE:g}", "path", "ratio", "a lam of the path", "steps"],
                rows=[ours_row(record) for record in alone],
            )
        )
        goals = aims(records, batched, adelie is not None)
        goals += [
            harness.aim(
                f"{(record['tasks'], record['rows'], record['features'])}, time at {PRECISE:g} over {GOAL:g}",
                PRECISE_AIM,
                record["precise"]["seconds"] / record["usual"]["seconds"],
                at_most=True,
            )
            for record in alone
        ]
    result = dict(
        benchmark="group_lasso",
        goal=GOAL,
        headline=f"lambda_max/{HEADLINE}",
        machine=harness.describe_machine(("jax", "jaxlib", "numpy", "celer", "skglm", "numba")),
        adelie=adelie.versions if adelie else None,
        peers=[adelie.versions] if adelie else [],
        quick=arguments.quick,
        problems=records,
        batch=batched,
        tables=tables,
        aims=goals,
        notes=NOTES,
    )
    harness.report(result, arguments.json)
    if adelie:
        adelie.close()


if __name__ == "__main__":
    main()
