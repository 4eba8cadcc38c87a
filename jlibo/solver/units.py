"""Exact scaling by powers of two: of a problem to magnitudes near one, and of its solution back.

The group lasso is equivariant. With `design` in units of 2^p and `targets` in units of 2^q, the coefficients
are in units of 2^(q - p), lam in units of 2^(p + q), and the objective and the gap in units of 2^(2q).
Squares of numbers near one neither overflow nor underflow. Multiplication by a power of two is exact, so data
of ordinary magnitude give the same bits as without scaling.

XLA treats subnormal numbers as zero on most devices, and so does this module.
"""

from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def near_one(values: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """Return `values` divided by the power of two nearest to their largest magnitude, and that power.

    The power is 1 if all values are zero. It and its inverse are normal numbers, and constants under
    differentiation.
    """
    exponent = exponent_near(values)
    one_over, power = _powers(jnp.stack([-exponent, exponent]), values.dtype)
    return values * one_over, power


def exponent_near(values: Float[Array, "..."]) -> Int[Array, ""]:
    """Return the exponent of the power of two nearest to the largest magnitude; 0 for all zeros or a NaN."""
    size = largest(values)
    field = lax.bitcast_convert_type(nearest_power(size), _integer(size.dtype)) >> jnp.finfo(size.dtype).nmant
    exponent = field.astype(jnp.int32) - _bias(size.dtype)
    return jnp.where((size == 0) | jnp.isnan(size), 0, exponent)


def times_power_of_two(values: Float[Array, "..."], exponent: Int[Array, ""]) -> Float[Array, "..."]:
    """Return `values * 2**exponent`, for exponents up to four times the largest of the dtype.

    The power is applied in four factors whose exponents have the same sign. Each intermediate value lies
    between the input and the result, so it overflows or underflows only if the result does.
    """
    part = exponent // 4
    power, last = _powers(jnp.stack([part, exponent - 3 * part]), values.dtype)
    return values * power * power * power * last


def halves(exponent: Int[Array, ""], dtype: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return two powers of two with the product `2**exponent`, each about its square root."""
    half = exponent // 2
    return _powers(jnp.stack([half, exponent - half]), dtype)


def nearest_power(value: Float[Array, ""]) -> Float[Array, ""]:
    """Return the power of two nearest to the magnitude of `value`; it and its inverse are normal numbers."""
    kind = jnp.finfo(value.dtype)
    most = 2.0 ** (kind.maxexp - 3)
    size = jnp.clip(jnp.abs(value), 1 / most, most)
    return lax.reduce_precision(size, exponent_bits=kind.nexp, mantissa_bits=0)


def largest(values: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the largest magnitude, a constant under differentiation; NaN if there is a NaN."""
    # Over the leading axes first: that reduction is vectorised, one to a scalar is not.
    return jnp.abs(lax.stop_gradient(values)).max(tuple(range(values.ndim - 1))).max()


def _powers(exponents: Int[Array, "2"], dtype: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return two powers of two, made of bits: 0 and infinity outside of the range of the dtype.

    Without the barrier XLA multiplies constants with each other first, whether or not that overflows, and
    recomputes the power for every entry that it multiplies.
    """
    bias = _bias(dtype)
    field = jnp.clip(exponents + bias, 0, 2 * bias + 1).astype(_integer(dtype))
    powers = lax.bitcast_convert_type(field << jnp.finfo(dtype).nmant, dtype)
    one, other = lax.optimization_barrier(powers)
    return one, other


def _bias(dtype: Any) -> int:
    return jnp.finfo(dtype).maxexp - 1


def _integer(dtype: Any) -> Any:
    """Return the integers of the same size."""
    return jnp.dtype(f"int{jnp.finfo(dtype).bits}")


@final
class Units(eqx.Module):
    """Exponents of the powers of two that scale a problem to magnitudes near one."""

    design: Int[Array, ""]
    targets: Int[Array, ""]

    @property
    def coef(self) -> Int[Array, ""]:
        return self.targets - self.design

    @property
    def lam(self) -> Int[Array, ""]:
        return self.design + self.targets

    @property
    def gap(self) -> Int[Array, ""]:
        return 2 * self.targets
