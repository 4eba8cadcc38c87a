"""The regrets of all methods on one table in one regime, and their statistics.

Regret is averaged over the reported tasks of a group (an order or a draw). A method with a run for each
group has one number per group, and its standard error is over groups. The runs of a peer do not depend on the
group: the same few repeats of each task are used for all groups, and the standard error is over repeats. Two
methods are compared by their differences in each group, which removes the variation in difficulty between
groups.

A slow method may have runs for the first groups only. It is compared with others on these groups.
"""

import dataclasses

import numpy as np
from scipy.stats import rankdata

from benchmarks.automl.problem import Problem
from benchmarks.automl.regimes import Regime
from jlibo.lifelong.metrics import mean_and_standard_error

MARKS = (1, 3, 5, 10, 20, 30, 50)
"""Numbers of trials that are reported."""
BASELINES = {
    "paper": ("gp-ucb",),
    "adaptive": ("gp-ei",),
    "portfolio": ("random",),
    "portfolio-complete": ("random",),
    "rgpe": ("botorch", "gp-ei"),
    "empirical-gp": ("botorch", "gp-ei"),
}
"""For each method with a past, methods with the same policy and no past; the first that was run is used."""
EQUAL = 1e-9
"""Differences in normalised regret up to this count as a draw."""


@dataclasses.dataclass(eq=False)
class Study:
    """Normalised simple regret of all methods on the reported tasks, [group, place, repeat, step]."""

    problem: Problem
    regime: Regime
    title: str
    regret: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def tasks(self) -> np.ndarray:
        """The reported tasks, [group, place]."""
        return self.regime.tasks[:, self.regime.first :]

    def add_groups(self, name: str, runs: np.ndarray) -> None:
        """Add a method with separate runs for each of the first groups, [group, place, step]."""
        runs = runs[:, self.regime.first :]
        regret = np.empty(runs.shape)
        everything = np.full((self.problem.num_tasks, runs.shape[-1]), -1)
        for group, tasks in enumerate(self.tasks[: len(runs)]):
            by_task = everything.copy()
            by_task[tasks] = runs[group]
            regret[group] = self.problem.regret(by_task)[tasks]
        self.regret[name] = regret[:, :, None]

    def add_repeats(self, name: str, runs: np.ndarray) -> None:
        """Add a method whose runs do not depend on the group, [task, repeat, step]."""
        self.regret[name] = self.problem.regret(runs)[self.tasks]

    def add_expected(self, name: str, regret: np.ndarray) -> None:
        """Add a method whose expected raw regret is known exactly, [task, step]."""
        self.regret[name] = (regret / self.problem.spread(2))[self.tasks][:, :, None]

    @property
    def names(self) -> list[str]:
        return list(self.regret)

    @property
    def budget(self) -> int:
        return next(iter(self.regret.values())).shape[-1]

    @property
    def marks(self) -> list[int]:
        return [mark for mark in MARKS if mark <= self.budget]

    def num_groups(self, *names: str) -> int:
        """Return the number of groups for which all of these methods have runs."""
        return min(len(self.regret[name]) for name in names or self.names)

    def baseline(self, name: str) -> str | None:
        """Return the method with the same policy and no past, if it was run."""
        return next((other for other in BASELINES.get(name, ()) if other in self.regret), None)

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard error after each trial."""
        samples = self.regret[name].mean(1)
        return _moments(samples.mean(0) if samples.shape[1] > 1 else samples.mean(1))

    def difference(self, name: str, other: str, *, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard error of regret - `factor` * the other's regret, paired by group.

        The standard error is over groups, and also over repeats for a method with repeats.
        """
        count = self.num_groups(name, other)
        left, right = self.regret[name][:count].mean(1), factor * self.regret[other][:count].mean(1)
        mean, error = _moments(left.mean(1) - right.mean(1))
        repeated = [side.mean(0) for side in (left, right) if side.shape[1] > 1]
        over_repeats = [_moments(means)[1] for means in repeated]
        return mean, np.sqrt(error**2 + sum(part**2 for part in over_repeats))

    def by_task(self, name: str, num_groups: int) -> np.ndarray:
        """Return the mean regret of each task that is reported in the first groups, [task, step]."""
        tasks = self.tasks[:num_groups]
        regret = self.regret[name][:num_groups].mean(2)
        return np.stack([regret[tasks == task].mean(0) for task in np.unique(tasks)])

    def won_and_lost(self, name: str, other: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of tasks with a smaller and with a larger mean regret, after each trial."""
        count = self.num_groups(name, other)
        difference = self.by_task(name, count) - self.by_task(other, count)
        return (difference < -EQUAL).sum(0), (difference > EQUAL).sum(0)

    def mean_ranks(self) -> dict[str, np.ndarray]:
        """Return the mean over tasks of the rank of each method's mean regret, after each trial.

        Equal methods share the mean of their ranks. Only groups for which all methods have runs are used.
        """
        count = self.num_groups()
        regret = np.stack([self.by_task(name, count) for name in self.names])
        ranks = rankdata(np.round(regret / EQUAL) * EQUAL, axis=0).mean(1)
        return dict(zip(self.names, ranks, strict=True))


def _moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over the first axis; a single sample has the error NaN."""
    mean, error = mean_and_standard_error(samples)
    return mean, error if len(samples) > 1 else np.full_like(mean, np.nan)


@dataclasses.dataclass(frozen=True)
class Row:
    """The numbers of one method at the marks; of one study, or means over several."""

    regret: np.ndarray
    error: np.ndarray
    rank: np.ndarray
    baseline: str | None = None
    difference: np.ndarray | None = None
    difference_error: np.ndarray | None = None
    won: np.ndarray | None = None
    lost: np.ndarray | None = None
    num_groups: int | None = None


def summarise(study: Study) -> dict[str, Row]:
    """Return the numbers of a study, by method."""
    at = np.array(study.marks) - 1
    ranks, rows = study.mean_ranks(), {}
    for name in study.names:
        mean, error = study.curve(name)
        rest = {}
        baseline = study.baseline(name)
        if baseline is not None:
            difference, difference_error = study.difference(name, baseline)
            won, lost = study.won_and_lost(name, baseline)
            rest = dict(
                baseline=baseline,
                difference=difference[at],
                difference_error=difference_error[at],
                won=won[at],
                lost=lost[at],
            )
        groups = len(study.regret[name])
        few = groups if groups < study.regime.num_groups else None
        rows[name] = Row(mean[at], error[at], ranks[name][at], num_groups=few, **rest)
    return rows


def mean_over(summaries: list[dict[str, Row]]) -> dict[str, Row]:
    """Return the means over tables of the methods that all of them have; tasks won and lost are added up.

    The marks are those of the table with the smallest budget. Standard errors are those of a mean of
    independent numbers.
    """
    shared = [name for name in summaries[0] if all(name in other for other in summaries)]
    rows = {}
    for name in shared:
        parts = [summary[name] for summary in summaries]
        size = min(len(part.regret) for part in parts)

        def stacked(field, parts=parts, size=size):
            return np.stack([getattr(part, field)[:size] for part in parts])

        rest = {}
        if len({part.baseline for part in parts}) == 1 and parts[0].baseline is not None:
            rest = dict(
                baseline=parts[0].baseline,
                difference=stacked("difference").mean(0),
                difference_error=_error_of_mean(stacked("difference_error")),
                won=stacked("won").sum(0),
                lost=stacked("lost").sum(0),
            )
        mean, rank = stacked("regret").mean(0), stacked("rank").mean(0)
        rows[name] = Row(mean, _error_of_mean(stacked("error")), rank, **rest)
    return rows


def _error_of_mean(errors: np.ndarray) -> np.ndarray:
    return np.sqrt((errors**2).sum(0)) / len(errors)
