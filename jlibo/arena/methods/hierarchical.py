"""AdaTS, HierTS and HierBayesUCB: tasks around a common mean, with known covariances.

| here                | published as                                                                        |
|---------------------|-------------------------------------------------------------------------------------|
| `HierarchicalPrior` | AdaTS (Basu et al. 2021): the prior of a task is learned from the tasks before it   |
| `JointHierarchy`    | HierTS (Hong et al. 2022): every belief uses the data of all tasks, at every step   |

With an upper confidence bound in place of a draw, HierTS is HierBayesUCB (Guan & Xiong 2024). On tasks in
sequence the two learners have the same beliefs.
"""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jlibo.actions import upper_confidence
from jlibo.arena.estimators import Gaussian, hierarchical_beliefs, hyper_posterior
from jlibo.arena.estimators.gaussian import dot, factor_of
from jlibo.arena.estimators.hierarchical import all_evidence, new_task_prior
from jlibo.arena.joint import AbstractJointLearner, Choice
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner
from jlibo.belief.prior import Prior
from jlibo.fields import choice, number
from jlibo.front_door import check_fields
from jlibo.meta.exploration import AbstractExploration, NoExploration
from jlibo.policies.gp_ts import GPTS
from jlibo.policies.gp_ucb import GPUCB

BASU = "Basu, Kveton, Zaheer & Szepesvari 2021"
HONG = "Hong, Kveton, Zaheer & Ghavamzadeh 2022"
GUAN = "Guan & Xiong 2024"
WIDTH = float(np.sqrt(2 * np.log(1 / 0.1)))
"""Width sqrt(2 log(1 / delta)) of the upper confidence bounds, with a failure probability of 0.1."""


@final
class HierarchicalPrior(AbstractStatisticsLearner):
    """Meta-learner of a common mean of tasks whose covariance is known: AdaTS.

    theta_s ~ N(mu, Sigma_0) with mu ~ N(mu_q, Sigma_q). The prior of a task is N(mu_bar, Sigma_bar + Sigma_0)
    with the posterior N(mu_bar, Sigma_bar) of mu after the tasks before it.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a noise that is not above 0.

    ```python
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo.arena.methods import HierarchicalPrior

    features, key = jlibo.Cosine(num_features=4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = HierarchicalPrior(jlibo.Prior(jnp.zeros(4), jnp.ones(4)), jnp.eye(4), noise_std=0.1)
    result = jlibo.run_lifelong(env, features, jlibo.GPTS(0.1), learner, num_tasks=3, horizon=8, key=key)
    ```
    """

    hyper_prior: Prior
    """N(mu_q, Sigma_q), the law of the common mean."""
    task_covariance: Float[Array, "features features"]
    """Sigma_0."""
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"

    def __check_init__(self):
        check_fields(self)

    def fit(self, stats, sizes):
        factor = factor_of(jnp.asarray(self.task_covariance, sizes.dtype))
        evidence = all_evidence(factor, stats, self.noise_std**2).total
        hyper = jax.tree.map(lambda leaf: leaf.astype(sizes.dtype), Gaussian.of_prior(self.hyper_prior))
        return new_task_prior(hyper_posterior(hyper, evidence), factor).as_prior()


@final
class JointHierarchy(AbstractJointLearner):
    """Joint learner of tasks around a common mean: HierTS, or with a bound in place of a draw HierBayesUCB.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a noise that is not above 0 or an unknown `index`.

    ```python
    import jax
    import jax.numpy as jnp

    import jlibo
    from jlibo.arena import Schedule, run_rounds
    from jlibo.arena.methods import JointHierarchy
    from jlibo.envs.linear import BallArms, GaussianWeights, LinearEnv

    key = jax.random.key(0)
    weights = GaussianWeights.draw(hyper_std=1.0, covariance=0.01 * jnp.eye(3), key=key)
    env = LinearEnv(weights, BallArms(1.0, 3), noise_std=1.0)
    learner = JointHierarchy(jlibo.Prior(jnp.zeros(3), jnp.ones(3)), 0.01 * jnp.eye(3), noise_std=1.0)
    result = run_rounds(env, learner, Schedule.concurrent(4, 6), key=key)
    ```
    """

    hyper_prior: Prior
    """N(mu_q, Sigma_q), the law of the common mean."""
    task_covariance: Float[Array, "features features"]
    """Sigma_0."""
    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    index: str = choice("index", ("draw", "bound"))
    """What is maximised: a draw from the belief (HierTS), or an upper confidence bound (HierBayesUCB)."""
    width: Float[Array, ""] = eqx.field(converter=number("width", at_least=0), default=WIDTH)
    """Factor on the standard deviation in the bound, sqrt(2 log(1 / delta)). At least 0."""

    def __check_init__(self):
        check_fields(self)

    def ticks(self, schedule):
        return np.zeros(schedule.num_rounds, bool)

    def init(self, sizes):
        return ()

    def refresh(self, state, statistics, number, sizes):
        return state

    def choose(self, state, statistics, turn, sizes):
        factor = factor_of(jnp.asarray(self.task_covariance, sizes.dtype))
        hyper = jax.tree.map(lambda leaf: leaf.astype(sizes.dtype), Gaussian.of_prior(self.hyper_prior))
        beliefs = hierarchical_beliefs(hyper, factor, statistics, self.noise_std**2, turn.tasks)

        def one(belief, actions, key):
            mean, factor = belief.mean, belief.factor
            if self.index == "bound":
                return upper_confidence(actions, mean, factor, self.width, key=key)
            return actions.best(mean + dot(factor, jax.random.normal(key, mean.shape, mean.dtype)))

        actions = jax.vmap(one)(beliefs, turn.actions, turn.keys)
        return Choice(actions, jnp.zeros_like(turn.present))

    def observe(self, state, turn, choice, rewards, sizes):
        return state


CARD = ("noise_std", "hyper_prior", "task_covariance", "iid_tasks")


def _adats(facts, sizes):
    learner = HierarchicalPrior(facts.hyper_prior, facts.task_covariance, facts.noise_std)
    return SequentialAgent(learner, GPTS(facts.noise_std))


def _adats_ucb(facts, sizes):
    learner = HierarchicalPrior(facts.hyper_prior, facts.task_covariance, facts.noise_std)
    return SequentialAgent(learner, GPUCB(nu=WIDTH, noise_std=facts.noise_std))


def _hierts(facts, sizes):
    return JointHierarchy(facts.hyper_prior, facts.task_covariance, facts.noise_std)


def _hier_bayes_ucb(facts, sizes):
    return JointHierarchy(facts.hyper_prior, facts.task_covariance, facts.noise_std, index="bound")


METHODS: tuple[Method, ...] = (
    Method("adats", "Thompson sampling with a learned mean of tasks.", BASU, CARD, _adats),
    Method("adats-ucb", "Upper confidence bounds with a learned mean of tasks.", GUAN, CARD, _adats_ucb),
    Method(
        "hier-ts",
        "Thompson sampling from the posterior given the data of all tasks, which come in sequence.",
        HONG,
        CARD,
        _hierts,
    ),
    Method(
        "hier-ts-concurrent",
        "Thompson sampling from the posterior given the data of all tasks, which run at the same time.",
        HONG,
        CARD,
        _hierts,
        setting="concurrent",
    ),
    Method(
        "hier-ucb-concurrent",
        "Upper confidence bounds of the posterior given the data of all tasks.",
        GUAN,
        CARD,
        _hier_bayes_ucb,
        setting="concurrent",
    ),
)
