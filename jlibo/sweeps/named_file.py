"""A JSON header and named arrays in one `.npz` file: equal content is equal bytes, and nothing is pickled.

`numpy.savez` writes the time of day into the file, so that two equal results differ. Here every member has
the same date, and members come in the order of their names. NumPy reads the files with `allow_pickle=False`.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from jlibo.files import is_draft as is_draft
from jlibo.files import write_atomically as write_atomically

HEADER = "header"
_DATE = (1980, 1, 1, 0, 0, 0)


class NamedFileError(ValueError):
    """The file is not what it should be; the message says in which way."""


def write_arrays(file: IO[bytes], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write header and arrays into an open file."""
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":"))
    members = {HEADER: np.frombuffer(text.encode(), np.uint8)}
    for name, array in arrays.items():
        if name == HEADER or array.dtype.hasobject or array.dtype.kind == "V":
            raise ValueError(f"cannot store '{name}' of dtype {array.dtype}.")
        members[name] = array
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(members):
            member = zipfile.ZipInfo(f"{name}.npy", _DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o600 << 16
            with archive.open(member, "w", force_zip64=True) as stream:
                # Not `np.ascontiguousarray`, which gives an axis to an array that has none.
                values = np.asarray(members[name], order="C")
                np.lib.format.write_array(stream, values, version=(1, 0), allow_pickle=False)


def read_arrays(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays that `write_arrays` wrote."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile) or HEADER not in archive.files:
                raise NamedFileError("it has no header")
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
    except NamedFileError:
        raise
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise NamedFileError(f"it cannot be read ({error})") from None
    return header, arrays


def to_bytes(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The file as bytes."""
    buffer = io.BytesIO()
    write_arrays(buffer, header, arrays)
    return buffer.getvalue()
