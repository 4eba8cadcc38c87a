"""Text from a file or a user, made safe to print on a terminal or in a log."""


def printable(text: object, *, limit: int | None = None) -> str:
    r"""Return `text` with every character that does not print as itself written as an escape such as `\x1b`.

    Control characters, terminal escape sequences, line ends, marks that change the direction of writing and
    lone surrogates are escaped. Letters of every script, digits, symbols and plain blanks stay.

    **Arguments:**

    - `text`: what to print; `str` of it is taken.
    - `limit`: if given, a longer text is cut to about this many characters, and its length is said.

    ```python
    printable("iris \x1b[31m")  # 'iris \\x1b[31m'
    ```
    """
    text = str(text)
    more = ""
    if limit is not None and len(text) > limit:
        text, more = text[:limit], f"... ({len(text)} characters)"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text + more
