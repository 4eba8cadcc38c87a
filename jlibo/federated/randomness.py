"""Random draws of a real ballot, by OpenDP: discrete noise and randomised response. Internal.

A generator for simulations is no source of noise for privacy: its state may be guessed, and a float that is
drawn from an approximate normal distribution has low bits that give its input away. OpenDP draws exactly from
a discrete normal distribution, with the randomness of the operating system. It is the extra `privacy`.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

GRANULARITY = -40
"""The logarithm to base 2 of the grid of the noise. The grid costs less than 1e-10 of epsilon."""


@lru_cache
def _opendp() -> Any:
    try:
        import opendp.prelude as dp
        from opendp.mod import enable_features
    except ImportError:
        raise ImportError(
            "private ballots need OpenDP: pip install 'jlibo[privacy]', or use mechanism='none'."
        ) from None
    enable_features("contrib", "honest-but-curious")
    return dp


def with_noise(values: Float64[np.ndarray, " kernels"], scale: float) -> Float64[np.ndarray, " kernels"]:
    """Return the values with discrete normal noise of this standard deviation."""
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(values))
    measure = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=GRANULARITY)
    return np.asarray(measure(values.tolist()))


def flipped(selected: Bool[np.ndarray, " kernels"], max_selected: int, probability: float) -> np.ndarray:
    """Return the bits, each flipped with this probability. At most `max_selected` of them may be ones."""
    bits = np.packbits(selected, bitorder="little")
    answer = np.frombuffer(response(max_selected, probability)(bits.tobytes()), np.uint8)
    return np.unpackbits(answer, bitorder="little")[: len(selected)].astype(bool)


def response(max_selected: int, probability: float) -> Any:
    """Return OpenDP's randomised response on bits of which at most `max_selected` are ones."""
    dp = _opendp()
    domain = dp.bitvector_domain(max_weight=max_selected)
    # OpenDP replaces a bit by a fair coin with probability f, which flips it with probability f / 2.
    return dp.m.make_randomized_response_bitvec(domain, dp.discrete_distance(), f=2 * probability)
