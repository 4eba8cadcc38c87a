"""The container of a table, and the tables that come with the package.

A table consists of NumPy arrays of metrics. `TableEnv.from_table` converts a metric to rewards and makes an
environment of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import IO, final

import numpy as np

from jlibo import npz
from jlibo.checks import check_shape, did_you_mean, fail
from jlibo.front_door import check_fields, front_door

FORMAT = 1
NOT_METRICS = frozenset({"format", "tasks", "param_names", "params", "filled"})


def known_name(argument: str, name: object, known: Iterable[str]) -> str:
    """Return `name` if it is in `known`; otherwise raise an error that suggests the nearest."""
    known = list(known)
    if isinstance(name, str) and name in known:
        return name
    fail(argument, f"one of {', '.join(map(repr, known))}", f"{name!r}{did_you_mean(name, known)}")


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Metrics of configurations on tasks, as read-only NumPy arrays in float64.

    With t tasks, g configurations and dim parameters:

    | name          | contents                                                                          |
    |---------------|-----------------------------------------------------------------------------------|
    | `tasks`       | names of the tasks, in the order of the file                                      |
    | `param_names` | names of the parameters, one for each column of `params`                          |
    | `params`      | `[g, dim]` if shared by all tasks, else `[t, g, dim]`, NaN where padded           |
    | `metrics`     | arrays `[t, g]` by name, NaN where the metric is not known                        |
    | `num_missing` | number of metrics that the file lists without a value, padding not counted        |

    **Raises:** `ValueError` if there are no tasks or no metrics, or if shapes do not agree.

    ```python
    import numpy as np

    import jlibo

    table = jlibo.Table(
        tasks=("a", "b"),
        param_names=("depth",),
        params=np.asarray([[1.0], [2.0], [3.0]]),
        metrics={"auc": np.asarray([[0.6, 0.7, 0.8], [0.9, 0.8, np.nan]])},
    )
    env = jlibo.TableEnv.from_table(table)
    ```
    """

    tasks: tuple[str, ...]
    param_names: tuple[str, ...]
    params: np.ndarray
    metrics: Mapping[str, np.ndarray]
    num_missing: int = 0

    def __post_init__(self):
        check_fields(self)
        if not self.tasks:
            fail("tasks", "at least one name", "none")
        if not self.metrics:
            fail("metrics", "at least one array", "none")
        params = _frozen(self.params)
        metrics = {name: _frozen(values) for name, values in self.metrics.items()}
        num_params = len(self.param_names)
        if params.ndim == 3:
            check_shape("params", params, (len(self.tasks), "g", num_params))
        else:
            check_shape("params", params, ("g", num_params))
        for name, values in metrics.items():
            check_shape(f"metrics[{name!r}]", values, (len(self.tasks), params.shape[-2]))
        object.__setattr__(self, "tasks", tuple(self.tasks))
        object.__setattr__(self, "param_names", tuple(self.param_names))
        object.__setattr__(self, "params", params)
        object.__setattr__(self, "metrics", MappingProxyType(metrics))

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def shared(self) -> bool:
        """Whether all tasks have the same configurations."""
        return self.params.ndim == 2

    @property
    def present(self) -> np.ndarray:
        """Booleans `[t, g]`: whether at least one metric of the configuration is known on the task."""
        return np.logical_or.reduce([~np.isnan(values) for values in self.metrics.values()])

    @front_door
    def metric(self, name: str | None = None) -> np.ndarray:
        """Return one metric as an array `[t, g]`.

        **Arguments:**

        - `name`: name of the metric; optional if there is only one.

        **Raises:** `ValueError` if there is no such metric, or if a task has no known value of it.
        """
        if name is None:
            if len(self.metrics) > 1:
                fail("metric", f"one of {', '.join(map(repr, self.metrics))}", "no name")
            name = next(iter(self.metrics))
        values = self.metrics[known_name("metric", name, self.metrics)]
        unknown = np.flatnonzero(np.isnan(values).all(1))
        if unknown.size:
            fail("metric", "known somewhere on each task", f"{name!r}, unknown on {self.tasks[unknown[0]]!r}")
        return values

    def unit_params(self) -> np.ndarray:
        """Return `params` scaled to `[0, 1]` by each parameter's minimum and maximum over the whole table.

        A constant parameter becomes 0. Padding stays NaN.
        """
        flat = self.params.reshape(-1, len(self.param_names))
        low, high = np.nanmin(flat, axis=0), np.nanmax(flat, axis=0)
        return (self.params - low) / np.where(high > low, high - low, 1.0)


def _frozen(array) -> np.ndarray:
    copy = np.array(array, dtype=np.float64)
    copy.flags.writeable = False
    return copy


@front_door
def load_table(name: str) -> Table:
    """Return a table that comes with the package.

    **Arguments:**

    - `name`: `"glmnet"`, the elastic net on real data sets, with one grid shared by all tasks. Its parameters
      are alpha and ln lambda. Its metrics are auc and accuracy (more is better) and logloss (less is better),
      as means over ten folds. `jlibo/data/glmnet.provenance.json` describes how it was made.

    **Returns:** a `Table`.

    **Raises:** `ValueError` if there is no table of this name.

    ```python
    import jlibo

    table = jlibo.load_table("glmnet")
    print(table.num_tasks, table.param_names, list(table.metrics))
    ```
    """
    folder = resources.files("jlibo").joinpath("data")
    files = {file.name.removesuffix(".npz"): file for file in folder.iterdir() if file.name.endswith(".npz")}
    file = files[known_name("name", name, sorted(files))]
    with file.open("rb") as stream:
        return read_npz(stream, file.name)


def read_npz(stream: IO[bytes], source: str) -> Table:
    """Read a table in the package's own layout, as written by `benchmarks/tables/make_glmnet.py`."""
    try:
        arrays = npz.read_npz(stream)
    except npz.NpzError as error:
        raise ValueError(f"{source} is not a table: {error}.") from None
    found = arrays["format"].item() if "format" in arrays and arrays["format"].size == 1 else None
    if found != FORMAT:
        got = "none" if found is None else found
        raise ValueError(f"{source}: this version of jlibo reads table format {FORMAT}, but got {got}.")
    for name in ("tasks", "param_names", "params"):
        if name not in arrays:
            raise ValueError(f"{source} is not a table: it has no array '{name}'.")
    return Table(
        tasks=tuple(map(str, arrays["tasks"])),
        param_names=tuple(map(str, arrays["param_names"])),
        params=arrays["params"],
        metrics={key: values for key, values in arrays.items() if key not in NOT_METRICS},
    )
