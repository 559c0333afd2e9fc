"""A schema is a TOML file that declares what a table's columns are: bounds, categories, missing
values, classes.

Nothing here is ever read off rows: a bound, a category or a class that came from private rows would
be an unpaid release.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._target_ranges import Ranges, read_ranges
from privlearn.data.cells import folded
from privlearn.data.faults import Faults
from privlearn.data.table_files import Dialect
from privlearn.errors import BadInput

#: What stands for a missing value unless the schema says otherwise: an empty cell.
_MISSING = ("",)
#: Keys that say how files write the table, and all of a schema's.
_OF_FILES = tuple(field.name for field in fields(Dialect))
_KEYS = ("target", "missing", "person", "columns", *_OF_FILES, "drafted_from")


@final
@dataclass(frozen=True)
class Number:
    """A column of numbers: one feature, and with `indicator` a second one, 1 where the value is
    missing and else 0.

    Attributes:
        name: the column.
        low: declared lower bound; values below count as this.
        high: declared upper bound; values above count as this.
        missing: what stands for a missing value; None: missing values are refused.
        indicator: whether there is a feature that says that the value is missing.
    """

    name: str
    low: float
    high: float
    missing: float | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high", "missing"):
            # whole numbers, too, have the digest of what a file says
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))

    def ranges(self) -> list[tuple[float, float]]:
        """The bounds of its features."""
        return [(self.low, self.high), *[(0.0, 1.0)] * self.indicator]

    def names(self) -> list[str]:
        """What its features are called."""
        return [self.name, *[f"{self.name} is missing"] * self.indicator]

    def stated(self) -> dict[str, Any]:
        """As a schema file says it."""
        fill = {} if self.missing is None else {"missing": self.missing}
        return {
            "kind": "number",
            "low": self.low,
            "high": self.high,
            **fill,
            **_indicator_setting(self.indicator),
        }


@final
@dataclass(frozen=True)
class Date:
    """A column of dates: one feature, the days since `low`; with `indicator` a second one as of
    `Number`.

    Attributes:
        name: the column.
        low: declared first day; earlier ones count as this.
        high: declared last day; later ones count as this.
        missing: what stands for a missing value; None: missing values are refused.
        indicator: whether there is a feature that says that the value is missing.
        format: how a text says a day, as `datetime.strptime` has it, "%d.%m.%Y"; None: 2020-12-31.
    """

    name: str
    low: date
    high: date
    missing: date | None = None
    indicator: bool = False
    format: str | None = None

    @property
    def days(self) -> Number:
        """The same column as days since `low`."""
        fill = None if self.missing is None else float((self.missing - self.low).days)
        return Number(self.name, 0.0, float((self.high - self.low).days), fill, self.indicator)

    def ranges(self) -> list[tuple[float, float]]:
        """The bounds of its features."""
        return self.days.ranges()

    def names(self) -> list[str]:
        """What its features are called."""
        return self.days.names()

    def stated(self) -> dict[str, Any]:
        """As a schema file says it, days as text."""
        fill = {} if self.missing is None else {"missing": self.missing.isoformat()}
        bounds = {"low": self.low.isoformat(), "high": self.high.isoformat()}
        written = {} if self.format is None else {"format": self.format}
        return {"kind": "date", **bounds, **fill, **_indicator_setting(self.indicator), **written}


def _indicator_setting(indicator: bool) -> dict[str, bool]:
    return {"indicator": True} if indicator else {}


@final
@dataclass(frozen=True)
class Category:
    """A column of names: one feature for each declared category, 1 where a row has it and else 0.

    Rows with another value, or none, have 0 in all of them.

    Attributes:
        name: the column.
        categories: its declared values.
        match: "casefold": capitals and spaces do not tell values apart. None: they do.
    """

    name: str
    categories: tuple[str, ...]
    match: str | None = None

    def ranges(self) -> list[tuple[float, float]]:
        """The bounds of its features."""
        return [(0.0, 1.0)] * len(self.categories)

    def names(self) -> list[str]:
        """What its features are called."""
        return [f"{self.name}={category}" for category in self.categories]

    def stated(self) -> dict[str, Any]:
        """As a schema file says it."""
        match = {} if self.match is None else {"match": self.match}
        return {"kind": "category", "categories": list(self.categories), **match}


#: A column to learn from.
Column = Number | Date | Category
#: What a target is: its classes, or the bounds of a number.
_Target = tuple[tuple[str, ...], tuple[float, float] | None]


@final
@dataclass(frozen=True)
class DraftedFrom:
    """The public file that bounds and categories of a schema were drafted from.

    Attributes:
        file: its name.
        sha256: of its bytes, as hexadecimal digits; of a folder, of its files' names and digests.
    """

    file: str
    sha256: str


@final
@dataclass(frozen=True)
class Schema:
    """What is publicly declared of a table.

    Attributes:
        target: the column to predict.
        classes: its values; a row's label is the position in this list. Empty where the target is a
            number.
        features: the columns to learn from, in the order in which their features come.
        missing: the texts that stand for a missing value, spaces around them left out.
        person: the column that says whose row it is, if persons are to be protected; private, and
            no feature.
        target_bounds: the declared bounds of a target that is a number; those beyond count as
            these. None: of classes.
        target_ranges: names and bounds of the columns to predict, where these are several numbers,
            `target` the first of them. Empty: they are not.
        labels: the columns to predict, where there are several, `target` the first of them: of each
            row the place of its value among the two classes, 0 or 1, for each column. Empty: there
            is one target.
        dialect: how text files write the table; None: the usual way.
        drafted_from: the file that bounds and categories were drafted from, which the data's
            curator declares public; None: of none that is known.
    """

    target: str
    classes: tuple[str, ...]
    features: tuple[Column, ...]
    missing: tuple[str, ...] = _MISSING
    person: str | None = None
    target_bounds: tuple[float, float] | None = None
    labels: tuple[str, ...] = ()
    dialect: Dialect | None = None
    drafted_from: DraftedFrom | None = None
    target_ranges: Ranges = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return self.labels or tuple(name for name, *_ in self.target_ranges) or (self.target,)

    @property
    def of_targets(self) -> dict[str, Any]:
        """What it declares of targets, as a data set has it."""
        classes = None if self.labels else len(self.classes) or None
        declared = {"classes": classes, "target_bounds": self.target_bounds, "labels": self.labels}
        return declared | {"target_ranges": self.target_ranges}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, what is to be predicted last."""
        return (*(column.name for column in self.features), *self.targets)

    @property
    def digest(self) -> str:
        """A SHA-256 of what settles the meaning of features and labels; the target's name does
        not.
        """
        columns = [
            {"kind": type(column).__name__.lower(), **asdict(column)} for column in self.features
        ]
        for column in columns:
            column.pop("format", None)  # how a file writes it does not change what it means
            for name in ("indicator", "match"):
                if not column.get(name, True):
                    del column[name]
        settled: dict[str, Any] = {
            "features": columns,
            "classes": self.classes,
            "missing": sorted(set(self.missing)),
        }
        settled |= {} if self.target_bounds is None else {"target_bounds": self.target_bounds}
        settled |= {"labels": self.labels} if self.labels else {}
        settled |= {"target_ranges": self.target_ranges} if self.target_ranges else {}
        return hashlib.sha256(json.dumps(settled, sort_keys=True, default=str).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """All that settles the meaning of features and labels, as a schema file says it;
        `from_json` reads it.
        """
        columns: dict[str, Any] = {column.name: column.stated() for column in self.features}
        settings: dict[str, Any] = {"classes": list(self.classes)}
        if self.target_bounds is not None:
            settings = dict(zip(("low", "high"), self.target_bounds, strict=True))
        targets = {name: {"kind": "target", **settings} for name in self.targets}
        for name, low, high in self.target_ranges:
            targets[name] = {"kind": "target", "low": low, "high": high}
        named = list(self.targets) if len(self.targets) > 1 else self.target
        written = {} if self.dialect is None else self.dialect.stated()
        drafted = {} if self.drafted_from is None else {"drafted_from": asdict(self.drafted_from)}
        return {
            "target": named,
            "missing": list(self.missing),
            **written,
            **drafted,
            "columns": columns | targets,
        }

    @classmethod
    def from_json(cls, description: Any, name: str) -> Schema:
        """The schema that `to_json` wrote; messages call it `name`.

        Raises:
            BadInput: as `read_schema`.
        """
        reader = _Reader(name)
        if not isinstance(description, dict):
            raise reader.refusal(
                f"there is {_quote(description)}", "an object of target, missing and columns"
            )
        return reader.schema(description)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the features are called, in their order."""
        return tuple(name for column in self.features for name in column.names())

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Lower and upper bounds of the features, each of shape (features,)."""
        ranges = np.array(
            [pair for column in self.features for pair in column.ranges()], dtype=np.float32
        )
        return ranges[:, 0], ranges[:, 1]


def of_table(schema: Schema | None) -> dict[str, Any]:
    """What a published configuration says of the table that rows came from: nothing if they came
    from none.
    """
    return {} if schema is None else {"schema": schema.digest, "table": schema.to_json()}


def read_schema(path: str | Path, targets: Sequence[str] = ()) -> Schema:
    """Read a schema file.

    Args:
        path: the file.
        targets: columns to predict, in place of those that it names; its other targets are then
            left out.

    Raises:
        BadInput: the file is missing, no TOML, or does not declare what it should.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"the schema {path} cannot be read: {error.strerror}. Expected a TOML file; "
            "docs/data.md has one"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"the schema {path} is not UTF-8 text: expected a TOML file; docs/data.md has one"
        ) from error
    return parse_schema(text, str(path), targets)


def parse_schema(text: str, name: str, targets: Sequence[str] = ()) -> Schema:
    """The schema in `text`, perhaps with other columns to predict; messages call it `name`.

    Raises:
        BadInput: as `read_schema`.
    """
    try:
        settings = tomllib.loads(text)
    except RecursionError as error:
        raise BadInput(
            f"the schema {name} is nested too deeply: docs/data.md shows what it holds"
        ) from error
    except ValueError as error:  # TOML errors, and numbers of thousands of digits
        raise BadInput(
            f"the schema {name} is not valid TOML: {error}. docs/data.md has an example"
        ) from error
    if targets:
        settings["target"] = targets[0] if len(targets) == 1 else list(targets)
        columns = settings.get("columns")
        if isinstance(columns, dict) and {*targets} <= {*columns}:  # else all are to choose from
            for column in _other_targets(columns, targets):
                del columns[column]
    return _Reader(name).schema(settings)


def _other_targets(columns: Mapping[str, Any], targets: Sequence[str]) -> list[str]:
    """Columns that could be predicted, and are not among those that are."""
    kinds = {
        name: column.get("kind") for name, column in columns.items() if isinstance(column, dict)
    }
    return [name for name, kind in kinds.items() if kind == "target" and name not in targets]


def require_range(what: str, low: float, high: float) -> None:
    """Refuse bounds that are not two finite numbers, the smaller first, that differ in single
    precision.

    Raises:
        BadInput: just that.
    """
    with np.errstate(over="ignore"):
        settled = np.float32(low), np.float32(high)
    if not -np.inf < settled[0] < settled[1] < np.inf:
        raise BadInput(
            f"{what} is {low:.10g},{high:.10g}: expected two finite numbers, the smaller first, "
            "that single precision tells apart"
        )


@final
class _Reader:
    """Checks what a schema file says; every complaint names the file and the place in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def schema(self, settings: Mapping[str, Any]) -> Schema:
        optional: dict[str, Any] = {
            "dialect": self._dialect(settings),
            "drafted_from": self._read_origin(settings),
        }
        self._only("it", settings, _KEYS)
        missing = settings.get("missing", list(_MISSING))
        if not isinstance(missing, list) or not all(isinstance(part, str) for part in missing):
            raise self.refusal(
                f"missing is {_quote(missing)}", 'a list of texts, for example missing = ["?", ""]'
            )
        missing = tuple(part.strip() for part in missing)
        columns = settings.get("columns")
        if not isinstance(columns, dict) or not columns:
            raise self.refusal("there are no columns", "a table [columns.NAME] for each column")
        target = settings.get("target")
        targets = [str(part) for part in (target if isinstance(target, list) else [target])]
        if not targets or not {*targets} <= {*columns}:
            likely = _other_targets(columns, ())
            names = [*likely, *(name for name in columns if name not in likely)]
            raise self.refusal(
                f"target is {_quote(target)}",
                f"one of the columns, or a list: {', '.join(map(_quote, names[:12]))}",
            )
        features: list[Column] = []
        of_targets: dict[str, _Target] = {}
        faults, read = Faults(), dict[str, Column | _Target]()
        for name, column_settings in columns.items():
            with faults.noted():
                read[name] = self._column(name, column_settings, missing)
        faults.refuse()
        for name, column in read.items():
            if not isinstance(column, tuple):
                features.append(column)
            if isinstance(column, tuple) == (name not in targets):
                raise self.refusal(
                    (
                        f"target is {_quote(target)}, and column {_quote(name)} has kind "
                        f"{_quote(columns[name]['kind'])}"
                    ),
                    'kind = "target" for the target, and for no other column',
                )
            if isinstance(column, tuple):
                of_targets[name] = column
        if not features:
            raise self.refusal("the target is its only column", "at least one column to learn from")
        person = settings.get("person")
        if person is not None and (not isinstance(person, str) or person in columns):
            raise self.refusal(
                f"person is {_quote(person)}",
                "the name of a column that is neither a feature nor the target",
            )
        classes, bounds = next(iter(of_targets.values()))
        ranges = {name: pair for name, (_, pair) in of_targets.items() if pair is not None}
        several = 2 <= len(targets) == len(set(targets))
        if isinstance(target, list) and several and len(ranges) == len(targets):
            optional["target_ranges"] = read_ranges({name: ranges[name] for name in targets})
            bounds = None
        elif isinstance(target, list):
            if not several or len(classes) != 2 or len(set(of_targets.values())) > 1:
                raise self.refusal(
                    f"target is {_quote(target)}",
                    (
                        "two different columns or more, each a number with low and high, or all "
                        "with the same two classes: that of 0 first, then that of 1"
                    ),
                )
            optional["labels"] = tuple(targets)
        return Schema(targets[0], classes, tuple(features), missing, person, bounds, **optional)

    def _read_origin(self, settings: Mapping[str, Any]) -> DraftedFrom | None:
        """The public file that the schema was drafted from, if it says so."""
        origin = settings.get("drafted_from")
        if origin is None:
            return None
        texts = origin if isinstance(origin, dict) else {}
        if not (
            {*texts} == {"file", "sha256"}
            and all(isinstance(text, str) for text in texts.values())
            and 0 < len(texts["file"]) <= 255
            and texts["file"].isprintable()
            and re.fullmatch("[0-9a-f]{64}", texts["sha256"])
        ):
            raise self.refusal(
                f"drafted_from is {_quote(origin)}",
                '{ file = "NAME", sha256 = "64 hexadecimal digits" }, as it was drafted, or none',
            )
        return DraftedFrom(**texts)

    def _dialect(self, settings: Mapping[str, Any]) -> Dialect | None:
        """How files write the table, if the schema says so."""
        file_settings = {name: settings[name] for name in _OF_FILES if name in settings}
        if not file_settings:
            return None
        separator, decimal = file_settings.get("separator", ","), file_settings.get("decimal", ".")
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
            raise self.refusal(
                f"separator is {_quote(separator)}", 'one character: separator = ";"'
            )
        if decimal not in (".", ","):
            raise self.refusal(f"decimal is {_quote(decimal)}", '"." or ","')
        try:
            codecs.lookup(str(file_settings.get("encoding", "utf-8")))
        except LookupError as error:
            raise self.refusal(
                f"encoding is {_quote(file_settings['encoding'])}", 'one that Python has, "cp1252"'
            ) from error
        if not isinstance(sheet := file_settings.get("sheet", "1"), str) or not sheet:
            raise self.refusal(f"sheet is {_quote(sheet)}", 'the name of a sheet: sheet = "2024"')
        return Dialect(**file_settings)

    def _column(self, name: str, settings: Any, missing: tuple[str, ...]) -> Column | _Target:
        """A feature, or the target's classes or bounds."""
        place = f"column {_quote(name)}"
        if name != name.strip():
            raise self.refusal(
                f"{place} has spaces around its name",
                "none; those in a file's header are left out too",
            )
        if not isinstance(settings, dict):
            raise self.refusal(f"{place} is {_quote(settings)}", f"a table [columns.{name[:60]}]")
        match settings.get("kind"):
            case "number":
                self._only(place, settings, ("kind", "low", "high", "missing", "indicator"))
                low, high = (self._number(place, settings, key) for key in ("low", "high"))
                require_range(f"the range of {place} in the schema {self._name}", low, high)
                fill = self._number(place, settings, "missing") if "missing" in settings else None
                if fill is not None and not low <= fill <= high:
                    raise self.refusal(
                        f"missing of {place} is {fill:g}", f"a number from {low:g} to {high:g}"
                    )
                return Number(name, low, high, fill, self._indicator(place, settings))
            case "date":
                self._only(
                    place, settings, ("kind", "low", "high", "missing", "indicator", "format")
                )
                first, last = (self._day(place, settings, key) for key in ("low", "high"))
                if not first < last:
                    raise self.refusal(
                        f"the range of {place} is {first} to {last}", "the earlier day first"
                    )
                default = self._day(place, settings, "missing") if "missing" in settings else None
                if default is not None and not first <= default <= last:
                    raise self.refusal(
                        f"missing of {place} is {default}", f"a day from {first} to {last}"
                    )
                indicator = self._indicator(place, settings)
                return Date(name, first, last, default, indicator, self._format(place, settings))
            case "category":
                self._only(place, settings, ("kind", "categories", "match"))
                match = settings.get("match")
                if match not in (None, "casefold"):
                    raise self.refusal(
                        f"match of {place} is {_quote(match)}",
                        '"casefold", or none for names as they are written',
                    )
                names = self._names(place, settings, "categories", 1, missing)
                self._require_apart(place, names, match)
                return Category(name, names, match)
            case "target" if "classes" not in settings and {"low", "high"} & set(settings):
                self._only(place, settings, ("kind", "low", "high"))
                low, high = (self._number(place, settings, key) for key in ("low", "high"))
                require_range(f"the range of {place} in the schema {self._name}", low, high)
                return (), (low, high)
            case "target" if {*settings} == {"kind"}:
                raise self.refusal(
                    f"{place} is a target with neither classes nor bounds",
                    'classes = ["NAME", "NAME"] for classes, or low and high for a number',
                )
            case "target":
                self._only(place, settings, ("kind", "classes"))
                return self._names(place, settings, "classes", 2, missing), None
        raise self.refusal(
            f"kind of {place} is {_quote(settings.get('kind'))}",
            '"number", "date", "category" or "target"',
        )

    def _number(self, place: str, settings: Mapping[str, Any], key: str) -> float:
        value = settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e38:
            other = {"low": "high", "high": "low"}.get(key, "")
            side = "below" if key == "low" else "above"
            beside = f", {side} {other} = {_quote(settings[other])}" if other in settings else ""
            raise self.refusal(
                f"{key} of {place} is {_quote(value)}",
                f"a finite number, publicly known{beside}",
            )
        return float(value)

    def _day(self, place: str, settings: Mapping[str, Any], key: str) -> date:
        value = settings.get(key)
        if isinstance(value, str):
            try:
                value = date.fromisoformat(value)
            except ValueError:
                value = None
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.refusal(
                f"{key} of {place} is {_quote(settings.get(key))}", f"a day: {key} = 2020-12-31"
            )
        return value

    def _format(self, place: str, settings: Mapping[str, Any]) -> str | None:
        """How a text says a day: one that is written by it is read as the same day."""
        form = settings.get("format")
        if form is None:
            return None
        day = date(1999, 12, 31)
        try:
            same = isinstance(form, str) and datetime.strptime(day.strftime(form), form).date()
        except ValueError:
            same = False
        if same != day:
            raise self.refusal(
                f"format of {place} is {_quote(form)}",
                'one of datetime.strptime that says day, month and year: format = "%d.%m.%Y"',
            )
        return str(form)

    def _require_apart(self, place: str, names: tuple[str, ...], match: str | None) -> None:
        """Refuse categories that differ by what does not count."""
        seen: dict[str, str] = {}
        for name in names if match else ():
            if (other := seen.setdefault(folded(name), name)) != name:
                raise self.refusal(
                    f"{_quote(other)} and {_quote(name)} of {place} differ by capitals or spaces "
                    "alone",
                    'one of them, or no match = "casefold"',
                )

    def _indicator(self, place: str, settings: Mapping[str, Any]) -> bool:
        value = settings.get("indicator", False)
        if not isinstance(value, bool) or (value and "missing" not in settings):
            raise self.refusal(
                f"indicator of {place} is {_quote(value)}",
                "true or false, and with true what stands for a missing value",
            )
        return value

    def _names(
        self,
        place: str,
        settings: Mapping[str, Any],
        key: str,
        least: int,
        missing: tuple[str, ...],
    ) -> tuple[str, ...]:
        names = settings.get(key)
        if (
            not isinstance(names, list)
            or len(names) < least
            or not all(isinstance(part, str) for part in names)
        ):
            raise self.refusal(
                f"{key} of {place} is {_quote(names)}",
                f"a list of at least {least}, each in quotes",
            )
        for at, part in enumerate(names):
            wrongs = {
                "is empty": part == "",
                "has spaces around it, which are left out of a file's cells": part != part.strip(),
                "stands for a missing value": part in missing,
                "comes twice": part in names[:at],
            }
            for wrong, present in wrongs.items():
                if present:
                    raise self.refusal(
                        f"{_quote(part)} in {key} of {place} {wrong}",
                        "different names, none of them a missing value",
                    )
        return tuple(names)

    def _only(self, place: str, settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in settings:
            if key not in known:
                raise self.refusal(f"{place} has {_quote(key)}", f"only {', '.join(known)}")

    def refusal(self, problem: str, expected: str) -> BadInput:
        return BadInput(
            f"in the schema {self._name}, {problem}: expected {expected}. docs/data.md has the "
            "grammar"
        )


def _quote(value: Any) -> str:
    """`value` as the schema could have said it, cut to a line; numbers of thousands of digits have
    no repr.
    """
    if value is None:
        return "not there"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
