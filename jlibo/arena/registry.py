"""The methods of the arena, by name."""

from jlibo.arena.method import Method
from jlibo.arena.methods import (
    doubly_robust,
    empirical_bayes,
    hierarchical,
    learned_priors,
    low_rank,
    own,
    soft_weights,
    subspaces,
    task_moments,
    trace_norm,
)

FAMILIES: tuple[tuple[Method, ...], ...] = (
    own.METHODS,
    soft_weights.METHODS,
    hierarchical.METHODS,
    empirical_bayes.METHODS,
    task_moments.METHODS,
    learned_priors.METHODS,
    subspaces.METHODS,
    low_rank.METHODS,
    trace_norm.METHODS,
    doubly_robust.METHODS,
)
"""The methods, family by family. A new family is added here."""

METHODS: dict[str, Method] = {method.name: method for family in FAMILIES for method in family}
"""The methods of the arena, by name."""
