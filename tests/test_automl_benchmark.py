"""The AutoML benchmark on toy tables: its measures of regret, and that no configuration is tried twice."""

import importlib.util
import itertools

import numpy as np
import pytest

import jlibo
from benchmarks import automl, automl_peers, automl_report
from benchmarks.automl_table import (
    Problem,
    draw_orders,
    draw_unrelated,
    make_problem,
    random_regret,
    thin,
)


def toy_problem(values: np.ndarray) -> Problem:
    """Configurations on a line; the parameters are not in the order of their names."""
    values = np.asarray(values, float)
    grid = np.linspace(0, 1, values.shape[1])
    params = np.stack([10 * grid, np.full(grid.size, 7.0), 1 - grid], axis=1)
    tasks = tuple(f"task {number}" for number in range(len(values)))
    return make_problem("toy", jlibo.Table(tasks, ("b", "constant", "a"), params, {"score": values}))


@pytest.fixture(scope="module")
def small() -> Problem:
    """The project's table with 4 tasks and every fourth configuration, all corners among them."""
    return thin(make_problem("glmnet", jlibo.load_table("glmnet"), "auc"), num_tasks=4, every=4)


# --- the table and the measures ---


def test_columns_follow_sorted_names_without_constant_parameters():
    problem = toy_problem([[1, 2, 3]])
    assert problem.space.names == ("a", "b")
    np.testing.assert_allclose(problem.points, [[1, 0], [0.5, 0.5], [0, 1]])
    for point, b in zip(problem.points, (0, 5, 10), strict=True):
        assert problem.space.from_unit(point) == {"a": pytest.approx(1 - b / 10), "b": pytest.approx(b)}


def test_regret_is_normalised_by_the_range_of_the_task():
    problem = toy_problem([[0, 5, 10, np.nan], [4, 3, 2, 1], [6, 6, 6, 6]])
    runs = np.array([[0, 1, 2], [3, 1, 2], [0, 1, -1]])
    np.testing.assert_allclose(problem.regret(runs, normalised=False), [[10, 5, 0], [3, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(problem.regret(runs), [[1, 0.5, 0], [1, 1 / 3, 1 / 3], [0, 0, 0]])


def test_regret_is_constant_after_the_run_ends():
    problem = toy_problem([[0, 5, 10, np.nan]])
    np.testing.assert_allclose(problem.regret(np.array([[1, -1, -1]])), [[0.5, 0.5, 0.5]])


def test_random_regret_equals_the_mean_over_all_subsets():
    problem = toy_problem([[3, 1, 4, 1, 5], [2, np.nan, 7, 1, 8]])
    expected = np.zeros((2, 5))
    for task in range(2):
        values = problem.of_task(task)[1]
        for step in range(len(values)):
            subsets = itertools.combinations(values, step + 1)
            expected[task, step] = np.mean([values.max() - max(subset) for subset in subsets])
    np.testing.assert_allclose(random_regret(problem, 5), expected, atol=1e-12)


def test_unrelated_tasks_have_swapped_and_reversed_coordinates(small):
    moved = draw_unrelated(small, 2, seed=0)
    assert moved.shape == (2, 4, *small.points.shape)
    centred = np.sort(np.abs(moved - 0.5), axis=-1)
    np.testing.assert_allclose(centred, np.broadcast_to(np.sort(np.abs(small.points - 0.5)), moved.shape))
    assert len({moved[order, task].tobytes() for order in range(2) for task in range(4)}) > 2


def test_standard_errors_are_over_orders_or_over_repeats():
    problem = toy_problem([[0, 1], [0, 1]])
    study = automl_report.Study(problem, np.array([[0, 1], [1, 0]]))
    study.add_orders("adaptive", np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]]))
    study.add_repeats("botorch", np.array([[[0, 1], [1, 0]], [[0, 1], [1, 0]]]))
    mean, error = study.curve("adaptive", "all tasks")
    np.testing.assert_allclose([mean[0], error[0]], [0.25, 0.25])
    mean, error = study.curve("botorch", "all tasks")
    np.testing.assert_allclose([mean[0], error[0]], [0.5, 0.5])
    mean, error = study.difference("adaptive", "botorch", "all tasks")
    np.testing.assert_allclose([mean[0], error[0]], [-0.25, np.hypot(0.25, 0.5)])
    assert study.trials_needed("adaptive", "all tasks")["0.1"] == 2


# --- the methods ---


def test_snap_returns_the_nearest_untried_configuration(small):
    rng = np.random.default_rng(0)
    tried = np.zeros(len(small.points), bool)
    rows = []
    for _ in small.points:
        point = rng.uniform(size=2)
        row = automl_peers.snap(point, small.points, tried)
        distance = np.linalg.norm(small.points - point, axis=1)
        assert distance[row] == distance[~tried].min()
        tried[row] = True
        rows.append(row)
    assert sorted(rows) == list(range(len(small.points)))


@pytest.mark.slow
def test_jlibo_runs_have_no_repeats_and_are_reported(small, tmp_path, capsys):
    orders = draw_orders(small, 2, seed=0)
    runs, unrelated, seconds = automl.play_modes(small, orders, budget=6, seed=0)
    assert set(runs) == {"gp-ucb", "paper", "gp-ei", "adaptive"}
    assert set(unrelated) == {"gp-ei", "adaptive"}
    study, control = (automl_report.Study(small, orders) for _ in range(2))
    study.add_expected("random", random_regret(small, 6))
    for part, of in ((runs, study), (unrelated, control)):
        for name, run in part.items():
            assert run.shape == (2, 4, 6)
            assert all(len(set(task)) == 6 for order in run.tolist() for task in order), name
            of.add_orders(name, run)
    # Without observations the four corners have the largest variance, which is equal: one of them is drawn.
    starts = small.points[runs["gp-ei"][:, :, 0]]
    assert np.isin(starts, (0, 1)).all()
    assert len({tuple(start) for start in starts.reshape(-1, 2).tolist()}) > 1
    automl_report.show(study, control, seconds, {}, tmp_path)
    assert (tmp_path / "simple_regret.png").stat().st_size > 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*runs, "random", "Unrelated tasks"))
    aims = automl_report.summarise(study, control)["aims"]
    assert len(aims) == 3 and all(isinstance(aim["met"], bool) for aim in aims)


def test_csv_file_is_read(tmp_path):
    path = tmp_path / "table.csv"
    lines = [
        f"{task},{rate},{depth + task},{rate * depth}"
        for task in (0, 1)
        for rate, depth in itertools.product((0.01, 0.1, 1), (1, 2))
    ]
    path.write_text("\n".join(["task,rate,depth,loss", *lines]))
    arguments = automl.read_arguments(["--csv", str(path), "--log", "rate", "--minimise"])
    problem = automl.read_problem(arguments)
    assert problem.space.names == ("depth", "ln rate") and not problem.shared
    points, values, _ = problem.of_task(0)
    np.testing.assert_allclose(points[values.argmax()], [0, 0])
    np.testing.assert_allclose(values.max(), -0.01)


needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")


@needs_optuna
def test_optuna_has_no_repeats_and_resumes_from_the_file(small, tmp_path):
    settings = dict(folder=tmp_path, budget=14, repeats=1, seed=0, workers=1)
    runs = automl_peers.run_peers(["optuna-tpe"], thin(small, num_tasks=1), **settings)["optuna-tpe"]
    assert len(set(runs.actions[0, 0].tolist())) == 14 and runs.actions.min() >= 0
    assert not runs.missing() and runs.path.exists()
    again = automl_peers.run_peers(["optuna-tpe"], thin(small, num_tasks=1), **settings)["optuna-tpe"]
    np.testing.assert_array_equal(again.actions, runs.actions)
    assert again.seconds == runs.seconds  # read from the file, not computed again


@needs_optuna
def test_optuna_tries_every_configuration(small):
    """With more trials than configurations, each configuration is tried once, for any suggestions."""
    points, values, _ = thin(small, every=8).of_task(0)
    run, _ = automl_peers.run_peer("optuna-tpe", points, values, 99, 3)
    assert sorted(run) == list(range(len(points)))
