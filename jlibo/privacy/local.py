"""The server's estimate from votes that clients have randomised."""

from typing import Any

from jaxtyping import Float


def unbiased_counts(counts: Any, num_votes: Any, flip: Any) -> Float[Any, " kernels"]:
    """Return unbiased estimates of the true counts, (N - s q) / (1 - 2 q).

    **Arguments:**

    - `counts`: number of randomised votes for each kernel, N. An array of NumPy or jax.
    - `num_votes`: number of votes, s.
    - `flip`: probability with which each bit was flipped, q, below 1/2.
    """
    return (counts - num_votes * flip) / (1 - 2 * flip)
