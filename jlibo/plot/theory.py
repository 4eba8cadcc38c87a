"""Figures of the theory experiments, drawn from the numbers in `summary.json`.

| here                 | experiment                                                                     |
|----------------------|--------------------------------------------------------------------------------|
| `figure_recovery`    | `theory-recovery`                                                              |
| `figure_regret`      | `theory-regret`                                                                |
| `figure_exploration` | `theory-exploration`                                                           |
| `figure_kernels`     | `theory-kernels`                                                               |
| `figure_coverage`    | `theory-coverage`                                                              |
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jlibo.front_door import front_door
from jlibo.plot.style import (
    FEDERATED,
    META,
    NAIVE,
    ORACLE,
    RANDOM,
    agent_colours,
    display_name,
    mix,
    two_panels,
)


@front_door
def figure_recovery(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of measured recovery and the bounds, against rows and against tasks.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `theory-recovery`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    rows, tasks = numbers["rows"], numbers["tasks"]
    measured, worst = np.asarray(numbers["measured"]), np.asarray(numbers["worst_case"])
    lines = {
        "measured": (measured[:, -1], META, "-"),
        "bound, this design": (numbers["own_design"], ORACLE, "--"),
        "bound, worst case": (worst[:, -1], NAIVE, "--"),
        "bound, proved kappa": (numbers["own_design_proved"], RANDOM, ":"),
    }
    for name, (values, colour, style) in lines.items():
        axes[0].plot(rows, values, style, color=colour, label=name, marker="o", markersize=4)
    axes[0].axvline(numbers["least_rows"], color=NAIVE, linewidth=0.8, alpha=0.6)
    axes[0].set_xscale("log")
    _finish(axes[0], f"rows of each of {tasks[-1]} tasks", "P(all kernels right)")
    for place, count in enumerate(rows):
        shade = mix(META, "#ffffff", 0.6 * (1 - (place + 1) / len(rows)))
        axes[1].plot(tasks, measured[place], color=shade, label=f"measured, {count} rows")
        axes[1].plot(
            tasks, worst[place], "--", color=mix(NAIVE, "#ffffff", 0.6 * (1 - (place + 1) / len(rows)))
        )
    _finish(axes[1], "tasks", "P(all kernels right)")
    for ax in axes:
        ax.set_ylim(-0.03, 1.03)
    return figure


@front_door
def figure_regret(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of the cumulative regret with the bounds, and of the excess over the oracle.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `theory-regret`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    tasks, bound = np.asarray(numbers["tasks"]), numbers["bound"]
    colours = agent_colours(numbers["cumulative"])
    for name, curve in numbers["cumulative"].items():
        _band(axes[0], tasks, curve, colours[name], display_name(name))
    share = tasks / tasks[-1]
    axes[0].plot(tasks, bound["oracle"] * share, "--", color=ORACLE, label="bound, oracle")
    axes[0].plot(tasks, bound["trivial"] * share, ":", color=RANDOM, label="no policy exceeds")
    axes[0].axhline(bound["total"], color=META, linestyle="--", linewidth=0.9, label="bound, LiBO, all tasks")
    axes[0].set_yscale("log")
    axes[0].set_ylim(top=30 * bound["trivial"])
    _finish(axes[0], "tasks", "cumulative regret", "upper left")
    excess, exponents = numbers["excess"], numbers["exponents"]
    mean = np.asarray(excess["mean"])
    _band(axes[1], tasks, excess, META, f"LiBO - oracle, exponent {_number(exponents['excess in tasks'])}")
    if (mean > 0).all():
        axes[1].plot(tasks, mean[-1] * share**0.75, "--", color=RANDOM, label="tasks to the 3/4")
        axes[1].set_xscale("log")
        axes[1].set_yscale("log")
    _finish(axes[1], "tasks", "excess over the oracle")
    return figure


@front_door
def figure_exploration(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of lifelong regret and recovery against the amount of forced exploration.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `theory-exploration`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    places, labels = np.arange(len(numbers["scale"])), [f"{scale:g}" for scale in numbers["scale"]]
    mean = [one["mean"] for one in numbers["regret"]]
    error = [one["se"] for one in numbers["regret"]]
    axes[0].errorbar(places, mean, yerr=error, color=META, marker="o", capsize=3, label="all tasks")
    axes[0].set_ylim(bottom=0)
    _finish(axes[0], "forced exploration, times sqrt(n) / s^(1/4)", "lifelong regret")
    last = [one["mean"] for one in numbers["last_tasks"]]
    axes[1].errorbar(
        places,
        last,
        yerr=[one["se"] for one in numbers["last_tasks"]],
        color=ORACLE,
        marker="o",
        capsize=3,
        label="regret of a late task",
    )
    axes[1].set_ylim(bottom=0)
    _finish(axes[1], "forced exploration, times sqrt(n) / s^(1/4)", "regret of a late task", "center left")
    other = axes[1].twinx()
    other.plot(
        places, numbers["recovery"], "--", color=FEDERATED, marker="s", label="kernels right at the end"
    )
    other.set_ylim(-0.03, 1.03)
    other.set_ylabel("share of seeds", color=FEDERATED)
    other.spines["top"].set_visible(False)
    for ax in axes:
        ax.set_xticks(places, labels)
    return figure


@front_door
def figure_kernels(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of the tasks until recovery against the number of base kernels.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `theory-kernels`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    counts = np.asarray(numbers["kernels"], float)
    mean = np.asarray([one["mean"] for one in numbers["tasks_until"]])
    error = np.asarray([one["se"] for one in numbers["tasks_until"]])
    axes[0].errorbar(counts, mean, yerr=error, color=META, marker="o", capsize=3, label="measured")
    fit = numbers["at_p_1"] + numbers["per_log_p"] * np.log(counts)
    axes[0].plot(counts, fit, "--", color=RANDOM, label=f"{_number(numbers['per_log_p'])} log p + constant")
    axes[0].set_xscale("log")
    axes[0].set_ylim(bottom=0)
    _finish(axes[0], "base kernels", "tasks until all are right")
    for place, count in enumerate(numbers["kernels"]):
        shade = mix(META, "#ffffff", 0.75 * (1 - (place + 1) / len(counts)))
        axes[1].plot(numbers["tasks"], numbers["recovery"][place], color=shade, label=f"{count:,}")
    axes[1].set_ylim(-0.03, 1.03)
    _finish(axes[1], "tasks", "P(all kernels right)")
    return figure


@front_door
def figure_coverage(numbers: Mapping[str, Any], title: str | None = None) -> Figure:
    """Return a figure of how often f leaves the bands, by agent and band, and against tasks.

    **Arguments:**

    - `numbers`: `summary["analysis"]` of `theory-coverage`.
    - `title`: title of the figure.
    """
    figure, axes = two_panels(title)
    bands, colours = numbers["bands"], (META, ORACLE, NAIVE)
    names = list(bands[0]["left"])
    for place, (band, colour) in enumerate(zip(bands, colours, strict=True)):
        left = [band["left"][name] for name in names]
        label = f"{band['width']}, lambda_ucb = {band['regulariser']:.2g}"
        axes[0].barh(
            np.arange(len(names)) + 0.27 * (place - 1),
            [one["mean"] for one in left],
            0.25,
            xerr=[one["se"] for one in left],
            color=colour,
            label=label,
        )
    axes[0].set_yticks(np.arange(len(names)), [display_name(name) for name in names])
    axes[0].invert_yaxis()
    axes[0].axvline(numbers["delta"], color=RANDOM, linestyle="--", linewidth=0.9)
    _finish(axes[0], "share of tasks in which f leaves the band", "")
    shades = agent_colours(bands[0]["left"])
    for name in names:
        axes[1].plot(
            numbers["tasks"], bands[1]["left_by_task"][name], color=shades[name], label=display_name(name)
        )
    axes[1].axhline(numbers["delta"], color=RANDOM, linestyle="--", linewidth=0.9)
    _finish(axes[1], "task", f"share of seeds, {bands[1]['width']}, proved lambda_ucb")
    return figure


def _band(ax: Axes, x: np.ndarray, curve: Mapping[str, Any], colour: Any, label: str) -> None:
    mean, error = np.asarray(curve["mean"]), np.asarray(curve["se"])
    ax.plot(x, mean, color=colour, label=label, linewidth=1.8)
    ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.22, linewidth=0)


def _finish(ax: Axes, x_label: str, y_label: str, legend: Any = "best") -> None:
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#ececec", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.legend(fontsize="small", framealpha=0.8, edgecolor="none", loc=legend)


def _number(value: float | None) -> str:
    return "unknown" if value is None or not np.isfinite(value) else f"{value:.2f}"
