"""Programs that a later process neither traces nor compiles again.

jax keeps compiled programs on disk once it is told a folder (`jax_compilation_cache_dir`; the command line
does so). To look one up it must first trace the Python functions, which for a whole experiment takes longer
than the experiment. So the traced program is kept too, in `traced/` of the same folder, under a name made of
everything that it depends on: the description of the caller, the sources of this package, the versions and
settings of jax. Nothing is kept where jax has no such folder, or no `flatbuffers` package to write with: then
a later process traces again, and still finds what was compiled.
"""

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import export

SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
"""The settings of jax that change what is traced."""

CPU_OPTIONS: dict[str, str | bool] = {"xla_backend_optimization_level": "2"}
"""LLVM's third level (XLA's default) compiles a seventh longer, and what it makes runs no faster."""


class Program(NamedTuple):
    """A compiled program, and the shapes of its arguments."""

    call: Callable[..., Any]
    shapes: tuple[Any, ...]


def build(description: str, make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Program:
    """The program that `make` describes, which gives a function and its arguments or their shapes.

    Both have builtin containers alone. `make` is not called where the program is on disk: `description`
    must tell it from every other one.
    """
    path = _path(description)
    exported = None if path is None else _load(path)
    if exported is None:
        fn, args = make()
        if path is not None:
            exported = _export(fn, args)
        if path is None or exported is None:
            shapes = jax.tree.map(_shape_of, args)
            return Program(_compile(fn, shapes), shapes)
        _save(path, exported)
    # Also in the process that traced it: what is compiled must be what the next one looks up.
    leaves = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    shapes, _ = jax.tree.unflatten(exported.in_tree, leaves)
    return Program(_compile(exported.call, shapes), shapes)


def _compile(fn, shapes):
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    return jax.jit(fn).lower(*shapes).compile(compiler_options=options)


def _shape_of(leaf):
    array = jax.numpy.asarray(leaf) if not hasattr(leaf, "shape") else leaf
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _path(description: str) -> Path | None:
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if not folder or importlib.util.find_spec("flatbuffers") is None:
        return None
    parts = [
        description,
        jax.default_backend(),
        *(f"{name}={getattr(jax.config, name)}" for name in SETTINGS),
    ]
    parts += [f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "equinox")]
    digest = hashlib.sha256("\n".join(parts).encode())
    package = Path(__file__).resolve().parents[1]
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(str(file.relative_to(package)).encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return Path(folder) / "traced" / f"{digest.hexdigest()}.stablehlo"


def _load(path: Path) -> export.Exported | None:
    try:
        return export.deserialize(bytearray(path.read_bytes()))
    except FileNotFoundError:
        return None
    except Exception:
        # Whatever is wrong with a file in a cache, it can be made again.
        return None


def _export(fn, args) -> export.Exported | None:
    try:
        return export.export(jax.jit(fn))(*jax.tree.map(_shape_of, args))
    except ValueError:
        # Something in it has no lasting form on this platform.
        return None


def _save(path: Path, exported: export.Exported) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(exported.serialize())
        os.replace(file.name, path)
    except OSError:
        # A cache that cannot be written is no reason not to run.
        return
