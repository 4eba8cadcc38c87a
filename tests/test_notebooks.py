"""The notebooks run as scripts at a small size, and the executed notebooks have the same cells.

Most of them run with the slow tests, since their programs take long to compile. The quick tests check that
all names and arguments that they use exist; the pages of the documentation make the same calls.
"""

import ast
import inspect
import re
import runpy
from pathlib import Path

import jax
import jupytext
import matplotlib.pyplot as plt
import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
MAX_BYTES = 400_000
QUICK = ("05_tune_your_model",)
RUNS = [
    pytest.param(script, id=script.stem, marks=[] if script.stem in QUICK else [pytest.mark.slow])
    for script in SCRIPTS
]


def script_id(path):
    return path.stem


def test_notebooks_exist():
    assert SCRIPTS


@pytest.mark.parametrize("script", RUNS)
def test_script_runs_at_small_size(script, tmp_path, monkeypatch):
    """In single precision, as in the notebooks."""
    monkeypatch.setenv("JLIBO_NOTEBOOK_SMALL", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER.parent)
    try:
        with jax.enable_x64(False):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        plt.close("all")


def library_uses(tree):
    """The attributes and calls in a script that start at a name imported from the library.

    Yields the dotted name, the object that the import binds, and the call, or None for an attribute.
    """
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or node.names[0].name
            if module.split(".")[0] == "jlibo":
                exec(compile(ast.Module([node], []), "imports", "exec"), names)
    stored = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }

    def root_of(node):
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        used = node.func if isinstance(node, ast.Call) else node
        root = root_of(used)
        if root in names and root not in stored:
            yield ast.unparse(used), names[root], node if isinstance(node, ast.Call) else None


def check_uses(text):
    """Check that names exist and calls fit their signatures; return how many calls were checked."""
    count = 0
    for name, value, call in library_uses(ast.parse(text)):
        for part in name.split(".")[1:]:
            value = getattr(value, part)
        if call is None or not callable(value) or any(isinstance(arg, ast.Starred) for arg in call.args):
            continue
        given = [keyword.arg for keyword in call.keywords]
        signature, options = inspect.signature(value), dict.fromkeys(filter(None, given))
        # `**rest` may hold any of the arguments that are missing.
        (signature.bind_partial if None in given else signature.bind)(*call.args, **options)
        count += 1
    return count


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_names_and_arguments_in_scripts_exist(script):
    assert check_uses(script.read_text(encoding="utf-8")) > 5


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import jlibo\njlibo.Cosin(3)", AttributeError),
        ("from jlibo import theory\ntheory.plans", AttributeError),
        ("import jlibo\njlibo.Cosine(3, dims=2)", TypeError),
        ("import jlibo\njlibo.MetaKGL(0.1, 0.2, **rest)\njlibo.GPUCB()", TypeError),
        ("from jlibo.experiments import find\nfind()", TypeError),
    ],
)
def test_wrong_names_and_arguments_are_detected(text, error):
    with pytest.raises(error):
        check_uses(text)


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
