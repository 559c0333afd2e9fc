"""From a table's cells to features and labels, by what its schema declares; each row by itself."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.data import cells
from privlearn.data.cells import Misfit
from privlearn.data.faults import Faults
from privlearn.data.schema import Category, Date, Number, Schema
from privlearn.data.tables import Table
from privlearn.errors import BadInput, first_line

#: Columns, and texts of a column, that a remark names.
_NAMED = 5
#: The share of a column's cells beyond its bounds from which on it is spoken of.
_MANY = 0.2
#: What is said of such a share.
_PRIVATE = "These shares are for the data's curator, and not for publication"


def encode_features(table: Table, schema: Schema) -> NDArray[np.float32]:
    """The features of every row, shape (rows, features): numbers clipped to their bounds,
    categories as 0 and 1.

    Raises:
        BadInput: columns that are not there, or the first cell of a column that is no finite number
            where one is expected, or is missing where the schema has no number for it. One error
            tells of all columns.
    """
    features, faults = [], Faults()
    for column in schema.features:
        with faults.noted():
            features.append(_features_of(table, column, schema))
    faults.refuse()
    return np.concatenate(features, axis=1)


def _features_of(table: Table, column: Any, schema: Schema) -> NDArray[np.float32]:
    array = _column(table, column.name)
    if isinstance(column, Category):
        places, _, misfit = cells.places_of(array, column.categories, column.match)
        _refuse(table, column.name, misfit, schema)
        features = np.zeros((len(places), len(column.categories)), dtype=np.float32)
        rows = np.flatnonzero(places >= 0)
        features[rows, places[rows]] = 1.0
        return features
    if isinstance(column, Date):
        values, absent, misfit = cells.days(array, schema.missing, column.format)
        _refuse(table, column.name, misfit, schema, column)
        since = values - (column.low - date(1970, 1, 1)).days
        return _clipped(table, column.days, since, absent, str(column.low))
    values, absent, misfit = cells.numbers(array, schema.missing, _decimal(schema))
    _refuse(table, column.name, misfit, schema)
    return _clipped(table, column, values, absent, f"{column.low:g}")


def _clipped(
    table: Table, column: Number, values: Any, absent: NDArray[np.bool_], example: str
) -> NDArray[np.float32]:
    """Numbers within their bounds, with what stands for missing ones."""
    if absent.any() and column.missing is None:
        row = int(np.argmax(absent))
        raise BadInput(
            f"{table.place(row, column.name)} is missing: say in the schema, at this column, what "
            f"stands for a missing value (for example missing = {example}), or fill it by a rule "
            "that does not look at the other rows",
            row=table.first + row,
        )
    values = np.where(absent, column.missing or 0.0, values)
    # Clipped in double precision: in single precision a large number could become infinite first.
    clipped = values.clip(column.low, column.high).astype(np.float32)[:, None]
    indicators = absent.astype(np.float32)[:, None]
    return np.concatenate([clipped, indicators], axis=1) if column.indicator else clipped


def _decimal(schema: Schema) -> str:
    return "." if schema.dialect is None else schema.dialect.decimal


def _refuse(
    table: Table,
    name: str,
    misfit: Misfit | None,
    schema: Schema,
    column: Date | None = None,
) -> None:
    """Raise `BadInput` for a cell that its column does not allow, if there is one."""
    if misfit is None:
        return
    if misfit.problem == "ambiguous":
        problem = (
            "several declared names mean the same as it, and none is written so: store the column "
            "as text, as the names are"
        )
    elif misfit.problem == "infinite":
        problem = "expected a finite number"
    else:
        example = f"such as 3 or -2{_decimal(schema)}5e3"
        if column is not None:
            day = date(2020, 12, 31)
            example = f"such as {day.strftime(column.format) if column.format else day}"
        problem = (
            f"expected a {'number' if column is None else 'date'} {example}, or one of the texts "
            f"for a missing value, {listed(schema.missing) or 'none'}"
        )
        if column is None and _decimal(schema) == "." and "," in str(misfit.cell):
            problem += '. For decimals behind a comma write decimal = "," into the schema'
    raise BadInput(
        f"{table.place(misfit.row, name)} is {_short(misfit.cell)}: {problem}",
        row=table.first + misfit.row,
    )


def encode_target(table: Table, schema: Schema) -> NDArray[np.int64] | NDArray[np.float32]:
    """The label of every row: its target's position among the classes; or the target as a number,
    within its bounds.

    Of several targets the labels, or the numbers, of each, shape (rows, targets).

    Raises:
        BadInput: the target's column is not there, or a cell holds none of the classes, or no
            number.
    """
    if schema.target_ranges:
        columns = [
            _numbers(table, name, low, high, schema) for name, low, high in schema.target_ranges
        ]
        return np.stack(columns, axis=1)
    if schema.target_bounds is not None:
        return _numbers(table, schema.target, *schema.target_bounds, schema)
    labels = np.stack([_labels(table, name, schema) for name in schema.targets], axis=1)
    return labels if schema.labels else labels[:, 0]


def _numbers(
    table: Table, target: str, low: float, high: float, schema: Schema
) -> NDArray[np.float32]:
    values, absent, misfit = cells.numbers(_column(table, target), schema.missing, _decimal(schema))
    _refuse(table, target, misfit, schema)
    if absent.any():
        row = int(np.argmax(absent))
        raise BadInput(
            f"{table.place(row, target)} is missing, and it is what is to be predicted: "
            "leave out rows without it before the table is given, or predict another column",
            row=table.first + row,
        )
    return values.clip(low, high).astype(np.float32)


def _labels(table: Table, target: str, schema: Schema) -> NDArray[np.int64]:
    array = _column(table, target)
    labels, _, misfit = cells.places_of(array, schema.classes)
    _refuse(table, target, misfit, schema)
    if (labels < 0).any():
        row = int(np.argmax(labels < 0))
        cell = cells.values_of(array[row : row + 1])[0]
        raise BadInput(
            f"{table.place(row, target)} is {_short(cell)}: expected one of the declared "
            f"classes, {listed(schema.classes)}",
            row=table.first + row,
        )
    return labels


def encode_persons(table: Table, schema: Schema) -> NDArray[np.str_] | None:
    """Whose row each is; None if the schema names no such column.

    Raises:
        BadInput: the column is not there, or a cell is empty or missing.
    """
    if schema.person is None:
        return None
    ids = cells.texts(_column(table, schema.person))
    for row, person in enumerate(ids):
        if person in ("", *schema.missing):
            raise BadInput(
                f"{table.place(row, schema.person)} is {_short(person)}: expected a person's id in "
                "every row; where the person is not known, give the row an id of its own",
                row=table.first + row,
            )
    return np.array(ids, dtype=np.str_)


@final
class UnmatchedCells:
    """The cells of a table that have none of their column's declared categories, or lie beyond its
    bounds, counted over its chunks. Counts are private: remarks have rounded shares of the rows,
    for the data's curator.
    """

    def __init__(self, schema: Schema) -> None:
        self._columns = [part for part in schema.features if isinstance(part, Category)]
        self._missing = {"", *schema.missing}
        self._others = {column.name: Counter[str]() for column in self._columns}
        self._absent = dict.fromkeys(self._others, 0)
        self._ranges = [part for part in schema.features if not isinstance(part, Category)]
        self._beyond = {column.name: 0 for column in self._ranges}
        self._schema = schema
        self._rows = 0

    @classmethod
    def of(cls, table: Table, schema: Schema) -> UnmatchedCells:
        """Those of a table that is whole."""
        cells_of_table = cls(schema)
        cells_of_table.add(table)
        return cells_of_table

    def add(self, table: Table) -> None:
        """Count those of a chunk, whose columns are those of the schema."""
        for column in self._columns:
            array = table.columns[column.name]
            _, others, _ = cells.places_of(array, column.categories, column.match)
            for text in self._missing & others.keys():
                del others[text]
            self._others[column.name] += others
            self._absent[column.name] += array.null_count
        for number in self._ranges:
            self._beyond[number.name] += _count_beyond(table, number, self._schema)
        self._rows += len(table)

    def remarks(self) -> list[str]:
        """How many there are, which, and what is declared that looks like them."""
        remarks = []
        for column in self._columns:
            if others := self._others[column.name]:
                remarks.append(_describe_others(column, others, self._rows))
            absent = self._absent[column.name]
            taken = [name for name in column.categories if cells.is_read_as_missing(name)]
            if taken and absent:
                remarks.append(
                    f"{_share(absent, self._rows)} of the cells of column {column.name!r} are "
                    f"missing, and its category {taken[0]!r} is what pandas reads as missing: read "
                    f"the table with keep_default_na=False, or give the file. {_PRIVATE}"
                )
        for name, count in self._beyond.items():
            if count > _MANY * self._rows:
                remarks.append(
                    f"{_share(count, self._rows)} of the cells of column {name!r} are beyond its "
                    "declared bounds, and count as the nearer bound: is it measured in another "
                    f"unit? {_PRIVATE}"
                )
        return remarks


def _count_beyond(table: Table, column: Number | Date, schema: Schema) -> int:
    """How many cells are numbers, or days, beyond the declared bounds."""
    array = table.columns[column.name]
    if isinstance(column, Date):
        values, absent, _ = cells.days(array, schema.missing, column.format)
        values = values - (column.low - date(1970, 1, 1)).days
        low, high = 0.0, column.days.high
    else:
        values, absent, _ = cells.numbers(array, schema.missing, _decimal(schema))
        low, high = column.low, column.high
    return int(np.count_nonzero(~absent & ((values < low) | (values > high))))


def _describe_others(column: Category, others: Counter[str], rows: int) -> str:
    """The commonest texts that are no category, each with the declared one that looks like it, and
    with shares of the rows.
    """
    listed_texts, by_case = [], False
    for text, count in others.most_common(_NAMED):
        near = _nearest(text, column.categories)
        by_case = by_case or (near is not None and cells.folded(near) == cells.folded(text))
        like = "" if near is None else f", like {_short(near)}, which is declared"
        listed_texts.append(f"{_short(text)} ({_share(count, rows)}{like})")
    more = f"; and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
    advice = (
        '. match = "casefold" at this column in the schema leaves capitals and spaces out'
        if by_case
        else ""
    )
    return (
        f"{_share(sum(others.values()), rows)} of the cells of column {column.name!r} are none of "
        f"its declared categories, and count as none: {'; '.join(listed_texts)}{more}{advice}. "
        f"{_PRIVATE}"
    )


def _share(count: int, rows: int) -> str:
    """A part of the rows in words, without their number, which may be private."""
    percent = 100 * count / rows
    if count == rows:
        return "all"
    if percent < 1:
        return "under 1 %"
    return "over 99 %" if percent > 99 else f"about {percent:.0f} %"


def _nearest(text: str, names: Sequence[str]) -> str | None:
    """The declared name that a text is probably meant to be."""
    for form in (cells.folded, cells.unaccented):
        for name in names:
            if form(name) == form(text):
                return name
    close = difflib.get_close_matches(text, names[:1000], n=1, cutoff=0.85)
    return close[0] if close else None


def _column(table: Table, name: str) -> Any:
    if name not in table.columns:
        raise BadInput(
            f"{table.name} has no column {name!r}, which its schema names: it has "
            f"{listed([*table.columns, *table.ignored]) or 'none'}",
            column=name,
        )
    return table.columns[name]


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message, cut where they are many or long."""
    texts = [_short(name) for name in names[:most]]
    return ", ".join(texts + [f"and {len(names) - most} more"] * (len(names) > most))


def _short(cell: Any) -> str:
    if isinstance(cell, date):
        cell = cell.isoformat()
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
