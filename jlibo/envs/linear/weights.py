"""Laws of the weights of tasks: what the tasks of an environment share. `sparse` has those of sparse weights.

| law                    | the tasks share                                  | setting of                     |
|------------------------|--------------------------------------------------|--------------------------------|
| `LowRankWeights`       | a subspace                                       | Yang 2021 and 2022, Hu, Cella  |
| `GaussianWeights`      | mean and covariance                              | AdaTS, HierTS, MQB, FedUCB     |
| `ShiftedWeights`       | those of another law, and a mean                 | none (a bridge)                |
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jlibo.belief.prior import Prior, semidefinite_cholesky
from jlibo.checks import check_count, check_shape, fail
from jlibo.envs.linear.arms import random_basis
from jlibo.envs.linear.base import AbstractWeights, one_group_each
from jlibo.envs.linear.facts import Facts
from jlibo.fields import ScalarLike, number
from jlibo.front_door import check_fields, front_door


@final
class LowRankWeights(AbstractWeights):
    """Weights B w in a subspace, with w uniform on a sphere of a random radius; see `LowRankWeights.draw`.

    **Arguments:**

    - `basis`: orthonormal basis B of the subspace, `[features, rank]`.
    - `least_norm`, `norm_bound`: the norm is uniform between them.
    - `reveals`: numbers of the tasks that reveal a new direction of the subspace, in increasing order: one
      for each direction, the first of them 0. The weights of such a task are along the new direction, and
      those of later tasks in the span of all revealed ones. If empty, all tasks use the whole subspace.

    **Raises:** `ValueError` for a wrong shape or a value out of range.

    ```python
    import jax

    from jlibo.envs.linear import LowRankWeights

    law = LowRankWeights.draw(num_features=6, rank=2, reveals=(0, 10), key=jax.random.key(0))
    print(law.draw_weights(0, key=jax.random.key(1)).shape)  # (6,)
    ```
    """

    basis: Float[Array, "features rank"]
    least_norm: Float[Array, ""] = eqx.field(converter=number("least_norm", at_least=0), default=0.8)
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0), default=1.0)
    reveals: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        check_fields(self)
        check_shape("basis", self.basis, ("features", "rank"))
        given = list(self.reveals)
        if given and (len(given) != self.basis.shape[1] or given[0] != 0 or given != sorted(set(given))):
            expected = f"{self.basis.shape[1]} increasing numbers, the first of them 0"
            fail("reveals", expected, self.reveals)

    @classmethod
    @front_door
    def draw(
        cls,
        *,
        num_features: int,
        rank: int,
        least_norm: ScalarLike = 0.8,
        norm_bound: ScalarLike = 1.0,
        reveals: tuple[int, ...] = (),
        is_axis_aligned: bool = False,
        key: PRNGKeyArray,
    ) -> "LowRankWeights":
        """Return a law with a random subspace.

        **Arguments:**

        - `num_features`, `rank`: dimensions of the space and of the subspace.
        - `least_norm`, `norm_bound`, `reveals`: as in the class.
        - `is_axis_aligned`: whether the subspace is spanned by features, as for sparse weights.
        - `key`: random key of the subspace.
        """
        check_count("num_features", num_features)
        check_count("rank", rank)
        if rank > num_features:
            fail("rank", f"at most the {num_features} features", rank)
        if is_axis_aligned:
            basis = jnp.eye(num_features)[:, jax.random.permutation(key, num_features)[:rank]]
        else:
            basis = random_basis(key, num_features, rank)
        return cls(basis, least_norm, norm_bound, tuple(reveals))

    @property
    def groups(self) -> tuple[int, ...]:
        return one_group_each(self.basis.shape[0])

    def draw_weights(self, index, *, key):
        key_direction, key_norm = jax.random.split(key)
        within = jax.random.normal(key_direction, (self.basis.shape[1],))
        if self.reveals:
            index, reveals = jnp.asarray(index), jnp.asarray(self.reveals)
            is_new = reveals == index
            within = jnp.where(is_new.any(), is_new, within * (reveals <= index))
        within = within / jnp.sqrt((within**2).sum())
        norm = jax.random.uniform(key_norm, minval=self.least_norm, maxval=self.norm_bound)
        return norm * jnp.matmul(self.basis, within, precision=lax.Precision.HIGHEST)

    @property
    def facts(self) -> Facts:
        num_features, rank = self.basis.shape
        low, high = self.least_norm, self.norm_bound
        square = (low**2 + low * high + high**2) / 3
        projection = jnp.matmul(self.basis, self.basis.T, precision=lax.Precision.HIGHEST)
        zeros = jnp.zeros(num_features)
        return Facts(
            norm_bound=high,
            rank=rank,
            basis=self.basis,
            prior=Prior(zeros, square / rank * projection),
            marginal=Prior(zeros, jnp.full(num_features, square / num_features)),
        )


@final
class GaussianWeights(AbstractWeights):
    """Normal weights around a shared mean.

    With a covariance of zero, all tasks have the same weights.

    **Arguments:**

    - `mean`: mean of the weights, `[features]`.
    - `covariance`: covariance of the weights, `[features, features]`.
    - `hyper_prior`: law of the mean, if it is random.

    **Raises:** `ValueError` for a wrong shape.

    ```python
    import jax
    import jax.numpy as jnp

    from jlibo.envs.linear import GaussianWeights

    law = GaussianWeights.draw(hyper_std=0.5, covariance=0.01 * jnp.eye(4), key=jax.random.key(0))
    ```
    """

    mean: Float[Array, " features"]
    covariance: Float[Array, "features features"]
    hyper_prior: Prior

    def __check_init__(self):
        check_fields(self)
        check_shape("mean", self.mean, ("features",))
        check_shape("covariance", self.covariance, (self.mean.shape[0], self.mean.shape[0]))

    @classmethod
    @front_door
    def draw(
        cls, *, hyper_std: ScalarLike, covariance: Float[Array, "features features"], key: PRNGKeyArray
    ) -> "GaussianWeights":
        """Return a law whose mean is normal around zero.

        **Arguments:**

        - `hyper_std`: standard deviation of every entry of the mean.
        - `covariance`: covariance of the weights around their mean.
        - `key`: random key of the mean.
        """
        check_shape("covariance", covariance, ("features", "features"))
        size = covariance.shape[0]
        mean = jnp.asarray(hyper_std) * jax.random.normal(key, (size,))
        return cls(mean, covariance, Prior(jnp.zeros(size), jnp.full(size, jnp.asarray(hyper_std) ** 2)))

    @property
    def groups(self) -> tuple[int, ...]:
        return one_group_each(self.mean.shape[0])

    def draw_weights(self, index, *, key):
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        factor = semidefinite_cholesky(self.covariance)
        return self.mean + jnp.matmul(factor, noise, precision=lax.Precision.HIGHEST)

    @property
    def facts(self) -> Facts:
        hyper = self.hyper_prior
        spread = jnp.diag(hyper.covariance) if hyper.covariance.ndim == 1 else hyper.covariance
        total = spread + self.covariance
        square = (hyper.mean**2).sum() + jnp.trace(total)
        return Facts(
            norm_bound=jnp.sqrt(square),
            prior=Prior(self.mean, self.covariance),
            marginal=Prior(hyper.mean, total),
            hyper_prior=hyper,
            task_covariance=self.covariance,
        )


@final
class ShiftedWeights(AbstractWeights):
    """The weights of another law plus a vector that all tasks share.

    **Arguments:**

    - `law`: the other law.
    - `shift`: the vector, `[features]`. Facts about rank and sparsity are those of the other law.

    **Raises:** `ValueError` for a wrong shape.
    """

    law: AbstractWeights
    shift: Float[Array, " features"]

    def __check_init__(self):
        check_fields(self)
        check_shape("shift", self.shift, (len(self.law.groups),))

    @property
    def groups(self) -> tuple[int, ...]:
        return self.law.groups

    def draw_weights(self, index, *, key):
        return self.law.draw_weights(index, key=key) + self.shift

    @property
    def facts(self) -> Facts:
        facts = self.law.facts
        bound = None if facts.norm_bound is None else facts.norm_bound + jnp.sqrt((self.shift**2).sum())
        prior = None
        if facts.prior is not None:
            prior = Prior(facts.prior.mean + self.shift, facts.prior.covariance)
        return Facts(
            norm_bound=bound,
            rank=facts.rank,
            sparsity=facts.sparsity,
            support=facts.support,
            basis=facts.basis,
            prior=prior,
            marginal=facts.marginal,
            hyper_prior=facts.hyper_prior,
            task_covariance=facts.task_covariance,
        )
