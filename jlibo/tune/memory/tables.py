"""Tables of results that a user has: a pandas or polars DataFrame, records, or a CSV file. Internal.

A table has a column for each parameter and one for the score. Cells are converted to values of parameters:

| cell                                        | value                                                     |
|---------------------------------------------|-----------------------------------------------------------|
| scalar of NumPy or pandas                   | the plain Python value                                    |
| text, where a number is expected            | the number                                                |
| text, where a choice is expected            | the choice that is written so, in Python or in JSON       |
| None, NaN, NA, null, empty text             | none: the parameter is off, or the trial failed           |
| the same, if None or "" is a choice         | that choice, if the parameter is on                       |

Neither pandas nor polars is imported here: a frame can exist only if its library was imported.
"""

import contextlib
import csv
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from jlibo.checks import did_you_mean, fail
from jlibo.printable import printable
from jlibo.tune.memory.records import finite_score, task_name
from jlibo.tune.space.fitting import completed
from jlibo.tune.space.parameters import Categorical, Parameter
from jlibo.tune.space.space import SearchSpace

SCORE, TASK, NUMBER, STATE, EXPLORED = "score", "task", "number", "state", "explored"
ERROR, FITS = "error", "fits"
IGNORED = (NUMBER, STATE, EXPLORED, ERROR, FITS)
"""Columns that `to_dataframe` writes and that are not read. A row whose state is "pending" or "stopped", or
that does not fit into the search space, is skipped."""
NOTHING = {"", "na", "n/a", "nan", "null", "none", "<na>", "nat"}
"""Texts that mean that there is no value, in lower case."""
Table = Any
"""A pandas or polars DataFrame, an iterable of mappings, or a path (str or PathLike)."""
KINDS = "a pandas or polars DataFrame, a list of records (mappings), or the path of a CSV file"


@final
class Result(NamedTuple):
    """A configuration of the space and its score; None if the trial failed. `task` is its task, if named."""

    params: dict[str, Any]
    score: float | None
    task: str | None = None


@final
class _Table(NamedTuple):
    """The cells by row, in the order of `columns`; `place_of` names a row in messages."""

    columns: list[Any]
    rows: Sequence[Sequence[Any]]
    place_of: Callable[[int], str]
    is_text: bool = False


_ABSENT = object()  # a record without this key
_NONE = object()  # a cell without a value


def is_table(results: Any) -> bool:
    """Return whether `results` is a DataFrame or the path of a file."""
    return _frame_columns(results) is not None or isinstance(results, str | os.PathLike)


def read_results(
    space: SearchSpace,
    results: Table,
    *,
    score: str | None = SCORE,
    task: str | None = None,
    argument: str = "results",
) -> list[Result]:
    """Return the rows of a table as configurations of a space, in plain Python values, with their scores.

    A column of a parameter with a condition may be missing if the parameter is off in every row, and one of a
    parameter with a default if it has the default in every row.

    **Arguments:**

    - `space`: the search space.
    - `results`: a pandas or polars DataFrame, records, or the path of a CSV file in UTF-8.
    - `score`: the name of the column of scores; None if there is none.
    - `task`: the name of the column of task names; None if there is none.
    - `argument`: the name of `results` in messages.

    **Raises:**

    - `ValueError`: a column is unknown, missing or there twice, or a cell is not a value of its parameter.
    - `OSError`: the file cannot be read.
    """
    table = _table_of(results, argument)
    own = [name for name in (task, score) if name is not None]
    for name in own:
        if not isinstance(name, str) or name in space:
            fail("score", "the name of a column that is not a parameter", repr(name))
    _check_columns(space, table.columns, own, argument)
    found = []
    for number, cells in enumerate(table.rows):
        row = dict(zip(table.columns, cells, strict=True))
        try:
            if STATE not in space and row.get(STATE) in ("pending", "stopped"):
                continue
            if FITS not in space and str(row.get(FITS)) == "False":
                continue
            value = None if score is None else _score(row.get(score, _ABSENT), score)
            name = None if task is None else _task(row.get(task, _ABSENT), task)
            found.append(Result(_params(space, row, table.is_text), value, name))
        except ValueError as error:
            raise ValueError(f"{table.place_of(number)}: {error}") from None
    return found


# --- tables -------------------------------------------------------------------------------------------------


def _table_of(results: Any, argument: str) -> _Table:
    columns = _frame_columns(results)
    if columns is not None:
        _check_once(columns, argument)
        cells = [results[name].to_list() for name in columns]
        return _Table(columns, list(zip(*cells, strict=True)), lambda row: f"row {row}")
    if isinstance(results, str | os.PathLike):
        return _csv_table(Path(os.fsdecode(results)))
    if isinstance(results, Mapping) or not isinstance(results, Iterable):
        fail(argument, KINDS, f"{type(results).__name__}")
    records = list(results)
    for row, record in enumerate(records):
        if not isinstance(record, Mapping):
            fail(argument, KINDS, f"{printable(repr(record))} ({type(record).__name__}) as record {row}")
    columns = list(dict.fromkeys(name for record in records for name in record))
    rows = [[record.get(name, _ABSENT) for name in columns] for record in records]
    return _Table(columns, rows, lambda row: f"record {row}")


def _frame_columns(results: Any) -> list[Any] | None:
    """Return the columns of a pandas or polars DataFrame; None for anything else."""
    for library in ("pandas", "polars"):
        module = sys.modules.get(library)
        kind = getattr(module, "DataFrame", None)
        if kind is not None and isinstance(results, kind):
            return list(results.columns)
    return None


def _csv_table(path: Path) -> _Table:
    name = printable(path)
    rows, lines = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = next((row for row in reader if row), None)
            if columns is None:
                raise ValueError(
                    f"{name}: a line with the names of the columns should come first, but got none."
                )
            _check_once(columns, name)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(columns):
                    raise ValueError(
                        f"{name}, line {reader.line_num}: a row should have {len(columns)} cells, as the "
                        f"first line has, but got {len(row)}."
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"{name}, line {len(lines) + 1} or after: this is not CSV: {error}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: a CSV file should be UTF-8, but this one is not.") from None
    return _Table(columns, rows, lambda row: f"{name}, line {lines[row]}", is_text=True)


def _check_once(columns: Sequence[Any], argument: str) -> None:
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        fail(argument, "a table whose columns have different names", f"the column {twice[0]!r} twice")


def _check_columns(space: SearchSpace, columns: Sequence[Any], own: Sequence[str], argument: str) -> None:
    known = [*own, *space]
    expected = f"a table with the columns {', '.join(map(repr, known))}"
    if not columns:
        return  # no records
    for name in columns:
        if name not in known and name not in IGNORED:
            missing = [one for one in known if one not in columns] or known
            fail(argument, expected, f"the unknown column {name!r}{did_you_mean(name, missing)}")
    for name in known:
        is_needed = name in own or (space[name].when is None and not space[name].has_default)
        if name not in columns and is_needed:
            fail(argument, expected, f"no column {name!r}{did_you_mean(name, set(columns) - set(known))}")


# --- cells --------------------------------------------------------------------------------------------------


def _params(space: SearchSpace, row: Mapping[str, Any], is_text: bool) -> dict[str, Any]:
    """Return the configuration of a row. Parents come first, since they say which parameters are on."""
    names, params = space.names, {}
    for place in space.conditions.order:
        name = names[place]
        value = _value(space[name], name, row.get(name, _ABSENT), is_text)
        if value is not _NONE:
            params[name] = value
        elif name in row and _empty_choice(space[name]) is not _NONE and name in space.active_names(params):
            params[name] = _empty_choice(space[name])
    return completed(space, params)


def _value(parameter: Parameter, name: str, cell: Any, is_text: bool) -> Any:
    """Return the value of a cell, or `_NONE`. Values of other types are left to `validate`."""
    if cell is _ABSENT or _is_nothing(cell):
        return _NONE
    cell = cell.tolist() if hasattr(cell, "tolist") else cell  # of NumPy
    if not isinstance(cell, str):
        return cell
    if not isinstance(parameter, Categorical):
        return _number(cell, name)
    if not is_text and cell in parameter.choices:
        return cell
    return _choice(parameter, name, cell)


def _choice(parameter: Categorical, name: str, text: str) -> Any:
    """Return the choice that is written as `text`; the text itself, which is an error, if there is none."""
    found = [choice for choice in parameter.choices if text in _texts(choice)]
    if not found:
        with contextlib.suppress(ValueError):
            found = [choice for choice in parameter.choices if _is_number(choice) and choice == float(text)]
    if len(found) > 1:
        fail(f"params[{name!r}]", "written such that it is one choice", f"{text!r}, which may be {found}")
    if found:
        return found[0]
    return _NONE if text.strip().lower() in NOTHING else text


def _texts(choice: Any) -> set[str]:
    """Return the ways in which a choice is written in a file."""
    if isinstance(choice, str):
        return {choice}
    as_json = json.dumps(choice)
    return {str(choice), as_json, *([as_json.upper()] if isinstance(choice, bool) else [])}


def _empty_choice(parameter: Parameter) -> Any:
    """Return the choice that an empty cell stands for, or `_NONE`."""
    choices = parameter.choices if isinstance(parameter, Categorical) else ()
    return next((choice for choice in ("", None) if any(one == choice for one in choices)), _NONE)


def _number(text: str, name: str) -> Any:
    text = text.strip()
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return _NONE if isinstance(number, float) and math.isnan(number) else number
    return _NONE if text.lower() in NOTHING else fail(f"params[{name!r}]", "a number", repr(printable(text)))


def _score(cell: Any, name: str) -> float | None:
    if cell is _ABSENT:
        fail(name, "a number, or None for a failed trial", "nothing: the record has no such key")
    if _is_nothing(cell):
        return None
    if isinstance(cell, str):
        try:
            cell = float(cell)
        except ValueError:
            if cell.strip().lower() in NOTHING:
                return None
            fail(name, "a number, or empty for a failed trial", repr(printable(cell)))
    return finite_score(cell)


def _task(cell: Any, name: str) -> str:
    if cell is _ABSENT or _is_nothing(cell):
        fail(name, "the name of a task", "none")
    return task_name(str(cell))


def _is_nothing(cell: Any) -> bool:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    if isinstance(cell, str):
        return cell == ""
    pandas = sys.modules.get("pandas")
    return pandas is not None and (cell is pandas.NA or cell is pandas.NaT)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
