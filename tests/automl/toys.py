"""Small tables for the tests of the AutoML benchmark."""

import json

import numpy as np

import jlibo
from benchmarks.automl import tables
from benchmarks.automl.problem import Problem


def toy_problem(values: np.ndarray) -> Problem:
    """Configurations on a line; the parameters are not in the order of their names."""
    values = np.asarray(values, float)
    grid = np.linspace(0, 1, values.shape[1])
    params = np.stack([10 * grid, np.full(grid.size, 7.0), 1 - grid], axis=1)
    tasks = tuple(f"task {number}" for number in range(len(values)))
    return tables.make_problem("toy", jlibo.Table(tasks, ("b", "constant", "a"), params, {"score": values}))


def write_table(path, configs, scores, **changes):
    meta = dict(
        names=["rate", "kernel", "depth", "fixed"],
        kinds=["float", "cat", "int", "float"],
        log=[True, False, False, False],
        choices=[None, ["rbf", "poly", "linear"], None, None],
        tasks=[f"t{number}" for number in range(len(scores))],
        maximise=False,
    )
    np.savez(path, configs=configs, scores=scores, meta=np.array(json.dumps(meta | changes)))


def mixed_arrays(num_tasks=3, num_configs=20, *, shared=True) -> tuple[np.ndarray, np.ndarray]:
    """A log float, a categorical, an int and a constant; two evaluations of the first task failed."""
    rng = np.random.default_rng(0)
    shape = (num_configs,) if shared else (num_tasks, num_configs)
    rate = 10 ** rng.uniform(-4, 0, shape)
    kernel, depth = rng.integers(3, size=shape), rng.integers(1, 9, size=shape)
    configs = np.stack([rate, kernel, depth, np.full(shape, 7.0)], axis=-1)
    loss = (np.log10(rate) + 2) ** 2 + kernel + 0.1 * depth
    scores = loss + np.arange(num_tasks)[:, None] * rng.uniform(size=(num_tasks, num_configs))
    scores[0, [3, 5]] = np.nan
    return configs, scores
