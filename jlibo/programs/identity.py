"""What a stored program depends on, as text: the function and its arguments, sources, versions, machine.

A program is found by the digest of this text. It has to contain everything that the compiled code depends on,
and nothing that differs between two processes that could share it.

| here          | what it is                                                                              |
|---------------|-----------------------------------------------------------------------------------------|
| `describe`    | the arguments of a function: shapes of arrays, and the values of everything else        |
| `settings`    | the settings of jax that affect tracing                                                 |
| `sources`     | a digest of the files of this package                                                   |
| `constants`   | the module constants of the numeric packages, which a script may have changed           |
| `versions`    | of jax, its compiler and equinox                                                        |
| `machine`     | the processor's instructions, and the threads that the compiler divides work among      |
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
"""The settings of jax that affect tracing."""
NUMERIC = (
    *("belief", "features", "meta", "policies", "solver"),
    *(f"tune.{name}" for name in ("engine", "arrays", "ask", "outlook", "insight", "portfolio")),
    *("tune.space.dictionary", "tune.space.joint"),
)
"""Packages and modules whose constants may be part of a program; `import jlibo` imports all of them."""
_VARIABLES = ("XLA_FLAGS", "NPROC")


class Unknown(Exception):
    """An argument has no description that is the same in every process. The message names its type."""


def describe(value: Any) -> str:
    """Return a text that determines a value, with only shape and dtype of its arrays.

    **Raises:** `Unknown`: the value contains an object of a class from outside of this package, whose code
    may change while its description stays the same.
    """
    kind, members = type(value), cast(Any, value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return f"{kind.__name__}:{value!r}"
    if isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return f"array{tuple(value.shape)}{value.dtype}{'~' * is_weak(value)}"
    if isinstance(value, np.dtype):
        return f"dtype:{value}"
    if isinstance(value, type) and value.__module__.split(".")[0] in ("numpy", "builtins", "ml_dtypes"):
        return f"type:{value.__module__}.{value.__qualname__}"
    own = kind.__module__.split(".")[0] == "jlibo" and "<locals>" not in kind.__qualname__
    name = f"{kind.__module__}.{kind.__qualname__}" if own else kind.__name__
    if own and dataclasses.is_dataclass(value):
        fields = (f"{one.name}={describe(getattr(value, one.name))}" for one in dataclasses.fields(value))
        return f"{name}({','.join(fields)})"
    if kind in (tuple, list) or (own and isinstance(value, tuple)):
        return f"{name}[{','.join(map(describe, members))}]"
    if kind in (set, frozenset):
        return f"{name}[{','.join(sorted(map(describe, members)))}]"
    if kind is dict:
        return f"{name}[{','.join(f'{describe(key)}:{describe(one)}' for key, one in value.items())}]"
    raise Unknown(f"{kind.__module__}.{kind.__qualname__}")


def is_weak(value: Any) -> bool:
    """Return whether an array takes the precision of the arrays that it is combined with."""
    return bool(getattr(value, "weak_type", False))


def settings() -> tuple[Any, ...]:
    """Return the settings of jax in this thread that affect tracing."""
    return tuple(getattr(jax.config, name) for name in SETTINGS)


def versions() -> list[str]:
    """Return the versions of the packages that make a program."""
    return [f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "equinox")]


@functools.cache
def sources() -> str:
    """Return a digest of the files of this package."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(str(file.relative_to(package)).encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def constants() -> str:
    """Return a digest of the constants of the numeric modules as they are now."""
    found = []
    for name, module in sorted(sys.modules.items()):
        if f"{name}.".startswith(tuple(f"jlibo.{one}." for one in NUMERIC)):
            for constant, value in sorted(vars(module).items()):
                if constant.isupper():
                    with contextlib.suppress(Unknown):
                        found.append(f"{name}.{constant}={describe(value)}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


@functools.cache
def machine() -> str:
    """Return what compiled code depends on: the processor, and the number of threads that share its work."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = ("model name", "flags", "Features", "CPU part", "isa")
        parts += sorted({line for line in lines if line.split(":")[0].strip() in names})
    except OSError:
        parts.append(platform.node())  # without the list of instructions, only the same machine is the same
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return "\n".join([*parts, f"{cores} cores", *(f"{name}={os.environ.get(name)}" for name in _VARIABLES)])
