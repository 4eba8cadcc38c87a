"""ABLR, PACOH-MAP, F-PACOH and ALPaCA with the features of the arena in place of a learned network.

| here              | published as                                                                        |
|-------------------|-------------------------------------------------------------------------------------|
| `LikelihoodPrior` | ABLR (mean zero), PACOH-MAP (hyper-prior on parameters), F-PACOH (on functions)     |
| `PredictivePrior` | ALPaCA: the prior that predicts the later rewards of a task from the first ones     |

The objectives are in `jlibo.arena.estimators`. The originals learn a neural feature map as well; here it is
given, as it is for all methods of the arena.
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jlibo.arena.estimators import (
    DiagonalPrior,
    HyperPrior,
    TaskRows,
    fit_diagonal_prior,
    fit_predictive_prior,
)
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner, no_selection, wide_belief
from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.base import AbstractMetaLearner
from jlibo.meta.exploration import AbstractExploration, NoExploration
from jlibo.policies.gp_ts import GPTS

PERRONE = "Perrone, Jenatton, Seeger & Archambeau 2018"
PACOH = "Rothfuss, Fortuin, Josifoski & Krause 2021"
F_PACOH = "Rothfuss, Heyn, Chen & Krause 2021"
HARRISON = "Harrison, Sharma & Pavone 2018"
STRUCTURES = ("groups", "isotropic")
HYPER_POINTS = 20
"""Most points at which F-PACOH compares functions."""
HYPER_WEIGHT = 0.1
"""kappa of F-PACOH."""


@final
class LikelihoodPrior(AbstractStatisticsLearner):
    """Meta-learner of a diagonal prior by regularised marginal likelihood: ABLR, PACOH-MAP and F-PACOH.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown `structure`.

    ```python
    import jax

    import jlibo
    from jlibo.arena.methods import LikelihoodPrior

    features, key = jlibo.Cosine(num_features=4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = LikelihoodPrior(noise_std=0.1, norm_bound=10.0, learn_mean=False)
    result = jlibo.run_lifelong(env, features, jlibo.GPTS(0.1), learner, num_tasks=3, horizon=8, key=key)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    """Size of the weights, which sets the prior before the first task and the units of the hyper-prior."""
    structure: str = choice("structure", STRUCTURES)
    """Variances: one per group of features ("groups") or one for all ("isotropic")."""
    learn_mean: bool = eqx.field(static=True, default=True)
    """Whether to learn the mean; ABLR does not."""
    hyper: HyperPrior | None = None
    """Regulariser; None for none. Parameters are relative to the prior before the first task, for which
    mean and log variance are zero."""
    num_steps: int = size("num_steps", 40)
    """Steps of Adam after each task, from the wide prior."""
    learning_rate: Float[Array, ""] = eqx.field(converter=number("learning_rate", above=0), default=0.3)
    """Of Adam. Above 0."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"

    def __check_init__(self):
        check_fields(self)

    def fit(self, stats, sizes):
        # In units in which the wide prior is N(0, I).
        scale = (self.norm_bound / np.sqrt(sizes.num_features)).astype(sizes.dtype)
        in_units = eqx.tree_at(
            lambda s: (s.gram, s.moment), stats, (stats.gram * scale**2, stats.moment * scale)
        )
        groups = sizes.groups if self.structure == "groups" else (0,) * sizes.num_features
        start = DiagonalPrior(
            jnp.zeros(sizes.num_features, sizes.dtype), jnp.zeros(max(groups) + 1, sizes.dtype)
        )
        fitted = fit_diagonal_prior(
            in_units,
            start,
            jnp.square(self.noise_std).astype(sizes.dtype),
            hyper=self.hyper,
            groups=groups,
            learn_mean=self.learn_mean,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
        )
        belief = fitted.belief(groups)
        return Prior(scale * belief.mean, scale**2 * belief.covariance)


@final
class PredictiveState(eqx.Module):
    """State of `PredictivePrior`: the rows of all tasks, and the prior of the next one."""

    rows: TaskRows
    num_done: Int[Array, ""]
    learned: Prior


@final
class PredictivePrior(AbstractMetaLearner):
    """Meta-learner of the prior that best predicts the later rewards of a task from its first ones: ALPaCA.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range.

    ```python
    import jax

    import jlibo
    from jlibo.arena.methods import PredictivePrior

    features, key = jlibo.Cosine(num_features=4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = PredictivePrior(noise_std=0.1, norm_bound=10.0, num_steps=10)
    result = jlibo.run_lifelong(env, features, jlibo.GPTS(0.1), learner, num_tasks=3, horizon=8, key=key)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    """Size of the weights, which sets the prior before the first task."""
    num_contexts: int = size("num_contexts", 4)
    """Context lengths in the loss, evenly spaced."""
    batch_size: int = size("batch_size", 8)
    """Tasks in a step of Adam, which takes the next ones in turn."""
    num_steps: int = size("num_steps", 30)
    """Steps of Adam after each task, from the wide prior."""
    learning_rate: Float[Array, ""] = eqx.field(converter=number("learning_rate", above=0), default=0.03)
    """Of Adam. Above 0. A larger one, such as 0.3, fits a few features better and diverges with 50."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"

    def __check_init__(self):
        check_fields(self)

    def init(self, sizes):
        rows = TaskRows(
            jnp.zeros((sizes.num_tasks, sizes.horizon, sizes.num_features), sizes.dtype),
            jnp.zeros((sizes.num_tasks, sizes.horizon), sizes.dtype),
            jnp.zeros((sizes.num_tasks, sizes.horizon), bool),
        )
        return self._state(rows, jnp.zeros((), jnp.int32), sizes)

    def prior(self, state, sizes):
        return state.learned

    def update(self, state, data, sizes):
        new = TaskRows(data.features, data.rewards, data.is_present)
        rows = jax.tree.map(
            lambda all, one: all.at[state.num_done].set(one.astype(all.dtype)), state.rows, new
        )
        return self._state(rows, state.num_done + 1, sizes), no_selection(sizes)

    def learn(self, past, num_done, sizes):
        # The stored rows may be compressed: then contexts are combinations of rewards.
        missing = sizes.horizon - past.targets.shape[1]
        present = (past.is_done[:, None] > 0) & (past.features != 0).any(-1)
        rows = TaskRows(past.features, past.targets, present)
        rows = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, 0), (0, missing)] + [(0, 0)] * (leaf.ndim - 2)), rows
        )
        return self._state(rows, num_done, sizes), no_selection(sizes)

    def _state(self, rows: TaskRows, num_done, sizes) -> PredictiveState:
        # In units in which the wide prior is N(0, I).
        wide = wide_belief(jnp.sqrt(jnp.asarray(sizes.num_features, sizes.dtype)), sizes)
        scale = (self.norm_bound / np.sqrt(sizes.num_features)).astype(sizes.dtype)
        fitted = fit_predictive_prior(
            rows._replace(features=rows.features * scale),
            wide,
            jnp.square(self.noise_std).astype(sizes.dtype),
            num_contexts=self.num_contexts,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
        )
        learned = Prior(scale * fitted.mean, scale**2 * fitted.covariance)
        return PredictiveState(rows, num_done, learned)


CARD = ("noise_std", "norm_bound", "iid_tasks")


def _agent(facts, learner) -> SequentialAgent:
    return SequentialAgent(learner, GPTS(facts.noise_std))


def _ablr(facts, sizes):
    learner = LikelihoodPrior(facts.noise_std, facts.norm_bound, "isotropic", learn_mean=False)
    return _agent(facts, learner)


def _ablr_ard(facts, sizes):
    return _agent(facts, LikelihoodPrior(facts.noise_std, facts.norm_bound, learn_mean=False))


def _pacoh(facts, sizes):
    hyper = HyperPrior.none(sizes.num_features, 1.0, 1.0)
    return _agent(facts, LikelihoodPrior(facts.noise_std, facts.norm_bound, hyper=hyper))


def _f_pacoh(facts, sizes):
    # Functions are compared at the unit vectors, where a function is a weight: no method knows the domain.
    count = min(sizes.num_features, HYPER_POINTS)
    points = jnp.eye(sizes.num_features, dtype=sizes.dtype)[:: -(-sizes.num_features // count)]
    hyper = HyperPrior.on_functions(points, jnp.eye(len(points), dtype=sizes.dtype), HYPER_WEIGHT)
    return _agent(facts, LikelihoodPrior(facts.noise_std, facts.norm_bound, hyper=hyper))


def _alpaca(facts, sizes):
    return _agent(facts, PredictivePrior(facts.noise_std, facts.norm_bound))


METHODS: tuple[Method, ...] = (
    Method("ablr", "Thompson sampling; one learned variance of all weights.", PERRONE, CARD, _ablr),
    Method("ablr-ard", "Thompson sampling; one learned variance per group.", PERRONE, CARD, _ablr_ard),
    Method("pacoh", "Thompson sampling; prior by penalised marginal likelihood.", PACOH, CARD, _pacoh),
    Method(
        "f-pacoh",
        "Thompson sampling; prior by marginal likelihood, penalised as a distribution of functions.",
        F_PACOH,
        CARD,
        _f_pacoh,
    ),
    Method("alpaca", "Thompson sampling; prior by prediction of later rewards.", HARRISON, CARD, _alpaca),
)
