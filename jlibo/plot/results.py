"""Conversion of results to arrays to draw: checked, with one axis of seeds, in the order of the legend."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jlibo.checks import fail
from jlibo.lifelong.play import LifelongResult
from jlibo.plot.style import ordered

Results = Mapping[str, LifelongResult] | LifelongResult


def read_agents(results: Results) -> dict[str, LifelongResult]:
    """Return the agents in the order of `AGENTS`, because `jit` returns dictionaries sorted by name."""
    if isinstance(results, LifelongResult):
        results = {"agent": results}
    if not results:
        fail("results", "at least one agent's", "an empty mapping")
    for name, result in results.items():
        if not isinstance(name, str):
            fail("results", "LifelongResults by the agents' names", f"the name {name!r}")
        with_seeds("results", result.regret, 2)
    return ordered(results)


def read_offline(argument: str, by_agent: Any) -> dict[str, np.ndarray]:
    """Return checked arrays `[seeds, num_offline_tasks]` by agent, in the order of `AGENTS`."""
    if not isinstance(by_agent, Mapping) or not by_agent:
        fail(argument, "a mapping from agents' names to arrays [seed, num_offline_tasks]", type(by_agent))
    agents = {name: with_seeds(argument, values, 1) for name, values in ordered(by_agent).items()}
    lengths = {values.shape[1] for values in agents.values()} - {1}
    if len(lengths) > 1:
        fail(argument, "arrays of equally many offline tasks", f"{sorted(lengths)} of them")
    return agents


def with_seeds(argument: str, values: Any, num_axes: int) -> np.ndarray:
    """Return `values` with exactly one axis of seeds before its last `num_axes` axes."""
    values = np.asarray(values)
    if values.ndim == num_axes:
        values = values[None]
    if values.ndim != num_axes + 1 or values.shape[0] == 0:
        fail(argument, "one run, or runs with one leading axis of seeds", f"arrays of shape {values.shape}")
    return values


def read_truth(true_support: Any, num_seeds: int, num_groups: int) -> np.ndarray:
    """Return the checked true support as `[num_seeds, num_groups]`."""
    truth = np.asarray(true_support)
    if truth.dtype != bool or truth.shape not in ((num_groups,), (num_seeds, num_groups)):
        fail(
            "true_support",
            f"booleans of shape [{num_groups}] or [{num_seeds}, {num_groups}]",
            f"{truth.dtype} of shape {list(truth.shape)}",
        )
    return np.broadcast_to(truth, (num_seeds, num_groups))
