"""Compiled programs on disk, in the folder `programs`, for functions that later processes call again.

jax's own cache of compiled programs is switched on for a whole process, by its configuration, and needs the
traced program to find the compiled one. A library must not change the configuration of its users, and tracing
takes as long as an answer may take. Here a program is found by what it was made from (`jlibo.programs.
identity`), before it is traced.

A file begins with its own name and a digest of its content. The content is the executable as jax serialises
it, and the structure of the results; both are pickled, since jax's form is. Reading a file therefore runs it,
as calling any compiled program does: files are private (`jlibo.programs.folder`), and one that other users
could have written is not read. A file that is damaged, or that another version of jax cannot load, is ignored
and written again.
"""

import contextlib
import hashlib
import logging
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple, final

import jax

from jlibo.files import write_atomically
from jlibo.private_files import NotPrivate, check_private_folder, read_private_file
from jlibo.programs.folder import private_folder, shrink, warn_unused

MOST_BYTES = 500_000_000
"""Size of the folder above which the programs that were not used for the longest time are removed."""
_MAGIC = "jlibo-executable 1"

logger = logging.getLogger(__name__)


@final
class Executable(NamedTuple):
    """A compiled function of a list of arrays, and the structure of its results."""

    call: Any
    """The function of jax, from arrays to a list of arrays."""
    shapes: Any
    """The results, with shapes in place of arrays."""
    structure: Any
    """The structure of the results."""


@final
class Stored(NamedTuple):
    """The content of a file, which is not loaded yet."""

    num_arguments: int
    shapes: Any
    program: bytes


def path_of(identity: str) -> Path | None:
    """Return the file of a program; None, at times with a warning, if programs cannot be stored."""
    try:
        folder = private_folder("programs")
    except NotPrivate as problem:
        warn_unused(f"{problem}: remove it if you do not know why")
        return None
    except (OSError, RuntimeError) as error:  # such as no home folder, or one that cannot be written to
        logger.debug("the cache folder cannot be used: %s", error)
        return None
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()}.bin"


def read(path: Path) -> Stored | None:
    """Return the content of a program's file; None if there is none or it is damaged."""
    try:
        content = read_private_file(path)
    except NotPrivate as problem:
        warn_unused(f"{problem}: remove it if you do not know why")
        return None
    except OSError:
        return None
    line, _, payload = content.partition(b"\n")
    if line != _first_line(path, payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # for `shrink`
    try:
        return Stored(*pickle.loads(payload))
    except Exception as error:
        logger.debug("a stored program cannot be read: %r", error)
        return None


def load(stored: Stored) -> Executable | None:
    """Return the program of a file; None if this version of jax cannot load it."""
    try:
        from jax.experimental.serialize_executable import deserialize_and_load

        structure = jax.tree.structure(stored.shapes)
        arguments = jax.tree.structure(((0,) * stored.num_arguments, {}))
        outputs = jax.tree.structure([0] * structure.num_leaves)
        devices = jax.local_devices()[:1]
        call = deserialize_and_load(stored.program, arguments, outputs, execution_devices=devices)
    except Exception as error:  # whatever it is, the program can be compiled
        logger.debug("a stored program cannot be loaded: %r", error)
        return None
    return Executable(call, stored.shapes, structure)


def packed(program: Executable, num_arguments: int) -> bytes | None:
    """Return a program as the content of a file; None if jax cannot serialise it.

    Call it before the program runs for the first time: XLA cannot serialise a sort that has run.
    """
    try:
        from jax.experimental.serialize_executable import serialize

        compiled, _, _ = serialize(program.call)
        return pickle.dumps(tuple(Stored(num_arguments, program.shapes, compiled)))
    except Exception as error:
        logger.debug("a program cannot be stored: %r", error)
        return None


def save(path: Path, payload: bytes) -> None:
    """Write a file, and remove old ones if the folder has become large. Nothing happens on an error."""
    try:
        content = _first_line(path, payload) + b"\n" + payload
        check_private_folder(path.parent)
        write_atomically(path, lambda file: file.write(content), mode=0o600)
        shrink(path.parent, MOST_BYTES)
    except (NotPrivate, OSError) as error:  # such as a full disk: the program runs all the same
        logger.debug("a program cannot be stored: %r", error)


def _first_line(path: Path, payload: bytes) -> bytes:
    return f"{_MAGIC} {path.stem} {hashlib.sha256(payload).hexdigest()}".encode()
