"""The tables of the AutoML benchmark: `.npz` files, CSV files, and the table that comes with jlibo.

An `.npz` table has these arrays:

| array     | contents                                                                           |
|-----------|------------------------------------------------------------------------------------|
| `configs` | [configs, dim] if all tasks share them, or [tasks, configs, dim]; NaN where padded |
| `scores`  | [tasks, configs]; NaN if the evaluation failed, or where padded                    |
| `meta`    | a JSON text, see below                                                             |

The text has the lists `names`, `kinds` ("float", "int" or "cat"), `log` and `choices`, with an entry for each
parameter, the names of the `tasks`, and whether to `maximise`. A value of a "cat" parameter is an index into
its `choices`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

import jlibo
from benchmarks.automl.problem import Problem, without_empty_tasks
from jlibo import npz
from jlibo.tables import Table
from jlibo.tune.space.parameters import Categorical, Float, Int, Parameter
from jlibo.tune.space.space import SearchSpace

SHIPPED = "glmnet"


class TableError(ValueError):
    """A file is not a table that the benchmark can read."""


def read_npz(path: str | Path) -> Problem:
    """Return the problem in an `.npz` file.

    **Raises:** `TableError` if the file is not a table; the message names the file and the array.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            arrays = npz.read_npz(file, max_bytes=2**31)
        except npz.NpzError as error:
            raise TableError(f"{path}: {error}") from None
    missing = {"configs", "scores", "meta"} - set(arrays)
    if missing:
        raise TableError(f"{path}: no array {', '.join(sorted(missing))}")
    meta = _read_meta(path, arrays["meta"])
    configs, scores = np.asarray(arrays["configs"], float), np.asarray(arrays["scores"], float)
    names, dim = meta["names"], len(meta["names"])
    shapes = ((scores.shape[1], dim), (*scores.shape, dim)) if scores.ndim == 2 else ()
    if configs.shape not in shapes:
        raise TableError(
            f"{path}: `configs` should be [configs, {dim}] or [tasks, configs, {dim}] with `scores` "
            f"[tasks, configs], but they are {configs.shape} and {scores.shape}"
        )
    exists = np.isfinite(scores)
    if not exists.any():
        raise TableError(f"{path}: `scores` has no finite number")
    known = ~np.isnan(configs).any(-1)
    values = np.where(exists & known, scores if meta["maximise"] else -scores, np.nan)
    columns: dict[str, np.ndarray] = {}
    parameters: dict[str, Parameter] = {}
    notes = []
    for place, name in enumerate(names):
        column = configs[..., place]
        there = column[known]
        if there.min() == there.max():
            notes.append(f"without {name}, which is constant")
            continue
        try:
            parameters[name] = _make_parameter(meta, place, there)
        except (ValueError, TypeError) as error:
            raise TableError(f"{path}: parameter {name!r}: {error}") from None
        columns[name] = np.where(known, column, there.flat[0])
    num_failed = int((np.isnan(scores) & known).sum())
    if num_failed:
        notes.append(f"{num_failed / scores.size:.1%} of the evaluations failed and are not available")
    problem = _assemble(path.stem, meta["tasks"], parameters, columns, values, notes)
    return without_empty_tasks(problem)


def _read_meta(path: Path, array: np.ndarray) -> dict[str, Any]:
    try:
        meta = json.loads(str(array[()]))
        names, kinds = list(meta["names"]), list(meta["kinds"])
        log = meta.get("log") or [False] * len(names)
        choices = meta.get("choices") or [None] * len(names)
        if not len(names) == len(kinds) == len(log) == len(choices):
            raise ValueError("`names`, `kinds`, `log` and `choices` differ in length")
        tasks = tuple(map(str, meta["tasks"]))
        maximise = bool(meta["maximise"])
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"{path}: `meta` cannot be read ({type(error).__name__}: {error})") from None
    return dict(names=names, kinds=kinds, log=log, choices=choices, tasks=tasks, maximise=maximise)


def _make_parameter(meta: dict[str, Any], place: int, values: np.ndarray) -> Parameter:
    kind, log = meta["kinds"][place], bool(meta["log"][place])
    low, high = float(values.min()), float(values.max())
    if kind == "float":
        return Float(low, high, log=log)
    if kind not in ("int", "cat"):
        raise ValueError(f"the kind should be 'float', 'int' or 'cat', but is {kind!r}")
    if not (values == np.rint(values)).all():
        raise ValueError(f"values of the kind {kind!r} should be whole numbers")
    if kind == "int":
        return Int(int(low), int(high), log=log)
    choices = meta["choices"][place]
    if not isinstance(choices, list) or low < 0 or high >= len(choices):
        raise ValueError(f"indices from {low:g} to {high:g} do not fit the choices {choices!r}")
    return Categorical(choices)


def _assemble(name, tasks, parameters, columns, values, notes) -> Problem:
    space = SearchSpace(parameters)
    points = np.stack([space[key].codes_to_unit(columns[key]) for key in space.names], axis=-1)
    return Problem(name, tuple(tasks), space, points, values, tuple(notes))


def make_problem(name: str, table: Table, metric: str | None = None, *, maximise: bool = True) -> Problem:
    """Return the problem of one metric of a jlibo table, without parameters that are constant."""
    columns = {}
    for number, parameter in enumerate(table.param_names):
        column = table.params[..., number]
        if np.nanmin(column) < np.nanmax(column):
            columns[parameter] = np.where(np.isnan(column), np.nanmin(column), column)
    parameters = {key: Float(column.min(), column.max()) for key, column in columns.items()}
    values = table.metric(metric)
    return _assemble(name, table.tasks, parameters, columns, values if maximise else -values, ())


def read_csv(path: str, *, metric: str | None, log: list[str], maximise: bool) -> Problem:
    """Return the problem in a CSV file; see `jlibo.read_csv`."""
    table = jlibo.read_csv(path, metrics=metric, log=log)
    return make_problem(Path(path).stem, table, metric, maximise=maximise)


def read_shipped(metric: str | None = None) -> Problem:
    """Return the problem of the table that comes with jlibo."""
    return make_problem(SHIPPED, jlibo.load_table(SHIPPED), metric or "auc")
