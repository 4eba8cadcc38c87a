"""The speed benchmarks: the contenders do the same work, and the output can be parsed.

No test asserts a time. Whole scripts at their quick size are slow tests; the fast tests call their functions.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import arena_docs
import gp_step
import harness
import numpy_baselines as baselines
import paper_experiment
import results
import roofline

BENCHMARKS = Path(harness.__file__).parent
KEYS = {"benchmark", "quick", "machine", "tables", "aims", "notes"}


def check_result(result, name):
    assert set(result) >= KEYS and result["benchmark"] == name and result["quick"]
    assert {"cpu", "cores", "memory_gb", "python", "jax"} <= set(result["machine"])
    assert result["tables"]
    for table in result["tables"]:
        assert table["title"] and table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["header"])}
    for aim in result["aims"]:
        assert aim["measured"] is None or math.isfinite(aim["measured"])
        assert aim["met"] in (True, False)


# --- the contenders do the same work ---


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_numpy_and_jlibo_choose_equal_actions_and_supports():
    agree = paper_experiment.agreement(num_seeds=2, num_tasks=3, horizon=16)
    assert {name: agree[name] for name in agree if name != "size"} == {
        "plain_actions": 1.0,
        "plain_support": 1.0,
        "careful_actions": 1.0,
        "careful_support": 1.0,
    }


def problem(seed, num_tasks):
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((int(count), 12)) for count in rng.integers(4, 9, num_tasks)]
    coef = np.where(np.arange(12) < 3, 2.0, 0.0)
    return rows, [r @ coef + 0.1 * rng.standard_normal(len(r)) for r in rows]


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_every_numpy_solver_reaches_the_gap(num_tasks):
    rows, targets = problem(0, num_tasks)
    for name, solve in baselines.GroupLasso.ways.items():
        if name == "sklearn" and num_tasks > 1:
            continue
        coef = solve(rows, targets, 0.3, 1e-5, None)
        assert baselines.relative_gap(rows, targets, 0.3, coef) <= 2e-5, name
    start = coef + 0.1
    warm = baselines.fista(rows, targets, 0.3, 1e-8, start)
    np.testing.assert_allclose(warm, baselines.fista(rows, targets, 0.3, 1e-8, None), atol=1e-2)


def test_chosen_solver_reaches_the_gap():
    rows, targets = problem(1, 3)
    solver = baselines.GroupLasso(1e-5)
    solver.choose("libo", rows, targets, 0.3)
    assert solver.chosen["libo"] in ("proximal", "celer")
    assert baselines.relative_gap(rows, targets, 0.3, solver("libo", rows, targets, 0.3)) <= 2e-5


def test_jlibo_and_scikit_learn_give_equal_suggestions(tmp_path):
    data = features, places, rewards = gp_step.draw_data(12)
    path = tmp_path / "data.npz"
    scaled = features / np.sqrt(gp_step.NUM_FEATURES)
    np.savez(path, candidates=scaled, rows=scaled[places], rewards=rewards, noise_std=0.1, nu=10.0)
    peer = gp_step.Peer("sklearn", sys.executable, path)
    try:
        for size in (5, 12):
            ours = gp_step.Ours(data, size, np.float64, batch=2)
            theirs = peer.ask(do="suggest", size=size, scores=True)
            np.testing.assert_allclose(theirs["scores"], ours.scores, atol=1e-8)
            assert theirs["index"] == ours.index and theirs["seconds"] > 0
    finally:
        peer.close()


def test_work_counts_operations_and_bytes():
    flops, num_bytes = roofline.work(3)
    n, d = roofline.NUM_CANDIDATES, roofline.NUM_FEATURES
    assert flops == 3 * (2 * n * d + 6 * d**2 + 9 * n)
    assert num_bytes == 4 * (3 * (2 * d**2 + 4 * n) + n * d)


# --- output ---


def result_of(name, **rest):
    return {
        "benchmark": name,
        "quick": False,
        "machine": {"cpu": "a cpu", "cores": 2, "memory_gb": 4.0, "python": "3", "jax": "0"},
        "tables": [{"title": "A title", "header": ["what", "s"], "rows": [["a | b", "1"]]}],
        "aims": [harness.aim("fast", 10, 12.0), harness.aim("small", 3, 4.5, at_most=True)],
        "notes": "Why it is so.",
        **rest,
    }


def test_markdown_has_aims_and_notes():
    text = results.markdown({"roofline": result_of("roofline"), "gp_step": result_of("gp_step")})
    assert text.index("## One suggestion") < text.index("## Distance")
    assert "| gp_step | fast | at least 10 | 12 | met |" in text
    assert "| roofline | small | at most 3 | 4.5 | **missed** |" in text
    assert "a \\| b" in text and text.count("Why it is so.") == 2 and "quick run" not in text
    assert "quick run" in results.markdown({"gp_step": result_of("gp_step", quick=True)})


def test_running_some_benchmarks_keeps_the_stored_results_of_others(tmp_path, monkeypatch):
    out = tmp_path / "RESULTS.md"
    answers = {"gp_step": result_of("gp_step"), "roofline": result_of("roofline")}
    monkeypatch.setattr(results, "run_script", lambda name, quick: answers.get(name))
    for name, code in (("gp_step", 0), ("roofline", 0), ("scaling", 1)):
        monkeypatch.setattr(sys, "argv", ["results.py", "--only", name, "--out", str(out)])
        assert results.main() == code
    assert set(results.load(tmp_path / "results.jsonl")) == {"gp_step", "roofline"}
    assert "## One suggestion" in out.read_text() and "## Distance" in out.read_text()


def test_aim_without_a_measurement_is_not_met():
    assert not harness.aim("fast", 10, None)["met"]
    assert not harness.aim("fast", 10, float("nan"))["met"]


def test_aim_is_not_met_if_a_peer_is_missing():
    seconds = {"jlibo": 1e-4, "sklearn": 1.0, "botorch": 2.0, "gpjax": 0.5}
    whole = gp_step.peer_aim(50, seconds, ["sklearn", "botorch", "gpjax"])
    assert whole["met"] and whole["measured"] == pytest.approx(5000) and "gpjax" in whole["aim"]
    part = gp_step.peer_aim(50, seconds, ["sklearn", "botorch"])
    assert not part["met"] and part["measured"] is None and "without gpjax" in part["aim"]


# --- whole scripts ---


def run_script(name, tmp_path):
    path = tmp_path / "line.json"
    environment = {**os.environ, "NPROC": "4", "JLIBO_TUNERS_PYTHON": "/none", "JLIBO_GPJAX_PYTHON": "/none"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", str(path)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert json.loads(line) == json.loads(path.read_text())
    return json.loads(line)


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gp_step", "roofline", "ill_conditioned", "arena_speed"])
def test_quick_run_prints_one_json_line(name, tmp_path):
    check_result(run_script(name, tmp_path), name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", ["paper_experiment", "scaling", "gpu", "tuner_scale", "first_day", "noisy_scores", "long_runs"]
)
def test_quick_run_of_long_scripts_prints_one_json_line(name, tmp_path):
    check_result(run_script(name, tmp_path), name)


def test_tables_of_an_arena_replace_those_between_marks(tmp_path, monkeypatch, capsys):
    folder, docs = tmp_path / "arena", tmp_path / "docs"
    (docs / "arena").mkdir(parents=True)
    folder.mkdir()
    (folder / "tables.md").write_text("# All\n\n| x |\n\n## grid\n\n| a |\n\n## libo\n\n| b |\n")
    page = docs / "arena" / "libo.md"
    marked = "Text.\n\n<!-- tables.md: {} -->\n{}<!-- end -->\n\nMore.\n"
    page.write_text(marked.format("libo", "\n| old |\n\n"))
    (docs / "other.md").write_text("Untouched.\n")
    monkeypatch.setattr(sys, "argv", ["arena_docs.py", str(folder), "--docs", str(docs)])
    for written in ("written: arena/libo.md\n", ""):  # the second time nothing changes
        arena_docs.main()
        assert page.read_text() == marked.format("libo", "\n| b |\n\n")
        assert capsys.readouterr().out == written
    page.write_text(marked.format("grid, libo", ""))
    arena_docs.main()
    assert page.read_text() == marked.format("grid, libo", "\n`grid`:\n\n| a |\n\n`libo`:\n\n| b |\n\n")
    page.write_text(marked.format("lbo", ""))
    with pytest.raises(SystemExit, match="has no table 'lbo'"):
        arena_docs.main()
