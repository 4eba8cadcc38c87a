"""The interface of meta-learners: from finished tasks to a Gaussian prior over feature weights.

| here        | paper                                                                                 |
|-------------|---------------------------------------------------------------------------------------|
| `num_tasks` | m                                                                                     |
| `horizon`   | n, the steps of a task                                                                |
| `TaskData`  | D_s, and D^exp_s in the rows where `explored`                                         |
| `support`   | J_hat_s, the kernels selected after task s                                            |
"""

import abc
from typing import TYPE_CHECKING, Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jlibo.belief.prior import Prior, PriorMixture, check_noise, largest_variance, support_prior
from jlibo.checks import ArrayLike, check_same_tree, is_concrete
from jlibo.features import AbstractFeatures
from jlibo.fields import AbstractField
from jlibo.front_door import front_door
from jlibo.meta.exploration import AbstractExploration
from jlibo.solver.group_lasso import Solution, Status

if TYPE_CHECKING:
    from jlibo.meta.past import PastTasks


@final
class RunSizes(eqx.Module):
    """The sizes of a run, which determine the shapes of a meta-learner's state. All fields are static.

    ```python
    import jax.numpy as jnp

    import jlibo

    sizes = jlibo.RunSizes(groups=(0, 0, 1), num_tasks=5, horizon=20, max_explore=4, dtype=jnp.float32)
    print(sizes.num_features, sizes.num_groups)  # 3 2
    ```
    """

    groups: tuple[int, ...] = eqx.field(static=True)
    """Group of each feature; a group is a base kernel."""
    num_tasks: int = eqx.field(static=True)
    """Number of tasks of the run."""
    horizon: int = eqx.field(static=True)
    """Number of steps of each task."""
    max_explore: int = eqx.field(static=True)
    """Largest number of forced exploration steps in any task."""
    dtype: Any = eqx.field(static=True)
    """Dtype of features and rewards."""
    free_groups: tuple[int, ...] = eqx.field(static=True, default=())
    """Groups without penalty: they are part of every prior and are never selected or dropped."""
    rest_groups: tuple[int, ...] = eqx.field(static=True, default=())
    """The free groups that the selection ignores; see `AbstractFeatures.rest_groups`."""

    @staticmethod
    @front_door
    def of(
        features: AbstractFeatures, *, num_tasks: int, horizon: int, max_explore: int, dtype: Any
    ) -> "RunSizes":
        """Return the sizes of a run on `features`."""
        return RunSizes(
            features.groups,
            num_tasks,
            horizon,
            max_explore,
            dtype,
            features.free_groups,
            features.rest_groups,
        )

    @property
    def num_features(self) -> int:
        """Number of features."""
        return len(self.groups)

    @property
    def num_groups(self) -> int:
        """Number of groups, the free ones included."""
        return max(self.groups) + 1


@final
class TaskData(eqx.Module):
    """The data of one finished task, one row per step, in the order of play.

    ```python
    import jax.numpy as jnp

    import jlibo

    data = jlibo.TaskData(
        features=jnp.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        rewards=jnp.asarray([0.2, 0.5, 0.7]),
        explored=jnp.asarray([True, False, False]),
    )
    print(data.is_present)  # [ True  True  True]
    ```
    """

    features: Float[Array, "horizon features"]
    """Features of the actions."""
    rewards: Float[Array, " horizon"]
    """Rewards, in the units of the run's scaling."""
    explored: Bool[Array, " horizon"]
    """Which steps were forced exploration. They come first."""
    present: Bool[Array, " horizon"] | None = None
    """Which steps exist; None means all. The other steps are padding of a task that ended early."""
    key: PRNGKeyArray | None = None
    """Random key for what a learner draws after this task, such as the noise of a private vote."""

    @property
    def is_present(self) -> Bool[Array, " horizon"]:
        """Which steps exist, always as an array."""
        return jnp.ones_like(self.explored) if self.present is None else self.present


def only_present(data: TaskData, present: Bool[Array, " horizon"]) -> TaskData:
    """Return the task with only those steps that are `present`; the rewards of the others are zero."""
    rewards = jnp.where(present, data.rewards, 0)
    return TaskData(data.features, rewards, data.explored & present, data.is_present & present, data.key)


@final
class MetaInfo(eqx.Module):
    """Report on an update of a meta-learner; it does not affect later tasks.

    ```python
    import jax.numpy as jnp

    import jlibo

    info = jlibo.MetaInfo(
        support=jnp.asarray([True, False]),
        fell_back=jnp.asarray(False),
        status=jnp.asarray(jlibo.Status.CONVERGED),
        gap=jnp.zeros(()),
        num_steps=jnp.asarray(30),
    )
    ```
    """

    support: Bool[Array, " groups"]
    """The selected groups, and the free ones."""
    fell_back: Bool[Array, ""]
    """Whether the selection was empty, so that the next prior has all base kernels."""
    status: Int[Array, ""]
    """`Status` of the solve behind the selection, as a number."""
    gap: Float[Array, ""]
    """Duality gap of that solve."""
    num_steps: Int[Array, ""]
    """Steps of that solve."""


class AbstractMetaLearner(eqx.Module):
    """Base class of meta-learners, which learn the prior of the next task from finished tasks.

    A subclass declares `exploration`, `data` and `noise_std`, and implements `init`, `prior`, `update` and
    `learn`. The state is any pytree of arrays whose shapes depend on the `RunSizes` only. All methods must be
    jittable.

    ```python
    from typing import ClassVar

    import jax.numpy as jnp

    import jlibo

    class AllKernels(jlibo.AbstractMetaLearner):
        exploration: jlibo.AbstractExploration = jlibo.NoExploration()
        data: ClassVar[str] = "all"
        noise_std: ClassVar[None] = None

        def init(self, sizes):
            return ()

        def prior(self, state, sizes):
            return jlibo.full_prior(sizes.groups, sizes.dtype)

        def update(self, state, data, sizes):
            return self.learn(None, None, sizes)

        def learn(self, past, num_done, sizes):
            support, zero = jnp.ones(sizes.num_groups, bool), jnp.zeros((), jnp.int32)
            return (), jlibo.MetaInfo(support, jnp.asarray(False), zero, jnp.zeros((), sizes.dtype), zero)
    ```
    """

    if TYPE_CHECKING:
        exploration = AbstractField[AbstractExploration]()
        data = AbstractField[str]()
        noise_std = AbstractField[Float[ArrayLike, ""] | None]()
    else:
        exploration: eqx.AbstractVar[AbstractExploration]
        """Default schedule of forced exploration."""
        data: eqx.AbstractVar[str]
        """Which steps of a task the learner uses: "exploration" (forced exploration only) or "all"."""
        noise_std: eqx.AbstractVar[Float[ArrayLike, ""] | None]
        """Noise of the rewards that the learner assumes; None if it assumes none. Runs check that the dtype
        can represent it."""

    @abc.abstractmethod
    def init(self, sizes: RunSizes) -> Any:
        """Return the state before the first task."""

    @abc.abstractmethod
    def prior(self, state: Any, sizes: RunSizes) -> Prior | PriorMixture:
        """Return the prior of the next task: a Gaussian, or a mixture that the task's rewards reweight."""

    @abc.abstractmethod
    def update(self, state: Any, data: TaskData, sizes: RunSizes) -> tuple[Any, MetaInfo]:
        """Return the state after one more finished task, and a report on the update."""

    @abc.abstractmethod
    def learn(self, past: "PastTasks", num_done: Int[Array, ""], sizes: RunSizes) -> tuple[Any, MetaInfo]:
        """Return the state after all tasks of a history, and a report on the last of them.

        The result is that of `update` for one task after another, up to the tolerance of solvers.

        **Arguments:**

        - `past`: the finished tasks at positions 0 to `num_done - 1`, stored by `jlibo.meta.past.remember`
          with the learner's `data`.
        - `num_done`: number of finished tasks.
        - `sizes`: as in `update`.
        """


def info_of(support: Bool[Array, " groups"], solution: Solution | None, sizes: RunSizes) -> MetaInfo:
    """Return the report on a selection; `solution` is the solve behind it, None if there was none."""
    is_free = free_mask(sizes)
    fell_back = ~(support & ~is_free).any()
    support = support | is_free
    if solution is None:
        zero = jnp.zeros((), jnp.int32)
        status = jnp.asarray(Status.CONVERGED, jnp.int32)
        return MetaInfo(support, fell_back, status, jnp.zeros((), sizes.dtype), zero)
    return MetaInfo(support, fell_back, solution.status, solution.gap, solution.num_steps)


def check_run_noise(noise_std: Any, learner: AbstractMetaLearner, sizes: RunSizes) -> None:
    """Check that the dtype of a run can represent the noise of the policy, `noise_std`, and of the learner.

    The limits are relative to the prior variance. It is that of an average of base kernels, about one, unless
    the learner has priors as fields. Traced noise is not checked here but clipped to the limits; see
    `jlibo.posterior.init`.

    **Raises:** `ValueError` if the noise is known (not traced) and out of the limits.
    """
    leaves = jax.tree.leaves(learner, is_leaf=lambda leaf: isinstance(leaf, Prior))
    variances = [largest_variance(leaf.covariance) for leaf in leaves if isinstance(leaf, Prior)]
    variances = variances or [np.ones(())]
    # A learner with several priors may use the narrowest of them.
    variance = min(map(float, variances)) if all(map(is_concrete, variances)) else 0.0
    for number in (noise_std, learner.noise_std):
        if number is not None:
            check_noise(number, variance, sizes.dtype)


def check_state(learner: AbstractMetaLearner, before: Any, after: Any) -> None:
    """Refuse an `update` that changes the structure, shapes or dtypes of the learner's state.

    The scan over tasks needs them to be constant, and its own message does not name the learner.
    """
    name = type(learner).__name__
    expected = f"a state of the structure, shapes and dtypes of the one passed in ({name}.init)"
    check_same_tree(f"{name}.update(...)[0]", expected, before, after)


def no_support(sizes: RunSizes) -> Bool[Array, " groups"]:
    """Return the empty selection."""
    return jnp.zeros(sizes.num_groups, bool)


def selected_prior(support: Bool[Array, " groups"], sizes: RunSizes) -> Prior:
    """Return the prior of the average of the selected kernels, with the groups and dtype of the run."""
    return support_prior(support, sizes.groups, sizes.dtype, free_groups=sizes.free_groups)


def group_array(sizes: RunSizes) -> np.ndarray:
    """Return the group of each feature, as an array."""
    return np.asarray(sizes.groups)


def free_mask(sizes: RunSizes) -> np.ndarray:
    """Return which groups are free."""
    return np.isin(np.arange(sizes.num_groups), np.asarray(sizes.free_groups, int))
