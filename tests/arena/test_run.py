"""Runs of the arena: common draws, results, numbers, files."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import jlibo
from jlibo.arena import ENVIRONMENTS, METHODS, Method, SequentialAgent, run_arena, run_method
from jlibo.arena.claims import CLAIMS
from jlibo.arena.folder import render
from jlibo.arena.result import ArenaResult, Cell, Estimate
from jlibo.arena.tables import claims_table, environment_table, falls, method_table
from jlibo.sweeps import Labelled

ARMS = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=4, horizon=8)
CONTEXTS = ENVIRONMENTS["one-parameter"].sized(num_tasks=4, horizon=8)
NEEDS_RANK = Method(
    "needs rank",
    "A test.",
    "",
    ("rank",),
    lambda facts, sizes: SequentialAgent(jlibo.FixedPrior(), jlibo.Uniform()),
)


@pytest.fixture(scope="module")
def result():
    return run_arena([METHODS["independent"], NEEDS_RANK], [ARMS, CONTEXTS], num_seeds=3, num_threads=1)


def test_the_oracle_runs_too_and_refusals_are_kept(result):
    assert [method.name for method in result.methods] == ["oracle", "independent", "needs rank"]
    assert result.task_regret("needs rank", "gaussian-arms") is None
    assert result.cells["needs rank", "gaussian-arms"].refusal == "the environment has no rank"
    assert result.task_regret("independent", "gaussian-arms").shape == (3, 4)


def test_a_cell_is_the_run_of_each_seed(result):
    regret = result.cells["independent", "gaussian-arms"].regret
    for seed in range(3):
        key = jax.random.fold_in(jax.random.key(0), seed)
        np.testing.assert_allclose(regret[seed], run_method(ARMS, METHODS["independent"], key=key), atol=1e-9)


def test_seeds_can_be_continued(result):
    later = run_arena([METHODS["oracle"]], [ARMS], num_seeds=1, first_seed=2, num_threads=1)
    expected = result.task_regret("oracle", "gaussian-arms")[2:]
    np.testing.assert_allclose(later.task_regret("oracle", "gaussian-arms"), expected, atol=1e-9)


def test_finished_cells_are_not_run_again(result, tmp_path, monkeypatch):
    def play(environment):
        return run_arena([METHODS["independent"]], [environment], num_seeds=3, num_threads=1, out=tmp_path)

    for again in (False, True):
        if again:
            monkeypatch.setattr("jlibo.sweeps.run.local_chunks", None)
        found = play(ARMS).task_regret("independent", "gaussian-arms")
        np.testing.assert_allclose(found, result.task_regret("independent", "gaussian-arms"), atol=1e-9)
    # Other sizes have folders of their own.
    monkeypatch.undo()
    assert play(ARMS.sized(num_tasks=2)).task_regret("independent", "gaussian-arms").shape == (3, 2)


def test_scores_are_relative_to_the_oracle(result):
    score = result.score("independent", "gaussian-arms")
    own, oracle = (result.task_regret(name, "gaussian-arms") for name in ("independent", "oracle"))
    np.testing.assert_allclose(score.ratio, own.mean() / oracle.mean())
    np.testing.assert_allclose(score.excess.mean, (own - oracle).mean())
    np.testing.assert_allclose(score.early.mean, (own - oracle)[:, :1].mean())
    np.testing.assert_allclose(score.late.mean, (own - oracle)[:, -1:].mean())
    np.testing.assert_allclose(score.excess.error, (own - oracle).mean(1).std(ddof=1) / 3**0.5)
    assert result.score("oracle", "gaussian-arms").ratio == 1


def test_an_oracle_without_regret_gives_no_ratio(result):
    """It knows the weights that all tasks share."""
    np.testing.assert_allclose(result.task_regret("oracle", "one-parameter"), 0, atol=1e-9)
    assert result.score("independent", "one-parameter").ratio is None
    assert np.isnan(result.ratios()[:, 1]).all()
    assert result.in_words("independent", "one-parameter").startswith("(")
    assert result.in_words("needs rank", "one-parameter") == "-"


def test_the_table_has_the_cards(result):
    lines = result.table().splitlines()
    assert lines[0] == "| method | gaussian-arms | one-parameter | is told, or needs |"
    assert lines[2] == "| oracle | 1.00 | (0) | noise, true prior |"
    assert lines[-1] == "| needs rank | - | - | rank |"


def test_labelled_arrays_are_saved_and_read_again(result, tmp_path):
    loaded = Labelled.load(result.labelled().save(tmp_path / "regret.npz"))
    assert loaded.dims("gaussian-arms") == ("method", "seed", "gaussian-arms task")
    picked = loaded.sel(method="independent")["gaussian-arms"]
    np.testing.assert_allclose(picked, result.task_regret("independent", "gaussian-arms"))
    assert np.isnan(loaded.sel(method="needs rank")["gaussian-arms by step"]).all()


def test_the_files_have_all_numbers_and_figures(result):
    files = render(result, {"run_s": 1.0})
    assert set(files) == {
        *("summary.json", "regret.npz", "tables.md"),
        *("figure.png", "figure.pdf", "tasks.png", "tasks.pdf"),
    }
    summary = json.loads(files["summary.json"])
    cell = summary["environments"]["gaussian-arms"]["methods"]
    assert cell["needs rank"] == {"refusal": "the environment has no rank"}
    np.testing.assert_allclose(
        cell["independent"]["regret"]["mean"], result.task_regret("independent", "gaussian-arms").mean()
    )
    assert summary["methods"]["oracle"]["told"] == ["noise", "true prior"]
    assert files["figure.png"].startswith(b"\x89PNG")


def of_regret(values_by_size, method):
    """An arena of environments that differ in their size, with given regret per task."""
    environments = [
        ENVIRONMENTS[name].sized(num_tasks=8, horizon=1) for name in ("sparse-grid", "sparse-grid-200")
    ]
    methods = (METHODS["oracle"], METHODS["oracle-ucb"], METHODS[method])
    noise = 0.01 * np.random.default_rng(0).normal(size=(5, 8, 1))
    cells = {}
    for one, values in zip(environments, values_by_size, strict=True):
        for other in methods[:2]:
            cells[other.name, one.name] = Cell(np.ones((5, 8, 1)), None, 0.0)
        cells[method, one.name] = Cell(1 + noise + np.asarray(values)[:, None], None, 0.0)
    return ArenaResult(methods, tuple(environments), 5, 0, cells)


def test_growth_and_claims_beside_what_is_measured():
    falling = [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 0.0, 0.0]
    arena = of_regret([falling, [2 * value for value in falling]], "libo")
    growth = arena.growth()
    np.testing.assert_allclose(
        [growth["libo"][size].excess.mean for size in (50, 200)], [3.5, 7.0], atol=0.02
    )
    assert growth["libo"][50].oracle == "oracle-ucb"
    assert falls(growth["libo"][50]) == "yes"
    lines = [line for line in claims_table(arena).splitlines() if line.startswith("| libo")]
    assert len(lines) == 2
    assert "| yes | log(d) | sparse-grid |" in lines[0]
    assert lines[0].endswith("| yes |")
    assert "growth.png" in render(arena, {})


def test_tasks_that_run_at_once_are_neither_early_nor_late():
    arena = of_regret([[4.0] * 8, [4.0] * 8], "libo")
    at_once = dataclasses.replace(METHODS["libo"], setting="concurrent")
    arena = dataclasses.replace(arena, methods=(*arena.methods[:2], at_once))
    assert "| tasks run at once |" in claims_table(arena)


@pytest.mark.parametrize(
    "values, words", [([4.0] * 8, "no"), ([4.0] * 4 + [2.0] * 4, "in part: 50% is left"), ([0.0] * 8, "yes")]
)
def test_whether_the_excess_falls(values, words):
    arena = of_regret([values, values], "libo")
    assert falls(arena.score("libo", "sparse-grid")) == words


def test_claims_name_environments_of_the_arena():
    for claim in CLAIMS:
        assert set(claim.environments) <= set(ENVIRONMENTS)
        assert claim.tasks in ("sequential", "concurrent", "both")
        assert claim.cost in ("log(d)", "poly(d)")


@pytest.mark.parametrize("name", ["libo", "f-libo", "meta-kel", "adaptive", "naive", "oracle-ucb", "random"])
def test_the_agents_of_the_paper_run_in_the_arena(name):
    small = ENVIRONMENTS["sparse-legendre"].sized(num_tasks=2, horizon=5)
    regret = run_method(small, METHODS[name], key=jax.random.key(0))
    assert regret.shape == (2, 5)
    assert np.isfinite(regret).all()
    assert regret.min() >= -1e-9


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`method` should be one that runs on gaussian-arms"):
        run_method(ARMS, NEEDS_RANK, key=jax.random.key(0))
    with pytest.raises(ValueError, match="`setting` should be sequential for a SequentialAgent"):
        run_method(ARMS, dataclasses.replace(METHODS["oracle"], setting="concurrent"), key=jax.random.key(0))
    with pytest.raises(ValueError, match="`methods` should be at least one, with different names"):
        run_arena([], [ARMS])
    with pytest.raises(ValueError, match="`environments` should be at least one, with different names"):
        run_arena([METHODS["oracle"]], [ARMS, ARMS])
    with pytest.raises(ValueError, match="`num_seeds` should be a whole number >= 1"):
        run_arena([METHODS["oracle"]], [ARMS], num_seeds=0)


def test_tables_of_an_environment_and_of_a_method(result):
    lines = environment_table(result, "gaussian-arms").splitlines()
    assert lines[:2] == [
        "| method | regret per task | relative | first | last |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    score = result.score("independent", "gaussian-arms")
    numbers = [score.regret.in_words(), f"{score.ratio:.2f}", score.early.in_words(), score.late.in_words()]
    assert f"| {' | '.join(['`independent`', *numbers])} |" in lines
    means = [float(line.split("|")[2].split("±")[0]) for line in lines[2:]]
    assert means == sorted(means) and len(means) == 2
    lines = method_table(result, "independent").splitlines()
    assert lines[0] == "| environment | regret per task | `oracle` | first | last |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["`gaussian-arms`", "`one-parameter`"]
    assert method_table(result, "needs rank").splitlines()[2:] == []


def test_methods_that_play_all_tasks_at_once_are_marked():
    arena = of_regret([[8.0] * 8, [8.0] * 8], "e2tc")
    assert "| `e2tc` * | 9 ± 0.0023 | 9.00 |  |  |" in environment_table(arena, "sparse-grid")
    assert method_table(arena, "e2tc").splitlines()[2].endswith("|  |  |")


@pytest.mark.parametrize(
    "mean, error, words",
    [(12.345, 0.123, "12.3 ± 0.12"), (1320.6, 31.7, "1321 ± 32"), (-0.5, 3.0, "-0.5 ± 3")],
)
def test_an_estimate_in_words(mean, error, words):
    assert Estimate(mean, error).in_words() == words
