"""Files with a JSON header and named arrays: `.npz` with equal bytes for equal content, nothing pickled.

`numpy.savez` writes the current time into the file, so the files of equal results differ. Here every member
has the same date, and members are sorted by name. Files are read with a limit on their unpacked size
(`jlibo.npz`). `numpy.load` with `allow_pickle=False` reads them too.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from jlibo import npz
from jlibo.printable import printable

HEADER = "header"
_DATE = (1980, 1, 1, 0, 0, 0)


class NamedFileError(npz.NpzError):
    """The file was not written by `write_arrays`, or is damaged; the message says what is wrong."""


def write_arrays(file: IO[bytes], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write header and arrays to an open file. Raises a `ValueError` for object and structured dtypes."""
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":"))
    members = {HEADER: np.frombuffer(text.encode(), np.uint8)}
    for name, array in arrays.items():
        if name == HEADER or array.dtype.hasobject or array.dtype.kind == "V":
            raise ValueError(f"cannot store '{name}' of dtype {array.dtype}.")
        members[name] = array
    archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
    try:
        for name in sorted(members):
            member = zipfile.ZipInfo(f"{name}.npy", _DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o600 << 16
            with archive.open(member, "w", force_zip64=True) as stream:
                # `np.ascontiguousarray` would add an axis to a zero-dimensional array.
                values = np.asarray(members[name], order="C")
                np.lib.format.write_array(stream, values, version=(1, 0), allow_pickle=False)
        archive.close()
    except BaseException:
        # Closing the archive now would raise another error and hide the first one, such as a full disk.
        archive.fp = None
        raise


def read_arrays(
    file: IO[bytes], *, max_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays that `write_arrays` wrote.

    `max_bytes` limits the unpacked size, see `npz.read_npz`. All errors are subclasses of `npz.NpzError`.
    """
    arrays = npz.read_npz(file, max_bytes=max_bytes)
    if HEADER not in arrays:
        raise NamedFileError("it has no header")
    encoded = arrays.pop(HEADER)
    if encoded.dtype != np.uint8 or encoded.ndim != 1:
        raise NamedFileError("its header is no text")
    try:
        header = json.loads(encoded.tobytes())
    except (ValueError, RecursionError) as error:
        raise NamedFileError(f"its header is not JSON ({printable(error)})") from None
    if not isinstance(header, dict):
        raise NamedFileError("its header is no JSON object")
    return header, arrays


def to_bytes(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the file that `write_arrays` writes, as bytes."""
    buffer = io.BytesIO()
    write_arrays(buffer, header, arrays)
    return buffer.getvalue()
