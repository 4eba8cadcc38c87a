"""Front-door checks: what a public function says about an argument it cannot use.

Every message names the argument, what was expected and what came. Checks of *shape* work on traced arrays
too; checks of *values* look only at arrays that hold values now, and are silent under `jit`, `vmap` or
`grad`, where the functions answer with a status instead.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.core
import jax.typing
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:
    # jaxtyping subscripts the members of a union. From NumPy 2.5 on numpy.typing.ArrayLike is a type alias
    # object, which has none.
    ArrayLike = jax.typing.ArrayLike
"""Whatever a public function converts to an array: arrays, numbers and nested sequences of them."""


def is_concrete(value: Any) -> bool:
    """Whether `value` holds numbers now, rather than standing for numbers to come."""
    return not isinstance(value, jax.core.Tracer)


def fail(argument: str, expected: str, got: object) -> NoReturn:
    """Raise the one error that all checks raise."""
    raise ValueError(f"`{argument}` should be {expected}, but got {got}.")


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the entry of `known` that is most like `name`, or None if none is."""
    # Matching takes a time that grows with the square of the length.
    close = difflib.get_close_matches(str(name)[:100], list(known), n=1, cutoff=0.5)
    return close[0] if close else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the hint at the end of a message about an unknown name; empty if no known name is like it."""
    close = nearest(name, known)
    return "" if close is None else f" (did you mean {close!r}?)"


def did_you_mean_or_known(name: object, known: Iterable[str]) -> str:
    """Return a sentence after a message about an unknown name: the nearest known name, or else all."""
    known = list(known)
    close = nearest(name, known)
    return f" Known: {', '.join(known)}." if close is None else f" Did you mean '{close}'?"


def check_shape(argument: str, value: Any, expected: Sequence[int | str]) -> None:
    """Check a shape against sizes (`int`) and axes of any size (`str`, used as their name in the message)."""
    shape = tuple(np.shape(value))
    fits = len(shape) == len(expected) and all(
        isinstance(want, str) or want == have for want, have in zip(expected, shape, strict=True)
    )
    if not fits:
        fail(argument, f"an array of shape [{', '.join(map(str, expected))}]", f"shape {list(shape)}")


def check_finite(argument: str, value: Any) -> None:
    """Check that no entry is NaN or infinite, and say where the first bad one is."""
    if not is_concrete(value):
        return
    array = np.asarray(value)
    # A sum is finite only if every term is, and it is much quicker to find than a mask of booleans.
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):
            return
    bad = ~np.isfinite(array)
    if bad.any():
        where = [int(i) for i in np.argwhere(bad)[0]]
        place = f" at {where}" if where else ""
        fail(argument, "finite everywhere", f"{int(bad.sum())} NaN or infinite value(s), the first{place}")


def check_fits(argument: str, value: Any, dtype: Any, *, may_vanish: bool = False) -> None:
    """Check that `value` is finite and stays so in `dtype`, and that it does not vanish there.

    An array vanishes if it is not zero, but all entries are below the smallest normal number of `dtype`: XLA
    computes with those as with zero.
    """
    if not is_concrete(value):
        return
    array, kind = np.asarray(value), np.finfo(dtype)
    with np.errstate(all="ignore"):
        total = np.abs(array.sum(dtype=kind.dtype))
    # The sum is quick to find, and tells at once of most arrays that they are good.
    if kind.tiny * max(array.size, 1) < total < np.inf:
        return
    check_finite(argument, array)
    largest = np.abs(array).max(initial=0)
    if largest > kind.max:
        fail(argument, f"at most {kind.max:.2g} in size, the largest {kind.dtype}", f"{largest:.3g}")
    if 0 < largest < kind.tiny and not may_vanish:
        fail(
            argument,
            f"zero, or at least {kind.tiny:.2g} in size, the smallest normal {kind.dtype}",
            f"{largest:.3g} (rescale the data, or use float64)",
        )


def check_range(
    argument: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> None:
    """Check that every entry of `value` is a number within the bounds."""
    if not is_concrete(value):
        return
    array = np.asarray(value)
    bounds = [
        (at_least is None or bool((array >= at_least).all()), f">= {at_least}"),
        (above is None or bool((array > above).all()), f"> {above}"),
        (at_most is None or bool((array <= at_most).all()), f"<= {at_most}"),
    ]
    asked = [
        words
        for (_, words), bound in zip(bounds, (at_least, above, at_most), strict=True)
        if bound is not None
    ]
    if not all(good for good, _ in bounds):
        got = array.item() if array.ndim == 0 else f"values from {array.min()} to {array.max()}"
        fail(argument, f"a number {' and '.join(asked)}", got)


def check_count(argument: str, value: Any, *, at_least: int = 1) -> None:
    """Check that `value` is a whole Python number, as every static size must be."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        fail(argument, "a whole number known before tracing", f"{value!r} ({type(value).__name__})")
    if value < at_least:
        fail(argument, f"a whole number >= {at_least}", value)
