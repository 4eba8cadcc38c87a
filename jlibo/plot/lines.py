"""Lines of means over seeds, with bands of one standard error."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from jlibo.lifelong import metrics
from jlibo.plot.results import with_seeds
from jlibo.plot.style import agent_colours, display_name


def draw_offline_lines(ax: Axes, agents: Mapping[str, np.ndarray]) -> None:
    """Draw a line for each agent; a single column becomes a horizontal line."""
    length = max(values.shape[1] for values in agents.values())
    for name, values in agents.items():
        if values.shape[1] < length:
            values = np.broadcast_to(values, (values.shape[0], length))
            draw_line(ax, np.arange(1, length + 1), values, name, agents)
        else:
            draw_task_line(ax, values, name, agents)


def draw_task_line(ax: Axes, values: Any, name: str, agents: Mapping[str, Any]) -> None:
    """Draw a value for each task: the mean over seeds as a line with markers, and its band."""
    values = with_seeds("results", values, 1)
    x = np.arange(1, values.shape[1] + 1)
    draw_line(ax, x, values, name, agents, marker="o", markersize=2.6 if len(x) > 12 else 4)


def draw_line(
    ax: Axes, x: np.ndarray, values: np.ndarray, name: str, agents: Mapping[str, Any], **style: Any
) -> None:
    """Draw the mean over seeds, and a band of one standard error if there is more than one seed."""
    colour = agent_colours(agents)[name]
    mean, error = metrics.mean_and_standard_error(values)
    ax.plot(x, mean, color=colour, label=display_name(name), linewidth=1.8, **style)
    if values.shape[0] > 1:
        ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.22, linewidth=0)
