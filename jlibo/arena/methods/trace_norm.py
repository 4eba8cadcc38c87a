"""Trace-norm methods: a learned subspace whose rank is not told.

| here              | published as                                                                         |
|-------------------|--------------------------------------------------------------------------------------|
| `TraceNormPrior`  | Cella, Lounici & Pontil 2022: learn a representation from tasks, then a greedy policy |
| `TraceNormGreedy` | Cella, Lounici, Pacreau & Pontil 2023: greedy, all tasks at once                     |

The downstream estimate of the 2022 paper is a reconstruction: a prior on the span of the singular vectors of
W_hat above lam / 2 ("projection"), or with the covariance W_hat^T W_hat / m ("covariance"), which has no
threshold.
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.arena.estimators import practical_lam, symmetric_eigen, trace_norm_least_squares
from jlibo.arena.estimators.gaussian import dot
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner
from jlibo.arena.methods.low_rank import growing_ticks
from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.exploration import AbstractExploration, NoExploration
from jlibo.policies.greedy import Greedy

CELLA_2022 = "Cella, Lounici & Pontil 2022"
CELLA_2023 = "Cella, Lounici, Pacreau & Pontil 2023"


@final
class TraceNormPrior(AbstractStatisticsLearner):
    """Meta-learner of a subspace by trace-norm least squares over past tasks, whose rank is not told.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `readout`.

    ```python
    import jax

    import jlibo
    from jlibo.arena.methods import TraceNormPrior

    features, key = jlibo.Cosine(num_features=4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = TraceNormPrior(norm_bound=10.0)
    result = jlibo.run_lifelong(env, features, jlibo.Greedy(0.1), learner, num_tasks=3, horizon=8, key=key)
    ```
    """

    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    """Size of the weights."""
    scale: Float[Array, ""] = eqx.field(converter=number("scale", at_least=0), default=0.1)
    """Factor of the penalty; see `jlibo.arena.estimators.practical_lam`. At least 0."""
    readout: str = choice("readout", ("projection", "covariance"))
    """The learned prior; see the module."""
    max_steps: int = size("max_steps", 100)
    """Most proximal steps after each task."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"
    noise_std: ClassVar[None] = None

    def __check_init__(self):
        check_fields(self)

    def fit(self, stats, sizes):
        size = sizes.num_features
        num_tasks = jnp.maximum(stats.present.sum(), 1)
        rounds = jnp.maximum(stats.count.max(), 1)
        lam = practical_lam(self.scale, num_tasks, size, rounds).astype(sizes.dtype)
        fit = trace_norm_least_squares(stats, lam, max_steps=self.max_steps)
        squares, vectors = symmetric_eigen(dot(fit.coef.T, fit.coef))
        squares = jnp.maximum(squares, 0)
        if self.readout == "projection":
            kept = jnp.sqrt(squares) > lam / 2
            variances = kept * self.norm_bound**2 / jnp.maximum(kept.sum(), 1)
        else:
            variances = squares / num_tasks
        # Without a direction, all have the same variance.
        variances = jnp.where(variances.any(), variances, self.norm_bound**2 / size).astype(sizes.dtype)
        return Prior(jnp.zeros(size, sizes.dtype), dot(vectors * variances, vectors.T))


@final
class TraceNormGreedy(AbstractJointLearner):
    """Joint learner that plays greedily with trace-norm least squares of all data.

    The estimate is refreshed at rounds that are spaced by a growing number of rounds, where the original
    refreshes at every round; it starts from the last estimate.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range.

    ```python
    import jax

    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import TraceNormGreedy
    from jlibo.envs.linear import FreshArms, LinearEnv, LowRankWeights

    key = jax.random.key(0)
    env = LinearEnv(LowRankWeights.draw(num_features=4, rank=2, key=key), FreshArms(5, 4), noise_std=1.0)
    result = run_rounds(env, TraceNormGreedy(), Schedule.concurrent(6, 20), key=key)
    ```
    """

    scale: Float[Array, ""] = eqx.field(converter=number("scale", at_least=0), default=0.1)
    """Factor of the penalty; see `jlibo.arena.estimators.practical_lam`. At least 0."""
    max_steps: int = size("max_steps", 100)
    """Most proximal steps at a refresh."""

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        return growing_ticks(schedule.num_rounds)

    def init(self, sizes):
        return jnp.zeros((sizes.num_tasks, sizes.num_features), sizes.dtype)

    def refresh(self, state, statistics, number, sizes):
        rounds = jnp.maximum(statistics.count.max(), 1)
        lam = practical_lam(self.scale, float(sizes.num_tasks), sizes.num_features, rounds)
        fit = trace_norm_least_squares(
            statistics, lam.astype(sizes.dtype), num_rounds=rounds, start=state, max_steps=self.max_steps
        )
        return fit.coef

    def choose(self, state, statistics, turn, sizes):
        def one(task, actions, explore):
            is_first = (statistics.count == 0).all()
            best = actions.best(state[task])
            return Choice(jax.tree.map(lambda a, b: jnp.where(is_first, a, b), explore, best), is_first)

        return jax.vmap(one)(turn.tasks, turn.actions, turn.exploration)

    def observe(self, state, turn, choice, rewards, sizes):
        return state


def _prior(readout: str):
    def make(facts, sizes):
        learner = TraceNormPrior(facts.norm_bound, readout=readout)
        return SequentialAgent(learner, Greedy(facts.noise_std))

    return make


def _greedy(facts, sizes):
    return TraceNormGreedy()


CARD = ("noise_std", "norm_bound")

METHODS: tuple[Method, ...] = (
    Method(
        "trace-norm",
        "Greedy actions in the span of earlier tasks' trace-norm least squares.",
        CELLA_2022,
        CARD,
        _prior("projection"),
    ),
    Method(
        "trace-norm-covariance",
        "Greedy actions with the second moment of earlier tasks' trace-norm least squares as covariance.",
        CELLA_2022,
        CARD,
        _prior("covariance"),
    ),
    Method(
        "trace-norm-concurrent",
        "Greedy actions from trace-norm least squares of all tasks.",
        CELLA_2023,
        ("fresh_contexts",),
        _greedy,
        setting="concurrent",
    ),
)
