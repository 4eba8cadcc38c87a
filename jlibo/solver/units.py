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
    power = _power_near(values)
    return values * _rounded_to_power(1 / power), power


def exponent_near(values: Float[Array, "..."]) -> Int[Array, ""]:
    """Return the exponent of the power of two nearest to the largest magnitude; 0 for all zeros or a NaN."""
    exponent = jnp.round(jnp.log2(_power_near(values)))
    # Casting a number that is not finite to an integer gives different results on different platforms.
    return jnp.where(jnp.isfinite(exponent), exponent, 0).astype(jnp.int32)


def times_power_of_two(values: Float[Array, "..."], exponent: Int[Array, ""]) -> Float[Array, "..."]:
    """Return `values * 2**exponent`, for exponents up to four times the largest of the dtype.

    The power is applied in four factors whose exponents have the same sign. Each intermediate value lies
    between the input and the result, so it overflows or underflows only if the result does.
    """
    part = exponent // 4
    power, last = (
        _rounded_to_power(jnp.exp2(share.astype(values.dtype))) for share in (part, exponent - 3 * part)
    )
    return values * power * power * power * last


def halves(exponent: Int[Array, ""], dtype: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return two powers of two with the product `2**exponent`, each about its square root."""
    half = exponent // 2
    one, other = (_rounded_to_power(jnp.exp2(share.astype(dtype))) for share in (half, exponent - half))
    return one, other


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


def _power_near(values):
    size = largest(values)
    return lax.optimization_barrier(jnp.where(size == 0, 1, nearest_power(size)))


def _rounded_to_power(value):
    """Return the nearest power of two behind an optimisation barrier.

    Without the barrier XLA multiplies constants with each other first, whether or not that overflows, and
    recomputes the power for every entry that it multiplies.
    """
    bits = jnp.finfo(value.dtype).nexp
    return lax.optimization_barrier(lax.reduce_precision(value, exponent_bits=bits, mantissa_bits=0))


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
