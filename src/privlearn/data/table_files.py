"""Files of tables: CSV by DuckDB; Parquet, Feather and folders of them by pyarrow; JSON lines by
DuckDB; spreadsheets by fastexcel. Nothing in them is run.

Whatever cannot be read without guessing is refused, with its place: a check for the curator,
outside any guarantee.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import lzma
import re
import zlib
from bz2 import BZ2File
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from gzip import GzipFile
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.data import cells
from privlearn.errors import BadInput, first_line

#: What is likely to separate cells.
_SEPARATORS = (",", ";", "\t", "|")
#: Bytes that the names of the columns may take.
_LONGEST_HEADER = 1 << 20
#: Rows that are read at once.
_CHUNK = 1 << 15
#: Bytes of each column that are read at once.
_BUFFER = 1 << 20
#: Endings of databases, whose tables have addresses.
_DATABASES = (".db", ".db3", ".sqlite", ".sqlite3")
#: How packed files are opened, by the ending of their names.
_PACKED: dict[str, Callable[[Path], Any]] = {
    ".gz": GzipFile,
    ".bz2": BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda path: _unpacked_zst(path),
}
#: What tells rows of another length in DuckDB's words.
_LENGTH = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
_LINE = re.compile(r"CSV Error on Line: (\d+)")


@final
@dataclass(frozen=True)
class Dialect:
    """How a file writes a table: text its cells, and a workbook on which sheet.

    Attributes:
        separator: what stands between two cells, a character; empty: a comma, in .tsv files a tab.
        decimal: what stands before the decimals of a number: "." or ",".
        encoding: of the text, by its name in Python.
        sheet: the sheet of a workbook; empty: the first.
    """

    separator: str = ""
    decimal: str = "."
    encoding: str = "utf-8"
    sheet: str = ""

    def stated(self) -> dict[str, str]:
        """As a schema file says it: what is not usual."""
        usual = Dialect()
        return {name: value for name, value in vars(self).items() if value != getattr(usual, name)}


@final
@dataclass(frozen=True)
class TableFile:
    """A file that is about to be read.

    Attributes:
        names: of its columns.
        read: gives batches of Arrow with the columns of these names; all rows in one, if `whole`.
        line: says for a row the line that it ends on; None: the file has no lines.
        remarks: what to tell the data's curator of the file; not for publication.
        ordered: whether its rows have an order that numbers of rows could follow.
    """

    names: tuple[str, ...]
    batches: Callable[[list[str], bool], Iterator[Any]]
    line: Callable[[int], int | None] | None = None
    remarks: tuple[str, ...] = ()
    ordered: bool = True

    def read(self, names: list[str], *, whole: bool) -> Iterator[Any]:
        """Batches with these columns, of all rows in their order."""
        return self.batches(names, whole)


def open_file(path: Path, dialect: Dialect | None = None) -> TableFile:
    """Look at a file's form and at the names of its columns.

    Args:
        path: a file, or a folder of Parquet or Feather files.
        dialect: how the file writes its table; None: the usual way.

    Raises:
        BadInput: there is no such file, or it has another form.
    """
    form = form_of(path)
    with _damage_told(path):
        is_there = path.exists()
    if form is not None and not is_there:
        raise BadInput(f"there is no file {path}: check its name and folder", path=str(path))
    if form is None and path.suffix in _DATABASES:
        raise BadInput(
            f"{path} is a database: expected the address of one of its tables, "
            f"sqlite:///{path}?table=NAME",
            path=str(path),
        )
    if form is None:
        raise BadInput(
            f"there is no table {path}: expected a file that ends in {', '.join(FORMS)} (text may "
            "be packed: .gz, .zst, .xz, .bz2), or a folder of .parquet files",
            path=str(path),
        )
    dialect = dialect or Dialect()
    if not dialect.separator:
        dialect = replace(dialect, separator="\t" if form == ".tsv" else ",")
    with _damage_told(path):
        return FORMS[form](path, dialect)


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """A block in which a file that can't be read, or unpacked, becomes a `BadInput`."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise BadInput(f"{path} cannot be read: {reason}", path=str(path)) from error


def likely_dialect(path: Path) -> Dialect | None:
    """How a CSV file is probably separated, from its first line alone; None: the usual way."""
    if form_of(path) != ".csv" or not path.exists():
        return None
    first = _first_line(path, Dialect())
    if "," in first:
        return None
    return next((Dialect(sign) for sign in _SEPARATORS if sign in first), None)


def share_content(path: Path, other: Path) -> bool:
    """Whether a file of one table has the content of a file of another: under any name, and packed
    or not.

    Raises:
        BadInput: a file that can't be read or unpacked.
    """
    with _damage_told(path):
        sides = [_files_of(path), _files_of(other)]
    if not any(file.suffix.lower() in _PACKED for side in sides for file in side):
        # sizes differ before contents need to be compared
        sizes = set.intersection(*({file.stat().st_size for file in side} for side in sides))
        sides = [[file for file in side if file.stat().st_size in sizes] for side in sides]
    return bool(set.intersection(*({_content_digest(file) for file in side} for side in sides)))


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return [each for each in path.rglob("*.*") if each.is_file()]
    return [path]


def _content_digest(file: Path) -> str:
    with _damage_told(file), _opened(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def form_of(path: Path) -> str | None:
    """The ending that says what form a table's file has; None: it is none."""
    try:
        if path.is_dir():
            inside = {each.suffix.lower() for each in _files_of(path)}
            return next((each for each in (".parquet", ".feather") if each in inside), None)
    except OSError:  # a name that is too long, or a folder that changes
        return None
    endings = [ending.lower() for ending in path.suffixes]
    ending = (endings or [""])[-1]
    if ending in _PACKED:
        inner = (endings or [""])[-2:][0]
        return inner if inner in (".csv", ".tsv", ".jsonl") else None
    return _SAME.get(ending, ending if ending in FORMS else None)


def _open_csv(path: Path, dialect: Dialect) -> TableFile:
    first = _first_line(path, dialect)
    header = _header_of(path, first, dialect)

    def batches(names: list[str], whole: bool) -> Iterator[Any]:
        with _damage_told(path):
            _require_text(path, dialect)
            yield from _read_csv(path, dialect, header, names, whole)

    return TableFile(tuple(header), batches, lambda row: _line_of(path, dialect, row))


def _header_of(path: Path, first: str, dialect: Dialect) -> list[str]:
    """The names of the columns, all different."""
    try:
        rows = list(csv.reader([first], delimiter=dialect.separator, skipinitialspace=True))
    except csv.Error as error:
        raise BadInput(f"{path}, line 1 is not valid CSV: {error}", line=1) from error
    header = [name.strip() for name in (rows[0] if rows else [])]
    for at, name in enumerate(header):
        if name in header[:at]:
            raise BadInput(
                f"{path} has two columns {name!r}: rename or drop one of them", column=name
            )
    return header


def _first_line(path: Path, dialect: Dialect) -> str:
    with _opened(path) as file:
        raw = file.readline(_LONGEST_HEADER)
        while raw and not raw.strip():
            raw = file.readline(_LONGEST_HEADER)
    if dialect.encoding.lower().replace("_", "-").startswith("utf-16"):
        raise BadInput(f"{path} is said to be {dialect.encoding}: save it as CSV in UTF-8")
    try:
        return str(raw.decode(dialect.encoding)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _other_encoding(path, 1) from error


def _opened(path: Path) -> Any:
    unpack = _PACKED.get(path.suffix.lower())
    return path.open("rb") if unpack is None else unpack(path)


def _unpacked_zst(path: Path) -> Any:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))


def _other_encoding(path: Path, line: int) -> BadInput:
    return BadInput(
        f"{path} is not UTF-8, first in line {line}: save it as CSV in UTF-8, or name its encoding "
        'in the schema, encoding = "cp1252"',
        line=line,
    )


def _require_text(path: Path, dialect: Dialect) -> None:
    """Refuse zero bytes, what is no text in this encoding, and quotes that DuckDB takes for text,
    each with the line.
    """
    decoder, line = codecs.getincrementaldecoder(dialect.encoding)(), 1
    quotes = _IndentedQuotes(dialect)
    with _opened(path) as file:
        while block := file.read(1 << 20):
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise _other_encoding(path, line + block[: error.start].count(b"\n")) from error
            if b"\0" in block:
                line += block[: block.index(b"\0")].count(b"\n")
                raise BadInput(
                    f"{path} holds a zero byte in line {line}: expected CSV text", line=line
                )
            if (place := quotes.find(block)) is not None:
                line += block[:place].count(b"\n")
                raise BadInput(
                    f"{path}, line {line}: between {dialect.separator!r} and a quote there are "
                    "several spaces, or a tab. Leave them out, or write the file anew with pandas: "
                    "read_csv(FILE, skipinitialspace=True)",
                    line=line,
                )
            line += block.count(b"\n")


@final
class _IndentedQuotes:
    """Finds quotes that open a cell behind more than one space: DuckDB skips one space, and takes
    the quote behind several for text. The cells are compared block by block.
    """

    def __init__(self, dialect: Dialect) -> None:
        encoded = dialect.separator.encode(dialect.encoding, "replace")
        separator = encoded.removeprefix(codecs.BOM_UTF8)
        self._blank = b" \t".replace(separator, b"")
        begin = rb"(?:[\r\n]|" + re.escape(separator) + rb")"
        self._pattern = re.compile(begin + rb"(?! ?\")[" + self._blank + rb"]+\"")
        self._rest = b"\n"  # of the block before, from its last sign that is not blank
        self._within = False  # quotes

    def find(self, block: bytes) -> int | None:
        """Where in the next block of the file such a quote is; None: there is none."""
        rest, text, counted = len(self._rest), self._rest + block, 0
        signs = np.frombuffer(text, np.uint8)
        quotes = signs == ord('"')
        # the pattern is slow, and most blocks have nothing like it
        likely = any((quotes[1:] & (signs[:-1] == blank)).any() for blank in self._blank)
        for match in self._pattern.finditer(text) if likely else ():
            place = match.end() - 1
            self._within ^= _has_odd(quotes[rest + counted : place])
            counted = place - rest
            if not self._within:
                return counted
        self._within ^= _has_odd(quotes[rest + counted :])
        blanks = len(text) - len(text.rstrip(b" \t"))
        self._rest = text[-blanks - 1 :][-_LONGEST_HEADER:]
        return None


def _has_odd(flags: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(flags) % 2)


def _read_csv(
    path: Path, dialect: Dialect, header: Sequence[str], names: list[str], whole: bool
) -> Iterator[Any]:
    """The cells as texts."""
    import duckdb
    import pyarrow as pa

    if not header:
        yield pa.table({})
        return
    columns = {f"c{at}": "VARCHAR" for at in range(len(header))}
    wanted = [f"c{header.index(name)}" for name in names]
    with _connection() as connection:
        try:
            rows = connection.read_csv(
                _source(path, dialect),
                columns=columns,
                header=True,
                sep=dialect.separator,
                quotechar='"',
                escapechar='"',
                auto_detect=False,
                strict_mode=True,
                na_values=["\x01"],
            )
            yield from _batches(rows, wanted or ["c0"], whole)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise _csv_error(path, dialect, error) from error


def _connection() -> Any:
    """DuckDB in memory, which installs and loads nothing."""
    import duckdb

    return duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )


def _source(path: Path, dialect: Dialect) -> Any:
    """What DuckDB reads: the file by its name, or its text where DuckDB can't unpack or decode
    it.
    """
    plain = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    if plain and path.suffix.lower() not in (".xz", ".bz2"):
        return _literal(path)
    with _opened(path) as file:
        return io.BytesIO(file.read().decode(dialect.encoding).encode())


def _literal(path: Path) -> str:
    """The path of one file, where DuckDB would read signs in it as a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _batches(rows: Any, columns: Sequence[str], whole: bool) -> Iterator[Any]:
    """Some rows of a relation of DuckDB at a time, or all."""
    chosen = rows.project(", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in columns))
    if whole:
        yield chosen.to_arrow_table() if hasattr(chosen, "to_arrow_table") else chosen.arrow()
        return
    name = "to_arrow_reader" if hasattr(chosen, "to_arrow_reader") else "fetch_arrow_reader"
    yield from getattr(chosen, name)(_CHUNK)


def _csv_error(path: Path, dialect: Dialect, error: Exception) -> BadInput:
    """What DuckDB says of a CSV file, with the row."""
    text = str(error)
    place, length = _LINE.search(text), _LENGTH.search(text)
    line = int(place[1]) if place else None
    if line is not None and length is not None:
        row, other = _row_of(path, dialect, line), _other_separator(path, dialect)
        advice = (
            f"cells that hold {dialect.separator!r} need double quotes"
            if other is None
            else f"the first line looks separated by {other!r}, and the schema says "
            f"{dialect.separator!r}: separator = {json.dumps(other)}"
        )
        return BadInput(
            f"{path}, row {row} (line {line}) has {length[2]} cells: expected {length[1]}, one for "
            f"each column; {advice}",
            row=row - 1,
        )
    problem = "a quote does not close" if "quote" in text else first_line(error)
    where = "" if line is None else f", line {line}"
    return BadInput(
        f"{path}{where} is not valid CSV: {problem}. Expected {dialect.separator!r} between cells, "
        "and double quotes around those that hold it, quotes or line breaks",
        line=line,
    )


def _other_separator(path: Path, dialect: Dialect) -> str | None:
    """What separates the names of the columns, if it is not what the dialect says."""
    first = _first_line(path, dialect)
    if dialect.separator in first:
        return None
    return next((sign for sign in _SEPARATORS if sign in first), None)


def _rows_by_line(path: Path, dialect: Dialect) -> Iterator[int]:
    """The lines on which the rows end; for messages alone."""
    with suppress(OSError), _opened(path) as file:
        text = io.TextIOWrapper(file, dialect.encoding, errors="replace", newline="")
        reader = csv.reader(text, delimiter=dialect.separator, skipinitialspace=True)
        header = True
        try:
            for row in reader:
                if row and not header:
                    yield reader.line_num
                header = header and not row
        except csv.Error:
            return


def _line_of(path: Path, dialect: Dialect, row: int) -> int | None:
    """The line on which a row ends; None where that can't be said any more."""
    return next((line for at, line in enumerate(_rows_by_line(path, dialect)) if at == row), None)


def _row_of(path: Path, dialect: Dialect, line: int) -> int:
    """The number of the row that a line belongs to, counted from 1."""
    return 1 + sum(1 for end in _rows_by_line(path, dialect) if end < line)


def _open_json(path: Path, dialect: Dialect) -> TableFile:
    """Each cell is read by itself. DuckDB would give a column one type, which one row could change
    for all others: a number among texts put quotes around these.
    """
    import duckdb

    def rows(connection: Any, **settings: Any) -> Any:
        return connection.read_json(
            _literal(path), format="newline_delimited", records="true", **settings
        )

    def batches(names: list[str], whole: bool) -> Iterator[Any]:
        with _connection() as connection:
            try:
                written = rows(connection, columns=dict.fromkeys(names or known, "JSON"))
                for batch in _batches(written, names or known[:1], whole):
                    yield _json_cells(path, batch)
            except duckdb.Error as error:
                raise _unreadable(path, "JSON lines", error) from error

    with _connection() as connection:
        try:
            known = list(rows(connection, sample_size=-1).columns)
        except duckdb.Error as error:
            raise _unreadable(path, "JSON lines", error) from error
    return TableFile(tuple(known), batches)


def _json_cells(path: Path, batch: Any) -> Any:
    """Columns of cells, from columns of the texts of JSON values."""
    import pyarrow as pa

    def refuse(name: str, row: int, cell: Any) -> BadInput:
        return BadInput(
            f"{path}, row {row + 1}, column {name!r} holds a {type(cell).__name__}: expected "
            "numbers, text or truth values; convert it, or take it out of the schema",
            row=row,
        )

    columns = []
    for name in batch.schema.names:
        codes, texts = cells.distinct(batch.column(name))
        values = [*map(json.loads, texts), None]
        columns.append(cells.array_of((values[code] for code in codes), partial(refuse, name)))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unreadable(path: Path, form: str, error: Exception) -> BadInput:
    return BadInput(f"{path} cannot be read as {form}: {first_line(error)}", path=str(path))


def _open_columns(form: str) -> Callable[[Path, Dialect], TableFile]:
    """Files of pyarrow, and folders of them; `year=2020` in a folder's name is a column."""

    def open_dataset(path: Path, dialect: Dialect) -> TableFile:
        import pyarrow as pa
        from pyarrow import dataset

        kind: Any = "feather"
        if form == "parquet":
            # pages may have checksums; they are not checked by default
            options = dataset.ParquetFragmentScanOptions(
                page_checksum_verification=True,
                use_buffered_stream=True,
                buffer_size=_BUFFER,
                pre_buffer=False,
            )
            kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        places = sorted(map(str, path.rglob(f"*.{form}"))) if path.is_dir() else [str(path)]
        partitioning = dataset.partitioning(flavor="hive") if path.is_dir() else None

        def batches(names: list[str], whole: bool) -> Iterator[Any]:
            try:
                if whole:
                    yield files.to_table(columns=names, use_threads=False)
                    return
                scanner = files.scanner(
                    columns=names,
                    batch_size=_CHUNK,
                    batch_readahead=1,
                    fragment_readahead=1,
                    use_threads=False,
                )
                yield from scanner.to_batches()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise _unreadable(path, form.capitalize(), error) from error

        try:
            files = dataset.dataset(
                places, format=kind, partitioning=partitioning, partition_base_dir=str(path)
            )
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise _unreadable(path, form.capitalize(), error) from error
        return TableFile(tuple(files.schema.names), batches)

    return open_dataset


def _open_sheet(path: Path, dialect: Dialect) -> TableFile:
    """A sheet of a workbook: the one that the schema names, or the first."""
    try:
        import fastexcel
    except ImportError as error:
        raise BadInput(
            f"{path} is a workbook, and fastexcel is not installed: pip install "
            "'privlearn[excel]', or save it as CSV"
        ) from error
    try:
        book = fastexcel.read_excel(str(path))
        sheets = list(book.sheet_names)
        _require_sheet(path, dialect.sheet, sheets)
        sheet = _load_cells(book, dialect.sheet or 0)
    except BadInput:
        raise
    except Exception as error:  # of several kinds, for damaged files
        raise _unreadable(path, "a workbook", error) from error
    remarks: tuple[str, ...] = ()
    if len(sheets) > 1 and not dialect.sheet:
        remarks = (
            f"{path} has {len(sheets)} sheets, and the first was read, {_quoted([sheets[0]])}: to "
            f"read another, say so in the schema, sheet = {_quoted([sheets[1]])}",
        )
    return TableFile(
        tuple(sheet.schema.names),
        lambda names, whole: iter([sheet.select(names)]),
        remarks=remarks,
    )


def _load_cells(book: Any, sheet: str | int) -> Any:
    """The cells of a sheet. A column of numbers and truth values is one of texts: there one number
    would make a 1 of every `true`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    typed = book.load_sheet(sheet, schema_sample_rows=None).to_arrow()
    texts = book.load_sheet(sheet, dtypes="string").to_arrow()
    truth = pa.array(["true", "false"])
    columns = []
    for column, text in zip(typed.columns, texts.columns, strict=True):
        is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
        mixed = is_number and pc.any(pc.is_in(text, value_set=truth)).as_py()
        columns.append(text if mixed else column)
    return pa.RecordBatch.from_arrays(columns, names=typed.schema.names)


def _require_sheet(path: Path, name: str, sheets: Sequence[str]) -> None:
    if name and name not in sheets:
        raise BadInput(
            f"{path} has no sheet {_quoted([name])}: expected in the schema, at sheet, one of "
            f"{_quoted(sheets[:8])}{f' and {len(sheets) - 8} more' * (len(sheets) > 8)}",
            path=str(path),
        )


def _quoted(names: Sequence[str]) -> str:
    """Names as a schema's file writes them."""
    return ", ".join(json.dumps(name[:60], ensure_ascii=False) for name in names)


#: The forms of tables' files, and how each is opened, by the ending of their names.
FORMS: dict[str, Callable[[Path, Dialect], TableFile]] = {
    ".csv": _open_csv,
    ".tsv": _open_csv,
    ".parquet": _open_columns("parquet"),
    ".feather": _open_columns("feather"),
    ".jsonl": _open_json,
    ".xlsx": _open_sheet,
    ".xls": _open_sheet,
    ".ods": _open_sheet,
}
#: Other endings of the same forms.
_SAME = {".pq": ".parquet", ".arrow": ".feather", ".ipc": ".feather", ".ndjson": ".jsonl"}
