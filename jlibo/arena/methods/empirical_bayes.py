"""Empirical Bayes: mean and covariance of tasks by EM, for rivals that are told neither."""

from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jlibo.arena.estimators import Gaussian, fit_gaussian, fit_low_rank, start_basis, subspace_prior
from jlibo.arena.method import Method, SequentialAgent
from jlibo.arena.methods.from_statistics import AbstractStatisticsLearner, wide_belief
from jlibo.belief.prior import Prior
from jlibo.fields import choice, number, size
from jlibo.front_door import check_fields
from jlibo.meta.exploration import AbstractExploration, NoExploration
from jlibo.policies.gp_ts import GPTS

REFERENCE = "EM for a Gaussian hierarchy (Dempster, Laird & Rubin 1977)"
STRUCTURES = ("full", "diagonal", "isotropic", "low-rank")


@final
class EmpiricalBayes(AbstractStatisticsLearner):
    """Meta-learner of the mean and the covariance of tasks by EM, from all data of past tasks.

    Before the first task, and as a regulariser of strength `prior_tasks`, the covariance is that of weights
    of expected squared norm `norm_bound`^2 without preferred direction. With "low-rank", EM itself has no
    regulariser, and starts from the subspace of ridge estimates. The prior has the moments of a mixture of
    its answer and the wide prior, which counts as `prior_tasks` tasks: few tasks fit a subspace, or a single
    point, too well.

    **Arguments:** the fields below.

    **Raises:** `ValueError` for a hyper-parameter out of range or an unknown structure.

    ```python
    import jax

    import jlibo
    from jlibo.arena.methods import EmpiricalBayes

    features, key = jlibo.Cosine(num_features=4), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    learner = EmpiricalBayes(noise_std=0.1, norm_bound=10.0)
    result = jlibo.run_lifelong(env, features, jlibo.GPTS(0.1), learner, num_tasks=3, horizon=8, key=key)
    ```
    """

    noise_std: Float[Array, ""] = eqx.field(converter=number("noise_std", above=0))
    """Noise of the rewards."""
    norm_bound: Float[Array, ""] = eqx.field(converter=number("norm_bound", above=0))
    """Size of the weights."""
    structure: str = choice("structure", STRUCTURES)
    """Covariance: "full", "diagonal", "isotropic" or "low-rank"."""
    rank: int = size("rank", 1)
    """Rank of the covariance if it is "low-rank"."""
    prior_tasks: Float[Array, ""] = eqx.field(converter=number("prior_tasks", at_least=0), default=1.0)
    """Strength of the wide covariance, in tasks; 0 for maximum likelihood. At least 0."""
    num_steps: int = size("num_steps", 10)
    """EM steps after each task. They always start from the wide prior."""
    exploration: AbstractExploration = NoExploration()
    """Default schedule of forced exploration."""

    data: ClassVar[str] = "all"

    def __check_init__(self):
        check_fields(self)

    def fit(self, stats, sizes):
        wide = wide_belief(self.norm_bound, sizes)
        variance = jnp.square(self.noise_std).astype(sizes.dtype)
        if self.structure == "low-rank":
            basis = start_basis(stats, self.rank)
            start = subspace_prior(basis, self.norm_bound / jnp.sqrt(self.rank))
            start = Gaussian(wide.mean, start.factor.astype(sizes.dtype))
            fitted = fit_low_rank(stats, start, variance, rank=self.rank, num_steps=self.num_steps)
            num_tasks = stats.present.sum()
            share = jnp.where(num_tasks > 0, num_tasks / (num_tasks + self.prior_tasks), 0)
            share = share.astype(sizes.dtype)
            between = share * (1 - share) * jnp.outer(fitted.mean, fitted.mean)
            within = share * fitted.covariance + (1 - share) * wide.covariance
            return Prior(share * fitted.mean, within + between)
        groups = {"full": None, "diagonal": None, "isotropic": [0] * sizes.num_features}[self.structure]
        fitted = fit_gaussian(
            stats,
            wide,
            variance,
            num_steps=self.num_steps,
            structure="full" if self.structure == "full" else "groups",
            groups=groups,
            prior_tasks=self.prior_tasks,
        )
        return fitted.as_prior()


def _method(name: str, summary: str, structure: str, card: tuple[str, ...] = ()) -> Method:
    def make(facts, sizes):
        rank = 1 if facts.rank is None else facts.rank
        learner = EmpiricalBayes(facts.noise_std, facts.norm_bound, structure, rank)
        return SequentialAgent(learner, GPTS(facts.noise_std))

    return Method(name, summary, REFERENCE, ("noise_std", "norm_bound", "iid_tasks", *card), make)


METHODS: tuple[Method, ...] = (
    _method("em-full", "Thompson sampling; mean and covariance of tasks by EM.", "full"),
    _method("em-diagonal", "Thompson sampling; mean and diagonal covariance of tasks by EM.", "diagonal"),
    _method("em-isotropic", "Thompson sampling; mean and one variance of tasks by EM.", "isotropic"),
    _method(
        "em-low-rank",
        "Thompson sampling; mean and covariance of known rank of tasks by EM.",
        "low-rank",
        ("rank",),
    ),
)
