"""Lines and bars of regret, of recovery and of the kernels in use."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from jlibo import metrics
from jlibo.checks import fail
from jlibo.lifelong import LifelongResult
from jlibo.plot.results import Results, read_agents, read_offline, read_truth, with_seeds
from jlibo.plot.style import (
    GREY,
    agent_colours,
    colour_key,
    display_name,
    finish,
    mix,
    own_axes,
    shades,
    whole_numbers,
)

MAX_POINTS = 1000
"""About as many points of a line as a figure can show."""


def plot_lifelong_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Cumulative regret over all steps of all tasks, a thin vertical line where each task begins."""
    agents, ax = read_agents(results), own_axes(ax)
    most_tasks, most_steps, horizon = 0, 0, 1
    for name, result in agents.items():
        regret = with_seeds("results", metrics.lifelong_regret(result), 1)
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
    finish(ax, agents, "step, over all tasks", "lifelong regret")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,g}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10]))  # long numbers
    return ax


def plot_task_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Regret of each task against the task's number."""
    agents, ax = read_agents(results), own_axes(ax)
    for name, result in agents.items():
        _task_line(ax, metrics.task_regret(result), name, agents)
    ax.set_ylim(bottom=0)
    return finish(ax, agents, "task", "regret of the task")


def plot_task_curves(results: Results, agent: str | None = None, ax: Axes | None = None) -> Axes:
    """Cumulative regret within each task of one agent, pale for the first task and dark for the last.

    Means over seeds. `agent` may be left out where there is one alone.
    """
    agents = read_agents(results)
    agent = _one_agent(agent, agents)
    ax = own_axes(ax)
    regret = with_seeds("results", agents[agent].regret, 2)
    curves = np.cumsum(regret.mean(0), axis=-1)
    num_tasks, horizon = curves.shape
    colours = shades(agent_colours(agents)[agent])
    scale = Normalize(1, max(num_tasks, 2))
    for number, curve in enumerate(curves, start=1):
        ax.plot(np.arange(1, horizon + 1), curve, color=colours(scale(number)), linewidth=1.4)
    if num_tasks > 1:
        colour_key(ax, ScalarMappable(scale, colours), "task  1", str(num_tasks))
    ax.set_xlim(0, horizon)
    ax.set_ylim(bottom=0)
    title = "" if isinstance(results, eqx.Module) else f", {display_name(agent)}"
    return finish(ax, {}, "step within the task", f"regret of the task so far{title}")


def plot_simple_regret(results: Results, ax: Axes | None = None, *, tasks: slice = slice(None)) -> Axes:
    """Regret of the best action so far against the step within a task, a mean over `tasks`; both axes log."""
    agents, ax = read_agents(results), own_axes(ax)
    lowest = np.inf
    for name, result in agents.items():
        regret = with_seeds("results", metrics.simple_regret(result), 2)[:, tasks].mean(1)
        _line(ax, np.arange(1, regret.shape[-1] + 1), regret, name, agents)
        mean = regret.mean(0)
        lowest = min(lowest, mean[mean > 0].min(initial=np.inf))
    finish(ax, agents, "step within a task", "regret of the best so far")
    # After `finish`, whose ticks are those of a linear axis.
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    if np.isfinite(lowest):
        ax.set_yscale("log")
        ax.set_ylim(bottom=lowest / 1.5)
    return ax


def plot_recovery(
    results: Results, true_support: Bool[Array, "*seeds groups"], ax: Axes | None = None
) -> Axes:
    """The share of seeds whose selection after each task is exactly the true one."""
    agents = read_agents(results)
    hits = {}
    for name, result in agents.items():
        support = with_seeds("results", result.support, 2)
        truth = read_truth(true_support, support.shape[0], support.shape[-1])
        hits[name] = (support == truth[:, None, :]).all(-1).astype(float)
    ax = own_axes(ax)
    for name, values in hits.items():
        _task_line(ax, values, name, agents)
    ax.set_ylim(-0.03, 1.03)
    return finish(ax, agents, "after task", "share of seeds with exact recovery")


def plot_support_size(
    results: Results, ax: Axes | None = None, *, true_support: Bool[Array, "*seeds groups"] | None = None
) -> Axes:
    """How many base kernels are in use after each task; the true number dashed, if it is given."""
    agents, ax = read_agents(results), own_axes(ax)
    for name, result in agents.items():
        _task_line(ax, metrics.support_size(result), name, agents)
    if true_support is not None:
        truth = np.atleast_2d(np.asarray(true_support))
        ax.axhline(truth.sum(-1).mean(), color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(whole_numbers())
    return finish(ax, agents, "after task", "base kernels in use")


def plot_exploration_cost(results: Results, ax: Axes | None = None) -> Axes:
    """Lifelong regret of each agent as a bar: the policy's own steps below, forced exploration on top.

    The whisker is one standard error of the sum.
    """
    agents, ax = read_agents(results), own_axes(ax)
    colours = agent_colours(agents)
    tops = []
    for place, (name, result) in enumerate(agents.items()):
        forced, chosen = _exploration_cost(result)
        total, error = metrics.mean_and_standard_error(forced + chosen)
        colour = colours[name]
        style: dict[str, Any] = dict(width=0.62, edgecolor=colour, linewidth=1.0)
        ax.bar(place, chosen.mean(), color=colour, label="_chosen", **style)
        ax.bar(
            place,
            forced.mean(),
            bottom=chosen.mean(),
            color=mix(colour, "#ffffff", 0.7),
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
    finish(ax, {}, "", "lifelong regret")
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
    agents = read_offline("regret_by_agent", regret_by_agent)
    ax = own_axes(ax)
    draw_offline_lines(ax, agents)
    ax.set_ylim(bottom=0)
    return finish(ax, agents, "offline tasks", "single-task regret")


def draw_offline_lines(ax: Axes, agents: Mapping[str, np.ndarray]) -> None:
    length = max(values.shape[1] for values in agents.values())
    for name, values in agents.items():
        if values.shape[1] < length:
            values = np.broadcast_to(values, (values.shape[0], length))
            _line(ax, np.arange(1, length + 1), values, name, agents)
        else:
            _task_line(ax, values, name, agents)


def _task_line(ax: Axes, values: Any, name: str, agents: Mapping[str, Any]) -> None:
    values = with_seeds("results", values, 1)
    x = np.arange(1, values.shape[1] + 1)
    _line(ax, x, values, name, agents, marker="o", markersize=2.6 if len(x) > 12 else 4)


def _line(ax: Axes, x: np.ndarray, values: np.ndarray, name: str, agents: Mapping[str, Any], **style: Any):
    """The mean over seeds, and a band of one standard error where there is more than one."""
    colour = agent_colours(agents)[name]
    mean, error = metrics.mean_and_standard_error(values)
    ax.plot(x, mean, color=colour, label=display_name(name), linewidth=1.8, **style)
    if values.shape[0] > 1:
        ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.22, linewidth=0)


def _shown_steps(num_tasks: int, horizon: int) -> np.ndarray:
    """Indices of the steps to draw: evenly spaced, and the last of every task."""
    total = num_tasks * horizon
    stride = -(-total // MAX_POINTS)
    last = horizon * np.arange(1, num_tasks + 1) - 1
    return np.union1d(np.arange(0, total, stride), last)


def _one_agent(agent: str | None, agents: Mapping[str, Any]) -> str:
    if agent is None and len(agents) == 1:
        return next(iter(agents))
    if agent not in agents:
        fail("agent", f"one of {', '.join(map(repr, agents))}", repr(agent))
    return agent  # pyright: ignore[reportReturnType]


def _exploration_cost(result: LifelongResult) -> tuple[np.ndarray, np.ndarray]:
    """Of each seed, over all tasks: the regret of forced steps, and of the policy's own."""
    forced, chosen = metrics.exploration_regret(result)
    return with_seeds("results", forced, 1).sum(-1), with_seeds("results", chosen, 1).sum(-1)
