"""The theory experiments at small sizes: what agents see, the numbers of the analyses, and the files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jlibo
from jlibo import theory
from jlibo.experiments import REGISTRY, SettingError, find, folder, run_experiment, summarise
from jlibo.experiments.recovery import exploration_rows
from jlibo.lifelong.one_task import draw_task

# Rows and kernels of an agent are shapes, so every agent is compiled on its own: three of them suffice.
ROWS, NUM_KERNELS = (5, 20, 40), (5, 10, 40)
RECOVERY = {"num_features": 6, "num_tasks": 3, "offline_rows": 40, "noise_std": 0.002}
RECOVERY |= {f"rows_{number}": rows for number, rows in enumerate(ROWS, 1)}
KERNELS = {"num_features": 40, "among": 5, "num_tasks": 4, "rows": 6, "offline_rows": 6, "support_size": 2}
KERNELS |= {f"kernels_{number}": kernels for number, kernels in enumerate(NUM_KERNELS, 1)}
LIFELONG = {"num_features": 6, "num_tasks": 6, "horizon": 9, "support_size": 2}


def with_agents(name, agents):
    """The experiment with some of its agents."""
    experiment = find(name)
    return dataclasses.replace(experiment, agents={agent: experiment.agents[agent] for agent in agents})


@pytest.fixture(scope="module")
def recovery():
    return run_experiment(
        with_agents("theory-recovery", ["n=2", "n=4", "n=8"]).changed(RECOVERY), num_seeds=3
    )


@pytest.fixture(scope="module")
def kernels():
    return run_experiment(
        with_agents("theory-kernels", ["p=50", "p=200", "p=800"]).changed(KERNELS), num_seeds=2
    )


@pytest.fixture(scope="module")
def regret():
    return run_experiment(find("theory-regret").changed(LIFELONG), num_seeds=2)


@pytest.fixture(scope="module")
def exploration():
    few = with_agents("theory-exploration", ["x 0", "x 0.125", "x 2"])
    return run_experiment(few.changed(LIFELONG), num_seeds=2)


def test_agents_see_the_first_rows_of_the_same_tasks(recovery):
    """The selection of the agent with 5 rows equals one group lasso on the rows drawn again."""
    experiment = recovery.experiment
    world = experiment.make_world(key=jax.random.fold_in(jax.random.key(0), 1))
    draw = jax.jit(lambda index: draw_task(world.env, index, 40, key=world.key))
    draws = [draw(index) for index in range(3)]
    design = jnp.stack([world.features(world.env.candidates)[one.exploration[:5]] for one in draws])
    np.testing.assert_allclose(
        design, exploration_rows(world.env, world.features, 3, 40, world.key)[:, :5], atol=1e-6
    )
    targets = jnp.stack([one.task.values[one.exploration[:5]] + one.noise[:5] for one in draws])
    lam = experiment["lam"] / np.sqrt(3)
    solution = jlibo.group_lasso(design, targets, lam, tol=1e-6)
    expected = np.asarray(solution.group_norms > 0.25 * np.sqrt(3))
    np.testing.assert_array_equal(recovery.results["n=2"].support[1, -1], expected)  # its setting is 5 rows


def test_regret_is_that_of_the_best_guess(recovery):
    """Posterior mean of the new task by NumPy, with the kernels that the agent selected."""
    world = recovery.experiment.make_world(key=jax.random.fold_in(jax.random.key(0), 0))
    run = recovery.results["n=4"]  # its setting is 20 rows here
    test = jax.jit(lambda index: draw_task(world.env, index, 40, key=world.key))(3)
    features = np.asarray(world.features(world.env.candidates), np.float64)
    support = run.support[0, -1] if run.support[0, -1].any() else np.ones(6, bool)
    weights = features[:, support] / np.sqrt(support.sum())
    places = np.asarray(test.exploration[:20])
    rewards = np.asarray(test.task.values)[places] + np.asarray(test.noise[:20])
    rows = weights[places]
    mean = weights @ rows.T @ np.linalg.solve(rows @ rows.T + 0.01 * np.eye(20), rewards)
    values = np.asarray(test.task.values)
    np.testing.assert_allclose(run.regret[0, -1, 0], values.max() - values[mean.argmax()], atol=1e-3)


def test_recovery_numbers(recovery):
    numbers = summarise(recovery)["analysis"]
    assert numbers["rows"] == list(ROWS)
    measured, worst = np.asarray(numbers["measured"]), np.asarray(numbers["worst_case"])
    assert measured.shape == worst.shape == (3, 3)
    np.testing.assert_allclose(numbers["kappa_limit"], 0.5, rtol=1e-3)
    expected = theory.recovery_probability(
        40.0, 3.0, 6, beta_min=0.5, omega=0.25, kappa=numbers["kappa_limit"], noise_std=0.002
    )
    np.testing.assert_allclose(worst[-1, -1], expected, rtol=1e-4)
    assert worst[-1, -1] > 0, "the bound says something at this noise"
    # More rows give a larger kappa and larger bounds; bounds are below what is measured.
    lower, upper = np.asarray(numbers["kappa"]).T
    assert (lower <= upper + 1e-6).all() and upper[-1] > upper[0]
    assert numbers["own_design"][-1] >= worst[-1, -1] - 1e-6
    assert measured[-1, -1] >= worst[-1, -1]
    np.testing.assert_allclose(numbers["lam_of_the_theorem"][0], recovery.experiment["lam"], rtol=1e-3)


def test_agents_know_the_first_kernels_only(kernels):
    for count, run in zip(NUM_KERNELS, kernels.results.values(), strict=True):
        assert run.support.shape == (2, 4, 40)
        assert not run.support[..., count:].any()
    assert (kernels.true_support[:, :5].sum(1) == 2).all()
    numbers = summarise(kernels)["analysis"]
    assert numbers["kernels"] == list(NUM_KERNELS)
    right = (kernels.results["p=50"].support == kernels.true_support[:, None]).all(-1)
    np.testing.assert_allclose(numbers["recovery"][0], right.mean(0))
    means = [one["mean"] for one in numbers["tasks_until"]]
    slope = np.polyfit(np.log(NUM_KERNELS), means, 1)[0]
    np.testing.assert_allclose(numbers["per_log_p"], slope, rtol=1e-6)


def test_regret_numbers(regret):
    numbers = summarise(regret)["analysis"]
    totals = {name: run.regret.sum((1, 2)).mean() for name, run in regret.results.items()}
    excess = totals["libo"] - totals["oracle"]
    np.testing.assert_allclose(numbers["excess"]["mean"][-1], excess, rtol=1e-4)
    split = numbers["split"]
    parts = split["excess with wrong kernels"] + split["excess with right kernels"]
    np.testing.assert_allclose(parts, excess, rtol=1e-4)
    libo = regret.results["libo"]
    np.testing.assert_allclose(split["exploration steps"], libo.regret[libo.explored].sum() / 2, rtol=1e-4)
    bound = numbers["bound"]
    assert bound["total"] == pytest.approx(bound["exploration"] + bound["mismatch"] + bound["oracle"])
    assert totals["libo"] <= bound["total"] and not bound["reached"]


def test_exploration_numbers(exploration):
    numbers = summarise(exploration)["analysis"]
    assert numbers["scale"] == [0.0, 0.125, 2.0]
    assert numbers["steps"][0] == 0 and numbers["steps"] == sorted(numbers["steps"])
    first = exploration.results["x 0"].regret.sum((1, 2))
    for place, run in enumerate(exploration.results.values()):
        total = run.regret.sum((1, 2))
        np.testing.assert_allclose(numbers["regret"][place]["mean"], total.mean(), rtol=1e-4)
        np.testing.assert_allclose(
            numbers["gain_over_none"][place]["mean"], (first - total).mean(), atol=1e-3
        )


@pytest.mark.parametrize("name", ["recovery", "kernels", "regret", "exploration"])
def test_files_are_written(name, request, tmp_path):
    result = request.getfixturevalue(name)
    path, _ = folder.write_result(result, tmp_path, extra_timing={"import_s": 0.5})
    assert (path / "figure.png").stat().st_size > 10_000 and (path / "figure.pdf").exists()
    summary = json.loads((path / "summary.json").read_text())
    assert summary["analysis"] and summary["agents"]


def test_every_amount_has_an_agent():
    exploration = find("theory-exploration").settings()
    scales = [value for name, value in exploration.items() if name.startswith("explore_scale_")]
    assert scales == [0.0, 0.125, 0.25, 0.5, 1.0, 2.0]
    rows = [find("theory-recovery")[f"rows_{number}"] for number in range(1, 7)]
    assert rows == [2, 4, 8, 64, 256, 512]
    assert [find("theory-kernels")[f"kernels_{number}"] for number in range(1, 5)] == [50, 200, 800, 3200]


def test_too_few_drawn_rows_are_refused():
    with pytest.raises(SettingError, match="offline_rows"):
        run_experiment(find("theory-recovery").changed({"num_features": 6, "offline_rows": 4}), num_seeds=1)


def test_policies_of_exploration_differ():
    policies = [type(find(f"theory-exploration{rest}").policy.make()) for rest in ("", "-ts", "-logei")]
    assert policies == [jlibo.GPUCB, jlibo.GPTS, jlibo.LogExpectedImprovement]


def test_names_are_taken():
    with pytest.raises(SettingError, match="theory-regret"):
        jlibo.experiments.register(find("theory-regret"))


# --- readings and choices of lam ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lifelong-legendre-orthonormal", "offline-legendre-orthonormal"])
def test_orthonormal_polynomials_inside_the_interval(name):
    experiment = find(name)
    printed = find(name.removesuffix("-orthonormal"))
    assert (experiment["lam"], experiment["lam_federated"]) == (printed["lam"], printed["lam_federated"])
    world = experiment.make_world(key=jax.random.key(0))
    points = np.asarray(world.env.candidates)
    assert points.shape == (200, 1) and np.abs(points).max() < 1
    # Orthonormal under the uniform distribution, which quadrature by Gauss-Legendre shows exactly.
    nodes, weights = np.polynomial.legendre.leggauss(60)
    values = np.asarray(world.features(jnp.asarray(nodes)[:, None]))
    np.testing.assert_allclose(values.T @ (values * weights[:, None]) / 2, np.eye(50), atol=1e-6)


def test_meta_kgl_beats_the_full_kernel_with_orthonormal_polynomials():
    """Offline with the printed lam, two seeds: the kernels are found, so the regret is the oracle's."""
    small = {"num_features": 20, "support_size": 3, "num_tasks": 12, "horizon": 30}
    result = run_experiment(find("offline-legendre-orthonormal").changed(small), num_seeds=2)
    agents = summarise(result)["agents"]
    assert agents["meta-kgl"]["recovery_rate"][-1] == 1
    assert agents["meta-kgl"]["regret"]["mean"][-1] == agents["oracle"]["regret"]["mean"][-1]


LAM = ("", "-all", "-legendre", "-legendre-all", "-legendre-printed", "-legendre-printed-all")


def learners_of(experiment):
    return experiment.make_world(key=jax.random.key(0)).learners


@pytest.mark.parametrize("ending", LAM)
def test_lam_experiments_differ_in_lam_and_omega_only(ending):
    learners = learners_of(find(f"theory-lam{ending}"))
    given = [learners[way] for way in ("printed", "tuned", "theorem", "noise", "bracket", "estimated")]
    assert {float(one.omega) for one in given} == {0.25}
    assert {one.data for one in given} == {"all" if ending.endswith("all") else "exploration"}
    scalings = ["constant", "constant", "sqrt", "noise", "bracket", "estimated"]
    assert [one.lam_scaling for one in given] == scalings
    z = {"": 0.5, "-legendre": 1.0, "-legendre-printed": 1 / 101}[ending.removesuffix("-all")]
    expected = theory.theorem_lam(1, beta_min=0.5, omega=0.25, kappa=theory.population_kappa(z, 5))
    np.testing.assert_allclose(given[2].lam, expected, rtol=1e-6)
    np.testing.assert_allclose(given[3].lam, 0.4, rtol=1e-6)
    np.testing.assert_allclose(given[4].lam, 1 / 8, rtol=1e-6)
    for one in (learners["noise-omega"], learners["estimated-omega"]):
        assert one.omega_scaling == "penalty" and float(one.omega) == 0.75
    share = learners["bracket-omega"]
    assert (share.lam_scaling, share.omega_scaling) == ("bracket", "rewards")


def test_every_lifelong_experiment_has_one_on_lam():
    """Each lifelong experiment has the tasks of one on lam; `-tuned` has those of `lifelong-cosine-all`."""
    compared = {find(name).summary.split()[-1] for name in REGISTRY if name.startswith("theory-lam")}
    lifelong = {name for name in REGISTRY if name.startswith("lifelong-")}
    assert lifelong - compared == {"lifelong-cosine-all-tuned"}


@pytest.mark.parametrize("ending", ["glmnet", "glmnet-printed"])
def test_real_data_have_no_constants(ending):
    experiment = find(f"theory-lam-{ending}")
    assert experiment["half"] == "second", "nothing was chosen on these data sets"
    assert not {"theorem", "noise", "noise-omega", "oracle"} & set(experiment.agents)
    learners = learners_of(experiment)
    assert {one.exploration.scale for name, one in learners.items() if name not in ("random", "full")} == {
        experiment["explore_scale"]
    }


# --- coverage -----------------------------------------------------------------------------------------------

COVERAGE = {"num_features": 5, "num_tasks": 2, "horizon": 6, "support_size": 2}


@pytest.mark.slow
def test_coverage_numbers(tmp_path):
    experiment = find("theory-coverage").changed(COVERAGE)
    few = {name: experiment.agents[name] for name in ("oracle", "full")}
    result = run_experiment(dataclasses.replace(experiment, agents=few), num_seeds=2)
    path, _ = folder.write_result(result, tmp_path, extra_timing={"import_s": 0.5})
    assert (path / "figure.png").stat().st_size > 10_000
    numbers = json.loads((path / "summary.json").read_text())["analysis"]
    assert numbers["tasks"] == [1, 2] and numbers["delta"] == 0.1
    bands = [(band["width"], band["regulariser"]) for band in numbers["bands"]]
    assert bands == [("ellipsoid", 0.1), ("kernel", pytest.approx((1 + 2 / 6) ** 0.5)), ("kernel", 0.1)]
    for band in numbers["bands"]:
        for name in ("oracle", "full"):
            by_task = band["left_by_task"][name]
            np.testing.assert_allclose(band["left"][name]["mean"], np.mean(by_task), atol=1e-6)
            assert 0 < band["median_ratio"][name] < np.inf
        assert band["left"]["full"]["mean"] == 0
    # A width for a larger regulariser holds; that of the theorem at a small one may not.
    assert numbers["bands"][1]["left"]["oracle"]["mean"] <= 0.5


def test_coverage_is_measured_for_every_meta_learner():
    learners = learners_of(find("theory-coverage"))
    every = {one for one in vars(jlibo.meta).values() if isinstance(one, type)}
    every = {one for one in every if issubclass(one, jlibo.AbstractMetaLearner)}
    assert {type(one) for one in learners.values()} == every - {jlibo.AbstractMetaLearner}
