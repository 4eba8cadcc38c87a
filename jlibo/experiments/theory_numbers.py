"""Numbers of the theory experiments: measurements beside the bounds of `jlibo.theory`.

| here           | what it returns                                                                        |
|----------------|----------------------------------------------------------------------------------------|
| `recovery`     | recovery rates by rows and tasks; bounds of Theorem 3.3, worst case and own design      |
| `regret`       | cumulative regret, its parts, exponents in m and n, and the terms of Theorem 4.1        |
| `exploration`  | regret against the amount of forced exploration                                         |
| `kernels`      | tasks until recovery against the number of base kernels                                 |

Each is a function of an `ExperimentResult` that returns plain lists and numbers, for `summary.json`.
"""

import math
from typing import Any

import jax
import numpy as np

from jlibo import theory
from jlibo.experiments.recovery import exploration_rows
from jlibo.lifelong import metrics
from jlibo.meta.exploration import DecreasingExploration

MAX_DESIGNS = 3
"""Number of seeds whose designs are drawn again for the bounds that depend on the design."""
DELTA = 0.1
"""Probability that a bound of `regret` fails."""


def recovery(result: Any) -> dict[str, Any]:
    """Return measured recovery by rows and tasks, and both bounds."""
    experiment = result.experiment
    settings = experiment.settings()
    rows = [settings[f"rows_{number}"] for number in range(1, len(result.results) + 1)]
    num_tasks, size = settings["num_tasks"], settings["support_size"]
    features = experiment.features.make()
    mean_square = float(theory.map_moments(features)[0])
    limit = float(theory.population_kappa(mean_square, size))
    assumed = dict(beta_min=settings["beta_min"], omega=settings["omega"], noise_std=settings["noise_std"])
    tasks = np.arange(1, num_tasks + 1)
    worst = theory.recovery_probability(
        np.asarray(rows, float)[:, None],
        tasks[None].astype(float),
        features.num_groups,
        kappa=limit,
        **assumed,
    )
    brackets, own, proved = [], [], []
    designs = [_own_design(experiment, result.first_seed + place) for place in _designs(result)]
    for count in rows:
        found = [_own_bounds(design[:, :count], key, size, limit, assumed) for design, key in designs]
        kappas, at_limit, at_lower = zip(*found, strict=True)
        brackets.append(np.mean(kappas, 0).tolist())
        own.append(float(np.mean(at_limit)))
        proved.append(float(np.mean(at_lower)))
    return {
        "rows": rows,
        "tasks": tasks.tolist(),
        "measured": [np.mean(_recovered(run, result), 0).tolist() for run in result.results.values()],
        "worst_case": np.asarray(worst).tolist(),
        "own_design": own,
        "own_design_proved": proved,
        "kappa": brackets,
        "kappa_limit": limit,
        "least_rows": float(theory.least_rows(kappa=limit, **assumed)),
        "lam_of_the_theorem": [
            float(theory.theorem_lam(m, kappa=limit, beta_min=assumed["beta_min"], omega=assumed["omega"]))
            for m in tasks
        ],
    }


def _designs(result: Any) -> range:
    return range(min(result.num_seeds, MAX_DESIGNS))


def _own_design(experiment: Any, seed: int) -> tuple[Any, Any]:
    """Return all rows that are drawn in the world of a seed, and the seed's key."""
    key = jax.random.fold_in(jax.random.key(0), seed)
    world = experiment.make_world(key=key)
    settings = experiment.settings()
    # The draws depend on the largest number of rows; an agent sees the first of them.
    num_tasks, num_rows = settings["num_tasks"], settings["offline_rows"]
    return exploration_rows(world.env, world.features, num_tasks, num_rows, world.key), key


def _own_bounds(design: Any, key: Any, support_size: int, limit: float, assumed: dict) -> tuple:
    """Return kappa's bracket for a design, and the bound at the limit and at the bracket's lower end."""
    bracket = theory.kappa_bracket(design, support_size, num_starts=8, num_rounds=4, num_steps=60, key=key)
    at_limit = theory.design_recovery_probability(design, kappa=limit, **assumed)
    at_lower = theory.design_recovery_probability(design, kappa=bracket.lower, **assumed)
    return (float(bracket.lower), float(bracket.upper)), float(at_limit), float(at_lower)


def regret(result: Any) -> dict[str, Any]:
    """Return cumulative regret, its parts, fitted exponents, and the terms of the bound."""
    settings = result.experiment.settings()
    num_tasks, horizon, size = settings["num_tasks"], settings["horizon"], settings["support_size"]
    by_task = {name: np.asarray(metrics.task_regret(run), float) for name, run in result.results.items()}
    cumulative = {name: values.cumsum(1) for name, values in by_task.items()}
    oracle, libo = result.results["oracle"], result.results["libo"]
    excess = cumulative["libo"] - cumulative["oracle"]
    forced = np.asarray(metrics.exploration_regret(libo)[0], float)
    # The kernel of task s is the one selected after task s - 1; the first task has none.
    right = np.concatenate([np.zeros((result.num_seeds, 1), bool), _recovered(libo, result)[:, :-1]], axis=1)
    by_task_excess = by_task["libo"] - by_task["oracle"]
    steps = np.asarray(oracle.regret, float).mean((0, 1)).cumsum()
    within = np.asarray(libo.regret, float)[:, num_tasks // 2 :].mean((0, 1)).cumsum()
    features = result.experiment.features.make()
    kappa = float(theory.population_kappa(theory.map_moments(features)[0], size))
    norm = float(theory.kernel_norm(settings["norm_bound"], size))
    one_task = theory.gp_ucb_regret(
        horizon,
        size,
        norm_bound=norm,
        noise_std=settings["noise_std"],
        delta=DELTA / 2,
        num_tasks=num_tasks,
    )
    bound = theory.lifelong_regret_bound(
        DecreasingExploration(settings["explore_scale"]).counts(num_tasks, horizon).astype(float),
        horizon,
        features.num_groups,
        beta_min=settings["beta_min"],
        omega=settings["omega"],
        kappa=kappa,
        noise_std=settings["noise_std"],
        norm_bound=norm,
        delta=DELTA,
        task_regret=one_task,
        method="sum",
    )
    return {
        "tasks": list(range(1, num_tasks + 1)),
        "cumulative": {name: _mean_and_error(values) for name, values in cumulative.items()},
        "excess": _mean_and_error(excess),
        "split": {
            # The last two add up to the excess over the oracle; exploration is a part of both.
            "exploration steps": float(forced.sum(1).mean()),
            "excess with wrong kernels": float((by_task_excess * ~right).sum(1).mean()),
            "excess with right kernels": float((by_task_excess * right).sum(1).mean()),
        },
        "exponents": {
            "excess in tasks": _exponent(excess.mean(0)),
            "exploration in tasks": _exponent(forced.cumsum(1).mean(0)),
            "oracle in steps": _exponent(steps),
            "libo in steps": _exponent(within),
            "theorem in tasks": 0.75,
            "theorem in steps": 0.5,
        },
        "bound": {
            **bound.as_dict(),
            "wrong_tasks": int(bound.wrong_tasks),
            "reached": bool(bound.reached),
        },
    }


def exploration(result: Any) -> dict[str, Any]:
    """Return regret and recovery for each amount of forced exploration."""
    settings = result.experiment.settings()
    # Agents are named by their default; the setting is what was run.
    scales = [settings[f"explore_scale_{name.removeprefix('x ')}"] for name in result.results]
    totals = [np.asarray(run.regret, float).sum((1, 2)) for run in result.results.values()]
    last = [np.asarray(run.regret, float).sum(-1)[:, -5:].mean(1) for run in result.results.values()]
    none = scales.index(0.0) if 0.0 in scales else None
    return {
        "scale": scales,
        "regret": [_mean_and_error(one) for one in totals],
        "last_tasks": [_mean_and_error(one) for one in last],
        "recovery": [float(_recovered(run, result)[:, -1].mean()) for run in result.results.values()],
        "steps": [float(np.asarray(run.num_explore).sum(-1).mean()) for run in result.results.values()],
        # Seeds share their tasks, so differences are paired.
        "gain_over_none": None if none is None else [_mean_and_error(totals[none] - one) for one in totals],
    }


def kernels(result: Any) -> dict[str, Any]:
    """Return the tasks until recovery for each number of base kernels, and its fit against log p."""
    settings = result.experiment.settings()
    counts = [settings[f"kernels_{number}"] for number in range(1, len(result.results) + 1)]
    recovered = [_recovered(run, result) for run in result.results.values()]
    until = [np.asarray([_stays_right(row) for row in runs], float) for runs in recovered]
    means = np.asarray([one.mean() for one in until])
    logs = np.log(np.asarray(counts, float))
    slope, start = np.polyfit(logs, means, 1) if len(counts) > 1 else (math.nan, math.nan)
    power = np.polyfit(logs, np.log(means), 1)[0] if len(counts) > 1 else math.nan
    return {
        "kernels": counts,
        "tasks": list(range(1, settings["num_tasks"] + 1)),
        "recovery": [runs.mean(0).tolist() for runs in recovered],
        "tasks_until": [_mean_and_error(one) for one in until],
        "never": [float((~runs[:, -1]).mean()) for runs in recovered],
        "per_log_p": float(slope),
        "at_p_1": float(start),
        "power_of_p": float(power),
    }


def _recovered(run: Any, result: Any) -> np.ndarray:
    return np.asarray(metrics.recovery(run, result.true_support))


def _stays_right(right: np.ndarray) -> int:
    """Return the first task from which on every selection is right; one more than there are if none is."""
    wrong = np.flatnonzero(~right)
    return 1 if wrong.size == 0 else int(wrong[-1]) + 2


def _mean_and_error(values: np.ndarray) -> dict[str, Any]:
    mean, error = metrics.mean_and_standard_error(np.asarray(values, float))
    return {"mean": np.asarray(mean).tolist(), "se": np.asarray(error).tolist()}


def _exponent(curve: np.ndarray) -> float:
    """Return the slope of log(curve) against log(place) over the last half; NaN if not positive."""
    places = np.arange(1, len(curve) + 1)
    half = slice(len(curve) // 2, None)
    if len(curve) < 4 or not (curve[half] > 0).all():
        return math.nan
    return float(np.polyfit(np.log(places[half]), np.log(curve[half]), 1)[0])
