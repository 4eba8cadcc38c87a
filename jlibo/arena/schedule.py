"""Schedules: which tasks are played in which round. Tasks in sequence are the case of one task a round."""

import dataclasses
from typing import Any, final

import numpy as np

from jlibo.checks import check_count, fail
from jlibo.front_door import check_fields, front_door


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The tasks of every round, known before tracing.

    **Arguments:**

    - `task_of`: number of the task that each lane of each round plays, `[rounds, lanes]`; -1 for none. The
      lanes of a round play different tasks.

    **Raises:** `ValueError` if a round plays a task twice, or if a number is below -1.

    ```python
    from jlibo.arena import Schedule

    print(Schedule.sequential(num_tasks=2, horizon=3).task_of.ravel())  # [0 0 0 1 1 1]
    print(Schedule.concurrent(num_tasks=2, horizon=3).task_of.shape)  # (3, 2)
    ```
    """

    task_of: np.ndarray

    def __post_init__(self):
        check_fields(self)
        task_of = np.asarray(self.task_of)
        if task_of.ndim != 2 or task_of.dtype.kind not in "iu" or task_of.size == 0:
            fail("task_of", "whole numbers [rounds, lanes]", f"shape {list(task_of.shape)}, {task_of.dtype}")
        if task_of.min() < -1 or task_of.max() < 0:
            fail("task_of", "numbers of tasks, or -1 for none", f"numbers from {task_of.min()}")
        ordered = np.sort(task_of, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if twice.any():
            fail("task_of", "different tasks in a round", f"a task twice in round {twice.any(1).argmax()}")
        object.__setattr__(self, "task_of", task_of.astype(np.int32))

    @property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return self.task_of.shape[0]

    @property
    def num_lanes(self) -> int:
        """Largest number of tasks in a round."""
        return self.task_of.shape[1]

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return int(self.task_of.max()) + 1

    @property
    def present(self) -> np.ndarray:
        """Which lanes play, `[rounds, lanes]`."""
        return self.task_of >= 0

    @property
    def step_of(self) -> np.ndarray:
        """How often the task of a lane was played before the round, `[rounds, lanes]`; 0 for empty lanes."""
        return self._steps_and_plays[0]

    @property
    def plays(self) -> np.ndarray:
        """How often each task is played, `[tasks]`."""
        return self._steps_and_plays[1]

    @property
    def horizon(self) -> int:
        """Most plays of a task."""
        return int(self.plays.max())

    @property
    def _steps_and_plays(self) -> tuple[np.ndarray, np.ndarray]:
        plays = np.zeros(self.num_tasks, np.int32)
        steps = np.zeros(self.task_of.shape, np.int32)
        for number, tasks in enumerate(self.task_of):
            lanes = np.flatnonzero(tasks >= 0)
            steps[number, lanes] = plays[tasks[lanes]]
            plays[tasks[lanes]] += 1
        return steps, plays

    def by_task(self, values: Any) -> Any:
        """Return an array `[..., rounds, lanes]` as `[..., tasks, horizon]`; zero where a task has ended."""
        place = np.full((self.num_tasks, self.horizon), -1)
        rounds, lanes = np.nonzero(self.present)
        place[self.task_of[rounds, lanes], self.step_of[rounds, lanes]] = rounds * self.num_lanes + lanes
        flat = values.reshape(*values.shape[:-2], -1)
        return flat[..., np.maximum(place, 0)] * (place >= 0)

    @staticmethod
    @front_door
    def sequential(num_tasks: int, horizon: int) -> "Schedule":
        """Return the schedule of one task after the other, each with `horizon` steps."""
        check_count("num_tasks", num_tasks)
        check_count("horizon", horizon)
        return Schedule(np.repeat(np.arange(num_tasks), horizon)[:, None])

    @staticmethod
    @front_door
    def concurrent(num_tasks: int, horizon: int) -> "Schedule":
        """Return the schedule of all tasks in every round."""
        check_count("num_tasks", num_tasks)
        check_count("horizon", horizon)
        return Schedule(np.tile(np.arange(num_tasks), (horizon, 1)))

    @staticmethod
    @front_door
    def shuffled(num_tasks: int, horizon: int, num_lanes: int, *, seed: int = 0) -> "Schedule":
        """Return a random schedule with at most `num_lanes` tasks a round, each task `horizon` times.

        Every round plays the tasks that have the most steps left; ties are broken at random.
        """
        check_count("num_tasks", num_tasks)
        check_count("horizon", horizon)
        check_count("num_lanes", num_lanes)
        lanes = min(num_lanes, num_tasks)
        random, left, rounds = np.random.default_rng(seed), np.full(num_tasks, horizon), []
        while left.any():
            order = np.argsort(-(left + random.random(num_tasks)))[:lanes]
            played = np.where(left[order] > 0, order, -1)
            left[played[played >= 0]] -= 1
            rounds.append(played)
        return Schedule(np.asarray(rounds))
