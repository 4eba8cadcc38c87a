"""Figures of several panels that summarise an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from jlibo.front_door import front_door
from jlibo.lifelong.play import LifelongResult
from jlibo.plot.curves import (
    plot_exploration_cost,
    plot_lifelong_regret,
    plot_offline_regret,
    plot_simple_regret,
    plot_task_regret,
)
from jlibo.plot.lines import draw_offline_lines
from jlibo.plot.results import Results, read_agents, read_offline
from jlibo.plot.style import NotebookFigure, display_name, finish, plain_name
from jlibo.plot.support import plot_recovery, plot_support, plot_support_size

GivenFigure = TypeVar("GivenFigure", Figure, SubFigure)


@overload
def figure_lifelong(
    results: Results,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    title: str | None = None,
    *,
    figure: None = None,
) -> Figure: ...


@overload
def figure_lifelong(
    results: Results,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    title: str | None = None,
    *,
    figure: GivenFigure,
) -> GivenFigure: ...


@front_door
def figure_lifelong(
    results: Results,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    title: str | None = None,
    *,
    figure: Figure | SubFigure | None = None,
) -> Figure | SubFigure:
    """Return a figure of lifelong regret, regret by task, selected kernels and cost of exploration.

    The third panel is the heat map of selections of the first agent that learns. If no agent learns, it
    shows exact recovery, or without `true_support` the number of kernels in use.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `true_support`: booleans `[groups]`, or `[seeds, groups]` if it differs by seed; optional.
    - `title`: title of the figure.
    - `figure`: figure to draw on. By default a new one that does not depend on pyplot.

    **Returns:** the figure.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    figure = jlibo.plot.figure_lifelong({"libo": result}, env.support, "LiBO")
    ```
    """
    agents = read_agents(results)
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


@front_door
def figure_tuning(
    results: Results, title: str | None = None, *, names: Sequence[str] | None = None
) -> Figure:
    """Return a figure for tasks whose true support is unknown, such as tuning problems.

    Its four panels are lifelong regret, regret by task, the selections of the first agent that learns (the
    number of kernels in use if none does), and the regret of the best action so far, as a mean over the last
    half of the tasks.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `title`: title of the figure.
    - `names`: names of the base kernels, as in `features.names`.

    **Returns:** the figure.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    figure = jlibo.plot.figure_tuning({"libo": result}, names=features.names)
    ```
    """
    agents = read_agents(results)
    figure = NotebookFigure(figsize=(9.6, 6.8), layout="constrained")
    axes = figure.subplots(2, 2)
    plot_lifelong_regret(results, axes[0, 0]).set_title("Lifelong regret")
    plot_task_regret(results, axes[0, 1]).set_title("Regret by task")
    learner = _learner(agents)
    if learner is None:
        plot_support_size(results, axes[1, 0]).set_title("Kernels in use")
    else:
        plot_support(agents[learner], axes[1, 0], names=names)
        _note_empty(axes[1, 0], agents[learner])
        axes[1, 0].set_title(f"Selected by {display_name(learner)}")
    num_tasks = next(iter(agents.values())).regret.shape[-2]
    plot_simple_regret(results, axes[1, 1], tasks=slice(num_tasks // 2, None))
    axes[1, 1].set_title("Best so far, last half of the tasks")
    _share_legend(figure, axes, title)
    return figure


@overload
def figure_offline(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]],
    support_size_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]] | None = None,
    title: str | None = None,
    *,
    figure: None = None,
) -> Figure: ...


@overload
def figure_offline(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]],
    support_size_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]] | None = None,
    title: str | None = None,
    *,
    figure: GivenFigure,
) -> GivenFigure: ...


@front_door
def figure_offline(
    regret_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]],
    support_size_by_agent: Mapping[str, Float[Array, "*seeds num_offline_tasks"]] | None = None,
    title: str | None = None,
    *,
    figure: Figure | SubFigure | None = None,
) -> Figure | SubFigure:
    """Return a figure of regret, and optionally kernels in use, against the number of offline tasks.

    **Arguments:**

    - `regret_by_agent`: as for `plot_offline_regret`.
    - `support_size_by_agent`: number of base kernels in use, in the same layout; optional.
    - `title`: title of the figure.
    - `figure`: figure to draw on. By default a new one that does not depend on pyplot.

    **Returns:** the figure.

    **Raises:** `ValueError` if there is no agent, or the numbers of offline tasks differ.

    ```python
    import numpy as np

    import jlibo

    regret = {"oracle": np.asarray([2.0]), "meta-kgl": np.asarray([9.0, 4.0, 2.5])}
    figure = jlibo.plot.figure_offline(regret, title="One new task")
    ```
    """
    sizes = support_size_by_agent
    width = 9.6 if sizes is not None else 5.6
    figure = NotebookFigure(figsize=(width, 3.8), layout="constrained") if figure is None else figure
    axes = figure.subplots(1, 1 if sizes is None else 2, squeeze=False)
    plot_offline_regret(regret_by_agent, axes[0, 0]).set_title("Regret of one new task")
    if sizes is not None:
        agents = read_offline("support_size_by_agent", sizes)
        draw_offline_lines(axes[0, 1], agents)
        axes[0, 1].set_ylim(bottom=0)
        finish(axes[0, 1], agents, "offline tasks", "base kernels in use").set_title("Kernels in use")
    _share_legend(figure, axes, title)
    return figure


def _note_empty(ax: Axes, result: LifelongResult) -> None:
    """Annotate empty selections: they look like no kernel in the heat map, but all kernels are in use."""
    share = float(np.mean(np.asarray(result.fell_back)))
    if share > 0:
        ax.annotate(
            f"nothing selected, all in use: {share:.0%} of selections",
            (0.98, 0.03),
            xycoords="axes fraction",
            ha="right",
            fontsize="small",
            bbox=dict(facecolor="white", edgecolor="none", alpha=0.8, pad=2),
        )


def _learner(agents: Mapping[str, Any]) -> str | None:
    """Return the name of the first agent that learns, or None."""
    for wanted in ("libo", "meta-kgl", "flibo", "f-meta-kgl"):
        for name in agents:
            if plain_name(name) == wanted:
                return name
    return next(
        (name for name in agents if plain_name(name) not in ("oracle", "full", "naive", "random")), None
    )


def _share_legend(figure: Figure | SubFigure, axes: np.ndarray, title: str | None, keep: Axes | None = None):
    """Draw one legend of the agents below all panels."""
    handles, labels = axes.flat[0].get_legend_handles_labels()
    for ax in axes.flat:
        # Fix the height; otherwise a colour key beside the title moves it up.
        ax.set_title(ax.get_title(), fontsize="medium", fontweight="bold", loc="left", y=1.01)
        ax.set_title("")
        if ax is not keep and ax.get_legend() is not None:
            ax.get_legend().remove()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if title:
        figure.suptitle(title)
