"""Conversion of rows, in the order of a file, to a `Table`; shared by all readers."""

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn, final

import numpy as np

from jlibo.tables.table import Table


@final
class Row(NamedTuple):
    """One evaluation. `place` is its position in the file; metrics without a value are NaN."""

    place: str
    task: str
    params: tuple[float, ...]
    metrics: tuple[float, ...]


def reject(path: str | os.PathLike[str], place: str | None, problem: str) -> NoReturn:
    """Raise the error common to all readers: the file, the place in it, what is wrong."""
    where = f"{os.fspath(path)}, {place}" if place else os.fspath(path)
    raise ValueError(f"{where}: {problem}")


def assemble(
    path: str | os.PathLike[str], rows: Iterable[Row], param_names: Sequence[str], metric_names: Sequence[str]
) -> Table:
    """Return a table of the rows, grouped by task.

    If all tasks have the same configurations, these are shared; otherwise each task has its own. A metric
    without a value is NaN in the table, is never played, and is counted in `num_missing`. A configuration
    that a task has twice is an error, as is a task with fewer than two rows with a known metric.
    """
    tasks: dict[str, dict[tuple[float, ...], Row]] = {}
    for row in rows:
        known = tasks.setdefault(row.task, {})
        if row.params in known:
            values = ", ".join(f"{n} = {v:.6g}" for n, v in zip(param_names, row.params, strict=True))
            earlier = known[row.params].place
            reject(path, row.place, f"task {row.task!r} has this configuration at {earlier} too: {values}")
        known[row.params] = row
    if not tasks:
        reject(path, None, "there are no rows")
    for task, known in tasks.items():
        usable = sum(not all(map(math.isnan, row.metrics)) for row in known.values())
        if usable < 2:
            first = next(iter(known.values()))
            problem = f"task {task!r} has {usable} row(s) with a known metric, but needs at least two"
            reject(path, first.place, problem)

    first = next(iter(tasks.values()))
    shared = all(known.keys() == first.keys() for known in tasks.values())
    width = max(map(len, tasks.values()))
    params = np.full((len(tasks), width, len(param_names)), np.nan)
    metrics = np.full((len(tasks), width, len(metric_names)), np.nan)
    num_missing = 0
    for t, known in enumerate(tasks.values()):
        listed = [known[key] for key in first] if shared else list(known.values())
        params[t, : len(listed)] = [row.params for row in listed]
        metrics[t, : len(listed)] = [row.metrics for row in listed]
        num_missing += int(np.isnan(metrics[t, : len(listed)]).sum())
    return Table(
        tasks=tuple(tasks),
        param_names=tuple(param_names),
        params=params[0] if shared else params,
        metrics={name: metrics[..., m] for m, name in enumerate(metric_names)},
        num_missing=num_missing,
    )
