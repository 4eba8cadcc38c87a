"""Figures: drawn data equal the results, and no global state of matplotlib changes."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color, to_rgb
from matplotlib.figure import Figure

import jlibo
from jlibo import plot
from jlibo.lifelong import metrics

NUM_TASKS, HORIZON, NUM_SEEDS, NUM_GROUPS = 3, 12, 3, 8
COLOURS = {"oracle": "#4f7992", "full": "#d33f49", "libo": "#419d78", "flibo": "#f9a620"}
LABELS = {"oracle": "Oracle", "full": "Full kernel", "libo": "LiBO", "flibo": "F-LiBO"}
TUNING = {"random": "oracle", "full": "full", "libo": "libo", "flibo": "flibo"}
"""Names of the agents without a known truth, and the agents whose results stand in for theirs."""


@pytest.fixture(scope="module")
def run():
    """Three seeds of all agents, each seed with its own true support."""
    features = jlibo.Cosine(NUM_GROUPS)

    def one_seed(key):
        env_key, run_key = jax.random.split(key)
        env = jlibo.SyntheticEnv.draw(
            features, support_size=2, candidates=jlibo.box_grid(features, 20), key=env_key
        )
        learners = {
            "oracle": jlibo.FixedPrior(jlibo.support_prior(env.support, features.groups)),
            "full": jlibo.FixedPrior(),
            "libo": jlibo.MetaKGL(lam=0.5, omega=0.25),
            "flibo": jlibo.FederatedMetaKGL(lam=0.2, omega=0.25, alpha=0.5),
        }
        policy = jlibo.GPUCB(nu=10.0, noise_std=0.1)
        results = jlibo.run_agents(
            env, features, policy, learners, num_tasks=NUM_TASKS, horizon=HORIZON, key=run_key
        )
        return results, env.support

    results, truth = jax.jit(jax.vmap(one_seed))(jax.random.split(jax.random.key(1), NUM_SEEDS))
    truth = np.asarray(truth)
    assert (truth != truth[0]).any()
    return results, truth


@pytest.fixture(scope="module")
def results(run):
    return run[0]


@pytest.fixture(scope="module")
def truth(run):
    return run[1]


@pytest.fixture
def ax():
    figure = Figure()
    return figure.add_subplot()


@pytest.fixture(autouse=True)
def _nothing_else_changes():
    """Check that functions with a given Axes leave no figure open, and that no setting changes."""
    plt.close("all")  # figures that tests of other modules left open
    before = dict(mpl.rcParams)
    yield
    plt.close("all")
    assert dict(mpl.rcParams) == before


def every_plot(results, truth):
    offline = {name: metrics.task_regret(result) for name, result in results.items()}
    return {
        "lifelong_regret": lambda ax=None: plot.plot_lifelong_regret(results, ax),
        "task_regret": lambda ax=None: plot.plot_task_regret(results, ax),
        "simple_regret": lambda ax=None: plot.plot_simple_regret(results, ax),
        "task_curves": lambda ax=None: plot.plot_task_curves(results, "libo", ax),
        "support": lambda ax=None: plot.plot_support(results["libo"], ax, true_support=truth),
        "recovery": lambda ax=None: plot.plot_recovery(results, truth, ax),
        "support_size": lambda ax=None: plot.plot_support_size(results, ax),
        "exploration_cost": lambda ax=None: plot.plot_exploration_cost(results, ax),
        "offline_regret": lambda ax=None: plot.plot_offline_regret(offline, ax),
    }


def lines_by_label(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def bands(ax):
    return [one for one in ax.collections if not isinstance(one, LineCollection)]


def band_edges(band, x):
    """The lower and upper edge of a band at `x`."""
    vertices = band.get_paths()[0].vertices
    return tuple(
        np.array([pick(vertices[np.isclose(vertices[:, 0], at), 1]) for at in x]) for pick in (np.min, np.max)
    )


def check_lines(ax, expected):
    """Compare lines and bands of `ax` with values by agent, [seed, point]."""
    lines = lines_by_label(ax)
    assert set(lines) == {LABELS[name] for name in expected}
    edges = [(to_rgb(band.get_facecolor()[0][:3]), band) for band in bands(ax)]
    assert len(edges) == len(expected)
    for name, values in expected.items():
        line = lines[LABELS[name]]
        mean, error = metrics.mean_and_standard_error(jnp.asarray(values))
        np.testing.assert_allclose(line.get_ydata(), mean)
        assert same_color(line.get_color(), COLOURS[name])
        (band,) = [band for colour, band in edges if same_color(colour, COLOURS[name])]
        low, high = band_edges(band, line.get_xdata())
        np.testing.assert_allclose(low, mean - error, atol=1e-9)
        np.testing.assert_allclose(high, mean + error, atol=1e-9)


@pytest.mark.parametrize("name", list(every_plot({}, None)))
def test_given_axes_are_returned_and_no_figure_is_opened(name, results, truth, ax):
    draw = every_plot(results, truth)[name]
    assert draw(ax) is ax
    assert plt.get_fignums() == []
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", list(every_plot({}, None)))
def test_one_figure_is_made_without_axes(name, results, truth):
    axes = every_plot(results, truth)[name]()
    assert [plt.figure(number) for number in plt.get_fignums()] == [axes.figure]


def test_lifelong_regret_is_mean_and_standard_error(results, ax):
    plot.plot_lifelong_regret(results, ax)
    check_lines(ax, {name: metrics.lifelong_regret(result) for name, result in results.items()})
    for line in ax.get_lines():
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, NUM_TASKS * HORIZON + 1))


def test_vertical_lines_mark_starts_of_tasks(results, ax):
    plot.plot_lifelong_regret(results, ax)
    (starts,) = [one for one in ax.collections if isinstance(one, LineCollection)]
    places = [segment[:, 0] for segment in starts.get_segments()]
    np.testing.assert_array_equal(places, [[s * HORIZON] * 2 for s in range(NUM_TASKS)])


def test_legend_has_the_usual_order_of_agents(results, ax):
    plot.plot_lifelong_regret(dict(sorted(results.items())), ax)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["Full kernel", "F-LiBO", "LiBO", "Oracle"]


def test_long_run_is_thinned_but_keeps_the_ends_of_tasks(results, ax):
    rng = np.random.default_rng(0)
    long = jax.tree.map(lambda leaf: leaf, results["libo"])
    regret = rng.uniform(size=(2, 38, 144))
    long = type(long)(**{**vars(long), "regret": regret})
    plot.plot_lifelong_regret(long, ax)
    (line,) = ax.get_lines()
    x = np.asarray(line.get_xdata())
    assert len(x) <= plot.MAX_POINTS + 38
    assert set(144 * np.arange(1, 39)) <= set(x)
    np.testing.assert_allclose(line.get_ydata(), np.cumsum(regret.reshape(2, -1), 1).mean(0)[x - 1])


def test_task_regret_is_mean_and_standard_error(results, ax):
    plot.plot_task_regret(results, ax)
    check_lines(ax, {name: metrics.task_regret(result) for name, result in results.items()})
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), [1, 2, 3])


def test_task_curves_are_mean_cumulative_regret(results, ax):
    plot.plot_task_curves(results, "flibo", ax)
    curves = np.cumsum(np.asarray(results["flibo"].regret), -1).mean(0)
    assert len(ax.get_lines()) == NUM_TASKS
    for line, curve in zip(ax.get_lines(), curves, strict=True):
        np.testing.assert_allclose(line.get_ydata(), curve)
    lightness = [sum(to_rgb(line.get_color())) for line in ax.get_lines()]
    assert lightness == sorted(lightness, reverse=True)


@pytest.mark.parametrize("tasks", [slice(None), slice(1, None), slice(-1, None)])
def test_simple_regret_is_of_the_best_so_far(results, ax, tasks):
    plot.plot_simple_regret(results, ax, tasks=tasks)
    best = {n: np.minimum.accumulate(np.asarray(r.regret), -1)[:, tasks] for n, r in results.items()}
    check_lines(ax, {name: values.mean(1) for name, values in best.items()})
    for line in ax.get_lines():
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, HORIZON + 1))
        assert (np.diff(line.get_ydata()) <= 0).all()
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_simple_regret_has_log_axis_ticks(results, ax):
    plot.plot_simple_regret(results, ax)
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    shown = [(at, label.get_text()) for at, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)]
    assert [label for at, label in shown if low <= at <= high] == ["1", "2", "5", "10"]


def test_limits_of_simple_regret_that_reaches_zero(results, ax):
    """A log axis has no zero: positive values give the lower limit; without any, the axis is linear."""
    libo = results["libo"]
    regret = np.asarray(libo.regret).copy()
    regret[..., 4:] = 0
    plot.plot_simple_regret({"libo": type(libo)(**{**vars(libo), "regret": regret})}, ax)
    ax.figure.canvas.draw()
    mean = np.minimum.accumulate(regret, -1).mean((0, 1))
    np.testing.assert_allclose(ax.get_ylim()[0], mean[3] / 1.5)
    nothing = type(libo)(**{**vars(libo), "regret": np.zeros_like(regret)})
    other = Figure().add_subplot()
    plot.plot_simple_regret({"libo": nothing}, other)
    other.figure.canvas.draw()
    assert other.get_yscale() == "linear"


def test_shared_true_support_keeps_the_order_of_kernels(results, truth, ax):
    names = [f"k{j}" for j in range(NUM_GROUPS)]
    plot.plot_support(results["libo"], ax, true_support=truth[0], names=names)
    share = np.asarray(results["libo"].support).mean(0).T
    np.testing.assert_allclose(ax.get_images()[0].get_array(), share)
    assert ax.get_images()[0].get_clim() == (0, 1)
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    (marks,) = [line for line in ax.get_lines() if line.get_label() == "true kernels"]
    np.testing.assert_array_equal(marks.get_ydata(), np.flatnonzero(truth[0]))


def test_true_kernels_of_each_seed_are_drawn_first(results, truth, ax):
    plot.plot_support(results["libo"], ax, true_support=truth)
    support = np.asarray(results["libo"].support)
    expected = np.mean(
        [
            np.concatenate([support[s][:, truth[s]], support[s][:, ~truth[s]]], axis=1)
            for s in range(NUM_SEEDS)
        ],
        axis=0,
    )
    np.testing.assert_allclose(ax.get_images()[0].get_array(), expected.T)
    assert "true ones first" in ax.get_ylabel()
    (divider,) = ax.get_lines()
    np.testing.assert_allclose(divider.get_ydata(), 1.5)


def test_oracle_support_covers_the_true_kernels(results, truth, ax):
    plot.plot_support(results["oracle"], ax, true_support=truth)
    expected = np.zeros((NUM_GROUPS, NUM_TASKS))
    expected[:2] = 1
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), expected)


def test_recovery_and_support_size(results, truth, ax):
    plot.plot_recovery(results, truth, ax)
    hits = {n: metrics.recovery(r, jnp.asarray(truth)).astype(float) for n, r in results.items()}
    check_lines(ax, hits)
    other = Figure().add_subplot()
    plot.plot_support_size(results, other)
    check_lines(other, {name: metrics.support_size(result) for name, result in results.items()})


def test_exploration_cost_stacks_forced_on_chosen(results, ax):
    plot.plot_exploration_cost(results, ax)
    bars = {"_chosen": [], "_forced": []}
    for container in ax.containers:
        if container.get_label() in bars:
            bars[container.get_label()] += list(container)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["Full kernel", "F-LiBO", "LiBO", "Oracle"]
    order = ["full", "flibo", "libo", "oracle"]
    for name, chosen_bar, forced_bar in zip(order, bars["_chosen"], bars["_forced"], strict=True):
        forced, chosen = metrics.exploration_regret(results[name])
        np.testing.assert_allclose(chosen_bar.get_height(), chosen.sum(-1).mean())
        np.testing.assert_allclose(forced_bar.get_height(), forced.sum(-1).mean())
        np.testing.assert_allclose(forced_bar.get_y(), chosen_bar.get_height())
        assert same_color(chosen_bar.get_facecolor(), COLOURS[name])


def test_offline_regret(results, ax):
    regret = {
        "meta-kgl": np.asarray(metrics.task_regret(results["libo"])),
        "oracle": np.asarray(metrics.task_regret(results["oracle"]))[:, :1],
    }
    plot.plot_offline_regret(regret, ax)
    lines = lines_by_label(ax)
    np.testing.assert_allclose(lines["Meta-KGL"].get_ydata(), regret["meta-kgl"].mean(0))
    np.testing.assert_allclose(lines["Oracle"].get_ydata(), np.full(NUM_TASKS, regret["oracle"].mean()))
    assert same_color(lines["Meta-KGL"].get_color(), COLOURS["libo"])


def test_single_run_has_no_band(results, ax):
    single = jax.tree.map(lambda leaf: leaf[1], results["libo"])
    plot.plot_lifelong_regret({"libo": single}, ax)
    assert bands(ax) == []
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), metrics.lifelong_regret(single))
    bare = Figure().add_subplot()
    plot.plot_lifelong_regret(single, bare)
    np.testing.assert_array_equal(bare.get_lines()[0].get_ydata(), ax.get_lines()[0].get_ydata())
    assert bare.get_legend() is None
    plot.plot_task_curves(single, ax=Figure().add_subplot())
    plot.plot_exploration_cost(single, Figure().add_subplot())
    plot.figure_lifelong(single).canvas.draw()


def test_other_agents_have_distinct_colours(results, ax):
    many = {"oracle": results["oracle"], "full": results["full"], "naive": results["full"]}
    many |= {f"agent {i}": results["libo"] for i in range(9)}
    plot.plot_task_regret(many, ax)
    assert {"agent 0", "agent 8"} <= set(lines_by_label(ax))
    assert len({to_rgb(line.get_color()) for line in ax.get_lines()}) == len(many)


@pytest.mark.parametrize("with_truth", [True, False])
def test_lifelong_figure(results, truth, with_truth):
    figure = plot.figure_lifelong(results, truth if with_truth else None, "A title")
    figure.canvas.draw()
    assert len(figure.axes) == 4 and plt.get_fignums() == []
    assert figure.get_suptitle() == "A title"
    assert [ax.get_title(loc="left") for ax in figure.axes[:3]] == [
        "Lifelong regret",
        "Regret by task",
        "Selected by LiBO",
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Full kernel", "F-LiBO", "LiBO", "Oracle"]


def test_lifelong_figure_without_a_learner_in_a_given_figure(results, truth):
    fixed = {name: results[name] for name in ("oracle", "full")}
    given = Figure()
    assert plot.figure_lifelong(fixed, truth, figure=given) is given
    assert given.axes[2].get_title(loc="left") == "Exact recovery"
    assert plot.figure_lifelong(fixed).axes[2].get_title(loc="left") == "Kernels in use"


def test_tuning_figure(results):
    runs = {name: results[played] for name, played in TUNING.items()}
    names = [f"k{j}" for j in range(NUM_GROUPS)]
    figure = plot.figure_tuning(runs, "A title", names=names)
    figure.canvas.draw()
    assert len(figure.axes) == 4 and plt.get_fignums() == []
    assert figure.get_suptitle() == "A title"
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "Lifelong regret",
        "Regret by task",
        "Selected by LiBO",
        "Best so far, last half of the tasks",
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Random search",
        "Full kernel",
        "F-LiBO",
        "LiBO",
    ]
    support = figure.axes[2]
    assert [label.get_text() for label in support.get_yticklabels()] == names
    np.testing.assert_allclose(
        support.get_images()[0].get_array(), np.asarray(runs["libo"].support).mean(0).T
    )
    lines = lines_by_label(figure.axes[3])
    assert same_color(lines["Random search"].get_color(), "#8a8a8a")
    late = np.minimum.accumulate(np.asarray(runs["flibo"].regret), -1)[:, NUM_TASKS // 2 :]
    np.testing.assert_allclose(lines["F-LiBO"].get_ydata(), late.mean((0, 1)))


def test_tuning_figure_without_a_learner(results):
    figure = plot.figure_tuning(dict.fromkeys(("random", "full"), results["full"]))
    figure.canvas.draw()
    assert figure.axes[2].get_title(loc="left") == "Kernels in use"


def test_offline_figure(results):
    regret = {name: metrics.task_regret(result) for name, result in results.items()}
    sizes = {"libo": metrics.support_size(results["libo"])}
    figure = plot.figure_offline(regret, sizes, "Offline")
    figure.canvas.draw()
    assert len(figure.axes) == 2
    (line,) = figure.axes[1].get_lines()
    np.testing.assert_allclose(line.get_ydata(), np.asarray(sizes["libo"]).mean(0))
    assert len(plot.figure_offline(regret).axes) == 1


def test_errors_name_the_argument(results, truth):
    double = jax.tree.map(lambda leaf: leaf[None], results["libo"])
    cases = {
        r"`results` .* at least one": lambda: plot.plot_task_regret({}),
        r"`results` .* 3 \(int\)": lambda: plot.plot_task_regret(3),
        r"`results\['libo'\]` .* a LifelongResult, .* 3 \(int\)": lambda: plot.plot_task_regret({"libo": 3}),
        r"`results` .* one leading axis of seeds": lambda: plot.plot_task_regret(double),
        r"`agent` .*'libo'.*'lobi'": lambda: plot.plot_task_curves(results, "lobi"),
        r"`agent` .*None": lambda: plot.plot_task_curves(results),
        r"`result` .* \(dict\)": lambda: plot.plot_support(results),
        r"`names` .* 8 .* 1 names": lambda: plot.plot_support(results["libo"], names=["a"]),
        r"`names` .* differs by seed": lambda: plot.plot_support(
            results["libo"], true_support=truth, names=list("abcdefgh")
        ),
        r"`true_support` .*\[8\] or \[3, 8\]": lambda: plot.plot_recovery(results, truth[:, :4]),
        r"`regret_by_agent` .* mapping": lambda: plot.plot_offline_regret([1.0]),
        r"`regret_by_agent` .* equally many": lambda: plot.plot_offline_regret(
            {"a": np.ones((2, 3)), "b": np.ones((2, 4))}
        ),
    }
    for message, call in cases.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert plt.get_fignums() == []
