"""Tables from comma-separated files: a header, then one evaluation per line."""

import csv
import math
import os
from collections.abc import Iterator, Sequence
from typing import final

from jlibo.front_door import front_door
from jlibo.printable import described
from jlibo.tables.assemble import Row, assemble, reject
from jlibo.tables.table import Table

MISSING = frozenset({"", "na", "nan"})


@front_door
def read_csv(
    path: str | os.PathLike[str],
    *,
    task: str | None = None,
    params: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] | None = None,
    log: str | Sequence[str] = (),
) -> Table:
    r"""Read a table from a CSV file in UTF-8 with a header and one evaluation per line.

    **Arguments:**

    - `path`: the file.
    - `task`: column with the name of the task; by default the first column.
    - `params`: columns with the parameters; by default all columns but the task and the metrics. If given,
      columns that are not named are ignored.
    - `metrics`: columns with the metrics; by default the last column. A cell that is empty, NaN or NA has no
      value; such cells are counted in `Table.num_missing`.
    - `log`: parameters to replace by their natural logarithm. `lambda` is then called `ln lambda`.

    **Returns:** a `Table`.

    **Raises:** `ValueError` with the line of the file for any other cell that is not a finite number, for a
    missing column, for a configuration that a task has twice, and for a task with fewer than two rows with a
    known metric.

    ```python
    import pathlib
    import tempfile

    import jlibo

    path = pathlib.Path(tempfile.mkdtemp()) / "runs.csv"
    path.write_text("task,rate,auc\na,0.01,0.7\na,0.1,0.8\nb,0.01,0.6\nb,0.1,0.9\n")
    table = jlibo.read_csv(path, log="rate")
    print(table.tasks, table.param_names)  # ('a', 'b') ('ln rate',)
    ```
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        try:
            header = [cell.strip() for cell in next(lines, [])]
            if not any(header):
                reject(path, "line 1", "the file is empty or does not start with a header")
            task = header[0] if task is None else task
            metric_names = header[-1:] if metrics is None else _names(metrics)
            if params is None:
                param_names = [name for name in header if name != task and name not in metric_names]
            else:
                param_names = _names(params)
            _check_columns(path, header, task, param_names, metric_names, _names(log))
            reader = _Reader(path, header, task, param_names, metric_names, _names(log))
            shown = [f"ln {name}" if name in _names(log) else name for name in param_names]
            return assemble(path, reader.rows(lines), shown, metric_names)
        except csv.Error as error:
            reject(path, f"line {lines.line_num}", str(error))
        except UnicodeDecodeError:
            reject(path, f"after line {lines.line_num}", "this is not text in UTF-8")


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_columns(path, header, task, params, metrics, log) -> None:
    wanted = [task, *params, *metrics]
    for name in wanted:
        if name not in header:
            reject(path, "line 1", f"there is no column {name!r}; there are {', '.join(map(repr, header))}")
        if header.count(name) > 1:
            reject(path, "line 1", f"there is more than one column {name!r}")
        if wanted.count(name) > 1:
            reject(path, "line 1", f"column {name!r} is asked for more than once")
    if not params or not metrics:
        reject(path, "line 1", "a table needs a column for the task, a parameter and a metric")
    for name in log:
        if name not in params:
            problem = f"`log` names {name!r}, but the parameters are {', '.join(map(repr, params))}"
            reject(path, "line 1", problem)


@final
class _Reader:
    """Converts the lines of one file to rows."""

    def __init__(self, path, header, task, params, metrics, log):
        self.path, self.header = path, header
        self.task = header.index(task)
        self.params = [(name, header.index(name), name in log) for name in params]
        self.metrics = [(name, header.index(name)) for name in metrics]

    def rows(self, lines) -> Iterator[Row]:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            place = f"line {lines.line_num}"
            if len(cells) != len(self.header):
                problem = f"{len(cells)} cells, but the header has {len(self.header)}"
                reject(self.path, place, problem)
            task = cells[self.task].strip()
            if not task:
                reject(self.path, place, "the task has no name")
            params = tuple(self._param(place, name, cells[i], log) for name, i, log in self.params)
            metrics = tuple(self._metric(place, name, cells[i]) for name, i in self.metrics)
            yield Row(place, task, params, metrics)

    def _number(self, place: str, name: str, cell: str) -> float:
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            reject(self.path, place, f"column {name!r} should be a finite number, but got {described(cell)}")
        return number

    def _param(self, place: str, name: str, cell: str, log: bool) -> float:
        number = self._number(place, name, cell)
        if not log:
            return number
        if number <= 0:
            reject(
                self.path,
                place,
                f"column {name!r} should be above 0 for its logarithm, but got {described(cell)}",
            )
        return math.log(number)

    def _metric(self, place: str, name: str, cell: str) -> float:
        return math.nan if cell.strip().lower() in MISSING else self._number(place, name, cell)
