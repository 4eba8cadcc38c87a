"""What a meta-learner is: past tasks in, a Gaussian prior over feature weights out."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jlibo.belief.prior import Prior, PriorMixture, check_noise, largest_variance, support_prior
from jlibo.checks import check_same_tree, is_concrete
from jlibo.meta.exploration import AbstractExploration
from jlibo.solver.group_lasso import Solution, Status

if TYPE_CHECKING:
    from jlibo.meta.past import PastTasks


class Setting(eqx.Module):
    """What is fixed before a run: sizes and groups. All of it is static."""

    groups: tuple[int, ...] = eqx.field(static=True)
    num_tasks: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    max_explore: int = eqx.field(static=True)
    """Most forced exploration steps in any task."""
    dtype: Any = eqx.field(static=True)
    free_groups: tuple[int, ...] = eqx.field(static=True, default=())
    """Groups that are in every prior and that nobody selects or drops."""

    @property
    def num_features(self) -> int:
        return len(self.groups)

    @property
    def num_groups(self) -> int:
        return max(self.groups) + 1


class TaskData(eqx.Module):
    """All that happened in one task, in the order of play."""

    features: Float[Array, "horizon features"]
    rewards: Float[Array, " horizon"]
    explored: Bool[Array, " horizon"]
    """Which steps were forced exploration; they come first."""
    present: Bool[Array, " horizon"] | None = None
    """Which steps there are; None: all. A task that ended early is padded."""

    @property
    def is_present(self) -> Bool[Array, " horizon"]:
        return jnp.ones_like(self.explored) if self.present is None else self.present


def only_present(data: TaskData, present: Bool[Array, " horizon"]) -> TaskData:
    """The task with only those steps that are `present`; the rewards of the others are zero."""
    rewards = jnp.where(present, data.rewards, 0)
    return TaskData(data.features, rewards, data.explored & present, data.is_present & present)


class MetaInfo(eqx.Module):
    """What a meta-learner tells about an update, beside its state."""

    support: Bool[Array, " groups"]
    """The selected groups, and the free ones."""
    fell_back: Bool[Array, ""]
    """The estimate was empty, so that the next prior is on all base kernels."""
    status: Int[Array, ""]
    gap: Float[Array, ""]
    num_steps: Int[Array, ""]


class AbstractMetaLearner(eqx.Module):
    """Turns finished tasks into the prior of the next one.

    `state` is any pytree of arrays of fixed shapes; `setting` tells the sizes.
    """

    exploration: eqx.AbstractVar[AbstractExploration]
    """The schedule of forced exploration that the learner asks for."""
    data: eqx.AbstractVar[str]
    """Which steps of a task the learner uses: "exploration" (forced exploration alone) or "all"."""

    @abc.abstractmethod
    def init(self, setting: Setting) -> Any:
        """The state before the first task."""

    @abc.abstractmethod
    def prior(self, state: Any, setting: Setting) -> Prior | PriorMixture:
        """The prior for the next task, or several among which the task's own rewards will decide."""

    @abc.abstractmethod
    def update(self, state: Any, data: TaskData, setting: Setting) -> tuple[Any, MetaInfo]:
        """The state after one more finished task."""

    @abc.abstractmethod
    def learn(self, past: "PastTasks", num_done: Int[Array, ""], setting: Setting) -> tuple[Any, MetaInfo]:
        """The state after all tasks of a history at once: what `update`, task by task, leads to.

        Solvers may stop at another point within their tolerance.

        **Arguments:**

        - `past`: the finished tasks, made by `jlibo.meta.past.remember` with the learner's `data`, at the
          places 0 to `num_done - 1`.
        - `num_done`: how many there are.
        - `setting`: as for `update`.
        """


def info_of(support: Bool[Array, " groups"], solution: Solution | None, setting: Setting) -> MetaInfo:
    """The report on a selection, with the certificate of the solve that it came from."""
    is_free = free_mask(setting)
    fell_back = ~(support & ~is_free).any()
    support = support | is_free
    if solution is None:
        zero = jnp.zeros((), jnp.int32)
        status = jnp.asarray(Status.CONVERGED, jnp.int32)
        return MetaInfo(support, fell_back, status, jnp.zeros((), setting.dtype), zero)
    return MetaInfo(support, fell_back, solution.status, solution.gap, solution.num_steps)


def check_run_noise(noise_std: Any, learner: AbstractMetaLearner, setting: Setting) -> None:
    """Refuse noise, the policy's or the learner's own, that a run cannot hold, where it is known now.

    The prior variance is that of an average of base kernels, one or so, unless the learner brings priors of
    its own. Noise that is traced is moved within the limits, see `jlibo.posterior.init`.
    """
    leaves = jax.tree.leaves(learner, is_leaf=lambda leaf: isinstance(leaf, Prior))
    variances = [largest_variance(leaf.covariance) for leaf in leaves if isinstance(leaf, Prior)]
    variances = variances or [np.ones(())]
    # A learner with several priors may use the narrowest of them.
    variance = min(map(float, variances)) if all(map(is_concrete, variances)) else 0.0
    for number in (noise_std, getattr(learner, "noise_std", None)):
        if number is not None:
            check_noise(number, variance, setting.dtype)


def check_state(learner: AbstractMetaLearner, before: Any, after: Any) -> None:
    """Refuse an `update` that changes the structure, shapes or dtypes of the learner's state.

    The scan over tasks needs them to be constant, and its own message does not name the learner.
    """
    name = type(learner).__name__
    expected = f"a state of the structure, shapes and dtypes of the one passed in ({name}.init)"
    check_same_tree(f"{name}.update(...)[0]", expected, before, after)


def no_support(setting: Setting) -> Bool[Array, " groups"]:
    return jnp.zeros(setting.num_groups, bool)


def selected_prior(support: Bool[Array, " groups"], setting: Setting) -> Prior:
    """The average of the selected kernels, as the setting has groups and precision."""
    return support_prior(support, setting.groups, setting.dtype, free_groups=setting.free_groups)


def group_array(setting: Setting) -> np.ndarray:
    return np.asarray(setting.groups)


def free_mask(setting: Setting) -> np.ndarray:
    """Which groups are free."""
    return np.isin(np.arange(setting.num_groups), np.asarray(setting.free_groups, int))
