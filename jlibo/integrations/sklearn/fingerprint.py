"""The name of a task derived from what determines its scores: data, estimator, scoring and splits. Internal.

Equal problems have equal names in every process, so that a search that is run again resumes its task. Values
without a stable text, such as an open file, give a new name, and so a new task.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator

NUM_DIGITS = 16
WITHOUT_EFFECT = ("n_jobs", "verbose")
"""Parameters of estimators that do not change scores."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def derived_name(X: Any, *rest: Any) -> str:
    """Return a task's name such as "150x4 9f86d081884c7d65".

    **Arguments:**

    - `X`: the inputs; their shape is part of the name.
    - `rest`: all else on which the scores depend: targets, estimators, functions, arrays, plain values.
    """
    digest = hashlib.blake2b(digest_size=NUM_DIGITS // 2)
    _add(digest, [X, *rest])
    shape = np.shape(X) if not scipy.sparse.issparse(X) else X.shape
    return f"{'x'.join(map(str, shape))} {digest.hexdigest()}"


def _add(digest: Any, value: Any) -> None:
    """Add a value and its type to a digest. Containers add their lengths, which keeps their parts apart."""
    match value:
        case np.ndarray():
            _add_array(digest, value)
        case None | bool() | int() | float() | complex() | str() | bytes() | np.generic():
            _add_text(digest, type(value).__name__, repr(value))
        case Mapping():
            _add_items(digest, "mapping", sorted(value.items(), key=lambda item: repr(item[0])))
        case list() | tuple():
            _add_items(digest, "sequence", value)
        case set() | frozenset():
            _add_items(digest, "set", sorted(value, key=repr))
        case BaseEstimator():
            _add_text(digest, "estimator", _full_name(type(value)))
            params = value.get_params(deep=False)
            _add(digest, {name: one for name, one in params.items() if name not in WITHOUT_EFFECT})
        case FunctionType():
            _add_text(digest, "function", _full_name(value))
            _add_code(digest, value.__code__)
        case type():
            _add_text(digest, "class", _full_name(value))
        case _ if scipy.sparse.issparse(value):
            rows = scipy.sparse.csr_array(value)
            rows.sum_duplicates()
            _add_items(digest, "sparse", [rows.shape, rows.data, rows.indices, rows.indptr])
        case _ if hasattr(value, "columns"):  # a DataFrame of any library
            _add_items(digest, "frame", [(str(name), np.asarray(value[name])) for name in value.columns])
        case _ if hasattr(value, "__array__"):
            _add_array(digest, np.asarray(value))
        case _:
            _add_text(digest, _full_name(type(value)), ADDRESS.sub("", repr(value)))


def _add_text(digest: Any, kind: str, text: str) -> None:
    content = text.encode(errors="surrogatepass")
    digest.update(f"{kind} {len(content)} ".encode())
    digest.update(content)


def _add_items(digest: Any, kind: str, items: Iterable[Any]) -> None:
    items = list(items)
    digest.update(f"{kind} {len(items)} ".encode())
    for item in items:
        _add(digest, item)


def _add_array(digest: Any, array: np.ndarray) -> None:
    digest.update(f"array {array.dtype.str} {array.shape} ".encode())
    if array.dtype.hasobject:
        for item in array.ravel().tolist():
            _add(digest, item)
    else:
        digest.update(np.ascontiguousarray(array).tobytes())


def _add_code(digest: Any, code: CodeType) -> None:
    """Add what a function does. Its constants include those of functions that it defines."""
    _add_items(digest, "code", [code.co_code, code.co_names])
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            _add(digest, constant)


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
