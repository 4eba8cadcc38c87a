"""Schedules: which task is played when, and values arranged by task."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo.arena import Schedule


def test_sequential_and_concurrent():
    sequence = Schedule.sequential(2, 3)
    np.testing.assert_array_equal(sequence.task_of, [[0], [0], [0], [1], [1], [1]])
    np.testing.assert_array_equal(sequence.step_of[:, 0], [0, 1, 2, 0, 1, 2])
    together = Schedule.concurrent(2, 3)
    np.testing.assert_array_equal(together.task_of, [[0, 1]] * 3)
    np.testing.assert_array_equal(together.step_of, [[0, 0], [1, 1], [2, 2]])
    assert (sequence.num_rounds, sequence.num_lanes, sequence.horizon) == (6, 1, 3)
    assert (together.num_rounds, together.num_lanes, together.num_tasks) == (3, 2, 2)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6))
def test_shuffled_plays_every_task_as_often_as_asked(num_tasks, horizon, lanes, seed):
    schedule = Schedule.shuffled(num_tasks, horizon, lanes, seed=seed)
    np.testing.assert_array_equal(schedule.plays, [horizon] * num_tasks)
    assert schedule.num_lanes == min(lanes, num_tasks)
    # No round could have been saved.
    assert schedule.num_rounds == max(horizon, -(-num_tasks * horizon // min(lanes, num_tasks)))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_by_task_arranges_every_play(num_tasks, horizon, lanes):
    schedule = Schedule.shuffled(num_tasks, horizon, lanes)
    number = 100.0 * schedule.task_of + schedule.step_of
    found = schedule.by_task(np.stack([number, 2 * number]))
    expected = 100.0 * np.arange(num_tasks)[:, None] + np.arange(horizon)
    np.testing.assert_array_equal(found, [expected, 2 * expected])


def test_tasks_that_end_early_are_padded_with_zeros():
    schedule = Schedule(np.asarray([[0, 1], [0, -1]]))
    np.testing.assert_array_equal(schedule.plays, [2, 1])
    np.testing.assert_array_equal(schedule.by_task(np.ones((2, 2))), [[1, 1], [1, 0]])


@pytest.mark.parametrize(
    "task_of, message",
    [
        ([[0, 0]], "different tasks in a round, but got a task twice in round 0"),
        ([[0.5]], r"whole numbers \[rounds, lanes\]"),
        ([0, 1], r"whole numbers \[rounds, lanes\]"),
        ([[-2]], "numbers of tasks, or -1 for none"),
        ([[-1]], "numbers of tasks, or -1 for none"),
    ],
)
def test_bad_schedules_are_refused(task_of, message):
    with pytest.raises(ValueError, match=message):
        Schedule(np.asarray(task_of))
