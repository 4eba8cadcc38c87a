"""Numbers of `theory-coverage`: how often f leaves the confidence bands of each agent.

| band                      | paper                                                                         |
|---------------------------|-------------------------------------------------------------------------------|
| ellipsoid, the policy's   | the width of OFUL, proved for every lambda_ucb                                |
| kernel, 1 + 2 / n         | nu_i of Chowdhury & Gopalan with the lambda_ucb for which it is proved        |
| kernel, the policy's      | the same nu_i with the lambda_ucb of the paper's experiments, 0.1             |

The tasks are those of the experiment's seeds, played again with each lambda_ucb.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jlibo.lifelong import metrics
from jlibo.policies import GPUCB
from jlibo.theory.coverage import Width, measure_bands

DELTA = 0.1
"""Probability that a band may fail."""


def coverage(result: Any) -> dict[str, Any]:
    """Return, for each band and agent, the share of tasks in which f leaves it, and that share by task."""
    experiment = result.experiment
    settings = experiment.settings()
    own, proved = settings["regulariser"], (1 + 2 / settings["horizon"]) ** 0.5
    seeds = result.first_seed + np.arange(result.num_seeds)
    ratios = _ratios(experiment, np.asarray([own, proved]), seeds)

    def band(width: Width, place: int) -> dict[str, Any]:
        # In the order of the experiment's agents: jax sorts the keys of dictionaries.
        each = {name: np.asarray(ratios[name][width].ratio)[place] for name in result.results}
        left = {name: one > 1 for name, one in each.items()}
        return {
            "width": width,
            "regulariser": (own, proved)[place],
            # Tasks of a seed share what was learned, so seeds are the independent units.
            "left": {name: mean_and_error(one.mean(1)) for name, one in left.items()},
            "left_by_task": {name: one.mean(0).tolist() for name, one in left.items()},
            "median_ratio": {name: float(np.median(one)) for name, one in each.items()},
        }

    bands = [band("ellipsoid", 0), band("kernel", 1), band("kernel", 0)]
    return {"delta": DELTA, "tasks": list(range(1, settings["num_tasks"] + 1)), "bands": bands}


def _ratios(experiment: Any, regularisers: np.ndarray, seeds: np.ndarray) -> dict[str, dict[Width, Any]]:
    """Return a `Coverage` for each agent and width, with the axes `[regularisers, seeds, tasks]`."""
    settings = experiment.settings()

    def one(regulariser, seed):
        world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), seed))
        return measure_bands(
            world.env,
            world.features,
            GPUCB(settings["nu"], regulariser),
            world.learners,
            coef_norm=settings["norm_bound"],
            delta=DELTA,
            widths=("ellipsoid", "kernel"),
            num_tasks=settings["num_tasks"],
            horizon=settings["horizon"],
            key=world.key,
        )

    of_seeds = jax.vmap(one, in_axes=(None, 0))
    # One regulariser after another, in one program.
    return jax.jit(lambda these: jax.lax.map(lambda r: of_seeds(r, jnp.asarray(seeds)), these))(
        jnp.asarray(regularisers, jnp.result_type(float))
    )


def mean_and_error(values: np.ndarray) -> dict[str, float]:
    """Return mean and standard error over seeds, for a summary."""
    mean, error = metrics.mean_and_standard_error(values.astype(float))
    return {"mean": float(mean), "se": float(error)}
