"""MQB: the prior of a task from least-squares estimates of earlier tasks (Peleg, Pearl & Meir 2022).

| here              | paper                                                                               |
|-------------------|-------------------------------------------------------------------------------------|
| `TaskMomentsPrior`| MQB_tau: mu_n and Sig_n^w                                                           |
| `first_tasks`     | N0, the tasks that are played before the learned prior is used                      |
| `widening_scale`  | c_w, 10 for Th-MTS and 1 for All-MTS in the experiments                             |
| `data`            | "exploration": the tau uniform pulls (Th-MTS); "all": every pull (All-MTS)          |

The paper's N0 = d^3 tasks is more than the arena plays; by default it is d + 2, when the covariance of the
estimates can have full rank.
"""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.arena.estimators import moment_belief, task_moments
from jlibo.arena.estimators.task_moments import widening
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner
from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.exploration import AbstractExploration, CustomExploration, NoExploration
from jlibo.meta.rows import DATA_CHOICES
from jlibo.policies.gp_ts import GPTS

REFERENCE = "Peleg, Pearl & Meir 2022"
PULLS = 2
"""Exploration steps of a task, in multiples of the number of features."""


@final
class TaskMomentsPrior(AbstractStatisticsLearner):
    """Meta-learner of mean and covariance of tasks by bias-corrected moments: MQB.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `data`.

    ```python
    import jax

    import jlibo
    from jlibo.arena.methods import TaskMomentsPrior

    features, key = jlibo.Cosine(num_features=3), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = TaskMomentsPrior(noise_std=0.1, start=jlibo.full_prior(features.groups), data="all")
    result = jlibo.run_lifelong(env, features, jlibo.GPTS(0.1), learner, num_tasks=6, horizon=8, key=key)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    start: Prior
    """Prior of the first tasks."""
    widening_scale: Float[Array, ""] = eqx.field(converter=number("widening_scale", at_least=0), default=1.0)
    """c_w: factor of the widening, which falls as the number of tasks grows. At least 0."""
    floor: Float[Array, ""] = eqx.field(converter=number("floor", at_least=0), default=1e-6)
    """Smallest eigenvalue of the covariance of tasks. At least 0."""
    first_tasks: int = size("first_tasks", 0, at_least=0)
    """Tasks before the learned prior is used; 0 for d + 2."""
    data: str = choice("data", DATA_CHOICES)
    """Which steps of a task to use: "exploration" (forced exploration only) or "all"."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    def __check_init__(self):
        check_fields(self)

    def fit(self, stats, sizes):
        variance = jnp.square(self.noise_std).astype(sizes.dtype)
        moments = task_moments(stats, variance)
        width = widening(sizes.num_features, moments.num_tasks - 1, jnp.asarray(float(sizes.horizon)))
        belief = moment_belief(moments, self.widening_scale * width, self.floor)
        first = self.first_tasks or sizes.num_features + 2
        start = jax.tree.map(lambda leaf: leaf.astype(sizes.dtype), self.start)
        covariance = start.covariance
        if covariance.ndim == 1:
            covariance = jnp.diag(covariance)
        is_known = moments.num_tasks >= first
        return Prior(
            jnp.where(is_known, belief.mean, start.mean),
            jnp.where(is_known, belief.covariance, covariance),
        )


CARD = ("noise_std", "marginal", "horizon", "iid_tasks")


def _explore(sizes) -> AbstractExploration:
    pulls = min(PULLS * sizes.num_features, sizes.horizon // 2)
    return CustomExploration(lambda task, horizon: pulls)


def _exploration_only(facts, sizes):
    learner = TaskMomentsPrior(facts.noise_std, facts.marginal, 10.0, exploration=_explore(sizes))
    return SequentialAgent(learner, GPTS(facts.noise_std))


def _all_data(facts, sizes):
    learner = TaskMomentsPrior(facts.noise_std, facts.marginal, data="all", exploration=_explore(sizes))
    return SequentialAgent(learner, GPTS(facts.noise_std))


def _no_exploration(facts, sizes):
    learner = TaskMomentsPrior(facts.noise_std, facts.marginal, data="all")
    return SequentialAgent(learner, GPTS(facts.noise_std))


METHODS: tuple[Method, ...] = (
    Method(
        "mqb",
        "Thompson sampling; moments of tasks from exploration data.",
        REFERENCE,
        CARD,
        _exploration_only,
    ),
    Method("mqb-all-tau", "The same from all data, with the same exploration.", REFERENCE, CARD, _all_data),
    Method("mqb-all", "The same from all data, without exploration.", REFERENCE, CARD, _no_exploration),
)
