"""The paper's tables 1 to 3 as data: what is known about the rate of each method.

The bounds are those of table 1 and 2 of the appendix, up to logarithms: m tasks of n steps, d features, rank
or sparsity r, R* the regret of the oracle. Where the tables disagree with each other or with the original,
the comment says so.
"""

from typing import NamedTuple, final

SPARSE = ("sparse-grid", "sparse-grid-200", "sparse-grid-800", "sparse-legendre", "sparse-box")
NORMAL = ("gaussian-arms", "gaussian-ball")


@final
class Claim(NamedTuple):
    """What the paper's tables say of a method in a setting."""

    method: str
    """Name of the method in the arena."""
    source: str
    """The publication."""
    rate: str
    """Bound on the lifelong regret, up to logarithms."""
    tasks: str
    """"sequential" or "concurrent"."""
    oracle_optimal: bool
    """Whether the regret per task converges to that of the oracle."""
    cost: str
    """How the cost of learning grows with the number of features d."""
    environments: tuple[str, ...]
    """Environments of the arena that have this setting."""


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "mlin-greedy",
        "Yang et al. 2021",
        "m sqrt(r n) + sqrt(r d n m)",
        "concurrent",
        True,
        "poly(d)",
        ("low-rank-contexts",),
    ),
    Claim(
        "e2tc",
        "Yang et al. 2021",
        "m r sqrt(n) + d^1.5 r sqrt(n m)",
        "concurrent",
        True,
        "poly(d)",
        ("low-rank-ball", "low-rank-ellipsoid"),
    ),
    Claim(
        "mtlr-oful",
        "Hu et al. 2021",
        "m sqrt(d r n) + d sqrt(r n m)",
        "concurrent",
        False,
        "poly(d)",
        ("low-rank-contexts", "low-rank-ball"),
    ),
    Claim(
        "trace-norm",
        "Cella et al. 2022",
        "m r sqrt(n) + r sqrt(d n m)",
        "sequential",
        False,
        "poly(d)",
        ("low-rank-contexts",),
    ),
    Claim(
        "dr-group-lasso",
        "Cella & Pontil 2021",
        # Cella et al. 2023 state that its proof hides a dependence on d.
        "m r sqrt(n)",
        "both",
        False,
        "log(d)",
        ("sparse-contexts",),
    ),
    Claim(
        "ols-svd",
        "Yang et al. 2022",
        # Sequential in table 1 and concurrent in table 3; the original has both.
        "m r sqrt(n) + d sqrt(r n m)",
        "both",
        True,
        "poly(d)",
        ("low-rank-ball", "low-rank-ellipsoid"),
    ),
    Claim(
        "adats",
        "Basu et al. 2021",
        "R* + sqrt(d n m) + m d",
        "sequential",
        False,
        "poly(d)",
        NORMAL,
    ),
    Claim(
        "mqb",
        "Peleg et al. 2022",
        "(1 + d^3 / sqrt(m)) R* + m d",
        "sequential",
        False,
        "poly(d)",
        ("gaussian-ball",),
    ),
    Claim(
        "hier-ts",
        "Hong et al. 2022",
        "R* + sqrt(d m n) + d^1.5",
        "sequential",
        True,
        "poly(d)",
        NORMAL,
    ),
    Claim(
        "hier-ts-concurrent",
        "Hong et al. 2022",
        "R* + sqrt(d m n) + m d^1.5",
        "concurrent",
        False,
        "poly(d)",
        NORMAL,
    ),
    Claim(
        "libo",
        "the paper",
        "R* + m^(3/4) sqrt(n) + (m n)^(1/3) log(m d)",
        "sequential",
        True,
        "log(d)",
        SPARSE,
    ),
    Claim(
        # Oracle optimal in table 3; the paper's own section 5 says that its theorem does not imply it.
        "f-libo",
        "the paper",
        "R* + m sqrt(n)",
        "sequential",
        True,
        "log(d)",
        SPARSE,
    ),
)
"""The claims, by method and setting."""


def claims_of(method: str) -> tuple[Claim, ...]:
    """Return the claims about a method."""
    return tuple(claim for claim in CLAIMS if claim.method == method)
