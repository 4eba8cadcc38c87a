"""Greedy portfolios: the configurations that were best on past tasks, in an order that ignores the new task.

The next configuration of a portfolio maximises the mean over past tasks of the best score so far, with the
scores of each past task scaled to [0, 1].

| method               | scores of the new task's configurations in a past task                         |
|----------------------|--------------------------------------------------------------------------------|
| `portfolio`          | predicted from the past task's trials by a Gaussian process                    |
| `portfolio-complete` | read from the complete table: a reference, for tasks that share configurations |

The Gaussian process has an isotropic Matern-5/2 kernel on the unit box, with categoricals as indicators. Its
length-scale maximises the marginal likelihood on a grid. Its noise is small, so a configuration that was
tried keeps its score.
"""

import functools

import numpy as np

from benchmarks.automl.problem import Problem, encode
from benchmarks.automl.regimes import Trials, random_run

LENGTH_SCALES = (0.1, 0.2, 0.4, 0.8, 1.6)
"""In units of the square root of the number of parameters, the diagonal of the box."""
NOISE = 1e-3
TIE = 1e-6
"""Weight of the mean score, which decides if no configuration improves the best so far."""


def greedy(scores: np.ndarray, length: int) -> np.ndarray:
    """Return the greedy portfolio of scores [task, configuration], as column numbers."""
    best = np.full(len(scores), -np.inf)
    tie = TIE * scores.mean(0)
    chosen = np.zeros(scores.shape[1], bool)
    order = []
    for _ in range(min(length, scores.shape[1])):
        gain = np.maximum(best[:, None], scores).mean(0) + tie
        order.append(int(np.argmax(np.where(chosen, -np.inf, gain))))
        chosen[order[-1]] = True
        best = np.maximum(best, scores[:, order[-1]])
    return np.array(order, int)


def matern(squares: np.ndarray) -> np.ndarray:
    """Return the Matern-5/2 kernel of squared distances in units of the length-scale."""
    root = np.sqrt(5 * squares)
    return (1 + root + root**2 / 3) * np.exp(-root)


def squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    products = (left**2).sum(-1)[:, None] + (right**2).sum(-1)[None] - 2 * left @ right.T
    return np.maximum(products, 0)


class Smoother:
    """A Gaussian process fitted to the trials of one past task."""

    def __init__(self, points: np.ndarray, values: np.ndarray, num_parameters: int):
        self.points = points
        self.mean, self.scale = values.mean(), values.std() or 1.0
        targets = (values - self.mean) / self.scale
        squares = squared_distances(points, points)
        fits = []
        for scale in LENGTH_SCALES:
            length = scale * np.sqrt(num_parameters)
            kernel = matern(squares / length**2) + NOISE * np.eye(len(points))
            factor = np.linalg.cholesky(kernel)
            weights = np.linalg.solve(factor.T, np.linalg.solve(factor, targets))
            likelihood = -0.5 * targets @ weights - np.log(np.diagonal(factor)).sum()
            fits.append((likelihood, length, weights))
        _, self.length, self.weights = max(fits, key=lambda fit: fit[0])

    def __call__(self, points: np.ndarray) -> np.ndarray:
        kernel = matern(squared_distances(points, self.points) / self.length**2)
        return self.mean + self.scale * (kernel @ self.weights)


def unit_scores(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return values scaled such that `low` is 0 and `high` is 1; zeros if they are equal."""
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


class Portfolio:
    """The method `portfolio`; call it with the past, a task and a generator."""

    def __init__(self, problem: Problem, budget: int):
        self.problem, self.budget = problem, budget
        self._predict = functools.lru_cache(maxsize=None)(self._predicted)
        self._fit = functools.lru_cache(maxsize=None)(self._fitted)

    def __call__(self, past: tuple[Trials, ...], task: int, rng: np.random.Generator) -> np.ndarray:
        rows = np.flatnonzero(self.problem.is_available[task])
        if not past:
            return random_run(self.problem, task, self.budget, rng)
        # If configurations are shared, one prediction of all rows serves every new task.
        predict, whose = (self._predict, 0) if self.problem.shared else (self._predicted, task)
        scores = np.stack([predict(trials, whose) for trials in past])
        return rows[greedy(scores[:, rows], self.budget)]

    def _fitted(self, trials: Trials) -> Smoother:
        points = encode(self.problem.space, trials.points(self.problem))
        return Smoother(points, trials.values(self.problem), self.problem.space.num_parameters)

    def _predicted(self, trials: Trials, whose: int) -> np.ndarray:
        values = trials.values(self.problem)
        points = encode(self.problem.space, self.problem.task_points(whose))
        return unit_scores(self._fit(trials)(points), values.min(), values.max())


class CompletePortfolio:
    """The method `portfolio-complete`; a configuration that a past task lacks has its worst score."""

    def __init__(self, problem: Problem, budget: int):
        if not problem.shared:
            raise ValueError(f"{problem.name}: portfolio-complete needs tasks that share configurations")
        self.problem, self.budget = problem, budget
        low, high = np.nanmin(problem.values, 1), np.nanmax(problem.values, 1)
        scaled = [unit_scores(*rest) for rest in zip(problem.values, low, high, strict=True)]
        self.scores = np.nan_to_num(np.stack(scaled), nan=0.0)

    def __call__(self, past: tuple[Trials, ...], task: int, rng: np.random.Generator) -> np.ndarray:
        rows = np.flatnonzero(self.problem.is_available[task])
        if not past:
            return random_run(self.problem, task, self.budget, rng)
        done = [trials.task for trials in past]
        return rows[greedy(self.scores[np.ix_(done, rows)], self.budget)]
