"""The documentation agrees with the code: blocks run, links and names exist, all public names are listed."""

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "toml", "text", "bibtex"}
PUBLIC_MODULES = (
    "jlibo",
    "jlibo.sweeps",
    "jlibo.tune",
    "jlibo.plot",
    "jlibo.experiments",
    "jlibo.theory",
    "jlibo.actions",
    "jlibo.arena",
    "jlibo.arena.estimators",
    "jlibo.arena.methods",
    "jlibo.envs.linear",
    "jlibo.metrics",
    "jlibo.posterior",
    "jlibo.integrations.optuna",
    "jlibo.integrations.mlflow",
    "jlibo.integrations.wandb",
    "jlibo.integrations.sklearn",
)
NEEDS = r'title="needs (ray|mlflow|wandb|flwr)"'
"""Packages outside of the development environment: `make test-ray` and `make test-trackers` have them, and
`make test-federated`."""
OWN_ENVIRONMENTS = {"jlibo.integrations.ray.": "ray", "jlibo.integrations.flower.": "flwr"}
"""Modules whose names cannot be imported without a package, and that package."""
FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block: its language, its text, and the number of its first line in the page.

    `is_missing` says that its title is "needs" and the name of a package that is not installed.
    """

    language: str
    text: str
    line: int
    is_missing: bool = False


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            (match["info"].split() or [""])[0],
            textwrap.dedent(match["text"]),
            text.count("\n", 0, match.start("text")),
            any(importlib.util.find_spec(name) is None for name in re.findall(NEEDS, match["info"])),
        )
        for match in FENCE.finditer(text)
    ]


def python_blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, without those that need a package that is missing."""
    return [block for block in blocks_of(page) if block.language == "python" and not block.is_missing]


def run_page(page: Path) -> None:
    """Run the Python blocks of a page in order, in one namespace; tracebacks show the lines of the page."""
    namespace = {"__name__": f"docs_{page.stem}"}
    for block in python_blocks(page):
        # Leading blank lines make the line numbers those of the page.
        exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=page_id)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    try:
        run_page(page)
    finally:
        plt.close("all")


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/tuning.md",
        "docs/optuna.md",
        "docs/sweeps.md",
        "docs/extending.md",
        "docs/theory.md",
        "docs/how-to/run-the-loop.md",
        "docs/how-to/stop-trials-early.md",
        "docs/how-to/track-runs.md",
    ],
)
def test_guides_have_python_blocks(name):
    assert len(python_blocks(ROOT / name)) >= 2


def test_error_in_a_block_names_its_line(tmp_path):
    page = tmp_path / "page.md"
    first, second = "```python\nx = 1\n```", "    ```python\n    y = x\n    y.missing\n    ```"
    page.write_text(f"# Page\n\n{first}\n\nText.\n\n- item\n\n{second}\n")
    with pytest.raises(AttributeError) as failure:
        run_page(page)
    assert failure.traceback[-1].path == page
    assert failure.traceback[-1].lineno + 1 == 13


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_has_a_known_language(page):
    # Python code in a block with another language, or with none, would not be run by the tests above.
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    fences = re.findall(r"^[ ]*(?:`{3,}|~{3,})", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page)), "a fence is not closed"


# --- names --------------------------------------------------------------------------------------------------


def public_names(module: ModuleType) -> set[str]:
    """The names that a module defines or re-exports (`from x import y as y`, or `__all__`)."""
    names = set(getattr(module, "__all__", ()))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    names |= {
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    return {
        name
        for name in names
        if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }


def documented_names() -> set[str]:
    """The dotted names in the API pages that have an entry or the row of a table."""
    lines = [line for page in API.glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    entries = {line.removeprefix("::: ") for line in lines if line.startswith("::: ")}
    rows = " ".join(line.split("|")[1] for line in lines if line.startswith("|"))
    return entries | set(re.findall(r"`(jlibo\.[\w.]+)`", rows))


def is_importable(name: str) -> bool:
    """Whether the package that a name needs is installed."""
    needed = [package for module, package in OWN_ENVIRONMENTS.items() if name.startswith(module)]
    return all(importlib.util.find_spec(package) is not None for package in needed)


def importable_names() -> set[str]:
    """`documented_names` but those that need a package of another environment."""
    return {name for name in documented_names() if is_importable(name)}


def find(name: str):
    """The object of a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_reference_lists_all_public_names():
    documented = documented_names()
    assert len(documented) > 100
    for module_name in PUBLIC_MODULES:
        module = pkgutil.resolve_name(module_name)
        names = public_names(module)
        assert names, module_name
        prefix = "jlibo." if module_name == "jlibo" else f"{module_name}."
        missing = {
            name
            for name in names
            if prefix + name not in documented
            # Names that `jlibo` re-exports are listed once, under `jlibo`.
            and not (f"jlibo.{name}" in documented and find(f"jlibo.{name}") is getattr(module, name))
        }
        assert not missing, f"{module_name}: not in docs/api: {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_in_text_exist(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for name in re.findall(r"(?:^::: |`)(jlibo(?:\.[A-Za-z]\w*)+)", text, re.MULTILINE):
        if is_importable(name):
            find(name)
        else:
            module, _, last = name.rpartition(".")
            path = ROOT.joinpath(*module.split("."))
            sources = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.glob("*.py")
            text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
            assert re.search(rf"^(?:class|def) {last}\b", text, re.MULTILINE), name


def test_reference_lists_every_command_and_option(capsys):
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="jlibo")
    text = (API / "cli.md").read_text(encoding="utf-8")

    def check(*command):
        assert script.load()([*command, "--help"]) == 0
        usage = capsys.readouterr().out
        for option in re.findall(r"^\s+(--[a-z0-9-]+)", usage, re.MULTILINE):
            assert re.search(rf"`[^`]*{option}\b", text), (
                f"{' '.join(command)} {option} is not in docs/api/cli.md"
            )
        for name in re.findall(r"^    ([a-z]+) ", usage, re.MULTILINE):
            assert f"jlibo {' '.join([*command, name])}" in text
            check(*command, name)

    check()


# --- files --------------------------------------------------------------------------------------------------


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=page_id)
def test_linked_files_exist(page):
    # Links of the pages in docs/ are checked by `make docs`.
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    for link in links:
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )*([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize(
    "tag, is_external",
    [
        ('<script src="https://host/mathjax.js"></script>', True),
        ("<script async src='//host/a.js'></script>", True),
        ('<img alt="figure" src="http://host/a.png">', True),
        ('<link rel="stylesheet" href="https://host/font.css">', True),
        ("<style>@import url('https://host/font.css');</style>", True),
        ('<link rel="canonical" href="https://host/page/">', False),
        ('<a href="https://host/page/">a page elsewhere</a>', False),
        ('<script src="../assets/bundle.js"></script>', False),
        ('<img src="lifelong-cosine.png">', False),
    ],
)
def test_build_detects_external_resources(tag, is_external):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert bool(hooks.EXTERNAL.search(f"<p>text</p>{tag}<p>text</p>")) == is_external
