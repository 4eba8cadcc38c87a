"""The experiments that tune elastic nets: settings, tasks and rewards of the table, choice of settings."""

import jax
import numpy as np
import pytest

from benchmarks import choose_glmnet
from jlibo.experiments import SettingError, find, parts
from jlibo.tables import load_table
from tests.experiments.small import GLMNET


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
