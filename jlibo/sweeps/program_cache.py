"""Cache of traced and compiled programs on disk, so that a later process neither traces nor compiles them.

jax stores compiled programs if it has a cache folder (`jax_compilation_cache_dir`; the command line sets it).
To look one up, jax must first trace the Python functions. For a whole experiment that takes longer than
running it. The traced program is therefore stored too, in the subfolder `traced/`. Its file name is a digest
of everything that it depends on: the description of the caller, the sources of this package, the versions and
settings of jax. Traced programs are not stored without a cache folder, or without the package `flatbuffers`,
which writes them. A later process then traces again, and still finds the compiled program.

A stored program is code: a user who can write to the cache can change the results of an experiment. Folders
are therefore created with mode 0700 and files with mode 0600. Files that other users own or could have
written are not used, with a warning (`private_files`). A file begins with its own name and a digest of its
content, so damaged and renamed files are not used either.
"""

import atexit
import contextlib
import hashlib
import importlib.util
import json
import os
import stat
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax import export

from jlibo.files import is_draft, write_atomically
from jlibo.private_files import (
    NotPrivate,
    check_private_file,
    check_private_folder,
    is_own_file,
    make_private_folder,
    read_private_file,
)

SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
"""The settings of jax that affect tracing."""

_OPTIMISATION_LEVEL = "xla_backend_optimization_level"


_MAGIC = "jlibo-program 2"


class ProgramCacheWarning(UserWarning):
    """Stored programs are not used; the message says why."""


def compiler_options(platform: str) -> dict[str, str | bool] | None:
    """Return the compiler's options for programs of sweeps and experiments; None for its defaults.

    On a CPU, level 3 (XLA's default) takes a seventh longer to compile than level 2, and the program runs no
    faster. A level that is set in the environment variable `XLA_FLAGS` is kept.
    """
    if platform != "cpu" or _OPTIMISATION_LEVEL in os.environ.get("XLA_FLAGS", ""):
        return None
    return {_OPTIMISATION_LEVEL: "2"}


def keep_programs() -> Path | None:
    """Store compiled and traced programs in the user's cache folder.

    Returns the folder. Returns None, with a `ProgramCacheWarning`, if the folder cannot be used or if other
    users could have written to it.
    """
    # The XDG specification requires an absolute path and says to ignore others.
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
        folder = root / "jlibo" / "compiled"
        make_private_folder(folder, below=root)
        _check_content(folder)
        if (folder / "traced").exists():
            check_private_folder(folder / "traced")
            _check_content(folder / "traced")
    except NotPrivate as problem:
        _warn(f"{problem}: remove it if you do not know why")
        _keep_in(None)
        return None
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _warn(f"the cache folder cannot be used ({error})")
        _keep_in(None)
        return None
    _keep_in(folder)
    # By default jax stores only programs that took long to compile. The short ones add up here.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # jax creates files according to the umask. Until their mode is set, the mode of the folder protects them.
    atexit.register(_close_files, folder)
    return folder


def _keep_in(folder: Path | None) -> None:
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))


def _check_content(folder: Path) -> None:
    """Check every file of a folder, since jax does not check its own; remove drafts of killed processes."""
    for entry in folder.iterdir():
        if entry.name == "traced" and folder.name != "traced":
            continue
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            try:
                check_private_file(entry)
            except NotPrivate as problem:
                # A killed process could not restrict the mode of its files. They can be computed again.
                if not is_own_file(entry):
                    raise
                entry.unlink()
                _warn(f"{problem} and was removed")
            if is_draft(entry):
                entry.unlink()


def _close_files(folder: Path) -> None:
    """Remove the permissions of other users on files that jax wrote."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if is_own_file(entry) and stat.S_IMODE(entry.lstat().st_mode) & 0o077:
                    entry.chmod(0o600)


def _warn(problem: str) -> None:
    warnings.warn(f"compiled programs on disk are not used: {problem}.", ProgramCacheWarning, stacklevel=3)


def stored(
    description: str, make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], Any]]
) -> tuple[Callable[..., Any], Any]:
    """Return the function that `make` returns and what it says about it, from disk if they are stored.

    **Arguments:**

    - `description`: identifies the function. `make` is not called if a function is stored under the same
      description by the same version of jlibo and its libraries, with the same settings of jax.
    - `make`: returns a function, its arguments or their shapes, and a description of it as JSON. Arguments
      and results may contain only builtin containers.

    **Returns:** a function to be compiled, and its description.
    """
    path = _path(description)
    found = None if path is None else _load(path)
    if found is None:
        fn, args, about = make()
        exported = None if path is None else _export(fn, args)
        if path is None or exported is None:
            return fn, about
        _save(path, exported, about)
        found = exported, json.loads(json.dumps(about))
    # Also in the process that traced it: a later process looks up the compiled form of the stored program.
    exported, about = found
    return exported.call, about


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


def _load(path: Path) -> tuple[export.Exported, Any] | None:
    try:
        check_private_folder(path.parent.parent)
        check_private_folder(path.parent)
        line, _, payload = read_private_file(path).partition(b"\n")
        if line.decode("ascii", "replace") != _first_line(path, payload):
            return None
        about, _, program = payload.partition(b"\n")
        return export.deserialize(bytearray(program)), json.loads(about)
    except NotPrivate as problem:
        _warn(f"{problem}")
        return None
    except Exception:
        # Any damaged file of a cache can be computed again.
        return None


def _first_line(path: Path, payload: bytes) -> str:
    return f"{_MAGIC} {path.stem} {hashlib.sha256(payload).hexdigest()}"


def _export(fn, args) -> export.Exported | None:
    try:
        return export.export(jax.jit(fn))(*jax.tree.map(_shape_of, args))
    except ValueError:
        # An operation of the program cannot be serialised on this platform.
        return None


def _save(path: Path, exported: export.Exported, about: Any) -> None:
    try:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private_folder(folder)
        payload = json.dumps(about).encode() + b"\n" + bytes(exported.serialize())
        content = f"{_first_line(path, payload)}\n".encode() + payload
        write_atomically(path, lambda file: file.write(content), mode=0o600)
    except NotPrivate as problem:
        _warn(f"{problem}")
    except OSError:
        # The program can run without being stored.
        return
