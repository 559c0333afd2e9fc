"""Tables as people have them: data frames, files (`table_files.py`) and tables of databases
(`databases.py`), as columns of Arrow. What their cells mean, a schema says (`encoding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from privlearn.data import cells, table_files
from privlearn.data.databases import Address, open_table, read_address
from privlearn.data.table_files import Dialect, TableFile, form_of
from privlearn.errors import BadInput, first_line


@final
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Columns of equally many cells.

    Attributes:
        name: what to call it in messages.
        columns: the cells of each column that was asked for and is there, as arrays of Arrow.
        ignored: the columns that were not asked for.
        line: says for a row the line of a text file that it ends on; None: the file has no lines.
        first: how many rows of the file come before these.
        remarks: what to tell the data's curator of the file; not for publication.
        ordered: whether rows have an order that messages can number them by.
    """

    name: str
    columns: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    line: Callable[[int], int | None] | None = None
    first: int = 0
    remarks: tuple[str, ...] = ()
    ordered: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def place(self, row: int, column: str) -> str:
        """Where a cell is, for a person; rows are counted from 1."""
        if not self.ordered:
            return f"{self.name[:100]}, a cell of column {column!r}"
        number = None if self.line is None else self.line(self.first + row)
        line = "" if number is None else f" (line {number})"
        return f"{self.name}, row {self.first + row + 1}{line}, column {column!r}"

    def cells(self, column: str) -> list[Any]:
        """The cells of a column as Python has them."""
        return cells.values_of(self.columns[column])


def read_table(source: Any, wanted: Sequence[str], dialect: Dialect | None = None) -> Table:
    """The columns `wanted` of a file, a table of a database or a data frame; those that it lacks
    are left out. A `Table` is given back as it is.

    Raises:
        BadInput: there is no such file, it can't be read, or has two columns of one name.
    """
    if isinstance(source, Table):
        return source
    if is_frame(source):
        return _of_frame(source, wanted)
    (table,) = _read(source, wanted, dialect, whole=True)
    return table


def read_chunks(
    source: Any, wanted: Sequence[str], dialect: Dialect | None = None
) -> Iterator[Table]:
    """The same, some rows of a file at a time.

    Raises:
        BadInput: as `read_table`.
    """
    if is_frame(source):
        yield _of_frame(source, wanted)
    else:
        yield from _read(source, wanted, dialect, whole=False)


def is_table(source: Any) -> bool:
    """Whether a path or an address is that of a table."""
    source = read_address(source)
    return isinstance(source, Address) or form_of(Path(source)) is not None


def open_source(source: Any, dialect: Dialect | None) -> TableFile:
    """A file or a table of a database, of which no row is read yet.

    Raises:
        BadInput: as `read_table`.
    """
    source = read_address(source)
    if isinstance(source, Address):
        names, batches = open_table(source)
        return TableFile(tuple(names), batches, ordered=False)
    return table_files.open_file(Path(source), dialect)


def _read(
    source: Any, wanted: Sequence[str], dialect: Dialect | None, *, whole: bool
) -> Iterator[Table]:
    source, file = read_address(source), open_source(source, dialect)
    label = str(source) if isinstance(source, Address) else str(Path(source))
    places = _places(label, file.names, wanted)
    taken = set(places.values())
    ignored = tuple(name for at, name in enumerate(file.names) if at not in taken)
    first = 0
    for batch in file.read([file.names[at] for at in places.values()], whole=whole):
        columns = dict(zip(places, batch.columns[: len(places)], strict=True))
        for name, column in columns.items():
            _require_readable(label, name, column.type)
        yield Table(label, columns, ignored, file.line, first, file.remarks, file.ordered)
        first += batch.num_rows


def is_frame(data: Any) -> bool:
    """Whether this is a table in memory: of pandas, polars, Arrow, DuckDB, or anything else that
    can be read as one of Arrow.
    """
    if isinstance(data, type) or (hasattr(data, "iloc") and not hasattr(data, "columns")):
        return False  # a column of pandas is no table
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "collect_schema"):
        return True
    return hasattr(data, "columns") and (hasattr(data, "to_dict") or hasattr(data, "to_pydict"))


def framed(like: Any, columns: Mapping[str, Any]) -> Any:
    """A data frame of the same library as `like`, with these columns of arrays (and the index of
    one of pandas); of a query that is not run yet a data frame of polars, of DuckDB's a table of
    Arrow.
    """
    kind = type(like)
    if hasattr(like, "index"):
        return kind(dict(columns), index=like.index)
    if hasattr(like, "to_dict"):
        return kind(dict(columns))
    if hasattr(like, "collect"):
        return type(like.clear().collect())(dict(columns))
    import pyarrow as pa

    return pa.table(dict(columns))


def _of_frame(frame: Any, wanted: Sequence[str]) -> Table:
    """The columns `wanted` of a data frame.

    Raises:
        BadInput: two columns of one name, or cells that are no numbers, texts, booleans or dates.
    """
    if hasattr(frame, "iloc"):  # pandas, whose columns may hold cells of several kinds
        names = [_name_of(column) for column in frame.columns]
        places = _places("the data frame", names, wanted)
        columns = {name: _of_series(frame.iloc[:, at], name) for name, at in places.items()}
    else:
        names, table = _arrow_table(frame, wanted)
        inside = _places("the data frame", table.column_names, wanted)
        columns = {name: table.column(at) for name, at in inside.items()}
    for name, column in columns.items():
        _require_readable("the data frame", name, column.type)
    taken = {cells.normalized(name) for name in columns}
    ignored = tuple(name for name in names if cells.normalized(name) not in taken)
    return Table("data frame", columns, ignored)


def _arrow_table(frame: Any, wanted: Sequence[str]) -> tuple[list[str], Any]:
    """The names of all columns, and a table of Arrow with those that are wanted, or with all."""
    import pyarrow as pa

    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):  # polars' LazyFrame
        names = frame.collect_schema().names()
        places = _places("the data frame", names, wanted)
        return names, pa.table(frame.select([names[at] for at in places.values()]).collect())
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"the {type(frame).__name__} can't be read as a table: {first_line(error)}. Expected "
            "numbers, text, booleans or dates"
        ) from error
    return list(table.column_names), table


def _name_of(column: Any) -> str:
    """The name of a column of pandas; of several levels they are joined by dots."""
    return ".".join(map(str, column)) if isinstance(column, tuple) else str(column)


def _of_series(series: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        array = pa.array(series, from_pandas=True)
        # of objects of several kinds Arrow makes one kind, unless they are texts
        one_kind = series.dtype != object or pa.types.is_string(array.type)
        if cells.is_readable(array.type) and one_kind:
            return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass

    def refuse(row: int, cell: Any) -> BadInput:
        return BadInput(
            f"data frame, row {row + 1}, column {name!r} holds a {type(cell).__name__}: expected "
            "numbers, text, booleans or dates; convert it, or take it out of the schema",
            row=row,
        )

    return cells.array_of(series.tolist(), refuse)


def _places(label: str, names: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    """Where the wanted columns are that are there. Names are compared with accents composed.

    Raises:
        BadInput: one of them is there twice.
    """
    known = [cells.normalized(str(name)) for name in names]
    places = {}
    for name in wanted:
        if (count := known.count(cells.normalized(name))) > 1:
            raise BadInput(
                f"{label} has two columns {name!r}: rename or drop one of them", column=name
            )
        if count:
            places[name] = known.index(cells.normalized(name))
    return places


def _require_readable(label: str, name: str, kind: Any) -> None:
    if not cells.is_readable(kind):
        raise BadInput(
            f"column {name!r} of {label} holds {kind}: expected numbers, text, booleans or "
            "dates; convert it, or take it out of the schema",
            column=name,
        )


def column_names(source: Any, dialect: Dialect | None = None) -> list[str]:
    """The names of the columns of a file or of a table of a database, from a CSV file's first line
    or what else says it, or of a data frame; no row is looked at.

    Raises:
        BadInput: as `read_table`.
    """
    if not is_frame(source):
        return list(open_source(source, dialect).names)
    if hasattr(source, "collect_schema"):
        return list(source.collect_schema().names())
    if hasattr(source, "columns") and not hasattr(source, "column_names"):
        return [_name_of(column) for column in source.columns]
    return list(_of_frame(source, ()).ignored)
