"""The AutoML benchmark on toy tables: regimes, measures of regret, and the methods it compares."""

import importlib.util
import itertools
import json
import re

import numpy as np
import pytest

from benchmarks.automl import __main__ as automl
from benchmarks.automl import agents, peers, portfolio, regimes, report, workers
from benchmarks.automl.aims import find_aims
from benchmarks.automl.problem import random_regret, thin
from benchmarks.automl.regimes import Regime, Trials
from benchmarks.automl.store import Store
from benchmarks.automl.study import Study, mean_over, summarise
from tests.automl.toys import mixed_arrays, toy_problem, write_table

# --- regimes and measures ---


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


def test_past_and_new_tasks_are_disjoint_and_more_draws_keep_the_first(mixed):
    regime = regimes.draw_random(mixed, 3, 6, seed=0)
    for past, new in zip(regime.pasts, regime.tasks, strict=True):
        assert sorted([*(trials.task for trials in past), *new]) == [0, 1, 2]
        for trials in past:
            assert len(set(trials.rows.tolist())) == 6 and np.isfinite(trials.values(mixed)).all()
    more = regimes.draw_random(mixed, 5, 6, seed=0)
    np.testing.assert_array_equal(more.tasks[:3], regime.tasks)
    np.testing.assert_array_equal(more.pasts[2][0].rows, regime.pasts[2][0].rows)


def test_a_method_sees_its_own_trials_or_the_given_past(mixed):
    seen = []

    def method(past, task, rng):
        seen.append([(trials.task, trials.rows.tolist()) for trials in past])
        return np.array([task, 0])

    own = Regime("own", np.array([[2, 0, 1]]), 1)
    runs = regimes.play(method, own, 0, budget=3, seed=0)
    assert runs.tolist() == [[2, 0, -1], [0, 0, -1], [1, 0, -1]]
    assert seen == [[], [(2, [2, 0])], [(2, [2, 0]), (0, [0, 0])]]
    seen.clear()
    given = Regime("random", np.array([[0, 1]]), 0, ((Trials(2, np.array([4])),),))
    regimes.play(method, given, 0, budget=3, seed=0)
    assert seen == [[(2, [4])]] * 2


def toy_study() -> Study:
    """Two tasks with the values 0 and 1, two orders; regret is 1 until row 1 is tried."""
    study = Study(toy_problem([[0, 1], [0, 1]]), Regime("own", np.array([[0, 1], [1, 0]]), 0), "toy")
    study.add_groups("gp-ei", np.array([[[0, 1], [0, 1]], [[1, 0], [0, 1]]]))
    study.add_groups("adaptive", np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]]))
    study.add_repeats("botorch", np.array([[[0, 1], [1, 0]], [[0, 1], [1, 0]]]))
    return study


def test_standard_errors_are_over_orders_or_over_repeats():
    study = toy_study()
    mean, error = study.curve("adaptive")
    np.testing.assert_allclose([mean[0], error[0]], [0.25, 0.25])
    mean, error = study.curve("botorch")
    np.testing.assert_allclose([mean[0], error[0]], [0.5, 0.5])
    mean, error = study.difference("adaptive", "botorch")
    np.testing.assert_allclose([mean[0], error[0]], [-0.25, np.hypot(0.25, 0.5)])
    study.add_groups("rgpe", np.array([[[0, 1], [1, 0]]]))  # the first order only
    mean, error = study.difference("rgpe", "adaptive")
    assert mean[0] == 0 and np.isnan(error[0])
    assert summarise(study)["rgpe"].num_groups == 1 and summarise(study)["adaptive"].num_groups is None


def test_report_numbers_by_hand():
    """After one trial the regrets by order and place are gp-ei 1 1 | 0 1, adaptive 1 0 | 0 0, botorch 0.5."""
    rows = summarise(toy_study())
    assert rows["adaptive"].baseline == "gp-ei" and rows["botorch"].baseline is None
    np.testing.assert_allclose(rows["adaptive"].difference, [-0.5])  # -0.5 in both orders
    np.testing.assert_allclose(rows["adaptive"].difference_error, [0.0])
    # By task: gp-ei 1 and 0.5, adaptive 0.5 and 0, botorch 0.5 and 0.5.
    assert (rows["adaptive"].won.tolist(), rows["adaptive"].lost.tolist()) == ([2], [0])
    ranks = {name: row.rank.tolist() for name, row in rows.items()}
    assert ranks == {"gp-ei": [2.75], "adaptive": [1.25], "botorch": [2.0]}


def test_mean_over_tables_has_the_methods_of_all():
    one, two = toy_study(), toy_study()
    two.add_groups("adaptive", np.array([[[0, 1], [0, 1]], [[0, 1], [0, 1]]]))
    two.add_groups("paper", np.array([[[0, 1], [0, 1]], [[0, 1], [0, 1]]]))
    rows = mean_over([summarise(one), summarise(two)])
    assert set(rows) == {"gp-ei", "adaptive", "botorch"}
    np.testing.assert_allclose(rows["adaptive"].regret, [(0.25 + 1) / 2])
    np.testing.assert_allclose(rows["adaptive"].error, [0.25 / 2])
    np.testing.assert_allclose(rows["adaptive"].difference, [(-0.5 + 0.25) / 2])
    assert (rows["adaptive"].won.tolist(), rows["adaptive"].lost.tolist()) == ([2], [1])


def test_stacked_table_has_every_method_of_every_table():
    rows = summarise(toy_study())
    lines = report.stacked_table({"one": rows, "two": rows}, [1, 3]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[0] for row in cells] == ["one", "", "", "two", "", ""]
    assert [row[1] for row in cells] == ["gp-ei", "adaptive", "botorch"] * 2
    assert cells[1][2].startswith("**250.0") and cells[0][2].startswith("750.0")
    assert all(row[3] == "" for row in cells)  # the toy tables end after one trial


def test_aims_allow_two_standard_errors():
    study = toy_study()
    study.add_groups("random", np.array([[[0, 1], [0, 1]], [[1, 0], [0, 1]]]))  # as gp-ei
    (aim,) = find_aims(study)
    assert aim["met"] and aim["aim"] == "gp-ei at most random search"
    study.add_groups("portfolio", np.array([[[1, 0], [1, 0]], [[1, 0], [1, 0]]]))
    past, _ = find_aims(study)
    assert past["met"]  # behind by 0.25 with a standard error of 0.25
    assert past["numbers"]["1"] == dict(other="portfolio", difference=0.25, error=0.25)
    study.add_groups("adaptive", np.array([[[0, 1], [0, 1]], [[0, 1], [0, 1]]]))
    past, _ = find_aims(study)
    assert past["missed_at"] == [1]  # behind by 1 in both orders
    study.add_groups("portfolio", np.array([[[1, 0], [1, 0]]]))
    assert len(find_aims(study)) == 1  # one order has no standard error


# --- the methods ---


def test_portfolio_is_the_greedy_one_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(5):
        scores = rng.uniform(size=(4, 7))
        order = portfolio.greedy(scores, 7)
        assert sorted(order) == list(range(7))
        for length in range(1, 4):
            means = {
                column: scores[:, [*order[: length - 1], column]].max(1).mean()
                for column in set(range(7)) - set(order[: length - 1].tolist())
            }
            assert means[order[length - 1]] == pytest.approx(max(means.values()), abs=1e-5)


def test_portfolio_predicts_past_scores_and_tries_available_rows(mixed):
    past = tuple(Trials(task, np.flatnonzero(mixed.is_available[task])) for task in (0, 1))
    method = portfolio.Portfolio(mixed, 20)
    rows = method(past, 2, np.random.default_rng(0))
    assert sorted(rows) == list(range(20))
    # All past configurations were tried, so the prediction is nearly the table itself.
    complete = portfolio.CompletePortfolio(mixed, 20)(past, 2, np.random.default_rng(0))
    assert rows[0] == complete[0]
    last = method((Trials(2, np.arange(20)),), 0, np.random.default_rng(0))
    assert sorted(last) == mixed.of_task(0)[2].tolist()


def test_smoother_interpolates_its_trials():
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(25, 2))
    values = 3 + 100 * np.sin(4 * points[:, 0]) * points[:, 1]
    smoother = portfolio.Smoother(points, values, 2)
    np.testing.assert_allclose(smoother(points), values, atol=2)
    new = rng.uniform(0.2, 0.8, size=(10, 2))
    np.testing.assert_allclose(smoother(new), 3 + 100 * np.sin(4 * new[:, 0]) * new[:, 1], atol=12)


def test_snap_returns_the_nearest_untried_configuration(small):
    rng = np.random.default_rng(0)
    tried = np.zeros(len(small.points), bool)
    rows = []
    for _ in small.points:
        point = rng.uniform(size=2)
        row = peers.snap(point, small.points, tried)
        distance = np.linalg.norm(small.points - point, axis=1)
        assert distance[row] == distance[~tried].min()
        tried[row] = True
        rows.append(row)
    assert sorted(rows) == list(range(len(small.points)))


def test_past_trials_are_the_drawn_ones_in_order(mixed):
    regime = regimes.draw_random(mixed, 1, 5, seed=0)
    model, _, _ = agents.make_agents("adaptive", mixed, ["adaptive"])
    rows = agents.past_trials(mixed, model, regime.pasts[0], 7)
    trials = regime.pasts[0][0]
    assert rows.scores.shape == (1, 7) and rows.present.sum() == 5
    order = np.argsort(rows.scores[0, :5])
    np.testing.assert_array_equal(trials.values(mixed)[order], np.sort(trials.values(mixed)))
    np.testing.assert_allclose(rows.features[0, 0], model.features(mixed.points[trials.rows[0]]), atol=1e-5)


@pytest.mark.slow
def test_whole_benchmark_reports_every_method(tmp_path, capsys):
    """Two tables with all methods that need no further package, in both regimes and with the control."""
    for name in ("one", "two"):
        write_table(tmp_path / f"{name}.npz", *mixed_arrays(num_tasks=4, shared=name == "one"))
    words = ["--table", str(tmp_path / "one.npz"), "--table", str(tmp_path / "two.npz"), "--without-peers"]
    words += [
        "--orders",
        "2",
        "--slow-orders",
        "1",
        "--draws",
        "2",
        "--budget",
        "5",
        "--out",
        str(tmp_path / "out"),
    ]
    automl.main(words)
    shown = capsys.readouterr().out
    result = json.loads(shown.splitlines()[-1])
    found = {(one["table"], one["regime"]): set(one["methods"]) for one in result["studies"]}
    local = {"random", "gp-ucb", "paper", "gp-ei", "adaptive", "portfolio", "empirical-gp"}
    assert found == {
        ("one", "own"): local | {"portfolio-complete"},
        ("one", "unrelated"): {"gp-ei", "adaptive"},
        ("one", "random"): local | {"portfolio-complete"},
        ("two", "own"): local,
        ("two", "unrelated"): {"gp-ei", "adaptive"},
        ("two", "random"): local,
    }
    assert set(result["mean"]["own"]) == local
    for one in result["studies"]:
        for name, numbers in one["methods"].items():
            regret = list(numbers["regret"].values())
            assert list(numbers["regret"]) == ["1", "3", "5"], name
            assert regret == sorted(regret, reverse=True) and 0 <= regret[-1] <= regret[0] <= 1, name
    text = (tmp_path / "out/report.md").read_text()
    assert text in shown and "Mean over 2 tables" in text and "empirical-gp (1)" in text
    assert all((tmp_path / f"out/{name}.png").stat().st_size > 0 for name in ("one", "two", "mean"))


@pytest.mark.slow
def test_agents_try_no_configuration_twice(small):
    regime = regimes.draw_own(small, 2, seed=0)
    given = regimes.draw_random(small, 2, 6, seed=0)
    settings = dict(chosen=("gp-ei", "adaptive"), budget=6, seed=0)
    own = agents.play_own("adaptive", small, regime, **settings)
    random = agents.play_random("adaptive", small, given, **settings)
    for runs, shape in ((own, (2, 4, 6)), (random, (2, 2, 6))):
        assert set(runs) == {"gp-ei", "adaptive"}
        for name, run in runs.items():
            assert run.shape == shape
            assert all(len(set(task)) == 6 for group in run.tolist() for task in group), name
    # The draws of the policy without a past do not depend on the past.
    other = Regime("random", given.tasks, 0, given.pasts[::-1])
    again = agents.play_random("adaptive", small, other, **settings)
    np.testing.assert_array_equal(again["gp-ei"], random["gp-ei"])


def test_methods_are_chosen_and_missing_packages_are_named(monkeypatch, capsys):
    def choose(*words):
        return automl.choose_methods(automl.read_arguments(list(words)))

    monkeypatch.setattr(workers, "available", lambda name: name != "rgpe")
    assert choose("--methods", "botorch", "random") == ["random", "botorch"]
    assert choose("--peers-only") == ["random", *automl.PEERS]
    assert re.search("rgpe: left out, because it needs botorch", capsys.readouterr().out)
    assert not set(choose("--without-peers")) & set(workers.NEEDS)


needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")


@needs_optuna
def test_optuna_has_no_repeats_and_resumes_from_the_file(small, tmp_path):
    problem = thin(small, num_tasks=1)

    def run(repeats):
        runner = workers.Workers(problem, folder=tmp_path, budget=14, seed=0, num_workers=1)
        return runner.run_peers(["optuna-tpe"], repeats)["optuna-tpe"]

    runs, seconds = run(1)
    assert runs.shape == (1, 1, 14)
    assert len(set(runs[0, 0].tolist())) == 14 and runs.min() >= 0
    again, same = run(1)
    np.testing.assert_array_equal(again, runs)
    assert same == seconds  # read from the file, not computed again


def test_stored_jobs_are_kept_when_fewer_are_asked_for(tmp_path):
    settings = dict(folder=tmp_path, method="optuna-tpe", packages=["numpy"], table="x")
    store = Store(shape=(3, 2), **settings)
    assert store.missing() == [0, 1, 2]
    store.put(0, np.array([4, 5]), 1.0)
    store.put(2, np.array([6, 7]), 2.0)
    store.save()
    fewer = Store(shape=(1, 2), **settings)
    assert fewer.missing() == []
    fewer.save()
    again = Store(shape=(4, 2), **settings)
    assert again.missing() == [1, 3] and again.runs[2].tolist() == [6, 7]
    assert Store(shape=(1, 2), **settings | {"table": "y"}).missing() == [0]


def test_second_run_reads_the_runs_of_local_methods_from_files(tmp_path, monkeypatch):
    write_table(tmp_path / "one.npz", *mixed_arrays(num_tasks=4))
    words = [
        "--table",
        f"{tmp_path}/one.npz",
        "--methods",
        "random",
        "portfolio",
        "--orders",
        "2",
        "--draws",
        "2",
    ]
    words += ["--budget", "4", "--out", f"{tmp_path}/out", "--json", f"{tmp_path}/result.json"]

    def regrets():
        automl.main(words)
        result = json.loads((tmp_path / "result.json").read_text())
        return [one["methods"]["portfolio"]["regret"] for one in result["studies"]]

    first = regrets()
    assert len(first) == 2  # the regimes
    played = []
    play = regimes.play
    monkeypatch.setattr(
        regimes, "play", lambda *args, **settings: played.append(1) or play(*args, **settings)
    )
    assert regrets() == first and not played
    words[words.index("--orders") + 1] = "3"
    assert regrets() != first and len(played) == 1  # the new order alone
    monkeypatch.setattr(automl, "source_digest", lambda modules: "another source")
    regrets()
    assert len(played) == 1 + 3 + 2


@needs_optuna
def test_optuna_tries_every_configuration(mixed):
    """With more trials than configurations, each configuration is tried once, for any suggestions."""
    points, values, _ = mixed.of_task(0)
    run, _ = peers.run_peer("optuna-tpe", mixed.space, points, values, 99, 3)
    assert sorted(run) == list(range(len(points)))


@needs_optuna
def test_optuna_knows_the_kinds_of_the_parameters(mixed):
    from optuna import distributions

    kinds = {name: peers.distribution(parameter) for name, parameter in mixed.space.items()}
    assert kinds["kernel"] == distributions.CategoricalDistribution((0, 1, 2))
    rate, depth = mixed.space["rate"], mixed.space["depth"]
    assert kinds["rate"] == distributions.FloatDistribution(rate.low, rate.high, log=True)
    assert kinds["depth"] == distributions.IntDistribution(depth.low, depth.high)
