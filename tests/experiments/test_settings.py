"""Settings of experiments: the paper's values, invalid values, limits of memory, and compiled programs."""

import numpy as np
import pytest

from jlibo import MetaKGL
from jlibo.experiments import REGISTRY, SettingError, budget, find, folder, override, parts, run_experiment
from jlibo.experiments.spec import Spec
from tests.experiments.small import SMALL

PAPER = [
    "offline-cosine",
    "offline-cosine2d",
    "offline-legendre",
    "lifelong-cosine",
    "lifelong-cosine-all",
    "lifelong-legendre",
    "lifelong-legendre-all",
]


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


def test_unknown_experiment_suggests_the_nearest_name():
    with pytest.raises(SettingError, match="Did you mean 'lifelong-cosine'"):
        find("lifelong-cosin")
