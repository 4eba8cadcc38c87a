"""The two regimes of the AutoML benchmark: how the past of a task comes about.

| regime   | group    | past of a task                                                                |
|----------|----------|-------------------------------------------------------------------------------|
| `own`    | an order | the tasks before it in the order, with the trials that the method itself made |
| `random` | a draw   | half of the tasks, `budget` random trials each, the same for every method     |

Regret is reported on the last half of each order, or on the half of the tasks that is not the past.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.automl.problem import Problem

REGIMES = ("own", "random")


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """The trials of a finished task: its number, and the rows that were tried."""

    task: int
    rows: np.ndarray

    def values(self, problem: Problem) -> np.ndarray:
        return problem.values[self.task, self.rows]

    def points(self, problem: Problem) -> np.ndarray:
        return problem.task_points(self.task)[self.rows]


@dataclasses.dataclass(frozen=True, eq=False)
class Regime:
    """The groups of a regime.

    `tasks` are the tasks to tune, [group, place]; places from `first` on are reported. `pasts` has the past
    of each group in the regime `random` and is empty in `own`.
    """

    name: str
    tasks: np.ndarray
    first: int
    pasts: tuple[tuple[Trials, ...], ...] = ()

    @property
    def num_groups(self) -> int:
        return len(self.tasks)

    def head(self, num_groups: int) -> "Regime":
        """Return the regime with its first groups only."""
        return dataclasses.replace(self, tasks=self.tasks[:num_groups], pasts=self.pasts[:num_groups])

    def only(self, group: int) -> "Regime":
        """Return the regime with one group only."""
        chosen = slice(group, group + 1)
        return dataclasses.replace(self, tasks=self.tasks[chosen], pasts=self.pasts[chosen])

    def identity(self) -> dict[str, Any]:
        """Return what the runs of any number of its groups depend on, as plain values.

        Groups are drawn in sequence, so the first one identifies them all.
        """
        past = [[(one.task, one.rows.tolist()) for one in past] for past in self.pasts[:1]]
        words = repr((self.tasks[0].tolist(), past))
        return dict(regime=self.name, first=hashlib.sha256(words.encode()).hexdigest())


def draw_own(problem: Problem, num_orders: int, seed: int) -> Regime:
    """Return random orders of all tasks."""
    rng = np.random.default_rng((seed, 1))
    orders = np.stack([rng.permutation(problem.num_tasks) for _ in range(num_orders)])
    return Regime("own", orders, problem.num_tasks // 2)


def draw_random(problem: Problem, num_draws: int, budget: int, seed: int) -> Regime:
    """Return random splits of the tasks into past and new ones, with random trials of the past ones."""
    if problem.num_tasks < 2:
        raise ValueError(f"{problem.name}: the regime `random` needs at least 2 tasks, but there is 1")
    rng = np.random.default_rng((seed, 3))
    num_past = problem.num_tasks // 2
    tasks, pasts = [], []
    for _ in range(num_draws):
        order = rng.permutation(problem.num_tasks)
        past = [Trials(int(task), random_run(problem, task, budget, rng)) for task in order[:num_past]]
        tasks.append(order[num_past:])
        pasts.append(tuple(past))
    return Regime("random", np.stack(tasks), 0, tuple(pasts))


def random_run(problem: Problem, task: int, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows of a random search without repeats; fewer than `budget` if fewer are available."""
    return rng.permutation(np.flatnonzero(problem.is_available[task]))[:budget]


def play(
    method: Callable[[tuple[Trials, ...], int, np.random.Generator], np.ndarray],
    regime: Regime,
    group: int,
    *,
    budget: int,
    seed: int,
) -> np.ndarray:
    """Return the runs [place, step] of a method on one group, played one task after another.

    `method(past, task, rng)` returns the rows that it tries. Its answer may depend on all of the past.
    """
    tasks = regime.tasks[group]
    runs = np.full((len(tasks), budget), -1)
    past = list(regime.pasts[group]) if regime.pasts else []
    for place, task in enumerate(map(int, tasks)):
        rng = np.random.default_rng((seed, 5, group, place))
        rows = np.asarray(method(tuple(past), task, rng))[:budget]
        runs[place, : len(rows)] = rows
        if not regime.pasts:
            past.append(Trials(task, rows))
    return runs
