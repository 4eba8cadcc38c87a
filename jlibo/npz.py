"""Reading of untrusted `.npz` files: sizes are checked before unpacking, and nothing is unpickled.

A deflated member can be a thousand times larger than the file, so the reader first compares three sizes: what
the zip directory declares, what the shape and dtype in the `.npy` header need, and the limit. Only then is an
array allocated.
"""

import math
import os
import zipfile
from typing import IO

import numpy as np

from jlibo.host_memory import free_host_memory
from jlibo.printable import printable

MAX_RATIO = 100
"""Default limit on unpacked bytes per byte of the file. Results of sweeps have ratios of 1 to 20."""
ALWAYS_ALLOWED = 256 * 2**20
"""Unpacked bytes that are allowed at any ratio: small files of zeros are harmless."""
MEMORY_SHARE = 0.5
"""Share of the free memory that the arrays of one file may take by default."""


class NpzError(ValueError):
    """The file is not an `.npz` file that can be read safely. The message does not name the file."""


class NpzSizeError(NpzError):
    """The arrays of the file are larger than the limit."""


def read_npz(file: IO[bytes], *, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file by name.

    **Arguments:**

    - `file`: an open, seekable binary file.
    - `max_bytes`: limit on the sum of the unpacked arrays. By default 100 times the size of the file (256 MiB
      for small files), and at most half of the free memory.

    **Returns:** a dictionary from names, without `.npy`, to arrays.

    **Raises:** `NpzSizeError` if the arrays are larger than the limit, `NpzError` if the file is anything
    other than a zip of plain `.npy` arrays. Both are raised before memory is allocated for the arrays.
    """
    limit = default_limit(_size_of(file)) if max_bytes is None else max_bytes
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_directory(members, limit)
            needed = sum(_check_member(archive, member) for member in members)
            if needed > limit:
                raise _too_large(needed, limit)
            return {member.filename.removesuffix(".npy"): _read(archive, member) for member in members}
    except NpzError:
        raise
    except Exception as error:  # a hostile file can make zipfile, zlib and NumPy raise almost anything
        raise NpzError(f"it cannot be read ({type(error).__name__}: {printable(error)})") from None


def default_limit(file_size: int) -> int:
    """Return the unpacked bytes that a file of this size may have by default."""
    return min(max(ALWAYS_ALLOWED, MAX_RATIO * file_size), int(MEMORY_SHARE * free_host_memory()))


def _size_of(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _check_directory(members: list[zipfile.ZipInfo], limit: int) -> None:
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise NpzError("it has two members of one name")
    for member in members:
        # zipfile unpacks these two formats in pieces; bzip2 and LZMA members are unpacked at once.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NpzError("it is compressed in a way that NumPy does not use")
        if not member.filename.endswith(".npy"):
            raise NpzError("it has a member that is no array")
    declared = sum(member.file_size for member in members)
    if declared > limit:
        raise _too_large(declared, limit)


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the bytes of one array; raise if its header does not match the size in the zip directory."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise NpzError(f"it has an array of format {version}, and 1.0 or 2.0 can be read")
        if dtype.hasobject or dtype.kind == "V":
            raise NpzError(f"it has an array of dtype {dtype}, and only plain numbers and text are read")
        if any(size < 0 for size in shape) or stream.tell() + math.prod(shape) * dtype.itemsize != (
            member.file_size
        ):
            raise NpzError("the shape of an array does not fit its size in the file")
    # An empty array takes no bytes, but its other axes can have any length.
    return math.prod(max(1, size) for size in shape) * max(1, dtype.itemsize)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):  # zipfile verifies the checksum at the end of the member
            raise NpzError("an array is longer than its header says")
        return array


def _too_large(needed: int, limit: int) -> NpzSizeError:
    return NpzSizeError(f"its arrays take {needed} bytes, above the limit of {limit} bytes")
