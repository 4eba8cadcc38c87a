"""Group ids: which base kernel each feature belongs to."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array

from jlibo.checks import as_numpy, fail


def validate_groups(
    argument: str, groups: Sequence[int] | np.ndarray | Array, num_features: int | None = None
) -> tuple[int, ...]:
    """Return `groups` as a static tuple; raise unless it has an id 0..p-1 per feature, without gaps."""
    ids = as_numpy(argument, groups, "group ids")
    if ids.ndim != 1 or ids.size == 0:
        fail(argument, "a list of one group id per feature", f"shape {list(ids.shape)}")
    if ids.dtype.kind not in "iu":
        fail(argument, "whole numbers, one group id per feature", f"dtype {ids.dtype}")
    if num_features is not None and ids.size != num_features:
        fail(argument, f"one group id for each of the {num_features} features", f"{ids.size} ids")
    if ids.min() < 0:
        fail(argument, "group ids >= 0", f"{ids.min()} for feature {int(ids.argmin())}")
    present = set(ids.tolist())
    missing = next(i for i in itertools.count() if i not in present)
    if missing <= ids.max():
        fail(argument, f"group ids 0..{ids.max()} without holes", f"no feature of group {missing}")
    return tuple(ids.tolist())
