"""Line and bar plots of regret."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.lifelong import metrics
from jlibo.lifelong.play import LifelongResult
from jlibo.plot.lines import draw_line, draw_offline_lines, draw_task_line
from jlibo.plot.results import Results, read_agents, read_offline, with_seeds
from jlibo.plot.style import (
    GREY,
    agent_colours,
    colour_key,
    display_name,
    finish,
    mix,
    own_axes,
    shades,
)

MAX_POINTS = 1000
"""Approximate maximum number of points of a line; a figure cannot resolve more."""


@front_door
def plot_lifelong_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Plot the cumulative regret over all steps of all tasks, with a vertical line where each task begins.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_lifelong_regret({"libo": result})
    ```
    """
    agents, ax = read_agents(results), own_axes(ax)
    most_tasks, most_steps, horizon = 0, 0, 1
    for name, result in agents.items():
        regret = with_seeds("results", metrics.lifelong_regret(result), 1)
        num_tasks, horizon = result.regret.shape[-2:]
        shown = _shown_steps(num_tasks, horizon)
        draw_line(ax, shown + 1, regret[:, shown], name, agents)
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


@front_door
def plot_task_regret(results: Results, ax: Axes | None = None) -> Axes:
    """Plot the regret of each task against the task's number.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_task_regret({"libo": result})
    ```
    """
    agents, ax = read_agents(results), own_axes(ax)
    for name, result in agents.items():
        draw_task_line(ax, metrics.task_regret(result), name, agents)
    ax.set_ylim(bottom=0)
    return finish(ax, agents, "task", "regret of the task")


@front_door
def plot_task_curves(results: Results, agent: str | None = None, ax: Axes | None = None) -> Axes:
    """Plot the cumulative regret within each task of one agent, pale for the first task, dark for the last.

    Lines are means over seeds.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `agent`: name of the agent; optional if there is only one.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if there is no such agent, or `results` is not valid.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_task_curves({"libo": result}, "libo")
    ```
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


@front_door
def plot_simple_regret(results: Results, ax: Axes | None = None, *, tasks: slice = slice(None)) -> Axes:
    """Plot the regret of the best action so far against the step within a task, on logarithmic axes.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `ax`: Axes to draw on; by default a new figure.
    - `tasks`: tasks to average over, as a slice; by default all.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_simple_regret({"libo": result}, tasks=slice(1, None))
    ```
    """
    agents, ax = read_agents(results), own_axes(ax)
    lowest = np.inf
    for name, result in agents.items():
        regret = with_seeds("results", metrics.simple_regret(result), 2)[:, tasks].mean(1)
        draw_line(ax, np.arange(1, regret.shape[-1] + 1), regret, name, agents)
        mean = regret.mean(0)
        lowest = min(lowest, mean[mean > 0].min(initial=np.inf))
    finish(ax, agents, "step within a task", "regret of the best so far")
    # After `finish`, which sets the ticks of a linear axis.
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    if np.isfinite(lowest):
        ax.set_yscale("log")
        ax.set_ylim(bottom=lowest / 1.5)
    return ax


@front_door
def plot_exploration_cost(results: Results, ax: Axes | None = None) -> Axes:
    """Plot the lifelong regret of each agent as a bar: steps of the policy below, forced exploration on top.

    The whisker is one standard error of the sum.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_exploration_cost({"libo": result})
    ```
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


@front_door
def plot_offline_regret(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]], ax: Axes | None = None
) -> Axes:
    """Plot single-task regret against the number of offline tasks from which the kernel was learned.

    **Arguments:**

    - `regret_by_agent`: arrays `[seeds, num_offline_tasks]` or `[num_offline_tasks]` by agent's name. An
      agent that does not learn may have a single column, which is drawn as a horizontal line.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if there is no agent, or the numbers of offline tasks differ.

    ```python
    import numpy as np

    import jlibo

    regret = {"oracle": np.asarray([2.0]), "meta-kgl": np.asarray([9.0, 4.0, 2.5])}
    ax = jlibo.plot.plot_offline_regret(regret)
    ```
    """
    agents = read_offline("regret_by_agent", regret_by_agent)
    ax = own_axes(ax)
    draw_offline_lines(ax, agents)
    ax.set_ylim(bottom=0)
    return finish(ax, agents, "offline tasks", "single-task regret")


def _shown_steps(num_tasks: int, horizon: int) -> np.ndarray:
    """Return the indices of the steps to draw: evenly spaced ones and the last of every task."""
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
    """Return each seed's regret over all tasks: of forced exploration steps, and of the policy's steps."""
    forced, chosen = metrics.exploration_regret(result)
    return with_seeds("results", forced, 1).sum(-1), with_seeds("results", chosen, 1).sum(-1)
