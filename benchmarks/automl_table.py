"""The tasks of the AutoML benchmark and its measures of regret.

A `Problem` is a table of evaluations with its parameters in the unit box. The columns of its points follow
the sorted names of the parameters, as the unit coordinates of a `SearchSpace` do, so that jlibo and its peers
use the same array. Higher `values` are better.

| here                | what it is                                                                          |
|---------------------|-------------------------------------------------------------------------------------|
| a run               | the configurations tried on one task, in order: row numbers, -1 where none was left |
| simple regret       | best of the task - best so far                                                      |
| normalised          | the same over the task's range: 0 is the best configuration, 1 the worst            |
"""

import dataclasses
import hashlib

import numpy as np

from jlibo.tables import Table
from jlibo.tune.space.space import Float, SearchSpace


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The data that every method is given.

    `values[t, g]` is NaN where a task lacks the configuration. `points` are [g, dim] if all tasks share them,
    or [t, g, dim].
    """

    name: str
    tasks: tuple[str, ...]
    space: SearchSpace
    points: np.ndarray
    values: np.ndarray

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def shared(self) -> bool:
        return self.points.ndim == 2

    def of_task(self, task: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the available configurations of a task: their unit points, values and row numbers."""
        rows = np.flatnonzero(~np.isnan(self.values[task]))
        points = self.points if self.shared else self.points[task]
        return points[rows], self.values[task, rows], rows

    def digest(self) -> str:
        """Return a hash of all data that a method is given."""
        digest = hashlib.sha256(repr((self.space.names, self.points.shape)).encode())
        for array in (self.points, self.values):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def regret(self, runs: np.ndarray, *, normalised: bool = True) -> np.ndarray:
        """Return the simple regret after each trial of runs [task, ..., step]; constant after a run ends."""
        best, worst = np.nanmax(self.values, axis=1), np.nanmin(self.values, axis=1)
        regret = np.empty(runs.shape)
        for task, run in enumerate(runs):
            tried = np.where(run >= 0, self.values[task, run], worst[task])
            regret[task] = best[task] - np.maximum.accumulate(tried, axis=-1)
        return regret / self.spread(runs.ndim) if normalised else regret

    def spread(self, ndim: int) -> np.ndarray:
        """Return best minus worst value of each task (1 if they are equal), as a divisor of [task, ...]."""
        spread = np.nanmax(self.values, axis=1) - np.nanmin(self.values, axis=1)
        return np.where(spread > 0, spread, 1.0).reshape(-1, *[1] * (ndim - 1))


def make_problem(name: str, table: Table, metric: str | None = None, *, maximise: bool = True) -> Problem:
    """Return the problem of one metric of a table, without parameters that are constant."""
    columns = {}
    for number, parameter in enumerate(table.param_names):
        column = table.params[..., number]
        if np.nanmin(column) < np.nanmax(column):
            columns[parameter] = column
    space = SearchSpace({key: Float(np.nanmin(col), np.nanmax(col)) for key, col in columns.items()})
    points = np.stack([space[key].codes_to_unit(columns[key]) for key in space.names], axis=-1)
    values = table.metric(metric)
    return Problem(name, table.tasks, space, points, values if maximise else -values)


def thin(problem: Problem, *, num_tasks: int | None = None, every: int = 1) -> Problem:
    """Return a smaller problem: the first tasks, and every k-th configuration."""
    tasks = slice(num_tasks)
    points = problem.points[::every] if problem.shared else problem.points[tasks, ::every]
    return dataclasses.replace(
        problem, tasks=problem.tasks[tasks], points=points, values=problem.values[tasks, ::every]
    )


def draw_orders(problem: Problem, num_orders: int, seed: int) -> np.ndarray:
    """Return random orders of the tasks, [order, place]."""
    rng = np.random.default_rng((seed, 1))
    return np.stack([rng.permutation(problem.num_tasks) for _ in range(num_orders)])


def draw_unrelated(problem: Problem, num_orders: int, seed: int) -> np.ndarray:
    """Return points [order, task, g, dim] with each task's coordinates swapped and reversed at random.

    Every task keeps its surface and its difficulty, but the location of good configurations in one task is
    independent of that in the others.
    """
    rng = np.random.default_rng((seed, 2))
    num_rows, dim = problem.points.shape[-2:]
    points = np.broadcast_to(problem.points, (problem.num_tasks, num_rows, dim))
    moved = np.empty((num_orders, *points.shape))
    for order in range(num_orders):
        for task in range(problem.num_tasks):
            turned = points[task][:, rng.permutation(dim)]
            moved[order, task] = np.where(rng.integers(2, size=dim), 1 - turned, turned)
    return moved


def random_regret(problem: Problem, budget: int) -> np.ndarray:
    """Return the exact expected regret of random search without repeats, [task, step].

    Of n configurations in the order of their regret, number i (from 0) is the best of k drawn ones with
    probability C(n - i - 1, k - 1) / C(n, k).
    """
    answer = np.zeros((problem.num_tasks, budget))
    for task in range(problem.num_tasks):
        values = np.sort(problem.of_task(task)[1])[::-1]
        regret, count = values[0] - values, len(values)
        # Number i is the best of k draws if i was drawn and none of the i better ones was.
        none_better = np.ones(count + 1)
        for step in range(min(budget, count)):
            none_better *= np.maximum(count - step - np.arange(count + 1), 0) / (count - step)
            answer[task, step] = regret @ (none_better[:-1] - none_better[1:])
    return answer


def blocks(num_tasks: int) -> dict[str, slice]:
    """Return the blocks of places in an order over which regret is averaged."""
    return {
        "all tasks": slice(None),
        "first 10 tasks": slice(min(10, num_tasks)),
        "last half of the tasks": slice(num_tasks // 2, None),
    }
