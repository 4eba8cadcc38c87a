"""The page of a report: the content and the assets in one HTML file that loads nothing. Internal.

Texts from the memory get into the page in two ways: escaped by `html.escape`, and in a JSON block in which no
character can end the block. A content security policy allows the page's own script alone, by its hash, and no
connection.
"""

import base64
import hashlib
import html
import json
import os
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from jlibo.checks import check_count, fail
from jlibo.files import write_atomically
from jlibo.html_table import html_table
from jlibo.printable import printable
from jlibo.tune.memory.memory import Memory
from jlibo.tune.report.content import Content, content_of, counts_of, time_now
from jlibo.tune.summary import short, tasks_html
from jlibo.version import __version__

if TYPE_CHECKING:
    from jlibo.tune.tuner_results import AbstractTunerResults

SCRIPTS = ("base.js", "plots.js", "parallel.js", "main.js")
DEFAULT_TITLE = "What was tuned, and what was learned"
_QUALITY = 'Its colour is its place within its task: <span class="quality"></span> from worst to best.'


def write_report(
    memory: Memory,
    tuner: "AbstractTunerResults | None",
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    num_defaults: int = 5,
    no_model: str | None = None,
) -> Path:
    """Write the report of a memory to `path` and return the path; see `Tuner.report`.

    Without a tuner, the report has no model, for the reason `no_model`.
    """
    check_count("num_defaults", num_defaults)
    where = Path(path)
    if memory.path is not None and where.exists() and os.path.samefile(where, memory.path):
        fail("path", "the path of a page to write", f"the memory itself, '{printable(path)}'")
    shown = content_of(memory, tuner, num_defaults=num_defaults, no_model=no_model)
    text = page(shown, title=title, memory=memory.path)
    write_atomically(where, lambda file: file.write(text.encode()), mode=0o600)
    return where


def page(shown: Content, *, title: str | None = None, memory: str | None = None) -> str:
    """Return the HTML of a report.

    **Arguments:**

    - `shown`: what the page shows.
    - `title`: the title; None for a general one.
    - `memory`: the path of the memory, of which the page names the file.
    """
    script = "\n".join(["'use strict';", *map(_asset, SCRIPTS)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = "a memory in RAM" if memory is None else Path(memory).name
    direction = "higher is better" if shown.plots["maximise"] else "lower is better"
    return Template(_asset("page.html")).substitute(
        title=_escaped(DEFAULT_TITLE if title is None else title),
        subtitle=_escaped(f"{source}, {time_now()}; {direction}"),
        version=_escaped(__version__),
        digest=digest,
        style=_asset("style.css"),
        tiles="\n".join(f"<li><b>{count:,}</b> {_escaped(what)}</li>" for what, count in _tiles(shown)),
        notes="\n".join(f'<p class="note">{_escaped(note)}</p>' for note in shown.notes),
        tasks=tasks_html("Tasks", shown.tasks),
        colours=_QUALITY,
        defaults=_defaults(shown),
        footer=_escaped(f"Made by jlibo {__version__}. The page holds its data and loads nothing."),
        data=embedded(shown.plots),
        script=script,
    )


def embedded(values: Any) -> str:
    """Return values as JSON that can be inside of a script element, whatever the texts in it are."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _tiles(shown: Content) -> list[tuple[str, int]]:
    counts = counts_of(shown.tasks)
    return [*counts.items(), ("parameters", len(shown.plots["parameters"]))]


def _defaults(shown: Content) -> str:
    if not shown.defaults:
        return '<p class="quiet">There are none yet: it takes a task with two scores.</p>'
    names = [parameter["name"] for parameter in shown.plots["parameters"]]
    known = list(dict.fromkeys(name for params in shown.defaults for name in params))
    rows = [
        (place, *(short(params[name]) if name in params else "" for name in known))
        for place, params in enumerate(shown.defaults, 1)
    ]
    words = (
        f"The {len(rows)} configurations that together do best over all tasks under the model, the most "
        "useful first: try them before anything else on a new task."
    )
    table = html_table("", ("", *known), rows) if len(names) <= 30 else ""
    code = html.escape(_code(shown), quote=True)
    button = '<button type="button" data-copy="defaults-code">Copy the code</button>'
    parts = (f"<p>{_escaped(words)}</p>", f'<div class="scroll">{table}</div>')
    return "\n".join([*parts, f'<pre id="defaults-code">{code}</pre>', button])


def _code(shown: Content) -> str:
    """Return the defaults as Python code. Line breaks are those of the code: texts in it are literals."""
    return "\n".join(printable(line, max_length=None) for line in str(shown.defaults).splitlines())


def _escaped(text: str) -> str:
    return html.escape(printable(text), quote=True)


def _asset(name: str) -> str:
    return resources.files("jlibo.tune.report").joinpath("assets", name).read_text(encoding="utf-8")
