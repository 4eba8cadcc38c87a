"""Plots of a tuner: importance of parameters, and progress of each task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, PercentFormatter

from jlibo.front_door import front_door
from jlibo.plot.style import META, colour_key, finish, own_axes, shades


@front_door
def plot_importance(importance: Mapping[str, float], ax: Axes | None = None, *, most: int = 12) -> Axes:
    """Plot importances as horizontal bars, in the order of the mapping, the first on top.

    **Arguments:**

    - `importance`: share of the variation of the scores by name, largest first, as returned by
      `Tuner.importance`. A share of 0 is labelled as not selected.
    - `ax`: Axes to draw on; by default a new figure.
    - `most`: maximum number of bars.

    **Returns:** the Axes.

    ```python
    import jlibo

    ax = jlibo.plot.plot_importance({"rate": 0.8, "depth": 0.2, "seed": 0.0})
    ```
    """
    ax = own_axes(ax)
    shown = list(importance.items())[:most][::-1]
    shares = [share for _, share in shown]
    ax.barh(range(len(shown)), shares, color=META, height=0.66)
    for place, share in enumerate(shares):
        words = f"{share:.0%}" if share >= 0.005 else ("not selected" if share == 0 else "< 1%")
        colour = "#8a8a8a" if share == 0 else "#262626"
        ax.annotate(
            words,
            (share, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
        )
    ax.set_yticks(range(len(shown)), [name for name, _ in shown])
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.18 * max(shares, default=0) or 1)
    hidden = len(importance) - len(shown)
    label = "share of the variation of the scores" + (f" ({hidden} more not shown)" if hidden else "")
    finish(ax, {}, label, "")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid(visible=False, axis="y")
    if not shown:
        _say(ax, "nothing learned yet")
    return ax


@front_door
def plot_progress(
    scores_by_task: Mapping[str, Sequence[float | None]], ax: Axes | None = None, *, maximise: bool = True
) -> Axes:
    """Plot the best score so far, one line per task, pale for the first task and dark for the last.

    **Arguments:**

    - `scores_by_task`: scores of the trials of each task, in order; None for a trial without a score.
    - `ax`: Axes to draw on; by default a new figure.
    - `maximise`: whether larger scores are better.

    **Returns:** the Axes.

    ```python
    import jlibo

    ax = jlibo.plot.plot_progress({"first": [0.6, None, 0.8], "second": [0.7, 0.9]})
    ```
    """
    ax = own_axes(ax)
    lines = {name: _values(scores) for name, scores in scores_by_task.items() if len(scores)}
    colours = shades(META)
    scale = Normalize(1, max(len(lines), 2))
    best_of = np.fmax if maximise else np.fmin
    for number, values in enumerate(lines.values(), start=1):
        line: Any = best_of.accumulate(values)
        colour = colours(scale(number)) if len(lines) > 1 else META
        # Steps, because the best score does not change between two trials.
        ax.plot(
            np.arange(1, values.size + 1),
            line,
            color=colour,
            linewidth=1.6,
            drawstyle="steps-post",
            alpha=0.9,
        )
    if len(lines) > 1:
        colour_key(ax, ScalarMappable(scale, colours), "task  1", str(len(lines)))
    finish(ax, {}, "trial", "best score so far")
    if not lines:
        _say(ax, "no trials yet")
    return ax


def _values(scores: Sequence[float | None]) -> np.ndarray:
    return np.asarray([np.nan if score is None else score for score in scores], float)


def _say(ax: Axes, words: str) -> None:
    """Write text on empty Axes."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color="#8a8a8a")
