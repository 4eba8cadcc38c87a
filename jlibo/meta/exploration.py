"""Schedules of forced exploration: the number of exploratory steps at the start of each task.

| here                     | paper                                                                    |
|--------------------------|--------------------------------------------------------------------------|
| `rates`                  | n_s, a real number                                                       |
| `counts`                 | n~_s, a whole number: Algorithm "Forced Exploration Rate to Integer"     |
| `DecreasingExploration`  | n_s = sqrt(n) / s^(1/4), LiBO                                            |
| `ConstantExploration`    | n_s = sqrt(n), F-LiBO: all clients explore equally, so the vote is fair  |

Schedules are computed on the host in float64, before any tracing, for two reasons: the square root of 100
must be 10, and the counts determine the shapes of a meta-learner's state.
"""

import abc
from collections.abc import Callable
from typing import final

import equinox as eqx
import numpy as np

from jlibo.checks import check_count, check_finite, check_range, check_shape
from jlibo.fields import static_number
from jlibo.front_door import check_fields, front_door


class AbstractExploration(eqx.Module):
    """Base class of schedules of forced exploration. Implement `rates`."""

    @abc.abstractmethod
    def rates(self, num_tasks: int, horizon: int) -> np.ndarray:
        """Return the desired number of exploratory steps of each task, as real numbers.

        **Arguments:**

        - `num_tasks`: number of tasks, which are numbered s = 1, ..., `num_tasks`.
        - `horizon`: number of steps of each task.

        **Returns:** non-negative numbers `[num_tasks]`.
        """

    @front_door
    def counts(self, num_tasks: int, horizon: int) -> np.ndarray:
        """Return the number of exploratory steps of each task, as whole numbers of at most `horizon`.

        Fractions of the rates accumulate over tasks until they make a step.

        **Raises:** `ValueError` if `rates` returns a wrong shape, or numbers that are negative or not finite.
        """
        check_count("num_tasks", num_tasks)
        check_count("horizon", horizon)
        rates = np.asarray(self.rates(num_tasks, horizon), np.float64)
        check_shape("rates", rates, (num_tasks,))
        check_finite("rates", rates)
        check_range("rates", rates, at_least=0)
        return np.minimum(whole_steps(rates), horizon)


@final
class DecreasingExploration(AbstractExploration):
    """Schedule with `scale` * sqrt(horizon) / s^(1/4) steps in task s, as in LiBO.

    **Arguments:**

    - `scale`: factor of the rate.

    ```python
    import jlibo

    print(jlibo.DecreasingExploration().counts(num_tasks=5, horizon=100))  # [10  8  8  7  6]
    ```
    """

    scale: float = static_number("scale", 1.0, at_least=0)

    def rates(self, num_tasks, horizon):
        return self.scale * np.sqrt(float(horizon)) / np.arange(1, num_tasks + 1) ** 0.25


@final
class ConstantExploration(AbstractExploration):
    """Schedule with `scale` * sqrt(horizon) steps in every task, as in F-LiBO.

    **Arguments:**

    - `scale`: factor of the rate.

    ```python
    import jlibo

    print(jlibo.ConstantExploration().counts(num_tasks=3, horizon=100))  # [10 10 10]
    ```
    """

    scale: float = static_number("scale", 1.0, at_least=0)

    def rates(self, num_tasks, horizon):
        return np.full(num_tasks, self.scale * np.sqrt(float(horizon)))


@final
class NoExploration(AbstractExploration):
    """Schedule without forced exploration, for agents that do not learn the kernel.

    ```python
    import jlibo

    print(jlibo.NoExploration().counts(num_tasks=3, horizon=100))  # [0 0 0]
    ```
    """

    def rates(self, num_tasks, horizon):
        return np.zeros(num_tasks)


@final
class FirstTasksExploration(AbstractExploration):
    """Schedule with `num_steps` steps in each of the first `num_tasks` tasks, and none later.

    The first tasks give the meta-learner data to learn from.

    **Arguments:**

    - `num_steps`: steps in each of the first tasks, at most the horizon.
    - `num_tasks`: number of tasks that explore.

    ```python
    import jlibo

    schedule = jlibo.FirstTasksExploration(num_steps=3, num_tasks=2)
    print(schedule.counts(num_tasks=4, horizon=100))  # [3 3 0 0]
    ```
    """

    num_steps: int = eqx.field(static=True, default=3)
    num_tasks: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        check_fields(self)

    def rates(self, num_tasks, horizon):
        return np.where(np.arange(num_tasks) < self.num_tasks, min(self.num_steps, horizon), 0.0)


@final
class CustomExploration(AbstractExploration):
    """Schedule given by a function.

    **Arguments:**

    - `rate_fn`: `rate_fn(task, horizon)` returns the rate of a task as a number, with tasks counted from 1.

    ```python
    import jlibo

    schedule = jlibo.CustomExploration(lambda task, horizon: 5 / task)
    print(schedule.counts(num_tasks=4, horizon=100))  # [5 2 2 1]
    ```
    """

    rate_fn: Callable[[int, int], float] = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self)

    def rates(self, num_tasks, horizon):
        return np.asarray([self.rate_fn(task, horizon) for task in range(1, num_tasks + 1)], np.float64)


def whole_steps(rates: np.ndarray) -> np.ndarray:
    """Return whole numbers whose sum up to each task is the sum of the rates, rounded down.

    This is the paper's residue rule. After any task the two sums differ by less than one.
    """
    # In floating point, 0.1 added up ten times is below 1, but must count as a whole step.
    round_off = 1e-9
    totals = np.floor(np.cumsum(rates) + round_off)
    return np.diff(totals, prepend=0.0).astype(int)
