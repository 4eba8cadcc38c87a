"""Style shared by all figures: the agents' names and colours, and the look of axes."""

import colorsys
import io
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jlibo.front_door import front_door

ORACLE, NAIVE, META, FEDERATED = "#4f7992", "#d33f49", "#419d78", "#f9a620"
RANDOM = "#8a8a8a"
AGENTS = {
    "random": ("Random search", RANDOM),
    "full": ("Full kernel", NAIVE),
    "naive": ("Naive", NAIVE),
    "flibo": ("F-LiBO", FEDERATED),
    "f-meta-kgl": ("F-Meta-KGL", FEDERATED),
    "libo": ("LiBO", META),
    "meta-kgl": ("Meta-KGL", META),
    "meta-kel": ("Meta-KeL", "#7d5ba6"),
    "oracle": ("Oracle", ORACLE),
}
"""Display names and colours of the paper's agents, in the order of legends: the highest regret first.

Other agents follow after these."""

OTHER_COLOURS = ("#c2649a", "#2a9fbc", "#8a6d3b", "#a3a532", "#5c5c5c")
GREY = "#b8b8b8"


@front_door
def display_name(agent: str) -> str:
    """Return the name of an agent as printed in figures.

    **Arguments:**

    - `agent`: name of the agent; case and `_` against `-` are ignored.

    **Returns:** the paper's name if the agent is in `AGENTS`, else `agent` itself.

    ```python
    import jlibo

    print(jlibo.plot.display_name("f_meta_kgl"))  # F-Meta-KGL
    ```
    """
    return AGENTS[plain_name(agent)][0] if plain_name(agent) in AGENTS else agent


def plain_name(name: str) -> str:
    """Return the name as in the keys of `AGENTS`: lower case, with hyphens."""
    return name.lower().replace("_", "-")


def ordered(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping in the order of `AGENTS`; other agents follow in their own order."""
    known = list(AGENTS)
    return dict(
        sorted(
            mapping.items(),
            key=lambda item: known.index(plain_name(item[0])) if plain_name(item[0]) in known else 99,
        )
    )


def agent_colours(agents: Mapping[str, Any]) -> dict[str, Any]:
    """Return distinct colours for the agents: the paper's colour if there is one and it is not taken."""
    colours, others = {}, list(OTHER_COLOURS)
    for number, name in enumerate(agents):
        colour = (
            AGENTS[plain_name(name)][1] if plain_name(name) in AGENTS else META if len(agents) == 1 else None
        )
        if colour is None or colour in colours.values():
            # Hues in steps of the golden ratio stay apart for any number of agents.
            colour = others.pop(0) if others else colorsys.hsv_to_rgb(0.618 * number % 1, 0.6, 0.7)
        colours[name] = colour
    return colours


def mix(colour: Any, other: Any, share: float) -> tuple[float, ...]:
    """Return `colour` with a `share` of `other` mixed in."""
    return tuple((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))


def shades(colour: Any, pale: Any = None) -> LinearSegmentedColormap:
    """Return a colour map from a pale tint of `colour`, through `colour`, to a dark shade."""
    pale = mix(colour, "#ffffff", 0.75) if pale is None else pale
    return LinearSegmentedColormap.from_list("shades", [pale, colour, mix(colour, "#000000", 0.55)])


@final
class NotebookFigure(Figure):
    """A figure that a notebook displays as the value of a cell, without pyplot.

    ```python
    import jlibo

    figure = jlibo.plot.NotebookFigure(layout="constrained")
    jlibo.plot.plot_importance({"rate": 0.8, "depth": 0.2}, figure.subplots())
    ```
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def own_axes(ax: Axes | None) -> Axes:
    """Return `ax`, or the Axes of a new pyplot figure if it is None."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # imported here because figures that are only saved do not need it

    return plt.subplots(figsize=(5.6, 3.8), layout="constrained")[1]


def whole_numbers() -> MaxNLocator:
    """Return a locator of ticks at whole numbers."""
    return MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10])


def finish(ax: Axes, agents: Mapping[str, Any], x_label: str, y_label: str) -> Axes:
    """Set labels, ticks, spines and grid, and add a legend if there are several agents."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.xaxis.set_major_locator(whole_numbers())
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#7a7a7a")
    ax.grid(axis="y", color="#ececec", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.margins(x=0.02)
    if len(agents) > 1:
        columns = 1 if len(agents) < 4 else 2
        ax.legend(fontsize="small", framealpha=0.8, edgecolor="none", ncols=columns)
    return ax


def colour_key(ax: Axes, mappable: ScalarMappable, low: str, high: str) -> None:
    """Draw a small colour bar above the upper right corner, where it does not make the panel narrower."""
    inset = ax.inset_axes((0.78, 1.035, 0.17, 0.03))
    bar = ax.figure.colorbar(mappable, cax=inset, orientation="horizontal")
    bar.set_ticks([])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for x, words, side in ((0.765, low, "right"), (0.965, high, "left")):
        ax.text(x, 1.045, words, transform=ax.transAxes, ha=side, va="center", fontsize="small")


def two_panels(title: str | None) -> tuple[Figure, np.ndarray]:
    """Return a figure with two panels side by side, and their axes."""
    figure = NotebookFigure(figsize=(9.6, 3.9), layout="constrained")
    axes = figure.subplots(1, 2)
    if title:
        figure.suptitle(title)
    return figure, axes
