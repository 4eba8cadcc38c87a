"""The registered experiments at small sizes: settings, results, and the files that are written."""

import dataclasses
import json
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest

from benchmarks import choose_glmnet
from jlibo import (
    GPTS,
    GPUCB,
    AdaptiveMetaKGL,
    Cosine,
    FixedPrior,
    Labelled,
    MetaKGL,
    Prior,
    SyntheticEnv,
    cli,
    plot,
    run_lifelong,
)
from jlibo.cli import reproduce as reproduce_cli
from jlibo.experiments import (
    REGISTRY,
    Experiment,
    SettingError,
    budget,
    find,
    folder,
    load_experiments,
    override,
    parts,
    register,
    registry,
    run_experiment,
    run_offline,
    summarise,
)
from jlibo.experiments.protocols import Lifelong
from jlibo.experiments.run import ExperimentRun
from jlibo.experiments.spec import Spec
from jlibo.lifelong.one_task import draw_task
from jlibo.solver.solution import Status, count_statuses
from jlibo.sweeps.points import as_points
from jlibo.sweeps.program import trace
from jlibo.tables import load_table

GLMNET = ["lifelong-glmnet", "lifelong-glmnet-practitioner"]
SMALL_GLMNET = {"num_features": "16", "num_tasks": "3", "horizon": "12"}
SMALL = {"num_features": "8", "support_size": "2", "num_tasks": "4", "horizon": "16"}
OFFLINE = SMALL | {"offline_rows": "6"}
PAPER = [
    "offline-cosine",
    "offline-cosine2d",
    "offline-legendre",
    "lifelong-cosine",
    "lifelong-cosine-all",
    "lifelong-legendre",
    "lifelong-legendre-all",
]


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


def test_paper_experiments_are_registered_with_its_settings():
    assert set(PAPER) <= set(REGISTRY)
    for name in PAPER:
        one = find(name).settings()
        assert one["num_features"] == 50
        assert one["support_size"] == 5
        assert (one["nu"], one["regulariser"], one["omega"], one["omega_federated"]) == (10, 0.1, 0.25, 0.25)
        assert (one["norm_bound"], one["beta_min"], one["noise_std"]) == (10, 0.5, 0.1)
        assert (one["lam"], one["lam_federated"]) == ((0.25, 0.015) if "offline" in name else (0.5, 0.2))
        assert (one["num_tasks"], one["horizon"]) == ((30, 70) if "offline" in name else (20, 100))
        assert one["data"] == ("all" if name.endswith("-all") else "exploration")
        assert ("offline_rows" in one) == ("offline" in name)


def test_tuned_experiments_differ_in_settings_from_the_printed_ones():
    tuned = [name for name in REGISTRY if name.endswith("-tuned")]
    assert tuned
    for name in tuned:
        printed = find(name.removesuffix("-tuned"))
        assert find(name)["features"] == printed["features"]
        assert find(name).settings() != printed.settings()


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
    later = run_experiment(lifelong.experiment, num_seeds=1, first_seed=2)
    for name, run in lifelong.results.items():
        np.testing.assert_allclose(later.results[name].regret, run.regret[2:], atol=1e-9)
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


def test_run_name_lists_changed_settings():
    experiment = find("lifelong-cosine")
    assert folder.run_name(experiment) == folder.run_title(experiment) == "lifelong-cosine"
    assert folder.run_name(override(experiment, {"lam": "0.50"})) == "lifelong-cosine"
    one = override(experiment, {"lam": "0.30", "num_tasks": "4"})
    other = override(experiment, {"num_tasks": "4", "lam": "3e-1"})
    assert folder.run_name(one) == folder.run_name(other) == "lifelong-cosine,num_tasks=4,lam=0.3"
    assert folder.run_title(one) == "lifelong-cosine, num_tasks=4, lam=0.3"
    many = {name: str(value / 3) for name, value in experiment.data().items()}
    names = {folder.run_name(override(experiment, {**many, "nu": str(nu)})) for nu in range(1, 20)}
    assert len(names) == 19 and all(len(name) <= folder.MAX_NAME for name in names)
    assert all(f"{name}=" in folder.run_title(override(experiment, many)) for name in many)


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


def test_offline_learners_may_have_priors_of_different_shapes():
    features = Cosine(6)
    learners = {
        "wide": FixedPrior(),
        "adaptive": AdaptiveMetaKGL(num_steps=2, num_lams=3),
        "matrix": FixedPrior(Prior(np.zeros(6), np.eye(6) / 6 + 0.01)),
        "own noise": FixedPrior(Prior(np.zeros(6), np.full(6, 1 / 6), noise_std=0.3)),
        "libo": MetaKGL(lam=0.1, omega=0.1),
    }
    env_key, key = jax.random.split(jax.random.key(3))
    env = SyntheticEnv.draw(features, support_size=2, key=env_key)
    run = partial(run_offline, env, features, GPUCB(2.0, 0.1), num_tasks=3, num_rows=5, horizon=6, key=key)
    together = run(learners)
    assert list(together) == list(learners)
    for name in ("adaptive", "matrix", "libo"):
        alone = run({name: learners[name]})[name]
        np.testing.assert_allclose(together[name].regret, alone.regret, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(together[name].support, alone.support)
    assert np.ptp([np.sum(result.regret) for result in together.values()]) > 1


def test_offline_figure_and_summary_count_the_same_kernels(monkeypatch):
    # A lam this large selects no kernel, so all kernels are in use; the federated vote selects some.
    changes = OFFLINE | {"lam": "1e6", "num_tasks": "3", "horizon": "4"}
    result = run_experiment(override(find("offline-cosine"), changes), num_seeds=2)
    figures, drawn = [], plot.figure_offline

    def keep(*args, **kwargs):
        figures.append(drawn(*args, **kwargs))
        return figures[-1]

    monkeypatch.setattr(plot, "figure_offline", keep)
    folder.render(result, {})
    agents = summarise(result)["agents"]
    assert agents["meta-kgl"]["support_size"] == [8, 8, 8] and agents["meta-kgl"]["empty_selections"] == 6
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


def test_run_with_other_seeds_is_replaced_and_reported(lifelong, tmp_path):
    folder.write_result(lifelong, tmp_path, extra_timing={})
    fewer = dataclasses.replace(lifelong, num_seeds=2, first_seed=7)
    assert folder.write_result(fewer, tmp_path, extra_timing={}).replaced == "3 seeds from 0, float64"


def test_result_that_cannot_be_written_is_saved_elsewhere(lifelong, tmp_path, monkeypatch):
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


@pytest.mark.parametrize("name", list(REGISTRY))
def test_registered_experiments_fit_into_half_a_gigabyte(name):
    budget.check_fits(find(name), 20, seeds_at_once=20, budget=2**29)


@pytest.mark.parametrize(
    ("changes", "seeds", "blamed"),
    [
        ({}, 10**8, "100000000 seeds need at least .* fewer --seeds"),
        ({"num_features": "1000000"}, 1, "num_features=1000000.* for one seed"),
        ({"horizon": "2000000000"}, 1, "horizon=2000000000"),
        ({"num_tasks": "2000000000"}, 2**31, "num_tasks=2000000000"),
    ],
)
@pytest.mark.parametrize("name", ["lifelong-cosine", "offline-cosine", "lifelong-cosine-all"])
def test_settings_that_exceed_memory_are_refused_before_allocation(name, changes, seeds, blamed):
    experiment = override(find(name), changes)
    with pytest.raises(SettingError, match=blamed):
        run_experiment(experiment, num_seeds=seeds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lamb": "1"}, "Did you mean 'lam'"),
        ({"lam": "much"}, "'lam' should be a number"),
        ({"num_tasks": "2.5"}, "'num_tasks' should be a whole number"),
        ({"alpha": "1.5"}, "'alpha' should be a number >= 0 and <= 1"),
        ({"lam": "-1"}, "'lam' should be a number >= 0"),
        ({"lam": "nan"}, "'lam' should be a number >= 0"),
        ({"horizon": "0"}, "'horizon' should be a number >= 1"),
        ({"horizon": "-1"}, "'horizon' should be a number >= 1"),
        (
            {"lam": "1e39"},
            "'lam' should be at most 3.40282e.38, the largest float32: 1e.39 would be infinite",
        ),
        ({"norm_bound": "1e300"}, "'norm_bound' should be at most"),
        ({"regulariser": "1e-60"}, "'regulariser' should be 0 or at least 1.17549e-38.* would be 0"),
        (
            {"horizon": "3000000000"},
            "'horizon' should be a whole number up to 2147483647, but got 3000000000",
        ),
        ({"horizon": "9" * 4000}, "up to 2147483647, but got one of 13288 bits"),
        ({"horizon": "9" * 5000}, "'horizon' should be a whole number, but got '9+[.]{3}9+'"),
        ({"lam": "9" * 5000}, "'lam' should be a number >= 0, but got inf"),
        ({"data": "\x1b[2J\n"}, r"but got '\\x1b\[2J\\n'"),
        ({"features": "sine"}, "'features' should be one of"),
        ({"support_size": "99"}, "'support_size' should be at most"),
        ({"beta_min": "9"}, "'beta_min' should be below"),
        ({"environment": "svm"}, "There is no setting 'environment'"),
        ({"rewards": "cooked"}, "'rewards' should be one of raw, standardised"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        override(find("lifelong-cosine"), changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"half": "third"}, "'half' should be one of all, first, second"),
        ({"metric": "brier"}, "'metric' should be one of auc, accuracy, logloss"),
        ({"features": "legendre"}, "'features' of glmnet should be one of cosine2d"),
    ],
)
def test_invalid_settings_of_a_table_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        override(find("lifelong-glmnet"), changes)


@pytest.mark.parametrize("name", ["environment", "rewards", "kind", "name", "half"])
def test_only_settings_of_the_parts_can_be_changed(name):
    with pytest.raises(SettingError, match=f"There is no setting '{name}'"):
        override(find("offline-cosine2d"), {name: "raw"})


def test_numbers_are_converted_to_the_declared_type():
    small = {name: int(value) for name, value in SMALL.items()}
    small |= {"num_tasks": 2, "horizon": 4}
    given = {"lam": 1, "nu": np.int64(10), "omega": np.float32(0.25), "explore_scale": 2}
    base = find("lifelong-cosine")
    whole = base.changed({**small, **given, "horizon": np.int32(4)})
    plain = base.changed({**small, **{name: float(x) for name, x in given.items()}})
    assert whole == plain and whole.settings() == plain.settings() and whole != base
    for name, value in base.settings().items():
        assert type(whole[name]) is type(value)
    assert type(plain.changed({"lam": 3})["lam"]) is float
    result = run_experiment(whole, num_seeds=1)
    assert np.isfinite(result.results["libo"].regret).all()


def test_data_settings_share_a_program_and_static_settings_do_not():
    lifelong, tuning = find("lifelong-cosine"), find("lifelong-glmnet")
    hyper = {"nu", "regulariser", "lam", "omega", "lam_federated", "omega_federated", "alpha", "noise_std"}
    assert set(lifelong.data()) == hyper | {"norm_bound", "beta_min"}
    assert set(tuning.data()) == hyper
    static = set(lifelong.settings()) - set(lifelong.data())
    assert {"explore_scale", "tol", "data", "features", "num_tasks"} <= static
    # Experiments share a program if and only if they differ only in data.
    name = lifelong.program_name()
    for setting, value in lifelong.settings().items():
        other = {"exploration": "all", "constant": "sqrt", "cosine": "legendre", "raw": "standardised"}.get(
            value, value if isinstance(value, str) else value / 2 if isinstance(value, float) else value - 1
        )
        changed = lifelong.changed({setting: other})
        assert changed[setting] != value
        assert (changed.program_name() == name) == (setting in lifelong.data()), setting


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lam": None}, "'lam' should be a number, but got nothing"),
        ({"lam": True}, "'lam' should be a number, but got True"),
        ({"lam": 1j}, "'lam' should be a number"),
        ({"lam": np.ones(2)}, "'lam' should be a number"),
        ({"lam": float("nan")}, "'lam' should be a number >= 0"),
        ({"lam": 10**400}, "'lam' should be at most 3.40282e.38"),
        ({"lam": -1}, "'lam' should be a number >= 0"),
        ({"num_tasks": 2.5}, "'num_tasks' should be a whole number, but got 2.5"),
        ({"num_tasks": True}, "'num_tasks' should be a whole number"),
        ({"num_tasks": 10**400}, "'num_tasks' should be a whole number up to 2147483647"),
        ({"features": "cosines"}, "'features' should be one of cosine, .*, but got 'cosines'"),
        ({"features": 3}, "'features' should be a word, but got 3"),
        ({"support_size": 51}, "'support_size' should be at most num_features = 50"),
        ({"explore_scale": -1}, "'explore_scale' should be a number >= 0"),
        ({"noise_std": -1}, "'noise_std' should be a number >= 0"),
    ],
)
def test_settings_are_checked_when_they_are_changed(changes, message):
    with pytest.raises(SettingError, match=message):
        find("lifelong-cosine").changed(changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spec(MetaKGL, lam=-1.0, omega=0.1), "'lam' should be a number >= 0, but got -1"),
        (lambda: Spec(MetaKGL, lamb=1.0), "'lamb' is no argument of MetaKGL. Did you mean 'lam'"),
        (lambda: Spec(MetaKGL, data="some"), "'data' should be one of exploration, all"),
        (lambda: Spec(MetaKGL, exploration=[1]), "'exploration' should be a number, a word or a Spec"),
        (lambda: Spec(MetaKGL, lam=1.0).named(omega="o"), "'omega' is not given to MetaKGL"),
        (lambda: Spec(parts.glmnet, half="third"), "'half' should be one of all, first, second"),
    ],
)
def test_specifications_are_checked_at_construction(make, message):
    with pytest.raises(SettingError, match=message):
        make()


# --- experiments of users ---


def own_experiment(name="mine", **more):
    parts = dict(
        environment=Spec(SyntheticEnv.draw, support_size=2, noise_std=0.2),
        features=Spec(Cosine, num_features=6),
        policy=Spec(GPTS, noise_std=0.1).named(noise_std="assumed_noise"),
        agents={"full": Spec(FixedPrior), "libo": Spec(MetaKGL, lam=0.3, omega=0.1)},
        protocol=Spec(Lifelong, num_tasks=3, horizon=8),
    )
    return Experiment(name, "of my own", **{**parts, **more})


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_own", {})


def test_user_experiment_runs_like_registered_ones(registered, tmp_path):
    mine = register(own_experiment())
    assert find("mine") is mine and "mine" in list(REGISTRY) and len(REGISTRY) == len(list(REGISTRY))
    assert mine.settings() == {
        "num_tasks": 3,
        "horizon": 8,
        "num_features": 6,
        "support_size": 2,
        "noise_std": 0.2,
        "assumed_noise": 0.1,
        "lam": 0.3,
        "omega": 0.1,
    }
    result = run_experiment(mine, num_seeds=2)
    assert result.true_support.sum() == 4
    path = folder.write_result(result, tmp_path, extra_timing={}).path
    assert json.loads((path / "summary.json").read_text())["settings"] == mine.settings()
    # The same run by `run_lifelong`.
    env_key, run_key = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
    env = SyntheticEnv.draw(Cosine(6), support_size=2, noise_std=0.2, key=env_key)
    learner = MetaKGL(lam=0.3, omega=0.1)
    by_hand = run_lifelong(env, Cosine(6), GPTS(0.1), learner, num_tasks=3, horizon=8, key=run_key)
    np.testing.assert_array_equal(result.results["libo"].actions[1], by_hand.actions)
    np.testing.assert_allclose(result.results["libo"].regret[1], by_hand.regret, rtol=1e-9, atol=1e-9)


def test_agents_share_settings_of_the_same_name(registered):
    other = Spec(MetaKGL, lam=0.4, omega=0.1)
    agents = {"a": Spec(MetaKGL, lam=0.3, omega=0.1), "b": other}
    with pytest.raises(SettingError, match=r"'lam' should have one value, but got 0.3 and 0.4: .*Spec.named"):
        own_experiment(agents=agents)
    two = own_experiment(agents=agents | {"b": other.named(lam="lam_b")})
    changed = two.changed({"lam": 1.0, "omega": 0.2})
    assert (changed["lam"], changed["lam_b"], changed["omega"]) == (1.0, 0.4, 0.2)
    assert changed.agents["b"].settings() == {"lam_b": 0.4, "omega": 0.2}


def test_programs_of_user_code_have_no_stored_name():
    def my_learner(env, features, lam):
        return MetaKGL(lam=lam, omega=0.1)

    assert own_experiment().program_name() is not None
    mine = own_experiment(agents={"mine": Spec(my_learner, lam=0.5)})
    assert mine.program_name() is None and "lam" in mine.data()


@pytest.mark.parametrize("name", ["lifelong-cosine", "", "a/b", "a b", ".hidden", "a\n"])
def test_invalid_names_are_refused(registered, name):
    with pytest.raises(SettingError, match="'name' should"):
        register(own_experiment(name))


def test_files_that_register_experiments(registered, tmp_path):
    path = tmp_path / "mine.py"
    with pytest.raises(SettingError, match="should be a Python file"):
        load_experiments(path)
    path.write_text("raise ValueError('oh')")
    with pytest.raises(SettingError, match=r"cannot be run .ValueError: oh"):
        load_experiments(path)
    path.write_text("import jlibo")
    with pytest.raises(SettingError, match="registers no experiment"):
        load_experiments(path)


OWN_FILE = """
from jlibo import GPTS, Cosine, MetaKGL, SyntheticEnv
from jlibo.experiments import Experiment, Lifelong, Spec, oracle, register

def two_cosines(num_features):
    return Cosine(2 * num_features)

register(
    Experiment(
        "mine",
        "of my own",
        environment=Spec(SyntheticEnv.draw, support_size=2),
        features=Spec(two_cosines, num_features=3),
        policy=Spec(GPTS, noise_std=0.1),
        agents={"oracle": Spec(oracle), "libo": Spec(MetaKGL, lam=0.3, omega=0.1)},
        protocol=Spec(Lifelong, num_tasks=3, horizon=8),
    )
)
"""
OWN_CONFIG = """
experiment = "mine"
seeds = 2
[set]
omega = 0.2
[grid]
lam = [0.3, 1e6]
"""


def test_experiment_of_a_user_file_is_listed_run_and_swept(registered, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, config = tmp_path / "mine.py", tmp_path / "grid.toml"
    file.write_text(OWN_FILE)
    config.write_text(OWN_CONFIG)
    mine = ["--experiments", str(file)]
    assert cli.main(["list", *mine]) == 0
    assert "of my own" in capsys.readouterr().out
    assert cli.main(["reproduce", "mine", *mine, "--seeds", "2", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "mine" / "figure.png").exists()
    summary = json.loads((tmp_path / "out" / "mine" / "summary.json").read_text())
    assert list(summary["agents"]) == ["oracle", "libo"] and summary["settings"]["num_features"] == 3
    assert cli.main(["sweep", str(config), *mine, "--out", str(tmp_path / "swept")]) == 0
    swept = Labelled.load(tmp_path / "swept" / "result.npz")
    assert swept.dims("task_regret") == ("lam", "seed", "agent", "task")
    # The oracle does not depend on lam, so its regret equals that of `reproduce`.
    totals = swept["task_regret"].sum(-1).mean(1)
    np.testing.assert_allclose(
        totals[:, 0], summary["agents"]["oracle"]["lifelong_regret"]["mean"], rtol=1e-6
    )
    assert (swept["support_size"][1, :, 1] == 6).all()
    assert cli.main(["reproduce", "mine", "--experiments", str(config)]) == 2
    assert "should be a Python file" in capsys.readouterr().err


@pytest.mark.slow
def test_user_experiment_on_dask_gives_equal_bytes(tmp_path):
    """Workers cannot import the user's file; its functions are sent by value."""
    (tmp_path / "mine.py").write_text(OWN_FILE)
    (tmp_path / "grid.toml").write_text(OWN_CONFIG)
    command = [sys.executable, "-m", "jlibo.cli", "sweep", "grid.toml", "--experiments", "mine.py", "--out"]
    for options in (["local"], ["dask", "--dask", "local", "--workers", "1"]):
        subprocess.run([*command, *options], cwd=tmp_path, check=True, capture_output=True)
    results = [(tmp_path / name / "result.npz").read_bytes() for name in ("local", "dask")]
    assert results[0] == results[1]


def test_unknown_experiment_suggests_the_nearest_name():
    with pytest.raises(SettingError, match="Did you mean 'lifelong-cosine'"):
        find("lifelong-cosin")


def test_changed_data_settings_do_not_retrace(lifelong):
    def program_of(experiment):
        run_fn = ExperimentRun(experiment, ("regret", "support"))
        return trace(run_fn, as_points([experiment.data()]), jax.random.key(0), dims=run_fn.dims)

    experiment = lifelong.experiment
    one, other = (program_of(experiment.changed(changes)) for changes in ({}, {"lam": 0.3, "nu": 2.0}))
    assert one.digest == other.digest
    assert program_of(experiment.changed({"tol": 1e-4})).digest != one.digest


# --- tuning real models: the paper's second environment ---


def test_glmnet_is_registered_with_the_printed_numbers():
    one = find("lifelong-glmnet").settings()
    assert (one["horizon"], one["num_features"], one["num_tasks"]) == (144, 100, 49)
    assert (one["lam"], one["lam_federated"]) == (0.015, 2.6e-6)
    assert (one["omega"], one["omega_federated"], one["alpha"]) == (0.25, 1e-6, 0.25)
    assert (one["nu"], one["regulariser"], one["noise_std"]) == (10, 0.1, 0)
    assert (one["data"], one["rewards"], one["half"]) == ("exploration", "raw", "all")
    assert one["explore_scale"] == 1
    for name in GLMNET:
        assert list(find(name).agents) == ["random", "full", "libo", "flibo"]


def test_base_kernels_of_printed_and_practitioner_experiments():
    printed, ours = (find(name).features.make() for name in GLMNET)
    assert printed.num_groups == ours.num_groups == 100
    assert (printed.free_groups, ours.free_groups) == ((), (ours.names.index("constant"),))
    assert all("x1" in name and "x2" in name for name in printed.names)
    effects = [name for name in ours.names if ("x1" in name) != ("x2" in name)]
    assert len(effects) == 18


def test_halves_are_disjoint_and_keep_duplicates_together():
    names = load_table("glmnet").tasks
    first, second = (parts.half_of(names, half) for half in ("first", "second"))
    assert parts.half_of(names, "all") == list(range(49)) == sorted(first + second)
    assert not set(first) & set(second)
    twins = {names.index("australian"), names.index("crx")}  # the same credit applications
    assert twins <= set(first) or twins <= set(second)
    assert abs(len(first) - len(second)) <= 3
    # The reported experiment has all tasks of its half; its settings were chosen on the other half.
    practitioner = find("lifelong-glmnet-practitioner")
    assert (practitioner["half"], practitioner["num_tasks"]) == ("second", len(second))


@pytest.mark.parametrize("half, most", [("all", 49), ("first", 26), ("second", 23)])
def test_num_tasks_is_limited_by_the_table(half, most):
    experiment = find("lifelong-glmnet")
    with pytest.raises(SettingError, match=f"'num_tasks' should be at most {most}, but got {most + 1}"):
        experiment.changed({"half": half, "num_tasks": most + 1})
    experiment.changed({"half": half, "num_tasks": most})


@pytest.mark.parametrize("metric, sign", [("auc", 1), ("accuracy", 1), ("logloss", -1)])
def test_rewards_are_a_metric_with_larger_values_better(metric, sign):
    experiment = find("lifelong-glmnet").changed({"metric": metric, "half": "first", "num_tasks": 26})
    env = experiment.make_world(key=jax.random.key(0)).env
    table = load_table("glmnet")
    places = parts.half_of(table.tasks, "first")
    np.testing.assert_allclose(env.values, sign * table.metrics[metric][places])
    assert sorted(env.order.tolist()) == list(range(26)) != env.order.tolist()
    assert (np.asarray(env.candidates).min(0) == 0).all() and (np.asarray(env.candidates).max(0) == 1).all()


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


def test_settings_are_chosen_by_the_documented_rule():
    """nu by the full kernel, then lam and omega by LiBO at that nu, by the simple regret after step 50."""

    def row(agent, nu, lam, after_50):
        return dict(agent=agent, nu=nu, lam=lam, omega=lam, regret=0.0, simple=[1.0, after_50, 1 - after_50])

    rows = [row("full", 1.0, 0.1, 0.3), row("full", 2.0, 0.1, 0.2), row("full", 4.0, 0.1, 0.4)]
    for agent, better in (("libo", 0.1), ("flibo", 0.2)):
        rows += [row(agent, 1.0, lam, 0.0) for lam in (0.1, 0.2)]
        rows += [row(agent, 2.0, lam, 0.5 if lam == better else 0.6) for lam in (0.1, 0.2)]
    chosen = choose_glmnet.choose(rows)
    assert {agent: (best["nu"], best["lam"]) for agent, best in chosen.items()} == {
        "full": (2.0, 0.1),
        "libo": (2.0, 0.1),
        "flibo": (2.0, 0.1),
    }


def test_practitioner_settings_are_interior_points_of_the_grid():
    ours = find("lifelong-glmnet-practitioner")
    assert ours["nu"] in choose_glmnet.NUS[1:-1]
    inner = choose_glmnet.LAMS_AND_OMEGAS[1:-1]
    pairs = {(ours["lam"], ours["omega"]), (ours["lam_federated"], ours["omega_federated"])}
    assert pairs <= set(inner)


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
