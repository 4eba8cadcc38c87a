"""`Labelled`: arrays with named axes and coordinates along them.

| here       | what it is                                                                                |
|------------|-------------------------------------------------------------------------------------------|
| array      | a result, such as `regret`, with one name for each axis: `("lam", "seed", "task")`        |
| coordinate | the values along an axis, such as those of `lam`; in a list of points, they are along `point` |
| attrs      | metadata, as JSON                                                                         |

It holds NumPy arrays. It can select by name, average, save, and convert to xarray or pandas if one of these
is installed.
"""

import dataclasses
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np

from jlibo import files, npz
from jlibo.checks import fail
from jlibo.front_door import check_fields, front_door
from jlibo.lifelong.metrics import mean_and_standard_error
from jlibo.printable import described, printable
from jlibo.sweeps import named_file

FORMAT = "jlibo-labelled"
FORMAT_VERSION = 1


@final
class Variable(NamedTuple):
    """An array and the names of its axes, such as `Variable(("seed", "step"), np.zeros((3, 10)))`."""

    dims: tuple[str, ...]
    values: np.ndarray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Labelled:
    """Arrays with named axes. `result["regret"]` is a NumPy array, `result.dims("regret")` names its axes.

    **Arguments:**

    - `arrays`: a `Variable` for each name. An axis has the same length in all of them.
    - `coords`: coordinates by name, each a `Variable` with one axis.
    - `attrs`: metadata that JSON can represent.

    **Raises:** `ValueError` if names and axes do not match, or if lengths differ.

    ```python
    import numpy as np
    from jlibo.sweeps import Labelled, Variable

    regret = Variable(("lam", "seed"), np.asarray([[1.0, 3.0], [2.0, 2.0]]))
    result = Labelled({"regret": regret}, {"lam": Variable(("lam",), np.asarray([0.1, 0.5]))})
    result.sel(lam=0.1)["regret"]  # array([1., 3.])
    mean, error = result.mean_and_error("regret")  # array([2., 2.]), array([1., 0.])
    ```
    """

    arrays: Mapping[str, Variable]
    coords: Mapping[str, Variable] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        check_fields(self)
        sizes: dict[str, tuple[int, str]] = {}
        for kind, variables in (("array", self.arrays), ("coordinate", self.coords)):
            for name, (dims, values) in variables.items():
                what = f"{kind} {name}"
                if len(dims) != values.ndim:
                    fail("dims", f"one name for each of the {values.ndim} axes of {what}", tuple(dims))
                if len(set(dims)) != len(dims):
                    fail("dims", f"different names for the axes of {what}", tuple(dims))
                for dim, size in zip(dims, values.shape, strict=True):
                    known, other = sizes.setdefault(dim, (size, what))
                    if known != size:
                        fail("dims", f"of one size: '{dim}' is {known} long in {other}", f"{size} in {what}")
        for name, (dims, _) in self.coords.items():
            if len(dims) != 1:
                fail("coords", f"coordinates with one axis, also {name}", f"axes {tuple(dims)}")

    # --- access ---

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self.arrays)

    @property
    def sizes(self) -> dict[str, int]:
        """The length of each axis, by name."""
        both = [*self.arrays.values(), *self.coords.values()]
        return {dim: size for dims, values in both for dim, size in zip(dims, values.shape, strict=True)}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._variable(name).values

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    @front_door
    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's axes."""
        return self._variable(name).dims

    def coord(self, name: str) -> np.ndarray:
        """Return the values of a coordinate, or 0, 1, ... for an axis without coordinate."""
        if name in self.coords:
            return self.coords[name].values
        if name not in self.sizes:
            fail("name", f"one of {sorted({*self.coords, *self.sizes})}", repr(name))
        return np.arange(self.sizes[name])

    def __repr__(self) -> str:
        lines = [
            "Labelled(" + ", ".join(f"{printable(dim)}: {size}" for dim, size in self.sizes.items()) + ")"
        ]
        width = max((len(printable(name)) for name in self.arrays), default=0)
        for name, (dims, values) in self.arrays.items():
            lines.append(f"  {printable(name):<{width}}  [{', '.join(map(printable, dims))}]  {values.dtype}")
        return "\n".join(lines)

    def _variable(self, name: str) -> Variable:
        if name not in self.arrays:
            raise KeyError(f"there is no array '{name}': there are {', '.join(self.arrays)}.")
        return self.arrays[name]

    # --- selection ---

    @front_door
    def isel(self, **places: int | slice | Sequence[int] | np.ndarray) -> "Labelled":
        """Return the entries at given positions along axes.

        **Arguments:**

        - `places`: positions by axis. `isel(seed=0)` drops the axis; `isel(seed=[0, 1])` or a slice keeps it.

        **Returns:** a `Labelled`; coordinates are selected too.

        **Raises:** `ValueError` if there is no such axis, `IndexError` if there is no such position.
        """
        for dim in places:
            if dim not in self.sizes:
                fail("isel", f"axes among {', '.join(self.sizes)}", repr(dim))

        def choose(variable: Variable) -> Variable:
            dims, values = variable
            for dim in [dim for dim in dims if dim in places]:
                place: Any = places[dim]
                if isinstance(place, int | np.integer):
                    values = np.take(values, int(place), axis=dims.index(dim))
                    dims = tuple(other for other in dims if other != dim)
                else:
                    index = place if isinstance(place, slice) else np.asarray(place, np.intp)
                    values = values[(slice(None),) * dims.index(dim) + (index,)]
            return Variable(dims, np.asarray(values))

        coords = {name: choose(variable) for name, variable in self.coords.items()}
        attrs = dict(self.attrs)
        return Labelled(
            {name: choose(variable) for name, variable in self.arrays.items()},
            {name: variable for name, variable in coords.items() if variable.dims},
            attrs,
        )

    def sel(self, **values: Any) -> "Labelled":
        """Return the entries with given values of coordinates.

        **Arguments:**

        - `values`: values by coordinate. `sel(lam=0.1)` drops the axis, `sel(lam=[0.1, 0.5])` keeps it. If
          the coordinate is along another axis, as `lam` in a list of points, all entries with the value are
          selected and the axis is kept. Floats are compared with a relative tolerance of 1e-6.



        **Raises:** `ValueError` if there is no such coordinate or value.
        """
        chosen = self
        # Coordinates along another axis first, before that axis is dropped.
        for name in sorted(values, key=lambda name: name in self.sizes):
            wanted = values[name]
            known = chosen.coord(name)
            dim = chosen.coords[name].dims[0] if name in chosen.coords else name
            found = [_places_of(name, known, one) for one in np.atleast_1d(np.asarray(wanted))]
            if name == dim and np.ndim(wanted) == 0:
                chosen = chosen.isel(**{dim: int(found[0][0])})
            else:
                chosen = chosen.isel(**{dim: np.concatenate(found)})
        return chosen

    @front_door
    def mean_and_error(self, name: str, *, over: str = "seed") -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard error of an array over one axis, in double precision.

        **Arguments:**

        - `name`: name of the array.
        - `over`: name of the axis.

        **Returns:** two arrays without the axis. The error is zero if the axis has length one.

        **Raises:** `KeyError` if there is no such array, `ValueError` if it has no such axis.
        """
        dims, values = self._variable(name)
        if over not in dims:
            fail("over", f"one of the axes {', '.join(dims)} of {name}", repr(over))
        return mean_and_standard_error(values.astype(np.float64), axis=dims.index(over))

    # --- conversion ---

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset`. Raises an `ImportError` if xarray is not installed."""
        try:
            import xarray
        except ImportError:
            raise ImportError("to_xarray needs xarray: pip install 'jlibo[xarray]'.") from None
        return xarray.Dataset(
            {name: (dims, values) for name, (dims, values) in self.arrays.items()},
            coords={name: (dims, values) for name, (dims, values) in self.coords.items()},
            attrs=dict(self.attrs),
        )

    @front_door
    def to_dataframe(self, *names: str) -> Any:
        """Return a `pandas.DataFrame` with a row per entry and a column per coordinate and array.

        **Arguments:**

        - `names`: the arrays; by default all. One of them must have the axes of all others, whose values are
          repeated: `regret[task, step]` goes with `num_explore[task]`, but not with `support[task, group]`.

        **Raises:** `ValueError` if no array has all axes, `ImportError` if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_dataframe needs pandas: pip install 'jlibo[pandas]'.") from None
        variables = {name: self._variable(name) for name in (names or self.arrays)}
        if not variables:
            return pandas.DataFrame()
        dims, longest = max(variables.values(), key=lambda variable: len(variable.dims))
        for name, variable in variables.items():
            if not set(variable.dims) <= set(dims):
                named = ", ".join(f"{other}[{', '.join(v.dims)}]" for other, v in variables.items())
                fail("names", f"arrays whose axes are within {dims}; choose some of {named}", repr(name))
        columns = {}
        for place, dim in enumerate(dims):
            along = {dim: self.coord(dim)} | {n: v.values for n, v in self.coords.items() if v.dims == (dim,)}
            for name, values in along.items():
                shape = [1] * len(dims)
                shape[place] = -1
                columns[name] = np.broadcast_to(values.reshape(shape), longest.shape).ravel()
        for name, (own, values) in variables.items():
            order = [own.index(dim) for dim in dims if dim in own]
            shape = [size if dim in own else 1 for dim, size in zip(dims, longest.shape, strict=True)]
            values = values.transpose(order).reshape(shape)
            columns[name if name not in columns else f"{name}_value"] = np.broadcast_to(
                values, longest.shape
            ).ravel()
        return pandas.DataFrame(columns)

    # --- files ---

    @front_door
    def save(self, path: str | Path) -> Path:
        """Write one `.npz` file atomically, and return its path. Equal content gives equal bytes."""
        header = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "arrays": [[name, list(variable.dims)] for name, variable in self.arrays.items()],
            "coords": [[name, list(variable.dims)] for name, variable in self.coords.items()],
            "attrs": dict(self.attrs),
        }
        members = {f"array/{name}": values for name, (_, values) in self.arrays.items()}
        members |= {f"coord/{name}": values for name, (_, values) in self.coords.items()}
        path = Path(path)
        files.write_atomically(path, lambda file: named_file.write_arrays(file, header, members))
        return path

    @classmethod
    @front_door
    def load(cls, path: str | Path, *, max_bytes: int | None = None) -> "Labelled":
        """Return the `Labelled` that `save` wrote to `path`. Nothing is unpickled.

        **Arguments:**

        - `path`: the file.
        - `max_bytes`: limit on the size of the arrays in memory. By default 100 times the size of the file
          (256 MiB for small files), and at most half of the free memory. A file from an untrusted source can
          unpack to far more than its size suggests.

        **Raises:** `NamedFileError`, a `ValueError` that names the file, if it is not a saved result or
        exceeds the limit.
        """
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise named_file.NamedFileError(f"'{printable(path)}' is not a saved result: it is no file.")
        with open(path, "rb") as file:
            try:
                return cls._read(file, max_bytes)
            except npz.NpzSizeError as error:
                raise named_file.NamedFileError(
                    f"'{printable(path)}' is too large: {error}. Pass a larger `max_bytes` to load it."
                ) from None
            except npz.NpzError as error:
                raise named_file.NamedFileError(
                    f"'{printable(path)}' is not a saved result: {error}."
                ) from None

    @classmethod
    def _read(cls, file: IO[bytes], max_bytes: int | None) -> "Labelled":
        header, members = named_file.read_arrays(file, max_bytes=max_bytes)
        found = (header.get("format"), header.get("format_version"))
        if found != (FORMAT, FORMAT_VERSION):
            kinds = " ".join(map(described, found))
            raise named_file.NamedFileError(
                f"it is of format {kinds}, and this version of jlibo reads '{FORMAT}' {FORMAT_VERSION}"
            )
        arrays = _variables(header.get("arrays"), "array", members)
        coords = _variables(header.get("coords"), "coord", members)
        if members:
            raise named_file.NamedFileError(f"it has a member '{printable(min(members))}' that is not listed")
        if not isinstance(header.get("attrs"), dict):
            raise named_file.NamedFileError("its attrs are no JSON object")
        try:
            return cls(arrays, coords, header["attrs"])
        except ValueError as error:
            raise named_file.NamedFileError(f"its arrays do not fit each other: {printable(error)}") from None


def _variables(listed: Any, kind: str, members: dict[str, np.ndarray]) -> dict[str, Variable]:
    """Remove the variables that a header lists from `members`, and return them."""
    answer = {}
    for entry in listed if isinstance(listed, list) else [None]:
        match entry:
            case [str(name), [*dims]] if all(isinstance(dim, str) for dim in dims):
                values = members.pop(f"{kind}/{name}", None)
                if values is None:
                    raise named_file.NamedFileError(
                        f"it has no {kind} '{printable(name)}', which its header lists"
                    )
                answer[name] = Variable(tuple(dims), values)
            case _:
                raise named_file.NamedFileError(f"its header does not list its {kind}s")
    return answer


def _places_of(name: str, known: np.ndarray, wanted: Any) -> np.ndarray:
    if known.dtype.kind in "fc":
        # Tolerance: a value that was rounded to single precision must still be found.
        found = np.flatnonzero(np.isclose(known, wanted, rtol=1e-6, atol=0))
    else:
        found = np.flatnonzero(known == wanted)
    if found.size == 0:
        fail("sel", f"{name} among {known.tolist()}", repr(wanted))
    return found
