"""Forced exploration: the rates, and the residue rule that turns them into integer steps."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlibo import (
    AbstractExploration,
    ConstantExploration,
    CustomExploration,
    DecreasingExploration,
    NoExploration,
)
from tests.lifelong import reference_lifelong

SCHEDULES = [DecreasingExploration(), ConstantExploration(), DecreasingExploration(0.3), NoExploration()]


def test_rates_match_the_paper():
    tasks = np.arange(1, 21)
    np.testing.assert_allclose(DecreasingExploration().rates(20, 50), np.sqrt(50) / tasks**0.25)
    np.testing.assert_allclose(ConstantExploration().rates(20, 50), np.full(20, np.sqrt(50)))
    np.testing.assert_allclose(DecreasingExploration(2.0).rates(20, 50), 2 * np.sqrt(50) / tasks**0.25)
    np.testing.assert_array_equal(NoExploration().counts(3, 50), 0)


@pytest.mark.parametrize("root", [1, 3, 7, 10, 31])
def test_square_roots_are_exact(root):
    assert DecreasingExploration().counts(1, root**2)[0] == root
    np.testing.assert_array_equal(ConstantExploration().counts(30, root**2), root)


def test_counts_at_horizon_100():
    counts = DecreasingExploration().counts(20, 100)
    assert counts.tolist()[:6] == [10, 8, 8, 7, 6, 7]
    assert counts.dtype == int and counts.min() >= 4


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("horizon", [7, 30, 100, 1000])
def test_counts_equal_the_papers_algorithm(schedule, horizon):
    rates = schedule.rates(40, horizon)
    np.testing.assert_array_equal(schedule.counts(40, horizon), reference_lifelong.num_forced(rates))


@given(st.lists(st.integers(0, 640), min_size=1, max_size=30))
def test_residue_rule_equals_the_papers_loop_in_exact_arithmetic(numerators):
    rates = [Fraction(numerator, 64) for numerator in numerators]
    schedule = CustomExploration(lambda task, horizon: float(rates[task - 1]))
    assert schedule.counts(len(rates), 10**6).tolist() == reference_lifelong.num_forced(rates)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=60))
def test_partial_sums_stay_within_one_of_the_rates(rates):
    counts = CustomExploration(lambda task, horizon: rates[task - 1]).counts(len(rates), 10**6)
    behind = np.cumsum(rates) - np.cumsum(counts)
    assert (behind > -1e-6).all() and (behind < 1).all()


@given(st.integers(1, 60), st.integers(1, 2000))
def test_partial_sums_of_the_papers_schedules(num_tasks, horizon):
    for schedule in (DecreasingExploration(), ConstantExploration()):
        behind = np.cumsum(schedule.rates(num_tasks, horizon) - schedule.counts(num_tasks, horizon))
        assert (np.abs(behind) < 1).all()


def test_ten_rates_of_one_tenth_give_one_step():
    counts = CustomExploration(lambda task, horizon: 0.1).counts(30, 100)
    assert counts.tolist() == ([0] * 9 + [1]) * 3


def test_user_schedules():
    class Halving(AbstractExploration):
        def rates(self, num_tasks, horizon):
            return horizon * 0.5 ** np.arange(1, num_tasks + 1)

    assert Halving().counts(4, 8).tolist() == [4, 2, 1, 0]
    assert CustomExploration(lambda task, horizon: horizon / task).counts(4, 12).tolist() == [12, 6, 4, 3]


def test_counts_are_at_most_the_horizon():
    assert CustomExploration(lambda task, horizon: 2.5 * horizon).counts(3, 4).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    "rate, argument", [(-1.0, "rates"), (np.nan, "rates"), (np.inf, "rates")], ids=["negative", "nan", "inf"]
)
def test_invalid_rates_are_refused(rate, argument):
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        CustomExploration(lambda task, horizon: rate).counts(3, 10)


@pytest.mark.parametrize(
    "sizes, argument", [((0, 5), "num_tasks"), ((5, 0), "horizon"), ((2.5, 5), "num_tasks")]
)
def test_invalid_sizes_are_refused(sizes, argument):
    with pytest.raises(ValueError, match=f"`{argument}` should be"):
        DecreasingExploration().counts(*sizes)


def test_schedule_of_the_wrong_length_is_refused():
    class Short(AbstractExploration):
        def rates(self, num_tasks, horizon):
            return np.ones(2)

    with pytest.raises(ValueError, match="`rates` should be an array of shape"):
        Short().counts(3, 10)
