"""How many purely exploratory steps each task begins with.

| here                     | paper                                                                    |
|--------------------------|--------------------------------------------------------------------------|
| `rates`                  | n_s, a real number                                                       |
| `counts`                 | n~_s, a whole number: Algorithm "Forced Exploration Rate to Integer"     |
| `DecreasingExploration`  | n_s = sqrt(n) / s^(1/4), LiBO                                            |
| `ConstantExploration`    | n_s = sqrt(n), F-LiBO: every client explores as much, so the vote is fair |

Schedules are computed on the host in float64, before any tracing: the square root of 100 is 10, and the
counts fix the shape of what a meta-learner keeps.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import numpy as np

from jlibo.checks import check_count, check_finite, check_range, check_shape


class AbstractExploration(eqx.Module):
    """A schedule of forced exploration. Implement `rates`."""

    @abc.abstractmethod
    def rates(self, num_tasks: int, horizon: int) -> np.ndarray:
        """The wanted number of exploratory steps of tasks 1..num_tasks, each of `horizon` steps."""

    def counts(self, num_tasks: int, horizon: int) -> np.ndarray:
        """The whole numbers that follow the rates: fractions are saved up until they make a step."""
        check_count("num_tasks", num_tasks)
        check_count("horizon", horizon)
        rates = np.asarray(self.rates(num_tasks, horizon), np.float64)
        check_shape("rates", rates, (num_tasks,))
        check_finite("rates", rates)
        check_range("rates", rates, at_least=0)
        return np.minimum(whole_steps(rates), horizon)


class DecreasingExploration(AbstractExploration):
    """`scale` * sqrt(horizon) / s^(1/4) steps in task s."""

    scale: float = eqx.field(static=True, default=1.0)

    def rates(self, num_tasks, horizon):
        return self.scale * np.sqrt(float(horizon)) / np.arange(1, num_tasks + 1) ** 0.25


class ConstantExploration(AbstractExploration):
    """`scale` * sqrt(horizon) steps in every task."""

    scale: float = eqx.field(static=True, default=1.0)

    def rates(self, num_tasks, horizon):
        return np.full(num_tasks, self.scale * np.sqrt(float(horizon)))


class NoExploration(AbstractExploration):
    """None at all: for agents that have nothing to learn about the kernel."""

    def rates(self, num_tasks, horizon):
        return np.zeros(num_tasks)


class FirstTasksExploration(AbstractExploration):
    """`num_steps` in each of the first `num_tasks` tasks, to have something to learn from, and none later."""

    num_steps: int = eqx.field(static=True, default=3)
    num_tasks: int = eqx.field(static=True, default=1)

    def rates(self, num_tasks, horizon):
        return np.where(np.arange(num_tasks) < self.num_tasks, min(self.num_steps, horizon), 0.0)


class CustomExploration(AbstractExploration):
    """A user's own schedule: `rate_fn(task, horizon)` with tasks counted from 1."""

    rate_fn: Callable[[int, int], float] = eqx.field(static=True)

    def rates(self, num_tasks, horizon):
        return np.asarray([self.rate_fn(task, horizon) for task in range(1, num_tasks + 1)], np.float64)


def whole_steps(rates: np.ndarray) -> np.ndarray:
    """The residue rule: at every task the sum of whole steps is the sum of the rates, rounded down.

    So after any task the two sums differ by less than one.
    """
    # Ten times 0.1 is a whole step, although in floating point it falls short of one.
    round_off = 1e-9
    totals = np.floor(np.cumsum(rates) + round_off)
    return np.diff(totals, prepend=0.0).astype(int)
