"""The summary of an experiment's result: means and standard errors over seeds."""

from typing import Any

import numpy as np

from jlibo.experiments.runner import ExperimentResult
from jlibo.front_door import front_door
from jlibo.lifelong import metrics
from jlibo.lifelong.offline import OfflineResult
from jlibo.solver.solution import Status, count_statuses

SIMPLE_REGRET_STEPS = (1, 3, 5, 10, 20, 50, 100)
"""Steps at which a summary has the simple regret."""


@front_door
def summarise(result: ExperimentResult) -> dict[str, Any]:
    """Return what `summary.json` holds.

    Of each agent, `statuses` counts how its tasks ended, by `Status.label`. `unconverged_solves` counts the
    solves among them that did not converge; tasks whose values or rewards were not finite are no solves.
    `analysis` has the numbers of the experiment's own analysis, if it has one.
    """
    agents = {}
    for name, run in result.results.items():
        sizes = metrics.support_size(run)
        statuses = count_statuses(run.status)
        agents[name] = {
            "support_size": np.mean(sizes, 0).tolist(),
            "statuses": {status.label: count for status, count in statuses.items()},
            "unconverged_solves": sum(
                count
                for status, count in statuses.items()
                if status.is_of_solve and status != Status.CONVERGED
            ),
            "empty_selections": int(np.asarray(run.fell_back).sum()),
        }
        if result.true_support is not None:
            found = metrics.recovery(run, result.true_support)
            agents[name]["recovery_rate"] = np.mean(found, 0).tolist()
        if isinstance(run, OfflineResult):
            mean, error = metrics.mean_and_standard_error(run.regret.sum(-1).astype(np.float64))
            agents[name]["regret"] = {"mean": np.asarray(mean).tolist(), "se": np.asarray(error).tolist()}
        else:
            total = run.regret.astype(np.float64).sum((1, 2))
            mean, error = metrics.mean_and_standard_error(total)
            agents[name]["lifelong_regret"] = {"mean": float(mean), "se": float(error)}
            agents[name]["task_regret"] = run.regret.sum(-1).mean(0).tolist()
            agents[name]["simple_regret"] = _simple_regret(np.asarray(run.regret))
    analysis = result.experiment.analysis
    return {
        "experiment": result.experiment.name,
        "settings": result.experiment.settings(),
        "seeds": result.num_seeds,
        "first_seed": result.first_seed,
        "agents": agents,
        **({} if analysis is None else {"analysis": analysis.numbers(result)}),
        "timing": dict(result.timing),
    }


def _simple_regret(regret: np.ndarray) -> dict[str, dict]:
    """Regret of the best action so far after some steps, over all tasks and over the last half of them."""
    best = np.minimum.accumulate(regret.astype(np.float64), -1)
    horizon, num_tasks = best.shape[-1], best.shape[1]
    answer = {}
    for name, tasks in (("all_tasks", best), ("last_half", best[:, num_tasks // 2 :])):
        answer[name] = {}
        for step in sorted({*(step for step in SIMPLE_REGRET_STEPS if step < horizon), horizon}):
            mean, error = metrics.mean_and_standard_error(tasks[..., step - 1].mean(1))
            answer[name][str(step)] = {"mean": float(mean), "se": float(error)}
    return answer
