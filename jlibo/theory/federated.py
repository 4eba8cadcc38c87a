"""Recovery by a vote of clients (App. F): from each client's probability to that of the server's selection.

| here                 | paper                                                                             |
|----------------------|-----------------------------------------------------------------------------------|
| `client_probability` | v_s: the probability that client s selects J* exactly                             |
| `alpha`              | alpha, the share of votes a kernel needs                                          |
| `correct_share`      | alpha-bar, the share of correct clients that decides every vote rightly           |
| `vote_probability`   | the lemma before Theorem F.1, in its Chernoff form and exactly                    |

A client is Meta-KGL with one task, so v_s is `recovery_probability` or `design_recovery_probability` with m =
1.

**Readings.**

- Theorem F.1 prints alpha-bar = max(alpha, 1 - alpha), the lemma prints min. A kernel of J* needs alpha m
  correct clients, any other needs (1 - alpha) m of them not to vote for it: the maximum is right. "printed"
  takes the lemma's minimum.
- The lemma's last step bounds the Kullback-Leibler exponent from below by (v - alpha-bar)^2 / (2 v (1 - v)).
  This is reversed for v > 1/2: at v = 0.99 and alpha-bar = 0.5 the two are 1.61 and 12.1. "proved" keeps the
  first form.
- The lemma has a factor p in front of the exponential, its proof has none, and none is needed: a client is
  right about all kernels at once.
- Theorem F.1 asks for a signal above 1 + sqrt(log(p / alpha-bar)). From v > alpha-bar follows
  1 + sqrt(2 log(p / (1 - alpha-bar))), which is `signal_needed_by_clients`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.checks import ArrayLike, check_range, check_shape
from jlibo.front_door import front_door
from jlibo.theory.compatibility import Reading, Real, as_real, check_reading

_ROUND_OFF = 1e-5  # as in `jlibo.meta.federated.server_vote`


@front_door
def correct_share(alpha: Real, *, reading: Reading = "proved") -> Float[Array, "*any"]:
    """Return alpha-bar, the share of correct clients above which the vote is right about every kernel.

    **Arguments:**

    - `alpha`: share of votes that a kernel needs, from 0 to 1.
    - `reading`: "proved" is max(alpha, 1 - alpha), "printed" the minimum of the two.
    """
    check_reading(reading)
    choose = jnp.maximum if reading == "proved" else jnp.minimum
    return choose(jnp.asarray(alpha), 1 - jnp.asarray(alpha))


@front_door
def signal_needed_by_clients(num_kernels: Real, alpha: Real) -> Float[Array, "*any"]:
    """Return the `signal` above which a vote of ever more clients converges to J*.

    **Arguments:**

    - `num_kernels`: p.
    - `alpha`: share of votes that a kernel needs.
    """
    return 1 + jnp.sqrt(2 * jnp.log(as_real(num_kernels) / (1 - correct_share(alpha))))


@front_door
def vote_exponent(
    client_probability: Real, alpha: Real, *, reading: Reading = "proved"
) -> Float[Array, "*any"]:
    """Return the exponent of the vote's failure per client; 0 where the lemma says nothing.

    **Arguments:**

    - `client_probability`: v, the mean over clients.
    - `alpha`: share of votes that a kernel needs.
    - `reading`: "proved" is the Kullback-Leibler divergence, "printed" the lemma's quadratic.
    """
    v, share = jnp.asarray(client_probability), correct_share(alpha, reading=reading)
    if reading == "proved":
        exponent = _x_log_ratio(share, v) + _x_log_ratio(1 - share, 1 - v)
    else:
        exponent = (v - share) ** 2 / (2 * v * (1 - v))
    return jnp.where(v > share, exponent, 0)


@front_door
def vote_probability(
    client_probabilities: Float[ArrayLike, " clients"],
    alpha: Float[ArrayLike, ""],
    *,
    num_kernels: Float[ArrayLike, ""] = 1.0,
    reading: Reading = "proved",
) -> Float[Array, ""]:
    """Return the lower bound of App. F on the probability that the vote selects J*.

    **Arguments:**

    - `client_probabilities`: v_s, for each client.
    - `alpha`: share of votes that a kernel needs.
    - `num_kernels`: p, which only the printed lemma has.
    - `reading`: "proved" or "printed", see `jlibo.theory.federated`.

    **Returns:** a probability, 0 where the lemma says nothing. `exact_vote_probability` is never lower in the
    reading "proved".

    ```python
    import jax.numpy as jnp

    from jlibo import theory

    print(theory.vote_probability(jnp.full(20, 0.9), 0.5))  # 0.99996
    ```
    """
    check_shape("client_probabilities", jnp.asarray(client_probabilities), ("clients",))
    v = jnp.asarray(client_probabilities)
    exponent = v.shape[0] * vote_exponent(v.mean(), alpha, reading=reading)
    log_count = jnp.log(as_real(num_kernels)) if reading == "printed" else 0.0
    return jnp.abs(jnp.expm1(jnp.minimum(log_count - exponent, 0)))


@front_door
def exact_vote_probability(
    client_probabilities: Float[ArrayLike, " clients"], alpha: Float[ArrayLike, ""]
) -> Float[Array, ""]:
    """Return P(enough clients are right), for independent clients that are right with these probabilities.

    It is the tail of a sum of Bernoulli variables, without the Chernoff bound, and with the rule of
    `jlibo.meta.FederatedMetaKGL`: a kernel needs at least `alpha` times the number of clients.

    **Arguments:**

    - `client_probabilities`: v_s, for each client.
    - `alpha`: share of votes that a kernel needs, from 0 to 1.

    ```python
    import jax.numpy as jnp

    from jlibo import theory

    print(theory.exact_vote_probability(jnp.full(20, 0.9), 0.5))  # 0.999993
    ```
    """
    check_shape("client_probabilities", jnp.asarray(client_probabilities), ("clients",))
    check_range("alpha", alpha, at_least=0, at_most=1)
    return _tail(jnp.asarray(client_probabilities), alpha)


# Jitted, because a scan outside of `jit` is recompiled at every call.
@jax.jit
def _tail(v: Float[Array, " clients"], alpha: Float[ArrayLike, ""]) -> Float[Array, ""]:
    num_clients = v.shape[0]
    votes = jnp.ceil(jnp.asarray(alpha, v.dtype) * num_clients * (1 - _ROUND_OFF))
    # A kernel of J* has all correct clients, any other at most the others: both must be decided rightly.
    needed = jnp.maximum(votes, num_clients - votes + 1)

    def add(pmf, probability):
        return pmf * (1 - probability) + jnp.roll(pmf, 1).at[0].set(0) * probability, None

    start = jnp.zeros(num_clients + 1, v.dtype).at[0].set(1)
    pmf, _ = jax.lax.scan(add, start, v)
    return jnp.clip(jnp.where(jnp.arange(num_clients + 1) >= needed, pmf, 0).sum(), 0, 1)


def _x_log_ratio(x: Float[Array, "*any"], y: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return x log(x / y), 0 at x = 0."""
    safe = jnp.where(x > 0, x, 1)
    return jnp.where(x > 0, x * jnp.log(safe / y), 0)
