"""Hyper-parameter fields: arrays, so that a sweep over them does not retrace, checked at construction."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jlibo.checks import check_finite, check_fits, check_range


def as_hyper_parameter(name: str, value: Any, **bounds: float) -> Array:
    """Return `value` as an array; it is checked if it is concrete."""
    check_finite(name, value)
    check_range(name, value, **bounds)
    # A number, also a NumPy one, becomes weakly typed: it takes the precision of the data.
    value = float(value) if isinstance(value, int | float | np.number) else value
    dtype = jnp.result_type(getattr(value, "dtype", float))
    if jnp.issubdtype(dtype, jnp.floating):
        check_fits(name, value, dtype, may_vanish=True)
    return jnp.asarray(value)


def hyper_parameter(name: str, *, default: float | None = None, **bounds: float) -> Any:
    """Return a module field that converts its value to an array and checks it if it is concrete."""

    def convert(value):
        return as_hyper_parameter(name, value, **bounds)

    if default is None:
        return eqx.field(converter=convert)
    return eqx.field(converter=convert, default=default)
