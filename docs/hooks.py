"""mkdocs hooks: pages made from files outside of docs/, and a check that the site loads nothing external.

| page                | made from                                                |
|---------------------|----------------------------------------------------------|
| `index.md`          | `README.md`                                              |
| `notebooks/NAME.md` | `notebooks/NAME.ipynb`, with its stored outputs          |
| `benchmarks.md`     | `benchmarks/RESULTS.md`, which `make bench` writes       |
| `contributing.md`   | `CONTRIBUTING.md`                                        |
| `changelog.md`      | `CHANGELOG.md`                                           |
"""

import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parent.parent
PAGES = {
    "index.md": "README.md",
    "benchmarks.md": "benchmarks/RESULTS.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"(?<=\]\()[^)\s#]+")
EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|@import\b[^;]*(?:https?:)?//[^;]*;""",
    re.IGNORECASE,
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, before the navigation is made."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=LINK.sub(_link_in_site, text)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for uri, content in notebook_page(notebook).items():
            files.append(File.generated(config, uri, content=content))
    return files


def _link_in_site(link: re.Match[str]) -> str:
    """The place in the site of what a file in the root links to."""
    target = link.group(0)
    made = {source: page for page, source in PAGES.items()}
    return made.get(target, target.removeprefix("docs/"))


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """The page of an executed notebook and its figures, by their places in the site."""
    notebook = nbformat.read(path, as_version=4)
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, resources={"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    )
    pages: dict[str, str | bytes] = {f"notebooks/{path.stem}.md": text}
    for name, image in resources["outputs"].items():
        pages[f"notebooks/{Path(name).as_posix()}"] = image
    return pages


def on_post_page(output: str, *, page, config: MkDocsConfig) -> str:
    """Fail when the page would load a script, style or image from another host."""
    found = EXTERNAL.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads something external: {found.group(0)[:200]}")
    return output
