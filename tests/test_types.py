"""The types of the package, as a user's type checker sees them: pyright in strict mode, one process for all.

Checked are the Python code of README and docs, and a file that mentions every public name and method.
"""

import importlib.resources
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.test_docs import PAGES, ROOT, cannot_be_imported, documented_names, find, page_id, python_blocks

STRICT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "include": ["."],
    "extraPaths": [str(ROOT)],
    # scikit-learn, pandas and others have no types. They are not guessed from the source of these libraries.
    "useLibraryCodeForTypes": False,
    "reportMissingTypeStubs": False,
    # The blocks of a page are one file here, and a later block may import again what it needs.
    "reportDuplicateImport": False,
}
# jax.jit, jax.numpy.asarray and others have partly unknown types, and what comes from untyped libraries has
# none. These rules are off for the documentation, and on for the names of jlibo itself.
UNTYPED_LIBRARIES = (
    "reportUnknownArgumentType",
    "reportUnknownLambdaType",
    "reportUnknownMemberType",
    "reportUnknownVariableType",
)
NAMES = "public_names.py"


def page_as_module(page: Path) -> str:
    """Return the Python blocks of a page at their lines; all other lines are empty."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in python_blocks(page):
        own = block.text.splitlines()
        lines[block.line : block.line + len(own)] = own
    return "\n".join(lines) + "\n"


def public_names_as_module() -> str:
    """Return a module that mentions every public name, and every public method of the classes."""
    modules, names = set(), []
    for name in sorted(documented_names()):
        if cannot_be_imported(name):
            continue
        found = find(name)
        if isinstance(found, ModuleType):
            continue
        names.append(name)
        module = name.rpartition(".")[0]
        if module in sys.modules:  # jlibo.metrics is an attribute of the package, and no module of its own
            modules.add(module)
        if inspect.isclass(found) and name != "jlibo.plot.NotebookFigure":  # it is a figure of matplotlib
            methods = {member: inspect.getattr_static(found, member) for member in dir(found)}
            names += [
                f"{name}.{member}"
                for member, method in methods.items()
                if not member.startswith("_")
                and (inspect.isfunction(method) or isinstance(method, classmethod | staticmethod))
                and method.__module__.startswith("jlibo.")  # not inherited from an untyped library
            ]
    imports = "".join(f"import {module}\n" for module in sorted(modules))
    return f"{imports}\ndef see(value: object) -> None: ...\n" + "".join(f"see({name})\n" for name in names)


def diagnostics(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pyright", "--project", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, timeout=240)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["generalDiagnostics"]


def test_documentation_and_public_names_pass_strict_type_checks(tmp_path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    pages = {f"page_{number}.py": page for number, page in enumerate(PAGES) if python_blocks(page)}
    for name, page in pages.items():
        rules = ", ".join(f"{rule}=false" for rule in UNTYPED_LIBRARIES)
        code = page_as_module(page)
        assert code.startswith("\n")  # the first line of a page is its title
        (tmp_path / name).write_text(f"# pyright: {rules}{code}", encoding="utf-8")
    (tmp_path / NAMES).write_text(public_names_as_module(), encoding="utf-8")
    # A mistake that must be found: the check below cannot pass because nothing was checked.
    (tmp_path / "wrong.py").write_text(
        'import jlibo\n\njlibo.GPUCB(nu="a", noise_std=0.1)\n', encoding="utf-8"
    )
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(STRICT), encoding="utf-8")
    found = []
    for one in diagnostics(tmp_path):
        name = Path(one["file"]).name
        place = page_id(pages[name]) if name in pages else name
        found.append((place, one["range"]["start"]["line"] + 1, one.get("rule"), one["message"]))
    assert [one for one in found if one[0] != "wrong.py"] == []
    assert [one[:3] for one in found] == [("wrong.py", 3, "reportArgumentType")]


def test_package_is_marked_as_typed():
    assert importlib.resources.files("jlibo").joinpath("py.typed").is_file()
