"""The tasks of the AutoML benchmark and its measures of regret.

A `Problem` is a table of evaluations with its parameters in the unit box. The columns of its points follow
the sorted names of the parameters, as the unit coordinates of a `SearchSpace` do, so that jlibo and its peers
use the same array. Higher `values` are better.

| here          | what it is                                                                          |
|---------------|-------------------------------------------------------------------------------------|
| a run         | the configurations tried on one task, in order: row numbers, -1 where none was left |
| simple regret | best of the task - best so far                                                      |
| normalised    | the same over the task's range: 0 is the best configuration, 1 the worst            |

A configuration whose evaluation failed (NaN) is not available in that task, to any method. The simulator
cannot represent a trial without a reward: `TableEnv` reads NaN as "not available". If only the other methods
spent trials on failures, the comparison would favour the simulated agents.
"""

import dataclasses
import hashlib

import numpy as np

from jlibo.tune.space.parameters import Categorical
from jlibo.tune.space.space import SearchSpace


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The data that every method is given.

    `values[t, g]` is NaN where a task lacks the configuration. `points` are [g, dim] if all tasks share them,
    or [t, g, dim]. `notes` say what was left out of the table.
    """

    name: str
    tasks: tuple[str, ...]
    space: SearchSpace
    points: np.ndarray
    values: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def num_configs(self) -> int:
        return self.values.shape[1]

    @property
    def shared(self) -> bool:
        return self.points.ndim == 2

    @property
    def is_available(self) -> np.ndarray:
        return ~np.isnan(self.values)

    def task_points(self, task: int) -> np.ndarray:
        """Return the unit points of all rows of a task."""
        return self.points if self.shared else self.points[task]

    def of_task(self, task: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the available configurations of a task: their unit points, values and row numbers."""
        rows = np.flatnonzero(self.is_available[task])
        return self.task_points(task)[rows], self.values[task, rows], rows

    def digest(self) -> str:
        """Return a hash of all data that a method is given."""
        digest = hashlib.sha256(repr((self.space.spec(), self.points.shape)).encode())
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


def encode(space: SearchSpace, points: np.ndarray) -> np.ndarray:
    """Return unit points with each categorical as an indicator vector, scaled so that choices differ by 1."""
    columns = []
    for place, parameter in enumerate(space.values()):
        column = points[..., place]
        if isinstance(parameter, Categorical):
            codes = parameter.unit_to_codes(column)[..., None]
            columns.append((codes == np.arange(parameter.num_values)) / np.sqrt(2))
        else:
            columns.append(column[..., None])
    return np.concatenate(columns, axis=-1)


def thin(
    problem: Problem,
    *,
    num_tasks: int | None = None,
    skip_tasks: int = 0,
    num_configs: int | None = None,
    seed: int = 0,
) -> Problem:
    """Return a problem with at most so many tasks and configurations, drawn at random.

    The tasks follow each other in one random order, of which the first `skip_tasks` are left out. Two
    problems with `num_tasks=n` and with `skip_tasks=n` therefore have no task in common.

    Tasks that share their configurations keep the same ones. Otherwise each task keeps `num_configs` of its
    available ones.
    """
    rng = np.random.default_rng((seed, 4))
    tasks = np.arange(problem.num_tasks)
    notes = list(problem.notes)
    if skip_tasks >= problem.num_tasks:
        raise ValueError(f"{problem.name} has {problem.num_tasks} tasks, so {skip_tasks} cannot be skipped")
    if skip_tasks or (num_tasks is not None and num_tasks < problem.num_tasks):
        tasks = np.sort(rng.permutation(problem.num_tasks)[skip_tasks:][:num_tasks])
        skipped = f", none of the first {skip_tasks}" if skip_tasks else ""
        notes.append(f"{len(tasks)} of its {problem.num_tasks} tasks{skipped}")
    values = problem.values[tasks]
    points = problem.points if problem.shared else problem.points[tasks]
    if num_configs is not None and num_configs < problem.num_configs:
        notes.append(f"{num_configs} of its {problem.num_configs} configurations")
        if problem.shared:
            rows = np.sort(rng.permutation(problem.num_configs)[:num_configs])
            points, values = points[rows], values[:, rows]
        else:
            # Available rows first, in a random order.
            rows = np.argsort(rng.random(values.shape) + np.isnan(values), axis=1)[:, :num_configs]
            points = np.take_along_axis(points, rows[..., None], axis=1)
            values = np.take_along_axis(values, rows, axis=1)
    names = tuple(problem.tasks[task] for task in tasks)
    smaller = dataclasses.replace(problem, tasks=names, points=points, values=values, notes=tuple(notes))
    return without_empty_tasks(smaller)


def without_empty_tasks(problem: Problem) -> Problem:
    """Return the problem without tasks that have no available configuration."""
    kept = np.flatnonzero(problem.is_available.any(1))
    if len(kept) == problem.num_tasks:
        return problem
    return dataclasses.replace(
        problem,
        tasks=tuple(problem.tasks[task] for task in kept),
        points=problem.points if problem.shared else problem.points[kept],
        values=problem.values[kept],
        notes=(*problem.notes, f"without {problem.num_tasks - len(kept)} tasks that have no score"),
    )


def draw_unrelated(problem: Problem, num_orders: int, seed: int) -> np.ndarray:
    """Return points [order, task, g, dim] on which the tasks have nothing in common.

    In each task the numeric coordinates are swapped and reversed at random, and the choices of each
    categorical are permuted. Every task keeps its surface and its difficulty, but the location of good
    configurations in one task is independent of that in the others.
    """
    rng = np.random.default_rng((seed, 2))
    parameters = list(problem.space.values())
    numeric = [place for place, one in enumerate(parameters) if not isinstance(one, Categorical)]
    moved = np.empty((num_orders, problem.num_tasks, problem.num_configs, len(parameters)))
    for order in range(num_orders):
        for task in range(problem.num_tasks):
            points = problem.task_points(task)
            turned = points[:, rng.permutation(numeric)] if numeric else points[:, []]
            moved[order, task][:, numeric] = np.where(rng.integers(2, size=len(numeric)), 1 - turned, turned)
            for place, one in enumerate(parameters):
                if isinstance(one, Categorical):
                    codes = one.unit_to_codes(np.nan_to_num(points[:, place])).astype(int)
                    moved[order, task][:, place] = one.codes_to_unit(rng.permutation(one.num_values)[codes])
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
