"""Figures of the arena."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from jlibo import plot


def test_ratios_are_written_into_the_cells():
    ax = Figure().subplots()
    plot.plot_ratios(np.asarray([[1.0, 20.0], [np.nan, 0.5]]), ["a", "b"], ["c", "d"], ax)
    assert [text.get_text() for text in ax.texts] == ["1.00", "20.00", "-", "0.50"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    shown = ax.images[0].get_array()
    assert shown[0, 0] == 0
    assert bool(shown.mask[1, 0])


def test_words_replace_ratios():
    ax = Figure().subplots()
    plot.plot_ratios(np.ones((1, 1)), ["a"], ["b"], ax, words=[["(3)"]])
    assert ax.texts[0].get_text() == "(3)"


def test_curves_have_a_panel_for_each_environment_and_one_legend():
    regret = {
        f"env {number}": {"oracle": np.ones((3, 5)), "libo": 2 * np.ones((3, 5))} for number in range(4)
    }
    figure = plot.figure_task_curves(regret, title="t")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in shown] == list(regret)
    np.testing.assert_array_equal(shown[1].lines[1].get_ydata(), [2.0] * 5)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["oracle", "libo"]


def test_growth_has_a_line_for_each_method():
    ax = plot.plot_growth({"libo": {200: (3.0, 0.1), 50: (2.0, 0.1)}}, Figure().subplots())
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [50, 200])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2.0, 3.0])


def test_names_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"`ratios` should be an array of shape \[1, 1\]"):
        plot.plot_ratios(np.ones((2, 1)), ["a"], ["b"])
    with pytest.raises(ValueError, match="`regret` should be at least one environment"):
        plot.figure_task_curves({})
