"""The paper's experiments as data, on small sizes: what is registered, what runs, what is written."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jlibo.experiments import (
    REGISTRY,
    SettingError,
    find,
    folder,
    override,
    run_experiment,
    runner,
    summarise,
)

SMALL = {"num_features": "8", "support_size": "2", "num_tasks": "4", "horizon": "16", "offline_rows": "6"}
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
    return run_experiment(override(find("offline-cosine2d"), SMALL), num_seeds=3)


def test_all_experiments_of_the_paper_are_registered_with_its_numbers():
    assert set(PAPER) <= set(REGISTRY)
    for name in PAPER:
        experiment = find(name)
        assert experiment.num_features == 50
        assert experiment.support_size == 5
        assert (experiment.nu, experiment.regulariser, experiment.omega) == (10, 0.1, 0.25)
        assert (experiment.norm_bound, experiment.beta_min, experiment.noise_std) == (10, 0.5, 0.1)
        lams = (experiment.lam, experiment.lam_federated)
        assert lams == ((0.25, 0.015) if experiment.kind == "offline" else (0.5, 0.2))
        assert (experiment.num_tasks, experiment.horizon) == ((30, 70) if "offline" in name else (20, 100))
        assert experiment.data == ("all" if name.endswith("-all") else "exploration")


def test_a_tuned_experiment_stands_beside_its_printed_one():
    tuned = [name for name in REGISTRY if name.endswith("-tuned")]
    assert tuned
    for name in tuned:
        printed = find(name.removesuffix("-tuned"))
        assert find(name).features == printed.features
        assert find(name).settings() != printed.settings()


def test_lifelong_summary_has_the_promised_shape(lifelong):
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


def test_offline_agents_are_not_mixed_up(offline):
    summary = summarise(offline)
    assert list(summary["agents"]) == ["oracle", "full", "meta-kgl", "f-meta-kgl"]
    for name, agent in summary["agents"].items():
        assert len(agent["regret"]["mean"]) == len(agent["regret"]["se"]) == 4
        # What learns nothing plays the same test task the same way after any number of tasks.
        is_level = np.ptp(offline.results[name].regret, axis=1).max() < 1e-5
        assert is_level == (name in ("oracle", "full"))
    assert summary["agents"]["oracle"]["support_size"] == [2.0] * 4


def test_all_agents_of_a_seed_face_the_same_tasks(lifelong):
    oracle, full = lifelong.results["oracle"], lifelong.results["full"]
    libo, flibo = lifelong.results["libo"], lifelong.results["flibo"]
    # The first task is forced in the same way for both learners, and no one's knowledge differs yet.
    np.testing.assert_array_equal(libo.actions[:, 0], flibo.actions[:, 0])
    assert not (oracle.explored.any() or full.explored.any())


def test_chunks_of_seeds_equal_one_batch(lifelong, monkeypatch):
    monkeypatch.setitem(runner.MAX_SEEDS_AT_ONCE, "lifelong", 2)
    chunked = run_experiment(lifelong.experiment, num_seeds=3)
    later = run_experiment(lifelong.experiment, num_seeds=1, first_seed=2)
    for name, run in lifelong.results.items():
        np.testing.assert_allclose(later.results[name].regret, run.regret[2:], atol=1e-9)
        np.testing.assert_array_equal(chunked.results[name].support, run.support)
        np.testing.assert_allclose(chunked.results[name].regret, run.regret, atol=1e-9)


def test_progress_runs_from_nothing_to_everything(lifelong):
    assert PROGRESS[0] == (0.0, "compiling")
    assert PROGRESS[-1] == (1.0, "running")
    assert [share for share, _ in PROGRESS] == sorted(share for share, _ in PROGRESS)


@pytest.mark.parametrize("result_name", ["lifelong", "offline"])
def test_a_folder_holds_summary_curves_and_figures(result_name, request, tmp_path):
    result = request.getfixturevalue(result_name)
    for _ in range(2):  # the second time it replaces the first
        path = folder.write_result(result, tmp_path, extra_timing={"import_s": 0.5})
    assert sorted(p.name for p in path.iterdir()) == [
        "curves.npz",
        "figure.pdf",
        "figure.png",
        "summary.json",
    ]
    assert [p.name for p in tmp_path.iterdir()] == [result.experiment.name]
    summary = json.loads((path / "summary.json").read_text())
    assert summary["timing"]["import_s"] == 0.5
    assert summary["format_version"] == folder.FORMAT_VERSION
    assert (path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with np.load(path / "curves.npz", allow_pickle=False) as curves:
        for name, run in result.results.items():
            np.testing.assert_array_equal(curves[f"{name}/regret"], run.regret)
            np.testing.assert_array_equal(curves[f"{name}/support"], run.support)


def test_what_fails_half_way_leaves_nothing_behind(lifelong, tmp_path, monkeypatch):
    folder.write_result(lifelong, tmp_path, extra_timing={})
    before = (tmp_path / "lifelong-cosine" / "summary.json").read_bytes()

    def break_down(*_):
        raise OSError("disk full")

    monkeypatch.setattr(folder, "_draw", break_down)
    with pytest.raises(OSError, match="disk full"):
        folder.write_result(lifelong, tmp_path, extra_timing={"import_s": 9.0})
    assert [p.name for p in tmp_path.iterdir()] == ["lifelong-cosine"]
    assert (tmp_path / "lifelong-cosine" / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lamb": "1"}, "Did you mean 'lam'"),
        ({"lam": "much"}, "'lam' should be a number"),
        ({"num_tasks": "2.5"}, "'num_tasks' should be a whole number"),
        ({"alpha": "1.5"}, "'alpha' should be a number >= 0 and <= 1"),
        ({"lam": "-1"}, "'lam' should be a number >= 0"),
        ({"lam": "nan"}, "'lam' should be a number >= 0"),
        ({"horizon": "0"}, "'horizon' should be above 0"),
        ({"features": "sine"}, "'features' should be one of"),
        ({"support_size": "99"}, "'support_size' should be at most"),
        ({"beta_min": "9"}, "'beta_min' should be below"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(SettingError, match=message):
        override(find("lifelong-cosine"), changes)


def test_an_unknown_experiment_offers_the_nearest():
    with pytest.raises(SettingError, match="Did you mean 'lifelong-cosine'"):
        find("lifelong-cosin")


def test_numbers_are_data_and_do_not_recompile(lifelong):
    experiment = lifelong.experiment
    other = dataclasses.replace(experiment, lam=0.3, nu=2.0)
    assert set(experiment.numbers()) == set(other.numbers())
    shapes = [jax.tree.map(np.shape, e.numbers()) for e in (experiment, other)]
    assert shapes[0] == shapes[1]
