"""Figures of the arena: a heat map of methods and environments, and curves of each environment."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from jlibo.checks import check_shape, fail
from jlibo.front_door import front_door
from jlibo.lifelong.metrics import mean_and_standard_error
from jlibo.plot.style import NotebookFigure, agent_colours, finish, own_axes

FAR = 8.0
"""Ratios from here on have the same colour."""


@front_door
def plot_ratios(
    ratios: np.ndarray,
    methods: Sequence[str],
    environments: Sequence[str],
    ax: Axes | None = None,
    *,
    words: Sequence[Sequence[str]] | None = None,
) -> Axes:
    """Draw a heat map of regret relative to the oracle, and return its Axes.

    **Arguments:**

    - `ratios`: numbers `[methods, environments]`; 1 is as good as the oracle, NaN is left empty.
    - `methods`, `environments`: names of rows and columns.
    - `ax`: Axes to draw on; by default those of a new figure.
    - `words`: text of each cell; by default the ratio.

    **Raises:** `ValueError` if names and numbers do not match.

    ```python
    import numpy as np

    import jlibo

    ratios = np.asarray([[1.0, 1.0], [1.3, np.nan]])
    jlibo.plot.plot_ratios(ratios, ["oracle", "libo"], ["sparse-grid", "low-rank-ball"])
    ```
    """
    check_shape("ratios", ratios, (len(methods), len(environments)))
    if words is None:
        words = [["-" if np.isnan(ratio) else f"{ratio:.2f}" for ratio in row] for row in ratios]
    check_shape("words", np.asarray(words), (len(methods), len(environments)))
    ax = own_axes(ax)
    logs = np.log(np.clip(ratios, 1 / FAR, FAR))
    shown = np.ma.masked_invalid(logs)
    ax.imshow(shown, cmap="RdYlGn_r", norm=TwoSlopeNorm(0, -np.log(FAR), np.log(FAR)), aspect="auto")
    ax.set_facecolor("#eeeeee")
    ax.set_xticks(range(len(environments)), environments, rotation=35, ha="right", fontsize="small")
    ax.set_yticks(range(len(methods)), methods, fontsize="small")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for row, line in enumerate(words):
        for column, text in enumerate(line):
            is_dark = abs(np.nan_to_num(logs[row, column])) > 0.7 * np.log(FAR)
            colour = "white" if is_dark else "black"
            ax.text(column, row, text, ha="center", va="center", fontsize="x-small", color=colour)
    return ax


@front_door
def figure_task_curves(
    regret: Mapping[str, Mapping[str, np.ndarray]], *, title: str | None = None, num_columns: int = 3
) -> Figure:
    """Return a figure with a panel for each environment: regret of each task, with standard errors.

    **Arguments:**

    - `regret`: arrays `[seeds, tasks]` by environment and method.
    - `title`: title of the figure.
    - `num_columns`: number of panels in a row.

    **Raises:** `ValueError` if there is no environment.

    ```python
    import numpy as np

    import jlibo

    regret = {"sparse-grid": {"oracle": np.ones((3, 5)), "libo": np.ones((3, 5)) + 1}}
    figure = jlibo.plot.figure_task_curves(regret)
    ```
    """
    if not regret:
        fail("regret", "at least one environment", "none")
    methods = list(dict.fromkeys(name for panel in regret.values() for name in panel))
    colours = agent_colours(dict.fromkeys(methods))
    columns = min(num_columns, len(regret))
    rows = -(-len(regret) // columns)
    figure = NotebookFigure(figsize=(4.6 * columns, 3.2 * rows + 0.5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for ax, (environment, runs) in zip(panels, regret.items(), strict=False):
        for method, values in runs.items():
            mean, error = (np.asarray(part) for part in mean_and_standard_error(values))
            tasks = np.arange(1, len(mean) + 1)
            ax.plot(tasks, mean, color=colours[method], linewidth=1.3, label=method)
            ax.fill_between(tasks, mean - error, mean + error, color=colours[method], alpha=0.15, linewidth=0)
        finish(ax, {}, "task", "regret of the task")
        ax.set_title(environment, fontsize="medium")
    for ax in panels[len(regret) :]:
        ax.set_visible(False)
    handles = [figure.axes[0].plot([], [], color=colours[name], label=name)[0] for name in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(methods)), fontsize="small")
    if title is not None:
        figure.suptitle(title)
    return figure


@front_door
def plot_growth(excess: Mapping[str, Mapping[int, tuple[float, float]]], ax: Axes | None = None) -> Axes:
    """Draw how the excess regret per task grows with the number of features, and return its Axes.

    **Arguments:**

    - `excess`: mean and standard error by method and number of features.
    - `ax`: Axes to draw on; by default those of a new figure.

    ```python
    import jlibo

    jlibo.plot.plot_growth({"libo": {50: (8.0, 1.0), 200: (9.0, 1.0)}})
    ```
    """
    ax = own_axes(ax)
    colours = agent_colours(excess)
    for method, by_size in excess.items():
        sizes = sorted(by_size)
        means, errors = np.asarray([by_size[size] for size in sizes]).T
        ax.errorbar(sizes, means, errors, color=colours[method], marker="o", markersize=3, label=method)
    finish(ax, excess, "number of features", "excess regret per task")
    ax.set_xscale("log")
    sizes = sorted({size for by_size in excess.values() for size in by_size})
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
    return ax
