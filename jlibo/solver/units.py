"""Powers of two that bring a problem's numbers to about one, and its answer back: exact, in any precision.

The group lasso is equivariant. With `design` in units of 2^p and `targets` in units of 2^q, the coefficients
are in units of 2^(q - p), lam in units of 2^(p + q), and the objective and the gap in units of 2^(2q).
Squares of numbers of about one neither overflow nor underflow, and multiplication by a power of two rounds
nothing, so that data of ordinary size give the same bits as without.

XLA counts subnormal numbers as zero on most devices, and so does this module.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def near_one(values: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """`values` over the power of two nearest to their largest size, and that power; 1 for all zeros.

    The power and its inverse are normal numbers. They are constants to differentiation.
    """
    power = _power_near(values)
    return values * _rounded_to_power(1 / power), power


def exponent_near(values: Float[Array, "..."]) -> Int[Array, ""]:
    """The exponent of the power of two nearest to the largest size; 0 for all zeros, or if one is NaN."""
    exponent = jnp.round(jnp.log2(_power_near(values)))
    return jnp.where(jnp.isnan(exponent), 0, exponent).astype(jnp.int32)


def times_power_of_two(values: Float[Array, "..."], exponent: Int[Array, ""]) -> Float[Array, "..."]:
    """`values * 2**exponent`, for exponents up to four times the largest of the dtype.

    The power is applied in four parts of one sign. What is between lies between the value and the result, so
    that it overflows or underflows only if the result does.
    """
    part = exponent // 4
    power, last = (
        _rounded_to_power(jnp.exp2(share.astype(values.dtype))) for share in (part, exponent - 3 * part)
    )
    return values * power * power * power * last


def nearest_power(value: Float[Array, ""]) -> Float[Array, ""]:
    """The power of two nearest to the size of `value`; it and its inverse are normal numbers."""
    kind = jnp.finfo(value.dtype)
    most = 2.0 ** (kind.maxexp - 3)
    size = jnp.clip(jnp.abs(value), 1 / most, most)
    return lax.reduce_precision(size, exponent_bits=kind.nexp, mantissa_bits=0)


def _power_near(values):
    largest = jnp.abs(lax.stop_gradient(values)).max()
    return lax.optimization_barrier(jnp.where(largest == 0, 1, nearest_power(largest)))


def _rounded_to_power(value):
    """The nearest power of two, as a number that the compiler does not look into.

    XLA would multiply constants with each other first, whether or not that overflows, and compute the power
    anew for every entry that it multiplies.
    """
    bits = jnp.finfo(value.dtype).nexp
    return lax.optimization_barrier(lax.reduce_precision(value, exponent_bits=bits, mantissa_bits=0))


LARGEST = 8
"""No entry of design or targets is larger in their units: 1.5 by the nearest power, 8 at the range's end."""


class Units(eqx.Module):
    """The exponents of the units in which the numbers of a problem are about one."""

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
