"""The points of a sweep (a grid or a list of hyper-parameters), and the division of its runs into chunks.

| here    | what it is                                                                              |
|---------|-----------------------------------------------------------------------------------------|
| point   | one value for every hyper-parameter                                                     |
| lane    | one point and one seed: one run, one batch element                                      |
| chunk   | the lanes that one device runs as one batch, and that are written as one file           |

Lanes are ordered by seed, then by point, so finished chunks cover all points on the same seeds. All points of
a seed use the same key, so points are compared on the same random draws.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from jlibo.checks import check_count, check_finite, fail
from jlibo.host_memory import BudgetError, free_host_memory, in_units
from jlibo.printable import described
from jlibo.sweeps.labelled import Variable

SEED, POINT = "seed", "point"


@final
@dataclasses.dataclass(frozen=True)
class Points:
    """Hyper-parameters by name, with one value per point, and the axes of the points."""

    values: dict[str, np.ndarray]
    """Arrays of shape `[points]`."""
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coords: dict[str, Variable]

    @property
    def num_points(self) -> int:
        return math.prod(self.shape)


def as_points(grid: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> Points:
    """Return the points of a grid (a mapping of names to values) or of a sequence of mappings."""
    if grid is None:
        grid = {}
    if isinstance(grid, Mapping):
        axes = {name: _axis(name, values) for name, values in grid.items()}
        shape = tuple(len(values) for values in axes.values())
        needed, free = math.prod(shape) * 8 * len(shape), free_host_memory()
        if needed > free:
            raise BudgetError(
                f"a grid of {math.prod(shape):,} points needs at least {in_units(needed)} of memory, and "
                f"{in_units(free)} are free: take fewer values."
            )
        mesh = np.meshgrid(*axes.values(), indexing="ij") if axes else []
        values = {name: block.ravel() for name, block in zip(axes, mesh, strict=True)}
        return Points(
            values, tuple(axes), shape, {name: Variable((name,), axis) for name, axis in axes.items()}
        )
    rows = list(grid)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        fail("grid", "a mapping of names to values, or a sequence of such points", repr(grid)[:80])
    names = list(rows[0])
    for number, row in enumerate(rows):
        if set(row) != set(names):
            fail("grid", f"points that all have {names}", f"{list(row)} as point {number}")
        for name, value in row.items():
            if np.ndim(value) != 0:
                fail("grid", f"one number for {name} in point {number}", f"{value!r}")
    columns = {name: _axis(name, [row[name] for row in rows]) for name in names}
    coords = {name: Variable((POINT,), column) for name, column in columns.items()}
    return Points(columns, (POINT,), (len(rows),), coords)


def check_seeds(num_seeds: Any, first_seed: Any) -> None:
    """Check that all seeds are whole numbers from 0 to 2**31 - 1."""
    check_count("num_seeds", num_seeds)
    check_count("first_seed", first_seed, at_least=0)
    for name, number in (("num_seeds", num_seeds), ("first_seed", first_seed)):
        if number >= 2**31:
            fail(name, "a whole number below 2**31", described(int(number)))
    if first_seed + num_seeds > 2**31:
        fail("first_seed", "such that all seeds are below 2**31", f"{first_seed} with {num_seeds} seeds")


def check_fits_dtype(name: str, values: np.ndarray, dtype: np.dtype) -> None:
    """Check that a cast to `dtype` makes no float infinite, subnormal or zero, and changes no integer."""
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        tiny = np.finfo(dtype).tiny if dtype.kind == "f" else 0
        same = (
            np.isfinite(cast) & ((abs(cast) >= tiny) | (values == 0)) if dtype.kind == "f" else cast == values
        )
    if not same.all():
        fail("grid", f"numbers that {dtype} can hold for {name}", values[~same][0])


def _axis(name: str, values: Any) -> np.ndarray:
    if not isinstance(name, str) or not name.isidentifier() or name in (SEED, POINT, "key"):
        fail("grid", f"names of arguments other than {SEED}, {POINT} and key", repr(name))
    if isinstance(values, str | bytes) or np.ndim(values) != 1 or len(values) == 0:
        fail("grid", f"a list of numbers for {name}", f"{values!r}")
    axis = np.asarray(values)
    if axis.dtype.kind not in "biuf":
        fail("grid", f"numbers for {name}", f"{values!r}")
    check_finite(name, axis)
    return axis


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a sweep and their division into chunks."""

    points: Points
    num_seeds: int
    first_seed: int
    chunk: int

    def __post_init__(self):
        check_seeds(self.num_seeds, self.first_seed)
        check_count("chunk", self.chunk)

    @property
    def num_lanes(self) -> int:
        return self.points.num_points * self.num_seeds

    @property
    def num_chunks(self) -> int:
        return -(-self.num_lanes // self.chunk)

    def num_present(self, number: int) -> int:
        """Return the number of runs in a chunk. The last chunk is padded to the full size."""
        return min(self.chunk, self.num_lanes - number * self.chunk)

    def inputs(self, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the seeds and hyper-parameters of a chunk, `[chunk]` each; padding repeats the last lane."""
        lanes = np.minimum(np.arange(number * self.chunk, (number + 1) * self.chunk), self.num_lanes - 1)
        seeds, places = np.divmod(lanes, self.points.num_points)
        params = {name: values[places] for name, values in self.points.values.items()}
        return (self.first_seed + seeds).astype(np.uint32), params

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an uninitialised array for all lanes of one output."""
        return np.empty((self.num_lanes, *shape), dtype)

    def place(self, number: int) -> slice:
        """Return the positions of a chunk's runs among all lanes."""
        return slice(number * self.chunk, number * self.chunk + self.num_present(number))

    def unfold(self, lanes: np.ndarray) -> np.ndarray:
        """Reshape `[lanes, ...]` to `[*points, seeds, ...]`."""
        rest = lanes.shape[1:]
        by_point = lanes.reshape(self.num_seeds, self.points.num_points, *rest).swapaxes(0, 1)
        return np.ascontiguousarray(by_point).reshape(*self.points.shape, self.num_seeds, *rest)
