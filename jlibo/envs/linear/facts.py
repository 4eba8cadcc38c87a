"""What an environment may tell a method about itself: the privileges of methods, as data.

A method declares the names of the facts that it uses, and receives these only (`Facts.only`). A method can
therefore not use what it does not declare.
"""

import dataclasses
from collections.abc import Iterable
from typing import final

import equinox as eqx
from jaxtyping import Array, Bool, Float

from jlibo.belief.prior import Prior
from jlibo.checks import did_you_mean, fail
from jlibo.front_door import check_fields


@final
class Facts(eqx.Module):
    """Facts about an environment; None where there is no such fact, or where a method may not know it.

    ```python
    import jax

    from jlibo.envs.linear import BallArms, LinearEnv, LowRankWeights

    weights = LowRankWeights.draw(num_features=6, rank=2, key=jax.random.key(0))
    env = LinearEnv(weights, BallArms(1.0, 6), noise_std=1.0)
    facts = env.facts.only(["noise_std", "rank"])
    print(facts.rank, facts.basis)  # 2 None
    ```
    """

    noise_std: Float[Array, ""] | None = None
    """Standard deviation of the noise."""
    norm_bound: Float[Array, ""] | None = None
    """A bound on the norm of the weights, or the root of their mean square if there is no bound."""
    rank: int | None = eqx.field(static=True, default=None)
    """Dimension of the subspace of the weights."""
    sparsity: int | None = eqx.field(static=True, default=None)
    """Number of groups of features that the weights use."""
    support: Bool[Array, " groups"] | None = None
    """The groups of features that the weights use."""
    basis: Float[Array, "features rank"] | None = None
    """Orthonormal basis of the subspace of the weights."""
    prior: Prior | None = None
    """Mean and covariance of the weights of a task, given all that tasks share. The oracle knows it."""
    marginal: Prior | None = None
    """Mean and covariance of the weights of a task, before anything that tasks share is known."""
    hyper_prior: Prior | None = None
    """Law of the mean of the tasks' weights."""
    task_covariance: Float[Array, "features features"] | None = None
    """Covariance of the tasks' weights around their mean."""

    def __check_init__(self):
        check_fields(self)

    def only(self, names: Iterable[str]) -> "Facts":
        """Return the facts of these names; all others are None.

        **Raises:** `ValueError` for an unknown name.
        """
        known = [field.name for field in dataclasses.fields(self)]
        names = list(names)
        for name in names:
            if name not in known:
                fail("names", f"among {', '.join(known)}", f"{name!r}{did_you_mean(name, known)}")
        return Facts(**{name: getattr(self, name) for name in names})
