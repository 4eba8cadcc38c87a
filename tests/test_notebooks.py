"""The notebooks run as scripts at a small size, and the executed notebooks have the same cells."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
MAX_BYTES = 400_000


def script_id(path):
    return path.stem


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Run all scripts concurrently, each in a separate process, with little optimisation by XLA."""
    folder = tmp_path_factory.mktemp("notebooks")
    environment = os.environ | {
        "JLIBO_NOTEBOOK_SMALL": "1",
        "MPLBACKEND": "Agg",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
    }
    started = {}
    for script in SCRIPTS:
        output = (folder / f"{script.stem}.txt").open("w+")
        process = subprocess.Popen(
            [sys.executable, str(script)], cwd=folder, env=environment, stdout=output, stderr=output
        )
        started[script] = process, output
    yield started
    for process, output in started.values():
        process.kill()
        process.wait()
        output.close()


def test_notebooks_exist():
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_script_runs_at_small_size(script, processes):
    process, output = processes[script]
    code = process.wait(timeout=250)
    output.seek(0)
    assert code == 0, output.read()[-4000:]


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_notebook_is_executed_and_up_to_date(script):
    path = script.with_suffix(".ipynb")
    assert path.exists(), f"run `make notebooks` to make {path.name}"
    assert path.stat().st_size < MAX_BYTES
    notebook = nbformat.read(path, as_version=4)
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    expected = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    assert cells == expected, f"{script.name} changed: run `make notebooks`"
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code_cells]
    assert counts == list(range(1, len(code_cells) + 1)), "not executed from top to bottom"
    outputs = [output for cell in code_cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure"


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_notebook_outputs_have_no_machine_specific_text(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            words = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            assert not re.search(r"/(home|root|Users|tmp|work|usr)/|\.venv|0x[0-9a-f]{6,}", words), words
            assert output.get("name") != "stderr", words
