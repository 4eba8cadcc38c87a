"""The container of a table, and the tables that come with the package.

A table is plain NumPy and knows nothing of rewards: `TableEnv.from_table` makes an environment of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import IO

import numpy as np

from jlibo import npz
from jlibo.checks import check_shape, did_you_mean, fail

FORMAT = 1
NOT_METRICS = frozenset({"format", "tasks", "param_names", "params", "filled"})


def known_name(argument: str, name: object, known: Iterable[str]) -> str:
    """Give `name` back if it is `known`; else raise an error that offers the nearest."""
    known = list(known)
    if isinstance(name, str) and name in known:
        return name
    fail(argument, f"one of {', '.join(map(repr, known))}", f"{name!r}{did_you_mean(name, known)}")


@dataclass(frozen=True, eq=False)
class Table:
    """Metrics of configurations on tasks, as read from a file; its arrays cannot be written to.

    | name | contents |
    |---|---|
    | tasks | names, in the order of the file |
    | param_names | names, one for each column of `params` |
    | params | [g, dim], shared by all tasks, or [t, g, dim], each task's own, NaN where padded |
    | metrics | name -> [t, g], NaN where it is not known |
    | num_missing | metrics that the file lists with no value, padding not counted |
    """

    tasks: tuple[str, ...]
    param_names: tuple[str, ...]
    params: np.ndarray
    metrics: Mapping[str, np.ndarray]
    num_missing: int = 0

    def __post_init__(self):
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
        return len(self.tasks)

    @property
    def shared(self) -> bool:
        """Whether all tasks have the same configurations."""
        return self.params.ndim == 2

    @property
    def present(self) -> np.ndarray:
        """[t, g]: the task has this configuration, and at least one metric of it is known."""
        return np.logical_or.reduce([~np.isnan(values) for values in self.metrics.values()])

    def metric(self, name: str | None = None) -> np.ndarray:
        """One metric, [t, g]; it may go unnamed where there is only one. Every task has a known value."""
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
        """`params` in the unit box: each parameter by its own least and greatest value in the whole table.

        A parameter that never changes becomes 0. Padding stays NaN.
        """
        flat = self.params.reshape(-1, len(self.param_names))
        low, high = np.nanmin(flat, axis=0), np.nanmax(flat, axis=0)
        return (self.params - low) / np.where(high > low, high - low, 1.0)


def _frozen(array) -> np.ndarray:
    copy = np.array(array, dtype=np.float64)
    copy.flags.writeable = False
    return copy


def load_table(name: str) -> Table:
    """A table that comes with the package. `"glmnet"`: the elastic net on real data sets, a shared grid.

    Its parameters are alpha and ln lambda; its metrics auc and accuracy (more is better) and logloss (less
    is better), means over ten folds. `jlibo/data/glmnet.provenance.json` tells how it was made.
    """
    folder = resources.files("jlibo").joinpath("data")
    files = {file.name.removesuffix(".npz"): file for file in folder.iterdir() if file.name.endswith(".npz")}
    file = files[known_name("name", name, sorted(files))]
    with file.open("rb") as stream:
        return read_npz(stream, file.name)


def read_npz(stream: IO[bytes], source: str) -> Table:
    """A table in the package's own layout, as `benchmarks/tables/make_glmnet.py` writes it."""
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
