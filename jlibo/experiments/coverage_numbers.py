"""Numbers of `theory-coverage`: how often f leaves the confidence bands of each agent.

| band                      | paper                                                                         |
|---------------------------|-------------------------------------------------------------------------------|
| ellipsoid, the policy's   | the width of OFUL, proved for every lambda_ucb                                |
| kernel, 1 + 2 / n         | nu_i of Chowdhury & Gopalan with the lambda_ucb for which it is proved        |
| kernel, the policy's      | the same nu_i with the lambda_ucb of the paper's experiments, 0.1             |

The tasks are those of the experiment's seeds, played again with each lambda_ucb.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jlibo import theory
from jlibo.lifelong import metrics
from jlibo.policies import GPUCB

DELTA = 0.1
"""Probability that a band may fail."""


def coverage(result: Any) -> dict[str, Any]:
    """Return, for each band and agent, the share of tasks in which f leaves it, and that share by task."""
    experiment = result.experiment
    settings = experiment.settings()
    proved = (1 + 2 / settings["horizon"]) ** 0.5
    bands = [
        ("ellipsoid", settings["regulariser"]),
        ("kernel", proved),
        ("kernel", settings["regulariser"]),
    ]
    seeds = result.first_seed + np.arange(result.num_seeds)
    found = []
    for width, regulariser in bands:
        ratios = _ratios(experiment, width, regulariser, seeds)
        left = {name: np.asarray(one) > 1 for name, one in ratios.items()}
        found.append(
            {
                "width": width,
                "regulariser": regulariser,
                # Tasks of a seed share what was learned, so seeds are the independent units.
                "left": {name: _mean_and_error(one.mean(1)) for name, one in left.items()},
                "left_by_task": {name: one.mean(0).tolist() for name, one in left.items()},
                "median_ratio": {name: float(np.median(one)) for name, one in ratios.items()},
            }
        )
    return {"delta": DELTA, "tasks": list(range(1, settings["num_tasks"] + 1)), "bands": found}


def _ratios(experiment: Any, width: Any, regulariser: float, seeds: np.ndarray) -> dict[str, np.ndarray]:
    """Return the largest distance of f from the mean in each task, in half widths, `[seeds, tasks]`."""
    settings = experiment.settings()

    @eqx.filter_jit
    def of_seeds(seeds, regulariser):
        def one(seed):
            world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), seed))
            return theory.measure_coverage(
                world.env,
                world.features,
                GPUCB(settings["nu"], regulariser),
                world.learners,
                coef_norm=settings["norm_bound"],
                delta=DELTA,
                width=width,
                num_tasks=settings["num_tasks"],
                horizon=settings["horizon"],
                key=world.key,
            )

        return jax.vmap(one)(seeds)

    found = of_seeds(jnp.asarray(seeds), jnp.asarray(regulariser))
    return {name: np.asarray(one.ratio) for name, one in found.items()}


def _mean_and_error(values: np.ndarray) -> dict[str, float]:
    mean, error = metrics.mean_and_standard_error(values.astype(float))
    return {"mean": float(mean), "se": float(error)}
