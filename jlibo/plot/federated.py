"""Figures of the experiments on federated runs, drawn from the numbers in `summary.json`.

| here             | experiment           |
|------------------|----------------------|
| `figure_private` | `federated-private`  |
| `figure_attack`  | `federated-attack`   |
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jlibo.front_door import front_door
from jlibo.plot.style import FEDERATED, META, NAIVE, ORACLE, RANDOM, mix, two_panels

_COLOURS = {"none": FEDERATED, "toeplitz": META, "gnmax": NAIVE, "local": RANDOM}
_NAMES = {"none": "exact", "toeplitz": "Toeplitz", "gnmax": "GNMax", "local": "local"}


@front_door
def figure_private(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of the Jaccard index and of the regret of one more task, against the clients.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `federated-private`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    clients = numbers["clients"]
    epsilons = sorted({case["epsilon"] for case in numbers["cases"] if case["epsilon"]})
    for case in numbers["cases"]:
        mechanism, epsilon = case["mechanism"], case["epsilon"]
        paleness = 0.0 if epsilon is None else 0.65 * (1 - (epsilons.index(epsilon) + 1) / len(epsilons))
        colour = mix(_COLOURS[mechanism], "#ffffff", paleness)
        label = _NAMES[mechanism] + ("" if epsilon is None else f", epsilon {epsilon:g}")
        for ax, name in zip(axes, ("jaccard", "regret"), strict=True):
            mean = [one["mean"] for one in case[name]]
            error = [one["se"] for one in case[name]]
            ax.errorbar(clients, mean, yerr=error, color=colour, marker="o", markersize=4, label=label)
    axes[1].axhline(numbers["regret_full"]["mean"], color=NAIVE, linestyle=":", label="all kernels")
    axes[1].axhline(numbers["regret_oracle"]["mean"], color=ORACLE, linestyle="--", label="true kernels")
    axes[0].set_ylim(0, 1.03)
    axes[1].set_ylim(bottom=0)
    for ax, label in zip(axes, ("Jaccard index with J*", "regret of the next task"), strict=True):
        ax.set_xscale("log")
        ax.set_xlabel("clients")
        ax.set_ylabel(label)
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


@front_door
def figure_attack(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of the numbers of true and of false kernels elected, against the colluding share.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `federated-attack`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    share = 100 * np.asarray(numbers["colluding"])
    for row, alpha in enumerate(numbers["alphas"]):
        colour = mix(META, "#ffffff", 0.65 * (1 - (row + 1) / len(numbers["alphas"])))
        for ax, name in zip(axes, ("false", "true"), strict=True):
            mean = [one["mean"] for one in numbers[name][row]]
            error = [one["se"] for one in numbers[name][row]]
            ax.errorbar(share, mean, yerr=error, color=colour, marker="o", label=f"alpha {alpha:g}")
    axes[1].axhline(numbers["num_true"], color=ORACLE, linestyle="--", label="all")
    for ax, label in zip(axes, ("false kernels elected", "true kernels elected"), strict=True):
        ax.set_ylim(bottom=0)
        ax.set_xlabel("colluding voters, %")
        ax.set_ylabel(label)
        ax.legend(fontsize=8)
    return figure
