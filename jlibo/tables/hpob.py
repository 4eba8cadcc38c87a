"""The JSON layout of HPO-B (Pineda Arango, Jomaa, Wistuba, Grabocka 2021)."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from jlibo.front_door import front_door
from jlibo.printable import described, printable
from jlibo.tables.assemble import Row, assemble, reject
from jlibo.tables.table import Table


@front_door
def read_hpob(
    path: str | os.PathLike[str], search_space_id: str | int, *, param_names: Sequence[str] | None = None
) -> Table:
    """Read one search space of a JSON file in the layout of HPO-B.

    The layout is `{search_space_id: {dataset_id: {"X": [[...]], "y": [[...]]}}}`. A task is a data set. The
    parameters are already scaled in HPO-B. The metric is `y`, more is better; null or NaN means no value.

    **Arguments:**

    - `path`: the file.
    - `search_space_id`: key of the search space in the file.
    - `param_names`: names of the parameters, which HPO-B does not give; by default `x0`, `x1`, ...

    **Returns:** a `Table`.

    **Raises:** `ValueError` that names the search space, the data set and the row, counted from 0, if the
    file is not JSON in this layout, a value is not a finite number, a configuration is listed twice, or a
    task has fewer than two rows with a known metric.

    ```python
    import json
    import pathlib
    import tempfile

    import jlibo

    path = pathlib.Path(tempfile.mkdtemp()) / "meta-test-dataset.json"
    path.write_text(json.dumps({"5860": {"3": {"X": [[0.1, 0.2], [0.5, 0.9]], "y": [[0.7], [0.8]]}}}))
    table = jlibo.read_hpob(path, 5860, param_names=["alpha", "lambda"])
    ```
    """
    with open(path, encoding="utf-8") as file:
        try:
            spaces = json.load(file)
        except json.JSONDecodeError as error:
            reject(path, f"line {error.lineno}", f"this is no JSON: {error.msg}")
        except RecursionError:
            reject(path, None, "lists or objects are nested too deeply")
        except ValueError as error:  # not UTF-8, or a whole number of thousands of digits
            reject(path, None, f"this cannot be read as JSON: {printable(error)}")
    if not isinstance(spaces, dict):
        reject(path, None, "a JSON object with a key for each search space was expected")
    space = str(search_space_id)
    if space not in spaces:
        reject(path, None, f"there is no search space {space!r}; there are {described(list(spaces))[1:-1]}")
    data_sets = spaces[space]
    if not isinstance(data_sets, dict) or not data_sets:
        reject(path, f"search space {space!r}", "an object with a key for each data set was expected")
    rows = [row for name, content in data_sets.items() for row in _rows(path, space, name, content)]
    if not rows:
        reject(path, f"search space {space!r}", "there are no rows")
    dim = len(rows[0].params)
    for row in rows:
        if len(row.params) != dim:
            reject(path, row.place, f"{len(row.params)} parameters, but the first row has {dim}")
    names = [f"x{i}" for i in range(dim)] if param_names is None else list(param_names)
    if len(names) != dim:
        reject(path, f"search space {space!r}", f"{len(names)} `param_names` for {dim} parameters")
    return assemble(path, rows, names, ["y"])


def _rows(path: str | os.PathLike[str], space: str, name: str, content: Any) -> Iterator[Row]:
    where = f"search space {space!r}, data set {name!r}"
    points, values = (content.get("X"), content.get("y")) if isinstance(content, dict) else (None, None)
    if not isinstance(points, list) or not isinstance(values, list):
        reject(path, where, 'the lists "X" and "y" were expected')
    if len(points) != len(values):
        reject(path, where, f'"X" has {len(points)} rows, but "y" has {len(values)}')
    if not points:
        reject(path, where, "there are no rows")
    for index, (point, value) in enumerate(zip(points, values, strict=True)):
        place = f"{where}, row {index}"
        if not isinstance(point, list) or not point or not all(map(_is_finite, point)):
            reject(path, place, f'"X" should be a list of finite numbers, but got {described(point)}')
        if not isinstance(value, list) or len(value) != 1:
            reject(path, place, f'"y" should be a list of one number, but got {described(value)}')
        score: Any = math.nan if value[0] is None else value[0]
        if not _is_finite(score) and not (isinstance(score, float) and math.isnan(score)):
            reject(path, place, f'"y" should be a list of one number, but got {described(value)}')
        yield Row(place, name, tuple(map(float, point)), (float(score),))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False
