"""Tables of the benchmark: the score below the best one seen, and paired differences between methods.

The best score of a model on a data set is the best that is stored, found by any method, in this run of the
benchmark or an earlier one. The regret of a run after n trials is that score less the best of its first n
scores. Means and standard errors are over pairs of (data set, seed), for the data sets in the last half of
the seed's order. Two methods are compared by their differences in each pair.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.automl_models.methods import OURS
from jlibo.lifelong.metrics import mean_and_standard_error

MARKS = (1, 3, 5, 10, 15, 25)
LAST_HALF = "last half of the tasks"
WORST = 0.0
"""Balanced accuracy that a failed trial counts as."""

Runs = Mapping[tuple[str, int], Sequence[float]]
"""The runs of a method by data set and seed."""


def late_pairs(orders: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """Return (data set, seed) for the data sets in the last half of each seed's order."""
    return [(name, seed) for seed, order in enumerate(orders) for name in order[len(order) // 2 :]]


def regrets(runs: Runs, best: Mapping[str, float], pairs: Sequence[tuple[str, int]]) -> np.ndarray:
    """Return the regret after each trial, [pair, trial]."""
    scores = np.array([runs[pair] for pair in pairs], float)
    so_far = np.maximum.accumulate(np.where(np.isnan(scores), WORST, scores), axis=1)
    return np.array([best[name] for name, _ in pairs])[:, None] - so_far


def summarise(
    runs: Mapping[str, Runs], best: Mapping[str, float], pairs: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """Return the regret of each method of one model and the difference of jlibo's from it, as JSON values.

    Each is a dictionary from the number of trials to mean and standard error.
    """
    by_method = {method: regrets(own, best, pairs) for method, own in runs.items()}
    budget = next(iter(by_method.values())).shape[1]

    def at_marks(values: np.ndarray) -> dict[str, list[float]]:
        mean, error = mean_and_standard_error(values)
        return {
            str(mark): [float(mean[mark - 1]), float(error[mark - 1])] for mark in MARKS if mark <= budget
        }

    differences = {
        method: at_marks(by_method[OURS] - values)
        for method, values in by_method.items()
        if OURS in by_method and method != OURS
    }
    return dict(
        pairs=len(pairs),
        regret={method: at_marks(values) for method, values in by_method.items()},
        difference=differences,
        best=dict(best),
    )


def tables(model: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of a model, as `harness` has them: in thousandths, mean ± standard error."""
    titles = {
        "regret": f"{model}: balanced accuracy below the best one seen, in thousandths, {LAST_HALF}, "
        f"{summary['pairs']} pairs of data set and seed",
        "difference": f"{model}: {OURS} less the other method, paired (negative: {OURS} is better)",
    }
    made = []
    for part, title in titles.items():
        rows = [
            [method, *(f"{1e3 * mean:.1f} ± {1e3 * error:.1f}" for mean, error in numbers.values())]
            for method, numbers in summary[part].items()
        ]
        if rows:
            marks = list(next(iter(summary[part].values())))
            made.append(dict(title=title, header=["after trials", *marks], rows=rows))
    return made


def show(made: Sequence[Mapping[str, Any]]) -> None:
    """Print tables in markdown."""
    for table in made:
        print(
            "\n".join(["", f"{table['title']}:", "", *harness.markdown_table(table["header"], table["rows"])])
        )
