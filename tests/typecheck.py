"""Type checks by pyright, in one process: `python -m tests.typecheck`, which `make typecheck` runs.

| what                                              | how                                                   |
|---------------------------------------------------|-------------------------------------------------------|
| `jlibo/`                                          | as pyproject.toml says                                |
| the Python code of README and docs                | in strict mode, but for `UNTYPED_LIBRARIES`           |
| a file that mentions every public name and method | in strict mode                                        |

The last two are what a user's type checker sees. A file with a mistake is checked too, which must be found.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tests.test_docs import PAGES, ROOT, find, importable_names, page_id, python_blocks

STRICT = (
    "strict",
    # scikit-learn, pandas and others have no types.
    "reportMissingTypeStubs=false",
    # The blocks of a page are one file here, and a later block may import again what it needs.
    "reportDuplicateImport=false",
)
UNTYPED_LIBRARIES = (
    # jax.jit, jax.numpy.asarray and others have partly unknown types, and what comes from untyped libraries
    # has none. These rules are off for the documentation, and on for the names of jlibo itself.
    "reportUnknownArgumentType=false",
    "reportUnknownLambdaType=false",
    "reportUnknownMemberType=false",
    "reportUnknownVariableType=false",
)
NAMES, WRONG = "public_names.py", "wrong.py"
MISTAKE = 'import jlibo\n\njlibo.GPUCB(nu="a", noise_std=0.1)\n'


class Problem(NamedTuple):
    """What pyright reports: a file, which may be a page of the documentation, a line of it, and the text."""

    place: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.message} ({self.rule})"


def page_as_module(page: Path) -> str:
    """Return the Python blocks of a page at their lines; all other lines are empty but the first."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in python_blocks(page):
        own = block.text.splitlines()
        lines[block.line : block.line + len(own)] = own
    assert lines[0] == "", f"{page}: the first line of a page is its title"
    lines[0] = f"# pyright: {', '.join((*STRICT, *UNTYPED_LIBRARIES))}"
    return "\n".join(lines) + "\n"


def own_methods(cls: type) -> list[str]:
    """Return the public methods of a class that the package defines, and not a library it inherits from."""
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
    return [name for name, one in found.items() if _module_of(one).startswith("jlibo.")]


def _module_of(method: Any) -> str:
    """Return the module of a method; empty if it is no method."""
    function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
    return function.__module__ if inspect.isfunction(function) else ""


def public_names_as_module() -> str:
    """Return a module that mentions every public name, and every public method of the classes."""
    modules, names = set(), []
    for name in sorted(importable_names()):
        found = find(name)
        if isinstance(found, ModuleType):
            continue
        names.append(name)
        module = name.rpartition(".")[0]
        if module in sys.modules:  # jlibo.metrics is an attribute of the package, and no module of its own
            modules.add(module)
        if inspect.isclass(found):
            names += [f"{name}.{method}" for method in own_methods(found)]
    head = f"# pyright: {', '.join(STRICT)}\n" + "".join(f"import {module}\n" for module in sorted(modules))
    uses = "".join(f"see({name})\n" for name in names)
    return f"{head}\n\ndef see(value: object) -> None: ...\n\n\n{uses}"


def problems() -> list[Problem]:
    """Return what pyright reports about the package, the documentation and the public names."""
    pages = {f"page_{number}.py": page for number, page in enumerate(PAGES) if python_blocks(page)}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, page in pages.items():
            (folder / file).write_text(page_as_module(page), encoding="utf-8")
        (folder / NAMES).write_text(public_names_as_module(), encoding="utf-8")
        (folder / WRONG).write_text(MISTAKE, encoding="utf-8")
        config = {
            **{key: value for key, value in settings.items() if key not in ("venv", "venvPath")},
            "include": [*(os.path.relpath(ROOT / one, folder) for one in settings["include"]), "."],
            "extraPaths": [str(ROOT)],
        }
        (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
        found = _run_pyright(folder)
    return [
        Problem(
            _place(Path(one["file"]), pages),
            one["range"]["start"]["line"] + 1,
            one.get("rule", one["severity"]),
            one["message"],
        )
        for one in found
    ]


def _place(file: Path, pages: dict[str, Path]) -> str:
    if file.name in pages:
        return page_id(pages[file.name])
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name


def _run_pyright(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pyright", "--project", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    num_files = len([*folder.glob("*.py"), *(ROOT / "jlibo").rglob("*.py")])
    assert report["summary"]["filesAnalyzed"] == num_files, (report["summary"], num_files)
    return report["generalDiagnostics"]


def main() -> int:
    found = problems()
    real = [one for one in found if one.place != WRONG]
    for one in real:
        print(one)
    if [one[:3] for one in found if one.place == WRONG] != [(WRONG, 3, "reportArgumentType")]:
        print("The mistake that must be found was not found: pyright did not check.")
        return 1
    return 1 if real else 0


if __name__ == "__main__":
    sys.exit(main())
