"""Traced programs on disk, for the commands of sweeps and experiments; a later process does not trace them.

jax stores compiled programs if it has a cache folder (`jax_compilation_cache_dir`; the command line sets it).
To look one up, jax must first trace the Python functions. For a whole experiment that takes longer than
running it. The traced program is therefore stored too, in the subfolder `traced/`. Its file name is a digest
of everything that it depends on: the description of the caller, the sources of this package, the versions and
settings of jax. Traced programs are not stored without a cache folder, or without the package `flatbuffers`,
which writes them. A later process then traces again, and still finds the compiled program.

Files are private (`jlibo.programs.folder`). A file begins with its own name and a digest of its content, so
damaged and renamed files are not used.
"""

import atexit
import contextlib
import hashlib
import importlib.util
import json
import stat
from collections.abc import Callable
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
    read_private_file,
)
from jlibo.programs import identity
from jlibo.programs.collector import collector_paused
from jlibo.programs.folder import is_wanted, private_folder, warn_unused

_MAGIC = "jlibo-program 2"


def keep_programs() -> Path | None:
    """Store compiled and traced programs in the user's cache folder.

    Returns the folder. Returns None if the environment variable `JLIBO_CACHE` forbids it, and, with a
    `ProgramCacheWarning`, if the folder cannot be used or if other users could have written to it.
    """
    if not is_wanted():
        _keep_in(None)
        return None
    try:
        folder = private_folder("compiled")
        _check_content(folder)
        if (folder / "traced").exists():
            check_private_folder(folder / "traced")
            _check_content(folder / "traced")
    except NotPrivate as problem:
        warn_unused(f"{problem}: remove it if you do not know why")
        _keep_in(None)
        return None
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        warn_unused(f"the cache folder cannot be used ({error})")
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
                warn_unused(f"{problem} and was removed")
            if is_draft(entry):
                entry.unlink()


def _close_files(folder: Path) -> None:
    """Remove the permissions of other users on files that jax wrote."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if is_own_file(entry) and stat.S_IMODE(entry.lstat().st_mode) & 0o077:
                    entry.chmod(0o600)


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
    parts = [description, jax.default_backend(), *map(str, identity.settings())]
    parts += [*identity.versions(), identity.sources()]
    digest = hashlib.sha256("\n".join(parts).encode())
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
        warn_unused(f"{problem}")
        return None
    except Exception:
        # Any damaged file of a cache can be computed again.
        return None


def _first_line(path: Path, payload: bytes) -> str:
    return f"{_MAGIC} {path.stem} {hashlib.sha256(payload).hexdigest()}"


@collector_paused()
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
        warn_unused(f"{problem}")
    except OSError:
        # The program can run without being stored.
        return
