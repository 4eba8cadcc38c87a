"""Checks of the arguments of public functions.

Every message names the argument, what was expected and what was passed. Checks of *shape* work on traced
arrays too. Checks of *values* apply only to concrete arrays; they do nothing under `jit`, `vmap` or `grad`,
where the functions return a status instead.
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
    # jaxtyping subscripts the members of a union. Since NumPy 2.5 numpy.typing.ArrayLike is a type alias
    # object, which has no members.
    ArrayLike = jax.typing.ArrayLike
"""Values that public functions convert to arrays: arrays, numbers and nested sequences of them."""
DType = str | type[Any] | np.dtype[Any]
"""A dtype, such as jnp.float32 or "float64"."""


def is_concrete(value: Any) -> bool:
    """Return whether `value` is known now, that is, not traced."""
    return not isinstance(value, jax.core.Tracer)


def fail(argument: str, expected: str, got: object) -> NoReturn:
    """Raise the `ValueError` that all checks raise."""
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
    """Check a shape against sizes (`int`) and named axes of any size (`str`; the name is for the message)."""
    shape = tuple(np.shape(value))
    fits = len(shape) == len(expected) and all(
        isinstance(want, str) or want == have for want, have in zip(expected, shape, strict=True)
    )
    if not fits:
        fail(argument, f"an array of shape [{', '.join(map(str, expected))}]", f"shape {list(shape)}")


def check_same_tree(argument: str, expected: str, want: Any, got: Any) -> None:
    """Check that `got` is a pytree of the same structure, shapes and dtypes as `want`.

    A dtype of `want` that is weak, such as that of a Python number, fits any other, as in `jax.lax.scan`.
    """
    wanted, gotten = (jax.tree.map(_shape_and_dtype, tree) for tree in (want, got))
    if jax.tree.structure(wanted) == jax.tree.structure(gotten):
        wanted = jax.tree.map(lambda w, g: _with_dtype(w, g.dtype) if w.weak_type else w, wanted, gotten)
        if all(
            (w.shape, w.dtype) == (g.shape, g.dtype)
            for w, g in zip(jax.tree.leaves(wanted), jax.tree.leaves(gotten), strict=True)
        ):
            return
    import chex  # late: it names the difference, which is needed only now, and takes long to import

    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(wanted, gotten)
    except AssertionError as error:
        fail(argument, expected, f"another one: {str(error).partition('failed:')[2].strip()}")


def _shape_and_dtype(leaf: Any) -> jax.ShapeDtypeStruct:
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def _with_dtype(leaf: jax.ShapeDtypeStruct, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, dtype)


def check_finite(argument: str, value: Any) -> None:
    """Check that no entry is NaN or infinite. The message has the position of the first bad entry."""
    if not is_concrete(value):
        return
    array = np.asarray(value)
    # A finite sum has only finite terms, and a sum is much faster than a mask of booleans.
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):
            return
    bad = ~np.isfinite(array)
    if bad.any():
        where = [int(i) for i in np.argwhere(bad)[0]]
        place = f" at {where}" if where else ""
        fail(argument, "finite everywhere", f"{int(bad.sum())} NaN or infinite value(s), the first{place}")


def check_fits(argument: str, value: Any, dtype: Any, *, may_vanish: bool = False) -> None:
    """Check that `value` is finite, also after conversion to `dtype`, and that it does not vanish there.

    An array vanishes if it is not zero, but all its entries are below the smallest normal number of `dtype`:
    XLA treats them as zero.
    """
    if not is_concrete(value):
        return
    array, kind = np.asarray(value), np.finfo(dtype)
    with np.errstate(all="ignore"):
        total = np.abs(array.sum(dtype=kind.dtype))
    # The sum is fast and suffices for most valid arrays.
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
    """Check that every entry of `value` is within the bounds and not NaN."""
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
    """Check that `value` is a static size: a Python or NumPy integer of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        fail(argument, "a whole number known before tracing", f"{value!r} ({type(value).__name__})")
    if value < at_least:
        fail(argument, f"a whole number >= {at_least}", value)


def as_numpy(argument: str, value: Any, what: str) -> np.ndarray:
    """Return `value` as a NumPy array. `what` names its entries in errors on traced or ragged values."""
    leaves = jax.tree.leaves(value)
    if not all(is_concrete(leaf) for leaf in leaves):
        fail(argument, f"{what} known before tracing", "traced values")
    try:
        return np.asarray(value)
    except ValueError:  # NumPy rejects ragged lists
        return fail(argument, f"a list of {what}", value)
