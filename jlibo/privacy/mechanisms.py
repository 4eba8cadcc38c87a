"""Mechanisms that make the vote of a simulated federated run private; jittable, with epsilon as data.

| class                | who is trusted | what is released after vote s                             |
|----------------------|----------------|-----------------------------------------------------------|
| `NoPrivacy`          | everybody      | the counts                                                |
| `ToeplitzNoise`      | the server     | counts + C z: the noise of all releases is correlated     |
| `GNMaxNoise`         | the server     | counts + noise that is drawn anew                         |
| `RandomisedResponse` | nobody         | unbiased estimates from votes whose bits the clients flip |

The noise comes from jax's generator. It has the right distribution for an experiment, but protects nobody:
a real ballot (`jlibo.federated.BallotFile`) draws from OpenDP.

Epsilon and delta are arrays, so a sweep over them is one program. Their mu is solved for in the dtype of the
run; `jlibo.privacy.gaussian_mu` is the exact function on the host.
"""

import abc
from typing import TYPE_CHECKING, Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Bool, Float, Int

from jlibo.fields import AbstractField, choice, number, size
from jlibo.front_door import check_fields
from jlibo.privacy.calibration import NEIGHBOURS, gnmax_norm, toeplitz_norm, toeplitz_weights, vote_norm
from jlibo.privacy.local import unbiased_counts

NUM_BISECTIONS = 80
"""Steps of the search for mu: enough for float64."""


class AbstractMechanism(eqx.Module):
    """Base class of mechanisms: what a client sends, and what the server releases after each vote.

    A subclass declares `max_selected` and `is_random`, and implements `init`, `message` and `release`. All
    methods must be jittable.
    """

    if TYPE_CHECKING:
        max_selected = AbstractField[int | None]()
        is_random = AbstractField[bool]()
    else:
        max_selected: eqx.AbstractVar[int | None]
        """Largest number of kernels in a vote; the strongest are kept. None for no limit."""
        is_random: eqx.AbstractVar[bool]
        """Whether `message` or `release` need a key."""

    @abc.abstractmethod
    def init(self, num_groups: int, num_releases: int, dtype: Any) -> Any:
        """Return the state before the first vote; `num_releases` is the horizon T of the ballot."""

    @abc.abstractmethod
    def message(self, selected: Bool[Array, " groups"], *, key: Any) -> Bool[Array, " groups"]:
        """Return what a client sends that selected these kernels; `key` is None if nothing is random."""

    @abc.abstractmethod
    def release(
        self,
        state: Any,
        counts: Int[Array, " groups"],
        num_votes: Int[Array, ""],
        *,
        key: Any,
    ) -> tuple[Any, Any]:
        """Return the next state, and the numbers of votes for the kernels as they are released.

        **Arguments:**

        - `state`: the state before this vote.
        - `counts`: number of messages so far that have each kernel.
        - `num_votes`: number of messages so far, this one included.
        - `key`: random key of this release; None if the mechanism is not random.
        """


@final
class NoPrivacy(AbstractMechanism):
    """Mechanism that releases the exact counts.

    ```python
    import jlibo

    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.3, mechanism=jlibo.privacy.NoPrivacy())
    ```
    """

    max_selected: ClassVar[None] = None
    is_random: ClassVar[bool] = False

    def init(self, num_groups, num_releases, dtype):
        return ()

    def message(self, selected, *, key):
        return selected

    def release(self, state, counts, num_votes, *, key):
        return state, counts


@final
class ToeplitzNoise(AbstractMechanism):
    """Mechanism with the correlated noise of the square-root Toeplitz factorisation of the prefix sums.

    The releases are A x + C z with A = C C, which is C (C x + z): what is added to the votes in the past also
    serves later releases, so the noise grows with the logarithm of their number and not with its root.

    **Arguments:** the fields below; `epsilon` and `delta` are required.

    **Raises:** `ValueError` for a field out of range.

    ```python
    import jlibo

    mechanism = jlibo.privacy.ToeplitzNoise(epsilon=1.0, delta=1e-5)
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.3, mechanism=mechanism)
    ```
    """

    epsilon: Float[Array, ""] = eqx.field(converter=number("epsilon", above=0, at_most=100))
    """Privacy of a client, for all releases together."""
    delta: Float[Array, ""] = eqx.field(converter=number("delta", above=0, at_most=0.5))
    """Probability with which epsilon may fail."""
    max_selected: int = size("max_selected", 10)
    """Largest number of kernels in a vote, K."""
    votes: int = size("votes", 1)
    """Largest number of votes of a client."""
    neighbours: str = choice("neighbours", NEIGHBOURS)
    """What a client may change: "zero-out" (its votes become empty) or "replace-one" (any others)."""

    is_random: ClassVar[bool] = True

    def __check_init__(self):
        check_fields(self)

    def init(self, num_groups, num_releases, dtype):
        return jnp.zeros((num_releases, num_groups), dtype)

    def message(self, selected, *, key):
        return selected

    def release(self, state, counts, num_votes, *, key):
        horizon, num_groups = state.shape
        norm = vote_norm(self.max_selected, self.neighbours) * toeplitz_norm(horizon, votes=self.votes)
        scale = norm / mu_of(self.epsilon, self.delta, state.dtype)
        drawn = scale * jax.random.normal(key, (num_groups,), state.dtype)
        state = state.at[num_votes - 1].set(drawn)
        weights = jnp.asarray(toeplitz_weights(horizon), state.dtype)
        age = num_votes - 1 - jnp.arange(horizon)
        weights = jnp.where(age >= 0, weights[jnp.maximum(age, 0)], 0)
        noise = jnp.matmul(weights, state, precision=jax.lax.Precision.HIGHEST)
        return state, counts + noise


@final
class GNMaxNoise(AbstractMechanism):
    """Mechanism that adds independent noise to the counts at every release.

    A vote is in all later releases, so the noise that an epsilon needs grows with the root of their number.

    **Arguments:** the fields below; `epsilon` and `delta` are required.

    **Raises:** `ValueError` for a field out of range.

    ```python
    import jlibo

    mechanism = jlibo.privacy.GNMaxNoise(epsilon=1.0, delta=1e-5)
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.3, mechanism=mechanism)
    ```
    """

    epsilon: Float[Array, ""] = eqx.field(converter=number("epsilon", above=0, at_most=100))
    """Privacy of a client, for all releases together."""
    delta: Float[Array, ""] = eqx.field(converter=number("delta", above=0, at_most=0.5))
    """Probability with which epsilon may fail."""
    max_selected: int = size("max_selected", 10)
    """Largest number of kernels in a vote, K."""
    votes: int = size("votes", 1)
    """Largest number of votes of a client."""
    neighbours: str = choice("neighbours", NEIGHBOURS)
    """What a client may change: "zero-out" (its votes become empty) or "replace-one" (any others)."""

    is_random: ClassVar[bool] = True

    def __check_init__(self):
        check_fields(self)

    def init(self, num_groups, num_releases, dtype):
        norm = vote_norm(self.max_selected, self.neighbours) * gnmax_norm(num_releases, self.votes)
        return (norm / mu_of(self.epsilon, self.delta, dtype)).astype(dtype)

    def message(self, selected, *, key):
        return selected

    def release(self, state, counts, num_votes, *, key):
        return state, counts + state * jax.random.normal(key, counts.shape, state.dtype)


@final
class RandomisedResponse(AbstractMechanism):
    """Mechanism by which each client flips the bits of its vote at random before it sends them.

    The server need not be trusted: epsilon holds for everybody who sees the message, for each vote.

    **Arguments:** the fields below; `epsilon` is required.

    **Raises:** `ValueError` for a field out of range.

    ```python
    import jlibo

    mechanism = jlibo.privacy.RandomisedResponse(epsilon=8.0)
    learner = jlibo.FederatedMetaKGL(0.1, 0.25, 0.3, mechanism=mechanism)
    ```
    """

    epsilon: Float[Array, ""] = eqx.field(converter=number("epsilon", above=0, at_most=100))
    """Privacy of each vote."""
    max_selected: int = size("max_selected", 10)
    """Largest number of kernels in a vote, K."""

    is_random: ClassVar[bool] = True

    def __check_init__(self):
        check_fields(self)

    def init(self, num_groups, num_releases, dtype):
        return jax.nn.sigmoid(-self.epsilon.astype(dtype) / (2 * self.max_selected))

    def message(self, selected, *, key):
        flip = jax.nn.sigmoid(-self.epsilon / (2 * self.max_selected))
        return selected ^ jax.random.bernoulli(key, flip, selected.shape)

    def release(self, state, counts, num_votes, *, key):
        return state, unbiased_counts(counts, num_votes, state)


def mu_of(epsilon: Float[Array, ""], delta: Float[Array, ""], dtype: Any) -> Float[Array, ""]:
    """Return `gaussian_mu` of traced numbers, by bisection in logarithms."""
    epsilon, delta = jnp.asarray(epsilon, dtype), jnp.asarray(delta, dtype)

    def is_private(log_mu: Float[Array, ""]) -> Bool[Array, ""]:
        mu = jnp.exp(log_mu)
        first, second = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
        # The difference of two close numbers, by its logarithm: float32 cannot hold them to this precision.
        share = -jnp.expm1(jnp.minimum(epsilon + second - first, 0))
        return first + jnp.log(share) <= jnp.log(delta)

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        private = is_private(middle)
        return jnp.where(private, middle, low), jnp.where(private, high, middle)

    bounds = (jnp.asarray(np.log(1e-6), dtype), jnp.asarray(np.log(100.0), dtype))
    low, _ = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, bounds)
    return jnp.exp(low)
