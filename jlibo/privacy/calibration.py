"""How much noise a stated epsilon needs, exactly, in float64 on the host.

A client's votes reach everyone through the support that is released after every task, so the whole
*transcript* of T releases must be private, not one of them. Normal noise makes it mu-Gaussian differentially
private, and mu determines delta for every epsilon without a bound in between.

| here                   | what it is                                                                      |
|------------------------|---------------------------------------------------------------------------------|
| `gaussian_delta`       | Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)                                  |
| `gaussian_mu`          | its inverse: the largest mu that gives (epsilon, delta)                         |
| `toeplitz_weights`     | c_0 = 1, c_k = c_(k-1) (1 - 1/(2k)): the square root C of the prefix sums A     |
| `toeplitz_scale`       | standard deviation of z in the releases A x + C z = C (C x + z)                 |
| `gnmax_scale`          | standard deviation of noise drawn anew for each release                         |
| `flip_probability`     | q = 1 / (1 + e^(epsilon / 2K)) of randomised response                           |
| `max_selected`         | K, the largest number of kernels in a vote                                      |

A vote is a row of zeros and at most K ones. Replaced by zeros ("zero-out" neighbours) it changes by at most
sqrt(K) in Euclidean norm, and replaced by any other vote ("replace-one") by at most sqrt(2K).
"""

import math

import numpy as np
from jaxtyping import Float64

from jlibo.checks import check_count, check_range, fail
from jlibo.front_door import front_door

NEIGHBOURS = ("zero-out", "replace-one")
"""What may differ between two neighbouring streams of votes."""
LARGEST_EPSILON = 100.0
"""Largest epsilon that the functions accept; it protects nothing."""


@front_door
def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which a mu-Gaussian mechanism is (epsilon, delta) private.

    ```python
    from jlibo.privacy import gaussian_delta

    assert abs(gaussian_delta(0.26807, 1.0) - 1e-5) < 1e-8
    ```
    """
    check_range("mu", mu, above=0)
    check_range("epsilon", epsilon, at_least=0, at_most=LARGEST_EPSILON)
    mu, epsilon = float(mu), float(epsilon)
    return _normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * _normal_cdf(-mu / 2 - epsilon / mu)


@front_door
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which a mu-Gaussian mechanism is (epsilon, delta) private.

    ```python
    from jlibo.privacy import gaussian_mu

    assert round(gaussian_mu(1.0, 1e-5), 4) == 0.2681
    ```
    """
    check_range("epsilon", epsilon, above=0, at_most=LARGEST_EPSILON)
    check_range("delta", delta, above=0, at_most=0.5)
    low, high = 1e-12, 100.0
    while True:  # in powers, until the two are neighbours in float64
        middle = math.sqrt(low * high)
        if not low < middle < high:
            return low
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)


@front_door
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-Gaussian mechanism is (epsilon, delta) private.

    ```python
    from jlibo.privacy import gaussian_epsilon, gaussian_mu

    assert abs(gaussian_epsilon(gaussian_mu(4.0, 1e-5), 1e-5) - 4) < 1e-9
    ```

    **Raises:** `ValueError` if it is above 100, which protects nothing.
    """
    check_range("delta", delta, above=0, at_most=0.5)
    low, high = 0.0, LARGEST_EPSILON
    if gaussian_delta(mu, high) > delta:
        fail("mu", f"at most what gives epsilon {LARGEST_EPSILON:g}", mu)
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@front_door
def vote_norm(max_selected: int, neighbours: str = "zero-out") -> float:
    """Return by how much one vote can change, in Euclidean norm.

    **Arguments:**

    - `max_selected`: largest number of kernels in a vote.
    - `neighbours`: "zero-out" or "replace-one".
    """
    check_count("max_selected", max_selected)
    if neighbours not in NEIGHBOURS:
        fail("neighbours", " or ".join(map(repr, NEIGHBOURS)), repr(neighbours))
    return math.sqrt(max_selected * (1 if neighbours == "zero-out" else 2))


@front_door
def toeplitz_weights(horizon: int) -> Float64[np.ndarray, " horizon"]:
    """Return c_0, ..., c_(horizon-1), the first column of the square root of the prefix sums.

    ```python
    from jlibo.privacy import toeplitz_weights

    print(toeplitz_weights(4))  # [1.     0.5    0.375  0.3125]
    ```
    """
    check_count("horizon", horizon)
    steps = np.arange(1, horizon)
    return np.concatenate([[1.0], np.cumprod(1 - 1 / (2 * steps))])


@front_door
def toeplitz_norm(horizon: int, *, votes: int = 1, separation: int = 1) -> float:
    """Return the largest Euclidean norm of a sum of `votes` columns of C, `separation` columns apart or more.

    For one vote it is sqrt(F(horizon)). The columns are positive and decrease, so their sum is largest if
    they are as early and as close as possible.

    **Arguments:**

    - `horizon`: number of releases.
    - `votes`: largest number of votes of a client; no more than `horizon` count.
    - `separation`: smallest distance between two votes of a client, in votes of all clients.
    """
    check_count("votes", votes)
    check_count("separation", separation)
    weights = toeplitz_weights(horizon)
    if separation == 1:
        sums = np.concatenate([[0.0], np.cumsum(weights)])
        total = sums[1:] - sums[np.maximum(np.arange(1, horizon + 1) - votes, 0)]
    else:
        total = np.zeros(horizon)
        for start in range(0, min(horizon, votes * separation), separation):
            total[start:] += weights[: horizon - start]
    return float(np.sqrt((total**2).sum()))


@front_door
def toeplitz_scale(
    epsilon: float,
    delta: float,
    *,
    max_selected: int,
    horizon: int,
    votes: int = 1,
    separation: int = 1,
    neighbours: str = "zero-out",
) -> float:
    """Return the standard deviation of the noise z of the square-root Toeplitz mechanism.

    The count released after s votes has the standard deviation `toeplitz_scale * sqrt(F(s))`, and all
    `horizon` releases together are (epsilon, delta) private, also if later votes depend on earlier releases.

    **Arguments:**

    - `epsilon`, `delta`: the privacy of a client.
    - `max_selected`: largest number of kernels in a vote.
    - `horizon`: number of releases, T.
    - `votes`, `separation`: largest number of votes of a client, and the smallest distance between them.
    - `neighbours`: "zero-out" or "replace-one".

    ```python
    from jlibo.privacy import toeplitz_norm, toeplitz_scale

    scale = toeplitz_scale(1.0, 1e-5, max_selected=10, horizon=1000)
    print(scale * toeplitz_norm(1000))  # 38.5 votes
    ```
    """
    norm = vote_norm(max_selected, neighbours) * toeplitz_norm(horizon, votes=votes, separation=separation)
    return norm / gaussian_mu(epsilon, delta)


@front_door
def gnmax_scale(
    epsilon: float,
    delta: float,
    *,
    max_selected: int,
    horizon: int,
    votes: int = 1,
    neighbours: str = "zero-out",
) -> float:
    """Return the standard deviation of noise that is drawn anew for each of `horizon` releases.

    A vote is in every later release, so the noise grows with the square root of their number. The arguments
    are those of `toeplitz_scale`.
    """
    check_count("horizon", horizon)
    return gnmax_norm(horizon, votes) * vote_norm(max_selected, neighbours) / gaussian_mu(epsilon, delta)


@front_door
def gnmax_epsilon(
    scale: float,
    delta: float,
    *,
    max_selected: int,
    horizon: int,
    votes: int = 1,
    neighbours: str = "zero-out",
) -> float:
    """Return the epsilon of `horizon` releases of counts with independent noise of this standard deviation.

    ```python
    from jlibo.privacy import gnmax_epsilon, gnmax_scale

    scale = gnmax_scale(1.0, 1e-5, max_selected=10, horizon=1)  # right for a single release
    print(gnmax_epsilon(scale, 1e-5, max_selected=10, horizon=1000))  # of 1,000 releases: above 60
    ```
    """
    check_range("scale", scale, above=0)
    norm = gnmax_norm(horizon, votes) * vote_norm(max_selected, neighbours)
    return gaussian_epsilon(norm / float(scale), delta)


@front_door
def gnmax_norm(horizon: int, votes: int = 1) -> float:
    """Return the Euclidean norm of what a client adds to `horizon` releases with one kernel in each vote."""
    check_count("horizon", horizon)
    check_count("votes", votes)
    return math.sqrt(float((np.minimum(np.arange(1, horizon + 1), votes) ** 2).sum()))


@front_door
def flip_probability(epsilon: float, *, max_selected: int) -> float:
    """Return the probability with which randomised response flips each bit of a vote.

    Two votes of at most K kernels differ in at most 2K bits, so each bit may spend epsilon / 2K.

    ```python
    from jlibo.privacy import flip_probability

    print(flip_probability(4.0, max_selected=10))  # 0.45: almost a fair coin
    ```
    """
    check_range("epsilon", epsilon, above=0, at_most=LARGEST_EPSILON)
    check_count("max_selected", max_selected)
    return 1 / (1 + math.exp(float(epsilon) / (2 * max_selected)))


@front_door
def flip_epsilon(probability: float, *, max_selected: int) -> float:
    """Return the epsilon of randomised response: the inverse of `flip_probability`."""
    check_range("probability", probability, above=0, at_most=0.5)
    return 2 * max_selected * math.log((1 - probability) / probability)
