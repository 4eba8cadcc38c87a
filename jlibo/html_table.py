"""Small HTML tables for notebooks. Everything in them is escaped, because names may come from any file."""

import html
from collections.abc import Iterable, Sequence

from jlibo.printable import printable


def html_table(title: str, headings: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table. Texts are escaped, and cut if they are long.

    **Arguments:**

    - `title`: the caption.
    - `headings`: the names of the columns.
    - `rows`: the cells of each row; any values, written by `str`.

    ```python
    from jlibo.html_table import html_table

    assert "&lt;b&gt;" in html_table("tasks", ["name"], [["<b>"]])
    ```
    """
    head = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
    lines = ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return (
        f'<table><caption style="text-align: left">{_text(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _text(value: object) -> str:
    return html.escape(printable(value), quote=True)
