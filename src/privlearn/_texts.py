"""This file makes texts from outside safe for each output: names, notes and whatever else others
wrote can't leave the place they stand in.

One function for each output; nothing else escapes.
"""

from __future__ import annotations

import html
import json
import re

from privlearn._checks import printable

#: What YAML takes for a plain text or number, on one line.
_PLAIN_YAML = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,()+/:-]*")
#: What begins a link, an element, code or a cell in Markdown. A backslash comes first.
_MARKDOWN = {
    "\\": "\\\\",
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "`": "\\`",
    "|": "\\|",
    "](": "]\\(",
    "][": "]\\[",
}


def for_terminal(text: object) -> str:
    """On one line, control characters and marks of direction spelled out."""
    return printable(text)


def for_html(text: object) -> str:
    """For an element or an attribute: as for a terminal, and without markup."""
    return html.escape(printable(text))


def for_markdown(text: object) -> str:
    """For a line or a cell: as for a terminal, and without elements, links, code or further
    cells.
    """
    escaped = printable(text)
    for special, instead in _MARKDOWN.items():
        escaped = escaped.replace(special, instead)
    return escaped


def for_code(text: object) -> str:
    """For a block of code in Markdown, which ends at backticks."""
    return printable(text).replace("`", "\\x60")


def for_yaml(text: object) -> str:
    """For a value in YAML: as it is where it is plain, else between quotes."""
    escaped = printable(text)
    plain = (
        _PLAIN_YAML.fullmatch(escaped) and ": " not in escaped and not escaped.endswith((":", " "))
    )
    return escaped if plain else json.dumps(escaped)
