"""The text of a schema's file, with one line for each column: a template to fill in, or a draft to
look through.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from privlearn.data.table_files import Dialect

#: What a template says before its columns.
_HEAD = (
    "# Fill in what is publicly known; nothing of it may be read off private rows. Delete the",
    "# lines of columns that are not to be learned from. Each column is one of:",
    '#   { kind = "number", low = 0, high = 110 }',
    '#   { kind = "number", low = 0, high = 110, missing = 50, indicator = true }',
    '#   { kind = "date", low = 1900-01-01, high = 2030-12-31, format = "%d.%m.%Y" }',
    '#   { kind = "category", categories = ["f", "m"], match = "casefold" }',
    '#   { kind = "target", classes = ["no", "yes"] }   or with low and high: a number',
    "# missing: what a missing value counts as; indicator: a feature that says that it is missing.",
    '# person = NAME protects persons, with --rows-per-person K. decimal = "," reads 1,5 as a',
    '# number, encoding = "cp1252" other texts than UTF-8. docs/data.md has the grammar.',
)
#: Whole numbers from here on are written with an exponent.
_LARGE = 1e15


def write_template(
    columns: Mapping[str, Mapping[str, Any]],
    *,
    target: str | list[str] = "",
    missing: Sequence[str] = ("",),
    dialect: Dialect | None = None,
    remarks: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    head: Sequence[str] = (),
) -> list[str]:
    """The lines of a schema's file.

    Args:
        columns: what is declared of each column, as `Column.stated` has it; nothing: it is to be
            filled in.
        target: the column to predict, or several; empty: it is to be filled in.
        missing: the texts that stand for a missing value.
        dialect: how the table's file is written.
        remarks: a comment for some columns, one line.
        more: further keys of the schema.
        head: comments that follow those of every template.
    """
    named = f"target = {_write(target)}"
    settings = {} if dialect is None else dialect.stated()
    return [
        *_HEAD,
        *(f"# {line}" for line in head),
        named if target else f"{named}    # the name of the column to predict",
        f"missing = {_write(list(missing))} # the texts that stand for a missing value",
        *(f"{name} = {_write(value)}" for name, value in {**settings, **(more or {})}.items()),
        "",
        "[columns]",
        *column_lines(columns, remarks or {}),
    ]


def column_lines(
    columns: Mapping[str, Mapping[str, Any]], remarks: Mapping[str, str]
) -> Iterable[str]:
    """A line for each column, perhaps with a comment."""
    for name, settings in columns.items():
        comment = f"  # {remarks[name]}" if name in remarks else ""
        yield f"{quote(name)} = {_write(settings or {'kind': ''})}{comment}"


def quote(text: str) -> str:
    """A text, or a key, of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(value: Any) -> str:
    """A value of TOML."""
    match value:
        case str():
            return quote(value)
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < _LARGE:
            return str(int(value))
        case list():
            return f"[{', '.join(map(_write, value))}]"
        case dict():
            inside = ", ".join(f"{name} = {_write(part)}" for name, part in value.items())
            return f"{{ {inside} }}"
    return repr(value)
