"""Copies the tables of an arena into the documentation.

    jlibo arena --seeds 20
    python benchmarks/arena_docs.py out/arena [--docs DIR]

A page marks the place of a table by two lines, `<!-- tables.md: NAME, ... -->` and `<!-- end -->`. NAME is a
heading of the arena's `tables.md`: an environment or a method. What is between the lines is replaced. The
same command writes the same pages again.
"""

import argparse
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARK = re.compile(r"(<!-- tables\.md: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def sections(tables):
    """Return the text below each heading of `tables.md`."""
    parts = re.split(r"^#+ (.*)\n", tables, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def filled(page, tables):
    """Return a page with the tables at its marks. Raises a KeyError for a name without a table."""

    def fill(match):
        names = [name.strip() for name in match[2].split(",")]
        texts = [tables[name] if len(names) == 1 else f"`{name}`:\n\n{tables[name]}" for name in names]
        joined = "\n\n".join(texts)
        return f"{match[1]}\n{joined}\n\n{match[3]}"

    return MARK.sub(fill, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder that `jlibo arena` wrote")
    parser.add_argument("--docs", type=Path, default=DOCS, help="documentation to change")
    options = parser.parse_args()
    tables = sections((options.folder / "tables.md").read_text(encoding="utf-8"))
    for path in sorted(options.docs.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        try:
            after = filled(before, tables)
        except KeyError as missing:
            sys.exit(f"{path}: the arena in {options.folder} has no table {missing}")
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.relative_to(options.docs)}")


if __name__ == "__main__":
    main()
