"""Plots of selected kernels: a heat map, exact recovery, and the number of kernels in use."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Bool
from matplotlib.axes import Axes

from jlibo.checks import fail
from jlibo.front_door import front_door
from jlibo.lifelong import metrics
from jlibo.lifelong.play import LifelongResult
from jlibo.plot.lines import draw_task_line
from jlibo.plot.results import Results, read_agents, read_truth, with_seeds
from jlibo.plot.style import GREY, META, colour_key, finish, own_axes, shades, whole_numbers


@front_door
def plot_support(
    result: LifelongResult,
    ax: Axes | None = None,
    *,
    true_support: Bool[Array, "*seeds groups"] | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Plot a heat map of the share of seeds in which each base kernel is selected after each task.

    An empty selection, after which all kernels are in use, is drawn as no kernel.

    **Arguments:**

    - `result`: result of one agent, with at most one axis of seeds.
    - `ax`: Axes to draw on; by default a new figure.
    - `true_support`: booleans `[groups]`, or `[seeds, groups]`. The true kernels are marked. If the support
      differs by seed, each seed's kernels are re-ordered, true ones first, before the average over seeds.
      Exact recovery is then a dark band at the top with nothing below.
    - `names`: names of the base kernels, as in `features.names`; not allowed if kernels are re-ordered.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `result` is not one `LifelongResult`, or `true_support` or `names` do not fit
    its base kernels.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_support(result, true_support=env.support, names=features.names)
    ```
    """
    support = with_seeds("result", result.support, 2)
    num_groups = support.shape[-1]
    truth = None if true_support is None else read_truth(true_support, support.shape[0], num_groups)
    if names is not None and len(names) != num_groups:
        fail("names", f"one for each of the {num_groups} base kernels", f"{len(names)} names")
    sizes = None
    if truth is not None and (truth != truth[0]).any():
        if names is not None:
            fail("names", "left out where the true support differs by seed, as rows are re-ordered", names)
        sizes = truth.sum(-1)
        order = np.argsort(~truth, axis=-1, kind="stable")
        support = np.take_along_axis(support, order[:, None, :], axis=-1)
    ax = own_axes(ax)
    share = support.mean(0).T
    num_tasks = share.shape[1]
    image = ax.imshow(
        share,
        cmap=shades(META, pale="#ffffff"),
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, num_tasks + 0.5, num_groups - 0.5, -0.5),
    )
    if support.shape[0] > 1:
        colour_key(ax, image, "share of seeds  0", "1")
    ax.set_xlabel("after task")
    ax.xaxis.set_major_locator(whole_numbers())
    ax.tick_params(length=2)
    for spine in ax.spines.values():
        spine.set_color(GREY)
    if sizes is not None:
        _label_aligned(ax, sizes, num_groups)
    else:
        _label_kernels(ax, None if truth is None else truth[0], names, num_groups)
    return ax


@front_door
def plot_recovery(
    results: Results, true_support: Bool[Array, "*seeds groups"], ax: Axes | None = None
) -> Axes:
    """Plot the share of seeds whose selection after each task is exactly the true support.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `true_support`: booleans `[groups]`, or `[seeds, groups]` if it differs by seed.
    - `ax`: Axes to draw on; by default a new figure.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is not valid, or `true_support` is not boolean or has a wrong shape.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_recovery({"libo": result}, env.support)
    ```
    """
    agents = read_agents(results)
    hits = {}
    for name, result in agents.items():
        support = with_seeds("results", result.support, 2)
        truth = read_truth(true_support, support.shape[0], support.shape[-1])
        hits[name] = (support == truth[:, None, :]).all(-1).astype(float)
    ax = own_axes(ax)
    for name, values in hits.items():
        draw_task_line(ax, values, name, agents)
    ax.set_ylim(-0.03, 1.03)
    return finish(ax, agents, "after task", "share of seeds with exact recovery")


@front_door
def plot_support_size(
    results: Results, ax: Axes | None = None, *, true_support: Bool[Array, "*seeds groups"] | None = None
) -> Axes:
    """Plot the number of base kernels in use after each task.

    An empty selection counts as all base kernels.

    **Arguments:**

    - `results`: results by agent's name, or one result; see `jlibo.plot`.
    - `ax`: Axes to draw on; by default a new figure.
    - `true_support`: if given, its size (the mean over seeds) is drawn as a dashed line.

    **Returns:** the Axes.

    **Raises:** `ValueError` if `results` is empty, or not results with at most one axis of seeds.

    ```python
    import jax

    import jlibo

    features, key = jlibo.Cosine(num_features=10), jax.random.key(0)
    env = jlibo.SyntheticEnv.draw(features, support_size=2, key=key)
    policy, libo = jlibo.GPUCB(nu=10.0, noise_std=0.1), jlibo.MetaKGL(lam=0.1, omega=0.25)
    result = jlibo.run_lifelong(env, features, policy, libo, num_tasks=3, horizon=16, key=key)
    ax = jlibo.plot.plot_support_size({"libo": result}, true_support=env.support)
    ```
    """
    agents, ax = read_agents(results), own_axes(ax)
    for name, result in agents.items():
        draw_task_line(ax, metrics.support_size(result), name, agents)
    if true_support is not None:
        truth = np.atleast_2d(np.asarray(true_support))
        ax.axhline(truth.sum(-1).mean(), color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(whole_numbers())
    return finish(ax, agents, "after task", "base kernels in use")


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
        ax.yaxis.set_major_locator(whole_numbers())
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
