"""The columns of a published schema in words: kinds, bounds, categories, missing values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Columns that a card lists at most, and categories of one column.
_MOST_COLUMNS, _MOST_CATEGORIES = 100, 12


def describe_columns(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A name and a text for each column that was read, those to predict last.

    Guarantee: it is made of `table` alone, which is published beside it.

    Args:
        table: what a published configuration says of the table (`Schema.to_json`).
    """
    columns = table["columns"]
    rows = [(str(name), "; ".join(_describe(dict(column)))) for name, column in columns.items()]
    left = len(rows) - _MOST_COLUMNS
    if left > 0:
        rows = [*rows[:_MOST_COLUMNS], (f"{left} more columns", "config.json lists all of them")]
    return rows


def describe_missing(table: Mapping[str, Any]) -> str:
    """What stands for a missing value in the cells of `table`, as a sentence; empty: nothing."""
    texts = [f"“{text}”" if text else "an empty cell" for text in table.get("missing", ())]
    return f"A missing value is written as {_join(texts)}." if texts else ""


def describe_draft(table: Mapping[str, Any]) -> str:
    """Which public file the bounds and categories of `table` were drafted from, as a sentence;
    empty: none is stated.
    """
    if "drafted_from" not in table:
        return ""
    drafted = table["drafted_from"]
    return (
        f"Bounds and categories were drafted from the file “{drafted['file']}”, which the data's "
        f"curator declares public (SHA-256 {drafted['sha256']})."
    )


def _describe(column: dict[str, Any]) -> Iterator[str]:
    """What is declared of one column; of settings that are not known here, their names and
    values.
    """
    kind = str(column.pop("kind", "column"))
    bounds = [_write(column.pop(name)) for name in ("low", "high") if name in column]
    kind = "to predict" if kind == "target" else kind
    yield f"{kind}, from {bounds[0]} to {bounds[1]}" if len(bounds) == 2 else kind
    for name, word in (("categories", "one of"), ("classes", "one of")):
        if values := column.pop(name, ()):
            yield f"{word} {_join([_write(value) for value in values])}"
    if "missing" in column:
        yield f"a missing value counts as {_write(column.pop('missing'))}"
    if column.pop("indicator", False):
        yield "that a value is missing is a feature of its own"
    yield from (f"{name}: {_write(value)}" for name, value in column.items())


def _join(values: list[str]) -> str:
    """A list in words, its length where it is long."""
    more = len(values) - _MOST_CATEGORIES
    return ", ".join(values[:_MOST_CATEGORIES]) + (f" and {more} more" if more > 0 else "")


def _write(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
