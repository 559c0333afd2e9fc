"""Tables as people have them: CSV and Parquet, read into columns of cells. What cells mean, a
schema says.

Whatever cannot be read without guessing is refused, with its place: a check for the curator,
outside any guarantee.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, final

from privlearn.errors import BadInput, first_line

#: A cell as a file has it; None in a Parquet file is a missing value.
Cell = str | int | float | bool | None
#: Bytes that the names of the columns may take.
_LONGEST_HEADER = 1 << 20
#: Rows of a Parquet file that are read at once.
_CHUNK = 1 << 15
#: Bytes of each column that are read at once.
_BUFFER = 1 << 20


@final
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Columns of equally many cells.

    Attributes:
        name: what to call it in messages.
        columns: the cells of each column that was asked for and is there.
        ignored: the columns that were not asked for.
        lines: for each row, the line of a text file that it ends on; None: the file has no lines.
        first: how many rows of the file come before these.
    """

    name: str
    columns: Mapping[str, Sequence[Cell]]
    ignored: tuple[str, ...] = ()
    lines: Sequence[int] | None = None
    first: int = 0

    def place(self, row: int, column: str) -> str:
        """Where a cell is, for a person; rows are counted from 1."""
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return f"{self.name}, row {self.first + row + 1}{line}, column {column!r}"


def read_table(path: Path, wanted: Sequence[str]) -> Table:
    """Read the columns `wanted` of a .csv or .parquet file; those that it lacks are left out.

    Raises:
        BadInput: the file is missing, of another kind, or cannot be read.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise BadInput(f"{path} has a schema: expected a file that ends in .csv or .parquet")
    if not path.is_file():
        raise BadInput(
            f"there is no file {path}: expected a CSV or Parquet file there", path=str(path)
        )
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, wanted)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    return parse_csv(raw, str(path), wanted)


def read_chunks(path: Path, wanted: Sequence[str]) -> Iterator[Table]:
    """The same of a Parquet file, some rows at a time, numbers without gaps as arrays. A CSV file
    is one chunk.

    Raises:
        BadInput: as `read_table`.
    """
    if path.suffix.lower() != ".parquet" or not path.is_file():
        yield read_table(path, wanted)
        return
    pyarrow, parquet = _pyarrow(path)
    names = column_names(path)
    _require_different(path, names, wanted)
    first = 0
    try:
        for batch in _batches(parquet, path, [name for name in wanted if name in names]):
            columns = {
                name: _numbers_of(column, pyarrow.types)
                if _numbers_only(column, pyarrow.types)
                else _cells(path, name, column, pyarrow.types)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            yield Table(
                str(path),
                columns,
                tuple(name for name in names if name not in columns),
                first=first,
            )
            first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(
            f"{path} cannot be read as Parquet: {first_line(error)}", path=str(path)
        ) from error


def _batches(parquet: Any, path: Path, columns: list[str]) -> Iterator[Any]:
    """Some rows at a time; row group by row group, because pyarrow keeps what it has read of
    several.
    """
    file = parquet.ParquetFile(path, page_checksum_verification=True, buffer_size=_BUFFER)
    for group in range(file.num_row_groups):
        yield from file.iter_batches(_CHUNK, row_groups=[group], columns=columns)


def _numbers_only(column: Any, types: Any) -> bool:
    return not column.null_count and bool(
        types.is_integer(column.type) or types.is_floating(column.type)
    )


def _numbers_of(column: Any, types: Any) -> Any:
    """Whole numbers, or numbers in double precision, as Python has them."""
    values = column.to_numpy(zero_copy_only=False)
    return values.astype("float64") if types.is_floating(column.type) else values


def is_frame(given: Any) -> bool:
    """Whether this is a data frame of pandas or polars, or a table of Arrow."""
    return hasattr(given, "columns") and (hasattr(given, "to_dict") or hasattr(given, "to_pydict"))


def of_frame(frame: Any, wanted: Sequence[str]) -> Table:
    """The columns `wanted` of a data frame of pandas or polars, or of an Arrow table; those that it
    lacks are left out.

    Raises:
        BadInput: two columns of one name, or cells that are no numbers, texts, booleans or dates.
    """
    names = [str(name) for name in getattr(frame, "column_names", None) or frame.columns]
    for name in wanted:
        if names.count(name) > 1:
            raise BadInput(
                f"the data frame has two columns {name!r}: rename or drop one of them", column=name
            )
    columns = {name: _cells_of(frame, name) for name in wanted if name in names}
    return Table("data frame", columns, tuple(name for name in names if name not in columns))


def framed(like: Any, columns: Mapping[str, Any]) -> Any:
    """A data frame of the same library as `like`, with these columns of arrays (and the index of
    one of pandas).
    """
    kind = type(like)
    if hasattr(like, "to_pydict"):
        return kind.from_pydict(dict(columns))
    return kind(dict(columns), index=like.index) if hasattr(like, "index") else kind(dict(columns))


def _cells_of(frame: Any, name: str) -> Sequence[Cell]:
    column = frame[name]
    if hasattr(column, "isna"):  # pandas, which has several kinds of missing values
        cells = [
            None if gone else cell
            for cell, gone in zip(column.tolist(), column.isna().tolist(), strict=True)
        ]
    else:
        cells = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    return [_plain(cell, row, name) for row, cell in enumerate(cells)]


def _plain(cell: Any, row: int, name: str) -> Cell:
    """A cell as a file would have it: dates as text."""
    if isinstance(cell, date):
        return cell.isoformat()
    cell = cell.item() if hasattr(cell, "item") else cell
    if cell is not None and not isinstance(cell, Cell):
        raise BadInput(
            f"data frame, row {row + 1}, column {name!r} holds a {type(cell).__name__}: expected "
            "numbers, text, booleans or dates; convert it, or take it out of the schema",
            row=row,
        )
    return cell


def parse_csv(
    raw: bytes, name: str, wanted: Sequence[str], header: Sequence[str] | None = None
) -> Table:
    """Read CSV: UTF-8, commas, double quotes; the first line names the columns unless `header`
    does.

    Spaces after commas and empty lines do not count.

    Raises:
        BadInput: other encodings, quotes that do not close, columns of one name, rows of another
            length.
    """
    rows = _csv_rows(raw, name)
    if header is None:
        _, header = next(rows, (0, []))
    header = [part.strip() for part in header]
    for at, part in enumerate(header):
        if part in header[:at]:
            raise BadInput(
                f"{name} has two columns {part!r}: rename or drop one of them", column=part
            )
    places = {part: header.index(part) for part in wanted if part in header}
    lines: list[int] = []
    columns: dict[str, list[Cell]] = {part: [] for part in places}
    for line, row in rows:
        if len(row) != len(header):
            raise BadInput(
                f"{name}, row {len(lines) + 1} (line {line}) has {len(row)} cells: expected "
                f"{len(header)}, one for each column; cells that hold commas need double quotes",
                row=len(lines),
            )
        lines.append(line)
        for part, at in places.items():
            columns[part].append(row[at])
    return Table(name, columns, tuple(part for part in header if part not in places), lines)


def _csv_rows(raw: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with the line that it ends on."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(
            f"{name} is not UTF-8, first in line {line}: save it as CSV in UTF-8", line=line
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise BadInput(
            f"{name} holds a zero byte in line {line}: expected CSV text in UTF-8", line=line
        )
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise BadInput(
            f"{name}, line {reader.line_num} is not valid CSV: {error}. Expected commas between "
            "cells, and double quotes around those that hold commas, quotes or line breaks",
            line=reader.line_num,
        ) from error


def _read_parquet(path: Path, wanted: Sequence[str]) -> Table:
    pyarrow, parquet = _pyarrow(path)
    try:
        names = parquet.read_schema(path).names
        _require_different(path, names, wanted)
        # Pages may have checksums; they are not checked by default.
        read = parquet.ParquetFile(path, page_checksum_verification=True).read(
            columns=[name for name in wanted if name in names]
        )
        columns: dict[str, Sequence[Cell]] = {}
        for name, column in zip(read.column_names, read.columns, strict=True):
            columns[name] = _cells(path, name, column, pyarrow.types)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} cannot be read as Parquet: {first_line(error)}", path=str(path)
        ) from error
    return Table(str(path), columns, tuple(name for name in names if name not in columns))


def _require_different(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if names.count(name) > 1:
            raise BadInput(
                f"{path} has two columns {name!r}: rename or drop one of them", column=name
            )


def _cells(path: Path, name: str, column: Any, types: Any) -> Sequence[Cell]:
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    plain = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_string,
        types.is_large_string,
        types.is_date,
        types.is_timestamp,
    )
    if not any(is_kind(kind) for is_kind in plain):
        raise BadInput(
            f"column {name!r} of {path} holds {column.type}: expected numbers, text, booleans or "
            "dates; convert it, or take it out of the schema",
            column=name,
        )
    return [cell.isoformat() if isinstance(cell, date) else cell for cell in column.to_pylist()]


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(
            f"{path} is a Parquet file, and pyarrow is not installed: pip install "
            "'privlearn[parquet]', or give a CSV file"
        ) from error
    return pyarrow, pyarrow.parquet


def column_names(path: Path) -> list[str]:
    """The names of the columns, from a CSV file's first line or a Parquet file's schema; no row is
    looked at.

    Raises:
        BadInput: as `read_table`.
    """
    if path.suffix.lower() == ".parquet" and path.is_file():
        pyarrow, parquet = _pyarrow(path)
        try:
            return [str(name) for name in parquet.read_schema(path).names]
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be read as Parquet: {first_line(error)}") from error
    if path.suffix.lower() != ".csv" or not path.is_file():
        raise BadInput(
            f"there is no table {path}: expected a file there that ends in .csv or .parquet"
        )
    with path.open("rb") as file:
        first = file.readline(_LONGEST_HEADER)
    return list(parse_csv(first, str(path), ()).ignored)
