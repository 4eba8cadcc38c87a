"""Results of the registered experiments at small sizes, and the files that are written.

The runs are shared by the tests of this file, because their compilation takes most of the time.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jlibo import plot
from jlibo.cli import reproduce as reproduce_cli
from jlibo.experiments import find, folder, override, parts, run_experiment, runner, summarise
from jlibo.experiments.protocols import Lifelong
from jlibo.experiments.run import ExperimentRun
from jlibo.lifelong.one_task import draw_task
from jlibo.solver.solution import Status, count_statuses
from jlibo.sweeps.points import as_points
from jlibo.sweeps.program import trace
from jlibo.tables import load_table
from tests.experiments.small import GLMNET, OFFLINE, SMALL, SMALL_GLMNET

PROGRESS = []


@pytest.fixture(scope="module")
def lifelong():
    experiment = override(find("lifelong-cosine"), SMALL)
    report = lambda share, words: PROGRESS.append((share, words))  # noqa: E731
    return run_experiment(experiment, num_seeds=3, progress_fn=report)


@pytest.fixture(scope="module")
def offline():
    return run_experiment(override(find("offline-cosine2d"), OFFLINE), num_seeds=3)


@pytest.fixture(scope="module")
def printed():
    return run_experiment(override(find(GLMNET[0]), SMALL_GLMNET), num_seeds=2, first_seed=5)


@pytest.fixture(scope="module")
def practitioner():
    return run_experiment(override(find(GLMNET[1]), SMALL_GLMNET), num_seeds=2, first_seed=5)


@pytest.fixture(params=["printed", "practitioner"])
def tuning(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def fast_figures(monkeypatch):
    """Empty figures, for tests of what is written where."""
    monkeypatch.setattr(folder, "_draw", lambda *_: {"figure.png": b"", "figure.pdf": b""})


def test_lifelong_summary_matches_the_results(lifelong):
    summary = summarise(lifelong)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["experiment"] == "lifelong-cosine"
    assert summary["seeds"] == 3
    assert list(summary["agents"]) == ["oracle", "full", "libo", "flibo"]
    for name, agent in summary["agents"].items():
        regret = lifelong.results[name].regret
        assert regret.shape == (3, 4, 16)
        totals = regret.astype(np.float64).sum((1, 2))
        np.testing.assert_allclose(agent["lifelong_regret"]["mean"], totals.mean(), rtol=1e-6)
        np.testing.assert_allclose(agent["lifelong_regret"]["se"], totals.std(ddof=1) / np.sqrt(3), rtol=1e-5)
        np.testing.assert_allclose(agent["task_regret"], regret.sum(-1).mean(0), rtol=1e-5)
        assert len(agent["support_size"]) == len(agent["recovery_rate"]) == 4
    assert summary["agents"]["oracle"]["recovery_rate"] == [1.0] * 4
    assert summary["agents"]["full"]["support_size"] == [8.0] * 4
    assert {"compile_s", "run_s"} <= set(summary["timing"])


def test_offline_regret_of_oracle_and_full_does_not_depend_on_tasks(offline):
    summary = summarise(offline)
    assert list(summary["agents"]) == ["oracle", "full", "meta-kgl", "f-meta-kgl"]
    for name, agent in summary["agents"].items():
        assert len(agent["regret"]["mean"]) == len(agent["regret"]["se"]) == 4
        # Agents that do not learn play the test task the same way after any number of tasks.
        is_level = np.ptp(offline.results[name].regret, axis=1).max() < 1e-5
        assert is_level == (name in ("oracle", "full"))
    assert summary["agents"]["oracle"]["support_size"] == [2.0] * 4


def test_learners_of_a_seed_have_equal_first_tasks(lifelong):
    oracle, full = lifelong.results["oracle"], lifelong.results["full"]
    libo, flibo = lifelong.results["libo"], lifelong.results["flibo"]
    # In the first task both learners have the same forced exploration and the same prior.
    np.testing.assert_array_equal(libo.actions[:, 0], flibo.actions[:, 0])
    assert not (oracle.explored.any() or full.explored.any())


def test_chunks_of_seeds_equal_one_batch(lifelong, monkeypatch):
    monkeypatch.setattr(Lifelong, "seeds_at_once", 2)
    chunked = run_experiment(lifelong.experiment, num_seeds=3)
    for name, run in lifelong.results.items():
        np.testing.assert_array_equal(chunked.results[name].support, run.support)
        np.testing.assert_allclose(chunked.results[name].regret, run.regret, atol=1e-9)


def test_progress_increases_from_zero_to_one(lifelong):
    assert PROGRESS[0] == (0.0, "compiling")
    assert PROGRESS[-1] == (1.0, "running")
    assert [share for share, _ in PROGRESS] == sorted(share for share, _ in PROGRESS)


@pytest.mark.parametrize("result_name", ["lifelong", "offline", "printed"])
def test_folder_contains_summary_curves_and_figures(result_name, request, tmp_path):
    result = request.getfixturevalue(result_name)
    for _ in range(2):  # the second run replaces the first
        path, replaced = folder.write_result(result, tmp_path, extra_timing={"import_s": 0.5})
        assert replaced is None
    assert sorted(p.name for p in path.iterdir()) == [
        "curves.npz",
        "figure.pdf",
        "figure.png",
        "manifest.json",
        "summary.json",
    ]
    assert [p.name for p in tmp_path.iterdir()] == [folder.run_name(result.experiment)]
    summary = json.loads((path / "summary.json").read_text())
    assert summary["timing"]["import_s"] == 0.5
    assert summary["format_version"] == folder.FORMAT_VERSION
    assert (path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with np.load(path / "curves.npz", allow_pickle=False) as curves:
        for name, run in result.results.items():
            np.testing.assert_array_equal(curves[f"{name}/regret"], run.regret)
            np.testing.assert_array_equal(curves[f"{name}/support"], run.support)
        assert ("true_support" in curves) == (result_name != "printed")


def test_figure_title_shows_the_settings(lifelong, offline, printed, monkeypatch):
    titles = []
    for name in ("figure_lifelong", "figure_offline", "figure_tuning"):
        drawn = getattr(plot, name)

        def keep(*args, drawn=drawn, **kwargs):
            figure = drawn(*args, **kwargs)
            titles.append(figure.get_suptitle())
            return figure

        monkeypatch.setattr(plot, name, keep)
    for result in (lifelong, offline, printed):
        folder.render(result, {})
        assert titles[-1] == folder.run_title(result.experiment)
        assert "num_tasks=" in titles[-1]


def test_offline_figure_and_summary_count_the_same_kernels(offline, monkeypatch):
    # Where no kernel is selected, all kernels are in use; the federated vote selects some.
    learned = offline.results["meta-kgl"]
    nothing = dataclasses.replace(
        learned, support=np.zeros_like(learned.support), fell_back=np.ones_like(learned.fell_back)
    )
    result = dataclasses.replace(offline, results=offline.results | {"meta-kgl": nothing})
    figures, drawn = [], plot.figure_offline

    def keep(*args, **kwargs):
        figures.append(drawn(*args, **kwargs))
        return figures[-1]

    monkeypatch.setattr(plot, "figure_offline", keep)
    folder.render(result, {})
    agents = summarise(result)["agents"]
    assert agents["meta-kgl"]["support_size"] == [8] * 4 and agents["meta-kgl"]["empty_selections"] == 12
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[1].get_lines()}
    assert len(lines) == len(agents)
    for name, numbers in agents.items():
        np.testing.assert_allclose(lines[plot.display_name(name)], numbers["support_size"])


def test_statuses_are_counted_by_kind(lifelong, capsys):
    status = np.zeros_like(lifelong.results["libo"].status)
    status[0] = [Status.STEP_LIMIT, Status.STEP_LIMIT, Status.OUT_OF_RANGE, Status.NON_FINITE_INPUT]
    status[1] = [Status.NON_FINITE_VALUES, Status.NON_FINITE_REWARDS, Status.NON_FINITE_REWARDS, 0]
    libo = dataclasses.replace(lifelong.results["libo"], status=status)
    result = dataclasses.replace(lifelong, results=lifelong.results | {"libo": libo})
    agents = summarise(result)["agents"]
    assert agents["full"]["statuses"] == {"converged": 12} and agents["full"]["unconverged_solves"] == 0
    assert agents["libo"]["unconverged_solves"] == 4
    assert agents["libo"]["statuses"] == {
        "converged": 5,
        "step limit": 2,
        "non-finite input": 1,
        "out of range": 1,
        "non-finite values": 1,
        "non-finite rewards": 2,
    }
    reproduce_cli._print_table(result, None, 0.0)
    text = " ".join(capsys.readouterr().out.split())
    for kind, count in count_statuses(status).items():
        note = f"note: libo: {count} {'solves' if kind.is_of_solve else 'tasks'} ended with {kind.words}."
        assert (note in text) == (kind != Status.CONVERGED)
    assert "full:" not in text


def test_run_with_other_seeds_is_replaced_and_reported(lifelong, tmp_path, fast_figures):
    folder.write_result(lifelong, tmp_path, extra_timing={})
    fewer = dataclasses.replace(lifelong, num_seeds=2, first_seed=7)
    assert folder.write_result(fewer, tmp_path, extra_timing={}).replaced == "3 seeds from 0, float64"


def test_result_that_cannot_be_written_is_saved_elsewhere(lifelong, tmp_path, monkeypatch, fast_figures):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(folder.tempfile, "tempdir", str(elsewhere))
    (tmp_path / "out").mkdir()
    path, _ = folder.write_result(lifelong, tmp_path / "out", extra_timing={})
    before = (path / "summary.json").read_bytes()

    def break_down(*_):
        raise OSError("disk full")

    monkeypatch.setattr(folder, "write_run", break_down)
    with pytest.raises(folder.NotWritten, match="disk full") as caught:
        folder.write_result(lifelong, tmp_path / "out", extra_timing={"import_s": 9.0})
    assert (path / "summary.json").read_bytes() == before
    assert caught.value.kept is not None and caught.value.kept.parent == elsewhere
    assert json.loads((caught.value.kept / "summary.json").read_text())["timing"]["import_s"] == 9.0
    assert len(list(caught.value.kept.iterdir())) == 4


def test_error_in_a_figure_does_not_lose_the_results(lifelong, tmp_path, monkeypatch):
    def break_down(*_):
        raise ValueError("Axis limits cannot be NaN or Inf")

    monkeypatch.setattr(folder, "_draw", break_down)
    with pytest.warns(folder.RunWarning, match="no figure could be drawn .ValueError: Axis limits"):
        path, _ = folder.write_result(lifelong, tmp_path, extra_timing={})
    assert sorted(p.name for p in path.iterdir()) == ["curves.npz", "manifest.json", "summary.json"]


def test_non_finite_regret_is_null_in_the_summary(lifelong):
    broken = {
        name: dataclasses.replace(run, regret=run.regret * np.nan) for name, run in lifelong.results.items()
    }
    files = folder.render(dataclasses.replace(lifelong, results=broken), {})
    summary = json.loads(files["summary.json"], parse_constant=lambda name: pytest.fail(name))
    assert summary["agents"]["libo"]["lifelong_regret"]["mean"] is None


def test_changed_data_settings_do_not_retrace(lifelong):
    def program_of(experiment):
        run_fn = ExperimentRun(experiment, ("regret", "support"))
        return trace(run_fn, as_points([experiment.data()]), jax.random.key(0), dims=run_fn.dims)

    experiment = lifelong.experiment
    one, other = (program_of(experiment.changed(changes)) for changes in ({}, {"lam": 0.3, "nu": 2.0}))
    assert one.digest == other.digest
    assert program_of(experiment.changed({"tol": 1e-4})).digest != one.digest


# --- tuning of elastic nets ---


def test_glmnet_summary_matches_the_results(tuning):
    summary = summarise(tuning)
    assert json.loads(json.dumps(summary)) == summary
    assert tuning.true_support is None
    assert list(summary["agents"]) == ["random", "full", "libo", "flibo"]
    for name, agent in summary["agents"].items():
        regret = tuning.results[name].regret.astype(np.float64)
        assert regret.shape == (2, 3, 12) and (regret >= 0).all()
        assert "recovery_rate" not in agent
        np.testing.assert_allclose(agent["lifelong_regret"]["mean"], regret.sum((1, 2)).mean(), rtol=1e-6)
        best = np.minimum.accumulate(regret, -1)
        for part, tasks in (("all_tasks", slice(None)), ("last_half", slice(1, None))):
            assert list(agent["simple_regret"][part]) == ["1", "3", "5", "10", "12"]
            for step, cell in agent["simple_regret"][part].items():
                seeds = best[:, tasks, int(step) - 1].mean(1)
                np.testing.assert_allclose(cell["mean"], seeds.mean(), rtol=1e-6)
                np.testing.assert_allclose(cell["se"], seeds.std(ddof=1) / np.sqrt(2), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("share, note", [(0, []), (0.5, ["nothing selected, all in use: 50% of selections"])])
def test_figure_notes_the_share_of_empty_selections(printed, share, note):
    libo = printed.results["libo"]
    empty = np.arange(libo.fell_back.size).reshape(libo.fell_back.shape) < share * libo.fell_back.size
    figure = plot.figure_tuning({"libo": dataclasses.replace(libo, fell_back=empty)})
    panel = figure.axes[2]
    assert panel.get_title(loc="left") == "Selected by LiBO"
    assert [text.get_text() for text in panel.texts if "nothing" in text.get_text()] == note


def test_each_seed_has_a_different_order_of_table_tasks(tuning):
    """Random search plays the uniform draws that the other agents use for forced exploration."""
    experiment = tuning.experiment
    table = load_table("glmnet")
    values = table.metric("auc")[parts.half_of(table.tasks, experiment["half"])]
    orders = []
    for number, seed in enumerate((5, 6)):
        world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), seed))
        env, run_key = world.env, world.key
        orders.append(np.asarray(env.order)[:3].tolist())
        for task, row in enumerate(orders[-1]):
            draws = draw_task(env, task, 12, key=run_key)
            random = tuning.results["random"]
            np.testing.assert_array_equal(random.actions[number, task], draws.exploration)
            for name, run in tuning.results.items():
                actions = run.actions[number, task]
                np.testing.assert_allclose(run.rewards[number, task], values[row, actions], atol=1e-6)
                expected = values[row].max() - values[row, actions]
                np.testing.assert_allclose(run.regret[number, task], expected, atol=1e-6)
                forced = run.num_explore[number, task]
                assert forced == (12 if name == "random" else 0 if name == "full" else forced)
                np.testing.assert_array_equal(actions[:forced], np.asarray(draws.exploration)[:forced])
    assert orders[0] != orders[1]


def test_free_groups_are_in_use_after_every_task(tuning):
    free = tuning.experiment.features.make().free_groups
    for name in ("libo", "flibo"):
        assert np.asarray(tuning.results[name].support)[..., list(free)].all()


def test_small_runs_are_compiled_in_less_time_and_large_ones_to_run_fast():
    experiment = find("lifelong-cosine")
    levels = [runner._level(experiment, num_seeds) for num_seeds in (1, 20, 100, 10_000)]
    assert levels == [1, 1, 2, 2]
