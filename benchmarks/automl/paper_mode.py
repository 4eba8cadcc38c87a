"""Why the paper's mode can be as bad as random search on many parameters, and what its guard changes.

    python -m benchmarks.automl.paper_mode --table FILE.npz [--table ...] [--orders 6]

Tasks are tuned one after another, as in the regime `own` of the benchmark, by GP-UCB on the kernel of each
agent. All agents but the first have the forced exploration of `Tuner(mode="paper")`.

| agent                       | kernel                                                                      |
|-----------------------------|-----------------------------------------------------------------------------|
| `full`                      | all base kernels; no forced exploration but that of a first task            |
| `full, explores`            | all base kernels                                                            |
| `exploration data`          | selected by likelihood from the rows of forced exploration                  |
| `all data`                  | selected by likelihood from all rows                                        |
| `guarded` (the mode)        | the same, full unless the data support less (`SelfTunedMetaKGL.guarded`)    |

Shown are the regret on the last half of the tasks, how many features the kernels have there, and how many of
the trials are forced exploration.
"""

import argparse
import os

os.environ.setdefault("NPROC", str(max(4, os.cpu_count() or 1)))  # a smaller pool can deadlock jax on CPU

import numpy as np

import jlibo
from benchmarks import harness
from benchmarks.automl import agents, regimes, tables
from benchmarks.automl.problem import Problem, random_regret, thin
from benchmarks.automl.study import MARKS, Study
from jlibo.tune.model import make_model


def make_learners(mode_learner: jlibo.SelfTunedMetaKGL, first_day: jlibo.FixedPrior):
    """Return the meta-learner of each agent."""
    schedule = mode_learner.exploration
    return {
        "full": first_day,
        "full, explores": jlibo.FixedPrior(exploration=schedule),
        "exploration data": jlibo.SelfTunedMetaKGL(data="exploration", guarded=False, exploration=schedule),
        "all data": jlibo.SelfTunedMetaKGL(data="all", guarded=False, exploration=schedule),
        "guarded": mode_learner,
    }


def play(problem: Problem, orders: np.ndarray, budget: int, seed: int):
    """Return the `LifelongResult` of each agent, with a leading axis of orders, and the groups' sizes."""
    model = make_model(problem.space, mode="paper")
    learners = make_learners(model.learner, agents.without_past(model))
    policy = agents.RandomTies(model.policy, model.policy.noise_std)
    results = agents.play_orders(problem, model, policy, learners, orders, budget=budget, seed=seed)
    return results, np.bincount(model.features.groups)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.automl.paper_mode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", action="append", required=True, metavar="FILE")
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--skip-tasks", type=int, default=24)
    parser.add_argument("--configs", type=int, default=250)
    parser.add_argument("--budget", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for path in options.table:
        whole = tables.read_npz(path)
        problem = thin(
            whole,
            num_tasks=options.tasks,
            skip_tasks=min(options.skip_tasks, whole.num_tasks // 2),
            num_configs=options.configs,
            seed=options.seed,
        )
        budget = min(options.budget, problem.num_configs)
        regime = regimes.draw_own(problem, options.orders, options.seed)
        results, sizes = play(problem, regime.tasks, budget, options.seed)
        study = Study(problem, regime, problem.name)
        study.add_expected("random", random_regret(problem, budget))
        rows = []
        for name, result in results.items():
            study.add_groups(name, np.asarray(result.actions))
        for name in study.names:
            mean, error = study.curve(name)
            shown = [f"{1e3 * mean[mark - 1]:.1f} ± {1e3 * error[mark - 1]:.1f}" for mark in study.marks]
            rows.append([name, *shown, *_kernel(results.get(name), regime.first, sizes)])
        header = ["", *map(str, (mark for mark in MARKS if mark <= budget)), "features", "explores"]
        dim = problem.space.num_parameters
        print(f"\n{problem.name}: {dim} parameters, {sum(sizes)} features, {problem.num_tasks} tasks:\n")
        print("\n".join(harness.markdown_table(header, rows)), flush=True)


def _kernel(result: jlibo.LifelongResult | None, first: int, sizes: np.ndarray) -> list[str]:
    """Return the mean number of features of the kernel and of forced steps, over the reported tasks."""
    if result is None:
        return ["", ""]
    # The support after a task is the kernel of the next one. The constant belongs to every kernel.
    support = np.asarray(result.support)[:, first - 1 : -1]
    support = np.where(np.asarray(result.fell_back)[:, first - 1 : -1, None], True, support)
    support[..., 0] = True
    return [f"{(support @ sizes).mean():.0f}", f"{np.asarray(result.num_explore)[:, first:].mean():.1f}"]


if __name__ == "__main__":
    main()
