"""What a table's columns are, declared in a TOML file: bounds, categories, missing values, classes.

Nothing here is ever read off rows: a bound, a category or a class that came from private rows would be an unpaid release.

From a table's cells to features and labels, by what its schema declares; each row by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.data.tables import Cell, Table
from privlearn.errors import BadInput

#: What stands for a missing value unless the schema says otherwise: an empty cell.
_MISSING = ("",)


@final
@dataclass(frozen=True)
class Number:
    """A column of numbers: one feature.

    Attributes:
        name: the column.
        low: declared lower bound; values below count as this.
        high: declared upper bound; values above count as this.
        missing: what stands for a missing value; None: missing values are refused.
    """

    name: str
    low: float
    high: float
    missing: float | None = None

    def ranges(self) -> list[tuple[float, float]]:
        """The bounds of its features."""
        return [(self.low, self.high)]

    def names(self) -> list[str]:
        """What its features are called."""
        return [self.name]


@final
@dataclass(frozen=True)
class Category:
    """A column of names: one feature for each declared category, 1 where a row has it and else 0.

    Rows with another value, or none, have 0 in all of them.
    """

    name: str
    categories: tuple[str, ...]

    def ranges(self) -> list[tuple[float, float]]:
        """The bounds of its features."""
        return [(0.0, 1.0)] * len(self.categories)

    def names(self) -> list[str]:
        """What its features are called."""
        return [f"{self.name}={category}" for category in self.categories]


@final
@dataclass(frozen=True)
class Schema:
    """What is publicly declared of a table.

    Attributes:
        target: the column to predict.
        classes: its values; a row's label is the position in this list.
        features: the columns to learn from, in the order in which their features come.
        missing: the texts that stand for a missing value, spaces around them left out.
        person: the column that says whose row it is, if persons are to be protected; private, and no feature.
    """

    target: str
    classes: tuple[str, ...]
    features: tuple[Number | Category, ...]
    missing: tuple[str, ...] = _MISSING
    person: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, the target last."""
        return (*(column.name for column in self.features), self.target)

    @property
    def digest(self) -> str:
        """A SHA-256 of what settles the meaning of features and labels; the target's name does not."""
        columns = [{"kind": type(column).__name__.lower(), **asdict(column)} for column in self.features]
        settled = {"features": columns, "classes": self.classes, "missing": sorted(set(self.missing))}
        return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the features are called, in their order."""
        return tuple(name for column in self.features for name in column.names())

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Lower and upper bounds of the features, each of shape (features,)."""
        ranges = np.array([pair for column in self.features for pair in column.ranges()], dtype=np.float32)
        return ranges[:, 0], ranges[:, 1]


def read_schema(path: str | Path) -> Schema:
    """Read a schema file.

    Raises:
        BadInput: the file is missing, no TOML, or does not declare what it should.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"the schema {path} cannot be read: {error.strerror}. Expected a TOML file; docs/data.md has one"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"the schema {path} is no UTF-8 text: expected a TOML file; docs/data.md has one") from error
    return parse_schema(text, str(path))


def parse_schema(text: str, name: str) -> Schema:
    """The schema in `text`; messages call it `name`.

    Raises:
        BadInput: as `read_schema`.
    """
    try:
        settings = tomllib.loads(text)
    except RecursionError as error:
        raise BadInput(f"the schema {name} is nested too deeply: docs/data.md shows what it holds") from error
    except ValueError as error:  # TOML errors, and numbers of thousands of digits
        raise BadInput(f"the schema {name} is no TOML: {error}. docs/data.md has an example") from error
    return _Reader(name).schema(settings)


def require_range(what: str, low: float, high: float) -> None:
    """Refuse bounds that are not two finite numbers, the smaller first, that differ in single precision.

    Raises:
        BadInput: just that.
    """
    with np.errstate(over="ignore"):
        settled = np.float32(low), np.float32(high)
    if not -np.inf < settled[0] < settled[1] < np.inf:
        raise BadInput(
            f"{what} is {low:.10g},{high:.10g}: expected two finite numbers, the smaller first, that single precision tells "
            "apart"
        )


@final
class _Reader:
    """Checks what a schema file says; every complaint names the file and the place in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def schema(self, settings: Mapping[str, Any]) -> Schema:
        self._only("it", settings, ("target", "missing", "person", "columns"))
        missing = settings.get("missing", list(_MISSING))
        if not isinstance(missing, list) or not all(isinstance(part, str) for part in missing):
            raise self._refusal(f"missing is {_quoted(missing)}", 'a list of texts, for example missing = ["?", ""]')
        missing = tuple(part.strip() for part in missing)
        columns = settings.get("columns")
        if not isinstance(columns, dict) or not columns:
            raise self._refusal("there are no columns", "a table [columns.NAME] for each column")
        target = settings.get("target")
        if not isinstance(target, str) or target not in columns:
            raise self._refusal(
                f"target is {_quoted(target)}", f"one of the columns: {', '.join(map(_quoted, [*columns][:12]))}"
            )
        features: list[Number | Category] = []
        classes: tuple[str, ...] = ()
        for name, stated in columns.items():
            column = self._column(name, stated, missing)
            if isinstance(column, Number | Category):
                features.append(column)
            if isinstance(column, tuple) == (name != target):
                raise self._refusal(
                    f"target is {_quoted(target)}, and column {_quoted(name)} has kind {_quoted(stated['kind'])}",
                    'kind = "target" for the target, and for no other column',
                )
            if isinstance(column, tuple):
                classes = column
        if not features:
            raise self._refusal("the target is its only column", "at least one column to learn from")
        person = settings.get("person")
        if person is not None and (not isinstance(person, str) or person in columns):
            raise self._refusal(
                f"person is {_quoted(person)}", "the name of a column that is neither a feature nor the target"
            )
        return Schema(target, classes, tuple(features), missing, person)

    def _column(self, name: str, stated: Any, missing: tuple[str, ...]) -> Number | Category | tuple[str, ...]:
        """A feature, or the target's classes."""
        place = f"column {_quoted(name)}"
        if name != name.strip():
            raise self._refusal(
                f"{place} has spaces around its name", "none; those in a file's header are left out too"
            )
        if not isinstance(stated, dict):
            raise self._refusal(f"{place} is {_quoted(stated)}", f"a table [columns.{name[:60]}]")
        match stated.get("kind"):
            case "number":
                self._only(place, stated, ("kind", "low", "high", "missing"))
                low, high = (self._number(place, stated, key) for key in ("low", "high"))
                require_range(f"the range of {place} in the schema {self._name}", low, high)
                fill = self._number(place, stated, "missing") if "missing" in stated else None
                if fill is not None and not low <= fill <= high:
                    raise self._refusal(f"missing of {place} is {fill:g}", f"a number from {low:g} to {high:g}")
                return Number(name, low, high, fill)
            case "category":
                self._only(place, stated, ("kind", "categories"))
                return Category(name, self._names(place, stated, "categories", 1, missing))
            case "target":
                self._only(place, stated, ("kind", "classes"))
                return self._names(place, stated, "classes", 2, missing)
        raise self._refusal(f"kind of {place} is {_quoted(stated.get('kind'))}", '"number", "category" or "target"')

    def _number(self, place: str, stated: Mapping[str, Any], key: str) -> float:
        value = stated.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e38:
            raise self._refusal(f"{key} of {place} is {_quoted(value)}", f"a finite number, publicly known: {key} = 0")
        return float(value)

    def _names(
        self, place: str, stated: Mapping[str, Any], key: str, least: int, missing: tuple[str, ...]
    ) -> tuple[str, ...]:
        names = stated.get(key)
        if not isinstance(names, list) or len(names) < least or not all(isinstance(part, str) for part in names):
            raise self._refusal(f"{key} of {place} is {_quoted(names)}", f"a list of at least {least}, each in quotes")
        for at, part in enumerate(names):
            wrongs = {
                "is empty": part == "",
                "has spaces around it, which are left out of a file's cells": part != part.strip(),
                "stands for a missing value": part in missing,
                "comes twice": part in names[:at],
            }
            for wrong, present in wrongs.items():
                if present:
                    raise self._refusal(
                        f"{_quoted(part)} in {key} of {place} {wrong}", "different names, none of them a missing value"
                    )
        return tuple(names)

    def _only(self, place: str, stated: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in stated:
            if key not in known:
                raise self._refusal(f"{place} has {_quoted(key)}", f"only {', '.join(known)}")

    def _refusal(self, given: str, expected: str) -> BadInput:
        return BadInput(f"in the schema {self._name}, {given}: expected {expected}. docs/data.md has the grammar")


def _quoted(value: Any) -> str:
    """`value` as the schema could have said it, cut to a line; numbers of thousands of digits have no repr."""
    if value is None:
        return "not there"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


#: Python's float() also takes "nan", "inf", "1_000" and digits of other scripts.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def encode_features(table: Table, schema: Schema) -> NDArray[np.float32]:
    """The features of every row, shape (rows, features): numbers clipped to their bounds, categories as 0 and 1.

    Raises:
        BadInput: a column that is not there, or a cell that is no finite number where one is expected, or is missing
            where the schema has no number for it.
    """
    parts = []
    for column in schema.features:
        cells = _column(table, column.name)
        if isinstance(column, Number):
            parts.append(_numbers(table, column, cells, schema.missing))
        else:
            parts.append(_indicators(table, column, cells))
    return np.concatenate(parts, axis=1)


def encode_target(table: Table, schema: Schema) -> NDArray[np.int64]:
    """The label of every row: its target's position among the classes.

    Raises:
        BadInput: the target's column is not there, or a cell holds none of the classes.
    """
    numbers = {name: label for label, name in enumerate(schema.classes)}
    labels = np.empty(len(cells := _column(table, schema.target)), dtype=np.int64)
    for row, cell in enumerate(cells):
        label = numbers.get(_text(table, row, schema.target, cell))
        if label is None:
            raise BadInput(
                f"{table.place(row, schema.target)} is {_short(cell)}: expected one of the declared classes, "
                f"{listed(schema.classes)}",
                row=row,
            )
        labels[row] = label
    return labels


def encode_persons(table: Table, schema: Schema) -> NDArray[np.str_] | None:
    """Whose row each is; None if the schema names no such column.

    Raises:
        BadInput: the column is not there, or a cell is empty or missing.
    """
    if schema.person is None:
        return None
    ids = [_text(table, row, schema.person, cell) for row, cell in enumerate(_column(table, schema.person))]
    for row, person in enumerate(ids):
        if person in ("", *schema.missing):
            raise BadInput(
                f"{table.place(row, schema.person)} is {_short(person)}: expected a person's id in every row; where "
                "the person is not known, give the row an id of its own",
                row=row,
            )
    return np.array(ids, dtype=np.str_)


def without_categories(table: Table, schema: Schema) -> list[str]:
    """Columns of categories where not one row has any: most likely they are spelt otherwise in the file."""
    absent = []
    for column in schema.features:
        if isinstance(column, Category):
            known = set(column.categories)
            cells = table.columns[column.name]
            if not any(_text(table, row, column.name, cell) in known for row, cell in enumerate(cells)):
                absent.append(column.name)
    return absent


def _column(table: Table, name: str) -> Sequence[Cell]:
    if name not in table.columns:
        raise BadInput(
            f"{table.name} has no column {name!r}, which its schema names: it has "
            f"{listed([*table.columns, *table.ignored]) or 'none'}",
            column=name,
        )
    return table.columns[name]


def _numbers(table: Table, column: Number, cells: Sequence[Cell], missing: tuple[str, ...]) -> NDArray[np.float32]:
    values = np.empty((len(cells), 1), dtype=np.float64)
    for row, cell in enumerate(cells):
        text = cell.strip() if isinstance(cell, str) else cell
        if text is None or text in missing:
            if column.missing is None:
                raise BadInput(
                    f"{table.place(row, column.name)} is missing: say in the schema what stands for a missing value (for "
                    f"example missing = {column.low:g} under [columns.{column.name}]), or fill it by a rule that does not "
                    "look at the other rows",
                    row=row,
                )
            values[row] = column.missing
            continue
        if isinstance(text, bool) or (isinstance(text, str) and not _NUMBER.fullmatch(text)):
            raise BadInput(
                f"{table.place(row, column.name)} is {_short(cell)}: expected a number such as 3 or -2.5e3, or one of the "
                f"texts for a missing value, {listed(missing) or 'none'}",
                row=row,
            )
        values[row] = float(text)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values[:, 0])))
        raise BadInput(f"{table.place(row, column.name)} is {_short(cells[row])}: expected a finite number", row=row)
    # Clipped in double precision: in single precision a large number could become infinite first.
    return values.clip(column.low, column.high).astype(np.float32)


def _indicators(table: Table, column: Category, cells: Sequence[Cell]) -> NDArray[np.float32]:
    places = {name: place for place, name in enumerate(column.categories)}
    features = np.zeros((len(cells), len(places)), dtype=np.float32)
    for row, cell in enumerate(cells):
        place = places.get(_text(table, row, column.name, cell))
        if place is not None:
            features[row, place] = 1.0
    return features


def _text(table: Table, row: int, column: str, cell: Cell) -> str:
    """A cell as a schema would write it in quotes: 3 is "3", true is "true", a missing value is ""."""
    match cell:
        case None:
            return ""
        case bool():
            return str(cell).lower()
        case float():
            raise BadInput(
                f"{table.place(row, column)} is the number {cell:g}, and the schema declares names: store the column as text "
                "or as whole numbers",
                row=row,
            )
    return str(cell).strip()


def listed(names: Sequence[str]) -> str:
    """Names for a message, cut where they are many or long."""
    texts = [_short(name) for name in names[:12]]
    return ", ".join(texts + [f"and {len(names) - 12} more"] * (len(names) > 12))


def _short(cell: Cell) -> str:
    text = repr(cell)
    return text if len(text) <= 40 else text[:37] + "..."
