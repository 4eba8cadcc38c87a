"""Number of trials that a tuning task needs after other tasks, for jlibo and its peers.

    python -m benchmarks.automl [--orders 20] [--peer-repeats 2] [--csv FILE --log NAME --minimise]

Tasks from a table of evaluations (by default the elastic net on 49 data sets) are tuned one after another, in
random orders, with 50 trials each and no configuration tried twice. `make automl` runs it.

| method                               | what it is                                                          |
|--------------------------------------|---------------------------------------------------------------------|
| `random`                             | random search; its expectation is exact                             |
| `gp-ucb`, `gp-ei`                    | jlibo's two policies on the full kernel, without past tasks         |
| `paper`, `adaptive`                  | jlibo's two modes, as in `Tuner`: they learn from each task         |
| `optuna-tpe`, `optuna-gp`, `botorch` | the peers, see `automl_peers`, without past tasks                   |

As a control, the same tasks are made unrelated: the parameters of each task are swapped and reversed at
random.

If several configurations have equal scores, one of them is drawn at random. Before its first reward an agent
without past tasks gives equal scores to all corners of the box, and the first row of the table happens to be
a corner that is good on most tasks. Ties broken by the order of the rows would favour such an agent.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))  # a smaller pool can deadlock jax on CPU

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import jlibo
from benchmarks import automl_peers, automl_report, harness
from benchmarks.automl_table import (
    Problem,
    draw_orders,
    draw_unrelated,
    make_problem,
    random_regret,
    thin,
)
from jlibo.tune import modes

PAIRS = {"paper": "gp-ucb", "adaptive": "gp-ei"}
"""Each mode, and the agent with the same policy that does not learn."""
PACKAGES = ("jlibo", "jax", "jaxlib", "numpy", "optuna", "botorch", "gpytorch", "torch")


class RandomTies(jlibo.AbstractPolicy):
    """Wraps a policy so that equal scores (up to round-off) are in a random order."""

    policy: jlibo.AbstractPolicy
    noise_std: Float[Array, ""]

    def scores(self, belief, *, key):
        policy_key, tie_key = jax.random.split(key)
        scores = self.policy.scores(belief, key=policy_key)
        return scores + 1e-5 * (1 + jnp.abs(scores)) * jax.random.uniform(tie_key, scores.shape, scores.dtype)


def play(
    mode: str,
    problem: Problem,
    orders: np.ndarray,
    *,
    budget: int,
    seed: int,
    points: np.ndarray | None = None,
    progress_fn=None,
) -> dict[str, np.ndarray]:
    """Run a mode and its agent without memory on all orders; return the runs [order, place, step] by agent.

    `points` are [order, task, g, dim] if the tasks of each order have points of their own.
    """
    features = problem.space.features()
    policy = modes.make_policy(mode)
    learners = {PAIRS[mode]: jlibo.FixedPrior(), mode: modes.make_learner(mode)}

    def run(order, key, own_points):
        env = jlibo.TableEnv(problem.values, problem.points if own_points is None else own_points)
        results = jlibo.run_agents(
            in_order(env, order),
            features,
            RandomTies(policy, policy.noise_std),
            learners,
            num_tasks=problem.num_tasks,
            horizon=min(budget, problem.values.shape[1]),
            scaling=modes.make_scaling(),
            repeats=False,
            progress_fn=progress_fn,
            key=key,
        )
        return {name: result.actions for name, result in results.items()}

    keys = jax.random.split(jax.random.key(seed), len(orders))
    runs = jax.jit(jax.vmap(run))(orders, keys, points)
    jax.effects_barrier()  # wait for the last progress callbacks
    return {name: np.asarray(actions) for name, actions in runs.items()}


def in_order(env: jlibo.TableEnv, order) -> jlibo.TableEnv:
    """Return the same tasks in the given order."""
    return eqx.tree_at(lambda env: env.order, env, order)


def play_modes(
    problem: Problem, orders: np.ndarray, *, budget: int, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float]]:
    """Run jlibo's four agents, two of them also on unrelated tasks; return both and the seconds of each."""
    unrelated = draw_unrelated(problem, len(orders), seed)
    parts = {"paper": ("paper", None), "adaptive": ("adaptive", None), "control": ("adaptive", unrelated)}
    words = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    runs, seconds = {}, {}
    with Progress(*words) as progress:
        for name, (mode, points) in parts.items():
            what = "unrelated tasks" if points is not None else f"{PAIRS[mode]} and {mode}"
            bar = progress.add_task(what, total=problem.num_tasks)

            def report(done, bar=bar):
                progress.update(bar, completed=int(done))

            start = time.perf_counter()
            runs[name] = play(
                mode, problem, orders, budget=budget, seed=seed, points=points, progress_fn=report
            )
            seconds[name] = time.perf_counter() - start
    return runs["paper"] | runs["adaptive"], runs["control"], seconds


def read_problem(arguments: argparse.Namespace) -> Problem:
    """Return the problem of the requested table."""
    if arguments.csv is None:
        name, table, metric = "glmnet", jlibo.load_table("glmnet"), arguments.metric or "auc"
    else:
        table = jlibo.read_csv(arguments.csv, metrics=arguments.metric, log=arguments.log)
        name, metric = Path(arguments.csv).stem, arguments.metric
    problem = make_problem(name, table, metric, maximise=not arguments.minimise)
    return thin(problem, num_tasks=arguments.tasks)


def choose_peers(arguments: argparse.Namespace) -> list[str]:
    """Return the peers that are installed; print those that are not."""
    chosen = []
    for peer in [] if arguments.without_peers else automl_peers.NEEDS:
        if automl_peers.available(peer):
            chosen.append(peer)
        else:
            needs = ", ".join(automl_peers.NEEDS[peer])
            print(f"{peer}: left out, because it needs {needs} (`make automl` has an environment with them)")
    return chosen


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.automl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--csv", metavar="FILE", help="another table: columns task, parameters..., metric")
    parser.add_argument("--log", nargs="+", default=[], metavar="NAME", help="its parameters on a log scale")
    parser.add_argument("--metric", help="the metric, where there are several")
    parser.add_argument("--minimise", action="store_true", help="less of the metric is better")
    parser.add_argument("--orders", type=int, default=20, help="random orders of the tasks (%(default)s)")
    parser.add_argument("--budget", type=int, default=50, help="trials a task (%(default)s)")
    parser.add_argument("--peer-repeats", type=int, default=2, help="runs a task and peer (%(default)s)")
    parser.add_argument("--tasks", type=int, help="use only the first TASKS tasks of the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes for the peers (%(default)s)")
    parser.add_argument("--without-peers", action="store_true", help="jlibo and random search alone")
    parser.add_argument("--peers-only", action="store_true", help="the peers and random search alone")
    parser.add_argument("--out", type=Path, default=Path("out/automl"), help="folder (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the JSON line to a file too")
    arguments = parser.parse_args(words)
    if arguments.csv is None and arguments.log:
        parser.error("--log goes with --csv")
    if arguments.without_peers and arguments.peers_only:
        parser.error("--without-peers and --peers-only leave nothing to run")
    return arguments


def main(words: list[str] | None = None) -> None:
    arguments = read_arguments(words)
    problem = read_problem(arguments)
    budget = min(arguments.budget, problem.values.shape[1])
    orders = draw_orders(problem, arguments.orders, arguments.seed)
    print(
        f"{problem.name}: {problem.num_tasks} tasks, {problem.values.shape[1]} configurations of "
        f"{', '.join(problem.space.names)}; {len(orders)} orders, {budget} trials a task"
    )

    study = automl_report.Study(problem, orders)
    study.add_expected("random", random_regret(problem, budget))
    seconds = {}
    control = None
    if not arguments.peers_only:
        runs, unrelated, seconds = play_modes(problem, orders, budget=budget, seed=arguments.seed)
        for name, run in runs.items():
            study.add_orders(name, run)
        control = automl_report.Study(problem, orders)
        for name, run in unrelated.items():
            control.add_orders(name, run)
    peers = automl_peers.run_peers(
        choose_peers(arguments),
        problem,
        folder=arguments.out,
        budget=budget,
        repeats=arguments.peer_repeats,
        seed=arguments.seed,
        workers=arguments.workers,
    )
    for name, runs in peers.items():
        study.add_repeats(name, runs.actions[:, : runs.repeats])
        seconds[name] = float(runs.seconds[:, : runs.repeats].mean())

    machine = harness.describe_machine(PACKAGES)
    automl_report.show(study, control, seconds, machine, arguments.out)
    result = dict(
        benchmark="automl",
        table=dict(name=problem.name, digest=problem.digest(), tasks=problem.num_tasks),
        orders=len(orders),
        budget=budget,
        peer_repeats=arguments.peer_repeats,
        seed=arguments.seed,
        **automl_report.summarise(study, control),
        seconds=seconds,
        machine=machine,
    )
    harness.emit(result, arguments.json)


if __name__ == "__main__":
    main()
