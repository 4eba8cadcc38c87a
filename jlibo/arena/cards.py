"""Privilege cards: what a method is told, or needs, beside its rewards. Shown next to every result.

A card is a tuple of names. Names of facts (`jlibo.envs.linear.Facts`) decide what a method receives; the
others state what it needs from the protocol.
"""

from collections.abc import Sequence

from jlibo.checks import did_you_mean, fail

FACTS = {
    "noise_std": "noise",
    "norm_bound": "norm of the weights",
    "rank": "rank",
    "sparsity": "sparsity",
    "support": "true support",
    "basis": "true subspace",
    "prior": "true prior",
    "marginal": "prior before any task",
    "hyper_prior": "hyper-prior",
    "task_covariance": "task covariance",
}
"""Facts about the environment, and their names in tables."""
NEEDS = {
    "horizon": "horizon",
    "num_tasks": "number of tasks",
    "whole_action_set": "sees the whole action set",
    "fresh_contexts": "needs fresh contexts",
    "iid_tasks": "needs exchangeable tasks",
}
"""What a method needs from the protocol, and their names in tables."""
PRIVILEGES = FACTS | NEEDS


def check_card(card: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a card; all must be known.

    **Raises:** `ValueError` for an unknown name.
    """
    for name in card:
        if name not in PRIVILEGES:
            fail("card", f"names among {', '.join(PRIVILEGES)}", f"{name!r}{did_you_mean(name, PRIVILEGES)}")
    return tuple(card)


def facts_of(card: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the facts on a card."""
    return tuple(name for name in card if name in FACTS)
