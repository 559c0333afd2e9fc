"""This file says what the cells of a column mean, whatever library or file they come from: numbers,
days, or names.

The rules are those of docs/data.md, "What a cell means". A cell is missing if it is null, NaN or
empty, or if it is one of the schema's texts for a missing value. A column is an array of Arrow.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

#: Python's float() also takes "nan", "inf", "1_000" and digits of other scripts.
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_IS_NUMBER = re.compile(_NUMBER)
#: The last day that Python has, in days since 1970.
_LAST_DAY = (date.max - date(1970, 1, 1)).days
#: What pandas and others read as a missing value, in small letters, without signs.
_READ_AS_MISSING = {"na", "nan", "null", "none"}


@final
@dataclass(frozen=True)
class Misfit:
    """A cell that its column does not allow.

    Attributes:
        row: where it is, counted from 0.
        cell: what it holds.
        problem: what is wrong: "kind" (no number, or no day), "infinite" or "ambiguous".
    """

    row: int
    cell: Any
    problem: str


def plain(column: Any) -> Any:
    """One array of plain values: chunks are joined, dictionaries decoded, texts have one type."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of several chunks in earlier releases
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_large_string(array.type) or str(array.type) == "string_view":
        array = array.cast(pa.string())
    return array


def is_readable(kind: Any) -> bool:
    """Whether cells of an Arrow type have a meaning: numbers, texts, booleans and dates."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return is_readable(kind.value_type)
    return (
        any(
            is_kind(kind)
            for is_kind in (
                types.is_integer,
                types.is_floating,
                types.is_decimal,
                types.is_boolean,
                types.is_string,
                types.is_large_string,
                types.is_date,
                types.is_timestamp,
                types.is_null,
            )
        )
        or str(kind) == "string_view"
    )


def normalized(text: str) -> str:
    """A text without spaces around it, with accents composed."""
    return unicodedata.normalize("NFC", text.strip())


def text_of(value: Any) -> str:
    """A cell as a schema would write it in quotes: 3 is "3", true is "true", a missing value is
    "".
    """
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float() if value != value:
            return ""
        case float() if value.is_integer():
            return str(int(value))  # whole numbers become these where a column has missing values
        case Decimal():
            return f"{value.normalize():f}"
        case date():
            return value.isoformat()
    return normalized(str(value))


@final
class Names:
    """Declared names, and which of them a cell has.

    A text has the name that equals it. Else it has the name that means the same number or truth
    value ("1.0" and "1", "TRUE" and "true"), if there is just one; with `match="casefold"` also the
    name that differs from it by capitals and spaces alone. So have numbers and truth values.
    """

    def __init__(self, names: Sequence[str], match: str | None = None) -> None:
        self._match = match
        self._exact = {normalized(name): place for place, name in enumerate(names)}
        self._by_meaning: dict[Any, list[int]] = {}
        for place, name in enumerate(names):
            if (meaning := self._meaning(normalized(name))) is not None:
                self._by_meaning.setdefault(meaning, []).append(place)

    def place(self, value: Any) -> int | None:
        """The place of the name that a cell has; None if it has none.

        Raises:
            LookupError: several names mean the same.
        """
        text = text_of(value)
        if isinstance(value, str) and text in self._exact:
            return self._exact[text]
        places = self._by_meaning.get(self._meaning(text), [])
        if len(places) > 1:
            raise LookupError(text)
        return places[0] if len(places) == 1 else self._exact.get(text)

    def _meaning(self, text: str) -> Any:
        """What texts have in common that are the same name."""
        if text.casefold() in ("true", "false"):
            return text.casefold()
        if _IS_NUMBER.fullmatch(text):
            with suppress(InvalidOperation):  # of exponents beyond what Decimal has
                return Decimal(text)
        if self._match == "casefold":
            return "text", folded(text)
        return None


def folded(text: str) -> str:
    """A text without its capitals, and with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def unaccented(text: str) -> str:
    """A folded text without accents."""
    letters = unicodedata.normalize("NFKD", folded(text))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def is_read_as_missing(name: str) -> bool:
    """Whether libraries read a name as a missing value unless they are told otherwise."""
    return re.sub(r"\W", "", name).casefold() in _READ_AS_MISSING


def distinct(column: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """The different cells of a column, and which of them each row has; -1 where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = plain(column)
    if pa.types.is_null(array.type):
        return np.full(len(array), -1, dtype=np.int64), []
    coded = pc.dictionary_encode(array)
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, values_of(coded.dictionary)


def values_of(array: Any) -> list[Any]:
    """Cells as Python has them; days that it does not have as text."""
    import pyarrow as pa

    array = plain(array)
    if pa.types.is_float32(array.type) or pa.types.is_float16(array.type):
        # as they are written, 0.1 and not 0.10000000149
        return [
            None if cell is None else float(str(np.float32(cell))) for cell in array.to_pylist()
        ]
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        return list(array.cast(pa.string()).to_pylist())


def places_of(
    column: Any, names: Sequence[str], match: str | None = None
) -> tuple[NDArray[np.int64], Counter[str], Misfit | None]:
    """Which of some names each row has.

    Returns:
        The place of each row's name, -1 where it has none; how often each text comes that is no
        name; and the first cell that several names mean.
    """
    codes, values = distinct(column)
    lookup = Names(names, match)
    places = np.full(len(values) + 1, -1, dtype=np.int64)  # the last one is that of nulls
    others: Counter[str] = Counter()
    ambiguous: list[int] = []
    counts = np.bincount(codes + 1, minlength=len(values) + 1)[1:]
    for at, value in enumerate(values):
        try:
            place = lookup.place(value)
        except LookupError:
            ambiguous.append(at)
            continue
        if place is not None:
            places[at] = place
        elif text := text_of(value):
            others[text] += int(counts[at])
    misfit = None
    if ambiguous:
        row = int(np.flatnonzero(np.isin(codes, ambiguous))[0])
        misfit = Misfit(row, values[codes[row]], "ambiguous")
    return places[codes], others, misfit


def texts(column: Any) -> list[str]:
    """Each row's cell as text; "" where it is missing."""
    codes, values = distinct(column)
    known = [*map(text_of, values), ""]
    return [known[code] for code in codes]


def numbers(
    column: Any, missing: Sequence[str], decimal: str = "."
) -> tuple[NDArray[np.float64], NDArray[np.bool_], Misfit | None]:
    """Each row's number.

    Args:
        column: the cells.
        missing: the texts of a missing value.
        decimal: what stands before the decimals in a text.

    Returns:
        The numbers, 0 where there is none; which rows have none because their cell is missing; and
        the first cell that is neither a finite number nor missing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = plain(column)
    absent = pc.is_null(array, nan_is_null=True).to_numpy(zero_copy_only=False)
    values = np.zeros(len(array))
    if pa.types.is_string(array.type):
        trimmed = pc.utf8_trim_whitespace(array)
        absent = absent | _flags(pc.is_in(trimmed, value_set=pa.array(["", *missing], pa.string())))
        pattern = _NUMBER.replace(r"\.", re.escape(decimal))
        fits = _flags(pc.match_substring_regex(trimmed, f"^(?:{pattern})$")) & ~absent
        written = trimmed.filter(pa.array(fits))
        if decimal != ".":
            written = pc.replace_substring(written, decimal, ".")
        values[fits] = np.fromiter(map(float, written.to_pylist()), np.float64, int(fits.sum()))
    elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        fits = ~absent
        values = pc.fill_null(array.cast(pa.float64(), safe=False), 0.0).to_numpy(
            zero_copy_only=False
        )
        values = np.where(absent, 0.0, values)
    elif pa.types.is_decimal(array.type):
        fits = ~absent
        values[fits] = np.fromiter(
            map(float, array.filter(pa.array(fits)).to_pylist()), np.float64, int(fits.sum())
        )
    else:
        fits = np.zeros(len(array), dtype=np.bool_)
    stand_ins = [float(text) for text in missing if _IS_NUMBER.fullmatch(text)]
    absent = absent | (fits & np.isin(values, stand_ins))
    finite = np.isfinite(values)
    wrong = (~fits & ~absent) | (~finite & ~absent)
    if not wrong.any():
        return values, absent, None
    row = int(np.argmax(wrong))
    return values, absent, Misfit(row, _cell(array, row), "kind" if finite[row] else "infinite")


def days(
    column: Any, missing: Sequence[str], form: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], Misfit | None]:
    """Each row's day, as the number of days since 1970; a time of day is left out.

    Args:
        column: the cells.
        missing: the texts of a missing value.
        form: how a text says a day, as `datetime.strptime` has it; None: 2020-12-31.

    Returns:
        As `numbers`.
    """
    import pyarrow as pa

    array = plain(column)
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        return _typed_days(array)
    codes, values = distinct(array)
    known = np.zeros(len(values) + 1)
    absent, wrong = (np.zeros(len(values) + 1, dtype=np.bool_) for _ in range(2))
    absent[-1] = True
    for at, value in enumerate(values):
        text = normalized(value) if isinstance(value, str) else None
        if text in ("", *missing) or (isinstance(value, float) and value != value):
            absent[at] = True
        elif text is None or (day := _day(text, form)) is None:
            wrong[at] = True
        else:
            known[at] = (day - date(1970, 1, 1)).days
    if not (wrong := wrong[codes]).any():
        return known[codes], absent[codes], None
    row = int(np.argmax(wrong))
    return known[codes], absent[codes], Misfit(row, values[codes[row]], "kind")


def _typed_days(array: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_], Misfit | None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        try:
            array = pc.local_timestamp(array)
        except pa.ArrowInvalid:  # its time zone is unknown
            return _no_days(array)
    whole = array.cast(pa.date32(), safe=False).cast(pa.int32())
    absent = pc.is_null(array).to_numpy(zero_copy_only=False)
    values = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).astype(np.float64)
    wrong = np.abs(values) > _LAST_DAY
    if not wrong.any():
        return values, absent, None
    row = int(np.argmax(wrong))
    return values, absent, Misfit(row, _cell(array, row), "kind")


def _no_days(array: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_], Misfit | None]:
    """The outcome for time stamps in an unknown zone: the first one is refused."""
    absent = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    row = int(np.argmax(~absent))
    misfit = None if absent.all() else Misfit(row, f"in the zone {array.type.tz}", "kind")
    return np.zeros(len(array)), absent, misfit


def _day(text: str, form: str | None) -> date | None:
    try:
        if form is not None:
            return datetime.strptime(text, form).date()
        return date.fromisoformat(re.sub(r"[T ].*", "", text))
    except ValueError:
        return None


def _cell(array: Any, row: int) -> Any:
    return values_of(array.slice(row, 1))[0]


def _flags(array: Any) -> NDArray[np.bool_]:
    """Arrow's truth values; false where they are null."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False))


def array_of(cells: Iterable[Any], refuse: Callable[[int, Any], Exception]) -> Any:
    """Cells of one kind or several as an array: of several kinds as texts.

    What a cell means follows from that cell alone. Arrow would bring days, and times in different
    zones, to the kind and the zone of the first one.

    Args:
        cells: as Python, NumPy or a data frame has them.
        refuse: makes the error for a cell without a meaning, of its row.
    """
    import pyarrow as pa

    values = [_known(cell, row, refuse) for row, cell in enumerate(cells)]
    if len({_kind(cell) for cell in values if cell is not None}) <= 1:
        try:
            array = pa.array(values, from_pandas=True)
            if is_readable(array.type):
                return array
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
    return pa.array([None if cell is None else text_of(cell) for cell in values], pa.string())


def _kind(cell: Any) -> Any:
    """What cells have in common that one array can hold as they are: times have their zone in
    common, too.
    """
    if isinstance(cell, datetime):
        return "time", cell.tzinfo and (str(cell.tzinfo), cell.utcoffset())
    if isinstance(cell, int | float | Decimal) and not isinstance(cell, bool):
        return "number"
    return type(cell)


def _known(cell: Any, row: int, refuse: Callable[[int, Any], Exception]) -> Any:
    if isinstance(cell, np.floating):
        cell = float(str(cell))  # as it is written, 0.1 and not 0.10000000149
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if cell is None or (isinstance(cell, float) and cell != cell):
        return None
    if type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if not isinstance(cell, str | int | float | Decimal | date):
        raise refuse(row, cell)
    return cell
