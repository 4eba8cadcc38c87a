"""Experiments of users: registration, checks, and files of experiments on the command line."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from jlibo import GPTS, Cosine, FixedPrior, Labelled, MetaKGL, SyntheticEnv, cli, run_lifelong
from jlibo.experiments import (
    REGISTRY,
    Experiment,
    SettingError,
    find,
    folder,
    load_experiments,
    register,
    registry,
    run_experiment,
)
from jlibo.experiments.protocols import Lifelong
from jlibo.experiments.spec import Spec


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
    monkeypatch.setenv("JLIBO_CACHE", "1")
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
