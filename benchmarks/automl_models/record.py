"""Records the scores of a whole grid of SVC configurations on real data sets, as a table in an npz file.

| array     | contents                                                                        |
|-----------|---------------------------------------------------------------------------------|
| `configs` | [config, 3] in the order of `names`; a kernel is an index into its `choices`    |
| `scores`  | [task, config], balanced accuracy                                               |
| `meta`    | JSON: `names`, `kinds` ("float", "int", "cat"), `log`, `choices`, `tasks`,      |
|           | `maximise`, `shared`, `kind`, `source`, `licence`, `settings` (see evaluations) |

The same settings give the same bytes.
"""

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import jlibo
from benchmarks.automl_models.evaluations import Evaluations, settings
from benchmarks.automl_models.models import MODELS
from benchmarks.tables.make_glmnet import npz_bytes, write_atomically

MODEL = "svc"
LEVELS = 8


def grid(space: jlibo.SearchSpace, levels: int = LEVELS) -> np.ndarray:
    """Return all configurations of an even grid, [config, parameter]: `levels` values of each number, on its
    scale, and all choices. The first parameter is the slowest."""
    axes = []
    for parameter in space.values():
        if isinstance(parameter, jlibo.Categorical):
            axes.append(np.arange(len(parameter.choices), dtype=float))
        else:
            spaced = np.geomspace if parameter.log else np.linspace
            axes.append(spaced(parameter.low, parameter.high, levels))
    return np.array(list(itertools.product(*axes)))


def as_params(space: jlibo.SearchSpace, row: np.ndarray) -> dict[str, Any]:
    """Return the configuration of a row of the grid, without the parameters that are off in it."""
    params = {
        name: parameter.choices[int(value)] if isinstance(parameter, jlibo.Categorical) else float(value)
        for (name, parameter), value in zip(space.items(), row, strict=True)
    }
    return space.validate({name: params[name] for name in space.active_names(params)})


def describe(space: jlibo.SearchSpace, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the `meta` of the table."""
    kinds = {jlibo.Float: "float", jlibo.Int: "int", jlibo.Categorical: "cat"}
    return dict(
        names=list(space),
        kinds=[kinds[type(parameter)] for parameter in space.values()],
        log=[parameter.log for parameter in space.values()],
        choices=[
            list(parameter.choices) if isinstance(parameter, jlibo.Categorical) else None
            for parameter in space.values()
        ],
        tasks=list(tasks),
        maximise=True,
        shared=True,
        kind="table",
        source="python -m benchmarks.automl_models --record",
        licence="MIT",
        settings=settings(),
    )


def scores_of(data_set: str, path: str, levels: int) -> list[float]:
    """Return the scores of the grid on one data set. Runs in a worker."""
    space = MODELS[MODEL].space
    with Evaluations(path) as stored:
        return [stored.score(MODEL, data_set, as_params(space, row)) for row in grid(space, levels)]


def record(
    file: Path, data_sets: Sequence[str], *, pool: ProcessPoolExecutor, path: Path, levels: int = LEVELS
) -> None:
    """Evaluate the grid on all data sets and write the table; `path` is the file of evaluations."""
    jobs = [pool.submit(scores_of, name, str(path), levels) for name in data_sets]
    scores = [job.result() for job in track(jobs, "data sets")]
    space = MODELS[MODEL].space
    arrays = dict(
        configs=grid(space, levels),
        scores=np.array(scores, np.float32),
        meta=np.array(json.dumps(describe(space, data_sets))),
    )
    content = npz_bytes(arrays)
    write_atomically(file, content)
    print(
        f"{file}: {len(data_sets)} data sets, {len(arrays['configs'])} configurations, {len(content):,} bytes"
    )
