"""How runs are drawn: the paper's figures, and what they leave out.

| here                    | paper                                                                       |
|-------------------------|-----------------------------------------------------------------------------|
| `plot_lifelong_regret`  | fig. "online": R(s, i) over all steps, vertical lines where tasks begin     |
| `plot_offline_regret`   | fig. "offline": single-task regret against the number of offline tasks      |
| `plot_support`          | J_hat_s over s, against J*                                                  |
| `plot_recovery`         | how often J_hat_s = J*                                                      |
| `plot_exploration_cost` | the regret of forced steps, the price of learning the kernel, and the rest  |

Every function takes results and an optional `Axes`, and returns the Axes it drew on: `ax=None` makes a new
figure. Nothing is shown, and no global setting is changed. `results` maps agents' names to `LifelongResult`s
with one leading axis of seeds, as `jax.vmap` over keys returns them: lines are means over seeds and bands one
standard error. A run without a seeds axis is drawn without a band, and one bare result is fine too.
"""

import colorsys
import io
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jlibo import metrics
from jlibo.checks import fail
from jlibo.lifelong import LifelongResult

Results = Mapping[str, LifelongResult] | LifelongResult

ORACLE, NAIVE, META, FEDERATED = "#4f7992", "#d33f49", "#419d78", "#f9a620"
AGENTS = {
    "full": ("Full kernel", NAIVE),
    "naive": ("Naive", NAIVE),
    "flibo": ("F-LiBO", FEDERATED),
    "f-meta-kgl": ("F-Meta-KGL", FEDERATED),
    "libo": ("LiBO", META),
    "meta-kgl": ("Meta-KGL", META),
    "meta-kel": ("Meta-KeL", "#7d5ba6"),
    "oracle": ("Oracle", ORACLE),
}
"""Names and colours of the paper's agents, the usual top of a regret plot first; others come after."""

OTHER_COLOURS = ("#c2649a", "#2a9fbc", "#8a6d3b", "#a3a532", "#5c5c5c")
GREY = "#b8b8b8"
MAX_POINTS = 1000
"""About as many points of a line as a figure can show."""


def plot_lifelong_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Cumulative regret over all steps of all tasks, a thin vertical line where each task begins."""
    agents, ax = _agents(results), _axes(ax)
    most_tasks, most_steps, horizon = 0, 0, 1
    for name, result in agents.items():
        regret = _with_seeds("results", metrics.lifelong_regret(result), 1)
        num_tasks, horizon = result.regret.shape[-2:]
        shown = _shown_steps(num_tasks, horizon)
        _line(ax, shown + 1, regret[:, shown], name, agents)
        most_tasks, most_steps = max(most_tasks, num_tasks), max(most_steps, regret.shape[1])
    starts = horizon * np.arange(most_tasks)
    segments = [np.asarray([(start, 0), (start, 1)]) for start in starts]
    lines = LineCollection(
        segments, colors=GREY, linewidths=0.6, alpha=0.6, zorder=0.5, transform=ax.get_xaxis_transform()
    )
    ax.add_collection(lines, autolim=False)
    ax.set_xlim(0, most_steps)
    ax.set_ylim(bottom=0)
    return _finish(ax, agents, "step, over all tasks", "lifelong regret")


def plot_task_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Regret of each task against the task's number."""
    agents, ax = _agents(results), _axes(ax)
    for name, result in agents.items():
        _task_line(ax, metrics.task_regret(result), name, agents)
    ax.set_ylim(bottom=0)
    return _finish(ax, agents, "task", "regret of the task")


def plot_task_curves(results: Results, agent: str | None = None, ax: Axes | None = None) -> Axes:
    """Cumulative regret within each task of one agent, pale for the first task and dark for the last.

    Means over seeds. `agent` may be left out where there is one alone.
    """
    agents = _agents(results)
    agent = _one_agent(agent, agents)
    ax = _axes(ax)
    regret = _with_seeds("results", agents[agent].regret, 2)
    curves = np.cumsum(regret.mean(0), axis=-1)
    num_tasks, horizon = curves.shape
    colours = _shades(_colours(agents)[agent])
    scale = Normalize(1, max(num_tasks, 2))
    for number, curve in enumerate(curves, start=1):
        ax.plot(np.arange(1, horizon + 1), curve, color=colours(scale(number)), linewidth=1.4)
    if num_tasks > 1:
        _colour_key(ax, ScalarMappable(scale, colours), "task  1", str(num_tasks))
    ax.set_xlim(0, horizon)
    ax.set_ylim(bottom=0)
    title = "" if isinstance(results, eqx.Module) else f", {display_name(agent)}"
    return _finish(ax, {}, "step within the task", f"regret of the task so far{title}")


def plot_support(
    result: LifelongResult,
    ax: Axes | None = None,
    *,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """A heat map of the share of seeds in which each base kernel is selected after each task.

    An empty selection, after which all kernels are in use, shows as no kernel.

    **Arguments:**

    - `true_support`: the kernels that matter, which are marked; one set, or one a seed. Where seeds differ,
      each seed's kernels are re-ordered, true ones first, before the average is taken: the ideal is then a
      dark band at the top and nothing below.
    - `names`: of the base kernels, as in `features.names`; only for kernels in their own order.
    """
    if not isinstance(result, LifelongResult):
        fail("result", "one LifelongResult (pick an agent: results[name])", type(result).__name__)
    support = _with_seeds("result", result.support, 2)
    num_groups = support.shape[-1]
    truth = None if true_support is None else _truth(true_support, support.shape[0], num_groups)
    if names is not None and len(names) != num_groups:
        fail("names", f"one for each of the {num_groups} base kernels", f"{len(names)} names")
    sizes = None
    if truth is not None and (truth != truth[0]).any():
        if names is not None:
            fail("names", "left out where the true support differs by seed, as rows are re-ordered", names)
        sizes = truth.sum(-1)
        order = np.argsort(~truth, axis=-1, kind="stable")
        support = np.take_along_axis(support, order[:, None, :], axis=-1)
    ax = _axes(ax)
    share = support.mean(0).T
    num_tasks = share.shape[1]
    image = ax.imshow(
        share,
        cmap=_shades(META, pale="#ffffff"),
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, num_tasks + 0.5, num_groups - 0.5, -0.5),
    )
    if support.shape[0] > 1:
        _colour_key(ax, image, "share of seeds  0", "1")
    ax.set_xlabel("after task")
    ax.xaxis.set_major_locator(_whole_numbers())
    ax.tick_params(length=2)
    for spine in ax.spines.values():
        spine.set_color(GREY)
    if sizes is not None:
        _label_aligned(ax, sizes, num_groups)
    else:
        _label_kernels(ax, None if truth is None else truth[0], names, num_groups)
    return ax


def plot_recovery(
    results: Results, true_support: Bool[Array, "*seeds groups"], ax: Axes | None = None
) -> Axes:
    """The share of seeds whose selection after each task is exactly the true one."""
    agents = _agents(results)
    hits = {}
    for name, result in agents.items():
        support = _with_seeds("results", result.support, 2)
        truth = _truth(true_support, support.shape[0], support.shape[-1])
        hits[name] = (support == truth[:, None, :]).all(-1).astype(float)
    ax = _axes(ax)
    for name, values in hits.items():
        _task_line(ax, values, name, agents)
    ax.set_ylim(-0.03, 1.03)
    return _finish(ax, agents, "after task", "share of seeds with exact recovery")


def plot_support_size(
    results: Results, ax: Axes | None = None, *, true_support: Bool[Array, "*seeds groups"] | None = None
) -> Axes:
    """How many base kernels are in use after each task; the true number dashed, if it is given."""
    agents, ax = _agents(results), _axes(ax)
    for name, result in agents.items():
        _task_line(ax, metrics.support_size(result), name, agents)
    if true_support is not None:
        truth = np.atleast_2d(np.asarray(true_support))
        ax.axhline(truth.sum(-1).mean(), color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(_whole_numbers())
    return _finish(ax, agents, "after task", "base kernels in use")


def plot_exploration_cost(results: Results, ax: Axes | None = None) -> Axes:
    """Lifelong regret of each agent as a bar: the policy's own steps below, forced exploration on top.

    The whisker is one standard error of the sum.
    """
    agents, ax = _agents(results), _axes(ax)
    colours = _colours(agents)
    tops = []
    for place, (name, result) in enumerate(agents.items()):
        forced, chosen = _exploration_cost(result)
        total, error = _mean_and_error(forced + chosen)
        colour = colours[name]
        style: dict[str, Any] = dict(width=0.62, edgecolor=colour, linewidth=1.0)
        ax.bar(place, chosen.mean(), color=colour, label="_chosen", **style)
        ax.bar(
            place,
            forced.mean(),
            bottom=chosen.mean(),
            color=_mix(colour, "#ffffff", 0.7),
            hatch="////",
            label="_forced",
            **style,
        )
        if len(forced) > 1:
            ax.errorbar(place, total, yerr=error, color="#333333", linewidth=1.1, capsize=3)
        ax.annotate(
            f"{total:,.0f}" if total >= 100 else f"{total:.3g}",
            (place, total + error),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
        tops.append(total + error)
    _finish(ax, {}, "", "lifelong regret")
    labels = [display_name(name) for name in agents] if not isinstance(results, eqx.Module) else [""]
    ax.set_xticks(range(len(agents)), labels, fontsize="medium" if len(agents) < 5 else "small")
    middle, half = (len(agents) - 1) / 2, max(len(agents) / 2, 1.5) + 0.1
    ax.set_xlim(middle - half, middle + half)
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(0, 1.32 * max(tops) if max(tops) > 0 else 1)
    kinds = [
        Patch(facecolor="#8a8a8a", edgecolor="#8a8a8a", label="chosen by the policy"),
        Patch(facecolor="#e3e3e3", edgecolor="#8a8a8a", hatch="////", label="forced exploration"),
    ]
    ax.legend(handles=kinds, frameon=False, fontsize="small", loc="upper right", ncols=2)
    return ax


def plot_offline_regret(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]], ax: Axes | None = None
) -> Axes:
    """Single-task regret against the number of offline tasks that the kernel was learned from.

    An agent that learns nothing may come as one column: it is drawn as a level line.
    """
    agents = _offline("regret_by_agent", regret_by_agent)
    ax = _axes(ax)
    _offline_lines(ax, agents)
    ax.set_ylim(bottom=0)
    return _finish(ax, agents, "offline tasks", "single-task regret")


def figure_lifelong(
    results: Results,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    title: str | None = None,
    *,
    figure: Figure | SubFigure | None = None,
) -> Figure | SubFigure:
    """Four panels: lifelong regret, regret by task, what the meta-learner selects, and what exploring costs.

    The third is the heat map of the first agent that learns, or where none does, of recovery or sizes.
    The figure is independent of pyplot unless one of pyplot's is given as `figure`.
    """
    agents = _agents(results)
    whole = isinstance(results, eqx.Module)
    figure = NotebookFigure(figsize=(9.6, 6.8), layout="constrained") if figure is None else figure
    axes = figure.subplots(2, 2)
    plot_lifelong_regret(results, axes[0, 0])
    plot_task_regret(results, axes[0, 1])
    learner = _learner(agents)
    if learner is not None:
        plot_support(agents[learner], axes[1, 0], true_support=true_support)
        axes[1, 0].set_title("Selected kernels" if whole else f"Selected by {display_name(learner)}")
    elif true_support is not None:
        plot_recovery(results, true_support, axes[1, 0]).set_title("Exact recovery")
    else:
        plot_support_size(results, axes[1, 0]).set_title("Kernels in use")
    plot_exploration_cost(results, axes[1, 1])
    axes[0, 0].set_title("Lifelong regret")
    axes[0, 1].set_title("Regret by task")
    axes[1, 1].set_title("The cost of exploring")
    _share_legend(figure, axes, title, keep=axes[1, 1])
    return figure


def figure_offline(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]],
    support_size_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]] | None = None,
    title: str | None = None,
    *,
    figure: Figure | SubFigure | None = None,
) -> Figure | SubFigure:
    """Regret, and if given the number of selected kernels, against the number of offline tasks."""
    sizes = support_size_by_agent
    width = 9.6 if sizes is not None else 5.6
    figure = NotebookFigure(figsize=(width, 3.8), layout="constrained") if figure is None else figure
    axes = figure.subplots(1, 1 if sizes is None else 2, squeeze=False)
    plot_offline_regret(regret_by_agent, axes[0, 0]).set_title("Regret of one new task")
    if sizes is not None:
        agents = _offline("support_size_by_agent", sizes)
        _offline_lines(axes[0, 1], agents)
        axes[0, 1].set_ylim(bottom=0)
        _finish(axes[0, 1], agents, "offline tasks", "base kernels in use").set_title("Kernels in use")
    _share_legend(figure, axes, title)
    return figure


def display_name(agent: str) -> str:
    """The name of an agent as figures print it: the paper's for its agents, else the name as it is."""
    return AGENTS[_plain(agent)][0] if _plain(agent) in AGENTS else agent


# --- results ------------------------------------------------------------------------------------------------


def _agents(results: Any) -> dict[str, LifelongResult]:
    """The agents to draw, in the order of `AGENTS`, since `jit` hands dictionaries back sorted by name."""
    if isinstance(results, LifelongResult):
        results = {"agent": results}
    if not isinstance(results, Mapping):
        fail("results", "a LifelongResult, or a mapping from agents' names to them", type(results).__name__)
    if not results:
        fail("results", "at least one agent's", "an empty mapping")
    for name, result in results.items():
        if not isinstance(name, str) or not isinstance(result, LifelongResult):
            fail("results", "LifelongResults by the agents' names", f"{name!r}: {type(result).__name__}")
        _with_seeds("results", result.regret, 2)
    return _ordered(results)


def _ordered(mapping: Mapping[str, Any]) -> dict[str, Any]:
    known = list(AGENTS)
    return dict(
        sorted(
            mapping.items(), key=lambda item: known.index(_plain(item[0])) if _plain(item[0]) in known else 99
        )
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _with_seeds(argument: str, values: Any, num_axes: int) -> np.ndarray:
    """`values` with exactly one axis of seeds before its own `num_axes`."""
    values = np.asarray(values)
    if values.ndim == num_axes:
        values = values[None]
    if values.ndim != num_axes + 1 or values.shape[0] == 0:
        fail(argument, "one run, or runs with one leading axis of seeds", f"arrays of shape {values.shape}")
    return values


def _truth(true_support: Any, num_seeds: int, num_groups: int) -> np.ndarray:
    truth = np.asarray(true_support)
    if truth.dtype != bool or truth.shape not in ((num_groups,), (num_seeds, num_groups)):
        fail(
            "true_support",
            f"booleans of shape [{num_groups}] or [{num_seeds}, {num_groups}]",
            f"{truth.dtype} of shape {list(truth.shape)}",
        )
    return np.broadcast_to(truth, (num_seeds, num_groups))


def _one_agent(agent: str | None, agents: Mapping[str, Any]) -> str:
    if agent is None and len(agents) == 1:
        return next(iter(agents))
    if agent not in agents:
        fail("agent", f"one of {', '.join(map(repr, agents))}", repr(agent))
    return agent  # pyright: ignore[reportReturnType]


def _learner(agents: Mapping[str, Any]) -> str | None:
    """The agent whose selections are worth a panel."""
    for wanted in ("libo", "meta-kgl", "flibo", "f-meta-kgl"):
        for name in agents:
            if _plain(name) == wanted:
                return name
    return next((name for name in agents if _plain(name) not in ("oracle", "full", "naive")), None)


def _exploration_cost(result: LifelongResult) -> tuple[np.ndarray, np.ndarray]:
    """Of each seed, over all tasks: the regret of forced steps, and of the policy's own."""
    forced, chosen = metrics.exploration_regret(result)
    return _with_seeds("results", forced, 1).sum(-1), _with_seeds("results", chosen, 1).sum(-1)


def _offline(argument: str, by_agent: Any) -> dict[str, np.ndarray]:
    if not isinstance(by_agent, Mapping) or not by_agent:
        fail(argument, "a mapping from agents' names to arrays [seed, num_offline_tasks]", type(by_agent))
    agents = {name: _with_seeds(argument, values, 1) for name, values in _ordered(by_agent).items()}
    lengths = {values.shape[1] for values in agents.values()} - {1}
    if len(lengths) > 1:
        fail(argument, "arrays of equally many offline tasks", f"{sorted(lengths)} of them")
    return agents


def _shown_steps(num_tasks: int, horizon: int) -> np.ndarray:
    """Indices of the steps to draw: evenly spaced, and the last of every task."""
    total = num_tasks * horizon
    stride = -(-total // MAX_POINTS)
    last = horizon * np.arange(1, num_tasks + 1) - 1
    return np.union1d(np.arange(0, total, stride), last)


def _mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, error = metrics.mean_and_standard_error(values)  # pyright: ignore[reportArgumentType]
    return np.asarray(mean), np.asarray(error)


# --- drawing ------------------------------------------------------------------------------------------------


class NotebookFigure(Figure):
    """A figure that a notebook shows as the value of a cell, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # here, as a figure that is only saved has no need of it

    return plt.subplots(figsize=(5.6, 3.8), layout="constrained")[1]


def _colours(agents: Mapping[str, Any]) -> dict[str, Any]:
    """A colour for each agent: the paper's where it has one, and never the same twice."""
    colours, others = {}, list(OTHER_COLOURS)
    for number, name in enumerate(agents):
        colour = AGENTS[_plain(name)][1] if _plain(name) in AGENTS else META if len(agents) == 1 else None
        if colour is None or colour in colours.values():
            # Steps of the golden ratio around the wheel stay apart, however many there are.
            colour = others.pop(0) if others else colorsys.hsv_to_rgb(0.618 * number % 1, 0.6, 0.7)
        colours[name] = colour
    return colours


def _mix(colour: Any, other: Any, share: float) -> tuple[float, ...]:
    return tuple((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))


def _shades(colour: Any, pale: Any = None) -> LinearSegmentedColormap:
    """From a pale tint of `colour`, through it, to a dark shade."""
    pale = _mix(colour, "#ffffff", 0.75) if pale is None else pale
    return LinearSegmentedColormap.from_list("shades", [pale, colour, _mix(colour, "#000000", 0.55)])


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10])


def _colour_key(ax: Axes, mappable: ScalarMappable, low: str, high: str) -> None:
    """A small colour bar above the upper right corner, where it takes no width from the panel."""
    inset = ax.inset_axes((0.78, 1.035, 0.17, 0.03))
    bar = ax.figure.colorbar(mappable, cax=inset, orientation="horizontal")
    bar.set_ticks([])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for x, words, side in ((0.765, low, "right"), (0.965, high, "left")):
        ax.text(x, 1.045, words, transform=ax.transAxes, ha=side, va="center", fontsize="small")


def _line(ax: Axes, x: np.ndarray, values: np.ndarray, name: str, agents: Mapping[str, Any], **style: Any):
    """The mean over seeds, and a band of one standard error where there is more than one."""
    colour = _colours(agents)[name]
    mean, error = _mean_and_error(values)
    ax.plot(x, mean, color=colour, label=display_name(name), linewidth=1.8, **style)
    if values.shape[0] > 1:
        ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.22, linewidth=0)


def _task_line(ax: Axes, values: Any, name: str, agents: Mapping[str, Any]) -> None:
    values = _with_seeds("results", values, 1)
    x = np.arange(1, values.shape[1] + 1)
    _line(ax, x, values, name, agents, marker="o", markersize=2.6 if len(x) > 12 else 4)


def _offline_lines(ax: Axes, agents: Mapping[str, np.ndarray]) -> None:
    length = max(values.shape[1] for values in agents.values())
    for name, values in agents.items():
        if values.shape[1] < length:
            values = np.broadcast_to(values, (values.shape[0], length))
            _line(ax, np.arange(1, length + 1), values, name, agents)
        else:
            _task_line(ax, values, name, agents)


def _finish(ax: Axes, agents: Mapping[str, Any], x_label: str, y_label: str) -> Axes:
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.xaxis.set_major_locator(_whole_numbers())
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


def _share_legend(figure: Figure | SubFigure, axes: np.ndarray, title: str | None, keep: Axes | None = None):
    """One legend of the agents below all panels."""
    handles, labels = axes.flat[0].get_legend_handles_labels()
    for ax in axes.flat:
        # A fixed height, or what stands beside the title would push it up.
        ax.set_title(ax.get_title(), fontsize="medium", fontweight="bold", loc="left", y=1.01)
        ax.set_title("")
        if ax is not keep and ax.get_legend() is not None:
            ax.get_legend().remove()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if title:
        figure.suptitle(title)


def _label_aligned(ax: Axes, sizes: np.ndarray, num_groups: int) -> None:
    for size in np.unique(sizes):
        ax.axhline(size - 0.5, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    split = sizes.mean()
    ax.set_yticks([split / 2 - 0.5, (split + num_groups) / 2 - 0.5], ["true", "other"])
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel("kernels, each seed's true ones first")


def _label_kernels(ax: Axes, truth: np.ndarray | None, names: Sequence[str] | None, num_groups: int) -> None:
    ax.set_ylabel("base kernel")
    if names is not None and num_groups <= 30:
        ax.set_yticks(range(num_groups), names, fontsize="small" if num_groups <= 16 else "x-small")
        ax.set_ylabel("")
    else:
        ax.yaxis.set_major_locator(_whole_numbers())
    if truth is None:
        return
    ax.set_xlim(0.5, ax.get_xlim()[1])
    ax.plot(
        np.full(truth.sum(), 0.015),
        np.flatnonzero(truth),
        linestyle="none",
        marker=">",
        markersize=5.5,
        markerfacecolor="white",
        markeredgecolor="black",
        transform=ax.get_yaxis_transform(),
        label="true kernels",
    )
    ax.set_ylabel("base kernel (▷ true)" if names is None else "▷ true")
