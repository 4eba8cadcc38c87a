"""Information gain of GP-UCB (App. E): the paper's bound, the exact greedy gain, and that of a played run.

| here                       | paper                                                                     |
|----------------------------|---------------------------------------------------------------------------|
| `information_gain_bound`   | the lemma gamma_n(k) <= (d/2) log(1 + n / (lambda_ucb^2 d))               |
| `information_gain`         | 1/2 log det(I + lambda_ucb^-2 K_n), of given rows                         |
| `greedy_information_gain`  | a lower bound on gamma_n, at least (1 - 1/e) of it                        |
| `played_information_gain`  | that of the rows that a run has played                                    |
| `regulariser`              | lambda_ucb, the `noise_std` of a policy                                   |

The kernel is k(x, x') = phi(x)^T C phi(x') with the covariance C of a `jlibo.Prior`; the average of the
kernels in J has C = diag(1 / |J|) on the features of J (`jlibo.support_prior`).
"""

from functools import partial
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jlibo.belief import posterior as gp
from jlibo.belief.prior import Prior
from jlibo.checks import ArrayLike, check_count, check_shape
from jlibo.features import AbstractFeatures
from jlibo.front_door import front_door
from jlibo.lifelong.play import LifelongResult
from jlibo.theory.compatibility import Real, as_real

GREEDY_SHARE = 0.6321205588285577
"""1 - 1/e: the greedy gain is at least this share of the largest one (Nemhauser, Wolsey & Fisher 1978)."""


@front_door
def information_gain_bound(
    num_steps: Real, num_features: Real, regulariser: Real, *, kernel_bound: Real = 1.0
) -> Float[Array, "*any"]:
    """Return the bound of App. E on the information gain of n steps, `(d/2) log(1 + K n / (lambda^2 d))`.

    **Arguments:**

    - `num_steps`: n.
    - `num_features`: d, the dimension of the kernel's features.
    - `regulariser`: lambda_ucb.
    - `kernel_bound`: K, the largest k(x, x); 1 in the paper.

    ```python
    from jlibo import theory

    print(theory.information_gain_bound(100, 5, 0.1))  # 19.0
    ```
    """
    dim = as_real(num_features)
    share = jnp.asarray(kernel_bound) * as_real(num_steps) / (jnp.asarray(regulariser) ** 2 * dim)
    return dim / 2 * jnp.log1p(share)


def information_gain(
    features: Float[Array, "rows features"], regulariser: Float[ArrayLike, ""], prior: Prior | None = None
) -> Float[Array, ""]:
    """Return `1/2 log det(I + lambda_ucb^-2 K)` of given rows.

    **Arguments:**

    - `features`: features of the rows.
    - `regulariser`: lambda_ucb.
    - `prior`: its covariance defines the kernel; by default the identity.

    **Returns:** a number. It equals the `information_gain` of a posterior that has observed the rows.
    """
    check_shape("features", features, ("rows", "features"))
    return _information_gain(features, regulariser, prior)


@jax.jit
def _information_gain(
    features: Float[Array, "rows features"], regulariser: Float[ArrayLike, ""], prior: Prior | None
) -> Float[Array, ""]:
    rows = (
        features if prior is None else jnp.matmul(features, prior.factor(), precision=lax.Precision.HIGHEST)
    )
    scaled = rows / jnp.asarray(regulariser, features.dtype)
    # det(I + A A^T) = det(I + A^T A): the smaller of the two.
    short = scaled if scaled.shape[0] < scaled.shape[1] else scaled.T
    matrix = jnp.matmul(short, short.T, precision=lax.Precision.HIGHEST)
    return jnp.linalg.slogdet(jnp.eye(matrix.shape[0], dtype=matrix.dtype) + matrix)[1] / 2


@final
class GreedyGain(eqx.Module):
    """The greedy information gain of a candidate set; returned by `greedy_information_gain`."""

    gain: Float[Array, " steps"]
    """Information gain after each step, a lower bound on gamma_i."""
    chosen: Int[Array, " steps"]
    """Candidate chosen in each step."""

    @property
    def upper(self) -> Float[Array, " steps"]:
        """An upper bound on gamma_i over the same candidates."""
        return self.gain / GREEDY_SHARE


@front_door
def greedy_information_gain(
    features: Float[Array, "candidates features"],
    num_steps: int,
    regulariser: Float[ArrayLike, ""],
    prior: Prior | None = None,
) -> GreedyGain:
    """Return the information gain of choosing the most uncertain candidate in every step.

    **Arguments:**

    - `features`: features of the candidates.
    - `num_steps`: n.
    - `regulariser`: lambda_ucb.
    - `prior`: its covariance defines the kernel; by default the identity.

    ```python
    import jlibo
    from jlibo import theory

    features = jlibo.Cosine(5)
    prior = jlibo.full_prior(features.groups)
    greedy = theory.greedy_information_gain(features(jlibo.box_grid(features, 50)), 20, 0.1, prior)
    print(greedy.gain[-1], greedy.upper[-1])
    ```
    """
    check_shape("features", features, ("candidates", "features"))
    check_count("num_steps", num_steps)
    return _greedy_gain(features, num_steps, regulariser, prior)


# Jitted, because a scan outside of `jit` is recompiled at every call.
@partial(jax.jit, static_argnums=1)
def _greedy_gain(
    features: Float[Array, "candidates features"],
    num_steps: int,
    regulariser: Float[ArrayLike, ""],
    prior: Prior | None,
) -> GreedyGain:
    dtype = features.dtype
    if prior is None:
        prior = Prior(jnp.zeros(features.shape[1], dtype), jnp.ones(features.shape[1], dtype))
    belief = gp.belief_at(gp.init(prior, jnp.asarray(regulariser, dtype)), features)

    def step(belief, _):
        chosen = jnp.argmax(belief.std).astype(jnp.int32)
        after = gp.observe_candidate(belief, chosen, jnp.zeros((), dtype))
        return after, (after.posterior.information_gain, chosen)

    _, (gain, chosen) = lax.scan(step, belief, None, length=num_steps)
    return GreedyGain(gain, chosen)


@front_door
def played_information_gain(
    result: LifelongResult,
    features: AbstractFeatures,
    candidates: Float[Array, "candidates dim"],
    regulariser: Float[ArrayLike, ""],
    prior: Prior,
) -> Float[Array, " tasks"]:
    """Return the information gain of the actions that a run played, for each task, in closed form.

    **Arguments:**

    - `result`: a run of one agent, without further axes.
    - `features`: the feature map of the run.
    - `candidates`: the candidates of the environment, `env.candidates`.
    - `regulariser`: lambda_ucb, the policy's `noise_std`.
    - `prior`: its covariance defines the kernel, for example `jlibo.support_prior(env.support, ...)`.
    """
    check_shape("result.actions", result.actions, ("tasks", "horizon"))
    rows = features(candidates)[result.actions]
    return jax.vmap(lambda one: information_gain(one, regulariser, prior))(rows)
