"""Meta-KeL with the weights of its paper beside our reading of it, which is in `own`.

The printed kernel sum_j (eta_j / c_1) k_j has eta_j = ||b^(j)||_2 over all tasks, so its scale grows with the
root of the number of tasks; our reading scales the weights to sum to one.
"""

from jlibo.arena.method import Method
from jlibo.arena.methods.own import GROUP_LASSO_CARD, with_gp_ucb
from jlibo.meta.exploration import DecreasingExploration
from jlibo.meta.meta_kel import MetaKeL


def _printed(facts, sizes):
    learner = MetaKeL(
        lam=0.1,
        exploration=DecreasingExploration(),
        scaling="printed",
        beta_min=facts.norm_bound / 20,
    )
    return with_gp_ucb(learner, facts)


METHODS: tuple[Method, ...] = (
    Method(
        "meta-kel-printed",
        "Group lasso with kernels weighted as in the paper of Meta-KeL, with GP-UCB.",
        "Kassraie et al. 2022",
        GROUP_LASSO_CARD,
        _printed,
        oracle="oracle-ucb",
    ),
)
