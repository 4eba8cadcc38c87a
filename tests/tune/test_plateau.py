"""Support vector classifiers with four kernels: plateaus of equal scores, on recorded scores of six tasks."""

import json
from pathlib import Path

import numpy as np
import pytest

import jlibo
from jlibo.tune import Categorical, Float, SearchSpace

GRID = Path(__file__).parents[1] / "data" / "svc_grid.npz"
BUDGET = 20


@pytest.fixture(scope="module")
def runs():
    """The choices of the tuner on one data set after another, in four orders."""
    with np.load(GRID, allow_pickle=False) as file:
        table, scores = file["configs"], file["scores"].astype(float)
        meta = json.loads(str(file["meta"]))
    kernels = meta["choices"][2]
    space = SearchSpace(
        C=Float(table[:, 0].min(), table[:, 0].max(), log=True),
        gamma=Float(table[:, 1].min(), table[:, 1].max(), log=True),
        kernel=Categorical(kernels),
    )
    configs = [dict(C=c, gamma=gamma, kernel=kernels[int(place)]) for c, gamma, place in table]
    found = []
    orders = [0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0], [2, 4, 0, 5, 3, 1], [3, 0, 5, 2, 1, 4]
    for seed, order in enumerate(orders):
        tuner = jlibo.Tuner(space, candidates=configs, seed=seed)
        for place, number in enumerate(order):
            task, rows = tuner.task(meta["tasks"][number], budget=BUDGET), []
            for trial in task:
                rows.append(configs.index(trial.params))
                task.tell(trial, scores[number, rows[-1]])
            found.append((place, number, np.asarray(rows)))
    return scores, table[:, 2], found


def random_regret(values, num_trials):
    """Mean regret of random search without repeats, as a share of the task's range."""
    rng = np.random.default_rng(0)
    best = [rng.permutation(values)[:num_trials].max() for _ in range(2000)]
    return (values.max() - np.mean(best)) / np.ptp(values)


def test_with_a_past_plateaus_do_not_hold_the_search(runs):
    scores, _, found = runs
    for num_trials in (5, 10, BUDGET):
        ours, random = [], []
        for place, number, rows in found:
            if place >= 2:
                values = scores[number]
                ours.append((values.max() - values[rows[:num_trials]].max()) / np.ptp(values))
                random.append(random_regret(values, num_trials))
        assert np.mean(ours) < np.mean(random)


def test_trials_do_not_stay_on_one_plateau(runs):
    """Equal scores within one kernel: a third of the trials on average, and never four fifths of them."""
    scores, kernel, found = runs
    largest = []
    for _, number, rows in found:
        pairs = np.stack([kernel[rows], scores[number, rows]], axis=1)
        _, counts = np.unique(pairs, axis=0, return_counts=True)
        largest.append(counts.max())
        assert len(np.unique(kernel[rows])) >= 2
    assert np.mean(largest) <= BUDGET / 3 and max(largest) <= 0.65 * BUDGET
