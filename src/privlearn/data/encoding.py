"""From a table's cells to features and labels, by what its schema declares; each row by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.data.schema import Category, Date, Number, Schema
from privlearn.data.tables import Cell, Table
from privlearn.errors import BadInput, first_line

#: Python's float() also takes "nan", "inf", "1_000" and digits of other scripts.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def encode_features(table: Table, schema: Schema) -> NDArray[np.float32]:
    """The features of every row, shape (rows, features): numbers clipped to their bounds,
    categories as 0 and 1.

    Raises:
        BadInput: a column that is not there, or a cell that is no finite number where one is
            expected, or is missing where the schema has no number for it.
    """
    parts = []
    for column in schema.features:
        cells = _column(table, column.name)
        if isinstance(column, Category):
            parts.append(_indicators(table, column, cells))
        elif isinstance(column, Date):
            parts.append(
                _numbers(
                    table, column.days, _days(table, column, cells, schema.missing), schema.missing
                )
            )
        else:
            parts.append(_numbers(table, column, cells, schema.missing))
    return np.concatenate(parts, axis=1)


def encode_target(table: Table, schema: Schema) -> NDArray[np.int64] | NDArray[np.float32]:
    """The label of every row: its target's position among the classes; or the target as a number,
    within its bounds.

    Of several targets the labels of each, shape (rows, targets).

    Raises:
        BadInput: the target's column is not there, or a cell holds none of the classes, or no
            number.
    """
    if schema.target_bounds is not None:
        column = Number(schema.target, *schema.target_bounds)
        return _numbers(table, column, _column(table, schema.target), schema.missing)[:, 0]
    labels = np.stack([_labels(table, name, schema.classes) for name in schema.targets], axis=1)
    return labels if schema.labels else labels[:, 0]


def _labels(table: Table, target: str, classes: tuple[str, ...]) -> NDArray[np.int64]:
    numbers = {name: label for label, name in enumerate(classes)}
    labels = np.empty(len(cells := _column(table, target)), dtype=np.int64)
    for row, cell in enumerate(cells):
        label = numbers.get(_text(table, row, target, cell))
        if label is None:
            raise BadInput(
                f"{table.place(row, target)} is {_short(cell)}: expected one of the declared "
                f"classes, {listed(classes)}",
                row=table.first + row,
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
    ids = [
        _text(table, row, schema.person, cell)
        for row, cell in enumerate(_column(table, schema.person))
    ]
    for row, person in enumerate(ids):
        if person in ("", *schema.missing):
            raise BadInput(
                f"{table.place(row, schema.person)} is {_short(person)}: expected a person's id in "
                "every row; where the person is not known, give the row an id of its own",
                row=table.first + row,
            )
    return np.array(ids, dtype=np.str_)


def without_categories(table: Table, schema: Schema) -> list[str]:
    """Columns of categories where not one row has any: most likely they are spelt otherwise in the
    file.
    """
    absent = []
    for column in schema.features:
        if isinstance(column, Category):
            known = set(column.categories)
            cells = table.columns[column.name]
            if not any(
                _text(table, row, column.name, cell) in known for row, cell in enumerate(cells)
            ):
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


def _numbers(
    table: Table, column: Number, cells: Sequence[Cell], missing: tuple[str, ...]
) -> NDArray[np.float32]:
    values = np.empty((len(cells), 1), dtype=np.float64)
    absent = np.zeros((len(cells), 1), dtype=np.float32)
    if isinstance(cells, np.ndarray):  # numbers without gaps
        values[:, 0] = cells
    for row, cell in enumerate(() if isinstance(cells, np.ndarray) else cells):
        text = cell.strip() if isinstance(cell, str) else cell
        if text is None or text in missing:
            if column.missing is None:
                raise BadInput(
                    f"{table.place(row, column.name)} is missing: say in the schema what stands "
                    f"for a missing value (for example missing = {column.low:g} under "
                    f"[columns.{column.name}]), or fill it by a rule that does not look at the "
                    "other rows",
                    row=table.first + row,
                )
            values[row], absent[row] = column.missing, 1.0
            continue
        if isinstance(text, bool) or (isinstance(text, str) and not _NUMBER.fullmatch(text)):
            raise BadInput(
                f"{table.place(row, column.name)} is {_short(cell)}: expected a number such as 3 "
                f"or -2.5e3, or one of the texts for a missing value, {listed(missing) or 'none'}",
                row=table.first + row,
            )
        values[row] = float(text)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values[:, 0])))
        raise BadInput(
            f"{table.place(row, column.name)} is {_short(cells[row])}: expected a finite number",
            row=table.first + row,
        )
    # Clipped in double precision: in single precision a large number could become infinite first.
    clipped = values.clip(column.low, column.high).astype(np.float32)
    return np.concatenate([clipped, absent], axis=1) if column.indicator else clipped


def _days(
    table: Table, column: Date, cells: Sequence[Cell], missing: tuple[str, ...]
) -> list[Cell]:
    """Dates as days since the first one; a time of day behind a date is left out."""
    days: list[Cell] = []
    for row, cell in enumerate(cells):
        text = cell.strip() if isinstance(cell, str) else cell
        if text is None or text in missing:
            if column.missing is None:
                raise BadInput(
                    f"{table.place(row, column.name)} is missing: say in the schema what stands "
                    f"for a missing value (for example missing = {column.low} under "
                    f"[columns.{column.name}]), or fill it by a rule that does not look at the "
                    "other rows",
                    row=table.first + row,
                )
            days.append(None)
            continue
        try:
            day = date.fromisoformat(re.sub(r"[T ].*", "", text)) if isinstance(text, str) else None
        except ValueError:
            day = None
        if day is None:
            raise BadInput(
                f"{table.place(row, column.name)} is {_short(cell)}: expected a date such as "
                f"2020-12-31, or one of the texts for a missing value, {listed(missing) or 'none'}",
                row=table.first + row,
            )
        days.append((day - column.low).days)
    return days


def _indicators(table: Table, column: Category, cells: Sequence[Cell]) -> NDArray[np.float32]:
    places = {name: place for place, name in enumerate(column.categories)}
    features = np.zeros((len(cells), len(places)), dtype=np.float32)
    for row, cell in enumerate(cells):
        place = places.get(_text(table, row, column.name, cell))
        if place is not None:
            features[row, place] = 1.0
    return features


def _text(table: Table, row: int, column: str, cell: Cell) -> str:
    """A cell as a schema would write it in quotes: 3 is "3", true is "true", a missing value is
    "".
    """
    match cell:
        case None:
            return ""
        case bool():
            return str(cell).lower()
        case float() if cell.is_integer():
            return str(int(cell))  # whole numbers become these where a column has missing values
        case float():
            raise BadInput(
                f"{table.place(row, column)} is the number {cell:g}, and the schema declares "
                "names: store the column as text or as whole numbers",
                row=table.first + row,
            )
    return str(cell).strip()


def listed(names: Sequence[str]) -> str:
    """Names for a message, cut where they are many or long."""
    texts = [_short(name) for name in names[:12]]
    return ", ".join(texts + [f"and {len(names) - 12} more"] * (len(names) > 12))


def _short(cell: Cell) -> str:
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= 40 else text[:37] + "..."


def columns_of(frame: Any, names: Sequence[str]) -> NDArray[np.float32]:
    """Columns of numbers of a data frame, in the order of `names`, shape (rows, columns).

    Raises:
        BadInput: one is not there, or holds other than numbers.
    """
    try:
        return np.column_stack([np.asarray(frame[name], dtype=np.float32) for name in names])
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the data frame can't be read: {first_line(error)[:80]}. Expected numbers in the "
            f"columns {', '.join(names)[:100]}"
        ) from error
