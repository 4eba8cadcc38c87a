"""The agents of the paper, and what they are compared with: oracle, independent tasks, random actions.

Two families of base policies are in use. Thompson sampling has priors in the units of the weights. GP-UCB has
kernels in the units of the paper: the average of base kernels, with the coefficient nu equal to the bound on
the norm, as in all of the paper's experiments (nu = B = 10). Each has an oracle of its own.
"""

from jlibo.arena.method import Method, SequentialAgent
from jlibo.belief.prior import support_prior
from jlibo.meta.adaptive import AdaptiveMetaKGL
from jlibo.meta.base import AbstractMetaLearner
from jlibo.meta.exploration import DecreasingExploration
from jlibo.meta.federated import FederatedMetaKGL
from jlibo.meta.fixed import FixedPrior
from jlibo.meta.meta_kel import MetaKeL
from jlibo.meta.meta_kgl import MetaKGL
from jlibo.policies.gp_ts import GPTS
from jlibo.policies.gp_ucb import GPUCB
from jlibo.policies.uniform import Uniform

PAPER = "LiBO (the paper)"
THOMPSON = "Thompson sampling"
UCB_CARD = ("noise_std", "norm_bound")
GROUP_LASSO_CARD = (*UCB_CARD, "horizon")


def _oracle(facts, sizes):
    return SequentialAgent(FixedPrior(facts.prior), GPTS(facts.noise_std))


def _independent(facts, sizes):
    return SequentialAgent(FixedPrior(facts.marginal), GPTS(facts.noise_std))


def _random(facts, sizes):
    return SequentialAgent(FixedPrior(), Uniform())


def with_gp_ucb(learner: AbstractMetaLearner, facts) -> SequentialAgent:
    """Return the agent with the paper's base policy: GP-UCB with nu = B."""
    return SequentialAgent(learner, GPUCB(nu=facts.norm_bound, noise_std=facts.noise_std))


def _oracle_ucb(facts, sizes):
    prior = support_prior(facts.support, sizes.groups, sizes.dtype)
    return with_gp_ucb(FixedPrior(prior), facts)


def _naive(facts, sizes):
    return with_gp_ucb(FixedPrior(), facts)


def _libo(facts, sizes):
    # The paper's lam = 0.5 and omega = c_1 / 2 = 0.25 are for B = 10; all of them scale with the rewards.
    return with_gp_ucb(MetaKGL(lam=facts.norm_bound / 20, omega=facts.norm_bound / 40), facts)


def _federated(facts, sizes):
    # Likewise its lam = 0.2 for clients, which see their own data only.
    learner = FederatedMetaKGL(lam=facts.norm_bound / 50, omega=facts.norm_bound / 40, alpha=0.25)
    return with_gp_ucb(learner, facts)


def _meta_kel(facts, sizes):
    learner = MetaKeL(lam=facts.norm_bound / 20, exploration=DecreasingExploration())
    return with_gp_ucb(learner, facts)


def _adaptive(facts, sizes):
    return with_gp_ucb(AdaptiveMetaKGL(), facts)


METHODS: tuple[Method, ...] = (
    Method("oracle", "Thompson sampling with the true prior.", THOMPSON, ("noise_std", "prior"), _oracle),
    Method(
        "independent",
        "Thompson sampling for each task alone, with the prior before any task.",
        THOMPSON,
        ("noise_std", "marginal"),
        _independent,
    ),
    Method("random", "Uniform actions.", "", (), _random),
    Method(
        "oracle-ucb",
        "GP-UCB with the average of the true base kernels.",
        PAPER,
        (*UCB_CARD, "support"),
        _oracle_ucb,
    ),
    Method(
        "naive", "GP-UCB with the average of all base kernels.", PAPER, UCB_CARD, _naive, oracle="oracle-ucb"
    ),
    Method(
        "libo",
        "Meta-KGL on exploration data, with GP-UCB.",
        PAPER,
        GROUP_LASSO_CARD,
        _libo,
        oracle="oracle-ucb",
    ),
    Method(
        "f-libo",
        "Federated Meta-KGL: tasks vote, with GP-UCB.",
        PAPER,
        GROUP_LASSO_CARD,
        _federated,
        oracle="oracle-ucb",
    ),
    Method(
        "meta-kel",
        "Group lasso with kernels weighted by their norms, with GP-UCB.",
        "Kassraie et al. 2022",
        GROUP_LASSO_CARD,
        _meta_kel,
        oracle="oracle-ucb",
    ),
    Method(
        "adaptive",
        "Meta-KGL with learned penalty, weights and noise beside the kernel of all features, with GP-UCB.",
        "jlibo",
        UCB_CARD,
        _adaptive,
        oracle="oracle-ucb",
    ),
)
