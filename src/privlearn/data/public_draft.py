"""A schema drafted from a file that is declared public, for a table whose rows are private.

The rows of the private table are not looked at: of its file the header is read, and a digest is
compared, so that private rows are not declared public by mistake.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import checked, require_fit
from privlearn.data import cells, table_files
from privlearn.data.databases import Address, read_address
from privlearn.data.encoding import listed
from privlearn.data.schema import Date, DraftedFrom, Number, require_range
from privlearn.data.table_files import Dialect
from privlearn.data.tables import Table, column_names, is_frame, read_table
from privlearn.data.template import quote, write_template
from privlearn.errors import BadInput

#: More categories than this are not listed.
_MOST_CATEGORIES = 50
#: A target of so many different whole numbers at most has them as classes.
_MOST_CLASSES = 10
#: Of so many rows or more, texts or whole numbers that are all different are taken for ids.
_ROWS_OF_IDS = 20
#: How texts may say days.
_FORMATS = (
    None,
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
)
_EPOCH = date(1970, 1, 1)

#: What is declared of a column, as a schema's file says it, or why nothing is.
_Settings = dict[str, Any] | str


@final
@dataclass(frozen=True)
class PublicDraft:
    """What a public file says of a table's columns; free to use.

    Attributes:
        columns: what is declared of each column that could be drafted, as a schema's file says it,
            in the table's order; nothing for the others.
        blank: why nothing is declared of a column, one line.
        target: the column to predict, or several; None: it is still to be named.
        missing: the texts that stand for a missing value.
        dialect: how the table's file is written; None: the usual way.
        drafted_from: the public file.
        remarks: what to know of how the public file was read.
    """

    columns: Mapping[str, Mapping[str, Any]]
    blank: Mapping[str, str]
    target: str | tuple[str, ...] | None
    missing: tuple[str, ...]
    dialect: Dialect | None
    drafted_from: DraftedFrom
    remarks: tuple[str, ...] = ()

    def to_toml(self) -> str:
        """A schema file, to be looked through: columns that could not be drafted have no kind yet,
        and a comment that says why.
        """
        head = (
            f"Drafted from {quote(self.drafted_from.file)}, which you declare public. Numbers: its",
            "bounds, each moved outwards to a round number, by a tenth of their distance at most.",
            "Days: whole years. A missing value counts as the median, and NA and the like among",
            'numbers as missing, in all columns. Fill in or delete the lines of kind "", and look',
            "through the others.",
        )
        lines = write_template(
            self.columns,
            target=[*self.target] if isinstance(self.target, tuple) else self.target or "",
            missing=self.missing,
            dialect=self.dialect,
            remarks=self.blank,
            more={"drafted_from": asdict(self.drafted_from)},
            head=head,
        )
        return "\n".join([*lines, ""])


@checked
def draft_public_schema(
    source: Any, *, public: str | Path, target: str | Sequence[str] | None = None
) -> PublicDraft:
    """Draft bounds, categories and date formats of a table's columns from a public file.

    Guarantee: of `source` no row is looked at; names of columns are read, and a digest of its file
    is compared with that of `public`. So the draft costs nothing, if `public` is what you declare
    it to be. Its name and digest go into the schema and, with the model, to its readers.

    Args:
        source: the private table: a file, a folder of files, a table of a database, or a data
            frame.
        public: a file, or a folder, of a table with columns of the same names, whose rows you
            declare public.
        target: the column to predict, or several; None: it is named later.

    Raises:
        BadInput: no such table or column; or the public file has the content of the private one
            (data frames and databases are not compared).
    """
    if isinstance(read_address(public), Address):
        raise BadInput(
            "public is a table of a database: expected the file in which these rows were "
            "published. Private rows do not become public by being saved as a file"
        )
    public, dialect = Path(public), None
    if not is_frame(source):
        require_fit("source", source, str | Path)
        source = read_address(source)
        if not isinstance(source, Address):
            source = Path(source)
            dialect = table_files.likely_dialect(source)
    names = column_names(source, dialect)
    targets = () if target is None else (target,) if isinstance(target, str) else tuple(target)
    if unknown := [name for name in targets if name not in names]:
        raise BadInput(
            f"target is {str(unknown[0])[:60]!r}: expected one of the table's columns, "
            f"{listed(names)}"
        )
    written = table_files.likely_dialect(public)
    table_files.open_file(public, written)  # refuses what is no table
    if isinstance(source, Path) and table_files.share_content(source, public):
        raise BadInput(
            f"{public} has the content of {source}, whose rows are private: expected another file, "
            "which is public. pv.statistics.draft_schema drafts from private rows, as a release"
        )
    table, blank = _public_columns(public, names, written)
    arrays = {name: cells.plain(array) for name, array in table.columns.items()}
    separator = _separator_of(public, written)
    decimal = _decimal_of(arrays.values(), separator)
    columns = {name: _Column(name, array, decimal) for name, array in arrays.items()}
    missing = {text for column in columns.values() for text in column.missing}
    drafted: dict[str, _Settings] = {}
    for name in names:
        drafted[name] = (
            columns[name].settings(missing, is_target=name in targets)
            if name in columns
            else blank[name]
        )
    return PublicDraft(
        {name: {} if isinstance(each, str) else each for name, each in drafted.items()},
        {name: each for name, each in drafted.items() if isinstance(each, str)},
        (targets[0] if len(targets) == 1 else targets) or None,
        ("", *sorted(missing)),
        _dialect_of(source, dialect, separator, decimal),
        DraftedFrom(_printable_name(public), _digest(public)),
        table.remarks,
    )


def _public_columns(
    public: Path, names: Sequence[str], dialect: Dialect | None
) -> tuple[Table, dict[str, str]]:
    """The columns that the public file has, and of others why they can't be drafted."""
    wanted, blank = list(names), dict[str, str]()
    while True:
        try:
            table = read_table(public, wanted, dialect)
        except BadInput as error:
            if (name := error.data.get("column")) not in wanted:
                raise
            wanted.remove(name)
            blank[name] = "the public file holds neither numbers nor text, truth values or dates"
            continue
        absent = [name for name in wanted if name not in table.columns]
        blank |= dict.fromkeys(absent, "the public file has no such column")
        return table, blank


def _separator_of(path: Path, dialect: Dialect | None) -> str | None:
    """What separates cells in a text file; None: it is none."""
    usual = {".csv": ",", ".tsv": "\t"}.get(table_files.form_of(path) or "")
    return usual if dialect is None else dialect.separator


def _decimal_of(arrays: Collection[Any], separator: str | None) -> str:
    """What stands before the decimals in the public file: that which more columns of numbers are
    written with.
    """
    if separator in (None, ","):
        return "."
    readable = {
        sign: sum(_numbers_of(array, _missing_texts(array), sign) is not None for array in arrays)
        for sign in (".", ",")
    }
    return "," if readable[","] > readable["."] else "."


def _dialect_of(
    source: Any, dialect: Dialect | None, separator: str | None, decimal: str
) -> Dialect | None:
    """How the private file is written: decimals as in the public one, where cells are separated in
    the same way.
    """
    if (
        decimal == "."
        or not isinstance(source, Path)
        or _separator_of(source, dialect) != separator
    ):
        return dialect
    return Dialect("" if dialect is None else dialect.separator, decimal)


def _printable_name(path: Path) -> str:
    """The name of a file as a schema takes it."""
    signs = [sign if sign.isprintable() else "?" for sign in path.resolve().name]
    return "".join(signs)[:255]


def _digest(path: Path) -> str:
    """The SHA-256 of a file; of a folder that of lines as `sha256sum` writes them."""
    if path.is_dir():
        files = sorted(each for each in path.rglob("*.*") if each.is_file())
        lines = [f"{_digest(each)}  {each.relative_to(path).as_posix()}\n" for each in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@final
class _Column:
    """A column of the public file, read as a schema would read it.

    Attributes:
        missing: the texts that stand for a missing number or day.
    """

    def __init__(self, name: str, array: Any, decimal: str) -> None:
        self._name = name
        self._array = array
        self._rows = len(array)
        absent = _missing_texts(array)
        self._numbers = _numbers_of(array, absent, decimal)
        self._days = [] if self._numbers is not None else _days_of(array, absent)
        self.missing = set() if self._numbers is None and not self._days else absent

    def settings(self, missing: set[str], *, is_target: bool) -> _Settings:
        """What is declared of it, or why nothing is.

        Args:
            missing: the texts of a missing value, in any column.
            is_target: whether it is to be predicted.
        """
        texts = sorted(
            {"", *map(cells.text_of, cells.values_of(self._array.unique()))} - {"", *missing}
        )
        if not texts:
            return "the public file has no value in it"
        if len(texts) == 1:
            return "the public file has one value alone in it"
        if not self._days and self._is_id(texts):
            return "an id, or text that differs in all rows; person = NAME names a person's id"
        if self._numbers is not None:
            return self._of_numbers(self._numbers, texts, is_target=is_target)
        if self._days:
            return self._of_days(is_target=is_target)
        if not _is_text(self._array) and not _is_truth_value(self._array):
            return "its numbers, or days, are beyond those that can be read"
        if len(texts) > _MOST_CATEGORIES:
            return f"{len(texts):,} different texts: more than {_MOST_CATEGORIES} are not listed"
        if is_target:
            return {"kind": "target", "classes": list(texts)}
        return {"kind": "category", "categories": list(texts)}

    def _is_id(self, texts: Sequence[str]) -> bool:
        if re.search(r"(?:^|[\W_])id(?:$|[\W_\d])", self._name, re.IGNORECASE) or re.search(
            "[a-z]I[Dd]$", self._name
        ):
            return True
        if self._numbers is not None and (self._numbers != np.floor(self._numbers)).any():
            return False
        return len(texts) == self._rows >= _ROWS_OF_IDS

    def _of_numbers(
        self, numbers: NDArray[np.float64], texts: Sequence[str], *, is_target: bool
    ) -> _Settings:
        whole = bool((numbers == np.floor(numbers)).all())
        if is_target and whole and len(np.unique(numbers)) <= _MOST_CLASSES:
            whole_numbers = [f"{each:.0f}" for each in np.unique(numbers)]
            classes = list(texts) if _is_text(self._array) else whole_numbers
            return {"kind": "target", "classes": classes}
        try:
            low, high = _around(float(numbers.min()), float(numbers.max()))
            require_range("the range", low, high)
        except (BadInput, OverflowError):
            return "its numbers are too large, or too close to each other, for single precision"
        if is_target:
            return {"kind": "target", "low": low, "high": high}
        median = float(np.clip(float(f"{np.median(numbers):.6g}"), low, high))
        return Number(self._name, low, high, median).stated()

    def _of_days(self, *, is_target: bool) -> _Settings:
        if is_target:
            return "it holds days, and a target is a class or a number"
        if len(self._days) > 1:
            return "day and month can't be told apart: a date of format %d/%m/%Y, or %m/%d/%Y"
        ((form, days),) = self._days
        first, last, middle = (
            _EPOCH + timedelta(days=int(day))
            for day in (days.min(), days.max(), np.floor(np.median(days)))
        )
        low, high = first.replace(month=1, day=1), last.replace(month=12, day=31)
        return Date(self._name, low, high, middle, format=form).stated()


def _missing_texts(array: Any) -> set[str]:
    """The texts that say among numbers or days that there is none: NA, or signs alone."""
    if not _is_text(array):
        return set()
    import pyarrow.compute as pc

    texts = array.unique()
    # few have no digits, and Arrow says which
    wordy = texts.filter(pc.invert(pc.match_substring_regex(texts, "[0-9]")))
    return {
        text
        for text in map(cells.text_of, wordy.to_pylist())
        if text and (cells.is_read_as_missing(text) or not re.search(r"\w", text))
    }


def _numbers_of(array: Any, absent: set[str], decimal: str) -> NDArray[np.float64] | None:
    """The numbers that are there, if all cells are numbers or missing; None: they are not, or are
    codes such as 007.
    """
    import pyarrow.compute as pc

    numbers, missing, misfit = cells.numbers(array, ["", *absent], decimal)
    if misfit is not None or missing.all():
        return None
    if _is_text(array) and pc.any(pc.match_substring_regex(array, r"^\s*0[0-9]")).as_py():
        return None
    return numbers[~missing]


def _days_of(array: Any, absent: set[str]) -> list[tuple[str | None, NDArray[np.float64]]]:
    """The formats by which all cells are days or missing, with the days that are there."""
    readings = []
    for form in _FORMATS if _is_text(array) else (None,):
        for part in (array.slice(0, 100), array):  # many columns are no days from the beginning
            days, missing, misfit = cells.days(part, ["", *absent], form)
            if misfit is not None:
                break
        else:
            readings += [] if missing.all() else [(form, days[~missing])]
    return readings


def _is_text(array: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(array.type))


def _is_truth_value(array: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(array.type))


def _around(low: float, high: float) -> tuple[float, float]:
    """Round numbers around two others: with two digits of their distance."""
    if not high > low or math.isinf(high - low):
        raise OverflowError
    step = Decimal(1).scaleb(math.floor(math.log10(high - low)) - 1)
    with localcontext(prec=1000):
        outer = (
            Decimal(repr(low)).quantize(step, ROUND_FLOOR),
            Decimal(repr(high)).quantize(step, ROUND_CEILING),
        )
    return float(outer[0]) + 0.0, float(outer[1]) + 0.0
